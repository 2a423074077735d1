"""An HTTP port: ``/livez``, ``/readyz`` and ``/metrics``, of a node, or of all workers of a machine (:mod:`.machine`).

It has threads of its own, so that whoever asks cannot delay requests, and an overloaded node still says that it lives.
What it shows is read in the loop of its process, which is asked for it for a bounded time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import inf
from socketserver import TCPServer
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import parse_qs, urlsplit

from metad_wire.errors import MetadError, OverloadedError, UnauthenticatedError
from metad_wire.messages import Request, Status
from metad_wire.methods import STATUS
from metad_wire.transport import join_endpoint, split_endpoint
from metad_wire.transport.credentials import PEERCERT, Principal, principal_named
from metad_wire.transport.reload import Reloaded
from metad_wire.transport.tls_context import server_context

from ... import logs
from ...config import UNIX, Config, is_loopback
from ...control.brokers.brokers import figures as brokers_of
from ...errors import ConfigError
from ...node.node import Node
from ...node.watches.watches import behind
from ..access import Access
from ..network import clients_need_certificates, files_of
from .metrics import Reading, page

LOOP_S: Final = 3.0
"""A node whose loop does not answer for so long is not ready."""
READ_S: Final = 2.0
"""A linearizable read that takes longer has failed."""
_PEER_S: Final = 5.0  # for which a peer may be silent
_WHOLE_S: Final = 10.0
"""For which a connection may last."""
_AT_ONCE: Final = 16
"""Connections; with one more the oldest is closed."""
_GOES_S: Final = 0.2
"""For which a new connection waits until an old one has ended."""
_TEXT: Final = "text/plain; charset=utf-8"
ASKER: Final = "Metad-Asker"
"""The header that says on a socket for whom its other end asks: a principal's URI, and a host. Without it nobody is
checked there."""
Page = Callable[[], tuple[bytes, str]]
"""Makes a page and its content type, beside the loop."""


class Readiness(NamedTuple):
    """Says what a node is not ready for."""

    checks: dict[str, str]
    """Name of each check -> why it fails; empty: it does not."""

    def text(self, *, verbose: bool) -> str:
        """For the page: the checks that fail, or all."""
        shown = {name: why for name, why in self.checks.items() if why or verbose}
        lines = [f"[{'-' if why else '+'}] {name}: {why or 'ok'}" for name, why in shown.items()]
        return "\n".join([*lines, "not ready" if any(self.checks.values()) else "ready", ""])


class Asker:
    """Who asks: a source of requests."""

    def __init__(self, host: str, principal: Principal | None) -> None:
        self.host, self.principal = host, principal
        self.holder = host if principal is None else principal.uri


class _Shown:
    """What a peer has shown, as the streams of clients have it."""

    def __init__(self, certificate: Any) -> None:
        self._certificate = certificate

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._certificate if name == PEERCERT else default


class Door:
    """Lets peers in, at a port where they have to say who they are."""

    def __init__(self, config: Config, access: Access, wall_s: Callable[[], float]) -> None:
        """``wall_s``: Unix time."""
        self.files = files_of(config)
        self.certificate_required = clients_need_certificates(config.security)
        """No peer may show a token instead."""
        self._access, self._wall_s = access, wall_s

    def admit(self, host: str, certificate: Any, token: str) -> Asker:
        """Raises UnauthenticatedError."""
        shown: Any = _Shown(certificate)
        return Asker(host, self._access.admit(shown, token.encode(), self._wall_s()).principal)

    @staticmethod
    def has(config: Config) -> bool:
        """Whether the port of this configuration has one. On loopback it is in clear text, for all."""
        http = config.http
        return config.security.encrypted and not http.startswith(UNIX) and not is_loopback(split_endpoint(http)[0])


class Shows(Protocol):
    """Says what a port shows."""

    @property
    def within_s(self) -> float:
        """For how long it is asked at most."""

    async def readiness(self, asker: Asker) -> Readiness:
        """Raises MetadError if they may not know."""

    async def metrics(self, asker: Asker, accept: str) -> Page:
        """In the format of an ``Accept`` header. Raises MetadError if they may not know."""


class ShowsNode:
    """Reads what the port shows of a node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def within_s(self) -> float:
        """See :data:`LOOP_S`."""
        return LOOP_S

    async def metrics(self, asker: Asker, accept: str) -> Page:
        """Read what a scrape shows."""
        self._may_ask(asker)
        return partial(page, self.reading(), accept)

    def reading(self) -> Reading:
        """Read what a scrape shows."""
        node = self._node
        return Reading(
            node.status(),
            (meters := node.requests.meters),
            meters.by_name(),
            {"state": node.stores.state.figures(), "log": node.stores.log.engine.figures()},
            logs.COUNTS,
            *brokers_of(node.brokers),
            behind(node.watches),
        )

    async def readiness(self, asker: Asker) -> Readiness:
        """Whether the node serves: it has leaders for its groups, and has read what the last write to ``metadata-0``
        wrote."""
        self._may_ask(asker)
        node = self._node
        status = node.status()
        leaderless = [group.name for group in status.groups if group.leaderless_ms]
        return Readiness(
            {
                "storage": status.failing or ("its disk has next to no room" if status.disk.short > 1 else ""),
                "draining": "the node ends" if node.requests.draining else "",
                "groups": f"no leader: {', '.join(leaderless)}" if leaderless else "" if status.groups else "none yet",
                "read": await self._read(),
            }
        )

    async def _read(self) -> str:
        """Why a linearizable read did not work."""
        answer: asyncio.Future[bytes | MetadError] = asyncio.get_running_loop().create_future()
        self._node.leaders.last(lambda result: None if answer.done() else answer.set_result(result))
        try:
            found = await asyncio.wait_for(answer, READ_S)
        except TimeoutError:
            return f"not answered within {READ_S:.0f} s"
        return str(found) if isinstance(found, MetadError) else ""

    def _may_ask(self, asker: Asker) -> None:
        """Raise PermissionDeniedError where roles say who may ask for the status."""
        if asker.principal is not None:
            self._node.permissions.admit(STATUS, Request(0, None, Status(), ""), None, asker)


