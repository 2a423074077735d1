"""The writers: a partition that is written again is written once.

Each request has an identity that depends on the query, the batch, the partition and its place in it, so a group that
has done it answers again what it answered then. For that a repeated partition must send the same requests to the same
groups, although slots may have moved: the slots of the first attempt are kept in the service, in a key of the query.
A group that has lost them refuses a request that it has not done, and then it is sent on to those that have them, whose
slots are kept as well: they may have done it, and lost them since.

Records of a DataFrame become the items of writes. Sessions are imported, as ``metadctl import`` does it: each comes as
one whose client is away, by a life of a broker that belongs to the query's partition.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from metad_client import Client, ClusterMap, ConflictError, GroupId, Message, NotFoundError, Session, StaleRouteError
from metad_client.cli.transfer.kinds import Job, SessionLine, kinds
from metad_client.once import write_once
from metad_wire import messages as m
from metad_wire.cluster import unpack_slots
from metad_wire.errors import ErrorBody, error_of
from metad_wire.families import FAMILIES
from metad_wire.faults import fault
from metad_wire.key import SLOT_MASK
from metad_wire.method import Method, encode
from metad_wire.methods import KV_DELETE, KV_PUT
from metad_wire.program.documents import read_document
from metad_wire.tables.offset import OFFSET_COMMIT, OFFSET_DELETE
from metad_wire.tables.retained import (
    RETAINED_DELETE,
    RETAINED_PUT,
    RetainedDelete,
    RetainedDeleteItem,
    RetainedPut,
    RetainedPutItem,
)
from metad_wire.tables.sequence import (
    SEQUENCE_ADD,
    SEQUENCE_DELETE,
    SequenceAdd,
    SequenceAddItem,
    SequenceKey,
)
from metad_wire.tables.session import SESSION

from .errors import OptionError, SinkError
from .groups import MAP_RETRY_S, map_of, opened
from .options import Settings
from .shapes import CHANGE, declared_table

GONE: Final = frozenset({"deleted", "expired"})
"""A record with such a ``change`` is deleted."""
ITEMS_MAX: Final = 1_000
BYTES_MAX: Final = 400 * 1024


class Write(NamedTuple):
    """A kind of request."""

    method: Method[Any, Any]
    item: type[Message]
    body: Callable[[list[Any]], Message]
    made: Callable[[Message], Any]
    """What the request has of an item."""


class Writes(NamedTuple):
    """How records of a table are written."""

    put: Write
    delete: Write


def _same(item: Message) -> Message:
    return item


_WRITES: Final = {
    "kv": Writes(Write(KV_PUT, m.KvPutItem, m.KvPut, _same), Write(KV_DELETE, m.KvDeleteItem, m.KvDelete, _same)),
    "offset": Writes(
        Write(OFFSET_COMMIT, m.OffsetCommitItem, m.OffsetCommit, _same),
        Write(OFFSET_DELETE, m.OffsetKey, OFFSET_DELETE.body, _same),
    ),
    "retained": Writes(
        Write(RETAINED_PUT, RetainedPutItem, RetainedPut, _same),
        Write(RETAINED_DELETE, RetainedDeleteItem, RetainedDelete, _same),
    ),
    "sequence": Writes(
        Write(SEQUENCE_ADD, SequenceAddItem, SequenceAdd, _same),
        Write(SEQUENCE_DELETE, SequenceKey, SEQUENCE_DELETE.body, _same),
    ),
}


def writes_of(table: str, of_program: bytes = b"") -> Writes:
    """How records of a table are written. ``of_program``: the declaration of one that a program has declared. Raises
    OptionError if they cannot be."""
    found = _WRITES.get(table)
    if found is not None:
        return found
    declared = declared_table(of_program) if of_program else FAMILIES.get(table)
    if declared is None:
        written = ", ".join(sorted([*_WRITES, *FAMILIES, SESSION.name]))
        raise OptionError(f"table: {table!r} cannot be written; there is {written}")
    methods, number, known = declared.plain, declared.number, len(declared.record.__struct_fields__)
    return Writes(
        Write(methods.put, declared.record, lambda items: methods.put.body(number, known, items), m.TablePutItem),
        Write(methods.delete, methods.key, lambda items: methods.delete.body(number, items), m.TableDeleteItem),
    )


def check_columns(table: str, names: Iterable[str], declared: bytes = b"") -> None:
    """Raises OptionError if records with these columns cannot be written."""
    comes = table == SESSION.name
    fields = msgspec.structs.fields(SessionLine if comes else writes_of(table, declared).put.item)
    known = [field.name for field in fields] + ([] if comes else [CHANGE])
    given = set(names)
    for name in sorted(given - {*known}):
        raise OptionError(f"columns: a write to {table} has no {name!r}; it has {', '.join(known)}")
    for field in fields:
        if field.required and field.name not in given:
            raise OptionError(f"columns: a write to {table} needs {field.name!r}")


def items_of(
    table: str, records: Iterable[dict[str, Any]], declared: bytes = b""
) -> tuple[list[Message], list[Message]]:
    """The items that put and those that delete, in an order that depends on nothing but them. Raises SinkError."""
    writes = writes_of(table, declared)
    put: list[Message] = []
    deleted: list[Message] = []
    for record in records:
        gone = record.get(CHANGE) in GONE
        write = writes.delete if gone else writes.put
        fields = write.item.__struct_fields__
        given = {name: value for name, value in record.items() if name in fields and value is not None}
        try:
            item = write.item(**given)
        except TypeError as error:
            raise SinkError(f"{table}: a record {given!r}: {error}") from None
        wrong = fault(item, write.item)
        if wrong is not None:
            raise SinkError(f"{table}: a record {given!r}: {wrong}")
        (deleted if gone else put).append(item)
    return sorted(put, key=encode), sorted(deleted, key=encode)


def requests_of(write: Write, items: Sequence[Message]) -> list[list[Message]]:
    """The items of one group in requests, cut where nothing but the items decides."""
    found: list[list[Message]] = []
    room = 0
    for item in items:
        size = len(encode(item))
        if not found or len(found[-1]) == ITEMS_MAX or size > room:
            found.append([])
            room = BYTES_MAX
        found[-1].append(item)
        room -= size
    return found


NAMESPACE: Final = "metad-spark"
SEQ_BITS: Final = 20
"""Of the number of a request: the rest is the number of the batch."""
DEADLINE_S: Final = 60.0
_PUT: Final = "put"
_DELETE: Final = "delete"
_AGE_MS: Final = 60_000
"""Clocks of two executors differ by less."""
_BROKERS: Final = f"{NAMESPACE}-"
"""The names of the brokers that bring sessions begin so."""
_ENDS_MS: Final = 5_000
"""Ends of a session that differ by less are the same: they are told in whole seconds, and counted from the write."""


class Plan(msgspec.Struct, frozen=True):
    """Which group had which slot when a batch, or a request of it that a group had refused, was first written."""

    batch: int
    made_ms: int
    slots: dict[str, bytes]
    version: int | None = None
    """Of the map that says so; None: an older metad made the plan."""
    done: bool = False
    """Of sessions: all of the batch is written, so a repeated one has nothing to do."""


class Part(msgspec.Struct, frozen=True):
    """Which part of a query's work this is."""

    query: str
    batch: int
    partition: int


