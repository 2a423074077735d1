"""A node binds one address and tells another; what nobody could dial is refused before the node starts."""

from __future__ import annotations

import re
from typing import Any

import pytest

from metad.config import Config, bound_for_nodes, load_config, told_to_nodes
from metad.control.map.presence import Presence
from metad.errors import ConfigError

FAR = {"node-1": "10.0.0.1:7421", "b": "10.0.0.2:7421"}
NEAR = {"node-1": "127.0.0.1:7421", "b": "localhost:7422"}


def config(listen: str = "127.0.0.1:7420", quic: str = "", /, **cluster: Any) -> Config:
    files = {"certificate": "c", "key": "k", "ca": "a"} if quic else {}
    return load_config(None, {"data_dir": "d", "listen": listen, "quic": quic, "cluster": cluster, "security": files})


@pytest.mark.parametrize(
    ("cluster", "bound", "told"),
    [
        ({}, "", ""),
        ({"seeds": FAR}, "10.0.0.1:7421", "10.0.0.1:7421"),
        ({"seeds": FAR, "listen": "0.0.0.0:7000"}, "0.0.0.0:7000", "10.0.0.1:7421"),
        ({"seeds": FAR, "listen": "172.17.0.2:7000"}, "172.17.0.2:7000", "10.0.0.1:7421"),
        ({"seeds": FAR, "advertise": "nat.example:1"}, "10.0.0.1:7421", "nat.example:1"),
        ({"join": ["10.0.0.2:7421"], "listen": "10.0.0.3:7421"}, "10.0.0.3:7421", "10.0.0.3:7421"),
        ({"join": ["10.0.0.2:7421"], "listen": "0.0.0.0:1", "advertise": "c.example:2"}, "0.0.0.0:1", "c.example:2"),
        ({"join": ["127.0.0.1:7421"]}, "127.0.0.1:0", "127.0.0.1:0"),
    ],
)
def test_a_node_binds_one_address_and_tells_another(cluster: dict[str, Any], bound: str, told: str) -> None:
    given = config("10.0.0.1:7420", **cluster)
    assert bound_for_nodes(given) == bound
    if bound:
        assert told_to_nodes(given, bound) == told
        presence = Presence(given, "store")
        presence.meets(bound)
        assert presence.record.peer_endpoint == told


def test_a_listener_on_a_free_port_tells_the_port_that_it_got() -> None:
    presence = Presence(config(join=["127.0.0.1:1"]), "store")
    presence.meets("127.0.0.1:4711")
    assert presence.record.peer_endpoint == "127.0.0.1:4711"


@pytest.mark.parametrize(
    ("listen", "cluster", "key"),
    [
        ("10.0.0.1:7421", {"seeds": FAR}, "cluster.seeds.node-1"),
        ("0.0.0.0:7421", {"seeds": FAR, "advertise_clients": "a.example:1"}, "cluster.seeds.node-1"),
        ("10.0.0.1:7421", {"seeds": FAR, "listen": "0.0.0.0:7421"}, "cluster.listen"),
        ("10.0.0.3:7421", {"join": ["10.0.0.2:7421"], "listen": "10.0.0.3:7421"}, "cluster.listen"),
    ],
)
def test_clients_and_nodes_have_different_ports(listen: str, cluster: dict[str, Any], key: str) -> None:
    """Once wrong: the check found no problem, and the node could not bind its second listener."""
    words = f"listen: {listen} is the address for other nodes ({key}); clients need another port"
    with pytest.raises(ConfigError, match=f"^{re.escape(words)}$"):
        config(listen, **cluster)
    with pytest.raises(ConfigError, match=r"^quic: .* is the address for other nodes"):
        config("10.0.0.1:7420", listen, **cluster, advertise_quic="a.example:1")
    assert config("10.0.0.1:7420", "10.0.0.1:7420", **cluster).quic == "10.0.0.1:7420", "TCP and QUIC share a number"


