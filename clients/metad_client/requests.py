"""From a verb's items to their reply: encode, cut what is too long, pipeline the pieces, decode, put in order.

The namespaces (sessions, offsets, kv) are written in terms of this and hold no more than their verbs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from metad_wire.messages import BATCH_ITEMS_MAX, Message
from metad_wire.methods import Method, encode
from metad_wire.policy import BatchWindow

from .batcher import Batcher, Outcomes
from .call import Call
from .dispatcher import Dispatcher
from .errors import InvalidRequestError, MetadError
from .options import DEADLINE_S_MAX, Options
from .results import Piece

# Pieces of one call in flight: enough to keep the server's pipeline full, few enough that a call of a million
# items neither holds a million encoded ones nor pushes everybody else out of the queue.
PIECES_IN_FLIGHT = 8

Body = TypeVar("Body", bound=Message)
Reply = TypeVar("Reply", bound=Message)
Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class Requests:
    """What the verbs share. A deadline is in seconds from now; None is the client's default."""

    def __init__(self, dispatcher: Dispatcher, options: Options) -> None:
        self._loop = asyncio.get_running_loop()
        self._dispatcher = dispatcher
        self._deadline_s = options.deadline_s
        self._batch_items = options.batch_items
        self._batches_in_flight = options.batches_in_flight
        self._window = BatchWindow(
            items_max=options.batch_items, bytes_max=options.batch_bytes, linger_s=options.linger_s
        )
        self._batchers: dict[Hashable, Batcher[Any, Any, Any]] = {}
        self._batches = 0  # of batchers that are no more

    async def one(self, method: Method[Body, Reply], body: Body, deadline_s: float | None = None) -> Reply:
        """One request and its reply. Raises the request's MetadError."""
        call = self._dispatcher.submit(method, encode(body), self._deadline(deadline_s))
        reply: Reply = await self._reply(call)
        return reply

    async def many(
        self,
        method: Method[Body, Reply],
        items: Sequence[Item],
        body_of: Callable[[list[Item]], Body],
        deadline_s: float | None = None,
        *,
        items_max: int = BATCH_ITEMS_MAX,
    ) -> list[Piece[Reply]]:
        """Items in as many requests as they need; ``body_of`` makes one of a part of them.

        Raises the first error where no piece has a reply; otherwise a piece says for itself what went wrong.
        """
        deadline = self._deadline(deadline_s)
        items_max = min(items_max, self._batch_items)
        if len(items) <= items_max:
            if not items:
                return []
            body = encode(body_of(items if type(items) is list else list(items)))
            if len(body) <= self._dispatcher.body_bytes_max or len(items) == 1:
                call = self._dispatcher.submit(method, body, deadline)
                return [Piece(0, len(items), await self._reply(call), None)]
        return await self._pieces(method, items, body_of, deadline, items_max)

    async def read_many(
        self,
        method: Method[Body, Reply],
        items: Sequence[Item],
        body_of: Callable[[list[Item]], Body],
        deadline_s: float | None = None,
    ) -> list[Reply]:
        """As :meth:`many`, but any piece's error is raised: a read that lacks a part is none.

        What a server refuses as a whole (a reply over its limit, one malformed item) is asked for in halves.
        """
        try:
            pieces = await self.many(method, items, body_of, deadline_s)
        except InvalidRequestError as error:
            if len(items) == 1:
                raise
            pieces = [Piece(0, len(items), None, error)]
        replies: list[Reply] = []
        for piece in pieces:
            if piece.reply is not None:
                replies.append(piece.reply)
                continue
            assert piece.error is not None
            if piece.count == 1 or not isinstance(piece.error, InvalidRequestError):
                raise piece.error
            middle, end = piece.start + piece.count // 2, piece.start + piece.count
            for half in (items[piece.start : middle], items[middle:end]):
                replies += await self.read_many(method, half, body_of, deadline_s)
        return replies

    def single(
        self,
        method: Method[Body, Reply],
        header: Hashable,
        item: Item,
        size_bytes: int,
        body_of: Callable[[list[Item]], Body],
        outcomes: Outcomes[Item, Reply, Outcome],
        deadline_s: float | None = None,
        *,
        items_max: int = BATCH_ITEMS_MAX,
    ) -> asyncio.Future[Outcome]:
        """One item, in a batch with others of the same verb, ``header`` and deadline."""
        key = (method.code, header, deadline_s)
        batcher = self._batchers.get(key)
        if batcher is None:
            batcher = self._batchers[key] = Batcher(
                self._dispatcher,
                method,
                body_of,
                outcomes,
                window=self._window if items_max >= self._batch_items else replace(self._window, items_max=items_max),
                in_flight_max=self._batches_in_flight,
                deadline_s=self._checked(deadline_s),
                on_idle=lambda: self._retire(key),
            )
        future: asyncio.Future[Outcome] = batcher.add(item, size_bytes)
        return future

    @property
    def batches(self) -> int:
        """Requests made of singles so far."""
        return self._batches + sum(batcher.batches for batcher in self._batchers.values())

    def _retire(self, key: Hashable) -> None:
        batcher = self._batchers.pop(key, None)
        if batcher is not None:
            self._batches += batcher.batches

    def _deadline(self, deadline_s: float | None) -> float:
        return self._loop.time() + self._checked(deadline_s)

    def _checked(self, deadline_s: float | None) -> float:
        if deadline_s is None:
            return self._deadline_s
        if not 0 < deadline_s <= DEADLINE_S_MAX:
            raise ValueError(f"deadline_s must be over 0 and at most {DEADLINE_S_MAX}, not {deadline_s!r}")
        return deadline_s

    async def _reply(self, call: Call) -> Any:
        try:
            return await call.future
        except asyncio.CancelledError:
            self._dispatcher.abandon(call)
            raise

    async def _pieces(
        self,
        method: Method[Body, Reply],
        items: Sequence[Item],
        body_of: Callable[[list[Item]], Body],
        deadline: float,
        items_max: int,
    ) -> list[Piece[Reply]]:
        pieces: list[Piece[Reply]] = []
        in_flight: deque[tuple[int, int, Call]] = deque()

        async def finish() -> None:
            start, count, call = in_flight[0]
            try:
                pieces.append(Piece(start, count, await call.future, None))
            except MetadError as error:
                pieces.append(Piece(start, count, None, error))
            in_flight.popleft()

        try:
            for start, count, body in self._cut(items, body_of, items_max):
                if len(in_flight) == PIECES_IN_FLIGHT:
                    await finish()
                try:
                    in_flight.append((start, count, self._dispatcher.submit(method, body, deadline)))
                except MetadError as error:
                    pieces.append(Piece(start, count, None, error))
            while in_flight:
                await finish()
        finally:
            for _, _, call in in_flight:
                self._dispatcher.abandon(call)
        pieces.sort(key=lambda piece: piece.start)
        if pieces[0].error is not None and all(piece.reply is None for piece in pieces):
            raise pieces[0].error
        return pieces

    def _cut(
        self, items: Sequence[Item], body_of: Callable[[list[Item]], Body], items_max: int
    ) -> Iterator[tuple[int, int, bytes]]:
        """(start, count, encoded body) of each part: at most ``items_max`` long, halved until it fits a frame."""
        starts = range(0, len(items), items_max)
        todo = [(start, min(start + items_max, len(items))) for start in reversed(starts)]
        while todo:
            start, end = todo.pop()
            body = encode(body_of(list(items[start:end])))
            if len(body) > self._dispatcher.body_bytes_max and end - start > 1:
                middle = (start + end) // 2
                todo += [(middle, end), (start, middle)]
            else:
                yield start, end - start, body
