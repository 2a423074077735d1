"""A client that changes its connection under load, against a real server on loopback: each write happens once."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

import metad.embedded
from metad_client import Client, Options, connect
from metad_client.connections import manager
from metad_client.connections.transport_choice import transports_of
from metad_perf.attack import sites as certificates
from metad_wire.transport import tls
from metad_wire.transport.credentials import PathSample

LOSSY = PathSample(rtt_s=0.05, sent=1_000, lost=30)
CLEAN = PathSample(rtt_s=0.05, sent=1_000, lost=0)


async def test_a_client_changes_over_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """To QUIC as the path begins to lose, and back once it has healed; a real server, on loopback."""
    monkeypatch.setattr(manager, "STEER_S", 0.02)
    monkeypatch.setattr(manager, "REFRESH_S", 0.1)
    path = CLEAN
    node = certificates.node("node-1")
    security = {"certificate": node.certificate, "key": node.key, "ca": node.ca}
    async with metad.embedded.serve(quic="127.0.0.1:0", security=security) as server:
        options = Options(tls=certificates.client())
        host, _, port = server.endpoint.rpartition(":")
        transports = transports_of("metad+auto", options)
        note = transports.note
        monkeypatch.setattr(transports, "note", lambda endpoint, name, _: note(endpoint, name, path))
        client = Client([(host, int(port))], options, transports=transports, rng=random.Random(1))
        async with client:
            written = 0

            async def write_until(via: str) -> None:
                nonlocal written
                until_s = time.monotonic() + 120
                while client.statistics().via != {"node-1": via}:
                    assert time.monotonic() < until_s
                    versions = await asyncio.gather(*(client.kv.put("way", "key", b"x") for _ in range(20)))
                    written += len(versions)
                    await asyncio.sleep(0.01)

            await write_until("tls")
            path = LOSSY
            await write_until("quic")
            path = CLEAN
            await write_until("tls")
            found = await client.kv.get("way", "key")
            assert found is not None
            assert found.version == written, "each write happened once"
            assert client.statistics().changes == 2


async def test_a_client_moves_on_from_keys_that_are_worn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "RECORDS_MAX", 50)
    node = certificates.node("node-1")
    security = {"certificate": node.certificate, "key": node.key, "ca": node.ca}
    async with (
        metad.embedded.serve(security=security) as server,
        connect(f"metads://{server.endpoint}", Options(tls=certificates.client())) as client,
    ):
        written, until_s = 0, time.monotonic() + 120
        while client.statistics().reconnects < 2:
            assert time.monotonic() < until_s
            assert await client.kv.put("worn", "key", b"x") == written + 1
            written += 1
        assert written > 50
