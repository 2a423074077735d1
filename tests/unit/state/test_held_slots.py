"""Slots move between three groups, whatever breaks off, comes late or comes twice. Then a reader of nothing but the
groups' logs, in any order that the markers allow, sees each version of each key once and in order."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from state_rig import Group, command_of, contents

from metad.config import DedupeConfig
from metad.state.core.entry import Entry, decode_entry
from metad.state.core.part import Origin
from metad.state.core.slot_assignment import HeldSlots, decode_moves, moves_key, pack, unpack
from metad.storage import keys
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import SLOTS, GroupCommand, GroupReply, slot_bits, slots_in
from metad_wire.errors import ConflictError, MetadError, StaleRouteError
from metad_wire.tables.kv import KV
from metad_wire.watch import MarkerStep, SlotMarker

NOW_MS = 1_700_000_000_000
BLOCKS = 4
"""Slots move in blocks: block 1 is every fourth slot, from slot 1 on."""
GROUPS = 3
FIRST = (0, 0, 1, 2)
"""The group that is made with each block."""


def block_bits(*blocks: int) -> bytes:
    return slot_bits(slot for slot in range(SLOTS) if slot % BLOCKS in blocks)


@functools.cache
def blocks_of(bits: bytes) -> frozenset[int]:
    blocks = frozenset(slot % BLOCKS for slot in slots_in(bits)) if bits else frozenset()
    assert pack(unpack(bits)) == block_bits(*blocks)
    return blocks


def block_of(key: bytes) -> int | None:
    """Of a key as it is in an entry."""
    slot = keys.slot_of_key(key[keys.GROUP_PREFIX_BYTES :])
    return None if slot is None else slot % BLOCKS


def namespaces() -> list[str]:
    """One of each block."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < BLOCKS:
        name = f"n{number}"
        found.setdefault(int(command_of(methods.KV_GET, get(name)).rows.crcs[0]) % BLOCKS, name)
        number += 1
    return [found[block] for block in range(BLOCKS)]


def get(namespace: str) -> methods.KV_GET.body:
    return methods.KV_GET.body([m.KvKey(namespace, "k")])


NAMES = namespaces()


class Told(NamedTuple):
    """What markers say of a group, or its state does."""

    held: set[int]
    sealed: dict[int, int]
    """Block -> the move."""
    brought: dict[int, int]
    """Block -> the move, of all blocks that are held or sealed."""


class Move:
    """One that the map has ordered."""

    def __init__(self, number: int, block: int, source: int, target: int) -> None:
        self.number = number
        self.bits = block_bits(block)
        self.source = source
        self.target = target
        self.attempt = 0
        self.adopted = False
        self.plan: list[str] = []
        self.batch = 0
        self.sealed: GroupReply | None = None


