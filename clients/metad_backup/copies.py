"""A backup that is opened: the state of each group as of the checkpoint, or of any later moment that is archived.

The files are put into a scratch directory, where RocksDB opens them as a node would. What the archive has behind the
checkpoint is applied there. The state of a group may hold rows of slots that it has no more, or not yet: which group
counts for a slot is decided as nodes decide it, by the move that brought it last.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np

from metad.config import StorageConfig
from metad.errors import ServerError
from metad.formats import DATA_DIRECTORY, refusal
from metad.raft.snapshots.snapshots import applied_index
from metad.state.cluster.brokers import ended_fence, read_brokers
from metad.state.cluster.cluster import read_map
from metad.state.cluster.fences import fences_in
from metad.state.cluster.tenant_ends import ends_in
from metad.state.core.entry import decode_record
from metad.state.core.part import Writes
from metad.state.core.slot_assignment import (
    RestoreState,
    decode_moves,
    decode_restore,
    decode_slots,
    moves_key,
    pack,
    restore_key,
    slots_brought,
    state_key,
    unpack,
)
from metad.state.moving.restoring import KEPT_ROWS
from metad.storage import keys
from metad.storage.rocks import RocksEngine, Shared, state_options
from metad_wire.cluster import GROUP_KINDS, METADATA, SLOTS, FenceItem, GroupId
from metad_wire.messages import TenantEnd

from .repository import BackupError, Manifest, Repository, StoredFile

PAGE_ROWS, PAGE_BYTES = 1_000, 512 * 1024
_CACHE_BYTES: Final = 64 * 1024 * 1024
_APPLIED_AT_ONCE: Final = 100  # entries, in one write
_decode_records = msgspec.msgpack.Decoder(list[bytes]).decode

_SCRATCH, _LOCK = "metad-backup-", ".lock"

Tell = Callable[[str, int, int], None]
"""(what is done, how far it is, how far it goes)."""
Row = tuple[bytes, bytes]
"""The key without its group prefix, and the value."""


class Part(NamedTuple):
    """A group in a backup."""

    group: GroupId
    engine: RocksEngine
    revision: int
    now_ms: int
    """The time of the log."""
    restored: RestoreState | None
    """What backup was put into it, if one was."""
    slots: bytes = b""
    """Bit map of the slots for which it counts."""

    @property
    def prefix(self) -> bytes:
        """Of its keys."""
        return keys.group_prefix(self.group)


class Copy:
    """Made by :func:`opened`."""

    def __init__(self, manifest: Manifest, parts: list[Part], ends_ms: int = 0) -> None:
        self.manifest = manifest
        self.parts = parts
        """The groups, by name."""
        self.ends_ms = ends_ms
        """Unix time when the archive ends, if that is before the moment that was asked for; else 0."""

    @property
    def metadata(self) -> Part:
        """The group that keeps what is in no slot."""
        return next(part for part in self.parts if part.group == METADATA)

    @property
    def revision(self) -> int:
        """The highest of a group."""
        return max(part.revision for part in self.parts)

    def rows(self, part: Part, row: int, begin: bytes = b"") -> Iterator[list[Row]]:
        """The rows that have this byte, in order, of the slots for which the group counts: a page at a time. ``begin``:
        only keys that begin so, behind the byte."""
        held = unpack(part.slots)
        prefix = keys.table_prefix(part.prefix, row) + begin
        at, end = prefix, keys.after_prefix(prefix)
        with contextlib.closing(part.engine.pin(at, end)) as pin:
            while page := pin.scan(at, end, PAGE_ROWS, PAGE_BYTES):
                at = page[-1][0] + b"\0"
                found = [(key[keys.GROUP_PREFIX_BYTES :], value) for key, value in page]
                yield [(key, value) for key, value in found if (slot := keys.slot_of_key(key)) is None or held[slot]]

    def kept_rows(self) -> Iterator[list[Row]]:
        """What a restore brings of what is in no slot."""
        for row in sorted(KEPT_ROWS):
            yield from self.rows(self.metadata, row)

    def fences(self) -> list[FenceItem]:
        """All lives of brokers that any group knows, as over."""
        found: dict[str, FenceItem] = {}
        brokers = read_brokers(self.metadata.engine).values()
        told = [fence for part in self.parts for fence in fences_in(part.engine, part.prefix)]
        for fence in (*map(ended_fence, brokers), *(_over(fence) for fence in told)):
            known = found.get(fence.broker)
            found[fence.broker] = fence if known is None else known.merged(fence)
        return list(found.values())

    def ends(self, part: Part) -> list[TenantEnd]:
        """The orders to end tenants that a group has not carried out, for the slots for which it counts."""
        return ends_in(part.engine, part.prefix, part.slots)


def _over(fence: FenceItem) -> FenceItem:
    """A fence of another log, once the life that it lets write is over, too."""
    least = fence.least_epoch + fence.live
    return FenceItem(fence.broker, least, 0, 0, False, fence.unclean_epoch, fence.quiet_epoch)


@contextlib.contextmanager
def opened(
    repository: Repository,
    manifest: Manifest,
    at_ms: int | None = None,
    *,
    scratch: Path | None = None,
    tell: Tell | None = None,
) -> Iterator[Copy]:
    """Open a backup, as of the checkpoint or of the last archived moment that is not behind ``at_ms``. ``scratch``:
    where its files are put meanwhile; they need their size once. Raises BackupError."""
    for node in manifest.nodes:
        if node.format and not DATA_DIRECTORY.writes <= node.format <= DATA_DIRECTORY.newest:
            raise BackupError(refusal(f"backup {manifest.id}", DATA_DIRECTORY, node.format, node.version))
    with scratch_directory(scratch) as directory, contextlib.ExitStack() as stack:
        shared = Shared(StorageConfig(block_cache_bytes=_CACHE_BYTES))
        engines: dict[str, RocksEngine] = {}
        try:
            for number, node in enumerate(manifest.nodes):
                place = directory / str(number)
                place.mkdir()
                for position, file in enumerate(node.files):
                    _put(repository, file, place / file.name)
                    if tell is not None:
                        tell(f"files of {node.node_id}", position + 1, len(node.files))
                engine = RocksEngine(place, state_options(shared), wal=False, little_room=True)
                stack.callback(engine.close)
                engines.update((group.group, engine) for group in node.groups)
            passed_ms, ends_ms = (0, 0) if at_ms is None else _advance(repository, manifest, engines, at_ms, tell)
            parts = parts_of(engines, {one.group: one.now_ms + passed_ms for one in manifest.groups})
            yield Copy(manifest, parts, ends_ms)
        except ServerError as error:
            raise BackupError(f"backup {manifest.id} cannot be opened: {error}") from None


@contextlib.contextmanager
def scratch_directory(within: Path | None) -> Iterator[Path]:
    """A directory of its own until the end of the block, in the one given or in the system's. First it removes what
    processes have left there that were killed: each holds a lock beside its directory for as long as it lives. Raises
    OSError."""
    parent = Path(tempfile.gettempdir()) if within is None else within
    for left in sorted(parent.glob(f"{_SCRATCH}*{_LOCK}")):
        _remove_left(left)
    lock, descriptor = _locked(parent)
    try:
        directory = lock.with_suffix("")
        directory.mkdir(mode=0o700)
        yield directory
    finally:
        shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
        lock.unlink(missing_ok=True)
        os.close(descriptor)


def _locked(parent: Path) -> tuple[Path, int]:
    """A new file that this process has locked. Another one may take it for what is left and remove it before that."""
    while True:
        path = parent / f"{_SCRATCH}{secrets.token_hex(8)}{_LOCK}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:
                return path, descriptor
        os.close(descriptor)


def _remove_left(lock: Path) -> None:
    """Remove a directory and its lock, if they are ours and no process holds the lock."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # it has just ended, or is of another user
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # its process lives
        return
    else:
        if os.fstat(descriptor).st_uid == os.geteuid():
            shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
            lock.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _put(repository: Repository, file: StoredFile, path: Path) -> None:
    with path.open("wb") as scratch:
        for piece in repository.pieces(file):
            scratch.write(piece)


