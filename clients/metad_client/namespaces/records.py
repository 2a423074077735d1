"""``m.table(TABLE)``: the records of a plain table. The methods follow from its declaration."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Generic, TypeVar

from metad_wire.messages import (
    Message,
    Page,
    Revision,
    TableDeleteItem,
    TableGetReply,
    TableList,
    TableListReply,
    TablePutItem,
    TablePutReply,
    TableRecord,
)
from metad_wire.methods import Method, encode
from metad_wire.table import Table

from ..errors import MetadError
from ..requests.listing import of_all_groups, of_group
from ..requests.outcomes import with_errors, wrote
from ..requests.requests import Requests
from ..requests.wrong import sequence_of
from ..results import PutResult, ReadResult, WriteResult, newest
from . import Facade

Record = TypeVar("Record", bound=Message)


class Records(Facade, Generic[Record]):
    """Records of a plain table by the fields of its key.

    A ``*_many`` method reports errors per item in its result, and raises a MetadError only if the whole call failed. An
    item that is wrong by itself (a key or value is too long, a field of a wrong type) is an InvalidItemError.
    The other methods raise the error of their item; those called at the same time share a request. ``deadline_s``
    counts from now, and None means the client's default. A read sees every write that was answered before the read
    began. With ``min_revisions``, from the results of other writes, it also waits until its groups have reached them.
    A key that ``get_many`` could not read has the value of an absent record: ``raise_for_error`` tells them apart.
    """

    def __init__(self, requests: Requests, table: Table[Record]) -> None:
        """Raises ValueError if the table has rules of its own."""
        if table.plain is None:
            raise ValueError(f"{table.name} is no plain table: its verbs are in a namespace of its own")
        super().__init__(requests)
        self._table = table
        self._plain = table.plain

    async def put_many(self, items: Sequence[TablePutItem[Record]], *, deadline_s: float | None = None) -> PutResult:
        """Write records. The result has their new ``versions``. Item errors: ConflictError."""
        put = self._plain.put
        return PutResult(await self._requests.many(put, items, put.body, deadline_s))

    async def get_many(
        self,
        keys: Sequence[Sequence[str | int]],
        *,
        min_revisions: Sequence[Revision] = (),
        deadline_s: float | None = None,
    ) -> ReadResult[TableRecord[Record] | None]:
        """Read records, by position of their keys; None for a key without a record."""
        get, wanted = self._plain.get, newest(min_revisions)
        items = self._keys(get, keys)
        pieces = await self._requests.many(get, items, lambda part: get.body(part, wanted), deadline_s)
        return ReadResult(pieces, _records_of, None)

    async def delete_many(self, keys: Sequence[Sequence[str | int]], *, deadline_s: float | None = None) -> WriteResult:
        """Delete records. Item errors: NotFoundError."""
        delete = self._plain.delete
        items = [TableDeleteItem(key) for key in self._keys(delete, keys)]
        return WriteResult(await self._requests.many(delete, items, delete.body, deadline_s))

    async def list(
        self,
        *fields: str | int,
        prefix: str = "",
        page_size: int = 1000,
        min_revisions: Sequence[Revision] = (),
        deadline_s: float | None = None,
    ) -> AsyncIterator[TableRecord[Record]]:
        """List the records whose key begins with these fields and whose next field starts with ``prefix``, in order of
        the key, a page at a time. The deadline is that of each page. A record that stays comes once, wherever its slot
        moves."""
        method, wanted, table = self._plain.list, newest(min_revisions), self._table

        def of_one(page: Page) -> TableList:
            return TableList([*fields], prefix, page, wanted)

        def of_several(slots: bytes, after: Sequence[str | int] | None, page: Page) -> TableList:
            return TableList([*fields], prefix, page, wanted, slots, [*(after or ())])

        def key_of(found: TableRecord[Record]) -> Sequence[str | int]:
            return [getattr(found.record, field) for field in table.key]

        if len(fields) >= len(table.routing):
            listing = of_group(self._requests, method, of_one, _listed, page_size, deadline_s)
        else:
            listing = of_all_groups(self._requests, method, of_several, _listed, key_of, page_size, deadline_s)
        async with aclosing(listing):
            async for record in listing:
                yield record

    async def put(self, record: Record, *, expected_version: int | None = None, deadline_s: float | None = None) -> int:
        """Write one record and return its new version. With ``expected_version`` it is a compare-and-set; 0 expects
        that there is no record yet. Raises ConflictError."""
        put, item = self._plain.put, TablePutItem(record, expected_version)
        version: int = await self._requests.single(put, None, item, _size, put.body, _put, deadline_s)
        return version

    async def get(
        self, *key: str | int, min_revisions: Sequence[Revision] = (), deadline_s: float | None = None
    ) -> TableRecord[Record] | None:
        """Read one record; None if there is none."""
        get, wanted, item = self._plain.get, newest(min_revisions), self._key(key)
        found: TableRecord[Record] | None = await self._requests.single(
            get, tuple(wanted), item, _size, lambda items: get.body(items, wanted), _got, deadline_s
        )
        return found

    async def delete(
        self, *key: str | int, expected_version: int | None = None, deadline_s: float | None = None
    ) -> None:
        """Delete one record. Raises NotFoundError, ConflictError."""
        delete, item = self._plain.delete, TableDeleteItem(self._key(key), expected_version)
        await self._requests.single(delete, None, item, _size, delete.body, wrote, deadline_s)

    def _keys(self, method: Method[Any, Any], keys: Sequence[Sequence[str | int]]) -> Sequence[Any]:
        return [self._key(key) for key in sequence_of(method, keys)]

    def _key(self, key: Sequence[str | int]) -> Any:
        """As a message, or as it is if it is none: then it is refused as an item."""
        if isinstance(key, list | tuple) and len(key) == len(self._table.key):
            return self._plain.key(*key)
        return key


def _size(item: Message) -> int:
    return len(encode(item))


def _records_of(reply: TableGetReply[Record]) -> list[TableRecord[Record] | None]:
    return reply.records


def _listed(reply: TableListReply[Record]) -> list[TableRecord[Record]]:
    return reply.records


def _put(items: list[Any], reply: TablePutReply) -> list[int | MetadError]:
    return with_errors(reply.versions, reply.errors)


def _got(items: list[Any], reply: TableGetReply[Record]) -> list[TableRecord[Record] | MetadError | None]:
    return with_errors(reply.records, reply.errors)