class World:
    """Three groups, and movers that are cut short as a list of numbers says."""

    def __init__(self) -> None:
        self.groups = [
            Group(
                "data",
                ordinal,
                DedupeConfig(),
                initial_slots=block_bits(*[block for block in range(BLOCKS) if FIRST[block] == ordinal]),
            )
            for ordinal in range(GROUPS)
        ]
        self.moves: list[Move] = []
        self.late: list[tuple[int, GroupCommand]] = []  # that the network may still bring to a target
        self.last_move = 0
        self.versions = [0] * BLOCKS
        self.revisions = [0] * BLOCKS
        self.logs: list[list[Entry]] = [[] for _ in self.groups]
        self.told = [
            Told({block for block in range(BLOCKS) if FIRST[block] == ordinal}, {}, {}) for ordinal in range(GROUPS)
        ]
        for one in self.told:
            one.brought.update(dict.fromkeys(one.held, 0))
        self.adoptions: list[list[int]] = [[] for _ in range(BLOCKS)]

    # --- what may happen ---------------------------------------------------------------------------------

    def choices(self) -> list[Callable[[], None]]:
        found: list[Callable[[], None]] = []
        for block in range(BLOCKS):
            found.append(lambda block=block: self.put(block))
            for target in range(GROUPS):
                if self.may_order(block, target):
                    found.append(lambda block=block, target=target: self.order(block, target))
        for move in self.moves:
            found += [lambda move=move: self.step(move)] * 6
            found.append(lambda move=move: self.begin(move))
        for ordinal in range(GROUPS):
            found.append(lambda ordinal=ordinal: self.sweep(ordinal))
            found.append(lambda ordinal=ordinal: self.groups[ordinal].restart())
            found.append(lambda ordinal=ordinal: self.groups[ordinal].apply(1))
        for at in range(len(self.late)):
            found.append(lambda at=at: self.repeat(at))
        return found

    def put(self, block: int) -> None:
        """A client asks every group: at most one writes."""
        done = 0
        for group in self.groups:
            try:
                reply = self.ask(group, m.KvPut([m.KvPutItem(NAMES[block], "k", b"v")]), lag=2)
            except StaleRouteError:
                continue
            done += 1
            self.versions[block] += 1
            assert reply.versions == [self.versions[block]]
            assert reply.revisions[0].index > self.revisions[block], "revisions of a key only grow"
            self.revisions[block] = reply.revisions[0].index
        assert done <= 1

    def may_order(self, block: int, target: int) -> bool:
        source = self.holder(block)
        busy = {group for move in self.moves if not move.adopted for group in (move.source, move.target)}
        return source is not None and source != target and not {source, target} & busy

    def holder(self, block: int) -> int | None:
        for ordinal, group in enumerate(self.groups):
            if block in blocks_of(group.machine.holding.slots):
                return ordinal
        return None

    def order(self, block: int, target: int) -> None:
        source = self.holder(block)
        assert source is not None
        self.last_move += 1
        self.moves.append(Move(self.last_move, block, source, target))
        self.begin(self.moves[-1])

    def begin(self, move: Move) -> None:
        """A mover takes over: it does not know how far the last one came."""
        move.attempt += 1
        move.batch = 0
        move.plan = ["open", "unseal", "drop", "import", "seal", "import", "adopt", "close"]

    def step(self, move: Move) -> None:
        step = move.plan[0]
        try:
            self._step(move, step)
        except (ConflictError, StaleRouteError):
            self.begin(move)
            return
        move.plan = move.plan[1:]
        if step == "adopt":
            move.adopted = True  # and the map says so
        if step == "close":
            self.moves.remove(move)

    def _step(self, move: Move, step: str) -> None:
        source, target = self.groups[move.source], self.groups[move.target]
        if step in ("unseal", "seal", "close"):
            if step == "unseal" and source.machine.holding.sealed_move != move.number:
                return
            body = GroupCommand(step, move.number, move.attempt, 0, move.bits, other=move.target)
            reply = self.ask(source, body)
            if step == "seal":
                move.sealed = reply
            return
        rows: dict[bytes, bytes | None] = {}
        if step == "import":
            rows = dict(self.rows(source, move.bits))
        elif step == "drop":
            rows = dict.fromkeys(self.rows(target, move.bits))
        move.batch += step in ("import", "adopt")
        body = GroupCommand(step, move.number, move.attempt, move.batch, move.bits, rows)
        if step == "adopt":
            assert move.sealed is not None
            (revision,) = move.sealed.revisions
            body = msgspec.structs.replace(
                body, revision=revision.index, other=move.source, sealed_index=move.sealed.index
            )
        self.late.append((move.target, body))
        if self.ask(target, body, lag=1).adopted:
            move.adopted = True
            move.plan = ["open", "close"]

    def sweep(self, ordinal: int) -> None:
        group = self.groups[ordinal]
        held = unpack(group.machine.holding.slots)
        foreign = slot_bits(slot for slot in range(SLOTS) if not held[slot])
        with contextlib.suppress(ConflictError):
            self.ask(group, GroupCommand("drop", 0, rows=dict.fromkeys(self.rows(group, foreign))))

    def repeat(self, at: int) -> None:
        ordinal, body = self.late.pop(at)
        with contextlib.suppress(MetadError):
            self.ask(self.groups[ordinal], body)

    def rows(self, group: Group, bits: bytes) -> dict[bytes, bytes]:
        """A group's applied rows in some slots: movers wait until they have all."""
        group.apply(len(group.in_flight))
        wanted = blocks_of(bits)
        return {
            key[keys.GROUP_PREFIX_BYTES :]: value for key, value in contents(group.engine) if block_of(key) in wanted
        }

    def ask(self, group: Group, body: Any, lag: int = 0) -> Any:
        method = methods.KV_PUT if isinstance(body, m.KvPut) else methods.GROUP_COMMAND
        (outcome,) = group.propose([(command_of(method, body), None)], NOW_MS)
        group.apply(len(group.in_flight) - lag)
        if isinstance(outcome, MetadError):
            raise outcome
        return method.decode_reply(outcome)

    # --- what must be so ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Read the entries that are applied since the last time, from their bytes."""
        for ordinal, group in enumerate(self.groups):
            log = self.logs[ordinal]
            while len(log) < group.follower.applied:
                log.append(decode_entry(group.name, len(log) + 1, group.log[len(log)]))
                self.read(ordinal, log)
            self.agree(group, self.told[ordinal])
        held = [block for told in self.told for block in told.held]
        assert len(held) == len(set(held)), "two groups hold a slot"

    def read(self, ordinal: int, log: list[Entry]) -> None:
        entry, told = log[-1], self.told[ordinal]
        assert entry.revision > (log[-2].revision if len(log) > 1 else 0)
        if entry.origin is Origin.CLIENT:
            assert entry.marker is None
            for writes in entry:
                assert {block_of(key) for key in writes} <= told.held | {None}, "a write of a slot that is not held"
        if entry.marker is not None:
            assert entry.origin is Origin.MIGRATION
            self.learn(ordinal, entry.marker)

    def learn(self, ordinal: int, marker: SlotMarker) -> None:
        told, blocks = self.told[ordinal], blocks_of(marker.slots)
        if marker.step == MarkerStep.SEALED:
            assert blocks <= told.held
            assert not told.sealed
            told.held.difference_update(blocks)
            told.sealed.update(dict.fromkeys(blocks, marker.move))
        elif marker.step == MarkerStep.UNSEALED:
            assert blocks == told.sealed.keys()
            assert set(told.sealed.values()) == {marker.move}
            told.held.update(blocks)
            told.sealed.clear()
        else:
            assert marker.step == MarkerStep.ADOPTED
            assert not blocks & told.held
            told.held.update(blocks)
            told.brought.update(dict.fromkeys(blocks, marker.move))
            for block in blocks:
                assert not self.adoptions[block] or marker.move > self.adoptions[block][-1], "moves of a slot only grow"
                self.adoptions[block].append(marker.move)
            self.check_sealed(marker)

    def check_sealed(self, marker: SlotMarker) -> None:
        """An adoption says where its source has sealed the slots for the last time."""
        source = self.groups[marker.other]
        log = [decode_entry(source.name, index, data) for index, data in enumerate(source.log, 1)]
        seals = [
            (index, entry.marker)
            for index, entry in enumerate(log, 1)
            if entry.marker is not None and entry.marker.move == marker.move
        ]
        index, seal = seals[-1]
        assert (index, seal.step, seal.slots) == (marker.sealed_index, MarkerStep.SEALED, marker.slots)

    def agree(self, group: Group, told: Told) -> None:
        """What a follower's state says is what the markers have said. The end of a move has none."""
        part: HeldSlots = group.follower.parts[HeldSlots]
        assert blocks_of(part.held) == told.held
        sealed = blocks_of(part.sealed)
        assert (part.sealed_move == 0) == (not sealed)
        if told.sealed and not sealed:  # closed: the rows may go
            for block in told.sealed.keys() - told.held:
                del told.brought[block]
            told.sealed.clear()
        assert dict.fromkeys(sealed, part.sealed_move) == told.sealed
        assert {block: move for move, bits in part.brought.items() for block in blocks_of(bits)} == told.brought
        assert part.adopted_move >= max(told.brought.values(), default=0)
        row = decode_moves(group.follower_engine.get(moves_key(group.prefix)))
        assert 0 not in row.brought
        assert {b for bits in row.brought.values() for b in blocks_of(bits)} <= told.brought.keys()

    def settle(self) -> None:
        """Everything is applied, by leader and follower alike."""
        for group in self.groups:
            group.apply(len(group.in_flight))
            leader, follower = group.machine.parts[HeldSlots], group.follower.parts[HeldSlots]
            for name in ("held", "sealed", "sealed_move", "adopted_move", "brought"):
                assert getattr(leader, name) == getattr(follower, name)
            group.restart()
            restarted = group.machine.parts[HeldSlots]
            for name in ("held", "sealed", "sealed_move", "adopted_move", "brought"):
                assert getattr(restarted, name) == getattr(follower, name)
        self.check()