def test_an_address_of_its_own_or_a_free_port_may_have_any_number() -> None:
    assert config("10.0.0.9:7421", seeds=FAR).listen == "10.0.0.9:7421"
    assert config("127.0.0.1:0", join=["127.0.0.1:1"], listen="127.0.0.1:0").listen == "127.0.0.1:0"


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "0", "0.0", "[::ffff:0.0.0.0]", "[0::0]", "0x0"])
@pytest.mark.parametrize("cluster", [{}, {"seeds": FAR}, {"seeds": NEAR}, {"join": ["b:1"], "listen": "c:1"}])
def test_every_address_is_told_to_nobody(host: str, cluster: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match=r"^listen: .* is every address; set cluster.advertise_clients to the HOST:PO"
    ):
        config(f"{host}:7420", **cluster)
    told = {"advertise_clients": "metad.example:7420"}
    assert config(f"{host}:7420", **cluster, **told).listen == f"{host}:7420"
    with pytest.raises(ConfigError, match=r"^quic: .* is every address; set cluster.advertise_quic to the HOST:PORT"):
        config("h:1", f"{host}:7420", **cluster)
    with pytest.raises(ConfigError, match=r"^cluster.listen: .* is every address; set cluster.advertise to the HOST"):
        config("h:1", join=["b:1"], listen=f"{host}:7421")


@pytest.mark.parametrize(
    ("endpoint", "problem"),
    [
        ("0.0.0.0:7421", "is not the address of one node"),
        ("[::]:7421", "is not the address of one node"),
        ("224.0.0.1:7421", "is not the address of one node"),
        ("0:7421", "has no valid host"),
        ("h", "is not HOST:PORT"),
        (":1", "is not HOST:PORT"),
        ("h:0", "has no port"),
        ("h h:1", "has no valid host"),
    ],
)
def test_an_address_to_dial_must_be_one(endpoint: str, problem: str) -> None:
    for key, cluster in (
        ("cluster.seeds.b", {"seeds": {"node-1": "h:1", "b": endpoint}}),
        (r"cluster.join\[1\]", {"join": ["h:1", endpoint], "listen": "i:1"}),
        ("cluster.advertise", {"join": ["h:1"], "listen": "i:1", "advertise": endpoint}),
        ("cluster.advertise_clients", {"advertise_clients": endpoint}),
        ("cluster.advertise_quic", {"advertise_quic": endpoint}),
    ):
        with pytest.raises(ConfigError, match=f"^{key}: .* {problem}$"):
            config("h:7420", **cluster)


@pytest.mark.parametrize("loopback", ["127.0.0.1", "127.1", "[::1]", "localhost", "[::ffff:127.0.0.1]"])
def test_loopback_is_not_told_to_other_machines(loopback: str) -> None:
    """Nothing said that nobody could reach the node: clients of other machines dialled themselves."""
    for cluster in ({"seeds": FAR}, {"join": ["b:1"], "listen": "c:1"}):
        with pytest.raises(
            ConfigError, match=r"^listen: .* is reached from this machine only, but the cluster is on o"
        ):
            config(f"{loopback}:7420", **cluster)
        assert config(f"{loopback}:7420", **cluster, advertise_clients="nat.example:1")
    with pytest.raises(
        ConfigError, match=r"^cluster.listen: .* is reached from this machine only, .* cluster.advertise"
    ):
        config("h:1", join=["b:1"], listen=f"{loopback}:1")
    with pytest.raises(ConfigError, match=r"^cluster.listen: 127.0.0.1:0 is reached from this machine only"):
        config("h:1", join=["b:1"])
    if loopback != "127.1":  # no address to dial
        with pytest.raises(ConfigError, match=r"^cluster.seeds.node-1: .* is reached from this machine only"):
            config("h:1", seeds={"node-1": f"{loopback}:1", "b": "10.0.0.2:1"})
        assert config(f"{loopback}:7420", seeds={"node-1": f"{loopback}:1", "b": "127.0.0.1:2"})
