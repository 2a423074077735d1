"""The clock of a load run, and a way to wake up at a given time.

asyncio's and uvloop's timers tick in milliseconds, which an open loop at thousands of requests a second would report as
latency of the server. Linux timerfds wake within some ten microseconds without spinning.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import time
from typing import Protocol

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK = os.O_NONBLOCK
_TFD_CLOEXEC = os.O_CLOEXEC
_TFD_TIMER_ABSTIME = 1


class Time(Protocol):
    """A monotonic clock in nanoseconds and a way to wait for it."""

    def now_ns(self) -> int:
        """Nanoseconds since some fixed point, the same for every process of this machine."""

    async def sleep_until_ns(self, due_ns: int) -> None:
        """Return at ``due_ns`` or shortly after it, never before."""


class SystemTime:
    """CLOCK_MONOTONIC, with timerfds if the C library has them."""

    def __init__(self) -> None:
        try:
            self._libc: ctypes.CDLL | None = ctypes.CDLL(None, use_errno=True)
            self._libc.timerfd_create  # noqa: B018 - raises AttributeError where there is none
        except (OSError, AttributeError):
            self._libc = None
        self._idle: list[int] = []

    now_ns = staticmethod(time.monotonic_ns)

    async def sleep_until_ns(self, due_ns: int) -> None:
        if self._libc is None:
            await asyncio.sleep((due_ns - self.now_ns()) / 1e9)
            return
        fd = self._idle.pop() if self._idle else self._create()
        loop = asyncio.get_running_loop()
        fired = loop.create_future()
        seconds, nanoseconds = divmod(max(due_ns, 1), 1_000_000_000)
        spec = struct.pack("@qqqq", 0, 0, seconds, nanoseconds)
        if self._libc.timerfd_settime(fd, _TFD_TIMER_ABSTIME, spec, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")
        loop.add_reader(fd, _fire, fired)
        try:
            await fired
            os.read(fd, 8)
        except BaseException:
            loop.remove_reader(fd)
            os.close(fd)
            raise
        loop.remove_reader(fd)
        self._idle.append(fd)

    def _create(self) -> int:
        assert self._libc is not None
        fd = int(self._libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC))
        if fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        return fd


def _fire(fired: asyncio.Future[None]) -> None:
    if not fired.done():
        fired.set_result(None)


SYSTEM = SystemTime()