class Read(NamedTuple):
    """Where a block is read: in which group, by which move it came there, by which it is sealed there."""

    group: int
    move: int
    sealed: int


class Reader:
    """Reads the logs of all groups from their beginning, each in its order."""

    def __init__(self, logs: list[list[Entry]]) -> None:
        self.logs = logs
        self.position = [0] * len(logs)
        self.blocks = [Read(group, 0, 0) for group in FIRST]
        self.seen: list[list[int]] = [[] for _ in range(BLOCKS)]

    def ready(self) -> list[int]:
        """The groups of which it can read the next entry."""
        found = []
        for group, log in enumerate(self.logs):
            if self.position[group] < len(log):
                marker = log[self.position[group]].marker
                waits = marker is not None and marker.step == MarkerStep.ADOPTED
                if marker is None or not waits or self.position[marker.other] >= marker.sealed_index:
                    found.append(group)
        return found

    def read(self, group: int) -> None:
        entry = self.logs[group][self.position[group]]
        self.position[group] += 1
        marker = entry.marker
        if marker is not None:
            for block in blocks_of(marker.slots):
                self.blocks[block] = moved(self.blocks[block], group, marker)
        if entry.origin is not Origin.CLIENT:
            return
        for key, value in entry.writes.items():
            block = block_of(key)
            if block is not None and self.blocks[block].group == group and not self.blocks[block].sealed:
                assert key[keys.GROUP_PREFIX_BYTES] == KV.rows["record"]
                assert value is not None
                self.seen[block].append(msgspec.msgpack.decode(value, type=m.Kv).version)


