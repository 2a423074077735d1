"""Ports on loopback that are taken before they are told to anybody.

Whoever looks for free ports, closes what it looked with, and tells the numbers to processes that it starts, has told
them what another may take meanwhile. A claim stays bound, without listening. Linux lets a server bind the port all the
same, which sets ``SO_REUSEADDR`` as servers do, but no other claim.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Self

PORTS: Final = range(15_000, 32_000)
"""Below those that the kernel gives to connections, or somebody's would now and then take one."""
_HOST: Final = "127.0.0.1"


class Claim:
    """``count`` ports in a row, from ``first`` on; held until it is closed. With ``first`` given it is these, as far as
    nobody listens there. Raises OSError if there are none."""

    def __init__(self, count: int, first: int | None = None) -> None:
        self._held: list[socket.socket] = []
        self.first = self._found(count) if first is None else first
        self.ports = range(self.first, self.first + count)
        if first is not None:
            self._hold(first, count)

    def close(self) -> None:
        """Let them go. Safe to call again."""
        while self._held:
            self._held.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _found(self, count: int) -> int:
        begin = random.randrange(len(PORTS))
        for step in range(0, len(PORTS), count):
            first = PORTS[(begin + step) % len(PORTS)]
            if first + count > PORTS.stop:
                continue
            with contextlib.suppress(OSError):
                self._held += _bound(first, count)
                return first
        raise OSError(f"no {count} free ports in a row")

    def _hold(self, first: int, count: int) -> None:
        for port in range(first, first + count):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((_HOST, port))
            except OSError:  # whoever is to listen there says so
                sock.close()
            else:
                self._held.append(sock)


def _bound(first: int, count: int) -> list[socket.socket]:
    """Sockets on these ports, which nobody has. Raises OSError."""
    with contextlib.ExitStack() as held:
        found = list(_each(first, count, held))
        held.pop_all()
        return found


def _each(first: int, count: int, held: contextlib.ExitStack) -> Iterator[socket.socket]:
    for port in range(first, first + count):
        sock = held.enter_context(socket.socket())
        sock.bind((_HOST, port))  # without SO_REUSEADDR: fails where another claim is
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a server may bind it now
        with socket.socket(type=socket.SOCK_DGRAM) as datagrams:
            datagrams.bind((_HOST, port))  # QUIC uses the same
        yield sock
