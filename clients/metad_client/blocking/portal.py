"""A thread that runs an event loop, and ways to run something there. Knows nothing of metad but its ClosedError."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from ..errors import ClosedError

P = ParamSpec("P")
T = TypeVar("T")


class Portal:
    """A thread that runs an event loop, and a way to run coroutines in it."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, name="metad-client", daemon=True)

    def start(self) -> None:
        """Start the thread; return once its loop runs."""
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        """Cancel what still runs there; return once the thread has ended."""
        if self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()
            self._loop = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result. An interrupt (Ctrl-C) cancels it."""
        if self._loop is None:
            coroutine.close()
            raise ClosedError("the client is closed; nothing was done", outcome_known=True)
        if threading.current_thread() is self._thread:  # it would wait for itself
            coroutine.close()
            raise RuntimeError("a blocking call was made in the thread that would have to answer it")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of a function that must run in the loop's thread."""

        async def called() -> T:
            return function(*args, **kwargs)

        return self.run(called())

    def _main(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._ready.set()
        await self._stopping.wait()
