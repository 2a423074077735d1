"""A server inside this process: in the running event loop, or in a thread of its own. Its clocks may be moved on by a
test, so that what takes an hour is over at once."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import math
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from metad_wire.transport import Transport

from ..config import load_config
from ..errors import ServerError
from ..logs import keeping
from ..node.environment import AsyncEnvironment, Timer
from ..server.network import Network
from ..server.serve import Server


class _Timer:
    """A call at a time of the clock that may be moved."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self.own: Timer | None = None
        """That of the event loop, for if nobody moves the clock. It ends with this one, or an hour of moves would leave
        thousands of them."""
        self.is_over = False

    def cancel(self) -> None:
        """Cancel the call."""
        self.is_over = True
        if self.own is not None:
            self.own.cancel()

    def fire(self) -> None:
        """Call, once."""
        if not self.is_over:
            self.cancel()
            self._callback()


class MovableClocks(AsyncEnvironment):
    """The real environment. Its monotonic clock and its calendar go as they do, and :meth:`advance` moves both on: to
    each timer that is due meanwhile, in order, as if the time had passed. For the clients no time passes, so nobody is
    heard of meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self._ahead_s = 0.0
        self._timers: list[tuple[float, int, _Timer]] = []
        self._numbers = itertools.count()

    def now(self) -> float:
        return super().now() + self._ahead_s

    def wall_ms(self) -> int:
        return super().wall_ms() + int(self._ahead_s * 1000)

    def call_at(self, when_s: float, callback: Callable[[], None]) -> _Timer:
        timer = _Timer(partial(self._run, callback))
        heapq.heappush(self._timers, (when_s, next(self._numbers), timer))
        timer.own = super().call_at(when_s, timer.fire)
        while self._timers and self._timers[0][2].is_over:
            heapq.heappop(self._timers)
        return timer

    async def advance(self, seconds: float) -> int:
        """Move on. Returns how many timers were due."""
        if not (seconds >= 0 and math.isfinite(seconds)):
            raise ValueError(f"time goes on by a number of seconds, and not back; got {seconds!r}")
        until_s, fired = self.now() + seconds, 0
        while self._timers and self._timers[0][0] <= until_s:
            when_s, _, timer = heapq.heappop(self._timers)
            if timer.is_over:
                continue
            self._ahead_s += max(0.0, when_s - self.now())
            timer.fire()
            fired += 1
            await self._settled()
        self._ahead_s += max(0.0, until_s - self.now())
        await self._settled()
        return fired

    async def _settled(self) -> None:
        """Let the node do what was due, and the threads beside it."""
        for _ in range(3):
            await asyncio.sleep(0)


class Serving:
    """A server that serves in this event loop."""

    def __init__(self, endpoint: str, quic_endpoint: str, clocks: MovableClocks | None) -> None:
        self.endpoint = endpoint
        """host:port over TCP."""
        self.quic_endpoint = quic_endpoint
        """host:port over QUIC; empty if there is none."""
        self._clocks = clocks

    @property
    def url(self) -> str:
        """What a client connects to, if the server has no certificates."""
        return f"metad://{self.endpoint}"

    async def advance(self, seconds: float) -> None:
        """Let so much time pass for the server, at once: what is due meanwhile is done, in order, as its log's time
        tells. For the clients no time passes, so none of them is heard of meanwhile. Each second costs half a
        millisecond, because the server does what it does in a second. Raises ValueError if time would go back."""
        if self._clocks is None:
            raise ServerError("the clocks of a server with data on disk cannot be moved: it would start in its past")
        await self._clocks.advance(seconds)


class ServingInThread:
    """A server that serves in a thread of its own."""

    def __init__(self, serving: Serving, loop: asyncio.AbstractEventLoop) -> None:
        self.endpoint = serving.endpoint
        """host:port over TCP."""
        self.quic_endpoint = serving.quic_endpoint
        """host:port over QUIC; empty if there is none."""
        self.url = serving.url
        """What a client connects to, if the server has no certificates."""
        self._serving = serving
        self._loop = loop

    def advance(self, seconds: float) -> None:
        """As :meth:`Serving.advance`. Returns when it is done; in an event loop, call it with ``asyncio.to_thread``."""
        asyncio.run_coroutine_threadsafe(self._serving.advance(seconds), self._loop).result()


@contextlib.asynccontextmanager
async def serve(
    data_dir: str | Path | None = None, *, transport: Transport | None = None, **settings: Any
) -> AsyncIterator[Serving]:
    """Serve on a free loopback port until the block ends.

    Without ``data_dir`` all data is in memory. ``settings`` are those of the configuration file, nested tables as
    dicts. Raises :class:`metad.errors.ServerError` if it cannot start.
    """
    storage = {"engine": "memory"} if data_dir is None else {}
    overrides: dict[str, Any] = {"listen": "127.0.0.1:0", "data_dir": str(data_dir or ""), **settings}
    overrides["storage"] = storage | overrides.get("storage", {})
    config = load_config(None, overrides)
    network = Network.of(config) if transport is None else Network.only(transport)
    clocks = MovableClocks() if data_dir is None else None
    with keeping():
        server = await Server.start(config, network, environment=clocks)
        running = asyncio.create_task(server.run())
        try:
            yield Serving(server.endpoint, server.quic_endpoint, clocks)
        finally:
            await server.stop()
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


@contextlib.contextmanager
def serve_in_thread(data_dir: str | Path | None = None, **settings: Any) -> Iterator[ServingInThread]:
    """Serve as :func:`serve` does, in a thread with an event loop of its own: for code without asyncio, and for tests
    that each run a loop of their own."""
    started: Future[tuple[Serving, asyncio.AbstractEventLoop, asyncio.Event]] = Future()
    ended: Future[None] = Future()

    async def run() -> None:
        async with serve(data_dir, **settings) as serving:
            stop = asyncio.Event()
            started.set_result((serving, asyncio.get_running_loop(), stop))
            await stop.wait()

    def main() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:  # noqa: BLE001 - raised where the server was asked for
            (ended if started.done() else started).set_exception(error)
        else:
            ended.set_result(None)

    thread = threading.Thread(target=main, name="metad-server", daemon=True)
    thread.start()
    serving, loop, stop = started.result()
    try:
        yield ServingInThread(serving, loop)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
    ended.result()
