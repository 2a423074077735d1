"""A backup goes into a new, empty cluster of any number of nodes, groups and slots per group.

Every group gives up its slots first, so nobody is served a part. Each row goes to the group that has its slot by the
new cluster's map, with its times put ahead by as much as that group's log is ahead of the one in the backup. Then each
group has its slots back. Begun again after whatever broke off, a restore of the same backup goes on with the groups
that are not done.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

from metad.state.moving.slot_migration import ends_ahead, translated
from metad.storage import keys
from metad_client import Client
from metad_wire.cluster import METADATA, SLOTS, ClusterMap, FenceItem, GroupId, unpack_slots
from metad_wire.errors import MetadError
from metad_wire.messages import TenantEnd
from metad_wire.operator.backup import Restore, Restored
from metad_wire.table import moving_rows

from .copies import Copy, Part, Row
from .logs import ANSWER_S
from .repository import BackupError, Manifest

_ROWS: Final = 1_000  # of one batch ...
_BYTES: Final = 512 * 1024  # ... and their bytes: an entry holds a row of the largest value beside
_AHEAD: Final = 4
"""Batches for a group that wait while one is on its way."""

Tell = Callable[[int], None]
"""So many rows are there."""


class Done(NamedTuple):
    """What a restore has done."""

    rows: int
    """That were brought, those of indexes and deadlines among them."""
    groups: int
    already: int
    """Groups that had all of the backup before."""
    seconds: float


async def restore(
    m: Client,
    copy: Copy,
    *,
    as_of: str = "",
    complete: Callable[[], Awaitable[None]] | None = None,
    wait_s: float = ANSWER_S,
    tell: Tell = lambda _: None,
) -> Done:
    """Put a backup into the cluster of a client. ``as_of``: names the moment, if it is not that of the checkpoint; a
    restore that goes on has to have the same. ``complete`` is awaited when all rows are there, and nothing is served
    yet. ``wait_s``: for a step of a group. Raises BackupError, MetadError."""
    begun_s = time.monotonic()
    known = await _map(m, copy.manifest)
    targets = _targets(m, known, f"{copy.manifest.id}{as_of}", wait_s)
    owners = {
        kind: [targets[GroupId(kind, ordinal)] for ordinal in unpack_slots(slots)]
        for kind, slots in known.slots.items()
    }
    for begun in {*await asyncio.gather(*(target.check() for target in targets.values()))} - {""}:
        _check_same(begun, f"{copy.manifest.id}{as_of}")
    await asyncio.gather(*(target.clear("begin") for target in targets.values()))
    already = sum(target.done for target in targets.values())
    senders = [asyncio.create_task(target.send()) for target in targets.values() if not target.done]
    try:
        rows = await _bring(copy, targets, owners, tell)
        for target in targets.values():
            await target.close()
        await asyncio.gather(*senders)
    finally:
        for sender in senders:
            sender.cancel()
    if complete is not None:
        await complete()
    fences = copy.fences()
    # metadata-0 last: its leader begins then to look after brokers, and others of its kind after partitions.
    for target in sorted(targets.values(), key=lambda one: one.group, reverse=True):
        if not target.done:
            await target.end(copy, fences, _ends_of(copy, target))
    return Done(rows, len(targets), already, time.monotonic() - begun_s)


def _check_same(begun: str, wanted: str) -> None:
    """Raise BackupError where another restore was begun, and say how to go on with it."""
    if begun == wanted:
        return
    id_, _, at = begun.partition("@")
    words = f"--backup {id_}"
    if at:
        words += f" --at {datetime.fromtimestamp(int(at) / 1_000, UTC).isoformat(timespec='milliseconds')}"
    raise BackupError(f"another restore was begun here: go on with it by {words}, or give it up with --cancel")


async def cancel(m: Client, manifest: Manifest, *, wait_s: float = ANSWER_S) -> int:
    """Give up a restore that was not finished: the cluster is empty again, and serves. Returns how many groups there
    are. Raises BackupError where it is finished, MetadError."""
    targets = _targets(m, await _map(m, manifest), manifest.id, wait_s)
    begun = {*await asyncio.gather(*(target.check() for target in targets.values()))} - {""}
    if not begun:
        raise BackupError("no restore was begun here")
    done = sum(target.finished for target in targets.values())
    if done == len(targets):
        raise BackupError(f"the restore of backup {', '.join(begun)} is finished: nothing is given up")
    if done:
        raise BackupError(f"{done} of {len(targets)} groups have all of it: begin it again, and it is finished")
    for target in targets.values():
        target.name(min(begun))
    await asyncio.gather(*(target.clear("cancel") for target in targets.values()))
    return len(targets)


def _targets(m: Client, known: ClusterMap, backup: str, wait_s: float) -> dict[GroupId, _Target]:
    attempt = time.time_ns() // 1_000_000
    return {record.group_id: _Target(m, record.group_id, backup, attempt, wait_s) for record in known.groups}


async def _map(m: Client, manifest: Manifest) -> ClusterMap:
    known = (await m.cluster.map()).map
    if known is None:
        raise BackupError("the new cluster is not formed yet")
    if known.cluster_id == manifest.cluster_id:
        raise BackupError(f"this is cluster {known.cluster_id}, of which the backup was taken: restore into a new one")
    return known


async def _bring(
    copy: Copy,
    targets: dict[GroupId, _Target],
    owners: dict[str, list[_Target]],
    tell: Tell,
) -> int:
    """Give each row to its target."""
    rows = 0

    async def give(target: _Target, found: list[Row], part: Part) -> None:
        nonlocal rows
        if not target.done:
            await target.take(found, part)
        rows += len(found)
        tell(rows)

    for page in copy.kept_rows():
        await give(targets[METADATA], page, copy.metadata)
    for part in copy.parts:
        slots = owners[part.group.kind]
        for row in moving_rows(part.group.kind):
            for page in copy.rows(part, row):
                for target, found in _parted(page, slots):
                    await give(target, found, part)
    return rows


def _parted(page: list[Row], owners: list[_Target]) -> Iterator[tuple[_Target, list[Row]]]:
    found: dict[_Target, list[Row]] = {}
    for key, value in page:
        found.setdefault(owners[(keys.slot_of_key(key) or 0) % SLOTS], []).append((key, value))
    yield from found.items()


def _ends_of(copy: Copy, target: _Target) -> list[TenantEnd]:
    found: list[TenantEnd] = []
    for part in copy.parts:
        if part.group.kind == target.group.kind:
            found += ends_ahead(copy.ends(part), target.now_ms - part.now_ms)
    return found


class _Target:
    """A group of the new cluster."""

    def __init__(self, m: Client, group: GroupId, backup: str, attempt: int, wait_s: float) -> None:
        self.group = group
        self.done = False
        """Whether it has all of the backup."""
        self.finished = False
        """Whether it has all of some backup."""
        self.now_ms = 0
        """The time of its log when it gave up its slots."""
        self._m = m
        self._backup = backup
        self._attempt = attempt
        self._wait_s = wait_s
        self._batch = 0
        self._rows: dict[bytes, bytes] = {}
        self._bytes = 0
        self._waiting: asyncio.Queue[dict[bytes, bytes] | None] = asyncio.Queue(_AHEAD)
        self._failure: MetadError | None = None

    def name(self, backup: str) -> None:
        """It is about this backup."""
        self._backup = backup

    async def _step(self, step: Restore) -> Restored:
        found = await self._m.backups.restore(self.group.name, step, deadline_s=self._wait_s)
        self.done = self.finished = found.done
        return found

    async def check(self) -> str:
        """Which backup is being put into the group, or was; empty: none, and it may begin. Raises ConflictError."""
        found = await self._step(Restore("check", self._backup, self._attempt))
        self.done = found.done and found.backup == self._backup
        return found.backup

    async def clear(self, step: str) -> None:
        """``begin``: have the group give up its slots, and drop what an earlier attempt has left. ``cancel``: drop it,
        and have the group serve, empty."""
        while True:
            found = await self._step(Restore(step, self._backup, self._attempt))
            self.now_ms = found.now_ms
            if not found.dropped:
                return

    async def take(self, rows: list[Row], part: Part) -> None:
        """Take rows of a group in the backup. Waits while there are many."""
        moved = translated(dict(rows), self.now_ms - part.now_ms) if part.now_ms else dict(rows)
        for key, value in moved.items():
            assert value is not None
            self._rows[key] = value
            self._bytes += len(key) + len(value)
            if len(self._rows) >= _ROWS or self._bytes >= _BYTES:
                await self._pass_on()

    async def _pass_on(self) -> None:
        rows, self._rows, self._bytes = self._rows, {}, 0
        await self._waiting.put(rows)
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """There are no more."""
        if not self.done:
            await self._pass_on()
            await self._waiting.put(None)

    async def send(self) -> None:
        """Bring what was taken, batch by batch."""
        while (rows := await self._waiting.get()) is not None:
            if rows and self._failure is None:
                self._batch += 1
                try:
                    await self._step(Restore("rows", self._backup, self._attempt, self._batch, rows))
                except MetadError as error:
                    self._failure = error  # who brings rows hears of it
        if self._failure is not None:
            raise self._failure

    async def end(self, copy: Copy, fences: list[FenceItem], ends: list[TenantEnd]) -> None:
        """Have the group serve."""
        self._batch += 1
        await self._step(
            Restore("end", self._backup, self._attempt, self._batch, revision=copy.revision, fences=fences, ends=ends)
        )
