"""``python -m metad_perf.peers.quic_ends``: one end of ``metad-perf quic``, in a process of its own.

``server SIDE WORK CERT KEY CA`` prints its port and serves until stdin ends. ``client SIDE WORK CERT KEY CA PORT
SERVER_PID AMOUNT`` prints one JSON object with its measurements. SIDE is ``ours`` or ``stock``, WORK ``put`` or
``bulk``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

import psutil

from metad_wire.transport import split_endpoint
from metad_wire.transport.credentials import TlsFiles
from metad_wire.transport.quic import QuicTransport
from metad_wire.transport.tcp import install_uvloop

from . import quic_stock
from .quic_handlers import BulkClient, BulkServer, PutClient, PutServer

HOST = "127.0.0.1"
IN_FLIGHT = 256
_WARM_UP_S = 0.5


async def serve(side: str, work: str, files: TlsFiles) -> None:
    """Serve until stdin ends."""
    factory: Any = PutServer if work == "put" else BulkServer
    if side == "ours":
        listener = await QuicTransport(files, certificate_required=False).listen(HOST, 0, factory)
        port = split_endpoint(listener.endpoint)[1]
    else:
        port = (await quic_stock.listen(files, HOST, 0, factory))[1]
    print(port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def put(side: str, files: TlsFiles, port: int, server: psutil.Process, seconds: float) -> dict[str, float]:
    """Keep ``IN_FLIGHT`` puts in flight for ``seconds``."""

    async def measure(handler: PutClient) -> dict[str, float]:
        await asyncio.wait((handler.lost,), timeout=_WARM_UP_S)
        cpu_s, own_s, answered, began = _cpu_s(server), _cpu_s(psutil.Process()), handler.answered, time.perf_counter()
        await asyncio.wait((handler.lost,), timeout=seconds)
        elapsed_s, requests = time.perf_counter() - began, handler.answered - answered
        if handler.lost.done():
            handler.lost.result()
        return {
            "requests_per_s": requests / elapsed_s,
            "server_cpu_us": (_cpu_s(server) - cpu_s) / requests * 1e6,
            "client_cpu_us": (_cpu_s(psutil.Process()) - own_s) / requests * 1e6,
        }

    if side == "ours":
        return await measure(await QuicTransport(files).dial(HOST, port, lambda: PutClient(IN_FLIGHT), 5.0))
    async with quic_stock.dial(files, HOST, port, lambda: PutClient(IN_FLIGHT)) as connection:
        return await measure(connection.open())


async def bulk(side: str, files: TlsFiles, port: int, server: psutil.Process, total: float) -> dict[str, float]:
    """Send ``total`` bytes, one way, on one stream."""

    async def measure(handler: BulkClient, began: float, cpu_s: float) -> dict[str, float]:
        await handler.complete
        return {
            "mb_per_s": total / (time.perf_counter() - began) / 1e6,
            "server_cpu_us_per_kb": (_cpu_s(server) - cpu_s) / total * 1e9,
        }

    began, cpu_s = time.perf_counter(), _cpu_s(server)
    if side == "ours":
        handler = await QuicTransport(files).dial(HOST, port, lambda: BulkClient(int(total)), 5.0)
        return await measure(handler, began, cpu_s)
    async with quic_stock.dial(files, HOST, port, lambda: BulkClient(int(total))) as connection:
        return await measure(connection.open(), began, cpu_s)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    """Entry point."""
    end, side, work, certificate, key, ca = sys.argv[1:7]
    install_uvloop()
    if end == "server":
        asyncio.run(serve(side, work, TlsFiles(certificate=certificate, key=key, ca=ca)))
        return
    port, server, amount = int(sys.argv[7]), psutil.Process(int(sys.argv[8])), float(sys.argv[9])
    files = TlsFiles(ca=ca)
    measured = asyncio.run((put if work == "put" else bulk)(side, files, port, server, amount))
    print(json.dumps(measured), flush=True)
    sys.stdout.flush()
    os._exit(0)  # unfinished work does not matter


if __name__ == "__main__":
    main()
