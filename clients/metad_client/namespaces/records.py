"""``m.table(TABLE)``: the records of a plain table, by its declaration alone."""

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
from metad_wire.methods import encode
from metad_wire.table import Table

from ..errors import MetadError
from ..requests.listing import of_all_groups, of_group
from ..requests.outcomes import with_errors, wrote
from ..requests.requests import Requests
from ..results import PutResult, WriteResult, by_position, newest
from .facade import Facade

Record = TypeVar("Record", bound=Message)


class Records(Facade, Generic[Record]):
    """Records of a plain table by the fields of its key.

    The ``*_many`` verbs answer per item in their result and raise a MetadError only where the whole call failed; the
    others raise their item's error. Singles that are called at the same time travel together. ``deadline_s`` is seconds
    from now, None the client's default. A read waits for its groups to have come as far as ``min_revisions`` say.
    """

    def __init__(self, requests: Requests, table: Table[Record]) -> None:
        """Raises ValueError where the table has rules of its own."""
        if table.plain is None:
            raise ValueError(f"{table.name} is no plain table: its verbs are in a namespace of its own")
        super().__init__(requests)
        self._table = table
        self._plain = table.plain

    async def put_many(self, items: Sequence[TablePutItem[Record]], *, deadline_s: float | None = None) -> PutResult:
        """Write records; ``versions`` of the result are the new ones. Item errors: ConflictError."""
        put = self._plain.put
        return PutResult(await self._requests.many(put, items, put.body, deadline_s))

    async def get_many(
        self,
        keys: Sequence[Sequence[str | int]],
        *,
        min_revisions: Sequence[Revision] = (),
        deadline_s: float | None = None,
    ) -> list[TableRecord[Record] | None]:
        """The records by position; None where there is none."""
        get, wanted = self._plain.get, newest(min_revisions)
        items = [self._plain.key(*key) for key in keys]
        pieces = await self._requests.read_many(get, items, lambda part: get.body(part, wanted), deadline_s)
        return by_position(pieces, _records_of, None)

    async def delete_many(self, keys: Sequence[Sequence[str | int]], *, deadline_s: float | None = None) -> WriteResult:
        """Delete records. Item errors: NotFoundError."""
        delete = self._plain.delete
        items = [TableDeleteItem(self._plain.key(*key)) for key in keys]
        return WriteResult(await self._requests.many(delete, items, delete.body, deadline_s))

    async def list(
        self,
        *fields: str | int,
        prefix: str = "",
        page_size: int = 1000,
        min_revisions: Sequence[Revision] = (),
        deadline_s: float | None = None,
    ) -> AsyncIterator[TableRecord[Record]]:
        """Records whose key begins with these fields and whose next field starts with ``prefix``, in order, read a page
        at a time; the deadline is each page's."""
        method, wanted, table = self._plain.list, newest(min_revisions), self._table

        def body_of(page: Page) -> TableList:
            return TableList([*fields], prefix, page, wanted)

        def key_of(found: TableRecord[Record]) -> Any:
            return [getattr(found.record, field) for field in table.key]

        if len(fields) >= len(table.routing):
            listing = of_group(self._requests, method, body_of, _listed, page_size, deadline_s)
        else:
            listing = of_all_groups(self._requests, method, body_of, _listed, key_of, page_size, deadline_s)
        async with aclosing(listing):
            async for record in listing:
                yield record

    async def put(self, record: Record, *, expected_version: int | None = None, deadline_s: float | None = None) -> int:
        """Write one record; returns its new version. ``expected_version`` (0: must not exist) makes it a
        compare-and-set. Raises ConflictError."""
        put, item = self._plain.put, TablePutItem(record, expected_version)
        version: int = await self._requests.single(put, None, item, len(encode(item)), put.body, _put, deadline_s)
        return version

    async def get(
        self, *key: str | int, min_revisions: Sequence[Revision] = (), deadline_s: float | None = None
    ) -> TableRecord[Record] | None:
        """One record, None where there is none."""
        get, wanted, item = self._plain.get, newest(min_revisions), self._plain.key(*key)
        found: TableRecord[Record] | None = await self._requests.single(
            get, tuple(wanted), item, len(encode(item)), lambda items: get.body(items, wanted), _got, deadline_s
        )
        return found

    async def delete(
        self, *key: str | int, expected_version: int | None = None, deadline_s: float | None = None
    ) -> None:
        """Delete one record. Raises NotFoundError, ConflictError."""
        delete, item = self._plain.delete, TableDeleteItem(self._plain.key(*key), expected_version)
        await self._requests.single(delete, None, item, len(encode(item)), delete.body, wrote, deadline_s)


def _records_of(reply: TableGetReply[Record]) -> list[TableRecord[Record] | None]:
    return reply.records


def _listed(reply: TableListReply[Record]) -> list[TableRecord[Record]]:
    return reply.records


def _put(items: list[Any], reply: TablePutReply) -> list[int | MetadError]:
    return with_errors(reply.versions, reply.errors)


def _got(items: list[Any], reply: TableGetReply[Record]) -> list[TableRecord[Record] | MetadError | None]:
    return with_errors(reply.records, ())
