"""An HTTP port of a node: ``/livez``, ``/readyz`` and ``/metrics``.

It has threads of its own, so that whoever asks cannot delay requests, and an overloaded node still says that it lives.
What it shows is read in the node's loop, for at most :data:`LOOP_S`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from concurrent.futures import TimeoutError as FutureTimeoutError
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import inf
from socketserver import TCPServer
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

from metad_wire.errors import MetadError
from metad_wire.messages import Request, Status
from metad_wire.methods import STATUS
from metad_wire.transport import join_endpoint
from metad_wire.transport.credentials import PEERCERT, Principal, TlsFiles
from metad_wire.transport.reload import Reloaded
from metad_wire.transport.tls_context import server_context

from ... import logs
from ...config import Config, is_loopback
from ...control.brokers.brokers import figures as brokers_of
from ...errors import ConfigError
from ...node.node import Node
from ...node.watches.watches import behind
from ..access import Access
from ..network import clients_need_certificates, files_of
from .metrics import Reading, page

LOOP_S: Final = 3.0
"""A loop that does not answer for so long is not ready."""
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


class Readiness(NamedTuple):
    """Says what a node is not ready for."""

    checks: dict[str, str]
    """Name of each check -> why it fails; empty: it does not."""

    def text(self, *, verbose: bool) -> str:
        """For the page: the checks that fail, or all."""
        shown = {name: why for name, why in self.checks.items() if why or verbose}
        lines = [f"[{'-' if why else '+'}] {name}: {why or 'ok'}" for name, why in shown.items()]
        return "\n".join([*lines, "not ready" if any(self.checks.values()) else "ready", ""])


class _Peer:
    """Who asks: what it has shown, as the streams of clients have it, and then a source of requests."""

    def __init__(self, host: str, certificate: Any) -> None:
        self._certificate = certificate
        self.host = self.holder = host
        self.principal: Principal | None = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._certificate if name == PEERCERT else default


class Shown:
    """Reads what the port shows of a node."""

    def __init__(self, node: Node, access: Access, *, checked: bool) -> None:
        """``checked``: peers have to say who they are."""
        self._node, self._access, self._checked = node, access, checked

    def reading(self) -> Reading:
        """Read what a scrape shows."""
        node = self._node
        return Reading(
            node.status(),
            node.requests.meters,
            {"state": node.stores.state.figures(), "log": node.stores.log.engine.figures()},
            logs.COUNTS,
            *brokers_of(node.brokers),
            behind(node.watches),
        )

    async def ready(self) -> Readiness:
        """Whether the node serves: it has leaders for its groups, and has read what the last write to ``metadata-0``
        wrote."""
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

    def admit(self, host: str, certificate: Any, token: str) -> None:
        """Raises UnauthenticatedError, and PermissionDeniedError where roles say who may ask for the status."""
        if not self._checked:
            return
        node, peer = self._node, _Peer(host, certificate)
        peer.principal = self._access.admit(peer, token.encode(), node.environment.wall_ms() / 1_000).principal  # type: ignore[arg-type]
        if peer.principal is not None:
            peer.holder = peer.principal.uri
            node.permissions.admit(STATUS, Request(0, None, Status(), ""), None, peer)


class HttpPort:
    """Answers until it is closed."""

    @classmethod
    def of(cls, host: str, port: int, config: Config, node: Node, access: Access) -> HttpPort:
        """Listen. On loopback in clear text, for all; elsewhere peers show a certificate or a token, as clients do.
        Raises ConfigError."""
        encrypted = config.security.encrypted and not is_loopback(host)
        files, required = files_of(config) if encrypted else None, clients_need_certificates(config.security)
        return cls(host, port, Shown(node, access, checked=encrypted), files, certificate_required=required)

    def __init__(
        self, host: str, port: int, shown: Shown, files: TlsFiles | None, *, certificate_required: bool
    ) -> None:
        """``files``: of TLS; None: clear text. ``certificate_required``: no peer may show a token instead. Raises
        ConfigError if it cannot listen."""
        loop = asyncio.get_running_loop()
        context = None
        if files is not None:
            context = Reloaded(files, lambda files: server_context(files, certificate_required=certificate_required))

        class Handler(_Handler):
            shows = shown
            of_loop = loop

        try:
            self._server = _Listener((host, port), Handler, context)
        except OSError as error:
            raise ConfigError(f"http: cannot listen on {host}:{port}: {error.strerror or error}") from None
        self._thread = threading.Thread(target=self._server.serve_forever, name="metad-http", daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        """host:port."""
        return join_endpoint(self._server.server_name, self._server.server_port)

    async def close(self) -> None:
        """Take no more requests."""
        await asyncio.to_thread(self._server.shutdown)
        self._server.server_close()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: type[_Handler], tls: Reloaded[ssl.SSLContext] | None) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._tls = tls
        self._places = threading.BoundedSemaphore(2 * _AT_ONCE)  # of those that were hung up some still end
        self._taken: dict[Any, float] = {}  # connections, the oldest first, and since when
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's would ask a name server
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

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


class _Handler(BaseHTTPRequestHandler):
    shows: Shown
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
        try:
            found = asked.result(LOOP_S)
        except FutureTimeoutError:
            asked.cancel()
            self._say(503, f"the node did not answer within {LOOP_S:.0f} s\n")
        except MetadError as error:
            self._say(403, f"{error}\n")
        else:
            if isinstance(found, Readiness):
                self._say(503 if any(found.checks.values()) else 200, found.text(verbose=verbose))
            else:
                self._send(200, *page(found, self.headers.get("Accept", "")))

    async def _asked(self, path: str) -> Reading | Readiness:
        certificate = self.connection.getpeercert() if isinstance(self.connection, ssl.SSLSocket) else None
        kind, _, token = self.headers.get("Authorization", "").partition(" ")
        self.shows.admit(str(self.client_address[0]), certificate, token if kind.lower() == "bearer" else "")
        return self.shows.reading() if path == "/metrics" else await self.shows.ready()

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
