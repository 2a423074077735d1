"""The two halves of a stream: pieces in any order become the bytes that were written, and losses are sent again."""

from __future__ import annotations

import pytest
from aioquic.quic.connection import QuicConnectionError
from aioquic.quic.packet_builder import QuicDeliveryState
from aioquic.quic.stream import FinalSizeError
from hypothesis import given
from hypothesis import strategies as st

from metad_wire.transport.quic.flow import receiving
from metad_wire.transport.quic.flow.receiving import Receiver
from metad_wire.transport.quic.flow.sending import Sender

WHOLE = bytes(range(256)) * 4


@given(
    pieces=st.lists(st.tuples(st.integers(0, len(WHOLE)), st.integers(0, 300)), max_size=40),
    appetite=st.integers(1, 500),
)
def test_pieces_in_any_order_are_the_whole(pieces: list[tuple[int, int]], appetite: int) -> None:
    receiver = Receiver(0, 1 << 20, set())
    arrived: set[int] = set()
    taken = b""
    for start, size in [*pieces, *((at, 100) for at in range(len(WHOLE) - 100, -1, -100)), (0, 100)]:
        data = WHOLE[start : start + size]
        receiver.insert(start, data, start + len(data) == len(WHOLE) and bool(data))
        arrived.update(range(start, start + len(data)))
        while receiver.ready:
            taken += receiver.take(appetite)
        in_order = next((at for at in range(len(WHOLE) + 1) if at not in arrived), len(WHOLE))
        assert taken == WHOLE[:in_order]
        assert receiver.pieces_bytes + receiver.ready_bytes == len(arrived) - in_order
        assert receiver.consumed == in_order
    assert receiver.finished == (len(taken) == len(WHOLE))


def test_an_end_that_moves_is_refused() -> None:
    receiver = Receiver(0, 1 << 20, set())
    receiver.insert(10, b"end", True)
    for offset, data, fin in ((13, b"x", False), (0, b"x", True), (20, b"", True)):
        with pytest.raises(FinalSizeError):
            receiver.insert(offset, data, fin)
    late = Receiver(0, 1 << 20, set())
    late.insert(0, b"abcdef", False)
    with pytest.raises(FinalSizeError):
        late.insert(0, b"abc", True)


def test_crumbs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "PIECES_MAX", 10)
    receiver = Receiver(0, 1 << 20, set())
    for at in range(1, 20, 2):
        receiver.insert(at, b"x", False)
    with pytest.raises(QuicConnectionError, match="pieces"):
        receiver.insert(21, b"x", False)
    assert receiver.held_bytes > 10 * 100, "a crumb costs more to hold than its byte"


def test_what_nobody_reads_is_not_kept() -> None:
    receiver = Receiver(0, 1 << 20, set())
    receiver.insert(0, b"abc", False)
    receiver.insert(10, b"abc", False)
    receiver.discard()
    receiver.insert(3, b"abc", False)
    receiver.insert(20, b"abc", False)
    assert receiver.held_bytes == 0
    assert receiver.consumed == 23  # so that the peer has credit to finish


@given(
    writes=st.lists(st.binary(min_size=1, max_size=200), max_size=20),
    fates=st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=400),
    size=st.integers(1, 120),
)
def test_what_is_lost_is_sent_again(writes: list[bytes], fates: list[tuple[bool, int]], size: int) -> None:
    sender = Sender(0, writable=True)
    whole = b"".join(writes)
    for data in writes:
        sender.write(data)
    sender.write(b"", end_stream=True)
    received: dict[int, int] = {}
    flying: list[tuple[int, int, bool]] = []
    fate = iter(fates)
    fin_arrived = False
    for _ in range(10_000):
        piece = sender.piece(size, 1 << 30)
        if piece is not None:
            offset, data, fin = piece
            flying.append((offset, offset + len(data), fin))
            assert bytes(data) == whole[offset : offset + len(data)]
        elif not flying:
            break
        arrives, which = next(fate, (True, 0))
        if flying and (piece is None or len(flying) > which):
            start, stop, fin = flying.pop(min(which, len(flying) - 1))
            if arrives:
                received.update((at, whole[at]) for at in range(start, stop))
                fin_arrived = fin_arrived or fin
            state = QuicDeliveryState.ACKED if arrives else QuicDeliveryState.LOST
            sender.on_data_delivery(state, start, stop, fin)
    assert bytes(received[at] for at in range(len(whole))) == whole
    assert fin_arrived
    assert sender.is_finished
    assert not sender._buffer


def test_credit_bounds_what_is_sent() -> None:
    sender = Sender(0, writable=True)
    sender.write(bytes(100))
    assert sender.piece(1_000, 60) == (0, bytes(60), False)
    assert sender.piece(1_000, 60) is None
    assert not sender.buffer_is_empty
    assert sender.unsent_bytes == 40
