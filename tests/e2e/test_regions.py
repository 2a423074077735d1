"""A cluster across three regions, formed as the README says: certificates from one command, then a node in each."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e_server import METAD, SMALL, Server, free_ports, wait_until

from metad_client import Options, blocking
from metad_wire.transport.credentials import client_files

METADCTL = Path(sys.executable).with_name("metadctl")
NODES = {"a": "eu", "b": "us", "c": "ap"}
TIMEOUT_S = 120.0


def ctl(*arguments: str) -> Any:
    done = subprocess.run([str(METADCTL), *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if "--json" in arguments else done.stdout


class Region(Server):
    """One node, started with the flags of the README."""

    def __init__(self, home: Path, name: str, seeds: dict[str, str], port: int, certs: Path) -> None:
        self.where = f"127.0.0.1:{port}"
        inline = ", ".join(f'{node} = "{endpoint}"' for node, endpoint in seeds.items())
        regions = ", ".join(f'{node} = "{region}"' for node, region in NODES.items())
        config = f'node_id = "{name}"\n[cluster]\nseeds = {{ {inline} }}\nseed_regions = {{ {regions} }}\n{SMALL}'
        flags = ["--quic", self.where, "--tls-cert", str(certs / f"node-{name}.pem")]
        flags += ["--tls-key", str(certs / f"node-{name}-key.pem"), "--tls-ca", str(certs / "ca.pem")]
        super().__init__(home / name, config=config, listen=self.where, flags=flags)


@pytest.fixture
def regions(tmp_path: Path) -> Iterator[dict[str, Region]]:
    certs = tmp_path / "certs"
    ctl("certs", "--out", str(certs), "--nodes", ",".join(NODES), "--clients", "app")
    ports = free_ports(6)
    seeds = {name: f"127.0.0.1:{port}" for name, port in zip(NODES, ports[3:], strict=True)}
    servers = {name: Region(tmp_path, name, seeds, port, certs) for name, port in zip(NODES, ports[:3], strict=True)}
    with contextlib.ExitStack() as stack:
        for server in servers.values():
            stack.enter_context(server)
        for server in servers.values():
            server.ready()
        yield servers
        for server in servers.values():
            if server.process.poll() is None:
                assert server.terminate() == 0
                server.quiet()


def members(url: str, certs: Path) -> dict[str, dict[str, Any]]:
    return {row["node"]: row for row in ctl("--endpoint", url, "--certs", str(certs), "members", "--json")}


def links(url: str, certs: Path) -> dict[str, list[str]]:
    """Node -> the transports of its connections to other nodes that are up, sorted."""
    found: dict[str, list[str]] = {}
    for row in ctl("--endpoint", url, "--certs", str(certs), "links", "--json"):
        if row["up"]:
            found.setdefault(row["node"], []).append(row["transport"])
    return {node: sorted(transports) for node, transports in found.items()}


def test_a_cluster_across_three_regions_forms_from_one_set_of_certificates(
    tmp_path: Path, regions: dict[str, Region]
) -> None:
    certs = tmp_path / "certs"
    where = ",".join(server.where for server in regions.values())

    def joined() -> bool:
        rows = members(f"metadq://{where}", certs)
        linked = links(f"metadq://{where}", certs)
        return {node: row["region"] for node, row in rows.items()} == NODES and linked == {
            node: ["quic", "quic"] for node in NODES
        }

    wait_until(joined, "regions that speak QUIC")
    for scheme, via in (("metads", "tls"), ("metadq", "quic"), ("metad+auto", "tls")):
        rows = members(f"{scheme}://{where}", certs)
        assert {row["via"] for row in rows.values()} == {via}

    options = Options(tls=client_files(str(certs)), deadline_s=TIMEOUT_S)
    with blocking.connect(f"metadq://{where}", options) as client:
        for n in range(20):
            assert client.kv.put("regions", f"k{n}", b"before") == 1
        regions["c"].kill()
        for n in range(20):
            assert client.kv.put("regions", f"k{n}", b"after") == 2
        found = {record.key: record.value for record in client.kv.scan("regions")}
        assert found == {f"k{n}": b"after" for n in range(20)}


def test_metad_cluster_shows_regions(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    command = [str(METAD), "cluster", "--regions", "eu,us", "--nodes", "3", "--data-dir", str(tmp_path / "d")]
    for _ in range(2):  # and again, on what is there
        with (tmp_path / "stderr").open("ab") as stderr:
            process = subprocess.Popen([*command, "--ready-file", str(ready)], stdout=subprocess.DEVNULL, stderr=stderr)
        try:
            wait_until(lambda: ready.exists() or process.poll() is not None, "ready file")  # noqa: B023
            body = json.loads(ready.read_text())
            certs = tmp_path / "d" / "certificates"
            url = f"metadq://{','.join(body['quic_endpoints'])}"

            def linked() -> bool:
                rows = members(url, certs)  # noqa: B023
                wanted = {"n1": ["quic", "tls"], "n2": ["quic", "quic"], "n3": ["quic", "tls"]}
                where = {name: row["region"] for name, row in rows.items()}
                return where == {"n1": "eu", "n2": "us", "n3": "eu"} and links(url, certs) == wanted  # noqa: B023

            wait_until(linked, "TCP in a region, QUIC across")
        finally:
            process.terminate()
            code = process.wait(120)
            print((tmp_path / "stderr").read_text())  # shown if the test fails
            assert code == 0
