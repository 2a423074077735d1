"""``metadctl export``: the tables of a cluster that serves, a file each with a record a line.

Each group is read from one replica, as it was at one moment, which has everything that was acknowledged before; so all
tables of a group agree. Meanwhile its rows are on the disk as they come, so the memory that it takes is bounded, and a
replica that is lost in the middle is replaced by another that begins anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from heapq import merge
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec

from metad_wire.cluster import METADATA, SLOTS, GroupId
from metad_wire.families import FAMILIES, KNOWN
from metad_wire.table import ANY_KIND, Table
from metad_wire.tables.declaration import DeclaredTable
from metad_wire.tables.tenants import is_scoped

from ...client import Client
from ...errors import DeadlineExceededError, InvalidRequestError
from ...watch.event import Shape, Shapes
from ...watch.filters import Watched
from ..printing import plain
from ..tables.bounded import Progress
from ..tables.declared import declaration_document

FORMAT: Final = 1
MANIFEST: Final = "export.json"
LISTED: Final = {"role": "roles", "principal": "principals", "quota": "quotas"}
"""Tables that no watch shows, and the namespace that lists them."""
_AT_ONCE: Final = 500
"""Tables of one snapshot."""
_BUFFER_BYTES: Final = 256 * 1024
_RETRY_S: Final = 0.2


class Manifest(msgspec.Struct, frozen=True):
    """What a directory is."""

    format: int
    cluster: str
    """Its id."""
    tenant: str | None
    began_ms: int
    """By the clock of the machine that asked: deadlines count from here."""
    groups: dict[str, int]
    """The revision of each as of which it was read."""
    tables: dict[str, int]
    """How many records each has; one without any has no file."""


class Exported(NamedTuple):
    """A table as a file: the rows of it that have one key make one record."""

    name: str
    """Of the file, too: ``offset.generation`` where a table has rows with another key."""
    table: Table[Any]
    rows: tuple[str, ...]


def tables(declared: Sequence[Table[Any]] = ()) -> dict[str, Exported]:
    """All that a watch shows, by name: of the tables in the code, and of these that programs have declared."""
    found: dict[str, Exported] = {}
    for table in (*KNOWN.values(), *declared):
        if table.kind == ANY_KIND:
            continue
        keys: dict[Any, list[str]] = {}
        for name, byte in table.rows.items():
            if byte in table.shows:
                keys.setdefault(table.shows[byte].key, []).append(name)
        for key, rows in keys.items():
            whole = key is None or len(key.__struct_fields__) == len(table.key)
            name = table.name if whole else f"{table.name}.{rows[0]}"
            found[name] = Exported(name, table, tuple(rows))
    return found


class Export:
    """Writes a directory. It must not be there, or be empty. ``wait_s``: for the next rows of a group, and for slots
    that are on their way from group to group. Raises InvalidRequestError."""

    def __init__(self, m: Client, directory: Path, tenant: str | None, wanted: Sequence[str], wait_s: float) -> None:
        self._m = m
        self._wait_s = wait_s
        self._directory = directory
        self._tenant = tenant
        self._wanted = wanted
        self._shapes = Shapes()
        self._counts: dict[str, int] = {}
        self._revisions: dict[str, int] = {}
        self._progress = Progress("exported")
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if any(directory.iterdir()):
                raise InvalidRequestError(f"{directory}: it is not empty")
        except OSError as error:
            raise InvalidRequestError(f"{directory}: {error.strerror}") from None

    async def run(self) -> Manifest:
        """Export; what is there of one that fails is deleted. Raises MetadError, OSError."""
        try:
            return await self._run()
        except BaseException:
            for path in self._directory.glob("*.jsonl"):
                path.unlink()
            raise

    async def _run(self) -> Manifest:
        began_ms = time.time_ns() // 1_000_000
        declared = [one.table() async for one in self._m.tables.list()]
        for table in (*FAMILIES.values(), *declared):
            self._shapes.add(table)
        known = tables(declared)
        chosen = self._chosen(known)
        reply = await self._m.cluster.map()
        assert reply.map is not None  # it has answered a request for its tables
        by_kind: dict[str, list[Exported]] = {}
        for name in chosen:
            self._counts[name] = 0
            if name in LISTED:
                await self._list(name)
            else:
                by_kind.setdefault(known[name].table.kind, []).append(known[name])
        for kind, some in by_kind.items():
            for begin in range(0, len(some), _AT_ONCE):
                await self._groups(kind, some[begin : begin + _AT_ONCE])
        for name in [name for name, count in self._counts.items() if not count]:
            (self._directory / f"{name}.jsonl").unlink()
        made = Manifest(FORMAT, reply.map.cluster_id, self._tenant, began_ms, self._revisions, self._counts)
        with _private(self._directory / MANIFEST) as file:  # last: without it the directory is no export
            file.write(msgspec.json.format(msgspec.json.encode(made)) + b"\n")
        return made

    def _chosen(self, known: dict[str, Exported]) -> list[str]:
        there = {*known, *LISTED}
        for name in self._wanted:
            if name not in there:
                raise InvalidRequestError(f"there is no table {name!r}; there is {', '.join(sorted(there))}")
            if self._tenant is not None and not (name in known and is_scoped(known[name].table)):
                raise InvalidRequestError(f"records of {name} belong to no tenant")
        if self._wanted:
            return [*dict.fromkeys(self._wanted)]
        if self._tenant is None:
            return sorted(there)
        return sorted(name for name, one in known.items() if is_scoped(one.table))

    async def _list(self, name: str) -> None:
        with _private(self._directory / f"{name}.jsonl") as file:
            async for record in getattr(self._m, LISTED[name]).list():
                self._line(file, name, plain(record))

    def _line(self, file: BinaryIO, name: str, document: Any) -> None:
        file.write(msgspec.json.encode(document) + b"\n")
        self._counts[name] += 1
        self._progress(sum(self._counts.values()))

    # --- the groups of one kind -----------------------------------------------------------------------------

    async def _groups(self, kind: str, some: list[Exported]) -> None:
        """Export tables, some slots after others: each group says which it had at the moment of its snapshot."""
        with contextlib.ExitStack() as stack:
            files = {one.name: stack.enter_context(_private(self._directory / f"{one.name}.jsonl")) for one in some}
            slotless = [one for one in some if not one.table.routing]
            if slotless:
                await self._snapshot(METADATA, slotless, files, None)
            routed = [one for one in some if one.table.routing]
            left, came_s = set(range(SLOTS)), time.monotonic()
            while routed and left:
                known = (await self._m.cluster.map()).map
                for group, slots in ({} if known is None else known.holders(kind)).items():
                    if wanted := left & {*slots}:
                        held = await self._snapshot(group, routed, files, wanted)
                        left -= held
                        came_s = time.monotonic() if held else came_s
                if left and time.monotonic() > came_s + self._wait_s:
                    raise DeadlineExceededError(
                        f"{len(left)} slots of kind {kind} are on their way from group to group"
                    )
                if left:
                    await asyncio.sleep(_RETRY_S)

    async def _snapshot(
        self, group: GroupId, some: list[Exported], files: dict[str, BinaryIO], slots: set[int] | None
    ) -> set[int]:
        """Export what a group has of these slots (None: what is in none). Which of them those were."""
        tenant = self._tenant
        watched = [Watched(one.table, tenant, rows=one.rows) for one in some]
        asked = range(SLOTS) if slots is None else sorted(slots)
        with TemporaryDirectory(dir=self._directory, prefix=".rows-") as scratch, contextlib.ExitStack() as stack:
            rows = _Rows(Path(scratch), self._shapes, stack)
            async with self._m.snapshot(group, watched, slots=asked, idle_timeout_s=self._wait_s) as snapshot:
                async for part in snapshot:
                    if part.first:
                        rows.clear()
                    for one in part.rows:
                        rows.add(one.row, one.keys, one.values)
                self._revisions[group.name] = snapshot.revision
                held = None if slots is None else slots & snapshot.slots
            for exported in some:
                for number, document in enumerate(rows.documents(exported, held)):
                    self._line(files[exported.name], exported.name, document)
                    if number % _AT_ONCE == 0:
                        await asyncio.sleep(0)
        return held or set()


class _Rows:
    """The rows of a snapshot on the disk, until it is whole. Those of one kind come in the order of their keys."""

    def __init__(self, directory: Path, shapes: Shapes, stack: contextlib.ExitStack) -> None:
        """``stack``: it closes the files."""
        self._directory = directory
        self._stack = stack
        self._shapes = shapes
        self._files: dict[int | bytes, BinaryIO] = {}

    def clear(self) -> None:
        """Another replica begins anew."""
        for file in self._files.values():
            file.truncate(0)
            file.seek(0)

    def add(self, row: int, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Some rows."""
        for key, value in zip(keys, values, strict=True):
            place = self._shapes.place(row, key)
            if (file := self._files.get(place)) is None:
                name = place.hex() if isinstance(place, bytes) else f"{place:02x}"
                file = self._stack.enter_context((self._directory / name).open("w+b", buffering=_BUFFER_BYTES))
                self._files[place] = file
            for data in (key, value or b""):
                file.write(len(data).to_bytes(4, "big") + data)

    def documents(self, exported: Exported, held: set[int] | None) -> Iterator[dict[str, Any]]:
        """The records of a table that are in these slots: the rows of one key together."""
        table = exported.table
        places: list[int | bytes] = [table.rows[name] for name in exported.rows]
        if table.header:
            places = [table.header[:4]]
        shapes = [self._shapes.at(place) for place in places]
        streams = [self._read(place, number) for number, place in enumerate(places) if place in self._files]
        now, document = b"", dict[str, Any]()
        for key, number, value in merge(*streams, key=itemgetter(0, 1)):
            if held is not None and table.slot_of(key) not in held:
                continue
            if key != now or not document:
                if document:
                    yield document
                now, document = key, _key(shapes[number], key)
            document |= _value(table, shapes[number], value)
        if document:
            yield document

    def _read(self, place: int | bytes, number: int) -> Iterator[tuple[bytes, int, bytes]]:
        file = self._files[place]
        file.seek(0)
        while head := file.read(4):
            key = file.read(int.from_bytes(head, "big"))
            yield key, number, file.read(int.from_bytes(file.read(4), "big"))


def _key(shape: Shape, key: bytes) -> dict[str, Any]:
    named = shape.key(key)
    return {} if named is None else msgspec.structs.asdict(named)


def _value(table: Table[Any], shape: Shape, value: bytes) -> dict[str, Any]:
    """The fields of a row's value beside the key. One that is no record has a name: that of the field of the table's
    record which it is, or of the row."""
    record = shape.record(value)
    if isinstance(record, DeclaredTable):
        return dict(plain(declaration_document(record)))
    if not isinstance(record, msgspec.Struct):
        kind = table.shows[table.rows[shape.row]].record
        fields = () if table.record is None else msgspec.structs.fields(table.record)
        same = [field.name for field in fields if field.type is kind]
        return dict(plain({same[0] if same else shape.row: record}))
    facts = msgspec.structs.asdict(record)
    if table.header:
        facts = msgspec.structs.asdict(facts.pop("record")) | facts
    return dict(plain(facts))


@contextlib.contextmanager
def _private(path: Path) -> Iterator[BinaryIO]:
    """A new file that only its owner reads, for records hold secrets; on the disk at the end."""
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
