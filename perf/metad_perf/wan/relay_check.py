"""Checks the relay: datagrams through it, timed from end to end, for delay, loss, and packets a second.

Sockets of both ends are in this process, so there is one clock and a delay is one way. Blocking; needs root.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import struct
import time
from collections.abc import Iterator
from threading import Thread
from typing import Any

from ..faults import netns
from .network import Places
from .relay_line import Path

_PORT = 9_000
_STAMP = struct.Struct("<qq")  # number, sent at ns
_QUIET_S = 0.3  # of silence: nothing more is coming
_GAP_S = 0.002  # between datagrams whose delay is measured: each wakes the relay by itself
_BUFFER_BYTES = 4 * 1024 * 1024
_PAYLOAD_BYTES = 1_200


def check(
    places: Places, *, delay_ms: float, loss_pct: float, delays: int = 300, losses: int = 20_000
) -> dict[str, Any]:
    """The requested properties of the path from place 0 to place 1, and the measured ones."""
    with _ends(places, 0, 1) as (sender, receiver):
        places.shape(0, 1, Path(delay_ms=delay_ms))
        sent, arrived = _send(sender, receiver, delays, gap_s=_GAP_S)
        over_us = sorted(1e3 * ((at - begun) / 1e6 - delay_ms) for begun, at in arrived.values())
        places.shape(0, 1, Path(delay_ms=delay_ms, loss_pct=loss_pct))
        lossy, left = _send(sender, receiver, losses, gap_s=0.0, in_flight=64)
        places.shape(0, 1, Path())
        before = places.account()
        begin_ns = time.monotonic_ns()
        fast, came = _send(sender, receiver, losses, gap_s=0.0, in_flight=256)
        last_ns = max(at for _, at in came.values())
        after = places.account()
    cpu_s = after.cpu_s - before.cpu_s
    return {
        "delay_ms": delay_ms,
        "over_us_p50": statistics.median(over_us),
        "over_us_p99": over_us[int(0.99 * len(over_us))],
        "over_us_max": over_us[-1],
        "unasked_loss": sent - len(arrived) + fast - len(came),
        "loss_pct": loss_pct,
        "measured_loss_pct": 100 * (lossy - len(left)) / lossy,
        "packets_per_s": len(came) / (last_ns - begin_ns) * 1e9,
        "cpu_us_per_packet": 1e6 * cpu_s / max(after.delivered - before.delivered, 1),
        "packet_bytes": _PAYLOAD_BYTES,
    }


def exchange(places: Places, source: int, target: int, count: int) -> list[float]:
    """Send ``count`` datagrams; returns the delay in ms of each that arrived."""
    with _ends(places, source, target) as (sender, receiver):
        _, arrived = _send(sender, receiver, count, gap_s=0.0, in_flight=32)
    return [(at_ns - sent_ns) / 1e6 for sent_ns, at_ns in arrived.values()]


@contextlib.contextmanager
def _ends(places: Places, source: int, target: int) -> Iterator[tuple[socket.socket, socket.socket]]:
    with contextlib.ExitStack() as stack:
        ends = []
        for n in (source, target):
            with netns.inside(places.network.space(n)):
                end = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                end.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
            end.bind((places.address(n), _PORT))
            ends.append(end)
        ends[0].connect((places.address(target), _PORT))
        yield ends[0], ends[1]


def _send(
    sender: socket.socket, receiver: socket.socket, count: int, *, gap_s: float, in_flight: int = 1
) -> tuple[int, dict[int, tuple[int, int]]]:
    """Returns how many were sent, and the send and arrival times in ns of those that arrived. Without a gap it sends
    bursts of ``in_flight``, each when half of the one before has arrived or no more arrives, so that the ends' buffers
    lose nothing."""
    arrived: dict[int, tuple[int, int]] = {}
    receiver.settimeout(_QUIET_S)

    def receive() -> None:
        with contextlib.suppress(TimeoutError):
            while True:
                data = receiver.recv(2_048)
                at_ns = time.monotonic_ns()
                number, sent_ns = _STAMP.unpack_from(data)
                arrived[number] = (sent_ns, at_ns)

    taking = Thread(target=receive)
    taking.start()
    padding = bytes(_PAYLOAD_BYTES - _STAMP.size)
    for number in range(count):
        if gap_s:
            time.sleep(gap_s)
        elif number % in_flight == 0:
            until_ns = time.monotonic_ns() + 20_000_000
            while number - len(arrived) > 2 * in_flight and time.monotonic_ns() < until_ns:
                time.sleep(0.0001)
        sender.send(_STAMP.pack(number, time.monotonic_ns()) + padding)
    taking.join()
    return count, arrived
