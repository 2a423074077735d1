"""A process that carries out one order after the other, so that its work shares neither the event loop nor the
interpreter of what is measured."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from multiprocessing.connection import Connection
from typing import Any, Protocol

import msgspec

from metad_wire.errors import MetadError
from metad_wire.transport.tcp import install_uvloop

from ..errors import PerfError, WorkerError
from ..spawn import client_processes, cpu_s

_END_S = 10.0


class Role(Protocol):
    """What the process does. An order's reply is any value that can be pickled."""

    async def carry_out(self, order: Any, /) -> Any:
        """Do it."""


class Failed(msgspec.Struct, frozen=True):
    """The process gives up."""

    name: str
    message: str


class Actor:
    """Our end of one process. ``role`` is a module's function that opens the role; the process gets its name, and
    imports it. ``idle``: the process runs only when no other process wants the processor. Blocking."""

    def __init__(
        self, role: Callable[..., AbstractAsyncContextManager[Role]], *args: object, idle: bool = False
    ) -> None:
        context = client_processes()
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_main, args=(role, args, idle, theirs), daemon=True)
        self._process.start()
        theirs.close()  # so that the end of the process ends the pipe

    def begin(self, order: Any) -> None:
        """Give an order, without waiting for its reply."""
        self._pipe.send(order)

    def reply(self) -> Any:
        """The reply to the oldest order without one. Raises WorkerError."""
        try:
            found = self._pipe.recv()
        except EOFError:
            raise WorkerError("a client process died") from None
        if isinstance(found, Failed):
            raise WorkerError(f"{found.name}: {found.message}")
        return found

    async def ask(self, order: Any) -> Any:
        """Give an order, and wait for its reply. Raises WorkerError."""
        self.begin(order)
        return await asyncio.to_thread(self.reply)

    def cpu_s(self) -> float:
        """User and system time of the process so far."""
        return cpu_s([self._process.pid or 0])

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self._process.kill()
        self._process.join()

    def stop(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            self._pipe.send(None)
        self._process.join(_END_S)
        self._process.kill()
        self._process.join()
        self._process.close()
        self._pipe.close()  # only now: another thread may wait for a reply until the process has ended


def _main(
    role: Callable[..., AbstractAsyncContextManager[Role]], args: tuple[object, ...], idle: bool, pipe: Connection
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to end
    if idle:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    install_uvloop()
    try:
        asyncio.run(_act(role, args, pipe))
    except (MetadError, PerfError, OSError, ValueError) as error:
        pipe.send(Failed(getattr(error, "name", type(error).__name__), str(error)))
    except ExceptionGroup as group:
        pipe.send(Failed("bug", repr(group.exceptions[0])))


async def _act(
    role: Callable[..., AbstractAsyncContextManager[Role]], args: tuple[object, ...], pipe: Connection
) -> None:
    async with role(*args) as opened:
        while True:
            try:
                order = await asyncio.to_thread(pipe.recv)
            except EOFError:
                return
            if order is None:
                return
            pipe.send(await opened.carry_out(order))
