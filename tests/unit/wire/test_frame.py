"""The frame decoder: whole frames out of any chunking, typed errors, bounded memory."""

from __future__ import annotations

import itertools
import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metad_wire.connection.frame import (
    FRAME_TYPES,
    HEADER_BYTES,
    LENGTH_BYTES,
    LENGTH_MIN,
    Frame,
    FrameDecoder,
    FrameType,
    encode_frame,
)
from metad_wire.errors import FrameError, FrameTooLargeError, MetadError

LIMIT = 4096


def drain(decoder: FrameDecoder) -> list[Frame]:
    frames = []
    while (frame := decoder.next()) is not None:
        frames.append(frame)
    return frames


def header(length: int, type_: int = FrameType.REQUEST) -> bytes:
    return struct.pack(">IBBHQ", length, type_, 0, 0, 1)


def test_frame_types_fit_the_table_of_the_header() -> None:
    assert {int(t) for t in FrameType} == FRAME_TYPES
    assert HEADER_BYTES == 16
    assert LENGTH_MIN == HEADER_BYTES - LENGTH_BYTES == 12


def test_one_frame_in_one_chunk() -> None:
    decoder = FrameDecoder()
    decoder.feed(encode_frame(FrameType.REQUEST, b"payload", request_id=7, method=0x0302))
    assert drain(decoder) == [Frame(FrameType.REQUEST, 0, 0x0302, 7, b"payload", 23)]
    assert decoder.buffered_bytes == 0


def test_nothing_fed_nothing_out() -> None:
    decoder = FrameDecoder()
    assert decoder.next() is None
    decoder.feed(b"")
    assert decoder.next() is None


def test_flags_are_ignored_but_reported() -> None:
    decoder = FrameDecoder()
    decoder.feed(struct.pack(">IBBHQ", 12, FrameType.PING, 0xFF, 0, 0))
    assert drain(decoder) == [Frame(FrameType.PING, 0xFF, 0, 0, b"", 16)]


def test_a_half_frame_waits_for_its_other_half() -> None:
    data = encode_frame(FrameType.RESPONSE, b"x" * 100, request_id=1)
    for cut in range(len(data)):
        decoder = FrameDecoder()
        decoder.feed(data[:cut])
        assert drain(decoder) == []
        assert decoder.buffered_bytes == cut
        decoder.feed(data[cut:])
        assert [frame.payload for frame in drain(decoder)] == [b"x" * 100]
        assert decoder.buffered_bytes == 0


frames_strategy = st.lists(
    st.tuples(
        st.sampled_from(sorted(FRAME_TYPES)),
        st.binary(max_size=200),
        st.integers(0, 2**64 - 1),
        st.integers(0, 2**16 - 1),
    ),
    max_size=20,
)


@given(frames=frames_strategy, cuts=st.lists(st.integers(0, 4000), max_size=40), drain_between=st.booleans())
def test_any_chunking_gives_the_same_frames(
    frames: list[tuple[int, bytes, int, int]], cuts: list[int], drain_between: bool
) -> None:
    stream = b"".join(encode_frame(*frame) for frame in frames)
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    decoder = FrameDecoder(LIMIT)
    got = []
    for start, end in itertools.pairwise(bounds):
        decoder.feed(stream[start:end])
        if drain_between:
            got += drain(decoder)
            assert decoder.buffered_bytes < LIMIT
    got += drain(decoder)
    assert got == [
        Frame(type_, 0, method, request_id, payload, HEADER_BYTES + len(payload))
        for type_, payload, request_id, method in frames
    ]
    assert decoder.buffered_bytes == 0


@given(st.lists(st.binary(max_size=64), max_size=30))
@settings(max_examples=100)
def test_garbage_gives_frames_or_a_metad_error(chunks: list[bytes]) -> None:
    decoder = FrameDecoder(LIMIT)
    for chunk in chunks:
        decoder.feed(chunk)
        try:
            drain(decoder)
        except MetadError:
            assert decoder.buffered_bytes == 0
        assert decoder.buffered_bytes <= LIMIT + len(chunk)


@pytest.mark.parametrize("length", [0, 1, LENGTH_MIN - 1])
def test_a_length_below_the_header_is_refused(length: int) -> None:
    decoder = FrameDecoder()
    decoder.feed(header(length))
    with pytest.raises(FrameError, match=f"length {length}"):
        decoder.next()


@pytest.mark.parametrize("type_", sorted(set(range(256)) - FRAME_TYPES))
def test_an_unknown_type_is_refused(type_: int) -> None:
    decoder = FrameDecoder()
    decoder.feed(header(12, type_))
    with pytest.raises(FrameError, match=f"type {type_}"):
        decoder.next()


