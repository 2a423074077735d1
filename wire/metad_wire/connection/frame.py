"""Turns bytes into frames and frames into bytes.

A frame is a 4-byte length, a 12-byte header and a payload (big-endian throughout)::

    u32 length      bytes that follow the length field: 12 + payload
    u8  type        FrameType
    u8  flags       reserved, sent as 0, ignored when received
    u16 method      of a REQUEST; of a PEER frame its channel; 0 elsewhere
    u64 request_id  of REQUEST, RESPONSE, ERROR, EVENT and CANCEL, and of CREDIT from a client; 0 elsewhere
    payload         msgpack, see messages.py

The decoder is incremental and holds at most one unfinished frame besides the last chunk that it was fed. It refuses a
length over its limit as soon as it has the header, so a peer cannot make it wait for, or allocate, more than the limit.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple, cast

from ..errors import FrameError, FrameTooLargeError

HEADER = struct.Struct(">IBBHQ")
HEADER_BYTES = HEADER.size
LENGTH_BYTES = 4
LENGTH_MIN = HEADER_BYTES - LENGTH_BYTES

# 16 MiB holds 1,000 records of 16 KB; larger frames only make other requests wait.
FRAME_BYTES_MAX = 16 * 1024 * 1024
"""A frame after WELCOME, at most: ``frame_too_large``. ``Welcome.frame_bytes_max`` may be less."""
# Before the handshake the peer is unknown: it may make us hold no more than this.
HANDSHAKE_BYTES_MAX = 16 * 1024
"""A frame before WELCOME: ``frame_too_large``."""


class FrameType(enum.IntEnum):
    """The type of a frame. Codes never change their meaning."""

    HELLO = 1
    WELCOME = 2
    REQUEST = 3
    RESPONSE = 4
    ERROR = 5
    EVENT = 6
    CANCEL = 7
    CREDIT = 8
    PING = 9
    PONG = 10
    GOAWAY = 11
    PEER = 12


FRAME_TYPES = frozenset(int(t) for t in FrameType)


class Frame(NamedTuple):
    """One received frame. ``length`` counts all of it, the length field included."""

    type: int
    flags: int
    method: int
    request_id: int
    payload: bytes
    length: int


_HTTP = frozenset({b"GET ", b"HEAD", b"POST", b"PUT ", b"PATC", b"DELE", b"OPTI", b"CONN", b"TRAC", b"PRI ", b"HTTP"})

_frame = tuple.__new__  # does what Frame() does, at half the cost


def encode_frame(type: int, payload: bytes = b"", request_id: int = 0, method: int = 0) -> bytes:
    """The bytes of one frame."""
    return HEADER.pack(LENGTH_MIN + len(payload), type, 0, method, request_id) + payload


def _stranger(first: bytes) -> str:
    """The protocol that begins with these bytes, in words; empty if it is none that is often sent here."""
    if first in _HTTP:
        return "this is HTTP: the port speaks metad's binary protocol only"
    return ""


class FrameDecoder:
    """Cuts a byte stream into frames: :meth:`feed` chunks, then call :meth:`next` until it returns None.

    A broken frame raises :class:`FrameError` or :class:`FrameTooLargeError`. The stream cannot be trusted afterwards,
    so every later call raises the error again and drops what it is fed. Until then memory is bounded by one frame and
    the last chunk, provided that :meth:`next` is called until None after each chunk.
    """

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.hands_over = False
        """True: a payload that came in pieces is returned as the bytearray it was joined in, despite the declared type.
        For callers that only decode the payload: copying 16 MiB takes 10 ms, and as much memory again."""
        self._buffer = b""
        self._position = 0
        self._tail = bytearray()  # chunks behind an unfinished frame, joined to it once it is whole
        self._wanted = HEADER_BYTES  # bytes of the unfinished frame that must be there before it is looked at again
        self._error: FrameError | FrameTooLargeError | None = None

    @property
    def buffered_bytes(self) -> int:
        """Bytes held that have not been returned as frames."""
        return len(self._buffer) - self._position + len(self._tail)

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the stream, of any size."""
        if self._error is not None:
            return
        if self._position == len(self._buffer) and not self._tail:
            self._buffer, self._position = chunk, 0
            return
        # Joining only when the unfinished frame is whole keeps a large frame that comes in small pieces linear.
        self._tail += chunk

    def next(self) -> Frame | None:
        """The next whole frame, or None until more bytes are fed."""
        if self._error is not None:
            raise self._error.with_traceback(None)  # without this, each raise would lengthen the traceback of the last
        start = self._position
        available = len(self._buffer) - start
        if available < self._wanted:
            if available + len(self._tail) < self._wanted:
                self._release()
                return None
            if available < HEADER_BYTES:
                self._join()
                start, available = 0, len(self._buffer)
        length, type_, flags, method, request_id = HEADER.unpack_from(self._buffer, start)
        if length < LENGTH_MIN or type_ not in FRAME_TYPES:
            stranger = _stranger(self._buffer[start : start + LENGTH_BYTES])
            raise self._fail(FrameError(stranger or f"not a frame: length {length}, type {type_}"))
        if length + LENGTH_BYTES > self.frame_bytes_max:
            raise self._fail(
                FrameTooLargeError(f"a frame of {length + LENGTH_BYTES} bytes is over the limit {self.frame_bytes_max}")
            )
        whole = length + LENGTH_BYTES
        if available < whole:
            self._wanted = whole
            if available > HEADER_BYTES:
                # The payload is joined in one place, and no bytes behind it need to be moved.
                self._tail[:0] = self._buffer[start + HEADER_BYTES :]
                self._buffer, self._position = self._buffer[start : start + HEADER_BYTES], 0
                available = HEADER_BYTES
            if available + len(self._tail) < whole:
                self._release()
                return None
            payload = self._gathered(whole - HEADER_BYTES)
        else:
            end = start + whole
            payload = self._buffer[start + HEADER_BYTES : end]
            self._position = end
        self._wanted = HEADER_BYTES
        return _frame(Frame, (type_, flags, method, request_id, payload, whole))

    def _release(self) -> None:
        # Drop the frames already returned: an idle connection must not keep its last large batch in memory.
        self._buffer = self._buffer[self._position :]
        self._position = 0

    def _gathered(self, size: int) -> bytes:
        """Return the payload at the beginning of the tail."""
        payload = self._tail
        self._buffer, self._position = bytes(payload[size:]), 0
        self._tail = bytearray()
        del payload[size:]
        return cast("bytes", payload) if self.hands_over else bytes(payload)

    def _join(self) -> None:
        self._buffer = b"".join((self._buffer[self._position :], self._tail))
        self._position = 0
        self._tail.clear()

    def _fail(self, error: FrameError | FrameTooLargeError) -> FrameError | FrameTooLargeError:
        self._error = error
        self._buffer, self._position = b"", 0
        self._tail.clear()
        return error
