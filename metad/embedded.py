"""A server inside this process, in one line: for tests of brokers and for experiments.

::

    async with metad.embedded.serve() as server:
        async with metad_client.connect(f"metad://{server.endpoint}") as m: ...
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from metad_wire.extras import advice
from metad_wire.transport import Transport

from .config import load_config

try:
    from .server.network import Network
    from .server.serve import Server
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"metad.embedded: {advice(missing, 'server')}", name=missing.name) from None


@contextlib.asynccontextmanager
async def serve(
    data_dir: str | Path | None = None, *, transport: Transport | None = None, **settings: Any
) -> AsyncIterator[Server]:
    """Serve on a free loopback port until the block ends; yields the server (``.endpoint`` is host:port).

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
        yield server
    finally:
        await server.stop()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