async def write(client: Client, settings: Settings, part: Part, records: Sequence[dict[str, object]]) -> int:
    """Write records. Returns how many. Raises SinkError, MetadError."""
    if settings.table == SESSION.name:
        return await _import(client, settings, part, records)
    put, deleted = items_of(settings.table, records, settings.declared)
    if not put and not deleted:
        return 0
    plan, age_ms = await _plan(client, settings, part, "", partial(map_of, client, settings))
    writes = writes_of(settings.table, settings.declared)
    sent = _Sent(client, settings, part, age_ms)
    await sent.all(writes.put, put, plan, _PUT)
    await sent.all(writes.delete, deleted, plan, _DELETE)
    return len(put) + len(deleted)


def write_here(settings: Settings, part: Part, records: Sequence[dict[str, object]]) -> int:
    """The same by a client of its own. Raises ClusterError, SinkError."""

    async def written() -> int:
        async with opened(settings) as client:
            return await write(client, settings, part, records)

    return asyncio.run(written())


def _key(part: Part, place: str = "") -> str:
    """Of the plan of a part, or of a place in it."""
    return f"{part.query}/{part.partition}{place}"


async def _plan(
    client: Client, settings: Settings, part: Part, place: str, newest: Callable[[], Awaitable[ClusterMap]]
) -> tuple[Plan, int]:
    """The slots of the first attempt at a place in the batch, and for how long there may have been attempts: 0 if this
    is the first. ``newest``: the map by which that is made."""
    key = _key(part, place)
    while True:
        kept = await client.kv.get(NAMESPACE, key)
        plan = None if kept is None else msgspec.msgpack.decode(kept.value, type=Plan)
        if plan is not None and plan.batch == part.batch:
            return plan, max(1, int(time.time() * 1000) - plan.made_ms) + _AGE_MS
        if plan is not None and plan.batch > part.batch:
            over = f"batch {part.batch} of query {part.query} is over: batch {plan.batch} has begun"
            raise SinkError(f"{settings.source}: {over}")
        known = await newest()
        made = Plan(part.batch, int(time.time() * 1000), dict(known.slots), known.version)
        version = 0 if kept is None else kept.version
        try:
            await client.kv.put(NAMESPACE, key, msgspec.msgpack.encode(made), expected_version=version)
        except ConflictError:
            continue  # another attempt of the same task
        return made, 0


