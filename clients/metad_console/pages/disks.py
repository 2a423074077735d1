"""Certificates and disks: what ends by itself one day, with how long that takes."""

from __future__ import annotations

import asyncio
import ssl
import time
from contextlib import suppress
from typing import Final

from nicegui import ui

from metad_client.cli import people
from metad_client.cli.view import ClusterView, NodeView
from metad_wire.operator.authority import ends_at
from metad_wire.transport import split_endpoint
from metad_wire.transport.credentials import CertificateError, TlsFiles
from metad_wire.transport.tls_context import client_context

from ..frame import REFRESH_S, each_reading, frame, headline, label, problem, tag
from ..listings import Row, Sliced, Table
from ..sessions import Session

LOOK_S: Final = 2.0
"""A node has so long to show its certificate."""
LOOKS_MAX: Final = 16
"""Nodes that are asked at the same time."""
NODES_MAX: Final = 200
SOON_MS: Final = 30 * 86_400_000
"""Nodes warn of certificates that end within a month, too."""


def page() -> None:
    """Build it."""
    with frame("/disks", "Certificates, disks", "What ends by itself one day.") as session:
        failed = problem("")
        tag("h2", "Disks")
        disks = Sliced("Disks", "No node says how its disk is.")
        tag("h2", "Certificates of the nodes")
        if session.tls is None:
            label("The console reaches the cluster without TLS, so there are none to look at.", "notice")
        else:
            _Certificates(session, session.tls)

    def show() -> None:
        reading = session.poll.reading
        failed.set_text(headline(session) if reading is not None and reading.error is not None else "")
        if reading is not None and reading.cluster is not None:
            disks.show([row for node in reading.cluster.nodes if (row := _disk(node))])

    each_reading(session, show)


def _disk(node: NodeView) -> Row | None:
    if node.status is None or not node.status.disk.total_bytes:
        return None
    disk = node.status.disk
    state = "too little room" if disk.short or disk.free_bytes < disk.low_bytes else "fine"
    if state == "fine" and disk.free_bytes < 2 * disk.low_bytes:
        state = "little room"
    return {
        "node": node.node,
        "state": node.status.failing or state,
        "free": people.size(disk.free_bytes),
        "of": people.size(disk.total_bytes),
        "used": f"{100 - 100 * disk.free_bytes // disk.total_bytes} %",
        "low below": people.size(disk.low_bytes),
        "lasts": people.duration(disk.lasts_ms) if disk.lasts_ms is not None else "does not shrink",
    }


class _Certificates:
    """Those of the nodes, looked at once when the page opens, because each look is a handshake. And our own files."""

    def __init__(self, session: Session, files: TlsFiles) -> None:
        self._session, self._files = session, files
        self._nodes = Table("Certificates of the nodes", "No node has an address for clients.")
        tag("h2", "Certificates of the console")
        self._own = Table("Certificates of the console", "None, or the package cryptography is not installed.")
        self._timer = ui.timer(REFRESH_S, self._look)

    async def _look(self) -> None:
        reading = self._session.poll.reading
        if reading is None or reading.cluster is None:
            return
        self._timer.deactivate()
        paths = [path for path in (self._files.certificate, self._files.ca) if path]
        ends = await asyncio.to_thread(lambda: [(path, ends_at(path)) for path in paths])
        self._own.show([_row("file", path, int(at.timestamp() * 1_000)) for path, at in ends if at is not None])
        self._nodes.show(await self._of_nodes(reading.cluster))

    async def _of_nodes(self, cluster: ClusterView) -> list[Row]:
        seats = asyncio.Semaphore(LOOKS_MAX)
        nodes = [node for node in cluster.nodes if node.record is not None and node.record.endpoint][:NODES_MAX]

        async def look(node: NodeView) -> Row:
            assert node.record is not None
            async with seats:
                try:
                    return _row("node", node.node, await _ends_ms(node.record.endpoint, self._files))
                except (OSError, CertificateError, TimeoutError, ValueError) as error:
                    return {"node": node.node, "ends": f"not seen: {error or 'no answer in time'}", "state": "unknown"}

        return list(await asyncio.gather(*map(look, nodes)))


def _row(what: str, name: str, ends_ms: int) -> Row:
    now_ms = int(time.time() * 1_000)
    state = "over" if ends_ms <= now_ms else "ends soon" if ends_ms < now_ms + SOON_MS else "fine"
    return {what: name, "ends": people.when(ends_ms, now_ms), "state": state}


async def _ends_ms(endpoint: str, files: TlsFiles) -> int:
    """When the certificate that a node shows ends, Unix milliseconds. Raises OSError (ssl.SSLError is one),
    CertificateError, TimeoutError."""
    host, port = split_endpoint(endpoint)
    context = await asyncio.to_thread(client_context, files)
    async with asyncio.timeout(LOOK_S):
        _, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        shown = writer.get_extra_info("peercert") or {}
        return int(ssl.cert_time_to_seconds(shown["notAfter"]) * 1_000)
    except KeyError:
        raise ValueError("it shows no certificate") from None
    finally:
        writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await writer.wait_closed()
