"""``m.tables``: the tables that programs declare. ``m.table(TABLE)``: the records of one."""

from __future__ import annotations

import types
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, Generic, TypeVar, overload

import msgspec

from metad_wire.declaration import Declaration, declaration_of, difference, fault_of, fields_of
from metad_wire.families import FAMILIES
from metad_wire.messages import (
    TRANSACTIONS_MAX,
    Message,
    Revision,
    TableCompare,
    TableDeleteItem,
    TableKey,
    TableOperation,
    TablePutItem,
    TableRecord,
    TableTransaction,
    TableTransactionResult,
)
from metad_wire.methods import Method
from metad_wire.tables import declaration as d
from metad_wire.tables.declaration import Declare, DeclaredTable
from metad_wire.tables.table import TRANSACTS, PlainTable

from ..errors import (
    ConflictError,
    InvalidItemError,
    InvalidRequestError,
    MetadError,
    NotFoundError,
    error_of_item,
)
from ..requests.batcher import named
from ..requests.listing import Counting, Listing
from ..requests.requests import Requests, Verb
from ..requests.transacting import items_max_of, transacted
from ..requests.wrong import UNFIT, Misfit, argument, sequence_of
from ..results import PutResult, ReadResult, TablesTransactResult, TransactionResult, WriteResult
from . import Facade
from .declared import _DeclarationDeclared

Record = TypeVar("Record", bound=Message)
_record_of = attrgetter("record")


@lru_cache(256)
def _verbs(table: PlainTable[Any]) -> tuple[Any, Any, Any, Any, Counting, Any]:
    """Put, get, delete, list, count, and list by each index: programs name a table wherever they use it."""
    plain = table.plain
    by_index = {
        name: Listing(
            plain.list,
            [f"record.{field}" for field in index.names[index.of_elements :]],
            alike=int(index.of_elements),
        )
        for name, index in table.indexes.items()
    }
    return Verb(plain.put), Verb(plain.get), Verb(plain.delete), Listing(plain.list), Counting(plain.counts), by_index


