"""What a peer may do to a node: nothing that stops it, and nothing without end."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest
from peer_rig import Stranger, node

from metad.raft.log.journal import CONFIGURATION, NO_OP, REGULAR, record
from metad.raft.messages import Append, Configuration, PreVoteReply, Snapshot, TimeoutNow, VoteReply
from metad.raft.replicas import TERM_JUMP_MAX, PeerProtocolError, decode_payload
from metad.server.peers.peers import GREETING_MAX, PER_NODE_MAX
from metad.storage.keys import group_prefix
from metad_wire import messages as m
from metad_wire.cluster import GroupId
from metad_wire.connection import peer as p
from metad_wire.connection.frame import FrameType
from sim.memory import MemoryTransport
from waiting import until

METADATA = group_prefix(GroupId("metadata", 0))
encode = msgspec.msgpack.encode


def payload(*messages: object) -> bytes:
    return encode([(METADATA, message) for message in messages])


def append(term: int, *records: bytes, prev_term: int = 0) -> bytes:
    return payload(Append(term, 0, prev_term, 0, 1, list(records)))


BAD_TEXT = payload(Snapshot(1, 1, 1, Configuration(("n1",)), "stream")).replace(b"n1", b"\xff\xfe")
UNDECODABLE = {
    "bad UTF-8 in a message": BAD_TEXT,
    "bad UTF-8 in a record": append(1, record(1, CONFIGURATION, b"\x92\x91\xa1\xff\x90")),
    "nested without end": b"\x91" * 100_000,
    "no msgpack": b"\xc1",
    "half a message": payload(TimeoutNow(1))[:-1],
    "another array": encode([[METADATA, [99, 1]]]),
    "a negative term": encode([[METADATA, [8, -1]]]),
    "a term over 63 bits": encode([[METADATA, [8, 2**63]]]),
    "a negative index": encode([[METADATA, [5, 1, -1, 0, 0, 0]]]),
    "rejected below -1": encode([[METADATA, [6, 1, 0, 0, 0, -2]]]),
    "a record without a head": append(1, b"\x00\x00"),
    "a record of a later term": append(1, record(2, NO_OP)),
    "a record of an earlier term": append(3, record(1, NO_OP), prev_term=2),
    "an append behind a later term": payload(Append(1, 5, 2, 0, 1)),
    "a record of an earlier term behind a plain one": append(3, record(3, REGULAR), record(2, REGULAR)),
    "records whose terms go back": append(3, record(2, NO_OP), record(1, NO_OP)),
    "a record of an unknown kind": append(1, record(1, 3)),
    "a configuration that is none": append(1, record(1, CONFIGURATION, b"\x01")),
    "a snapshot of a later term": payload(Snapshot(1, 1, 2, Configuration(()), "stream")),
}


@pytest.mark.parametrize("data", UNDECODABLE.values(), ids=UNDECODABLE.keys())
def test_what_no_replica_says_is_no_payload(data: bytes) -> None:
    with pytest.raises(PeerProtocolError):
        decode_payload(data)


async def test_an_undecodable_payload_costs_the_connection_and_nothing_else() -> None:
    network = MemoryTransport()
    async with node(network) as server:
        for data in UNDECODABLE.values():
            peer = await Stranger.dial(network)
            assert (await peer.greet(server)).type == FrameType.WELCOME
            peer.raft(data)
            assert await peer.refused()
            assert server.node.failure is None
        for data in (b"\xc1", encode([1, METADATA, "\udcff".encode("utf-8", "surrogateescape")])):
            peer = await Stranger.dial(network)
            await peer.greet(server)
            peer.send(FrameType.PEER, data, 2)
            assert await peer.refused()
            assert server.node.failure is None


async def test_what_follows_a_refused_frame_is_not_looked_at() -> None:
    network = MemoryTransport()
    async with node(network) as server:
        peer = await Stranger.dial(network)
        await peer.greet(server)
        for _ in range(100):
            peer.raft(b"\xc1")
        await until(lambda: peer.lost)
        assert [frame.type for frame in peer.frames] == [FrameType.ERROR]


@pytest.mark.parametrize("message", [VoteReply(2**62, False), PreVoteReply(2**62, False), Append(2**62, 0, 0, 0, 0)])
async def test_a_term_far_ahead_is_not_believed(message: object) -> None:
    network = MemoryTransport()
    async with node(network) as server:
        group = server.node.drivers[GroupId("metadata", 0)].group
        peer = await Stranger.dial(network)
        await peer.greet(server)
        term = group.term
        peer.raft(payload(message, VoteReply(term + TERM_JUMP_MAX - 1, False)))
        await until(lambda: group.term > term)
        assert group.term == term + TERM_JUMP_MAX - 1, "a replica may have missed so many elections, and no more"


async def test_a_replica_that_does_not_know_its_group_believes_any_term() -> None:
    network = MemoryTransport()
    join = {"join": ["b:1"], "listen": "c:1"}
    async with node(network, "c", cluster=join) as server:
        group = server.node.drivers[GroupId("metadata", 0)].group
        peer = await Stranger.dial(network, "c")
        await peer.greet(server)
        peer.raft(payload(Append(2**40, 0, 0, 0, 0)))
        await until(lambda: group.term == 2**40)


@pytest.mark.parametrize(("version", "newest", "spoken"), [(1, 0, 1), (1, 1, 1), (1, 7, 1), (0, 1, 1)])
async def test_nodes_of_two_versions_speak_the_newest_in_common(version: int, newest: int, spoken: int) -> None:
    network = MemoryTransport()
    async with node(network) as server:
        peer = await Stranger.dial(network)
        frame = await peer.greet(server, version=version, newest=newest)
        assert p.decode_welcome(frame.payload).version == spoken


@pytest.mark.parametrize(("version", "newest"), [(2, 3), (2, 0), (0, 0)])
async def test_nodes_without_a_version_in_common_say_so(version: int, newest: int) -> None:
    network = MemoryTransport()
    async with node(network) as server:
        peer = await Stranger.dial(network)
        await peer.greet(server, version=version, newest=newest)
        assert f"here 1 to 1, there {version} to {max(version, newest)}" in await peer.refused()


def test_an_upgrade_goes_from_one_version_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(p, "PEER_VERSION", 3)
    monkeypatch.setattr(p, "PEER_VERSION_OLDEST", 2)
    spoken = {(oldest, newest): p.agreed_version(oldest, newest) for oldest in range(5) for newest in (oldest, 4)}
    assert {pair: version for pair, version in spoken.items() if version is None} == dict.fromkeys(
        [(0, 0), (1, 1), (4, 4)]
    )
    assert spoken[2, 2] == 2
    assert {spoken[oldest, 4] for oldest in range(4)} == {3}


async def test_a_client_is_told_that_it_has_the_wrong_port() -> None:
    network = MemoryTransport()
    async with node(network):
        client = await Stranger.dial(network)
        hello = m.Hello(m.MAGIC, m.PROTOCOL_VERSION, m.PROTOCOL_VERSION, client_name="app")
        client.send(FrameType.HELLO, encode(hello))
        assert "this is the port for nodes; clients use another" in await client.refused()


async def test_a_connection_that_says_nothing_is_closed() -> None:
    network = MemoryTransport()
    raft = {"election_timeout_ms": 30, "heartbeat_ms": 10}
    async with node(network, limits={"handshake_timeout_ms": 50}, raft=raft):
        silent = await Stranger.dial(network)
        assert "no handshake in time" in await silent.refused()
    network = MemoryTransport()
    limits = {"handshake_timeout_ms": 600_000, "idle_timeout_ms": 50}
    async with node(network, limits=limits, raft=raft) as server:
        half_open = await Stranger.dial(network)
        assert (await half_open.greet(server)).type == FrameType.WELCOME
        assert "nothing was heard" in await half_open.refused()


async def test_a_connection_that_pings_stays() -> None:
    network = MemoryTransport()
    limits = {"handshake_timeout_ms": 600_000, "idle_timeout_ms": 2_000}
    raft = {"election_timeout_ms": 30, "heartbeat_ms": 10}
    async with node(network, limits=limits, raft=raft) as server:
        living, silent = await Stranger.dial(network), await Stranger.dial(network)
        await living.greet(server)
        await silent.greet(server)
        while not silent.lost:
            living.send(FrameType.PING)
            assert (await living.next()).type == FrameType.PONG
            await asyncio.sleep(0.01)


async def test_a_node_that_stood_still_waits_for_its_peers_as_long_as_ever() -> None:
    network = MemoryTransport()
    limits = {"handshake_timeout_ms": 600_000, "idle_timeout_ms": 300}
    async with node(network, limits=limits, raft={"election_timeout_ms": 90, "heartbeat_ms": 30}) as server:
        peer = await Stranger.dial(network)
        await peer.greet(server)
        time.sleep(1.0)  # noqa: ASYNC251 - the loop stands still
        assert server.node.standstills.running_s() < 0.3
        await asyncio.sleep(0.05)
        assert not peer.lost
        assert "nothing was heard" in await peer.refused()


async def test_strangers_do_not_keep_peers_out() -> None:
    network = MemoryTransport()
    async with node(network) as server:
        strangers = [await Stranger.dial(network) for _ in range(GREETING_MAX + 10)]
        await until(lambda: sum(stranger.lost for stranger in strangers) == 10)
        peer = await Stranger.dial(network)
        assert (await peer.greet(server)).type == FrameType.WELCOME
        assert not peer.lost


async def test_one_node_has_a_few_connections_and_the_longest_silent_goes() -> None:
    network = MemoryTransport()
    async with node(network) as server:
        peers = [await Stranger.dial(network) for _ in range(PER_NODE_MAX)]
        for peer in peers:
            await peer.greet(server)
        peers[0].send(FrameType.PING)
        assert (await peers[0].next()).type == FrameType.PONG
        newest = await Stranger.dial(network)
        assert (await newest.greet(server)).type == FrameType.WELCOME
        await until(lambda: peers[1].lost)
        assert [peer.lost for peer in peers] == [False, True, *[False] * (PER_NODE_MAX - 2)]
