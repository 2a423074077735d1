"""``metad-perf tenant-move``: a tenant moves from one cluster to another while both serve, beside its own writer and
the load of another tenant. What is lost, what comes twice, and for how long does neither cluster serve it?

The tenant has sessions, subscriptions, offsets, retained messages, and keys up to the wanted number of rows. Its writer
counts a sequence and writes a key for each number, where the tenant is. Behind the move each acknowledged number has to
be there once; and of each table the records where the tenant was, which stay as they were frozen until they are ended,
are as many as those where it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Final

from metad_backup.moving import Moved, Progress, move
from metad_client import Client, MetadError, TenantMovedError
from metad_wire import messages as m
from metad_wire.program.running import run_async
from metad_wire.tables.retained import RetainedPutItem
from metad_wire.tables.subscription import Subscription

from ..commands import TenantMove
from ..experiment.stage import Stage, staged
from ..load.measure import epoch_now
from ..load.prepare import PREPARE_BATCH, check, pour
from ..report import output
from ..report.conclusion import conclude, reported
from ..spawn import Shape
from .waiting import until

STOPPED_MS_MAX: Final = 2_000
_TENANT, _OTHER, _BROKER = "mover", "stays", "b1"
_MIB: Final = 1024 * 1024
_SHARES: Final = {"sessions": 0.12, "subscriptions": 0.12, "offsets": 0.1, "retained": 0.1, "kv": 0.45}
"""Of the wanted rows: so many records. A session has two rows and more; the rest is keys."""
_PAUSE_S: Final = 0.002


def run(options: TenantMove) -> int:
    """Returns the exit code: 1 if anything is lost or repeated, or the tenant was stopped for too long."""
    problems: list[str] = []
    found = run_async(_measured(options, problems))
    if found["stopped_ms"] > STOPPED_MS_MAX:
        problems.append(f"neither cluster served the tenant for {found['stopped_ms']} ms, over {STOPPED_MS_MAX}")
    if found["rows"] < options.rows:
        problems.append(f"{found['rows']} rows have come, less than {options.rows}")
    report = reported(options, found | {"problems": problems})
    code = conclude("tenant-move", report, options, "lost", "repeated")
    output.say(
        f"{found['rows']:,} rows came in {found['seconds']:.1f} s, from {options.nodes} nodes to {options.to_nodes}; "
        f"neither cluster served the tenant for {found['stopped_ms']} ms."
    )
    return code


async def _measured(options: TenantMove, problems: list[str]) -> dict[str, Any]:
    other = Shape(nodes=options.to_nodes, groups=options.to_groups, scheme=options.scheme)

    async def beside(source: Stage) -> dict[str, Any]:
        return await staged(other, options.server_config, problems, partial(_moved, options, source))

    return await staged(options.shape, options.server_config, problems, beside)


async def _moved(options: TenantMove, source: Stage, target: Stage) -> dict[str, Any]:
    here, there = await source.client("here"), await target.client("there")
    await _fill(here, options)
    writer = _Writer(here, there)
    others = _Others(here)
    async with _beside(writer.run), _beside(others.run):
        with output.progress("rows", options.rows) as progress:
            done = await _move(here, there, target.members.target, options, progress)
        number = writer.number
        if not await until(lambda: writer.number >= number + 100, 60.0):
            target.problems.append("the tenant's writer does not go on where the tenant is")
    was, now = await _records(here), await _records(there)
    keys = [one.key async for one in there.kv.scan(_TENANT, "n")]
    lost, repeated = writer.judged(keys)
    for table, records in was.items():
        if table != "kv":
            lost, repeated = lost + max(0, records - now.get(table, 0)), repeated + max(0, now.get(table, 0) - records)
    filled = round(options.rows * _SHARES["kv"])
    lost += max(0, filled + len(keys) - now.get("kv", 0))
    return {
        **done._asdict(),
        "lost": lost,
        "repeated": repeated,
        "rows_per_s": done.rows / done.seconds,
        "records": now,
        "acknowledged": len(writer.acknowledged),
        "writer_longest_ms": round(1_000 * writer.longest_s),
        "others_longest_ms": round(1_000 * others.longest_s),
        "others_writes": others.number,
    }


async def _move(
    here: Client, there: Client, address: str, options: TenantMove, progress: Callable[[int], None]
) -> Moved:
    shown = 0

    def tell(at: Progress) -> None:
        nonlocal shown
        progress(at.rows - shown)
        shown = at.rows

    return await move(here, there, _TENANT, address=address, bytes_per_s=options.rate_mib * _MIB, tell=tell)


async def _records(c: Client) -> dict[str, int]:
    return {one.table: one.records for one in await c.tenants.use(_TENANT, deadline_s=600.0)}


@contextlib.asynccontextmanager
async def _beside(work: Callable[[], Awaitable[None]]) -> Any:
    task = asyncio.ensure_future(work())
    try:
        yield
        if task.done():
            await task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class _Writer:
    """Counts a sequence of the tenant, and writes a key for each number."""

    def __init__(self, here: Client, there: Client) -> None:
        self._clients = [here, there]
        self._at = 0
        self.number = 0
        self.acknowledged: list[int] = []
        """Numbers that the sequence gave, in order."""
        self._written: set[int] = set()
        self.longest_s = 0.0
        """Between two numbers."""

    async def run(self) -> None:
        last_s = time.monotonic()
        while True:
            try:
                c = self._clients[self._at]
                number = await c.sequences.add(_TENANT, "numbers")
                self.acknowledged.append(number)
                await c.kv.put(_TENANT, f"n{number:09}", b"v" * 50)
            except TenantMovedError:
                self._at = 1
                continue
            except MetadError as error:
                if not error.retryable:
                    raise
                await asyncio.sleep(_PAUSE_S)
                continue
            self._written.add(number)
            now_s = time.monotonic()
            self.longest_s, last_s = max(self.longest_s, now_s - last_s), now_s
            self.number = number

    def judged(self, keys: list[str]) -> tuple[int, int]:
        """How many acknowledged writes are not there, and how many numbers were given twice or again."""
        there = {int(key[1:]) for key in keys}
        pairs = zip(self.acknowledged, self.acknowledged[1:], strict=False)
        return len(self._written - there), sum(after <= before for before, after in pairs)


class _Others:
    """Writes keys of a tenant that stays."""

    def __init__(self, c: Client) -> None:
        self._c = c
        self.number = 0
        self.longest_s = 0.0

    async def run(self) -> None:
        while True:
            begun_s = time.monotonic()
            items = [m.KvPutItem(f"{_OTHER}{i % 8}", f"k{self.number % 5_000 + i}", b"v" * 50) for i in range(8)]
            (await self._c.kv.put_many(items)).raise_for_error()
            self.number += len(items)
            self.longest_s = max(self.longest_s, time.monotonic() - begun_s)
            await asyncio.sleep(_PAUSE_S)


async def _fill(c: Client, options: TenantMove) -> None:
    value, epoch = b"v" * options.value_bytes, epoch_now()
    counts = {name: round(options.rows * share) for name, share in _SHARES.items()}
    writes: dict[str, tuple[Callable[[int], Any], Callable[[list[Any]], Awaitable[Any]]]] = {
        "sessions": (
            lambda i: m.SessionTakeoverItem(_TENANT, f"c{i:08}", True, m.SessionProperties(86_400, value)),
            partial(c.sessions.takeover_many, _BROKER, epoch),
        ),
        "subscriptions": (
            lambda i: Subscription(_TENANT, f"c{i:08}", f"a/{i}"),
            partial(c.subscriptions.add_many, _BROKER, epoch),
        ),
        "offsets": (lambda i: m.OffsetCommitItem(_TENANT, f"g{i % 1000}", "topic", i, i), c.offsets.commit_many),
        "retained": (lambda i: RetainedPutItem(_TENANT, f"r/{i}", value), c.retained.put_many),
        "kv": (lambda i: m.KvPutItem(_TENANT, f"k{i:08}", value), c.kv.put_many),
    }
    with output.progress("records", sum(counts.values())) as progress:
        for name, (make, put) in writes.items():

            async def send(batch: list[Any], name: str = name, put: Any = put) -> None:
                check(await put(batch), name)
                progress(len(batch))

            await pour(_batches(make, counts[name]), send)


def _batches(make: Callable[[int], Any], count: int) -> Iterator[list[Any]]:
    for begin in range(0, count, PREPARE_BATCH):
        yield [make(i) for i in range(begin, min(count, begin + PREPARE_BATCH))]
