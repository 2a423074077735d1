"""Whether this is still the process that made an object: in a fork its threads and its event loop are not there. And
connections stay with the process that made them: a fork that held them open would have them outlive it."""

from __future__ import annotations

import asyncio
import os
import weakref

_forks = 0
"""Since the first process that imported this module. The process's own number would be a system call to ask for."""
_transports: weakref.WeakSet[asyncio.BaseTransport] = weakref.WeakSet()


def let_go_in_forks(transport: asyncio.BaseTransport) -> None:
    """Have forks of this process not hold this connection open."""
    _transports.add(transport)


def _forked() -> None:
    global _forks
    _forks += 1
    sockets = [transport.get_extra_info("socket") for transport in list(_transports)]
    if left := [sock.fileno() for sock in sockets if sock is not None and sock.fileno() >= 0]:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for number in left:
            os.dup2(null, number, inheritable=False)  # so the object that has the number may still close it
        os.close(null)
    _transports.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Process:
    """The process that runs now."""

    __slots__ = ("_forks",)

    def __init__(self) -> None:
        self._forks = _forks

    @property
    def is_here(self) -> bool:
        """Whether the caller is in that process, and not in a fork of it."""
        return self._forks == _forks