async def _import(client: Client, settings: Settings, part: Part, records: Sequence[dict[str, object]]) -> int:
    """Bring sessions in. Returns how many of them the cluster has now: those that were over are not counted. A life of
    a broker brings them, which ends that of an earlier attempt, so no two attempts write at once."""
    lines = [_session_line(record) for record in records]
    if not lines:
        return 0
    plan, age_ms = await _plan(client, settings, part, "", partial(map_of, client, settings))
    if plan.done:
        return len(lines)
    name = sha256(f"{part.query}\0{part.partition}".encode()).hexdigest()[:16]
    job = Job(client, _BROKERS + name, int(time.time() * 1000), discard_wills=False, family=_BROKERS)
    count = 0
    try:
        await job.life()
        for begin in range(0, len(lines), ITEMS_MAX):
            count += await _import_some(job, lines[begin : begin + ITEMS_MAX], repeated=age_ms > 0)
        done = msgspec.msgpack.encode(msgspec.structs.replace(plan, done=True))
        await client.kv.put(NAMESPACE, _key(part), done)
    finally:
        await job.close()
    return count


def _session_line(record: dict[str, object]) -> SessionLine:
    try:
        return read_document(record, SessionLine)
    except ValueError as error:
        raise SinkError(f"{SESSION.name}: a record {record!r}: {error}") from None


async def _import_some(job: Job, lines: Sequence[SessionLine], *, repeated: bool) -> int:
    """Write those that the cluster does not have. A session of another broker that differs is refused; where an earlier
    attempt may have brought it, its client has come back since, and it stays as it is."""
    kind = kinds(())[SESSION.name]
    lines = [line for line in lines if not kind.over(job, line)]
    todo: list[tuple[SessionLine, None]] = []
    for line, old in zip(lines, await kind.found(job, list(lines)), strict=True):
        own = old is not None and job.is_own(old.broker)  # an earlier attempt, batch or job brought it
        if old is None or (own and not (kind.same(line, old) and _ends_alike(line, old))):
            todo.append((line, None))
        elif not repeated and not kind.same(line, old):
            raise SinkError(_refused(line, f"the cluster has one that differs, of broker {old.broker}: delete one"))
    for at, why in (await kind.write(job, todo) if todo else {}).items():
        raise SinkError(_refused(todo[at][0], f"{type(why).__name__}: {why}"))
    return len(lines)


def _refused(line: SessionLine, why: str) -> str:
    return f"{SESSION.name}: client {line.client_id!r} of tenant {line.tenant!r}: {why}"


def _ends_alike(line: SessionLine, old: Session) -> bool:
    """Whether a session that an import brought ends when it is to. One that an attempt left behind half done has its
    whole interval."""
    return line.connected or abs(line.expires_ms - old.expires_ms) <= _ENDS_MS


