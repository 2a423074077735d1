"""A local picture of tables that follows their changes: a watch that begins with a snapshot, and dictionaries."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from metad_wire.messages import Message, Revision, Session, SessionProperties
from metad_wire.methods import encode
from metad_wire.table import ROWS, TABLES
from metad_wire.tables.session import SESSION
from metad_wire.watch import ChangeKind, WatchFilter

from ..dispatch.dispatcher import Dispatcher
from ..dispatch.reports import log
from ..errors import DeadlineExceededError, MetadError
from ..requests.wrong import argument
from .events import Shape, WatchBatch, WatchEvent, array_of, shape_of
from .filters import Wanted, filters_of
from .position import is_among
from .streams import Streams
from .token import to_text
from .watch import BUFFER_BYTES, abandon, check_buffer, milliseconds

PROGRESS_S: Final = 1.0
"""How often the servers say how current the picture is."""
TURN_S: Final = 0.02
"""After so long the event loop has its turn."""

Key = TypeVar("Key")
Record = TypeVar("Record")
OnChange = Callable[[WatchEvent], None]


class _Shown(Protocol):
    """Where the records of a view are."""

    def get(self, key: bytes) -> Any:
        """The record of an encoded key; None if there is none."""

    def records(self) -> list[tuple[bytes, Any]]:
        """All, as they are now."""

    def __len__(self) -> int: ...


class _Row:
    """The records of one row, by their encoded keys."""

    def __init__(self, row: int) -> None:
        self.row = row
        self.shape: Shape = shape_of(row)
        self.data: dict[bytes, Any] = {}

    def get(self, key: bytes) -> Any:
        return self.data.get(key)

    def records(self) -> list[tuple[bytes, Any]]:
        return list(self.data.items())

    def __len__(self) -> int:
        return len(self.data)


class _Sessions:
    """Sessions, of the two rows that they are kept in."""

    def __init__(self, owners: _Row, properties: _Row) -> None:
        self._owners = owners
        self._properties = properties

    def get(self, key: bytes) -> Session | None:
        owner = self._owners.data.get(key)
        return None if owner is None else self._joined(key, owner)

    def records(self) -> list[tuple[bytes, Any]]:
        return [(key, self._joined(key, owner)) for key, owner in self._owners.records()]

    def __len__(self) -> int:
        return len(self._owners)

    def _joined(self, key: bytes, owner: Any) -> Session:
        tenant, client_id = SESSION.fields_of(key, 2)
        return Session(
            tenant,
            client_id,
            owner.connected,
            owner.broker,
            owner.broker_epoch,
            owner.disconnected_ms,
            self._properties.data.get(key) or SessionProperties(),
            owner.expires_ms,
            owner.will_ms,
        )


class ImageTable(Mapping[Key, Record], Generic[Key, Record]):
    """The records of one table as the image has them: key -> record, to read only. It changes while the event loop
    runs; to iterate over it shows the records that there were at the beginning of the iteration."""

    def __init__(self, name: str, row: int, shown: _Shown) -> None:
        self._name = name
        self._shape = shape_of(row)
        self._table = ROWS[row]
        self._type = self._table.shows[row].key
        self._shown = shown

    def __repr__(self) -> str:
        return f"<ImageTable {self._name} records={len(self)}>"

    def __getitem__(self, key: Key) -> Record:
        record: Record | None = self._shown.get(self._encoded(key))
        if record is None:
            raise KeyError(key)
        return record

    def __contains__(self, key: object) -> bool:
        return self._shown.get(self._encoded(key)) is not None

    def __iter__(self) -> Iterator[Key]:
        for key, _ in self._shown.records():
            yield self._shape.key(key)

    def __len__(self) -> int:
        return len(self._shown)

    def items(self) -> ItemsView[Key, Record]:
        """Keys and records."""
        return _Items(self)

    def values(self) -> ValuesView[Record]:
        """The records."""
        return _Values(self)

    def _encoded(self, key: Any) -> bytes:
        if self._type is None and key is None:
            return b""
        if self._type is None or type(key) is not self._type:
            wanted = "None" if self._type is None else self._type.__name__
            raise TypeError(f"a key of {self._name} is {wanted}, not {key!r}")
        return self._table.key_of([getattr(key, field) for field in key.__struct_fields__])

    def pairs(self) -> Iterator[tuple[Key, Record]]:
        """:meth:`items`, quickly."""
        for key, record in self._shown.records():
            yield self._shape.key(key), record

    def all(self) -> Iterator[Record]:
        """:meth:`values`, quickly."""
        for _, record in self._shown.records():
            yield record


class _Items(ItemsView[Any, Any]):
    _mapping: ImageTable[Any, Any]

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self._mapping.pairs()


class _Values(ValuesView[Any]):
    _mapping: ImageTable[Any, Any]

    def __iter__(self) -> Iterator[Any]:
        return self._mapping.all()


class Picture:
    """What an image holds, and what fills it. The program holds the :class:`Image`, which may be dropped."""

    def __init__(self, streams: Streams, rows: Iterable[int], brokers: frozenset[str] = frozenset()) -> None:
        self.streams = streams
        self._brokers = brokers
        self.rows = {row: _Row(row) for row in rows}
        self.listeners: list[OnChange] = []
        self._loop = asyncio.get_running_loop()
        self._waiting: list[asyncio.Future[None]] = []
        self._begun: dict[str, int] = {}
        """Per kind of groups the slots of which there may be records."""
        self._seen: dict[str, dict[int, set[bytes]]] = {}  # per group, what the snapshot under way has brought
        streams.listen(self._read)

    async def whole(self) -> None:
        """Wait until every slot is read."""
        while not self._is_whole():
            if self.streams.error is not None:
                raise self.streams.raised(self.streams.error)
            self.streams.check_open()
            waiting = self._loop.create_future()
            self._waiting.append(waiting)
            try:
                await waiting
            finally:
                if waiting in self._waiting:
                    self._waiting.remove(waiting)

    def _is_whole(self) -> bool:
        return self.streams.is_settled

    def _read(self) -> None:
        """Take what has come."""
        until = self._loop.time() + TURN_S
        streams = self.streams
        while streams.error is None and not streams.ended:
            try:
                batch = streams.next_batch()
            except MetadError:
                break  # whole() raises it
            if batch is None:
                break
            self._apply(batch)
            if self._loop.time() >= until:
                streams.again()
                break
        if streams.ended or self._is_whole():
            for waiting in self._waiting:
                if not waiting.done():
                    waiting.set_result(None)

    def _apply(self, batch: WatchBatch) -> None:
        if batch.kind == "snapshot":
            self._apply_snapshot(batch)
        elif batch.kind == "changes":
            self._apply_changes(batch)

    def _apply_changes(self, batch: WatchBatch) -> None:
        for _, changes in batch.entries:
            for change in changes:
                row = self.rows[change.row]
                record = None if change.value is None else row.shape.record(change.value)
                if record is None or (self._brokers and self._is_foreign(row, record)):
                    row.data.pop(change.key, None)
                else:
                    row.data[change.key] = record
        if self.listeners:
            self._tell(batch.events)

    def _is_foreign(self, row: _Row, record: Any) -> bool:
        """Whether a session has gone to a broker that is not asked for: nothing more will be heard of it."""
        return row.row == SESSION.rows["owner"] and record.broker not in self._brokers

    def _apply_snapshot(self, batch: WatchBatch) -> None:
        if batch.first:
            # Where nothing was, nothing is to be dropped in the end.
            self._seen.pop(batch.group, None)
            kind = _kind(batch)
            begun = self._begun.get(kind, 0)
            if batch.slot_bits & begun:
                self._seen[batch.group] = {}
            self._begun[kind] = begun | batch.slot_bits
        seen = self._seen.get(batch.group)
        for column in batch.rows:
            row = self.rows[column.row]
            values: Any = column.values
            records = row.shape.records(array_of(values))
            if seen is not None:
                seen.setdefault(column.row, set()).update(column.keys)
            news = self._news(batch, row, column.keys, records) if self.listeners else []
            row.data.update(zip(column.keys, records, strict=True))
            self._tell(news)
        if batch.last and seen is not None:
            del self._seen[batch.group]
            self._drop(batch, seen)

    def _drop(self, batch: WatchBatch, seen: dict[int, set[bytes]]) -> None:
        """What the snapshot of these slots has not brought is there no longer."""
        slots, kind = batch.slot_bits, _kind(batch)
        for row in self.rows.values():
            if ROWS[row.row].kind != kind:
                continue  # each kind of groups has slots of its own
            kept = seen.get(row.row, set())
            gone = [key for key in row.data if key not in kept and is_among(slots, row.row, key)]
            for key in gone:
                del row.data[key]
            if gone and self.listeners:
                self._tell([_event(batch, row.shape, key, None, ChangeKind.DELETED) for key in gone])

    def _news(self, batch: WatchBatch, row: _Row, keys: Sequence[bytes], records: Sequence[Any]) -> list[WatchEvent]:
        """What a snapshot changes."""
        news: list[WatchEvent] = []
        for key, record in zip(keys, records, strict=True):
            known = row.data.get(key)
            if known is None or encode(known) != encode(record):
                kind = ChangeKind.CREATED if known is None else ChangeKind.CHANGED
                news.append(_event(batch, row.shape, key, record, kind))
        return news

    def _tell(self, events: Sequence[WatchEvent]) -> None:
        for event in events:
            for listener in list(self.listeners):
                try:
                    listener(event)
                except Exception:  # noqa: BLE001 - the program's own
                    log.exception("a listener of an image has failed")


def _kind(batch: WatchBatch) -> str:
    """Of the group that a batch is of."""
    return batch.group.rpartition("-")[0]


def _event(batch: WatchBatch, shape: Shape, key: bytes, record: Any, kind: ChangeKind) -> WatchEvent:
    number = getattr(record, "mod_revision", 0) if shape.counted else 0
    return WatchEvent(
        shape.table,
        shape.row,
        kind,
        shape.key(key),
        record,
        None,
        False,
        Revision(batch.group, number),
        number,
        0,
    )


class Image:
    """Tables as they are, in this process: ``image["kv"][KvKey("config", "greeting")]``.

    It is filled from a snapshot, follows every change, and reconnects by itself. Freshness: after :meth:`caught_up` it
    has all that was acknowledged before it was opened, and follows what is written since by some milliseconds. While
    the service is away it shows what it had, and :attr:`age_ms` says how old that is. It ends if it is closed, or its
    client is; it can still be read then. An image that the program drops is closed.

    ``image["kv"]`` and ``image["session"]`` map keys (:class:`KvKey`, :class:`SessionKey`) to records (:class:`Kv`,
    :class:`Session`); ``image["offset"]`` has offsets and ``image["offset/generation"]`` the generations of consumer
    groups; ``image["broker"]`` maps :class:`BrokerKey` to :class:`Broker`, without its load;
    ``image["cluster"][None]`` is the cluster map; of a plain table it has :class:`TableRecord`. Sessions of
    which only one row is watched, as by ``broker``, are in ``image["session/owner"]`` (:class:`SessionOwner`) and
    ``image["session/properties"]``.
    """

    def __init__(self, picture: Picture, tables: Mapping[str, ImageTable[Any, Any]]) -> None:
        self._picture = picture
        self._tables = dict(tables)
        self._finalizer = weakref.finalize(self, abandon, asyncio.get_running_loop(), picture.streams)

    def __repr__(self) -> str:
        return f"<Image {' '.join(self._tables)}>"

    def __getitem__(self, table: str) -> ImageTable[Any, Any]:
        self._picture.streams.home.check_process()
        try:
            return self._tables[table]
        except KeyError:
            raise KeyError(f"the image has no table {table!r}; it has {', '.join(self._tables)}") from None

    async def caught_up(self, timeout_s: float | None = None) -> Self:
        """Wait until the image has everything that was acknowledged before it was opened, whoever wrote it; after a
        gap, until it is whole again. Slots that are on their way between two groups are waited for. Raises
        DeadlineExceededError after ``timeout_s``, the error that has ended the image, or ClosedError."""
        argument("timeout_s", timeout_s, float | None)
        self._picture.streams.home.check()
        try:
            async with asyncio.timeout(timeout_s):
                await self._picture.whole()
        except TimeoutError:
            raise DeadlineExceededError(
                f"the image is not complete after {timeout_s:.3g} s", outcome_known=True
            ) from None
        return self

    @property
    def token(self) -> str:
        """Where a watch of these tables goes on from what the image shows; empty until it has begun."""
        streams = self._picture.streams
        return to_text(streams.cluster_id, streams.where()) if streams.is_placed else ""

    @property
    def age_ms(self) -> float | None:
        """How old the picture may be at most: since when it may lack something that was acknowledged, by the servers'
        last words. It grows while the service is away or a slot is not read. None while it is not known: only before
        :meth:`caught_up`."""
        return self._picture.streams.age_ms()

    @property
    def error(self) -> MetadError | None:
        """Why the image follows no longer; None if it does, or was closed."""
        return self._picture.streams.error

    def on_change(self, listener: Callable[[WatchEvent], None]) -> Callable[[], None]:
        """Call ``listener`` with each event, once the image shows it, in the client's own thread: also with each record
        that a snapshot has changed. Returns what ends that."""
        listeners = self._picture.listeners
        listeners.append(listener)
        return partial(_forget, listeners, listener)

    async def close(self) -> None:
        """Follow no longer. Safe to call again."""
        self._picture.streams.home.check()
        self._picture.streams.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def _forget(listeners: list[OnChange], listener: OnChange) -> None:
    if listener in listeners:
        listeners.remove(listener)


def open_image(
    dispatcher: Dispatcher,
    tables: Wanted | Sequence[Wanted] = (),
    *,
    tenant: str | None = None,
    prefix: str = "",
    keys: Sequence[Message] | None = None,
    broker: str = "",
    progress_s: float = PROGRESS_S,
    buffer_bytes: int = BUFFER_BYTES,
) -> Image:
    """An image that begins to fill at once. Raises InvalidRequestError."""
    dispatcher.check()
    filters = filters_of(tables, tenant=tenant, prefix=prefix, keys=keys, broker=broker)
    check_buffer(buffer_bytes)
    streams = Streams(
        dispatcher,
        filters,
        start="snapshot",
        progress_ms=milliseconds("progress_s", progress_s),
        buffer_bytes=buffer_bytes,
    )
    shown = {row: name for each in filters.values() for one in each for name, row in _rows_of(one)}
    picture = Picture(streams, shown, _brokers(filters.get(SESSION.kind, ())))
    views: dict[str, ImageTable[Any, Any]] = {}
    owners, properties = SESSION.rows["owner"], SESSION.rows["properties"]
    are_whole = _are_whole(filters.get(SESSION.kind, ()))
    for row, name in shown.items():
        table = ROWS[row]
        if table is SESSION and are_whole:
            sessions = _Sessions(picture.rows[owners], picture.rows[properties])
            views[table.name] = ImageTable(table.name, owners, sessions)
        else:
            first = next(iter(table.shows)) == row
            label = table.name if first and table is not SESSION else f"{table.name}/{name}"
            views[label] = ImageTable(label, row, picture.rows[row])
    return Image(picture, views)


def _rows_of(one: WatchFilter) -> list[tuple[str, int]]:
    table = TABLES[one.table]
    shown = [(name, row) for name, row in table.rows.items() if row in table.shows]
    rows = one.rows or (["owner"] if one.broker else [])  # nothing else says whose a session is
    return [(name, row) for name, row in shown if not rows or name in rows]


def _are_whole(filters: Iterable[WatchFilter]) -> bool:
    """Whether each session that there is has both its rows."""
    return all(len(_rows_of(one)) == len(SESSION.shows) for one in filters if one.table == SESSION.name)


def _brokers(filters: Iterable[WatchFilter]) -> frozenset[str]:
    """Those whose sessions are wanted; none if all are."""
    of_sessions = [one.broker for one in filters if one.table == SESSION.name]
    return frozenset(of_sessions) if all(of_sessions) else frozenset()
