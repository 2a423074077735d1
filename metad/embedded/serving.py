"""A server inside this process: in the running event loop, or in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec

from metad_wire.transport import Transport

from ..config import load_config
from ..server.network import Network
from ..server.serve import Server


class Serving(msgspec.Struct, frozen=True):
    """A server that serves."""

    endpoint: str
    """host:port over TCP."""
    quic_endpoint: str
    """host:port over QUIC; empty if there is none."""

    @property
    def url(self) -> str:
        """What a client connects to, if the server has no certificates."""
        return f"metad://{self.endpoint}"


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
    server = await Server.start(config, network)
    running = asyncio.create_task(server.run())
    try:
        yield Serving(server.endpoint, server.quic_endpoint)
    finally:
        await server.stop()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


@contextlib.contextmanager
def serve_in_thread(data_dir: str | Path | None = None, **settings: Any) -> Iterator[Serving]:
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
        yield serving
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
    ended.result()