def test_the_limit_counts_the_whole_frame() -> None:
    decoder = FrameDecoder(LIMIT)
    decoder.feed(encode_frame(FrameType.REQUEST, b"x" * (LIMIT - HEADER_BYTES)))
    assert [frame.length for frame in drain(decoder)] == [LIMIT]
    decoder.feed(encode_frame(FrameType.REQUEST, b"x" * (LIMIT - HEADER_BYTES + 1)))
    with pytest.raises(FrameTooLargeError):
        decoder.next()


@pytest.mark.parametrize("length", [LIMIT - LENGTH_BYTES + 1, 2**31, 2**32 - 1])
def test_an_oversize_length_is_refused_before_its_bytes_come(length: int) -> None:
    decoder = FrameDecoder(LIMIT)
    decoder.feed(header(length)[:15])
    assert decoder.next() is None
    decoder.feed(header(length)[15:])
    with pytest.raises(FrameTooLargeError):
        decoder.next()


def test_the_limit_may_change_between_frames() -> None:
    """After the handshake a session raises the limit; the frame behind it may be in the same chunk."""
    decoder = FrameDecoder(32)
    decoder.feed(encode_frame(FrameType.HELLO, b"h") + encode_frame(FrameType.REQUEST, b"x" * 100))
    assert decoder.next() is not None
    decoder.frame_bytes_max = LIMIT
    frame = decoder.next()
    assert frame is not None
    assert frame.payload == b"x" * 100


def test_an_error_is_sticky_and_holds_no_memory() -> None:
    """Guards two leaks: bytes fed to a broken decoder piled up, and each raise lengthened one traceback."""
    decoder = FrameDecoder(LIMIT)
    decoder.feed(encode_frame(FrameType.PING) + header(0) + encode_frame(FrameType.PING))
    assert decoder.next() is not None
    depths = set()
    for _ in range(5):
        with pytest.raises(FrameError) as caught:
            decoder.next()
        depth, traceback = 0, caught.value.__traceback__
        while traceback is not None:
            depth, traceback = depth + 1, traceback.tb_next
        depths.add(depth)
        decoder.feed(b"x" * 1000)
        assert decoder.buffered_bytes == 0
    assert max(depths) <= 3


def test_buffered_bytes_stay_under_the_limit_plus_a_chunk() -> None:
    decoder = FrameDecoder(LIMIT)
    data = encode_frame(FrameType.REQUEST, b"x" * (LIMIT - HEADER_BYTES)) * 5
    chunk_bytes = 1000
    most = 0
    for start in range(0, len(data), chunk_bytes):
        decoder.feed(data[start : start + chunk_bytes])
        most = max(most, decoder.buffered_bytes)
        drain(decoder)
        assert decoder.buffered_bytes < LIMIT
    assert LIMIT <= most <= LIMIT + chunk_bytes


def test_an_idle_decoder_lets_go_of_its_last_large_frame() -> None:
    """Guards a pin: one byte of the next frame kept the whole last chunk alive on an idle connection."""
    size = 4 * 1024 * 1024
    tracemalloc.start()
    try:
        decoder = FrameDecoder()
        before, _ = tracemalloc.get_traced_memory()
        for rest in (b"", b"\x00"):
            decoder.feed(encode_frame(FrameType.REQUEST, bytes(size)) + rest)
            assert [len(frame.payload) for frame in drain(decoder)] == [size]
            held = tracemalloc.get_traced_memory()[0] - before
            assert held < size // 16
    finally:
        tracemalloc.stop()


def test_a_large_frame_in_small_pieces_is_copied_a_constant_number_of_times() -> None:
    """Guards against joining at every chunk, which is quadratic: the peak stays near two copies of the frame."""
    size = 2 * 1024 * 1024
    data = encode_frame(FrameType.REQUEST, bytes(size))
    joins = 0

    class Counting(FrameDecoder):
        def _join(self) -> None:
            nonlocal joins
            joins += 1
            super()._join()

    decoder = Counting()
    for start in range(0, len(data), 512):
        decoder.feed(data[start : start + 512])
        if decoder.next() is not None:
            break
    assert decoder.buffered_bytes == 0
    assert joins <= 2


def test_who_only_decodes_is_handed_a_frame_in_pieces_without_a_copy() -> None:
    frames = [encode_frame(FrameType.REQUEST, bytes([n]) * 1_000_000, n) for n in (1, 2)]
    data = b"".join(frames)
    for hands_over, kind in ((True, bytearray), (False, bytes)):
        decoder = FrameDecoder()
        decoder.hands_over = hands_over
        found = []
        for start in range(0, len(data), 64 * 1024):
            decoder.feed(data[start : start + 64 * 1024])
            while (frame := decoder.next()) is not None:
                found.append(frame)
        assert [type(frame.payload) for frame in found] == [kind, kind]
        assert [(frame.request_id, bytes(frame.payload)) for frame in found] == [
            (n, bytes([n]) * 1_000_000) for n in (1, 2)
        ]
        assert decoder.buffered_bytes == 0