def moved(read: Read, group: int, marker: SlotMarker) -> Read:
    if marker.step == MarkerStep.SEALED:
        return read._replace(sealed=marker.move) if read.group == group else read
    if marker.step == MarkerStep.UNSEALED:
        return read._replace(sealed=0) if (read.group, read.sealed) == (group, marker.move) else read
    if read.move >= marker.move:
        return read
    assert read.sealed == marker.move, "who reads from the beginning misses nothing"
    return Read(group, marker.move, 0)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 10_000), max_size=120), st.randoms(use_true_random=False))
def test_logs_say_what_groups_hold_and_when(chosen: list[int], rng: random.Random) -> None:
    world = World()
    for number in chosen:
        choices = world.choices()
        choices[number % len(choices)]()
        world.check()
    world.settle()
    for _ in range(5):
        reader = Reader(world.logs)
        while ready := reader.ready():
            reader.read(rng.choice(ready))
        assert reader.position == list(map(len, world.logs)), "a reader waits for ever"
        assert reader.seen == [list(range(1, version + 1)) for version in world.versions]


def test_many_moves_come_to_their_end() -> None:
    """The walk above may break off whatever it likes; this one moves each block through all groups, twice."""
    rng = random.Random(7)
    world = World()
    done = 0
    while done < 24:
        block = rng.randrange(BLOCKS)
        targets = [target for target in range(GROUPS) if world.may_order(block, target)]
        if not targets:
            for move in list(world.moves):
                world.step(move)
            continue
        world.order(block, rng.choice(targets))
        for _ in range(rng.randrange(30)):
            choices = world.choices()
            rng.choice(choices)()
            world.check()
        while world.moves:
            move = rng.choice(world.moves)
            (world.begin if rng.random() < 0.1 else world.step)(move)
            world.put(block)
            world.check()
        done += 1
    world.settle()
    assert sum(map(len, world.adoptions)) >= 24
    reader = Reader(world.logs)
    while ready := reader.ready():
        reader.read(rng.choice(ready))
    assert reader.seen == [list(range(1, version + 1)) for version in world.versions]
    assert min(world.versions) > 24
    steps = [entry.marker.step for log in world.logs for entry in log if entry.marker is not None]
    assert set(steps) == set(MarkerStep)