class _Sent:
    """Requests of one part on their way."""

    def __init__(self, client: Client, settings: Settings, part: Part, age_ms: int) -> None:
        self._client = client
        self._settings = settings
        self._part = part
        self._age_ms = age_ms

    async def all(self, write: Write, items: Sequence[Message], plan: Plan, place: str) -> None:
        """Send items to the groups that have them by this plan."""
        groups = _by_group(write, items, plan.slots).items()
        tasks = [
            asyncio.create_task(self._group(write, group, mine, plan.version, f"{place}/{group}"))
            for group, mine in groups
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _group(self, write: Write, group: str, items: Sequence[Message], version: int | None, place: str) -> None:
        for number, request in enumerate(requests_of(write, items)):
            try:
                await self._one(write, group, request, version, place, number)
            except StaleRouteError:  # neither now nor at an earlier attempt was anything done
                at = f"{place}:{number}"
                newest = partial(self._elsewhere, write, group, request)
                plan, _ = await _plan(self._client, self._settings, self._part, f"/{at}", newest)
                await self.all(write, request, plan, at)

    async def _elsewhere(self, write: Write, group: str, items: Sequence[Message]) -> ClusterMap:
        """The map, once it has some of these items in another group than this one. The newest after a minute: they may
        have come back."""
        for _ in range(int(DEADLINE_S / MAP_RETRY_S)):
            known = await map_of(self._client, self._settings)
            if _by_group(write, items, known.slots).keys() != {group}:
                break
            await asyncio.sleep(MAP_RETRY_S)
        return known

    async def _one(
        self, write: Write, group: str, items: Sequence[Message], version: int | None, place: str, number: int
    ) -> None:
        part = self._part
        series = sha256(f"{part.query}\0{part.partition}\0{place}".encode()).digest()
        low = part.batch + 1 << SEQ_BITS
        reply = await write_once(
            self._client,
            write.method,
            write.body([write.made(item) for item in items]),
            group,
            client_id=int.from_bytes(series[:8], "big"),
            seq=low + number,
            low=low,
            age_ms=self._age_ms,
            version=version,
            deadline_s=DEADLINE_S,
        )
        for error in reply.errors:
            if place.startswith(_DELETE) and error.code == NotFoundError.code:
                continue  # it is gone: that is what was wanted
            why = error_of(ErrorBody(error.code, error.message))
            raise SinkError(f"{self._settings.table}: {items[error.index]!r}: {type(why).__name__}: {why}")


def _by_group(write: Write, items: Sequence[Message], slots: dict[str, bytes]) -> dict[str, list[Message]]:
    route = write.method.route
    assert route is not None
    ordinals = unpack_slots(slots[route.kind])
    found: dict[str, list[Message]] = {}
    for item, crc in zip(items, route.crcs([write.made(item) for item in items]), strict=True):
        found.setdefault(GroupId(route.kind, ordinals[crc & SLOT_MASK]).name, []).append(item)
    return found


_BATCH: Final = "streaming.sql.batchId"
_QUERY: Final = "sql.streaming.queryId"
"""What Spark tells the tasks of a stream, and of what ``foreachBatch`` does with its batch."""


class Written(WriterCommitMessage):
    """How many records a task has written."""

    def __init__(self, count: int) -> None:
        self.count = count


class MetadWriter(DataSourceArrowWriter):
    """Writes a DataFrame."""

    def __init__(self, settings: Settings, schema: StructType, overwrite: bool) -> None:
        self._settings = checked(settings, schema, overwrite)
        self._job = secrets.token_hex(8)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one partition, in a task."""
        return _written(self._settings, self._job, iterator)


def stream_writer(settings: Settings, schema: StructType, overwrite: bool) -> Any:
    """What writes a stream, batch by batch."""
    base = getattr(datasource, "DataSourceStreamArrowWriter", None)
    if base is None:
        raise OptionError("writeStream: before Spark 4.1 write to metad in foreachBatch")
    chosen = checked(settings, schema, overwrite)

    class MetadStreamWriter(base):  # type: ignore[misc, valid-type]
        """Made here because the base is not in Spark 4.0."""

        def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
            """Write one partition of a batch, in a task."""
            return _written(chosen, "", iterator)

        def commit(self, messages: list[Any], batch_id: int) -> None:
            """All of it is written already."""

        def abort(self, messages: list[Any], batch_id: int) -> None:
            """What is written stays, and is written once when the batch is done again."""

    return MetadStreamWriter()


def checked(settings: Settings, schema: StructType, overwrite: bool) -> Settings:
    """Settings that fit. Raises OptionError."""
    if not settings.is_live:
        raise OptionError(f"source: {settings.source} is a directory; metad-spark export writes one")
    if overwrite:
        raise OptionError('mode: only "append": what is there is replaced key by key')
    if settings.batch >= 0 and not settings.query:
        raise OptionError("batch: it needs the option query")
    check_columns(settings.table, schema.names, settings.declared)
    return settings


def _written(settings: Settings, job: str, iterator: Iterator[pa.RecordBatch]) -> Written:
    records: list[dict[str, Any]] = []
    for batch in iterator:
        records += batch.to_pylist()
    return Written(write_here(settings, _part(settings, job), records))


def _part(settings: Settings, job: str) -> Part:
    """Which part of which batch of which query a task is to write."""
    task = TaskContext.get()
    partition = task.partitionId() if task is not None else 0
    if settings.batch >= 0:
        return Part(settings.query, settings.batch, partition)
    told: dict[str, str] = {}
    for name in (_BATCH, _QUERY):
        with contextlib.suppress(Exception):  # what Spark raises where there is none depends on its version
            told[name] = (task.getLocalProperty(name) if task is not None else None) or ""
    if told.get(_BATCH):
        query = settings.query or told.get(_QUERY, "")
        return Part(query, int(told[_BATCH]), partition)
    if not job:
        raise OptionError("query: Spark does not say which batch this is: write in foreachBatch, with query and batch")
    return Part(f"{settings.query}/{job}" if settings.query else job, 0, partition)
