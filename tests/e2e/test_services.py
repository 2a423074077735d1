"""Clients and nodes find a cluster by records of type SRV of a real DNS server, which change while they run."""

from __future__ import annotations

import asyncio
import importlib.util
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import dns.asyncresolver
import pytest
import pytest_asyncio
from e2e_nodes import Nodes
from e2e_server import SMALL, Server, free_ports
from name_server import NameServer

from metad import embedded
from metad_client import ConnectionLostError, InvalidRequestError, Options, connect
from metad_wire.transport.services import endpoints_of, service_problem
from waiting import wait_until

CLIENTS, PEERS = "_metad._tcp.example.test", "_metad-peer._tcp.example.test"


@pytest_asyncio.fixture
async def names(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NameServer]:
    server = NameServer()
    await server.open()
    resolver = dns.asyncresolver.Resolver(configure=False)
    resolver.nameservers, resolver.port = ["127.0.0.1"], server.port
    monkeypatch.setattr(dns.asyncresolver, "default_resolver", resolver)
    yield server
    server.close()


def at(endpoint: str, priority: int = 1, weight: int = 1) -> str:
    host, port = endpoint.rsplit(":", 1)
    return f"{priority} {weight} {port} {'localhost' if host == '127.0.0.1' else host}."


async def test_a_client_finds_a_cluster_and_finds_it_again_after_it_has_moved(names: NameServer) -> None:
    fast = Options(connect_timeout_s=20.0)
    async with embedded.serve() as first, embedded.serve() as second:
        (dead,) = free_ports(1)
        names.services[CLIENTS] = [at(f"127.0.0.1:{dead}", 1), at(first.endpoint, 2), at("no-such-host.test:7", 3)]
        async with connect(f"metad://{CLIENTS}", fast) as m:
            await m.kv.put("found", "by", b"a record")
        names.services[CLIENTS] = [at(second.endpoint)]
        async with connect(f"metad://{CLIENTS},127.0.0.1:{dead}", fast) as m:
            assert await m.kv.get("found", "by") is None, "it is another cluster"
    assert set(names.asked) == {CLIENTS}


async def test_a_client_waits_for_a_service_that_is_not_there_yet(names: NameServer) -> None:
    async with embedded.serve() as server:
        opening = asyncio.create_task(connect(f"metad://{CLIENTS}", Options(connect_timeout_s=30.0)).open())
        await asyncio.to_thread(wait_until, lambda: len(names.asked) >= 2, "it asks again")
        names.services[CLIENTS] = []
        asked = len(names.asked)
        await asyncio.to_thread(wait_until, lambda: len(names.asked) >= asked + 2, "it asks again")
        names.services[CLIENTS] = [at(server.endpoint)]
        m = await opening
        await m.kv.put("found", "at", b"last")
        await m.close()


@pytest.mark.parametrize(
    ("records", "why"),
    [
        (None, "was not found: The DNS query name does not exist"),
        ([], "has no records of type SRV"),
        (["0 0 0 ."], "has no records of type SRV"),
    ],
)
async def test_why_a_service_is_not_found_is_said(names: NameServer, records: list[str] | None, why: str) -> None:
    if records is not None:
        names.services[CLIENTS] = records
    with pytest.raises(ConnectionLostError, match=why):
        await connect(f"metad://{CLIENTS}", Options(connect_timeout_s=0.5)).open()


async def test_priorities_go_before_and_weights_share(names: NameServer) -> None:
    names.services[CLIENTS] = ["1 90 1 often.test.", "1 10 2 seldom.test.", "0 1 3 before.test.", "0 1 3 before.test."]
    first: Counter[str] = Counter()
    random.seed(5)
    for _ in range(200):
        found = await endpoints_of(CLIENTS)
        assert found[0] == ("before.test", 3)
        assert sorted(found[1:]) == [("often.test", 1), ("seldom.test", 2)]
        first[found[1][0]] += 1
    assert 140 < first["often.test"] < 200


@pytest.mark.parametrize(
    "name",
    ["_metad", "_metad._tcp", "_metad._sctp.example.test", "_me tad._tcp.example.test", "_metad._tcp." + "x" * 250],
)
async def test_what_is_no_name_of_a_service_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="is no service: write _SERVICE"):
        connect(f"metad://{name}")


def test_a_package_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "dns is not installed. It comes with the extra srv" in service_problem(CLIENTS)


async def test_a_node_joins_by_a_service(names: NameServer, tmp_path: Path) -> None:
    with Nodes(tmp_path, ("n1",)) as nodes:
        (dead,) = free_ports(1)
        config = f'node_id = "n2"\n[cluster]\njoin = ["{PEERS}"]\n{SMALL}'
        around = {"PYTHONPATH": str(names.site(tmp_path / "site"))}
        with Server(tmp_path / "n2", config=config, environment=around) as joining:
            await asyncio.to_thread(wait_until, lambda: joining.events("cannot_join_yet"), "it says why not")
            assert "was not found" in joining.events("cannot_join_yet")[0]["error"]
            names.services[PEERS] = [at(f"127.0.0.1:{dead}", 1), at(nodes.peers["n1"], 2)]
            await asyncio.to_thread(joining.ready)
            async with connect(nodes.url) as m:
                known = (await m.cluster.map()).map
                assert known is not None
                assert sorted(node.node_id for node in known.nodes) == ["n1", "n2"]


def test_a_configuration_with_a_wrong_service_is_refused(tmp_path: Path) -> None:
    with Server(tmp_path / "a", config='node_id = "a"\n[cluster]\njoin = ["_metad"]\n') as server:
        assert server.process.wait(60) == 1
        assert "cluster.join[0]: '_metad' is no service" in server.stderr
