"""Tells the service manager that has started this process how it is, as systemd's ``sd_notify`` does: datagrams to the
socket that ``NOTIFY_SOCKET`` names. Without that variable nobody is told, and nothing here costs anything.

It says READY once the process serves, STOPPING when it has been told to end, and WATCHDOG from the event loop: a
process whose loop stands still says no more, and the manager starts it again. It does not say how the *cluster* is: a
node must not be restarted because others are down.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Mapping
from typing import Final, Self

from . import log_events
from .logs import event

VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""What a manager gives a process. They are for that process, and not for those that it starts."""
_STATUS_S: Final = 30.0
"""From one status to the next, if no watchdog wants to hear more often."""
_BEATS: Final = 3
"""Of the watchdog in the time that it waits, so that one may come late."""
_BEAT_MIN_S: Final = 0.01
"""No watchdog makes a process do nothing else."""


class ServiceManager:
    """The manager of this process; without an address there is none."""

    def __init__(self, address: str = "", watchdog_s: float = 0.0) -> None:
        """``address``: a path, or ``@name`` in the abstract namespace. ``watchdog_s``: for how long the manager lets
        the process be silent; 0: for ever."""
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._watchdog_s = watchdog_s
        self._told = ""
        self._ends = False
        self._owed: list[str] = []  # what the manager has to hear, and has not heard yet

    @classmethod
    def of(cls, environment: Mapping[str, str], pid: int) -> Self:
        """The manager that the environment of the process ``pid`` names. A watchdog of another process is not ours."""
        address, text = environment.get("NOTIFY_SOCKET", ""), environment.get("WATCHDOG_USEC", "")
        ours = environment.get("WATCHDOG_PID", "") in ("", str(pid))
        return cls(address, int(text) / 1e6 if address and ours and text.isascii() and text.isdigit() else 0.0)

    def ready(self, status: str) -> None:
        """Say that the process serves. If the manager's queue is full, :meth:`keep_alive` says it again."""
        if self._ends:  # told to end before it served
            return
        self._owed, self._told = ["READY=1"], status
        self._say(f"STATUS={status}")

    def stopping(self, status: str) -> None:
        """Say that the process ends: the manager waits ``TimeoutStopSec`` for it."""
        self._owed, self._ends = ["STOPPING=1"], True
        self._say(f"STATUS={status}")

    async def keep_alive(self, status: Callable[[], str]) -> None:
        """Feed the watchdog until cancelled, and say what the process does when that has changed."""
        while self._address:
            lines = ["WATCHDOG=1"] if self._watchdog_s else []
            if not self._ends and (said := status()) != self._told:
                self._told = said
                lines.append(f"STATUS={said}")
            if lines or self._owed:
                self._say(*lines)
            await asyncio.sleep(max(_BEAT_MIN_S, min(_STATUS_S, self._watchdog_s / _BEATS or _STATUS_S)))

    def _say(self, *lines: str) -> None:
        """Send one datagram with these lines and what is owed, without a wait."""
        if not self._address:
            return
        text = "\n".join([*self._owed, *lines]).encode()
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.sendto(text, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL, self._address)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.ENOBUFS):  # its queue is full
                return
            where = self._address.replace("\0", "@")
            event(log_events.MANAGER_UNREACHABLE, socket=where, error=error.strerror or str(error))
        except ValueError as error:  # a null byte, or a path that cannot be encoded
            event(log_events.MANAGER_UNREACHABLE, socket=repr(self._address), error=str(error))
        self._owed = []
