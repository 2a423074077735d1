"""A cluster across three regions, formed as the README says: certificates from one command, then a node in each."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e_metadctl import metadctl
from e2e_nodes import Nodes
from e2e_server import METAD

from metad_client import Options, blocking
from metad_wire.transport.credentials import client_files
from waiting import wait_until

NODES = {"a": "eu", "b": "us", "c": "ap"}
TIMEOUT_S = 120.0


def ctl(*arguments: str) -> Any:
    done = metadctl("", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if "--json" in arguments else done.stdout


@pytest.fixture
def regions(tmp_path: Path) -> Iterator[Nodes]:
    """Started with the flags of the README."""
    certs = tmp_path / "certs"
    ctl("certs", "--out", str(certs), "--nodes", ",".join(NODES), "--clients", "app")

    def flags(name: str, endpoint: str) -> list[str]:
        key, ca = certs / f"node-{name}-key.pem", certs / "ca.pem"
        files = ["--tls-cert", str(certs / f"node-{name}.pem"), "--tls-key", str(key), "--tls-ca", str(ca)]
        return ["--quic", endpoint, *files]

    with Nodes(tmp_path, NODES, flags=flags) as nodes:
        yield nodes
        for server in nodes.servers.values():
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


def test_a_cluster_across_three_regions_forms_from_one_set_of_certificates(tmp_path: Path, regions: Nodes) -> None:
    certs = tmp_path / "certs"
    where = regions.where

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
        regions.kill("c")
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
