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

from metad_client import Client, LogCutError, MetadError, NotReplicaError
from metad_wire.cluster import GroupRecord
from metad_wire.operator.backup import READ_BYTES_MAX, BackupEntries

from .repository import BackupError, Manifest, Repository

_FILE_BYTES: Final = 8 * 1024 * 1024
"""Entries of a group that are archived together at most."""


class Followed(NamedTuple):
    """How far an archive is."""

    entries: int
    """That were archived in this round."""
    bytes: int


class Follower:
    """Archives the logs of a cluster behind one of its backups."""

    def __init__(self, m: Client, repository: Repository, manifest: Manifest) -> None:
        self._m = m
        self._repository = repository
        self._manifest = manifest
        self._at: dict[str, int] = {}
        """Index of the last entry of each group that is archived, or in the backup."""

    async def round(self) -> Followed:
        """Archive what is there now. Raises BackupError where a log was cut."""
        if not self._at:
            await asyncio.to_thread(self._begin)
        known = (await self._m.cluster.map()).map
        if known is None or known.cluster_id != self._manifest.cluster_id:
            raise BackupError("the cluster is not that of the backup")
        found = [await self._group(record) for record in known.groups]
        return Followed(*map(sum, zip(*found, strict=True)))

    def _begin(self) -> None:
        self._at = {group.group: group.index for group in self._manifest.groups}
        for name in self._repository.archived_groups():
            for first, last, _, _ in self._repository.archived(name):
                if first <= self._at.get(name, 0) + 1:
                    self._at[name] = max(self._at.get(name, 0), last)

    async def _group(self, record: GroupRecord) -> tuple[int, int]:
        name = record.group_id.name
        entries = size = 0
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
                await asyncio.to_thread(self._repository.archive, name, after + 1, last, found.wall_ms, data)
                self._at[name] = last
                entries, size = entries + len(taken), size + len(data)
            if self._at.get(name, 0) >= found.applied:
                return entries, size

    async def _read(self, record: GroupRecord, after: int) -> BackupEntries:
        """From whichever replica has it, those that do not lead first."""
        name, failures = record.group_id.name, list[MetadError]()
        for node in sorted(record.replicas, key=lambda node: node == record.preferred):
            try:
                return await self._m.backups.log(node, name, after, READ_BYTES_MAX)
            except MetadError as error:
                failures.append(error)
        if all(isinstance(error, LogCutError | NotReplicaError) for error in failures):
            raise BackupError(f"the log of {name} does not reach back to entry {after + 1}: take a new backup")
        raise failures[-1]


async def follow(
    m: Client,
    repository: Repository,
    manifest: Manifest,
    *,
    every_s: float,
    tell: Callable[[Followed], None],
    waits: Callable[[MetadError], None] = lambda _: None,
) -> None:
    """Archive until cancelled. Goes on over nodes that are away: ``waits`` is told of each round that fails. Raises
    BackupError where a log was cut."""
    follower = Follower(m, repository, manifest)
    while True:
        begun_s = time.monotonic()
        try:
            tell(await follower.round())
        except BackupError:
            raise
        except MetadError as error:
            waits(error)  # the next round asks again
        await asyncio.sleep(max(0.0, begun_s + every_s - time.monotonic()))
