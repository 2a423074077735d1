"""The rows of one group at one moment, whatever becomes of the replica that is asked."""

from __future__ import annotations

from typing import Any

import pytest
from scripted import Server
from watch_server import Group, WatchNodes, slot_of

from metad_client import (
    Client,
    ClosedError,
    DeadlineExceededError,
    DrainingError,
    GroupId,
    InvalidRequestError,
    PermissionDeniedError,
    Snapshot,
    SnapshotPart,
    Watched,
)
from metad_client.blocking import connect
from metad_wire.method import encode


@pytest.fixture
async def nodes(server: Server) -> WatchNodes:
    await server.listen("b", "n2")
    await server.listen("c", "n3")
    return WatchNodes(server)


@pytest.fixture
async def connected(server: Server, nodes: WatchNodes, dial: Any) -> Client:
    client: Client = await dial("metad://a,b,c")
    await server.until(lambda: len(server.live) == 3)
    return client


def home(nodes: WatchNodes) -> tuple[Group, GroupId]:
    group = nodes.group_with("ns")
    return group, GroupId("data", group.ordinal)


def count(parts: list[SnapshotPart]) -> int:
    return sum(len(rows.keys) for part in parts for rows in part.rows)


async def test_it_has_the_rows_of_one_moment_and_says_which(
    server: Server, connected: Client, nodes: WatchNodes
) -> None:
    group, name = home(nodes)
    for number in range(5):
        group.put(f"k{number}", b"1")
    async with connected.snapshot(name, "kv") as snapshot:
        parts = [part async for part in snapshot]
    assert count(parts) == 5
    assert [part.first for part in parts] == [True] + [False] * (len(parts) - 1)
    assert parts[-1].last
    assert (snapshot.index, snapshot.revision) == (5, 50)
    assert snapshot.slots == frozenset(group.slots)
    assert await snapshot.next() is None
    await server.until(lambda: not nodes.live)  # it has ended there, too


async def test_only_the_slots_that_are_wanted_and_not_before_a_position(connected: Client, nodes: WatchNodes) -> None:
    group, name = home(nodes)
    index = group.put("k", b"1")
    others = [slot for slot in group.slots if slot != slot_of("ns")]
    async with connected.snapshot(name, "kv", slots=others, position=index) as snapshot:
        assert count([part async for part in snapshot]) == 0
    assert nodes.openings[-1][2] == index
    async with connected.snapshot(name, Watched("kv", tenant="ns"), slots=[slot_of("ns")]) as snapshot:
        assert count([part async for part in snapshot]) == 1


async def test_it_begins_anew_at_another_replica(server: Server, connected: Client, nodes: WatchNodes) -> None:
    group, name = home(nodes)
    group.put("k0", b"1")
    nodes.holds_back_rows = True
    async with connected.snapshot(name, "kv") as snapshot:
        await server.until(lambda: bool(group.live))
        (stream,) = group.live
        group.send_rows(stream, done=False)
        part = await snapshot.next()
        assert part is not None
        assert (part.first, part.last, count([part])) == (True, False, 1)
        group.put("k1", b"2")
        nodes.holds_back_rows = False
        stream.end(DrainingError("it ends"))
        parts = [part async for part in snapshot]
    assert parts[0].first
    assert count(parts) == 2
    assert snapshot.index == 2


async def test_changes_before_the_moment_come_before_the_rows(connected: Client, nodes: WatchNodes) -> None:
    group, name = home(nodes)
    position = group.put("k0", b"1")
    group.put("k0", b"2")
    async with connected.snapshot(name, "kv", position=position) as snapshot:
        parts = [part async for part in snapshot]
    assert [change.value for part in parts for change in part.changes] == list(group.rows.values())
    assert not snapshot.is_cut
    assert [value for part in parts for rows in part.rows for value in rows.values] == list(group.rows.values())


async def test_a_group_that_the_map_lacks_is_found(connected: Client, nodes: WatchNodes, server: Server) -> None:
    added = Group(nodes, 2, set(range(1024)))
    added.put("k", b"1")
    nodes.groups.append(added)
    async with connected.snapshot(GroupId("data", 2), "kv") as snapshot:
        assert not added.live
        nodes.place(version=2, data=3)
        assert count([part async for part in snapshot]) == 1


async def test_silence_ends_it(connected: Client, nodes: WatchNodes) -> None:
    nodes.holds_back_rows = True
    snapshot = connected.snapshot(home(nodes)[1], "kv", idle_timeout_s=0.05)
    with pytest.raises(
        DeadlineExceededError, match=r"no replica of data-\d has sent anything of a snapshot for 0.05 s"
    ):
        await snapshot.next()
    await snapshot.close()


async def test_what_a_node_refuses_for_good_ends_it(connected: Client, nodes: WatchNodes) -> None:
    group, name = home(nodes)
    for node in ("n1", "n2", "n3"):
        nodes.refusals[node, group.name] = PermissionDeniedError("not yours")
    with pytest.raises(PermissionDeniedError, match="not yours"):
        await connected.snapshot(name, "kv").next()


async def test_rows_that_make_no_sense_end_it(server: Server, connected: Client, nodes: WatchNodes) -> None:
    group, name = home(nodes)
    nodes.holds_back_rows = True
    snapshot = connected.snapshot(name, "kv")
    await server.until(lambda: bool(group.live))
    (stream,) = group.live
    stream.peer.session.event(stream.id, encode((1, [], [["no row"]], True)), last=False)
    stream.peer.flush()
    with pytest.raises(Exception, match="rows that make no sense"):
        await snapshot.next()


async def test_a_client_that_is_closed_ends_it(connected: Client, nodes: WatchNodes) -> None:
    nodes.holds_back_rows = True
    snapshot: Snapshot = connected.snapshot(home(nodes)[1], "kv")
    assert "open" in repr(snapshot)
    await connected.close()
    with pytest.raises(ClosedError):
        await snapshot.next()


async def test_arguments_that_make_no_sense_are_refused(connected: Client) -> None:
    name = GroupId("data", 0)
    with pytest.raises(InvalidRequestError, match="group: the tables are in offset groups"):
        connected.snapshot(name, "offset")
    with pytest.raises(InvalidRequestError, match="slots: expected some of 0 to 1023"):
        connected.snapshot(name, "kv", slots=[1024])
    with pytest.raises(InvalidRequestError, match="slots: expected some"):
        connected.snapshot(name, "kv", slots=[])
    with pytest.raises(InvalidRequestError, match="position: expected an index"):
        connected.snapshot(name, "kv", position=-1)


def test_without_asyncio(scripted_server: Any) -> None:
    with connect("metad://a", transport=scripted_server.transport) as client:
        with pytest.raises(InvalidRequestError, match="group"):
            client.snapshot(GroupId("data", 0), "offset")
        snapshot = client.snapshot(GroupId("data", 0), "kv")
        assert (snapshot.revision, snapshot.slots) == (0, frozenset())
        assert snapshot.index in (0, 1)  # as its server says, once it has
        snapshot.close()
        assert list(snapshot) == []


async def test_a_log_that_is_cut_is_told(connected: Client, nodes: WatchNodes) -> None:
    group, name = home(nodes)
    for number in range(3):
        group.put(f"k{number}", b"1")
    group.base = 2
    async with connected.snapshot(name, "kv", position=1) as snapshot:
        assert count([part async for part in snapshot]) == 3
    assert snapshot.is_cut
