"""What rooms of memory count of a request is what it takes: else their bounds promise what they do not keep."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from server_rig import Rig

from metad.server.budgets import Inbox
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.connection.frame import FrameDecoder, FrameType, encode_frame
from metad_wire.messages import Identity
from metad_wire.policy.fair_room import FairRoom

_COUNT = 3_000
_LONG_MS = 3_600_000


def _put(rig: Rig, number: int, items: int) -> None:
    body = m.KvPut([m.KvPutItem(f"n{number % 8}", f"k{number}-{item}", b"v" * 40) for item in range(items)])
    rig.send(methods.KV_PUT, body, Identity(1 << 60, number + 1, 1))


def _small(rig: Rig, number: int) -> None:
    _put(rig, number, 1)


def _batch(rig: Rig, number: int) -> None:
    if number < _COUNT // 30:
        _put(rig, number, 100)


def _read(rig: Rig, number: int) -> None:
    body = methods.KV_GET.body([m.KvKey("n", f"k{number}")], [m.Revision("data-0", 1_000_000)])
    rig.send(methods.KV_GET, body, deadline_ms=_LONG_MS)


def _empty_read(rig: Rig, number: int) -> None:
    rig.send(
        methods.KV_GET, methods.KV_GET.body([], [m.Revision("data-0", 1_000_000)]), deadline_ms=_LONG_MS, group="data-0"
    )


@pytest.mark.parametrize("send", [_small, _batch, _read, _empty_read])
async def test_requests_in_flight_take_what_is_counted(send: Any) -> None:
    """Once wrong: a write of one item took 1.9 KB, and was counted as 0.3."""
    rig = Rig(groups={"offset": 1, "data": 1})
    await rig.open()
    send(rig, 0)
    tracemalloc.start()
    try:
        for number in range(1, _COUNT):
            send(rig, number)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken <= 1.3 * rig.node.status().in_flight_bytes
    await rig.close()


@pytest.mark.parametrize("size", [0, 70, 1_000])
def test_frames_that_wait_take_what_is_counted(size: int) -> None:
    room = FairRoom("frames", 1 << 30, ends="the test")
    inbox, decoder = Inbox(room), FrameDecoder()
    data = [encode_frame(FrameType.REQUEST, bytes(size), number + 1, 1) for number in range(_COUNT)]
    tracemalloc.start()
    try:
        for number, frame in enumerate(data):
            decoder.feed(frame)
            decoded = decoder.next()
            assert decoded is not None
            inbox.add(decoded, 1_000.0 + number, id)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken <= 1.1 * room.held
