"""A thread that runs an event loop, and ways to run something there. Knows nothing of metad but its ClosedError."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from metad_wire.program.forks import Process

from ..dispatch.dispatcher import check_process
from ..errors import ClosedError

P = ParamSpec("P")
T = TypeVar("T")

_UNDER_WAY = "the client was closed before this had ended"


class Portal:
    """A thread that runs an event loop, and a way to run coroutines in it."""

    def __init__(self) -> None:
        self._process = Process()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, name="metad-client", daemon=True)
        self._door = threading.Lock()  # nothing is handed over while it is shut
        self._is_open = False
        self._pending: set[concurrent.futures.Future[Any]] = set()

    def start(self) -> None:
        """Start the thread; return once its loop runs."""
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        """Cancel what still runs there; return once the thread has ended."""
        self._check_thread()
        with self._door:
            if self._is_open and self._loop is not None and self._stopping is not None:
                self._loop.call_soon_threadsafe(self._stopping.set)
            self._is_open = False
        self._thread.join()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result. An interrupt (Ctrl-C) cancels it. Raises ClosedError if the portal is stopped, also
        meanwhile, and the errors of :meth:`check`."""
        try:
            self._check_thread()
            future = self._handed_over(coroutine)
        except BaseException:
            coroutine.close()
            raise
        try:
            return future.result()
        except concurrent.futures.CancelledError:  # as the loop ended, for nobody else can cancel it
            raise ClosedError(_UNDER_WAY) from None
        except BaseException:
            future.cancel()
            raise
        finally:
            with self._door:
                self._pending.discard(future)

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of a function that must run in the loop's thread."""

        async def called() -> T:
            return function(*args, **kwargs)

        return self.run(called())

    def check(self) -> None:
        """Raise ForkedError or ForeignCallError where the portal's thread cannot answer."""
        check_process(self._process)

    def _check_thread(self) -> None:
        self.check()
        if threading.current_thread() is self._thread:  # it would wait for itself
            raise RuntimeError("a blocking call was made in the thread that would have to answer it")

    def _handed_over(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        with self._door:
            if not self._is_open or self._loop is None:
                raise ClosedError("the client is closed; nothing was done", outcome_known=True)
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
            self._pending.add(future)
            return future

    def _main(self) -> None:
        try:
            asyncio.run(self._serve())
        finally:
            with self._door:
                self._is_open = False
                left = list(self._pending)
            for future in left:  # the loop has ended before their turn
                with contextlib.suppress(concurrent.futures.InvalidStateError):
                    future.set_exception(ClosedError(_UNDER_WAY))

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._is_open = True
        self._ready.set()
        await self._stopping.wait()
