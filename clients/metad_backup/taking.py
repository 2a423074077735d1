"""A backup is taken: checkpoints of as few nodes as have all groups, and the files of these that are not here yet.

Nodes that lead little are asked first, so whoever serves is held up least. What a node has not changed since an
earlier backup is not read again, and neither is what an attempt that broke off has brought.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from typing import Final, NamedTuple

from metad_client import Client, MetadError
from metad_wire.cluster import MapReply
from metad_wire.messages import StatusReply
from metad_wire.operator import backup as bak
from metad_wire.policy.rates import Pace

from .logs import ANSWER_S
from .repository import FORMAT, BackupError, Manifest, NodeCopy, Repository, StoredFile, Unfinished

_STATUS_S: Final = 3.0
"""A node that has not said by then how it is counts as away."""
_NOTED_FILES: Final = 16
"""After so many files it is noted which are here."""


class Progress(NamedTuple):
    """How far a backup is."""

    files: int
    of_files: int
    bytes: int
    of_bytes: int


Tell = Callable[[Progress], None]


def nodes_for(known: MapReply, there: Collection[str], before: Collection[str] = ()) -> dict[str, list[str]]:
    """Nodes that are ``there`` and together have all groups, and for which groups each counts: few, rather those that
    were read ``before``, and those that lead few. Raises BackupError."""
    assert known.map is not None
    led = Counter(known.leaders.values())
    have: dict[str, set[str]] = {}
    for record in known.map.groups:
        for node in {*record.replicas}.intersection(there):
            have.setdefault(node, set()).add(record.group_id.name)
    left = {record.group_id.name for record in known.map.groups}
    chosen: dict[str, list[str]] = {}
    while left:
        node = max(have, key=lambda one: (len(have[one] & left), one in before, -led[one], one), default="")
        if not have.get(node, set()) & left:
            raise BackupError(f"no node that answers has {', '.join(sorted(left))}")
        chosen[node] = sorted(have[node] & left)
        left -= have[node]
    return chosen


async def take(
    m: Client,
    repository: Repository,
    *,
    bytes_per_s: int = 0,
    stale: bool = False,
    wait_s: float = ANSWER_S,
    tell: Tell = lambda _: None,
) -> Manifest:
    """Take a backup into a repository, at so many bytes a second. ``stale``: take what is there of groups that have no
    leader. ``wait_s``: for an answer of a node. Raises BackupError, MetadError, OSError."""
    taken_ms = time.time_ns() // 1_000_000
    known = await m.cluster.map()
    if known.map is None:
        raise BackupError("the cluster is not formed yet")
    id_ = secrets.token_hex(8)
    begun: dict[str, bak.BackupBegun] = {}
    complete = ""
    earlier = await asyncio.to_thread(repository.backups)
    there = [
        node
        for node, status in (await m.cluster.statuses(deadline_s=min(_STATUS_S, wait_s))).items()
        if isinstance(status, StatusReply) and not status.failing
    ]
    chosen = nodes_for(known, there, {node.node_id for node in earlier[-1].nodes} if earlier else ())
    try:
        for node in chosen:
            begun[node] = await m.backups.checkpoint(node, id_, stale=stale, deadline_s=wait_s)
        copy = _Copy(m, repository, id_, begun, Pace(bytes_per_s), tell, wait_s)
        nodes = [await copy.node(node, chosen[node]) for node in chosen]
        manifest = Manifest(FORMAT, id_, taken_ms, known.map.cluster_id, nodes, copy.copied_bytes)
        await asyncio.to_thread(repository.finish, manifest)
        complete = manifest.name
    finally:
        drop_s = wait_s if complete else min(_STATUS_S, wait_s)  # a node that has failed may not answer this, either
        dropping = [m.backups.drop(node, id_, backup=complete, deadline_s=drop_s) for node in begun]
        for error in await asyncio.gather(*dropping, return_exceptions=True):
            if isinstance(error, BaseException) and not isinstance(error, MetadError):
                raise error  # but it drops by itself what nobody reads
    return manifest


class _Copy:
    """The files of checkpoints on their way into a repository."""

    def __init__(
        self,
        m: Client,
        repository: Repository,
        id_: str,
        begun: dict[str, bak.BackupBegun],
        pace: Pace,
        tell: Tell,
        wait_s: float,
    ) -> None:
        self._m = m
        self._wait_s = wait_s
        self._repository = repository
        self._id = id_
        self._begun = begun
        sizes = [file.size for one in begun.values() for file in one.files]
        self._of_files, self._of_bytes = len(sizes), sum(sizes)
        self._pace = pace
        self._tell = tell
        self._known: dict[tuple[str, str, int, str], StoredFile] | None = None
        self._unfinished = Unfinished({})
        self._unnoted = 0
        self._files = self._bytes = 0
        self.copied_bytes = 0
        """That were not in the repository before."""

    async def node(self, node: str, groups: Iterable[str]) -> NodeCopy:
        """Copy the checkpoint of a node, which counts for these groups."""
        begun = self._begun[node]
        counted = [group for group in begun.groups if group.group in groups]
        if lacks := {*groups} - {group.group for group in counted}:
            raise BackupError(f"{node} has no replica of {', '.join(sorted(lacks))} any more: take the backup again")
        if self._known is None:
            self._known = await asyncio.to_thread(self._repository.known_files)
        files = [await self._file(node, begun.store_id, file) for file in begun.files]
        return NodeCopy(node, begun.store_id, begun.version, begun.wall_ms, counted, files, begun.format)

    async def _file(self, node: str, store_id: str, file: bak.BackupFile) -> StoredFile:
        assert self._known is not None
        at = store_id, file.name, file.size, file.tail.hex()
        stored = self._known.get(at) if file.name.endswith(".sst") else None
        if stored is None or not await asyncio.to_thread(self._repository.has, stored):
            stored = await self._copied(node, file)
            self._unfinished.stores.setdefault(store_id, []).append(stored)
            self._unnoted += 1
            if self._unnoted >= _NOTED_FILES:
                self._unnoted = 0
                await asyncio.to_thread(self._repository.note, self._id, self._unfinished)
        self._files += 1
        self._bytes += file.size
        self._tell(Progress(self._files, self._of_files, self._bytes, self._of_bytes))
        return stored

    async def _copied(self, node: str, file: bak.BackupFile) -> StoredFile:
        """Read a file, and keep it."""
        tail = b""
        with self._repository.receiving(f"{self._id}-{self._files}") as incoming:
            async for piece in self._pieces(node, file):
                tail = (tail + piece)[-bak.TAIL_BYTES :]
                await asyncio.to_thread(incoming.write, piece)
            if hashlib.sha256(tail).digest() != file.tail:
                raise BackupError(f"{file.name} of {node} did not come as it is there")
            stored = StoredFile(file.name, file.size, file.tail.hex(), incoming.sha256)
            incoming.kept = not await asyncio.to_thread(self._repository.has, stored)
        if incoming.kept:
            self.copied_bytes += file.size
        return stored

    async def _pieces(self, node: str, file: bak.BackupFile) -> AsyncIterator[bytes]:
        offset = 0
        while offset < file.size:
            size = min(bak.READ_BYTES_MAX, file.size - offset)
            await asyncio.sleep(self._pace.wait_s(size, time.monotonic()))
            piece = await self._m.backups.read(node, self._id, file.name, offset, size, deadline_s=self._wait_s)
            if len(piece) != size:
                raise BackupError(f"{file.name} of {node} is shorter than it was")
            yield piece
            offset += size
