"""The logs behind backups are archived, so that a restore may go to any moment: every second or so, what each group has
applied since.

An archive begins where the newest backup ends. Where a log was cut before it was archived, only a new backup helps; so
a follower that was away for long takes one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from metad_client import Client, LogCutError, MetadError
from metad_wire.cluster import GroupRecord
from metad_wire.operator.backup import BackupEntries

from .logs import ANSWER_S, Logs
from .repository import BackupError, Manifest, Repository

_FILE_BYTES: Final = 8 * 1024 * 1024
"""Entries of a group that are archived together at most."""


class Followed(NamedTuple):
    """How far an archive is."""

    entries: int
    """That this run has archived so far."""
    bytes: int


class Follower:
    """Archives the logs of a cluster behind one of its backups. ``wait_s``: for an answer."""

    def __init__(self, m: Client, repository: Repository, manifest: Manifest, wait_s: float = ANSWER_S) -> None:
        self._m = m
        self._logs = Logs(m)
        self._wait_s = wait_s
        self._repository = repository
        self._manifest = manifest
        self._at: dict[str, int] = {}
        """Index of the last entry of each group that is archived, or in the backup."""
        self.archived = Followed(0, 0)

    async def round(self) -> None:
        """Archive what is there now. Raises BackupError where a log was cut."""
        if not self._at:
            await asyncio.to_thread(self._begin)
        known = (await self._m.cluster.map()).map
        if known is None or known.cluster_id != self._manifest.cluster_id:
            raise BackupError("the cluster is not that of the backup")
        for record in known.groups:
            await self._group(record)

    def _begin(self) -> None:
        self._at = {group.group: group.index for group in self._manifest.groups}
        for name in self._repository.archived_groups():
            for first, last, _, _ in self._repository.archived(name):
                if first <= self._at.get(name, 0) + 1:
                    self._at[name] = max(self._at.get(name, 0), last)

    async def _group(self, record: GroupRecord) -> None:
        name = record.group_id.name
        while True:
            after = self._at.get(name, 0)
            taken: list[bytes] = []
            taken_bytes = 0
            while taken_bytes < _FILE_BYTES:
                found = await self._read(record, after + len(taken))
                taken += found.entries
                taken_bytes += sum(map(len, found.entries))
                if after + len(taken) >= found.applied:
                    break
            if taken:
                data = msgspec.msgpack.encode(taken)
                last = after + len(taken)
                archive = asyncio.to_thread(self._repository.archive, name, after + 1, last, found.wall_ms, data)
                writing = asyncio.ensure_future(archive)
                try:
                    await asyncio.shield(writing)
                finally:
                    await writing  # a thread ends its work also where this is cancelled
                    self._at[name] = last
                    self.archived = Followed(self.archived.entries + len(taken), self.archived.bytes + len(data))
            if self._at.get(name, 0) >= found.applied:
                return

    async def _read(self, record: GroupRecord, after: int) -> BackupEntries:
        """From whichever replica has it, those that do not lead first."""
        name = record.group_id.name
        nodes = sorted(record.replicas, key=lambda node: node == record.preferred)
        try:
            return await self._logs.read(nodes, name, after, self._wait_s)
        except LogCutError:
            text = f"the log of {name} does not reach back to entry {after + 1}: take a new backup"
            raise BackupError(text) from None


async def follow(
    m: Client,
    repository: Repository,
    manifest: Manifest,
    *,
    every_s: float,
    wait_s: float = ANSWER_S,
    tell: Callable[[Followed], None],
    waits: Callable[[MetadError], None] = lambda _: None,
) -> None:
    """Archive until cancelled. ``wait_s``: for an answer. Goes on over nodes that are away: ``waits`` is told of each
    round that fails. Raises BackupError where a log was cut."""
    follower, told = Follower(m, repository, manifest, wait_s), Followed(0, 0)
    while True:
        begun_s = time.monotonic()
        try:
            await follower.round()
            told = follower.archived
            tell(told)
        except BackupError:
            raise
        except asyncio.CancelledError:
            if follower.archived != told:  # by the round that is not at its end
                tell(follower.archived)
            raise
        except MetadError as error:
            waits(error)  # the next round asks again
        await asyncio.sleep(max(0.0, begun_s + every_s - time.monotonic()))