class Records(Facade, Generic[Record]):
    """Records of a declared table by the fields of its key.

    A ``*_many`` method reports errors per item in its result, and raises a MetadError only if the whole call failed. An
    item that is wrong by itself (a key or value is too long, a field of a wrong type) is an InvalidItemError.
    The other methods raise the error of their item; those called at the same time share a request. ``deadline_s``
    counts from now, and None means the client's default. A read sees every write that was answered before the read
    began. With ``min_revisions``, from the results of other writes, it also waits until its groups have reached them.
    With ``freshness_ms`` the nearest replica answers that can prove that it has all that was acknowledged so long
    before, or else the leader.
    A key that ``get_many`` could not read has the value of an absent record: ``raise_for_error`` tells them apart.
    """

    def __init__(self, requests: Requests, table: PlainTable[Record]) -> None:
        """Raises InvalidRequestError if the table has rules of its own."""
        if not isinstance(table, PlainTable):
            raise InvalidRequestError(
                f"table: {table!r} is none that was declared: m.tables.declare and m.tables.open return one"
            )
        super().__init__(requests)
        self._table = table
        self._known = len(table.record.__struct_fields__)
        self._plain = table.plain
        self._put: Verb[TablePutItem[Record], int]
        self._get: Verb[Message, TableRecord[Record] | None]
        self._delete: Verb[TableDeleteItem[Message], None]
        self._list: Listing[TableRecord[Record]]
        self._lists: dict[str, Listing[TableRecord[Record]]]
        self._put, self._get, self._delete, self._list, self._count, self._lists = _verbs(table)

    async def put_many(
        self, items: Sequence[TablePutItem[Record] | Record], *, deadline_s: float | None = None
    ) -> PutResult:
        """Write records, or items that say which version they expect. The result has their new ``versions``. Item
        errors: ConflictError."""
        given = sequence_of(self._plain.put, items)
        if {*map(type, given)} != {TablePutItem} or {*map(type, map(_record_of, given))} != {self._table.record}:
            given = [self._item(item) for item in given]
        return PutResult(
            await self._put.many(self._requests, given, deadline_s, table=self._table.number, known=self._known)
        )

    async def get_many(
        self,
        keys: Sequence[Sequence[str | int]],
        *,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> ReadResult[TableRecord[Record] | None]:
        """Read records, by position of their keys; None for a key without a record."""
        items, number = self._keys(self._plain.get, keys), self._table.number
        return await self._get.read(self._requests, items, deadline_s, min_revisions, freshness_ms, table=number)

    async def delete_many(self, keys: Sequence[Sequence[str | int]], *, deadline_s: float | None = None) -> WriteResult:
        """Delete records. Item errors: NotFoundError."""
        items = [TableDeleteItem(key) for key in self._keys(self._plain.delete, keys)]
        return WriteResult(await self._delete.many(self._requests, items, deadline_s, table=self._table.number))

    def list(
        self,
        *fields: str | int,
        prefix: str = "",
        page_size: int = 1000,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> AsyncIterator[TableRecord[Record]]:
        """List the records whose key begins with these fields and whose next field starts with ``prefix``, in order of
        the key, a page at a time. The deadline is that of each page. A record that stays comes once, wherever its slot
        moves."""
        return self._pages(self._list, fields, prefix, 0, page_size, min_revisions, freshness_ms, deadline_s)

    def list_by(
        self,
        index: str,
        *fields: str | int | bool,
        prefix: str = "",
        page_size: int = 1000,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> AsyncIterator[TableRecord[Record]]:
        """List the records in the order of an index: those that have these values in its first fields, and whose next
        field starts with ``prefix``. Behind the fields of the index come those of the key. Where its first field is a
        list, give an element: those that have it are listed. Otherwise as :meth:`list`;
        a record whose indexed fields change meanwhile may come twice, or not at all. Raises InvalidRequestError if
        there is no such index, and IndexBuildingError if it was added to the table and, when the deadline comes, is
        not built yet."""
        number = self._index(index)
        listing = self._lists[index]
        return self._pages(listing, fields, prefix, number, page_size, min_revisions, freshness_ms, deadline_s)

    def _index(self, name: str) -> int:
        """Its number. Raises InvalidRequestError if there is none of this name."""
        if not isinstance(name, str) or name not in self._lists:
            known = ", ".join(self._lists) or "none"
            raise InvalidRequestError(f"{self._table.name} has no index {name!r}; its indexes: {known}")
        return self._table.indexes[name].number

    def _pages(
        self,
        listing: Listing[TableRecord[Record]],
        fields: Sequence[str | int | bool],
        prefix: str,
        index: int,
        page_size: int,
        min_revisions: Sequence[Revision],
        freshness_ms: int,
        deadline_s: float | None,
    ) -> AsyncIterator[TableRecord[Record]]:
        asked = {"table": self._table.number, "fields": [*fields], "prefix": prefix, "index": index}
        pages = listing.of_group if self._table.routed_by(fields, index) else listing.of_all_groups
        return pages(self._requests, page_size, deadline_s, min_revisions, freshness_ms, **asked)

    async def count(
        self,
        *fields: str | int | bool,
        prefix: str = "",
        index: str = "",
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
        on_progress: Callable[[int], object] | None = None,
    ) -> int:
        """How many records :meth:`list` would list; with an ``index``, :meth:`list_by`. The servers count them, some
        thousand in an answer; the deadline is that of each answer. A record that stays counts once, wherever its slot
        moves; one that is written or deleted meanwhile may count or not. ``on_progress`` is called with the number so
        far, in the client's loop."""
        total, number = 0, self._index(index) if index != "" else 0
        one = self._table.routed_by(fields, number)
        asked = {"table": self._table.number, "fields": [*fields], "prefix": prefix, "index": number}
        how = deadline_s, min_revisions, freshness_ms
        totals = self._count.totals(self._requests, *how, one_group=one, **asked)
        async with aclosing(totals):
            async for total in totals:
                if on_progress is not None:
                    on_progress(total)
        return total

    async def delete_prefix(
        self,
        *fields: str | int | bool,
        prefix: str = "",
        index: str = "",
        page_size: int = 1000,
        min_revisions: Sequence[Revision] = (),
        deadline_s: float | None = None,
        on_progress: Callable[[int], object] | None = None,
    ) -> int:
        """Delete the records that :meth:`list` would list, or with an ``index`` :meth:`list_by`, a page at a time, and
        return how many this call deleted.

        It is not atomic: others see some of them gone and some not. A record is deleted as it was listed, or not at
        all: one that is written meanwhile stays, also if it was deleted and written anew. After an error, call it again
        for what is left. The deadline is that of each page. ``on_progress`` is called with the number so far, in the
        client's loop. Without fields and prefix it deletes all records of the table."""
        deleted, page = 0, list[TableRecord[Record]]()
        number = self._index(index) if index != "" else 0
        listing = self._lists[index] if number else self._list
        listed = self._pages(listing, fields, prefix, number, page_size, min_revisions, 0, deadline_s)

        async def delete() -> None:
            nonlocal deleted
            deleted += await self._delete_listed(page, deadline_s)
            page.clear()
            if on_progress is not None:
                on_progress(deleted)

        async with aclosing(listed):  # type: ignore[type-var]
            async for found in listed:
                page.append(found)
                if len(page) == page_size:
                    await delete()
        await delete()
        return deleted

    async def _delete_listed(self, page: Sequence[TableRecord[Record]], deadline_s: float | None) -> int:
        """Delete these as they were listed. Returns how many; others are gone, or are not what they were."""
        key_of = attrgetter(*(f"record.{field}" for field in self._table.key))
        single = len(self._table.key) == 1
        items = [
            TableDeleteItem(
                self._plain.key(key_of(found)) if single else self._plain.key(*key_of(found)),
                found.version,
                found.create_revision,
            )
            for found in page
        ]
        if not items:
            return 0
        result = WriteResult(await self._delete.many(self._requests, items, deadline_s, table=self._table.number))
        for error in result.errors.values():
            if not isinstance(error, NotFoundError | ConflictError):
                raise error
        return len(items) - len(result.errors)

    async def put(self, record: Record, *, expected_version: int | None = None, deadline_s: float | None = None) -> int:
        """Write one record and return its new version. With ``expected_version`` it is a compare-and-set; 0 expects
        that there is no record yet. Raises ConflictError."""
        item, number = self._item(TablePutItem(record, expected_version)), self._table.number
        return await self._put.one(self._requests, item, deadline_s, table=number, known=self._known)

    async def get(
        self,
        *key: str | int,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> TableRecord[Record] | None:
        """Read one record; None if there is none."""
        return await self._get.one_read(
            self._requests, self._key(key), deadline_s, min_revisions, freshness_ms, table=self._table.number
        )

    async def delete(
        self, *key: str | int, expected_version: int | None = None, deadline_s: float | None = None
    ) -> None:
        """Delete one record. Raises NotFoundError, ConflictError."""
        item = TableDeleteItem(self._key(key), expected_version)
        await self._delete.one(self._requests, item, deadline_s, table=self._table.number)

    def _item(self, given: Any) -> Any:
        """Of a record, or of an item with one; anything else as it is, which is refused as an item."""
        item = (
            TablePutItem(given) if isinstance(given, msgspec.Struct) and not isinstance(given, TablePutItem) else given
        )
        record = getattr(item, "record", None)
        if isinstance(record, msgspec.Struct) and not isinstance(record, self._table.record):
            wrong: Any = Misfit(f"record: expected {self._table.record.__name__}, got {type(record).__name__}")
            return TablePutItem(wrong)
        return item

    def _keys(self, method: Method[Any, Any], keys: Sequence[Sequence[str | int]]) -> Sequence[Any]:
        return [self._key(key) for key in sequence_of(method, keys)]

    def _key(self, key: Sequence[str | int]) -> Any:
        """As a message, or as what is refused as an item."""
        if isinstance(key, list | tuple) and len(key) == len(self._table.key):
            return self._plain.key(*key)
        got = f"{len(key)}" if isinstance(key, list | tuple) else type(key).__name__
        names = self._table.key
        return Misfit(f"the key of {self._table.name} is {', '.join(names)}: {len(names)} fields, not {got}")


class Compare(msgspec.Struct, frozen=True):
    """A condition of a transaction. All that it says must hold."""

    table: PlainTable[Any]
    key: Sequence[str | int]
    """The fields of the record's key."""
    version: int | None = None
    """Holds if the record has this version; 0: if there is none."""
    field: str = ""
    """Holds if this field of the record is ``value``, never if there is no record."""
    value: Any = None


class Put(msgspec.Struct, frozen=True):
    """Writes a record in a transaction."""

    table: PlainTable[Any]
    record: Message


class Delete(msgspec.Struct, frozen=True):
    """Deletes a record in a transaction, if there is one."""

    table: PlainTable[Any]
    key: Sequence[str | int]


class Transaction(msgspec.Struct, frozen=True, kw_only=True):
    """Does ``then`` if every compare holds, else ``otherwise``, at once; and reads records as they are after that. All
    that it names lives together: tables of one kind, with as many routing fields, and the same values in them."""

    compares: Sequence[Compare] = ()
    then: Sequence[Put | Delete] = ()
    otherwise: Sequence[Put | Delete] = ()
    reads: Sequence[tuple[PlainTable[Any], Sequence[str | int]]] = ()
    """Tables and keys."""


def _wire(transaction: Transaction) -> TableTransaction:
    """As it goes over the wire. Raises InvalidItemError, and whatever values of wrong types do."""
    named = [(one.table, one.key) for one in transaction.compares]
    then, otherwise = ([*map(_operation, steps)] for steps in (transaction.then, transaction.otherwise))
    for step in (*transaction.then, *transaction.otherwise):
        key = [getattr(step.record, field) for field in step.table.key] if isinstance(step, Put) else step.key
        named.append((step.table, key))
    named += transaction.reads
    if not named:
        raise InvalidItemError("a transaction that names no record")
    table, key = named[0]
    compares = [
        TableCompare(
            one.table.number,
            [*one.key],
            one.version,
            one.field,
            msgspec.msgpack.encode(one.value) if one.field else b"",
        )
        for one in transaction.compares
    ]
    reads = [TableKey(one.number, [*key]) for one, key in transaction.reads]
    return TableTransaction(table.kind, [*key[: len(table.routing)]], compares, then, otherwise, reads)


def _operation(one: Put | Delete) -> TableOperation:
    number = one.table.number
    if isinstance(one, Delete):
        return TableOperation(number, key=[*one.key])
    if not isinstance(one.record, one.table.record):
        wanted, got = one.table.record.__name__, type(one.record).__name__
        raise InvalidItemError(f"a record of {one.table.name} is a {wanted}, not a {got}")
    return TableOperation(number, msgspec.msgpack.encode(one.record), len(one.table.record.__struct_fields__))


class Tables(_DeclarationDeclared):
    """Declared tables by name. The leader of ``metadata-0`` answers. ``deadline_s`` counts from now, and None means the
    client's default."""

    @overload
    async def declare(
        self,
        table: str,
        record: type[Record],
        *,
        key: Sequence[str],
        routing: Sequence[str] | None = None,
        indexes: Mapping[str, Sequence[str]] = ...,
        expires: str = "",
        kind: str = "metadata",
        about: str = "",
        deadline_s: float | None = None,
    ) -> PlainTable[Record]: ...
    @overload
    async def declare(self, table: Declaration, *, deadline_s: float | None = None) -> PlainTable[Any]: ...
    async def declare(
        self,
        table: str | Declaration,
        record: type[Record] | None = None,
        *,
        key: Sequence[str] = (),
        routing: Sequence[str] | None = None,
        indexes: Mapping[str, Sequence[str]] = types.MappingProxyType({}),
        expires: str = "",
        kind: str = "metadata",
        about: str = "",
        deadline_s: float | None = None,
    ) -> PlainTable[Any]:
        """Declare a table, and return it for :meth:`Client.table`, :meth:`Client.watch` and :meth:`Client.image`::

            class Device(Record, frozen=True):
                tenant: str
                device: str
                slots: U32 = 1

            devices = await m.tables.declare("device", Device, key=("tenant", "device"))
            await m.table(devices).put(Device("acme", "press", 4))

        To declare it again changes nothing; with further fields at its end, which have defaults, it grows. ``key``: the
        fields that identify a record, in the order of listings; they are texts, or ``U32`` behind those that route.
        ``routing``: the first of them, by default all: records that agree in them live in one group. ``indexes``: other
        orders for :meth:`Records.list_by`, such as ``{"by_owner": ("tenant", "owner")}``. Further ones may be added at
        the end: the groups build them of the records that there are, and until then nobody lists by them.
        ``expires``: the ``U63`` field that says at which Unix time in milliseconds a record ends, 0: never; it is then
        read no more, and deleted. ``kind``: of the groups that keep it, ``metadata``, ``data`` or ``offset``.
        ``about``: a sentence for people.
        Raises InvalidRequestError if it cannot be a table, ConflictError if another table has the name,
        QuotaExceededError if there are too many.
        """
        if isinstance(table, Declaration):
            found = await self._declared(table, deadline_s)
            return found.table()
        if record is None:
            raise InvalidRequestError("record: it is missing; to use a table that is declared already, open it")
        try:
            declaration = declaration_of(
                table, record, kind=kind, key=key, routing=routing, indexes=indexes, expires=expires, about=about
            )
        except UNFIT as error:
            raise InvalidRequestError(str(error)) from None
        return (await self._declared(declaration, deadline_s)).table(record)

    async def open(
        self, name: str, record: type[Record] | None = None, *, deadline_s: float | None = None
    ) -> PlainTable[Any]:
        """A table that is declared already, or that metad has itself. Without ``record`` its records are of a Struct
        made of the declaration, ``table.record``. Raises NotFoundError, and ConflictError if ``record`` is another
        table's."""
        argument("name", name, str)
        if record is None and name in FAMILIES:
            return FAMILIES[name]
        found = await self.get(name, deadline_s=deadline_s)
        if found is None:
            raise NotFoundError(f"there is no table {name}: m.tables.declare makes one")
        if record is None:
            return found.table()
        known = found.declaration
        try:
            mine = msgspec.structs.replace(known, fields=fields_of(record))
        except UNFIT as error:
            raise InvalidRequestError(str(error)) from None
        if (why := difference(known, mine) or fault_of(mine)) is not None:
            raise ConflictError(f"{name}: {why}")
        return found.table(record)

    def list(
        self,
        prefix: str = "",
        *,
        page_size: int = 1000,
        min_revisions: Sequence[Revision] = (),
        deadline_s: float | None = None,
    ) -> AsyncIterator[DeclaredTable]:
        """Tables whose names start with ``prefix``, in order. It is read a page at a time; the deadline is that of each
        page."""
        return _LIST.of_group(self._requests, page_size, deadline_s, min_revisions, prefix=prefix)

    async def transact(self, transaction: Transaction, *, deadline_s: float | None = None) -> TransactionResult:
        """Run one transaction: on records of any declared tables that live together. So a resource is created with all
        its parts, or not at all. Raises InvalidItemError where a part does not fit its table or what routes the others,
        NotFoundError if a table was dropped."""
        item = _encoded(transaction)
        return _decoded(transaction, await _TRANSACT[item.kind].one(self._requests, item, deadline_s))

    async def transact_many(
        self, items: Sequence[Transaction], *, deadline_s: float | None = None
    ) -> TablesTransactResult:
        """Run transactions over tables of one kind. Each is atomic by itself; the batch is not. Raises InvalidItemError
        if one of them has a part of a wrong type: none is run then."""
        items = sequence_of(TRANSACTS["metadata"], items)
        encoded = [_encoded(one) for one in items]
        kinds = {one.kind for one in encoded} or {"metadata"}
        if len(kinds) > 1:
            raise InvalidRequestError(f"items: transactions of kinds {', '.join(sorted(kinds))}; make a batch of each")
        transact, items_max = _TRANSACT[kinds.pop()], items_max_of(encoded)
        pieces = await transact.many(self._requests, encoded, deadline_s, items_max=items_max)
        return TablesTransactResult(pieces, [partial(_decoded, one) for one in items])

    async def _declared(self, declaration: Declaration, deadline_s: float | None) -> DeclaredTable:
        argument("table", declaration, Declaration)
        reply = await self._requests.one(d.DECLARATION_DECLARE, Declare([declaration]), deadline_s)
        reply = named(d.DECLARATION_DECLARE, [declaration], reply)
        (found,) = reply.found
        if found is None or reply.errors:
            raise error_of_item(reply.errors[0])
        return found


def _encoded(transaction: Transaction) -> TableTransaction:
    if not isinstance(transaction, Transaction):
        raise InvalidItemError(f"expected Transaction, got {type(transaction).__name__}")
    try:
        return _wire(transaction)
    except MetadError:
        raise
    except UNFIT as error:
        raise InvalidItemError(f"a part of the transaction has a wrong type ({error})") from None


def _decoded(transaction: Transaction, result: TableTransactionResult) -> TransactionResult:
    found = [
        None if raw is None else msgspec.msgpack.decode(raw, type=TableRecord[table.record])  # type: ignore[name-defined]
        for raw, (table, _) in zip(result.found, transaction.reads, strict=True)
    ]
    return TransactionResult(result.succeeded, result.versions, found)


_TRANSACT: dict[str, Verb[TableTransaction, TableTransactionResult]] = {
    kind: Verb(method, transacted, items_max=TRANSACTIONS_MAX) for kind, method in TRANSACTS.items()
}
_LIST: Listing[DeclaredTable] = Listing(d.DECLARATION_LIST)