class HttpPort:
    """Answers until it is closed."""

    @classmethod
    def of(cls, config: Config, node: Node, access: Access) -> HttpPort:
        """Listen where the configuration of a node says. Raises ConfigError."""
        door = Door(config, access, lambda: node.environment.wall_ms() / 1_000) if Door.has(config) else None
        return cls(config.http, ShowsNode(node), door)

    def __init__(self, at: str, shown: Shows, by: Door | None) -> None:
        """``at``: HOST:PORT, or unix:PATH. ``by`` None: in clear text, for all. Raises ConfigError if it cannot
        listen."""
        loop = asyncio.get_running_loop()
        context = None
        if by is not None:
            required = by.certificate_required
            context = Reloaded(by.files, lambda files: server_context(files, certificate_required=required))

        class Handler(_Handler):
            shows = shown
            door = by
            of_loop = loop

        try:
            if at.startswith(UNIX):
                self._server: _Listener = _SocketListener(at.removeprefix(UNIX), Handler, None)
            else:
                self._server = _Listener(split_endpoint(at), Handler, context)
        except OSError as error:
            raise ConfigError(f"http: cannot listen on {at}: {error.strerror or error}") from None
        self._thread = threading.Thread(target=self._server.serve_forever, name="metad-http", daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        """host:port, or unix:path."""
        return self._server.endpoint

    async def close(self) -> None:
        """Take no more requests."""
        await asyncio.to_thread(self._server.shutdown)
        self._server.server_close()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(
        self, address: tuple[str, int] | str, handler: type[_Handler], tls: Reloaded[ssl.SSLContext] | None
    ) -> None:
        if not isinstance(address, str):
            self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._tls = tls
        self._places = threading.BoundedSemaphore(2 * _AT_ONCE)  # of those that were hung up some still end
        self._taken: dict[Any, float] = {}  # connections, the oldest first, and since when
        self._lock = threading.Lock()
        super().__init__(address, handler)  # type: ignore[arg-type] # a path is the address of a socket

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's would ask a name server
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return join_endpoint(self.server_name, self.server_port)

    def service_actions(self) -> None:
        """Hang up on who takes too long, twice a second."""
        self._hang_up_before(time.monotonic() - _WHOLE_S)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Take a connection. The oldest goes if there are too many: an honest one is over within milliseconds."""
        if len(self._taken) >= _AT_ONCE:
            self._hang_up_before(inf, 1)
        if not self._places.acquire(timeout=_GOES_S):
            self.shutdown_request(request)
            return
        request.settimeout(_PEER_S)
        if self._tls is not None:
            context = self._tls.current()
            request = context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        with self._lock:
            self._taken[request] = time.monotonic()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            if self._tls is not None:
                request.do_handshake()
            super().process_request_thread(request, client_address)
        except (OSError, ValueError):  # of which one of TLS is one: a stranger, who gets no line
            self.shutdown_request(request)
        finally:
            with self._lock:
                self._taken.pop(request, None)
            self._places.release()

    def _hang_up_before(self, begun_s: float, most: int = _AT_ONCE) -> None:
        with self._lock:
            over = [request for request, since_s in self._taken.items() if since_s < begun_s][:most]
            for request in over:
                del self._taken[request]
        for request in over:
            with contextlib.suppress(OSError):  # its thread ends, and closes it
                socket.socket.shutdown(request, socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The peer has gone, or sends nothing."""


class _SocketListener(_Listener):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        path = str(self.server_address)
        with contextlib.suppress(FileNotFoundError):  # of a process that was killed
            os.unlink(path)
        TCPServer.server_bind(self)

    def server_close(self) -> None:
        """Remove the socket, too."""
        super().server_close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(str(self.server_address))

    @property
    def endpoint(self) -> str:
        return f"{UNIX}{self.server_address!s}"


class _Handler(BaseHTTPRequestHandler):
    shows: Shows
    door: Door | None
    of_loop: asyncio.AbstractEventLoop
    server_version, sys_version = "metad", ""
    timeout = _PEER_S

    def do_GET(self) -> None:
        """Answer one request."""
        url = urlsplit(self.path)
        if url.path == "/livez":
            self._say(200, "alive\n")
        elif url.path in ("/readyz", "/metrics"):
            self._show(url.path, verbose="verbose" in parse_qs(url.query, keep_blank_values=True))
        else:
            self._say(404, "there are /livez, /readyz and /metrics\n")

    do_HEAD = do_GET

    def _show(self, path: str, *, verbose: bool) -> None:
        asked = asyncio.run_coroutine_threadsafe(self._asked(path), self.of_loop)
        within_s = self.shows.within_s
        try:
            found = asked.result(within_s)
        except FutureTimeoutError:
            asked.cancel()
            self._say(503, f"the node did not answer within {within_s:.0f} s\n")
        except MetadError as error:
            self._say(503 if isinstance(error, OverloadedError) else 403, f"{error}\n")
        else:
            if isinstance(found, Readiness):
                self._say(503 if any(found.checks.values()) else 200, found.text(verbose=verbose))
            else:
                self._send(200, *found())

    async def _asked(self, path: str) -> Page | Readiness:
        asker = self._asker()
        if path == "/metrics":
            return await self.shows.metrics(asker, self.headers.get("Accept", ""))
        return await self.shows.readiness(asker)

    def _asker(self) -> Asker:
        """Raises UnauthenticatedError."""
        if self.connection.family == socket.AF_UNIX:
            uri, _, host = self.headers.get(ASKER, "").partition(" ")
            if (principal := principal_named(uri)) is None and uri:
                raise UnauthenticatedError(f"{uri!r} is no principal")
            return Asker(host, principal)
        host = str(self.client_address[0])
        if self.door is None:
            return Asker(host, None)
        certificate = self.connection.getpeercert() if isinstance(self.connection, ssl.SSLSocket) else None
        kind, _, token = self.headers.get("Authorization", "").partition(" ")
        return self.door.admit(host, certificate, token if kind.lower() == "bearer" else "")

    def _say(self, status: int, text: str) -> None:
        self._send(status, text.encode(), _TEXT)

    def _send(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a scrape is no event."""