def parts_of(engines: dict[str, RocksEngine], times_ms: dict[str, int]) -> list[Part]:
    """``times_ms``: of the logs, as they go on where nothing is written."""
    if METADATA.name not in engines or (known := read_map(engines[METADATA.name])) is None:
        raise BackupError("the backup has no cluster map")
    found: dict[GroupId, Part] = {}
    moves: dict[GroupId, dict[int, bytes]] = {}
    for record in known.groups:
        group = record.group_id
        if (engine := engines.get(group.name)) is None:
            # It was added while the backup was taken, and has no slots yet in what was taken before.
            continue
        prefix = keys.group_prefix(group)
        time = engine.get(keys.log_time(prefix))
        assigned = decode_slots(engine.get(state_key(prefix)), record.initial_slots)
        now_ms = 0 if time is None else max(int.from_bytes(time, "big"), times_ms.get(group.name, 0))
        restored = decode_restore(engine.get(restore_key(prefix)))
        found[group] = Part(group, engine, applied_index(engine, prefix) + assigned.base, now_ms, restored)
        moves[group] = slots_brought(assigned.slots, assigned.sealed, decode_moves(engine.get(moves_key(prefix))))
    for kind in GROUP_KINDS:
        best = np.full(SLOTS, -1)
        holder: dict[int, GroupId] = {}
        for group, brought in moves.items():
            if group.kind != kind:
                continue
            for move, bits in brought.items():
                for slot in np.flatnonzero(unpack(bits) & (best < move)):
                    best[slot], holder[int(slot)] = move, group
        if len(holder) < SLOTS:
            raise BackupError(
                f"{SLOTS - len(holder)} slots of kind {kind} were on their way from group to group when the backup was "
                "taken: take another"
            )
        for group, part in found.items():
            if group.kind == kind:
                mask = np.fromiter((holder[slot] == group for slot in range(SLOTS)), bool, SLOTS)
                found[group] = part._replace(slots=pack(mask))
    return [found[group] for group in sorted(found)]


