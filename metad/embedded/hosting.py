"""A node that a broker carries in its own process. It may be one of the nodes of a cluster, it keeps its data on disk,
and ``metad serve`` can go on with the same directory later."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import uvloop

from metad_wire.program.forks import Process

from ..config import load_config, to_toml
from ..errors import ServerError
from ..process import Host, serve_until
from ..server.serve import Server


class HostedNode(Host):
    """A node in a thread of this process, with an event loop of its own; :func:`node` makes one.

    Signals, logging and the end of the process stay with the process. A broker whose loop is busy for a second does
    not keep the node from answering the other nodes.
    """

    def __init__(self, config_file: Path | None, settings: dict[str, Any]) -> None:
        self._config = load_config(config_file, settings)
        self._process = Process()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told: asyncio.Future[str] | None = None
        self._asked = False  # to end
        self._lock = threading.Lock()
        self._endpoints: Future[tuple[str, str]] = Future()
        self._ended: Future[str] = Future()
        self._thread = threading.Thread(target=self._main, name=f"metad-{self.node_id}", daemon=True)

    # --- what it is ---

    @property
    def node_id(self) -> str:
        """Its name in the cluster."""
        return self._config.node_id

    @property
    def toml(self) -> str:
        """A file with which ``metad serve --config`` starts this very node, once this process carries it no more."""
        return to_toml(self._config)

    @property
    def endpoint(self) -> str:
        """host:port for clients over TCP. Raises ServerError before it serves."""
        return self._served()[0]

    @property
    def quic_endpoint(self) -> str:
        """host:port for clients over QUIC; empty if there is none. Raises ServerError before it serves."""
        return self._served()[1]

    @property
    def url(self) -> str:
        """What the client of this process connects to. The client finds the other nodes through this one."""
        return f"{'metads' if self._config.security.encrypted else 'metad'}://{self.endpoint}"

    # --- its life ---

    @property
    def running(self) -> bool:
        """Whether it serves, or is on its way to."""
        return self._process.is_here and self._thread.ident is not None and not self._ended.done()

    async def ended(self) -> str:
        """Wait until the node has ended. Returns why if it was asked to end or has left its cluster; raises the
        ServerError with which it failed, for example because its disk did."""
        self._check()
        return await asyncio.shield(asyncio.wrap_future(self._ended))

    def close(self) -> None:
        """Hand over what it leads, answer what it has taken, and end. Waits for the end. Safe to call again. Raises the
        ServerError with which it failed."""
        self._ask()
        if self._thread.ident is not None:
            self._thread.join()
            self._ended.result()

    def __enter__(self) -> Self:
        self._begin()
        try:
            self._endpoints.result()
        except BaseException:
            self._ask()
            self._thread.join()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ask()
        self._thread.join()
        if error is None:
            self._ended.result()

    async def __aenter__(self) -> Self:
        self._begin()
        try:
            await asyncio.shield(asyncio.wrap_future(self._endpoints))
        except BaseException:
            self._ask()
            await self._wait()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ask()
        await self._wait()
        if error is None:
            self._ended.result()

    def _check(self) -> None:
        """Raise ServerError in a fork: the node's thread is not there, so nothing would be answered."""
        if not self._process.is_here:
            raise ServerError(
                f"the embedded node {self.node_id} belongs to the process that started it, and this is a fork of that "
                'process: start processes with multiprocessing\'s "spawn", or before the node'
            )

    def _begin(self) -> None:
        self._check()
        if self._thread.ident is not None:
            raise ServerError("an embedded node is started once; call metad.embedded.node again")
        self._thread.start()

    async def _wait(self) -> None:
        """Wait for its end, however it ends."""
        ended = asyncio.wrap_future(self._ended)
        await asyncio.wait((ended,))  # which cancels nothing if it is cancelled
        ended.exception()  # asyncio complains of errors that nobody has looked at
        self._thread.join()  # it has nothing left to do

    def _ask(self) -> None:
        """Ask the node to end. Returns at once."""
        self._check()
        with self._lock:
            self._asked = True
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._tell)

    def _served(self) -> tuple[str, str]:
        self._check()
        if not self._endpoints.done():
            raise ServerError(f"{self.node_id} does not serve yet")
        return self._endpoints.result()

    # --- in its thread ---

    def serves(self, server: Server) -> None:
        if not self._endpoints.done():  # it serves again, at the same endpoints
            self._endpoints.set_result((server.endpoint, server.quic_endpoint))

    def _main(self) -> None:
        failure: BaseException
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                why = runner.run(self._run())
        except BaseException as error:  # noqa: BLE001 - raised where the node was asked for
            failure = error
            self._ended.set_exception(failure)
        else:
            failure = ServerError(f"{self.node_id} ended before it served: {why}")
            self._ended.set_result(why)
        if not self._endpoints.done():
            self._endpoints.set_exception(failure)

    async def _run(self) -> str:
        with self._lock:
            loop = self._loop = asyncio.get_running_loop()
            self._told = loop.create_future()
            if self._asked:
                self._tell()
        try:
            return await serve_until(self._told, self._config, self)
        finally:
            with self._lock:
                self._loop = None  # nobody calls into a loop that is closed

    def _tell(self) -> None:
        if self._told is not None and not self._told.done():
            self._told.set_result("its host has ended it")


def node(data_dir: str | Path, *, config: str | Path | None = None, **settings: Any) -> HostedNode:
    """A node in this process, from the beginning to the end of a ``with`` or ``async with`` block. The block begins
    once the node serves: the founding nodes of a cluster wait until a majority of them has begun.

    ``settings`` are those of the configuration file, nested tables as dicts, and win over the file ``config``:
    ``node_id="a", listen="10.0.0.1:7420", cluster={"seeds": {…}}``. Environment variables are not read. Raises
    :class:`metad.errors.ServerError` if the node cannot start, and at the end of the block if it had failed by itself.
    """
    return HostedNode(
        Path(config) if config is not None else None, {**settings, "data_dir": str(Path(data_dir).absolute())}
    )
