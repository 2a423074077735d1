"""The console as a server: the pages behind their admission, on one socket, until a signal ends it."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from typing import Final, NamedTuple

import uvicorn
from fastapi import FastAPI
from nicegui import app, ui

from .admission import Admission, Place
from .pages import audit, brokers, busy, cluster, disks, events, front, records, storm, watch
from .sessions import Sessions

SWEEP_S: Final = 15.0
"""How often sessions are looked at that nobody uses."""
CONNECTIONS_MAX: Final = 512
"""Of browsers: each page has one, and loads its files over some more."""
SOCKET_BYTES_MAX: Final = 256 * 1024
"""One message of a browser: a form field, at most."""
END_S: Final = 3
"""Open pages have so long to hear that the console ends."""
_PAGES: Final = {
    "/": (front.page, "Overview"),
    "/cluster": (cluster.page, "Cluster"),
    "/brokers": (brokers.page, "Brokers"),
    "/records": (records.page, "Records"),
    "/watch": (watch.page, "Watch"),
    "/storm": (storm.page, "Storm"),
    "/busy": (busy.page, "Slow and loud"),
    "/events": (events.page, "Events"),
    "/disks": (disks.page, "Certificates, disks"),
    "/audit": (audit.page, "Audit"),
}


class Files(NamedTuple):
    """Certificate and key of the console, as PEM; empty without TLS."""

    certificate: str = ""
    key: str = ""


async def serve(sessions: Sessions, place: Place, listening: socket.socket, files: Files) -> None:
    """Serve until SIGTERM or SIGINT. Prints the address when it does."""
    for path, (build, title) in _PAGES.items():
        ui.page(path, title=f"{title} - metad console")(build)
    app.config.socket_io_js_transports = ["websocket"]  # polling would be a second way in
    inner = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    ui.run_with(
        inner,
        title="metad console",
        favicon=None,
        dark=None,
        tailwind=False,
        show_welcome_message=False,
        binding_refresh_interval=None,
        reconnect_timeout=3.0,
        message_history_length=100,
    )
    config = uvicorn.Config(
        Admission(inner, sessions, place),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=CONNECTIONS_MAX,
        ws_max_size=SOCKET_BYTES_MAX,
        timeout_graceful_shutdown=END_S,
        ssl_certfile=files.certificate or None,
        ssl_keyfile=files.key or None,
    )
    server = _Server(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    sweeping = loop.create_task(_sweep(sessions), name="console-sweep")
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    server.said = f"metad-console serves on {place.scheme}://{shown}:{port}"
    try:
        await server.serve(sockets=[listening])
    finally:
        sweeping.cancel()
        await sessions.close()


class _Server(uvicorn.Server):
    """Says where it serves once it does, and leaves the signals to the loop."""

    said = ""

    def install_signal_handlers(self) -> None:
        """Do nothing: older versions of uvicorn call it."""

    def stop(self) -> None:
        """End, and do not wait for those who do not go."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve."""
        await super().startup(sockets)
        if self.started:
            sys.stdout.write(f"{self.said}\n")
            sys.stdout.flush()


async def _sweep(sessions: Sessions) -> None:
    while True:
        await asyncio.sleep(SWEEP_S)
        await sessions.sweep()
