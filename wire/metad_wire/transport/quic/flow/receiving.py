"""The receiving half of a stream. Its memory is bounded by the data that has arrived, not by the offsets that a peer
writes.

aioquic fills the gaps of a stream with zeros until they arrive; one byte far ahead costs as much as all before it. Here
pieces are held as they came. Data in order waits in ``ready`` for the stream's handler, and only data that the handler
has taken (``consumed``) gives the peer credit for more.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from aioquic.quic.connection import QuicConnectionError
from aioquic.quic.events import StreamDataReceived, StreamReset
from aioquic.quic.packet import QuicErrorCode, QuicStreamFrame
from aioquic.quic.stream import FinalSizeError, QuicStreamReceiver

PIECES_MAX: Final = 16_384
"""Pieces of a stream out of order; a full window of full packets has half as many. Guards against scattered bytes."""
_PIECE_BYTES: Final = 160  # of a piece, beside its bytes


class Receiver(QuicStreamReceiver):
    """The received data of a stream. ``finished``: all of it is in ``ready``. ``reset``: the peer has cut it off."""

    def __init__(self, stream_id: int, window_bytes: int, touched: set[int]) -> None:
        """``touched`` takes the stream's id whenever there is news."""
        super().__init__(stream_id=stream_id, readable=True)
        self._id = stream_id
        self._touched = touched
        self.ready: list[bytes] = []
        self.ready_bytes = 0
        self.consumed = 0  # offset up to which the handler has taken the data
        self.pieces_bytes = 0  # out of order
        self.window_bytes = window_bytes
        self.widened_s = 0.0
        self.finished = False
        self.reset_with: int | None = None
        self.discarding = False  # nobody reads any more: arriving data counts as consumed
        self._starts: list[int] = []  # offsets of the pieces, ascending
        self._pieces: dict[int, bytes] = {}

    @property
    def held_bytes(self) -> int:
        """Bytes received and not consumed, with what it costs to hold so many pieces."""
        return self.pieces_bytes + self.ready_bytes + _PIECE_BYTES * (len(self._starts) + len(self.ready))

    def take(self, most: int) -> bytes:
        """The next bytes in order, up to ``most``."""
        ready = self.ready
        if self.ready_bytes <= most:
            data = ready[0] if len(ready) == 1 else b"".join(ready)
            ready.clear()
        else:
            size = count = 0
            while size + len(ready[count]) <= most:
                size += len(ready[count])
                count += 1
            if count:
                data = b"".join(ready[:count])
                del ready[:count]
            else:
                data, ready[0] = ready[0][:most], ready[0][most:]
        self.ready_bytes -= len(data)
        self.consumed += len(data)
        return data

    def discard(self) -> None:
        """Discard all data, also future data: nobody will read it."""
        self.discarding = True
        self.ready.clear()
        self._starts.clear()
        self._pieces.clear()
        self.ready_bytes = self.pieces_bytes = 0
        self.consumed = self.highest_offset

    def handle_frame(self, frame: QuicStreamFrame) -> StreamDataReceived | None:
        """Take a STREAM frame. Raises FinalSizeError, QuicConnectionError."""
        self.insert(frame.offset, frame.data, frame.fin)
        return None

    def insert(self, offset: int, data: bytes, fin: bool) -> None:
        """Take an unpacked STREAM frame. Raises FinalSizeError, QuicConnectionError."""
        self._touched.add(self._id)
        end = offset + len(data)
        if fin or self._final_size is not None:
            self._check_final_size(end, fin)
        if end > self.highest_offset:
            self.highest_offset = end
        if self.is_finished:
            return
        start = self._buffer_start
        if self.discarding:
            self.consumed = self.highest_offset
            # No need to track the missing data: the peer was told to stop, and its end or its reset ends this stream.
            if self._final_size is not None:
                self.is_finished = self.finished = True
            return
        if offset <= start < end:
            if offset < start:
                data = data[start - offset :]
            self.ready.append(data)
            self.ready_bytes += len(data)
            self._buffer_start = end
            if self._starts:
                self._join()
        elif offset > start and data:
            self._hold(offset, data)
        if self._buffer_start == self._final_size:
            self.is_finished = self.finished = True

    def handle_reset(self, *, final_size: int, error_code: int = QuicErrorCode.NO_ERROR) -> StreamReset | None:
        """Take a RESET_STREAM frame."""
        event = super().handle_reset(final_size=final_size, error_code=error_code)
        if event is not None:
            self._touched.add(self._id)
            self.reset_with = error_code
            self.discard()
        return event

    def _check_final_size(self, end: int, fin: bool) -> None:
        if self._final_size is not None:
            if end > self._final_size or (fin and end != self._final_size):
                raise FinalSizeError("data beyond the end, or another end")
        elif end < self.highest_offset:
            raise FinalSizeError("an end before what was already received")
        if fin:
            self._final_size = end

    def _hold(self, offset: int, data: bytes) -> None:
        """Keep the new bytes of a piece."""
        starts, pieces = self._starts, self._pieces
        end = offset + len(data)
        index = bisect_right(starts, offset)
        if index:
            before = starts[index - 1]
            covered = before + len(pieces[before])
            if covered > offset:
                data, offset = data[covered - offset :], covered
        while offset < end:
            following = starts[index] if index < len(starts) else end
            piece = data[: following - offset] if following < end else data
            if piece:
                if len(starts) >= PIECES_MAX:
                    raise QuicConnectionError(
                        error_code=QuicErrorCode.INTERNAL_ERROR,
                        frame_type=None,  # type: ignore[arg-type]
                        reason_phrase="too many pieces of a stream are out of order",
                    )
                starts.insert(index, offset)
                pieces[offset] = piece
                self.pieces_bytes += len(piece)
                index += 1
            if following >= end:
                return
            covered = following + len(pieces[following])
            data, offset = data[covered - offset :], covered
            index += 1

    def _join(self) -> None:
        """Move the data that is now in order to ``ready``."""
        starts, pieces = self._starts, self._pieces
        count, position = 0, self._buffer_start
        for start in starts:
            if start > position:
                break
            piece = pieces.pop(start)
            self.pieces_bytes -= len(piece)
            count += 1
            stop = start + len(piece)
            if stop > position:
                fresh = piece[position - start :]
                self.ready.append(fresh)
                self.ready_bytes += len(fresh)
                position = stop
        if count:
            del starts[:count]
            self._buffer_start = position
