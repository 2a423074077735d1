"""Measurements of the path to a peer, for any transport."""

from __future__ import annotations

import socket
import struct
from typing import Any, Final

from . import Stream
from .credentials import PathSample

# Linux's struct tcp_info (include/uapi/linux/tcp.h). It grows only at its end, so these offsets stay valid.
_RTT_US: Final = 68
_TOTAL_RETRANS: Final = 100
_MIN_RTT_US: Final = 148
_DATA_SEGS_OUT: Final = 156
_LENGTH: Final = 160
_u32 = struct.Struct("=I").unpack_from


def path_of(stream: Stream) -> PathSample | None:
    """The path of a connection that is up; None if the system does not report it."""
    sample: PathSample | None = stream.get_extra_info("path")
    if sample is None:
        sock = stream.get_extra_info("socket")
        if sock is not None:
            sample = _tcp(sock)
    return sample


def _tcp(sock: Any) -> PathSample | None:
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LENGTH)
    except (OSError, AttributeError):  # no TCP, closed by now, or not Linux
        return None
    if len(info) < _LENGTH:
        return None
    # The smallest time is that of the path itself; the smoothed one includes our own queue at the bottleneck.
    rtt_us = _u32(info, _MIN_RTT_US)[0]
    if rtt_us in (0, 0xFFFF_FFFF):
        rtt_us = _u32(info, _RTT_US)[0]
    return PathSample(rtt_s=rtt_us / 1e6, sent=_u32(info, _DATA_SEGS_OUT)[0], lost=_u32(info, _TOTAL_RETRANS)[0])
