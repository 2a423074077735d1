"""A watch as a program uses it: an iterator of batches, which reconnects and resumes by itself."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Sequence
from typing import Any, Self, get_args

from metad_wire.messages import Message
from metad_wire.watch import StreamFlag

from ..dispatch.dispatcher import Dispatcher
from ..errors import InvalidRequestError
from ..iterating import AsyncParts
from ..requests.wrong import argument
from .event import Several, Wanted
from .events import WatchBatch
from .filters import AnyWanted, Filters, filters_of
from .position import Position
from .streams import Start, Streams
from .token import read, to_text

BUFFER_BYTES: int = 4 * 1024 * 1024
PROGRESS_MS_MAX = 0xFFFF_FFFF


class Watch(AsyncParts[WatchBatch[Wanted]]):
    """Changes as batches, in order per key, each once: ``async for batch in watch``.

    It goes on through slot moves, new leaders, restarts and lost connections. It ends if it is closed, or its client
    is: then the iteration ends; or by an error that waiting does not repair, which the iteration raises. To leave the
    loop does not end a watch that the program keeps: iterate again, or close it. One task reads it at a time.
    """

    def __init__(self, streams: Streams, token: str) -> None:
        self._streams = streams
        self._given = token
        # A watch that the program has dropped must not go on for ever.
        self._finalizer = weakref.finalize(self, abandon, asyncio.get_running_loop(), streams)

    def __repr__(self) -> str:
        return f"<Watch {'ended' if self._streams.ended else 'open'}>"

    async def opened(self) -> Self:
        """Wait until every group that the watch reads has begun its stream: changes from now on are seen. Raises the
        error that ends the watch, or ClosedError if it is closed meanwhile."""
        await asyncio.shield(self._streams.begun)
        return self

    @property
    def token(self) -> str:
        """Where a watch resumes, so that it delivers exactly what this one has not delivered; the token that it was
        given, or empty, until it has begun."""
        if not self._streams.is_placed:
            return self._given
        return to_text(self._streams.cluster_id, self._streams.where(), self._streams.shapes.declared)

    @property
    def is_settled(self) -> bool:
        """Whether each slot is read from the group that holds it: none is missing, on its way between two groups, or
        read from a group that is still to be found."""
        return self._streams.is_settled

    @property
    def age_ms(self) -> float | None:
        """How old what was delivered may be, by the last words of the servers; None while that is not known. Without
        ``progress_s`` they say it only when the watch begins."""
        return self._streams.age_ms()

    async def close(self) -> None:
        """End it: the server sends nothing more, and the iteration ends. Safe to call again."""
        self._streams.home.check()
        self._streams.close()

    async def next(self) -> WatchBatch[Wanted] | None:
        """The next batch; None once the watch is closed, or its client."""
        streams = self._streams
        while True:
            batch = streams.next_batch()
            if batch is not None:
                return batch
            if streams.ended:
                return None
            await streams.wait()


def milliseconds(name: str, seconds: float) -> int:
    """An interval for the wire. Raises InvalidRequestError."""
    if not isinstance(seconds, int | float) or not 0 < seconds < PROGRESS_MS_MAX / 1000:
        raise InvalidRequestError(f"{name}: expected a number of seconds, got {seconds!r}")
    return max(1, round(seconds * 1000))


def check_buffer(buffer_bytes: int) -> None:
    """Raises InvalidRequestError."""
    if not isinstance(buffer_bytes, int) or buffer_bytes < 1:
        raise InvalidRequestError(f"buffer_bytes: expected a number of bytes, got {buffer_bytes!r}")


def abandon(loop: asyncio.AbstractEventLoop, streams: Streams) -> None:
    """Close the streams, soon: the program holds them no longer. May be called in any thread."""
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(streams.close)


def open_watch(
    dispatcher: Dispatcher,
    tables: AnyWanted | Several[AnyWanted] = (),
    *,
    tenant: str | None = None,
    prefix: str = "",
    keys: Sequence[Message | tuple[str | int, ...]] | None = None,
    broker: str = "",
    token: str | None = None,
    until: str | None = None,
    start: Start = "now",
    previous: bool = False,
    keys_only: bool = False,
    coalesce: bool = False,
    progress_s: float | None = None,
    idle_timeout_s: float | None = None,
    buffer_bytes: int = BUFFER_BYTES,
) -> Watch[Any]:
    """A watch that begins at once. Raises InvalidRequestError."""
    dispatcher.check()
    filters = filters_of(tables, tenant=tenant, prefix=prefix, keys=keys, broker=broker)
    if start not in get_args(Start):
        raise InvalidRequestError(f"start: expected 'now' or 'snapshot', got {start!r}")
    progress_ms = 0 if progress_s is None else milliseconds("progress_s", progress_s)
    if idle_timeout_s is not None:
        milliseconds("idle_timeout_s", idle_timeout_s)
    check_buffer(buffer_bytes)
    for name, flag in (("previous", previous), ("keys_only", keys_only), ("coalesce", coalesce)):
        argument(name, flag, bool)
    cluster_id, positions, end = "", None, None
    if token is not None:
        cluster_id, positions = _of_token("token", token, filters)
    if until is not None:
        of, end = _of_token("until", until, filters)
        if positions is None or of != cluster_id:
            raise InvalidRequestError("until: a watch that has an end begins at a token of the same cluster")
    flags = (StreamFlag.KEYS_ONLY * keys_only) | (StreamFlag.PREVIOUS * previous) | (StreamFlag.COALESCE * coalesce)
    streams = Streams(
        dispatcher,
        filters,
        cluster_id=cluster_id,
        positions=positions,
        until=end,
        start=start,
        flags=int(flags),
        progress_ms=progress_ms,
        buffer_bytes=buffer_bytes,
        idle_timeout_s=idle_timeout_s,
    )
    return Watch(streams, token or "")


def _of_token(name: str, token: str, filters: Filters) -> tuple[str, dict[str, Position]]:
    """The cluster and the position of a token of these kinds of groups. Raises InvalidRequestError."""
    if not isinstance(token, str):
        raise InvalidRequestError(f"{name}: expected str, got {type(token).__name__}")
    cluster_id, positions, known = read(token)
    if positions.keys() != filters.keys():
        of, wanted = (" and ".join(sorted(kinds)) for kinds in (positions, filters))
        raise InvalidRequestError(f"{name}: it is of a watch of {of} groups, and these tables are in {wanted} groups")
    for number, table in filters.shapes.declared.items() if known else ():
        if number not in known:
            raise InvalidRequestError(
                f"{name}: it is of a watch without this {table}, which was declared since, or dropped and declared "
                "anew: begin without it, with start='snapshot'"
            )
    return cluster_id, positions
