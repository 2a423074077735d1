"""``m.table(TABLE)``: the records of a plain table. The methods follow from its declaration."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Generic, TypeVar

from metad_wire.messages import (
    Message,
    Revision,
    TableDeleteItem,
    TablePutItem,
    TableRecord,
)
from metad_wire.methods import Method
from metad_wire.table import PlainTable

from ..requests.listing import Listing
from ..requests.requests import Requests, Verb
from ..requests.wrong import sequence_of
from ..results import PutResult, ReadResult, WriteResult
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

    def __init__(self, requests: Requests, table: PlainTable[Record]) -> None:
        """Raises ValueError if the table has rules of its own."""
        if table.plain is None:
            raise ValueError(f"{table.name} is no plain table: its verbs are in a namespace of its own")
        super().__init__(requests)
        self._table = table
        self._plain = table.plain
        self._put: Verb[TablePutItem[Record], int] = Verb(table.plain.put)
        self._get: Verb[Message, TableRecord[Record] | None] = Verb(table.plain.get)
        self._delete: Verb[TableDeleteItem[Message], None] = Verb(table.plain.delete)
        self._list: Listing[TableRecord[Record]] = Listing(table.plain.list)

    async def put_many(self, items: Sequence[TablePutItem[Record]], *, deadline_s: float | None = None) -> PutResult:
        """Write records. The result has their new ``versions``. Item errors: ConflictError."""
        return PutResult(await self._put.many(self._requests, items, deadline_s))

    async def get_many(
        self,
        keys: Sequence[Sequence[str | int]],
        *,
        min_revisions: Sequence[Revision] = (),
        deadline_s: float | None = None,
    ) -> ReadResult[TableRecord[Record] | None]:
        """Read records, by position of their keys; None for a key without a record."""
        return await self._get.read(self._requests, self._keys(self._plain.get, keys), deadline_s, min_revisions)

    async def delete_many(self, keys: Sequence[Sequence[str | int]], *, deadline_s: float | None = None) -> WriteResult:
        """Delete records. Item errors: NotFoundError."""
        items = [TableDeleteItem(key) for key in self._keys(self._plain.delete, keys)]
        return WriteResult(await self._delete.many(self._requests, items, deadline_s))

    def list(
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
        table, listing = self._table, self._list
        spread = len(fields) < len(table.routing)
        pages = listing.of_all_groups if spread else listing.of_group
        return pages(self._requests, page_size, deadline_s, min_revisions, fields=[*fields], prefix=prefix)

    async def put(self, record: Record, *, expected_version: int | None = None, deadline_s: float | None = None) -> int:
        """Write one record and return its new version. With ``expected_version`` it is a compare-and-set; 0 expects
        that there is no record yet. Raises ConflictError."""
        return await self._put.one(self._requests, TablePutItem(record, expected_version), deadline_s)

    async def get(
        self, *key: str | int, min_revisions: Sequence[Revision] = (), deadline_s: float | None = None
    ) -> TableRecord[Record] | None:
        """Read one record; None if there is none."""
        return await self._get.one_read(self._requests, self._key(key), deadline_s, min_revisions)

    async def delete(
        self, *key: str | int, expected_version: int | None = None, deadline_s: float | None = None
    ) -> None:
        """Delete one record. Raises NotFoundError, ConflictError."""
        await self._delete.one(self._requests, TableDeleteItem(self._key(key), expected_version), deadline_s)

    def _keys(self, method: Method[Any, Any], keys: Sequence[Sequence[str | int]]) -> Sequence[Any]:
        return [self._key(key) for key in sequence_of(method, keys)]

    def _key(self, key: Sequence[str | int]) -> Any:
        """As a message, or as it is if it is none: then it is refused as an item."""
        if isinstance(key, list | tuple) and len(key) == len(self._table.key):
            return self._plain.key(*key)
        return key
