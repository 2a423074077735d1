"""``metad-perf wan --reconnect``: how many round trips it takes to be served again, by transport.

A node in one place and a client in another, the relay between. *New* is a first connection: from dialling to its first
answer. *Back* is a client whose connections were cut: from the cut to the answer to a call made at once. Over QUIC it
comes back with a ticket: a read is sent in 0-RTT data, a write once the handshake is over.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from metad_client import Backoff, Client, Options, connect
from metad_wire.program.running import run_async

from ..commands import Wan
from ..errors import ServerError, UsageError
from ..faults import netns
from ..report import output
from ..report.conclusion import reported
from ..spawn import disk_directory
from . import relay
from .cells import CLIENT, SERVER, served
from .relay_line import Path as LinePath

READ_ROUND_TRIPS_MAX = 1.5
"""Limit for a read that comes back over QUIC: one round trip and the machine's own time; the next step would be two."""
_ROUNDS = 7
_TICKET_ROUND_TRIPS = 3  # a connection's ticket comes after its handshake
_OPTIONS = Options(backoff=Backoff(family="none"), connect_timeout_s=30.0, handshake_timeout_s=10.0)


def run(command: Wan) -> int:
    """Returns the exit code: 1 if a read over QUIC takes more than its round trip. Raises UsageError, ServerError."""
    rtts_ms, loss_pct = command.rtt_ms, command.one_loss
    if not rtts_ms or min(rtts_ms) <= 0:
        raise UsageError("--reconnect needs --rtt-ms over 0: over no distance nothing is to be seen")
    if lacking := relay.missing():
        raise ServerError(lacking)
    directory = Path(tempfile.mkdtemp(prefix="metad-perf-", dir=disk_directory()))
    try:
        with relay.places(2, 1) as places, output.progress("reconnect", len(rtts_ms)) as progress:
            server, at, options = served(places, directory)
            options = msgspec.structs.replace(_OPTIONS, tls=options.tls)
            rows = []
            try:
                server.start()
                for rtt_ms in rtts_ms:
                    places.shape(SERVER, CLIENT, LinePath(delay_ms=rtt_ms / 2, loss_pct=loss_pct))
                    with netns.inside(places.network.space(CLIENT)):  # sockets made here belong to that place
                        rows.append(run_async(_row(at, options, rtt_ms)))
                    progress(1)
                server.stop()
            finally:
                server.kill()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    output.write_json(command.json, reported(command, {"rows": rows, "loss_pct": loss_pct, "rounds": _ROUNDS}))
    cases = [name for name in rows[0] if name != "rtt_ms"]
    output.table(
        "round trips until the first answer",
        ["RTT ms", *(name.removesuffix("_ms").replace("_", " ") for name in cases)],
        [[row["rtt_ms"], *(row[case] / row["rtt_ms"] for case in cases)] for row in rows],
    )
    slow = [row for row in rows if row["quic_back_read_ms"] > READ_ROUND_TRIPS_MAX * row["rtt_ms"]]
    for row in slow:
        output.say(f"at {row['rtt_ms']:g} ms a read over QUIC took more than its round trip")
    return 1 if slow else 0


async def _row(at: str, options: Options, rtt_ms: float) -> dict[str, float]:
    """Medians, in ms."""
    row = {"rtt_ms": rtt_ms}
    for name, url in (("tls", f"metads://{at}"), ("quic", f"metadq://{at}")):
        new: list[float] = []
        back_read: list[float] = []
        back_write: list[float] = []
        for _ in range(_ROUNDS):
            begin = time.monotonic()
            async with connect(url, options) as client:
                await _read(client)
                new.append(time.monotonic() - begin)
                for call, times in ((_read, back_read), (_write, back_write)):
                    for _ in range(_TICKET_ROUND_TRIPS):
                        await _read(client)
                    times.append(await _back(client, call))
        for case, times in (("new", new), ("back_read", back_read), ("back_write", back_write)):
            row[f"{name}_{case}_ms"] = 1e3 * statistics.median(times)
    return row


async def _back(client: Client, call: Callable[[Client], Awaitable[Any]]) -> float:
    """Seconds from the cut to an answer."""
    client.reconnect()
    begin = time.monotonic()
    await call(client)
    return time.monotonic() - begin


async def _read(client: Client) -> None:
    await client.kv.get("wan", "reconnect")


async def _write(client: Client) -> None:
    await client.kv.put("wan", "reconnect", b"again")
