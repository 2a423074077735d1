"""The watches of one connection: which request feeds which stream, and what the client says about them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import msgspec

from metad_wire.errors import CancelledError, FrameError, MetadError, OverloadedError
from metad_wire.method import MALFORMED
from metad_wire.watch import WatchCredit

from ..control.host import Source
from ..node.watches.watches import Watches
from ..watch.stream import Stream

_decode_credit = msgspec.msgpack.Decoder(WatchCredit).decode


class Sender(Source, Protocol):
    """The connection, as its watches see it."""

    def room(self) -> int:
        """How many bytes of events may be sent now."""

    def wait_for_room(self) -> None:
        """Wake the watches once there may be more."""

    def begin_stream(self, request_id: int, payload: bytes) -> None:
        """Answer the request, which begins a stream."""

    def refuse_stream(self, request_id: int, error: MetadError) -> None:
        """Answer it with an error."""

    def send_event(self, request_id: int, payload: bytes, *, last: bool) -> None:
        """Send an event of the stream."""


class _Outlet:
    """A :class:`metad.watch.seams.Outlet`."""

    __slots__ = ("_ended", "_request_id", "_sender")

    def __init__(self, sender: Sender, request_id: int, ended: Callable[[int], object]) -> None:
        self._sender = sender
        self._request_id = request_id
        self._ended = ended

    def room(self) -> int:
        return self._sender.room()

    def wait(self) -> None:
        self._sender.wait_for_room()

    def opened(self, payload: bytes) -> None:
        self._sender.begin_stream(self._request_id, payload)

    def refused(self, error: MetadError) -> None:
        self._ended(self._request_id)
        self._sender.refuse_stream(self._request_id, error)

    def event(self, payload: bytes, *, last: bool = False) -> None:
        if last:
            self._ended(self._request_id)
        self._sender.send_event(self._request_id, payload, last=last)


class Watching:
    """Made with the first watch of a connection."""

    def __init__(self, watches: Watches, sender: Sender, streams_max: Callable[[], int]) -> None:
        self._watches = watches
        self._streams_max = streams_max
        self._sender = sender
        self._streams: dict[int, Stream] = {}

    def open(self, request_id: int, payload: bytes) -> None:
        """A request for a watch."""
        if len(self._streams) >= (most := self._streams_max()):
            why = f"this connection has {most} watches already (limits.connection_watch_streams_max)"
            self._sender.refuse_stream(request_id, OverloadedError(why))
            return
        outlet = _Outlet(self._sender, request_id, self._ended)
        stream = self._watches.open(payload, outlet, self._sender)
        if stream is not None and not stream.ended:
            self._streams[request_id] = stream

    def grant(self, request_id: int, payload: bytes) -> None:
        """A CREDIT for a stream. Raises FrameError."""
        try:
            size = _decode_credit(payload).bytes
        except MALFORMED as error:
            raise FrameError(f"WatchCredit: {error}") from None
        stream = self._streams.get(request_id)
        if stream is not None:
            stream.grant(size)

    def cancel(self, request_id: int) -> None:
        """The client wants no more of it."""
        stream = self._streams.pop(request_id, None)
        if stream is None:
            return
        if stream.opened:
            stream.forget()
        else:
            stream.end(CancelledError("the watch was cancelled before it began"))

    def wake(self) -> None:
        """The peer reads again."""
        for stream in list(self._streams.values()):
            stream.wake()

    def end(self, why: MetadError) -> None:
        """End all streams."""
        for stream in list(self._streams.values()):
            self._watches.now(partial(stream.end, why))

    def forget(self) -> None:
        """The connection is gone."""
        for stream in list(self._streams.values()):
            self._watches.now(stream.forget)
        self._streams.clear()

    def _ended(self, request_id: int) -> None:
        self._streams.pop(request_id, None)
