"""A local picture of tables that follows their changes: a watch that begins with a snapshot, and dictionaries."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self

from metad_wire.key import u32
from metad_wire.messages import Message, Revision, Session, SessionProperties
from metad_wire.methods import encode
from metad_wire.table import TABLES, Table
from metad_wire.tables.session import SESSION
from metad_wire.watch import ChangeKind, WatchFilter

from ..dispatch.dispatcher import Dispatcher
from ..dispatch.reports import log
from ..errors import DeadlineExceededError, MetadError
from ..requests.wrong import argument
from .event import Place, Several, Shape, Shapes, Wanted, WatchEvent
from .events import WatchBatch, array_of
from .filters import AnyWanted, filters_of
from .image_table import ImageTable
from .position import is_among
from .streams import Streams
from .token import to_text
from .typed import ImageTables
from .watch import BUFFER_BYTES, abandon, check_buffer, milliseconds

PROGRESS_S: Final = 1.0
"""How often the servers say how current the picture is."""
TURN_S: Final = 0.02
"""After so long the event loop has its turn."""

OnChange = Callable[[Any], None]


class _Row:
    """The records of one row, by their encoded keys."""

    def __init__(self, table: Table[Any], row: int, shape: Shape) -> None:
        self.table = table
        self.row = row
        self.shape = shape
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


class Picture:
    """What an image holds, and what fills it. The program holds the :class:`Image`, which may be dropped."""

    def __init__(
        self, streams: Streams, rows: Mapping[Place, _Row], brokers: Mapping[str, frozenset[str]] = MappingProxyType({})
    ) -> None:
        """``brokers``: by the name of a table, whose records are wanted, if not all are."""
        self.streams = streams
        self._brokers = brokers
        self.rows = rows
        self.listeners: list[OnChange] = []
        self._loop = asyncio.get_running_loop()
        self._waiting: list[asyncio.Future[None]] = []
        self._begun: dict[str, int] = {}
        """Per kind of groups the slots of which there may be records."""
        self._seen: dict[str, dict[Place, set[bytes]]] = {}  # per group, what the snapshot under way has brought
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
        place = self.streams.shapes.place
        for _, changes in batch.entries:
            for change in changes:
                row = self.rows[place(change.row, change.key)]
                record = None if change.value is None else row.shape.record(change.value)
                if record is None or (row.table.name in self._brokers and self._is_foreign(row, record)):
                    row.data.pop(change.key, None)
                else:
                    row.data[change.key] = record
        if self.listeners:
            self._tell(batch.events)

    def _is_foreign(self, row: _Row, record: Any) -> bool:
        """Whether a record has gone to brokers that are not asked for: nothing more will be heard of it."""
        brokers = self._brokers[row.table.name]
        if row.table.hears:
            return brokers.isdisjoint(getattr(record.record, row.table.hears))
        return row.row == SESSION.rows["owner"] and record.broker not in brokers

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
            if not column.keys:
                continue
            place = self.streams.shapes.place(column.row, column.keys[0])
            row = self.rows[place]
            values: Any = column.values
            records = row.shape.records(array_of(values))
            if seen is not None:
                seen.setdefault(place, set()).update(column.keys)
            news = self._news(batch, row, column.keys, records) if self.listeners else []
            row.data.update(zip(column.keys, records, strict=True))
            self._tell(news)
        if batch.last and seen is not None:
            del self._seen[batch.group]
            self._drop(batch, seen)

    def _drop(self, batch: WatchBatch, seen: dict[Place, set[bytes]]) -> None:
        """What the snapshot of these slots has not brought is there no longer."""
        slots, kind = batch.slot_bits, _kind(batch)
        for place, row in self.rows.items():
            if row.table.kind != kind:
                continue  # each kind of groups has slots of its own
            kept = seen.get(place, set())
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


class Image(ImageTables[Wanted]):
    """Tables as they are, in this process: ``image["kv"][KvKey("config", "greeting")]``.

    It is filled from a snapshot, follows every change, and reconnects by itself. Freshness: after :meth:`caught_up` it
    has all that was acknowledged before it was opened, and follows what is written since by some milliseconds. While
    the service is away it shows what it had, and :attr:`age_ms` says how old that is. It ends if it is closed, or its
    client is; it can still be read then. An image that the program drops is closed.

    ``image["kv"]`` and ``image["session"]`` map keys (:class:`KvKey`, :class:`SessionKey`) to records (:class:`Kv`,
    :class:`Session`); ``image["offset"]`` has offsets and ``image["offset/generation"]`` the generations of consumer
    groups; ``image["broker"]`` maps :class:`BrokerKey` to :class:`Broker`, without its load;
    ``image["cluster"][None]`` is the cluster map; ``image[READING]``, of a plain table, has :class:`TableRecord`.
    Sessions of which only one row is watched, as by ``broker``, are in ``image["session/owner"]``
    (:class:`SessionOwner`) and ``image["session/properties"]``.
    """

    def __init__(self, picture: Picture, tables: Mapping[str, ImageTable[Any, Any]]) -> None:
        self._picture = picture
        self._tables = dict(tables)
        self._finalizer = weakref.finalize(self, abandon, asyncio.get_running_loop(), picture.streams)

    def __repr__(self) -> str:
        return f"<Image {' '.join(self._tables)}>"

    def _table(self, name: str) -> ImageTable[Any, Any]:
        self._picture.streams.home.check_process()
        try:
            return self._tables[name]
        except KeyError:
            raise KeyError(f"the image has no table {name!r}; it has {', '.join(self._tables)}") from None

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
        return to_text(streams.cluster_id, streams.where(), streams.shapes.declared) if streams.is_placed else ""

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

    def _listen(self, listener: OnChange) -> Callable[[], None]:
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
    tables: AnyWanted | Several[AnyWanted] = (),
    *,
    tenant: str | None = None,
    prefix: str = "",
    keys: Sequence[Message | tuple[str | int, ...]] | None = None,
    broker: str = "",
    progress_s: float = PROGRESS_S,
    buffer_bytes: int = BUFFER_BYTES,
) -> Image[Any]:
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
    rows = {
        place: _Row(table, row, filters.shapes.at(place))
        for each in filters.values()
        for one in each
        for place, table, row in _rows_of(one, filters.shapes)
    }
    picture = Picture(streams, rows, _brokers([one for each in filters.values() for one in each]))
    views: dict[str, ImageTable[Any, Any]] = {}
    owners, properties = SESSION.rows["owner"], SESSION.rows["properties"]
    are_whole = _are_whole(filters.get(SESSION.kind, ()), filters.shapes)
    for row in rows.values():
        if row.table is SESSION and are_whole:
            sessions = _Sessions(rows[owners], rows[properties])
            views[SESSION.name] = ImageTable(SESSION.name, SESSION, owners, rows[owners].shape, sessions)
        else:
            label = label_of(row.table, row.row)
            views[label] = ImageTable(label, row.table, row.row, row.shape, row)
    return Image(picture, views)


def label_of(table: Table[Any], row: int) -> str:
    """What an image calls the records of one row."""
    first = next(iter(table.shows)) == row
    if first and table is not SESSION:
        return table.name
    return f"{table.name}/{next(name for name, byte in table.rows.items() if byte == row)}"


def _rows_of(one: WatchFilter, shapes: Shapes) -> list[tuple[Place, Table[Any], int]]:
    if one.number:
        place = u32(one.number)
        table: Table[Any] = shapes.tables[place]
        return [(place, table, row) for row in table.shows]
    table = TABLES[one.table]
    shown = [(name, row) for name, row in table.rows.items() if row in table.shows]
    rows = one.rows or (["owner"] if one.broker and table is SESSION else [])  # nothing else says whose a session is
    return [(row, table, row) for name, row in shown if not rows or name in rows]


def _are_whole(filters: Iterable[WatchFilter], shapes: Shapes) -> bool:
    """Whether each session that there is has both its rows."""
    return all(len(_rows_of(one, shapes)) == len(SESSION.shows) for one in filters if one.table == SESSION.name)


def _brokers(filters: Iterable[WatchFilter]) -> dict[str, frozenset[str]]:
    """By the name of a table, the brokers whose records are wanted, if not all are."""
    found: dict[str, set[str]] = {}
    for one in filters:
        found.setdefault(one.table, set()).add(one.broker)
    return {table: frozenset(brokers) for table, brokers in found.items() if "" not in brokers}
