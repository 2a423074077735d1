"""A broker's process dies, and its port shows it: the node does not wait for its lease to be over."""

from __future__ import annotations

import asyncio
import logging
import sys
import time

import pytest

import metad_client as sdk
from metad import embedded

LEASE_S = 10.0
WAIT_S = 120
BROKER = f"""
import asyncio, sys
import metad_client as sdk

async def main() -> None:
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with sdk.connect(sys.argv[1]) as m:
        await m.brokers.register("b1", lease_s={LEASE_S}, probe_port=port)
        print("lives", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_broker_that_is_killed_is_fenced_because_its_port_refuses(caplog: pytest.LogCaptureFixture) -> None:
    async with embedded.serve() as server, sdk.connect(server.url) as m, asyncio.timeout(WAIT_S):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", BROKER, server.url, stdout=asyncio.subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"lives\n"
            known_s = time.monotonic()
            while time.monotonic() < known_s + LEASE_S + 1:  # before, nothing is evidence
                assert await state(m) in ("registered", "active")
                await asyncio.sleep(0.1)
            with caplog.at_level(logging.INFO, "metad"):
                process.kill()
                while await state(m) != "fenced":  # noqa: ASYNC110 - the node does not call back
                    await asyncio.sleep(0.05)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
    reasons = [vars(record)["fields"]["reason"] for record in caplog.records if record.message == "broker_fenced"]
    assert reasons == ["its connection has ended, and its host refuses connections"]


async def state(m: sdk.Client) -> str:
    record = await m.brokers.get("b1")
    assert record is not None
    return record.state
