"""A second node of one name: it is refused with the truth, and the node that is a member is not harmed."""

from __future__ import annotations

import msgspec
import pytest
from peer_rig import Stranger
from test_cluster_id import fleet

from metad.errors import RefusedError
from metad.node.disk.stores import StoreIdentity
from metad.node.lives import Life
from metad.node.node import Node
from metad.server.peers import refusals
from metad_wire.connection.frame import FrameType
from waiting import until


def knows(node: Node, other: StoreIdentity) -> bool:
    """Whether the map has the data directory of the other one."""
    record = None if node.map is None else node.map.node(other.node_id)
    return record is not None and record.store_id == other.store_id


async def test_while_the_member_is_alive_a_namesake_is_told_to_take_another_name() -> None:
    async with fleet("abc") as nodes:
        await nodes.start("a", "b", "c")
        await nodes.formed("a", "b", "c")
        deciding, good = nodes.servers["a"].node, nodes.servers["b"].node
        identity = good.identity
        await until(lambda: knows(deciding, identity) and "b" in deciding.replicas.connected)
        before = deciding.lives._newest["b"]
        theirs = {"store_id": "another directory", "life": 1, "incarnation": "y"}
        copied = {"store_id": identity.store_id, "life": identity.life + 1, "incarnation": "y"}
        # The good node itself says it as well.
        for where in ("a", "b"):
            for said, words in ((theirs, "with its own data directory"), (copied, "a copy of its data directory")):
                for _ in range(12):  # more than a node may have connections
                    stranger = await Stranger.dial(nodes.network, where)
                    frame = await stranger.greet(nodes.servers[where], "b", **said)
                    assert frame.type == FrameType.ERROR
                    text = await stranger.refused()
                    assert text.startswith("another node named b is alive at b:1"), text
                    assert words in text
                    assert "leave" not in text
        assert "b" in deciding.replicas.connected
        assert deciding.lives._newest["b"] == before, "the life of a copy is not remembered"
        deciding.lives.check("b", Life(identity.store_id, identity.life, identity.incarnation))


async def test_once_the_member_is_gone_its_next_life_is_welcome_and_a_namesake_hears_that_nobody_knows_yet() -> None:
    async with fleet("abc") as nodes:
        await nodes.start("a", "b", "c")
        await nodes.formed("a", "b", "c")
        deciding, identity = nodes.servers["a"].node, nodes.servers["b"].node.identity
        await until(lambda: knows(deciding, identity) and "b" in deciding.replicas.connected)
        await nodes.stop("b")
        await until(lambda: "b" not in deciding.replicas.connected)
        deciding.controller.reconcile()
        stranger = await Stranger.dial(nodes.network, "a")
        await stranger.greet(nodes.servers["a"], "b", store_id="another directory")
        assert "not known yet whether that node is alive" in await stranger.refused()
        following = await Stranger.dial(nodes.network, "a")
        said = {"store_id": identity.store_id, "life": identity.life + 1, "incarnation": "z"}
        assert (await following.greet(nodes.servers["a"], "b", **said)).type == FrameType.WELCOME


async def test_a_founder_that_has_just_greeted_is_known_by_its_directory_before_the_map_has_it() -> None:
    """Once wrong: a founder that lost its disk right after the cluster had formed was let in as if it were new."""
    async with fleet("abc") as nodes:
        await nodes.start("a", "b", "c")
        await nodes.formed("a", "b", "c")
        deciding, identity = nodes.servers["a"].node, nodes.servers["b"].node.identity
        await until(lambda: deciding.lives.store_of("b") == identity.store_id)
        await nodes.stop("b")
        assert deciding.map is not None
        records = [msgspec.structs.replace(record, store_id="") for record in deciding.map.nodes]
        deciding.groups.follow(msgspec.structs.replace(deciding.map, nodes=records))
        stranger = await Stranger.dial(nodes.network, "a")
        await stranger.greet(nodes.servers["a"], "b", store_id="another directory")
        assert "another data directory" in await stranger.refused()


async def test_a_namesake_that_asks_everybody_to_join_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no map and no links, so what it hears when it asks is all there is."""
    monkeypatch.setattr(refusals, "LASTS_S", 0.3)
    async with fleet("abc") as nodes:
        await nodes.start("a", "b", "c")
        await nodes.formed("a", "b", "c")
        deciding, identity = nodes.servers["a"].node, nodes.servers["b"].node.identity
        await until(lambda: knows(deciding, identity) and "b" in deciding.replicas.connected)
        cluster = {"join": ["a:1", "b:1", "c:1"], "listen": "second:1"}
        await nodes.start("second", node_id="b", listen="second:2", cluster=cluster)
        second = nodes.servers["second"].node
        await until(lambda: second.health.failure is not None)
        assert isinstance(second.health.failure, RefusedError)
        assert "another node named b is alive at b:1 with its own data directory" in str(second.health.failure)
        assert nodes.servers["b"].node.health.failure is None


async def test_a_namesake_whose_only_contact_refuses_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once wrong: one refusal is no majority, so a node that was to join through one other asked for ever."""
    monkeypatch.setattr(refusals, "LASTS_S", 0.3)
    async with fleet("abc") as nodes:
        await nodes.start("a", "b", "c")
        await nodes.formed("a", "b", "c")
        deciding, identity = nodes.servers["a"].node, nodes.servers["b"].node.identity
        await until(lambda: knows(deciding, identity) and "b" in deciding.replicas.connected)
        await nodes.start("second", node_id="b", listen="second:2", cluster={"join": ["a:1"], "listen": "second:1"})
        second = nodes.servers["second"].node
        await until(lambda: second.health.failure is not None)
        assert isinstance(second.health.failure, RefusedError)
        assert str(second.health.failure).startswith("a:1 refuses this node: another node named b is alive at b:1")
