"""A watch in a storm: nodes refuse and leave, connections break, logs are cut, slots move, moves are given up, and the
program resumes from tokens. Per key it is told each change once and in order, or of a gap and then of a snapshot.

Guards two bugs: a snapshot that was asked for some slots counted for others that had come to be missing since, and a
watch that asked again and again without a wait where nobody had the log.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from scripted import Server
from watch_server import Group, WatchNodes, bits, slot_of

from metad_client import (
    Client,
    DrainingError,
    LogCutError,
    NotReplicaError,
    Options,
    OverloadedError,
    Watch,
    WatchBatch,
    connect,
)
from metad_wire.watch import MarkerStep, SlotMarker

NAMES = [f"ns{number}" for number in range(8)]
STEPS = 250
PATIENCE_S = 300.0


class Storm:
    """One world, what is true in it, and what a watch has told."""

    def __init__(self, seed: int, nodes: WatchNodes, client: Client) -> None:
        self.rng = random.Random(seed)
        self.nodes = nodes
        self.client = client
        self.written: Counter[str] = Counter()
        self.told: Counter[str] = Counter()
        self.missing: set[int] = set()
        self.snapshots: dict[str, Counter[str]] = {}
        self.moves: list[tuple[Group, Group, int, set[int], int]] = []
        self.last_move = 0

    # --- what happens ---

    def step(self) -> None:
        happens = [self.put] * 9 + [self.seal, self.seal, self.end_move, self.end_move, self.end_stream, self.cut_log]
        happens += [self.break_connection, self.refuse, self.forgive, self.mark]
        self.rng.choice(happens)()

    def holder(self, name: str) -> Group | None:
        slot = slot_of(name)
        return next((group for group in self.nodes.groups if slot in group.slots - group.sealed), None)

    def put(self) -> None:
        name = self.rng.choice(NAMES)
        group = self.holder(name)
        if group is not None:
            self.written[name] += 1
            group.put("k", b"v" * self.rng.choice([1, 3000]), name, version=self.written[name])

    def seal(self) -> None:
        name = self.rng.choice(NAMES)
        source = self.holder(name)
        if source is not None and not source.sealed:
            target = self.rng.choice([group for group in self.nodes.groups if group is not source])
            self.last_move += 10
            slots = {slot_of(name)}
            self.moves.append((source, target, self.last_move, slots, source.seal(self.last_move, slots, target)))

    def end_move(self) -> None:
        if not self.moves:
            return
        source, target, move, slots, sealed_index = self.moves.pop(self.rng.randrange(len(self.moves)))
        if self.rng.random() < 0.3:
            source.sealed, source.sealed_move = set(), 0
            source.append([], SlotMarker(MarkerStep.UNSEALED, move, bits(slots), target.ordinal))
        else:
            self.adopt(source, target, move, slots, sealed_index)

    def adopt(self, source: Group, target: Group, move: int, slots: set[int], sealed_index: int) -> None:
        target.adopt(move, slots, source, sealed_index)
        source.close_move()
        for earlier in target.brought.keys() - {move}:
            target.brought[earlier] = target.brought[earlier] - slots

    def end_stream(self) -> None:
        if self.nodes.live:
            errors = [DrainingError(), NotReplicaError(), OverloadedError(retry_after_ms=20)]
            self.rng.choice(self.nodes.live).end(self.rng.choice(errors))

    def break_connection(self) -> None:
        if self.nodes.server.live:
            self.rng.choice(self.nodes.server.live).cut()

    def cut_log(self) -> None:
        group = self.rng.choice(self.nodes.groups)
        group.base = self.rng.randint(group.base, len(group.log))
        for stream in group.live:
            if stream.position < group.base:
                stream.end(LogCutError())

    def refuse(self) -> None:
        errors = [NotReplicaError(), OverloadedError(), LogCutError()]
        node, group = self.rng.choice(["n1", "n2", "n3"]), self.rng.choice(self.nodes.groups)
        self.nodes.refusals[node, group.name] = self.rng.choice(errors)

    def forgive(self) -> None:
        self.nodes.refusals.clear()

    def mark(self) -> None:
        for group in self.nodes.groups:
            group.mark()

    def calm(self) -> None:
        """Nothing happens any more, and every move comes to its end."""
        self.forgive()
        while self.moves:
            self.adopt(*self.moves.pop())

    # --- what is told ---

    def resumed(self) -> None:
        self.snapshots.clear()

    def hear(self, batch: WatchBatch) -> None:
        if batch.kind == "gap":
            self.missing |= batch.slots
        elif batch.kind == "changes":
            for event in batch.events:
                name = event.record.namespace
                assert slot_of(name) not in self.missing, f"a change of {name} before its snapshot"
                assert event.record.version == self.told[name] + 1, f"{name}: {event.record.version} {self.told[name]}"
                self.told[name] += 1
        elif batch.kind == "snapshot":
            if batch.first:
                self.snapshots[batch.group] = Counter()
            shown = self.snapshots[batch.group]
            shown.update({event.record.namespace: event.record.version for event in batch.events})
            if batch.last:
                del self.snapshots[batch.group]
                for name in NAMES:
                    if slot_of(name) in batch.slots:
                        assert shown[name] >= self.told[name], f"{name} goes back to {shown[name]} of {self.told[name]}"
                        self.told[name] = shown[name]
                self.missing -= batch.slots

    @property
    def is_told(self) -> bool:
        return self.told == self.written and not self.missing


@pytest.mark.parametrize("seed", range(16))
async def test_a_watch_misses_nothing_and_repeats_nothing_in_a_storm(seed: int, server: Server) -> None:
    await server.listen("b", "n2")
    await server.listen("c", "n3")
    rng = random.Random(seed)
    nodes = WatchNodes(server, data=rng.choice([2, 3, 4]))
    async with connect("metad://a,b,c", Options(), transport=server.transport, rng=random.Random(seed)) as client:
        storm = Storm(seed, nodes, client)
        options: dict[str, Any] = {"buffer_bytes": rng.choice([1, 1 << 20]), "progress_s": rng.choice([None, 1.0])}
        watch = await client.watch("kv", start=rng.choice(["now", "snapshot"]), **options).opened()
        for _ in range(STEPS):
            storm.step()
            for _ in range(rng.choice([0, 5, 60])):
                await asyncio.sleep(0)
            if rng.random() < 0.04:
                token = watch.token
                await watch.close()
                watch = client.watch("kv", token=token, **options)
                storm.resumed()
            if rng.random() < 0.02:
                await asyncio.sleep(rng.random())
            for _ in range(rng.choice([0, 1, 3, 20])):
                batch = watch._streams.next_batch()
                if batch is not None:
                    storm.hear(batch)
        storm.calm()
        async with asyncio.timeout(PATIENCE_S):
            await until_told(watch, storm)


async def until_told(watch: Watch, storm: Storm) -> None:
    while not storm.is_told:
        storm.hear(await anext(watch))