# --- what is archived behind it ---------------------------------------------------------------------------------------


def _advance(
    repository: Repository, manifest: Manifest, engines: dict[str, RocksEngine], at_ms: int, tell: Tell | None
) -> tuple[int, int]:
    """Apply what was archived until then. Returns how many milliseconds it was archived for, and when the archive ends
    if that is earlier; else 0."""
    newest_ms = until_ms = manifest.taken_ms
    if at_ms < manifest.taken_ms:
        raise BackupError(f"backup {manifest.id} was begun later than that: choose an earlier one")
    names = sorted({*engines, *repository.archived_groups()})
    for number, name in enumerate(names):
        group = GroupId.parse(name)
        assert group is not None
        engine = engines.setdefault(name, engines[METADATA.name])  # one that was added since, from its beginning
        prefix = keys.group_prefix(group)
        applied = applied_index(engine, prefix)
        for first, last, wall_ms, entry in repository.archived(name):
            newest_ms = max(newest_ms, wall_ms)
            if wall_ms > at_ms or last <= applied:
                continue
            if first > applied + 1:
                raise BackupError(
                    f"the archive of {name} lacks entries {applied + 1} to {first - 1}: choose a later backup, or an "
                    "earlier moment"
                )
            records = _decode_records(repository.entries(name, entry))
            _apply(engine, prefix, name, first, records[applied + 1 - first :], applied)
            applied, until_ms = last, max(until_ms, wall_ms)
        if tell is not None:
            tell("archived groups", number + 1, len(names))
    return until_ms - manifest.taken_ms, newest_ms if newest_ms < at_ms else 0


def _apply(engine: RocksEngine, prefix: bytes, name: str, first: int, records: list[bytes], applied: int) -> None:
    for begin in range(0, len(records), _APPLIED_AT_ONCE):
        batches: list[Writes] = []
        for data in records[begin : begin + _APPLIED_AT_ONCE]:
            applied += 1
            entry = decode_record(name, applied, data)
            batches += [*entry, {keys.applied(prefix): keys.u64(applied)}]
            if entry.now_ms:
                batches.append({keys.log_time(prefix): keys.u64(entry.now_ms)})
        engine.write(*batches)
