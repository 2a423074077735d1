"""One node in this process: start it, tell its host when it serves, and drain it when it is told to end. The host of
``metad serve`` writes a ready file, and a signal tells it to end."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from metad_wire.program.open_files import raise_files_limit
from metad_wire.transport import split_endpoint

from . import log_events
from .config import UNIX, Config
from .config.files import NOWHERE, Origins
from .errors import DiskFullError, LeftError
from .logs import event, keeping
from .node.node import Node
from .process_limits import fitted, memory_shortage
from .ready_file import remove_ready, write_ready
from .server.network import Network, in_clear
from .server.serve import Server
from .service_manager import ServiceManager
from .storage.room import missing_to_open

_REMOVE_S = 0.2  # for which a node that ends waits until its ready file is removed
_LOOK_FOR_ROOM_S = 1.0
_OPEN_AGAIN_S = 2.0  # a node whose disk was full is opened again after this time at the earliest
_WAITING_S = 10.0  # from one line to the next that says why a node does not serve yet


def settle_interpreter() -> None:
    """Set up the interpreter of a process that hosts a node. Call it once the node is open."""
    # The fsync thread needs the interpreter to report: with the default interval a busy loop delays every commit by 5
    # ms.
    sys.setswitchinterval(0.0001)
    # Requests make thousands of short-lived objects. The long-lived ones exist by now and are frozen. A collection of
    # 5,000 new objects takes 2 ms, for which everybody waits.
    gc.unfreeze()  # those of a node that ran here before
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 4, 500)


_MMAP_THRESHOLD, _ARENA_MAX = -3, -8  # M_MMAP_THRESHOLD and M_ARENA_MAX of malloc.h
_LARGE_BYTES: Final = 384 * 1024
"""A memtable is made of blocks of 512 KiB or more; the payload of a thousand items is smaller."""


def bound_heap() -> None:
    """Have the C library keep little memory that nobody uses. Call it before there are threads, and a store is open.

    By itself it takes the blocks of memtables from its heap as soon as it has seen one go, and what lives longer comes
    to lie between them: after forty million new sessions 380 of 457 MB of that heap were free, and none went back. Now
    they are taken from the system, and given back at once. And each thread has a heap of its own by itself: as
    compactions replace files, the cached blocks of one thread give way to those of another, and each heap stays as
    large as it was once. Now all share one."""
    with contextlib.suppress(AttributeError, OSError):  # only glibc has it
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_ARENA_MAX, 1)


def look_at_memory(configs: Sequence[Config]) -> None:
    """Log whether nodes with these configurations may want more memory than there is here."""
    if (short := memory_shortage(configs)) is not None:
        event(log_events.MEMORY_SHORT, promised=short.configured, allowed=short.possible, reason=short.reason)


class Host:
    """What carries a node: told of each step of its life, in this order. Each method may be left as it is."""

    def locked(self) -> None:
        """This process has locked the stores, and no other one uses them."""

    def opened(self) -> None:
        """The node has recovered, and listens."""

    def serves(self, server: Server) -> None:
        """The cluster is formed, and every group here has a leader. Raises ServerError to end the node."""

    async def announces(self, server: Server) -> None:
        """The same, to whoever is outside of the process. Raises ServerError to end the node."""

    def ends(self) -> None:
        """The node takes no more requests from now on. Called once each time that it was opened."""


class Process(Host):
    """A process that is nothing but a node, with a ready file or without, and with a service manager or without."""

    def __init__(self, config: Config, ready_file: Path | None, manager: ServiceManager) -> None:
        self._config = config
        self._ready_file = ready_file
        self._manager = manager
        self._server: Server | None = None  # while it serves
        self._step = "opens its stores"

    def status(self) -> str:
        """Say in one line what the node does now."""
        if self._server is None:
            return f"node {self._config.node_id} {self._step}"
        status = self._server.node.status()
        leads = sum(group.role == "leader" for group in status.groups)
        return (
            f"node {status.node_id} serves at {self._server.endpoint}: leads {leads} of {len(status.groups)} groups, "
            f"{status.connections} connections"
        )

    def locked(self) -> None:
        # A killed process leaves its ready file. The lock of the stores proves that no running process owns it.
        remove_ready(self._ready_file)

    def opened(self) -> None:
        self._step = "waits for its groups to have leaders"
        settle_interpreter()

    async def announces(self, server: Server) -> None:
        self._server = server
        await self._announce(server)
        self._manager.ready(self.status())

    async def _announce(self, server: Server) -> None:
        if self._ready_file is None:
            return
        body: dict[str, Any] = {"endpoints": [server.endpoint], "pids": {self._config.node_id: os.getpid()}}
        if server.quic_endpoint:
            body["quic_endpoints"] = [server.quic_endpoint]
        if server.http is not None:
            body["http_endpoints"] = [server.http.endpoint]
        await write_ready(self._ready_file, body)

    def ends(self) -> None:
        self._server, self._step = None, "takes no requests"
        remove_ready(self._ready_file, wait_s=_REMOVE_S)


async def serve(config: Config, ready_file: Path | None, manager: ServiceManager, origins: Origins = NOWHERE) -> str:
    """Serve until SIGTERM or SIGINT, or until the node has left its cluster, then drain. Returns why it ended. Raises
    :class:`ServerError` if the node cannot start or fails. ``origins``: where the configuration is from."""
    loop = asyncio.get_running_loop()
    told: asyncio.Future[str] = loop.create_future()
    process = Process(config, ready_file, manager)

    def stop(name: str) -> None:
        if not told.done():
            told.set_result(name)
            manager.stopping(f"node {config.node_id} hands over, and answers what it has taken")

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number.name)
    beating = asyncio.create_task(manager.keep_alive(process.status))
    try:
        return await serve_until(told, config, process, origins)
    finally:
        beating.cancel()


async def serve_until(told: asyncio.Future[str], config: Config, host: Host, origins: Origins = NOWHERE) -> str:
    """Serve until ``told`` has a result, or until the node has left its cluster, then drain. Returns why it ended.
    Raises :class:`ServerError` if the node cannot start or fails. A full disk is no reason: the process waits for room,
    and opens the node again."""
    with keeping():
        return await _serve_until(told, config, host, origins)


async def _serve_until(told: asyncio.Future[str], config: Config, host: Host, origins: Origins) -> str:
    config, lowered = fitted(config, raise_files_limit())
    for one in lowered:
        event(
            log_events.LIMIT_LOWERED,
            key=one.key,
            configured=one.configured,
            possible=one.possible,
            reason=one.reason,
        )
    network = Network.of(config)
    for field, endpoint in in_clear(config).items():
        event(log_events.CLEAR_TEXT, field=field, endpoint=endpoint)
    while not told.done():
        try:
            server = await Server.start(config, network, locked=host.locked, origins=origins)
            config = _with_ports(config, server)
            return await _serve(told, server, host)
        except DiskFullError as error:
            await _wait_for_room(told, config, network, error)
    return told.result()


async def _serve(told: asyncio.Future[str], server: Server, host: Host) -> str:
    """Serve with an open node, until that is closed."""
    host.opened()
    running = asyncio.create_task(server.run())
    serving = asyncio.create_task(server.node.serving())
    waiting = asyncio.create_task(_tell_waiting(server))
    try:
        await asyncio.wait((running, told, serving), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if serving.done() and not serving.exception():
            event(log_events.SERVING, endpoint=server.endpoint, quic=server.quic_endpoint or None)
            host.serves(server)
            await host.announces(server)
        await asyncio.wait((running, told), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            with contextlib.suppress(LeftError):
                running.result()
    finally:
        serving.cancel()
        waiting.cancel()
        host.ends()
        event(log_events.DRAINING)
        if not await server.stop():
            event(log_events.NOT_DRAINED)
        running.cancel()
        await asyncio.gather(running, serving, waiting, return_exceptions=True)
    failure = server.node.failure
    if failure is not None and not server.node.closed and not isinstance(failure, DiskFullError):
        raise failure  # while it was stopping; what a full disk kept out of the state is in the log
    return told.result() if told.done() else str(server.node.left)


def _with_ports(config: Config, server: Server) -> Config:
    """The configuration that has the node listen at the same endpoints again."""
    bound = {"listen": server.endpoint, "quic": server.quic_endpoint}
    if server.http is not None and not config.http.startswith(UNIX):
        bound["http"] = server.http.endpoint
    chosen = {field: end for field, end in bound.items() if end and not split_endpoint(getattr(config, field))[1]}
    return msgspec.structs.replace(config, **chosen)


async def _wait_for_room(told: asyncio.Future[str], config: Config, network: Network, error: DiskFullError) -> None:
    """Wait until the stores can be opened again, or until the process is told to end. The log and the status say why
    meanwhile."""
    directory, begin_s, lines = Path(config.data_dir), time.monotonic(), 0
    server = await Server.tell(config, network, error)
    try:
        while not told.done():
            waited_s = time.monotonic() - begin_s
            try:
                missing = await asyncio.to_thread(missing_to_open, directory)
            except OSError:
                missing = 0  # the next start says what is wrong
            if not missing and waited_s >= _OPEN_AGAIN_S:
                return
            if waited_s >= lines * _WAITING_S:
                lines += 1
                event(
                    log_events.WAITS_FOR_ROOM,
                    directory=str(directory),
                    missing_bytes=missing,
                    waited_s=round(waited_s),
                    error=str(error),
                )
            await asyncio.wait((told,), timeout=_LOOK_FOR_ROOM_S)
    finally:
        await server.stop()


async def _tell_waiting(server: Server) -> None:
    """Log from time to time why the node does not serve yet. Without this, a wrong address is silent."""
    begin_s = time.monotonic()
    while True:
        await asyncio.sleep(_WAITING_S)
        waited_s = round(time.monotonic() - begin_s)
        why = why_not_serving(server.config, server.node)
        event(
            log_events.NOT_SERVING,
            waited_s=waited_s,
            reason=why.reason,
            join=why.join,
            unreached=why.unreached,
            groups=why.groups,
        )


class Waiting(NamedTuple):
    """What a node waits for."""

    reason: str
    join: Sequence[str] = ()
    """Where it asks to be taken in."""
    unreached: Sequence[str] = ()
    """The nodes that are not connected."""
    groups: Sequence[str] = ()
    """The groups without a leader."""


def why_not_serving(config: Config, node: Node) -> Waiting:
    """What the node waits for."""
    if node.map is None and config.cluster.join:
        return Waiting(
            "no node of cluster.join has taken this node in. Each must be the address of a node's listener for nodes "
            "(its cluster.listen, or its address in cluster.seeds), not of that for clients",
            join=list(config.cluster.join),
        )
    unreached = [link.node_id for link in node.outbound.statuses() if not link.up]
    if node.map is None:
        return Waiting("the cluster forms once a majority of cluster.seeds is connected", unreached=unreached)
    leaderless = [group.name for group in node.status().groups if not group.leader]
    return Waiting("groups have no leader", groups=leaderless, unreached=unreached)
