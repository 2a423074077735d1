"""The sending half of a stream: as in aioquic, with fewer steps for data sent and acknowledged in order."""

from __future__ import annotations

from aioquic.quic.packet import QuicStreamFrame
from aioquic.quic.packet_builder import QuicDeliveryState
from aioquic.quic.rangeset import RangeSet
from aioquic.quic.stream import QuicStreamSender

_ACKED = QuicDeliveryState.ACKED


class Sender(QuicStreamSender):
    """``_pending`` holds only lost data; data that was never sent begins at ``highest_offset``."""

    _pending: RangeSet

    @property
    def unsent_bytes(self) -> int:
        """Bytes written and not sent yet."""
        return self._buffer_stop - self.highest_offset

    @property
    def held_bytes(self) -> int:
        """Bytes written and not acknowledged yet."""
        return self._buffer_stop - self._buffer_start

    @property
    def next_offset(self) -> int:
        """The offset of the next piece."""
        return self._pending[0].start if len(self._pending) else self.highest_offset

    def write(self, data: bytes, end_stream: bool = False) -> None:
        if self._buffer_fin is not None:
            raise RuntimeError("the stream has ended; it takes no more data")
        if self._reset_error_code is not None:
            raise RuntimeError("the stream was reset; it takes no more data")
        if data:
            self.buffer_is_empty = False
            self._buffer += data
            self._buffer_stop += len(data)
        if end_stream:
            self.buffer_is_empty = False
            self._buffer_fin = self._buffer_stop
            self._pending_eof = True

    def piece(self, size: int, limit: int) -> tuple[int, bytearray, bool] | None:
        """(offset, data, whether it is the end) of at most ``size`` bytes up to the offset ``limit``; None if there is
        nothing to send or no piece may be sent."""
        if len(self._pending):
            lost = self._pending[0]
            start, stop = lost.start, min(lost.stop, lost.start + size, limit)
            if stop <= start:
                return None
            self._pending.subtract(start, stop)
        else:
            start = self.highest_offset
            if start == self._buffer_stop:
                if self._pending_eof:
                    self._pending_eof = False
                    return start, bytearray(), True
                self.buffer_is_empty = True
                return None
            stop = min(self._buffer_stop, start + size, limit)
            if stop <= start:
                return None
            self.highest_offset = stop
        base = self._buffer_start
        fin = stop == self._buffer_fin
        if fin:
            self._pending_eof = False
        return start, self._buffer[start - base : stop - base], fin

    def get_frame(self, max_size: int, max_offset: int | None = None) -> QuicStreamFrame | None:
        if max_size < 0:
            return None
        piece = self.piece(max_size, self._buffer_stop if max_offset is None else max_offset)
        if piece is None:
            return None
        return QuicStreamFrame(offset=piece[0], data=bytes(piece[1]), fin=piece[2])

    def on_data_delivery(self, delivery: QuicDeliveryState, start: int, stop: int, fin: bool) -> None:
        """Process the delivery or loss of a piece."""
        if self._reset_error_code is not None:
            return
        if delivery is not _ACKED:
            if stop > start:
                self._pending.add(start, stop)
                self.buffer_is_empty = False
            if fin:
                self._pending_eof = True
                self.buffer_is_empty = False
            return
        if start == self._buffer_start and not len(self._acked):
            del self._buffer[: stop - start]
            self._buffer_start = stop
        elif stop > start:
            acked = self._acked
            acked.add(start, stop)
            first = acked[0]
            if first.start == self._buffer_start:
                acked.shift()
                del self._buffer[: first.stop - first.start]
                self._buffer_start = first.stop
        if fin:
            self._acked_fin = True
        if self._acked_fin and self._buffer_start == self._buffer_fin:
            self.is_finished = True
