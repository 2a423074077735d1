"""What may get into the cluster map: nothing that cannot be dialled, read or fetched again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from test_controller import Rig, node

from metad.control.map import bounds
from metad_wire import cluster as c
from metad_wire.errors import InvalidRequestError
from metad_wire.methods import CLUSTER_ADD_GROUP, CLUSTER_JOIN


@pytest.mark.parametrize(
    "endpoint",
    [
        "10.0.0.1:7420",
        "127.0.0.1:1",
        "[::1]:7420",
        "[2001:db8::1]:7420",
        "metad-1.example:65535",
        "n1:1",
        "node_1.svc.cluster.local:7420",
        "1and1.example:7420",
    ],
)
def test_addresses_of_nodes(endpoint: str) -> None:
    bounds.check_endpoint("endpoint", endpoint)


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "10.0.0.1",
        "10.0.0.1:",
        "10.0.0.1:0",
        "10.0.0.1:65536",
        "10.0.0.1:-1",
        ":7420",
        "169.254.169.254:80",
        "[::ffff:169.254.169.254]:80",
        "2852039166:80",  # the same, as inet_aton() reads it
        "0xA9FEA9FE:80",
        "169.16689662:80",
        "0251.0376.0251.0376:80",
        "[fe80::1]:80",
        "0.0.0.0:80",
        "[::]:80",
        "0:80",
        "224.0.0.1:80",
        "[ff02::1]:80",
        "255.255.255.255:80",
        "a b:80",
        "a\n:80",
        "a\x00:80",
        "metad://a:80",
        "a/b:80",
        "user@a:80",
        "-a:80",
        "x" * 300 + ":80",
        "x" * 15_000_000 + ":80",
    ],
    ids=lambda endpoint: endpoint[:40],
)
def test_addresses_of_none(endpoint: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        bounds.check_endpoint("endpoint", endpoint)
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize(
    "fields",
    [
        {"node_id": ""},
        {"node_id": "\n"},
        {"node_id": "a\x00b"},
        {"node_id": "a\u200bb"},
        {"node_id": " a"},
        {"node_id": "é" * 129},
        {"node_id": "x" * 15_000_000},
        {"region": "e\tu"},
        {"region": "x" * 65},
        {"store_id": "x" * 65},
        {"peer_endpoint": ""},
        {"endpoint": "169.254.169.254:80"},
        {"quic_endpoint": "0.0.0.0:1"},
    ],
    ids=str,
)
def test_a_node_that_cannot_be_one_is_not_taken_in(fields: dict[str, Any]) -> None:
    rig = Rig()
    with pytest.raises(InvalidRequestError):
        rig.ask(CLUSTER_JOIN, c.Join(msgspec.structs.replace(node("n4"), **fields)))
    assert [one.node_id for one in rig.map.nodes] == ["n1", "n2", "n3"]
    rig.ask(CLUSTER_JOIN, c.Join(msgspec.structs.replace(node("n4"), node_id="machine-4/0", region="eu")))


def test_there_are_as_many_groups_as_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    monkeypatch.setattr("metad.control.map.decisions.GROUPS_MAX", 4)
    while sum(group.kind == "data" for group in rig.map.groups) < 4:
        rig.ask(CLUSTER_ADD_GROUP, c.AddGroup("data"))
    with pytest.raises(InvalidRequestError, match="as many as slots"):
        rig.ask(CLUSTER_ADD_GROUP, c.AddGroup("data"))
    rig.ask(CLUSTER_ADD_GROUP, c.AddGroup("offset"))


def test_a_map_that_could_not_be_fetched_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    monkeypatch.setattr("metad.control.map.bounds.MAP_BYTES_MAX", 2_000)
    with pytest.raises(InvalidRequestError, match="2000 are the most"):
        rig.ask(CLUSTER_JOIN, c.Join(node("n4")))
    assert rig.map.version == 7
