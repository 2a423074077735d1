"""Certificates and disks: what ends by itself one day, with how long that takes."""

from __future__ import annotations

import asyncio
import time

from nicegui import ui

from metad_client.cli import people
from metad_client.cli.verdict import ENDS_MS
from metad_client.cli.view import NodeView
from metad_wire.operator.authority import ends_at
from metad_wire.transport.credentials import TlsFiles

from ..frame import each_reading, frame, headline, label, problem, tag
from ..listings import Row, Sliced, Table


def page() -> None:
    """Build it."""
    with frame("/disks", "Certificates, disks", "What ends by itself one day.") as session:
        failed = problem("")
        tag("h2", "Disks")
        disks = Sliced("Disks", "No node says how its disk is.")
        tag("h2", "Certificates of the nodes")
        certificates = Sliced("Certificates of the nodes", "The nodes have none, or do not say so.")
        _own(session.tls)

    def show() -> None:
        reading = session.poll.reading
        failed.set_text(headline(session) if reading is not None and reading.error is not None else "")
        if reading is not None and reading.cluster is not None:
            disks.show([row for node in reading.cluster.nodes if (row := _disk(node))])
            certificates.show([row for node in reading.cluster.nodes for row in _of_node(node)])

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


def _own(files: TlsFiles | None) -> None:
    """Show the certificates of the console itself, which are files here."""
    tag("h2", "Certificates of the console")
    if files is None:
        label("The console reaches the cluster without TLS.", "notice")
        return
    table = Table("Certificates of the console", "None, or the package cryptography is not installed.")

    async def look() -> None:
        now_ms = int(time.time() * 1_000)
        paths = [path for path in (files.certificate, files.ca) if path]
        ends = await asyncio.to_thread(lambda: [(path, ends_at(path)) for path in paths])
        table.show([_row({"file": path}, int(at.timestamp() * 1_000) - now_ms) for path, at in ends if at is not None])

    ui.timer(0, look, once=True)


def _of_node(node: NodeView) -> list[Row]:
    certificates = [] if node.status is None else node.status.certificates
    return [_row({"node": node.node, "setting": one.key}, one.lasts_ms) for one in certificates]


def _row(what: Row, lasts_ms: int) -> Row:
    state = "over" if lasts_ms <= 0 else "ends soon" if lasts_ms < ENDS_MS else "fine"
    return {**what, "lasts": people.duration(max(0, lasts_ms)), "state": state}
