"""Settings and requests that used to be ignored in silence: each is refused, or the log names it and its remedy."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest
from e2e_server import METAD, Server, free_ports

from metad_client import blocking
from waiting import wait_until


def seeds_of(*nodes: str) -> dict[str, str]:
    return {node: f"127.0.0.1:{port}" for node, port in zip(nodes, free_ports(len(nodes)), strict=True)}


def toml(node: str, seeds: dict[str, str], *, more: str = "") -> str:
    inline = ", ".join(f'{name} = "{endpoint}"' for name, endpoint in seeds.items())
    return f'node_id = "{node}"\n{more}[cluster]\nseeds = {{ {inline} }}\n'


@pytest.mark.parametrize("killed", [False, True])
def test_seeds_do_not_turn_a_cluster_of_one_into_one_of_three(tmp_path: Path, killed: bool) -> None:
    """It went on alone, and its peers never formed a cluster. The remedy of the message works."""
    directory = tmp_path / "a"
    with Server(directory, config='node_id = "a"\n').ready() as alone:
        with blocking.connect(alone.url) as client:
            client.kv.put("n", "k", b"kept")
        if killed:
            alone.kill()
        else:
            alone.terminate()
    seeds = seeds_of("a", "b", "c")
    with Server(directory, config=toml("a", seeds)) as refused:
        assert "seeds do not add b, c to it" in refused.refused()
    with Server(directory, config=toml("a", {"a": seeds["a"]})).ready() as first:
        join = f'node_id = "b"\n[cluster]\njoin = ["{seeds["a"]}"]\nlisten = "{seeds["b"]}"\n'
        with Server(tmp_path / "b", config=join).ready(), blocking.connect(first.url) as client:
            record = client.kv.get("n", "k")
            assert record is not None
            assert record.value == b"kept"


def test_another_number_of_groups_is_noticed(tmp_path: Path) -> None:
    with Server(tmp_path / "a", config="[groups]\ndata = 3\n").ready() as server:
        assert not server.events("setting_without_effect")
        server.terminate()
    with Server(tmp_path / "a", config="[groups]\ndata = 7\n").ready() as server:
        (line,) = server.events("setting_without_effect")
        assert (line["key"], line["level"]) == ("groups.data", "warning")
        assert line["reason"] == "the cluster has 3; metadctl groups add --kind data adds one"


def test_who_is_waited_for_is_named(tmp_path: Path) -> None:
    """Seeds that are not there; a join target that never answers, with what it should be."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"127.0.0.1:{silent.getsockname()[1]}"
        config = f'node_id = "b"\n[cluster]\njoin = ["{target}"]\n'
        seeds = toml("a", seeds_of("a", "b", "c"))
        with Server(tmp_path / "b", config=config) as server, Server(tmp_path / "a", config=seeds) as founder:
            wait_until(lambda: server.events("cannot_join_yet"), "the first line")
            line = server.events("cannot_join_yet")[0]
            assert (line["through"], line["error"]) == (target, "it does not answer")
            wait_until(lambda: server.events("not_serving"), "why it does not serve")
            line = server.events("not_serving")[0]
            assert line["join"] == [target]
            assert "listener for nodes" in line["reason"]
            wait_until(lambda: founder.events("not_serving"), "why it does not serve")
            assert founder.events("not_serving")[0]["unreached"] == ["b", "c"]


def test_http_is_named_as_http(tmp_path: Path) -> None:
    """The log called it a frame of 1,195,725,860 bytes."""
    with Server(tmp_path / "a").ready() as server:
        for request in (b"GET /metrics HTTP/1.1\r\nHost: metad\r\n\r\n", b"POST / HTTP/1.0\r\n\r\n"):
            with socket.create_connection(server.address) as browser:
                browser.sendall(request)
                with browser.makefile("rb") as answer:
                    assert b"this is HTTP" in answer.read()
        wait_until(lambda: server.events("client_refused"), "the line, which is written beside the loop")
        (line,) = server.events("client_refused")  # the second is the same again
        assert line["detail"] == "this is HTTP: the port speaks metad's binary protocol only"


def test_variables_configure_a_node_and_not_the_members_of_a_supervisor(tmp_path: Path) -> None:
    variables = {"METAD_NODE_ID": "from-outside", "METAD_NODEID": "x"}
    with Server(tmp_path / "a", environment=variables).ready() as server:
        assert server.events("listening")[0]["node"] == "from-outside"
        (line,) = server.events("unknown_variable")
        assert line["did_you_mean"] == "METAD_NODE_ID"
    ready = tmp_path / "ready"
    command = [str(METAD), "cluster", "--nodes", "2", "--data-dir", str(tmp_path / "two"), "--ready-file", str(ready)]
    around = {**os.environ, **variables}
    with subprocess.Popen(command, env=around, stderr=subprocess.DEVNULL) as both:
        try:
            wait_until(ready.exists, "both nodes have names of their own")
        finally:
            both.terminate()
            assert both.wait(120) == 0
