"""``metad-perf move``: adds a data group and moves its share of the slots there while sessions are written.

Writers update sessions of their own in a closed loop; each session's payload numbers its writes. A write is timed from
the call to its answer, including everything the SDK does about refusals meanwhile; so the longest one is an upper bound
of how long any was refused. Afterwards every session is read: it must be there, with its last acknowledged write.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from metad_client import Client, Options
from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire.program.running import run_async

from .commands import Move
from .errors import ServerError
from .load.measure import account_of, epoch_now
from .load.prepare import fill_sessions, pour
from .load.workload import BROKER, EXPIRY_INTERVAL_S, TENANT, session_names
from .report import output
from .report.conclusion import conclude, reported
from .report.histogram import Latencies
from .spawn import temporary_server
from .target import open_client

_STAMP_BYTES = 8
_READ_BATCH = 1_000
_POLL_S = 0.05
_QUIET_S = 5.0  # of writes before the move, to compare with
_MOVED_WITHIN_S = 600.0
_DEADLINE_S = 60.0


def run(move: Move) -> int:
    """Returns the exit code: 1 if a session or an acknowledged write was lost."""
    with temporary_server(config=move.server_config, shape=move.shape) as server:
        server.start()
        moved = run_async(_run(server.target, move))
        status = account_of(server.target)
        server.stop()
    moved = reported(move, moved | {"fsync": status.fsync, "replicas": status.replicas})
    code = conclude("move", moved, move, "lost", "missing")
    output.say(
        f"{moved['slots']:,} slots moved in {moved['seconds']:g} s; the longest write took "
        f"{moved['longest_write_ms']:g} ms, {moved['lost']} writes and {moved['missing']} sessions were lost."
    )
    return code


class _Writer:
    """Updates its share of the sessions and remembers the acknowledged writes."""

    def __init__(self, client: Client, move: Move, epoch: int, names: list[str], seed: str) -> None:
        self._client, self._move, self._epoch, self._names = client, move, epoch, names
        self._rng = random.Random(seed)
        self._padding = self._rng.randbytes(move.value_bytes - _STAMP_BYTES)
        self.acknowledged: dict[str, int] = {}
        self.refused: dict[str, int] = {}
        self.latencies = Latencies()
        self.stopping = False
        """Begin no more writes."""
        self._write = 0

    async def run(self) -> None:
        """Write until told to stop; each write that has begun is awaited, so that it ends acknowledged or refused."""
        pace_s = 1.0 / self._move.rate if self._move.rate else 0.0
        next_s = time.monotonic()
        while not self.stopping:
            await self._once()
            next_s = max(next_s + pace_s, time.monotonic() - 1.0)
            await asyncio.sleep(max(0.0, next_s - time.monotonic()) if pace_s else 0.0)

    async def _once(self) -> None:
        self._write += 1
        payload = self._write.to_bytes(_STAMP_BYTES, "big") + self._padding
        names = self._rng.sample(self._names, self._move.batch)
        properties = m.SessionProperties(EXPIRY_INTERVAL_S, payload)
        items = [m.SessionUpdateItem(TENANT, name, properties) for name in names]
        begin_ns = time.perf_counter_ns()
        result = await self._client.sessions.update_many(BROKER, self._epoch, items)
        self.latencies.note(time.perf_counter_ns() - begin_ns)
        for at, name in enumerate(names):
            error = result.errors.get(at)
            if error is None:
                self.acknowledged[name] = self._write
            else:
                self.refused[error.name] = self.refused.get(error.name, 0) + 1

    def take_latencies(self) -> bytes:
        """The latencies since the last call."""
        taken, self.latencies = self.latencies.encode(), Latencies()
        return taken


async def _run(target: str, move: Move) -> dict[str, Any]:
    epoch = epoch_now()
    names = session_names(move.sessions)
    async with open_client(target, Options(deadline_s=_DEADLINE_S)) as client:
        with output.progress(f"fill {move.sessions:,} sessions", move.sessions) as progress:
            await fill_sessions(client, epoch, move.sessions, move.value_bytes, progress)
        writers = [
            _Writer(client, move, epoch, list(names[at :: move.writers]), f"{move.seed}/{at}")
            for at in range(move.writers)
        ]
        tasks = [asyncio.ensure_future(writer.run()) for writer in writers]
        try:
            await asyncio.sleep(_QUIET_S)
            before = Latencies.merged(writer.take_latencies() for writer in writers)
            moved, seconds = await _add_group_and_move(client, tasks)
            during = Latencies.merged(writer.take_latencies() for writer in writers)
        finally:
            for writer in writers:
                writer.stopping = True
            await asyncio.gather(*tasks)
        acknowledged = {name: write for writer in writers for name, write in writer.acknowledged.items()}
        with output.progress("read back", move.sessions) as progress:
            lost, missing = await _read_back(client, names, acknowledged, progress)
    refused: dict[str, int] = {}
    for writer in writers:
        for name, count in writer.refused.items():
            refused[name] = refused.get(name, 0) + count
    return {
        "slots": moved,
        "seconds": seconds,
        "writes": during.count * move.batch,
        "longest_write_ms": during.max_ms(),
        "p99_write_ms": during.percentile_ms(99),
        "longest_write_before_ms": before.max_ms(),
        "p99_write_before_ms": before.percentile_ms(99),
        "refused": sum(refused.values()),
        "refusals": refused,
        "lost": lost,
        "missing": missing,
    }


async def _add_group_and_move(client: Client, writers: Sequence[asyncio.Future[None]]) -> tuple[int, float]:
    """Returns (slots that moved, seconds it took)."""
    before = await _known_map(client)
    await client.cluster.add_group("data")
    begin = time.monotonic()
    await client.cluster.rebalance()
    ordinal = max(group.ordinal for group in before.groups if group.kind == "data") + 1
    wanted = c.SLOTS // (ordinal + 1)
    with output.progress("move slots", wanted) as progress:
        shown = 0
        while True:
            for writer in writers:
                if writer.done():
                    writer.result()
            known = await _known_map(client)
            moved = c.unpack_slots(known.slots["data"]).count(ordinal)
            progress(max(0, min(moved, wanted) - shown))
            shown = max(shown, moved)
            if moved >= wanted and not known.moves:
                return moved, time.monotonic() - begin
            if time.monotonic() - begin > _MOVED_WITHIN_S:
                raise ServerError(f"after {_MOVED_WITHIN_S:g} s only {moved} of {wanted} slots had moved")
            await asyncio.sleep(_POLL_S)


async def _known_map(client: Client) -> c.ClusterMap:
    reply = await client.cluster.map()
    if reply.map is None:
        raise ServerError("the cluster has no map yet")
    return reply.map


async def _read_back(
    client: Client, names: Any, acknowledged: dict[str, int], progress: Callable[[int], None]
) -> tuple[int, int]:
    """Returns (sessions without their last acknowledged write, missing sessions)."""
    lost = missing = 0

    def batches() -> Iterator[list[str]]:
        for begin in range(0, len(names), _READ_BATCH):
            yield names[begin : begin + _READ_BATCH]

    async def check(batch: list[str]) -> None:
        nonlocal lost, missing
        sessions = await client.sessions.get_many([m.SessionKey(TENANT, name) for name in batch])
        sessions.raise_for_error()
        for name, session in zip(batch, sessions, strict=True):
            if session is None:
                missing += 1
            elif name in acknowledged:
                # A write that was refused or cut short may be there as well; an older one must not.
                written = int.from_bytes(session.properties.payload[:_STAMP_BYTES], "big")
                lost += written < acknowledged[name]
        progress(len(batch))

    await pour(batches(), check)
    return lost, missing
