"""The pytest plugin, in a pytest of its own: each test has its own server, asyncio tests work in every mode of
pytest-asyncio and without it, and a cluster's leader can be killed. ``test_wheel.py`` runs it without the server."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

# The entry point is there if metad is installed from this tree, and not if the tree is only on the path.
INSTALLED = any(entry.value == "metad_pytest.plugin" for entry in importlib.metadata.entry_points(group="pytest11"))
PLUGIN = () if INSTALLED else ("-p", "metad_pytest.plugin")

BLOCKING = """
def test_each_test(metad):
    assert metad.kv.put("ns", "key", b"value") == 1

def test_has_its_own_server(metad, metad_server):
    assert metad.kv.put("ns", "key", b"value") == 1
    assert metad_server.url == f"metad://{metad.statistics().endpoint}"

def test_clients_of_one_test_share_it(metad, metad_server):
    import asyncio
    from metad_client import connect

    async def put():
        async with connect(metad_server.url) as m:
            return await m.kv.put("ns", "key", b"value")

    assert asyncio.run(put()) == 1
    assert metad.kv.put("ns", "key", b"value") == 2

def test_an_hour_passes(metad, metad_server):
    from metad_client import SessionProperties

    gone = []
    for client in ("a", "b"):
        metad.sessions.takeover("broker", 1, "acme", client, properties=SessionProperties(86_400))
        metad.sessions.disconnect("broker", 1, "acme", client)
        gone.append(metad.sessions.get("acme", client).disconnected_ms)
        metad_server.advance(3600)
    assert gone[1] - gone[0] >= 3_600_000
"""
ASYNC = """
import pytest

MARKED
async def test_an_asyncio_client(metad_async, metad):
    assert await metad_async.kv.put("ns", "key", b"value") == 1
    assert metad.kv.put("ns", "key", b"value") == 2
"""
FAILOVER = """
from metad_client import blocking

def test_the_leader_dies(metad_cluster):
    with blocking.connect(metad_cluster.url) as m:
        m.kv.put("ns", "key", b"value")
        metad_cluster.kill(m.cluster.map().leaders["data-0"])
        assert m.kv.get("ns", "key").value == b"value"
        assert m.kv.put("ns", "key", b"value") == 2
"""


def run(directory: Path, text: str, *arguments: str) -> str:
    (directory / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    (directory / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", *PLUGIN, *arguments]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize(("mode", "mark"), [("auto", ""), ("strict", "@pytest.mark.asyncio")])
def test_fixtures_in_each_mode_of_asyncio(tmp_path: Path, mode: str, mark: str) -> None:
    assert "1 passed" in run(tmp_path, ASYNC.replace("MARKED", mark), f"--asyncio-mode={mode}")


def test_fixtures_without_pytest_asyncio(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(BLOCKING)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:asyncio", "-W", "error", *PLUGIN]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert "4 passed" in done.stdout, done.stdout + done.stderr


def test_a_leader_is_killed(tmp_path: Path) -> None:
    said = run(tmp_path, FAILOVER, f"--basetemp={tmp_path / 'kept'}")
    assert "1 passed" in said, said
    assert (tmp_path / "kept" / "metad0" / "n1" / "log").exists(), "the logs stay for whoever looks for a cause"


def test_the_fixtures_are_listed(tmp_path: Path) -> None:
    said = run(tmp_path, "", "--fixtures")
    assert set(re.findall(r"^(metad\w*)", said, re.MULTILINE)) == {
        "metad",
        "metad_async",
        "metad_cluster",
        "metad_server",
    }


def test_the_plugin_imports_nothing_of_metad_until_it_is_used(tmp_path: Path) -> None:
    text = """
import sys

def test_nothing():
    assert not {"metad", "metad_client", "metad_wire", "msgspec"} & set(sys.modules)
"""
    said = run(tmp_path, text)
    assert "1 passed" in said, said
