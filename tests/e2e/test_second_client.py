"""A client that was written from the pages alone passes levels 1 and 2 of the protocol, against a real node."""

from __future__ import annotations

import ast
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import second_client
from e2e_server import METAD, SMALL, Server
from second_client import Client, Connection, Protocol, Refused, pack, unpack

MIB = 1024 * 1024
CONFIG = f"""
log_level = "warning"
[limits]
frame_bytes_max = {4 * MIB}
in_flight_bytes_max = {4 * MIB}
returning_per_s = 4
[groups]
offset = 1
data = 3
{SMALL}
"""
LINES_MAX = 400


@pytest.fixture(scope="module")
def protocol() -> Protocol:
    printed = subprocess.run([str(METAD), "protocol", "--json"], capture_output=True, check=True, timeout=300).stdout
    return Protocol(json.loads(printed))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("second") / "d", config=CONFIG) as server:
        server.ready()
        yield server
        assert server.terminate() == 0


@pytest.fixture
def client(server: Server, protocol: Protocol) -> Iterator[Client]:
    with contextlib.closing(Client(protocol, server.endpoint)) as client:
        yield client


def test_it_is_short_and_imports_nothing_of_ours() -> None:
    text = Path(second_client.__file__).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LINES_MAX
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names


@pytest.mark.parametrize(
    "value", [None, True, 0, -1, -33, 200, 70_000, 2**40, -(2**40), "", "ü" * 40, b"x" * 300, [[]] * 20, {"a": [1]}]
)
def test_it_reads_what_it_writes(value: object) -> None:
    data = pack(value)
    assert unpack(data) == (value, len(data))


def test_single_calls(client: Client) -> None:
    """Connect, handshake, routing by slot, put, get, list."""
    assert client.call("system.status", {})["version"]
    names = [f"space-{number}" for number in range(20)]
    for name in names:
        put = {"items": [{"namespace": name, "key": key, "value": b"v"} for key in "abcde"]}
        assert client.call("kv.put", put, client.group_of("kv", {"namespace": name}))["versions"] == [1] * 5
    assert {client.group_of("kv", {"namespace": name}) for name in names} == {"data-0", "data-1", "data-2"}
    found = client.batch("kv.get", [{"namespace": name, "key": "c"} for name in names])["found"]
    assert [record["namespace"] for record in found] == names
    group = client.group_of("kv", {"namespace": "space-7"})
    assert [kv["key"] for kv in client.listed("kv.scan", {"namespace": "space-7"}, group, 2)] == list("abcde")


def test_a_batch_of_1000_with_items_that_are_refused(client: Client) -> None:
    items = [{"namespace": f"batch-{n % 7}", "key": f"{n}", "value": b"v"} for n in range(1000)]
    for at in (3, 500):
        items[at]["expected_version"] = 9  # type: ignore[assignment]
    items[77]["key"] = "x" * 5000
    answer = client.batch("kv.put", items)
    assert {at: error.name for at, error in answer["errors"].items()} == {
        3: "conflict",
        500: "conflict",
        77: "invalid_item",
    }
    assert answer["errors"][3].body["current"] == 0
    assert [at for at, version in enumerate(answer["versions"]) if version != 1] == [3, 77, 500]


def test_a_write_that_is_sent_twice_is_done_once(client: Client, server: Server, protocol: Protocol) -> None:
    item = {"namespace": "numbers", "sequence": "s", "delta": 5}
    group = client.group_of("sequence", item)
    call = client.prepared("sequence.add", {"items": [item]}, group)
    client.run([call])
    first = call.reply
    with contextlib.closing(Client(protocol, server.endpoint)) as again:
        again.run([call])
    assert first is not None
    assert call.reply == first
    assert first["values"] == [5]
    assert client.batch("sequence.get", [item])["found"][0]["value"] == 5
    call.body[0][0][2] = 6
    client.run([call])
    assert call.error is not None
    assert call.error.name == "invalid_request"


def test_it_comes_back_when_it_is_told_to(client: Client) -> None:
    for number in range(100):
        items = [{"namespace": "crowd", "key": f"{number}/{at}", "value": bytes(MIB - 100)} for at in range(12)]
        group = client.group_of("kv", items[0])
        calls = [client.prepared("kv.put", {"items": [item]}, group) for item in items]
        client.run(calls)
        assert [call.reply["versions"] for call in calls if call.reply is not None] == [[1]] * len(items)
        if client.told_to_come_back >= 3:
            break
    turned_away = client.call("system.status", {})["turned_away"]
    assert client.told_to_come_back >= 3
    assert turned_away["requests"] == client.told_to_come_back
    assert turned_away["early"] == 0


def test_a_handshake_that_fails_says_why(server: Server, protocol: Protocol, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "magic", "other")
    with pytest.raises(Refused, match="handshake_failed"):
        Connection(protocol, server.endpoint)
