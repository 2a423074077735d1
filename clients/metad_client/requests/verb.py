"""A verb as the SDK offers it: of many items, and of one that shares a request with others. The rest follows from its
method: the body of a request, the column of a reply with an outcome for each item, and about how long an item is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, Generic, TypeVar

from msgspec import inspect

from metad_wire.messages import BATCH_ITEMS_MAX, Message, Revision
from metad_wire.methods import Method

from ..results import Piece, ReadResult, newest
from .batcher import Outcomes, with_errors, wrote
from .requests import Requests

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

_FIELDS_BYTES = 16  # of an item, beside its texts


class Verb(Generic[Item, Outcome]):
    """``method`` takes such items, and gives each of their callers such an outcome: by default what the reply's first
    column has of it, or nothing where the reply has errors only. A request has up to ``items_max``. What a request says
    beside its items is named as in the method's body."""

    def __init__(
        self,
        method: Method[Any, Any],
        outcomes: Outcomes[Item, Any, Outcome] | None = None,
        *,
        items_max: int = BATCH_ITEMS_MAX,
    ) -> None:
        columns: dict[str, Any] = method.reply.columns
        column = next(iter(columns), "")
        self._missing = columns.get(column)
        self._method = method
        self._column: Callable[[Any], list[Any]] = attrgetter(column) if column else list
        self._outcomes: Outcomes[Item, Any, Any] = outcomes or (self._in_column if column else wrote)
        self._items_max = items_max
        self._size = _size_of(method.item)

    async def many(
        self,
        requests: Requests,
        items: Sequence[Item],
        deadline_s: float | None,
        /,
        *,
        items_max: int = 0,
        **beside: Any,
    ) -> list[Piece[Any]]:
        """:meth:`Requests.many`."""
        items_max = items_max or self._items_max
        return await requests.many(self._method, items, self._body(beside), deadline_s, items_max=items_max)

    async def read(
        self,
        requests: Requests,
        keys: Sequence[Item],
        deadline_s: float | None,
        /,
        min_revisions: Sequence[Revision] | None = None,
    ) -> ReadResult[Any]:
        """The column, by position. Of a verb that reads nothing newer than what there is, no revisions."""
        beside: dict[str, Any] = {} if min_revisions is None else {"min_revisions": newest(min_revisions)}
        return ReadResult(await self.many(requests, keys, deadline_s, **beside), self._column, self._missing)

    def one(
        self, requests: Requests, item: Item, deadline_s: float | None, /, **beside: Any
    ) -> asyncio.Future[Outcome]:
        """:meth:`Requests.single`."""
        return requests.single(
            self._method,
            tuple(beside.values()),
            item,
            self._size,
            self._body(beside),
            self._outcomes,
            deadline_s,
            items_max=self._items_max,
        )

    def one_read(
        self, requests: Requests, key: Item, deadline_s: float | None, /, min_revisions: Sequence[Revision]
    ) -> asyncio.Future[Outcome]:
        """The same, of what is at least as new as these. Raises InvalidRequestError."""
        return self.one(requests, key, deadline_s, min_revisions=newest(min_revisions))

    def _body(self, beside: dict[str, Any]) -> Callable[[list[Item]], Message]:
        body = self._method.body
        return (lambda items: body(items=items, **beside)) if beside else body

    def _in_column(self, _: list[Item], reply: Any) -> list[Any]:
        return with_errors(self._column(reply), reply.errors)


@cache
def _size_of(item: Any) -> Callable[[Any], int]:
    return _size(inspect.type_info(item)) or (lambda _: 0)


def _size(kind: inspect.Type) -> Callable[[Any], int] | None:
    """About how many bytes a value of this type takes; None: hardly any."""
    match kind:
        case inspect.StrType() | inspect.BytesType():
            return len
        case inspect.UnionType(types):
            sizes = [size for size in map(_size, types) if size is not None]
            return (lambda value: 0 if value is None else sizes[0](value)) if sizes else None
        case inspect.ListType(item_type=of):
            size_of_one = _size(of) or (lambda _: 1)
            return lambda values: sum(map(size_of_one, values))
        case inspect.StructType(fields=fields):
            return _size_of_struct([(field.name, size) for field in fields if (size := _size(field.type)) is not None])
    return None


def _size_of_struct(sizes: list[tuple[str, Callable[[Any], int]]]) -> Callable[[Any], int]:
    texts = [name for name, size in sizes if size is len]
    others = [(attrgetter(name), size) for name, size in sizes if size is not len]
    if len(texts) == 1:
        others.append((attrgetter(texts.pop()), len))
    of_texts: Callable[[Any], tuple[Any, ...]] = attrgetter(*texts) if texts else lambda _: ()

    def size_of(item: Any) -> int:
        size = _FIELDS_BYTES + sum(map(len, of_texts(item)))
        for of_one, size_of_one in others:
            size += size_of_one(of_one(item))
        return size

    return size_of
