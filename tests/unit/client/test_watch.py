"""Watches: each change once and in order whatever nodes, connections, logs and slots do; their end; what they leave
behind, which is nothing."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from scripted import Server, settled
from watch_server import Group, WatchNodes, slot_of

from metad_client import (
    ChangeKind,
    Client,
    ClientState,
    ClosedError,
    DeadlineExceededError,
    DrainingError,
    InternalError,
    InvalidRequestError,
    Kv,
    KvKey,
    NotReplicaError,
    OffsetKey,
    Options,
    OverloadedError,
    PermissionDeniedError,
    PositionAheadError,
    QuotaError,
    QuotaExceededError,
    SessionKey,
    TooLargeError,
    UnauthenticatedError,
    UnknownMethodError,
    UnsupportedError,
    Watch,
    WatchBatch,
    Watched,
)
from metad_client.connections.transport_choice import TransportChoice
from metad_client.dispatch.discovery import REFRESH_S
from metad_client.dispatch.dispatcher import Dispatcher
from metad_client.endpoint import parse_url
from metad_client.watch.filters import filters_of
from metad_client.watch.position import Pin, Position
from metad_client.watch.stream import GroupStream
from metad_client.watch.streams import QUOTA_S
from metad_client.watch.token import from_text, packed_slots, to_text
from metad_wire.cluster import SLOTS, GroupId
from metad_wire.methods import encode
from metad_wire.policy import PathRule
from metad_wire.table import Table
from metad_wire.tables import TABLES
from metad_wire.tables.broker import Broker
from metad_wire.watch import (
    BEHIND_UNKNOWN_MS,
    MarkerStep,
    SlotMarker,
    WatchChange,
    WatchEvents,
    WatchOpened,
    WatchRows,
)

THREE = "metad://a,b,c"


@pytest.fixture
async def nodes(server: Server) -> WatchNodes:
    await server.listen("b", "n2")
    await server.listen("c", "n3")
    return WatchNodes(server)


@pytest.fixture
async def connected(server: Server, nodes: WatchNodes, dial: Any) -> Client:
    """A client of all three nodes."""
    client: Client = await dial(THREE)
    await server.until(lambda: len(server.live) == 3)
    await settled()
    return client


async def take(watch: Watch, count: int) -> list[Any]:
    """The values of the next events, gaps included."""
    found: list[Any] = []
    while len(found) < count:
        batch = await anext(watch)
        found += told(batch)
    assert len(found) == count, found
    return found


def told(batch: WatchBatch) -> list[Any]:
    if batch.kind == "gap":
        return [("gap", batch.group)]
    return [None if event.record is None else event.record.value for event in batch.events]


async def nothing(watch: Watch) -> None:
    """Nothing is there to be taken."""
    await settled()
    batch = watch._streams.next_batch()
    assert batch is None, batch


def a(nodes: WatchNodes) -> Group:
    return nodes.group_with("ns")


def b(nodes: WatchNodes) -> Group:
    return next(group for group in nodes.groups if group is not a(nodes))


# --- what is delivered ---


async def test_changes_come_as_events_with_all_that_is_known_of_them(connected: Client, nodes: WatchNodes) -> None:
    watch = await connected.watch("kv").opened()
    index = a(nodes).put("k", b"1")
    batch = await anext(watch)
    assert (batch.kind, batch.group) == ("changes", a(nodes).name)
    (event,) = batch.events
    assert (event.table, event.row, event.kind, event.key) == ("kv", "record", ChangeKind.CREATED, KvKey("ns", "k"))
    assert event.record == Kv("ns", "k", b"1", 1, index * 10, index * 10)
    assert (event.revision.group, event.revision.index, event.version) == (a(nodes).name, index * 10, index * 10)
    assert event.time_ms == 1_700_000_000_000 + index
    assert (event.previous, event.previous_known) == (None, False)
    a(nodes).delete("k")
    (event,) = (await anext(watch)).events
    assert (event.kind, event.record) == (ChangeKind.DELETED, None)


async def test_a_token_leads_exactly_behind_its_batch(connected: Client, nodes: WatchNodes) -> None:
    watch = await connected.watch("kv").opened()
    for number in range(5):
        a(nodes).put("k", str(number).encode())
    tokens = [(await anext(watch)).token for _ in range(5)]
    for number, token in enumerate(tokens):
        again = connected.watch("kv", token=token)
        assert await take(again, 4 - number) == [str(later).encode() for later in range(number + 1, 5)]
        assert again.token == watch.token
        await nothing(again)


async def test_what_comes_with_the_answer_is_not_lost(connected: Client, nodes: WatchNodes) -> None:
    """The first events may be in the very chunk that answers the request."""
    token = (await connected.watch("kv").opened()).token
    for number in range(3):
        a(nodes).put("k", str(number).encode())
    assert await take(connected.watch("kv", token=token), 3) == [b"0", b"1", b"2"]


async def test_a_snapshot_comes_first_and_then_what_follows(connected: Client, nodes: WatchNodes) -> None:
    a(nodes).put("k1", b"1")
    a(nodes).put("k2", b"2")
    watch = connected.watch("kv", start="snapshot")
    batches = [await anext(watch), await anext(watch)]
    assert [(batch.kind, batch.first, batch.last) for batch in batches] == [("snapshot", True, True)] * 2
    assert {slot for batch in batches for slot in batch.slots} == set(range(1024))
    assert sum(len(batch.slots) for batch in batches) == 1024
    events = [event for batch in batches for event in batch.events]
    assert [(event.key.key, event.kind, event.version) for event in events] == [
        ("k1", ChangeKind.WRITTEN, 10),
        ("k2", ChangeKind.WRITTEN, 20),
    ]
    a(nodes).put("k1", b"3")
    assert await take(watch, 1) == [b"3"]


async def test_rows_that_were_not_taken_are_void_when_a_snapshot_is_interrupted(
    connected: Client, nodes: WatchNodes
) -> None:
    nodes.holds_back_rows = True
    a(nodes).put("k1", b"1")
    watch = await connected.watch("kv", start="snapshot").opened()
    (stream,) = a(nodes).live
    a(nodes).send_rows(stream, done=False)
    b(nodes).send_rows(b(nodes).live[0])
    await settled()
    nodes.holds_back_rows = False
    stream.end(DrainingError())
    a(nodes).delete("k1")
    a(nodes).put("k2", b"2")
    await settled()
    seen = [event.key.key for batch in [await anext(watch)] for event in batch.events]
    while not watch._streams.is_whole or not seen:
        seen += [event.key.key for event in (await anext(watch)).events]
    assert seen == ["k2"]


async def test_a_snapshot_that_is_interrupted_begins_anew(connected: Client, nodes: WatchNodes) -> None:
    """Rows that were deleted meanwhile must not stay with the program: the new one says that it is the first."""
    nodes.holds_back_rows = True
    a(nodes).put("k1", b"1")
    watch = await connected.watch("kv", start="snapshot").opened()
    (stream,) = a(nodes).live
    a(nodes).send_rows(stream, done=False)
    batch = await anext(watch)
    assert (batch.first, batch.last, told(batch)) == (True, False, [b"1"])
    token = batch.token
    nodes.holds_back_rows = False
    stream.end(DrainingError())
    a(nodes).put("k2", b"2")
    for later in (watch, connected.watch("kv", token=token)):
        seen: list[Any] = []
        while True:
            batch = await anext(later)
            if batch.group == a(nodes).name:
                seen.append((batch.kind, batch.first, batch.last, told(batch)))
                if batch.last:
                    break
        # what has changed before the new pin counts with the snapshot only
        assert seen == [("snapshot", True, True, [b"1", b"2"])]


async def test_a_snapshot_is_of_the_slots_that_were_asked_for(connected: Client, nodes: WatchNodes) -> None:
    """A group has got slots of which the client's map does not know. They were counted as read, without their rows."""
    one, two = nodes.groups
    moved = next(name for name in map(str, range(1_000)) if slot_of(name) in two.slots)
    nodes.holds_back_rows = True
    watch = await connected.watch("kv", start="snapshot").opened()
    token = watch.token
    await watch.close()
    two.put("k", b"1", moved)
    two.move_to(one, 10, {slot_of(moved)})
    nodes.holds_back_rows = False
    watch = connected.watch("kv", token=token)
    shown: list[Any] = []
    async with asyncio.timeout(60):
        while not shown or watch._streams.is_missing:
            shown += told(await anext(watch))
    assert b"1" in shown


async def test_progress_is_marked_once_all_groups_have_made_some(connected: Client, nodes: WatchNodes) -> None:
    watch = await connected.watch("kv", progress_s=1.0).opened()
    await asyncio.sleep(10)
    assert watch.age_ms == pytest.approx(10_000, abs=50), "it began at what its groups proved"
    a(nodes).mark()
    await nothing(watch)
    b(nodes).mark(behind_ms=BEHIND_UNKNOWN_MS)
    await nothing(watch)
    b(nodes).mark(behind_ms=250)
    batch = await anext(watch)
    assert (batch.kind, batch.events, batch.age_ms) == ("progress", [], 250.0)
    assert watch.age_ms is not None
    assert watch.age_ms >= 250
    a(nodes).mark()
    await nothing(watch)


async def test_there_is_no_mark_of_progress_while_a_slot_is_missing(connected: Client, nodes: WatchNodes) -> None:
    nodes.holds_back_rows = True
    watch = await connected.watch("kv", start="snapshot", progress_s=1.0).opened()
    for group in nodes.groups:
        group.mark()
    await nothing(watch)
    for group in nodes.groups:
        group.send_rows(group.live[0])
        group.mark()
    assert [(await anext(watch)).kind for _ in range(3)] == ["snapshot", "snapshot", "progress"]


async def test_tables_of_two_kinds_are_one_watch(connected: Client, nodes: WatchNodes, server: Server) -> None:
    offsets = Group(nodes, 0, set(range(1024)))
    offsets.name = "offset-0"
    nodes.groups.append(offsets)
    watch = await connected.watch(["kv", "offset"]).opened()
    assert len(nodes.live) == 3
    a(nodes).put("k", b"1")
    assert await take(watch, 1) == [b"1"]
    with pytest.raises(InvalidRequestError, match="token: it is of a watch of data and offset groups"):
        connected.watch("kv", token=watch.token)


# --- filters ---


async def test_filters_go_to_the_server(connected: Client, nodes: WatchNodes) -> None:
    await connected.watch([Watched("kv", tenant="ns", prefix="a"), "session"], tenant="acme", broker="").opened()
    (filters,) = {str(stream.received.body.filters) for stream in nodes.live}
    first, second = nodes.live[0].received.body.filters
    assert (first.table, first.fields, first.prefix) == ("kv", ["ns"], "a"), filters
    assert (second.table, second.fields, second.prefix) == ("session", ["acme"], "")
    await connected.watch(keys=[KvKey("ns", "a"), SessionKey("t", "c")]).opened()
    sent = nodes.live[-1].received.body.filters
    assert [(each.table, each.fields, each.rows) for each in sent] == [
        ("kv", ["ns", "a"], ["record"]),
        ("session", ["t", "c"], ["owner", "properties"]),
    ]


@pytest.mark.parametrize("table", [table for table in TABLES.values() if table.shows], ids=repr)
def test_a_table_is_named_by_its_declaration_as_well(table: Table[Any]) -> None:
    named = filters_of(table.name)
    assert filters_of(table) == filters_of(Watched(table)) == filters_of(Watched(table.name)) == named


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            {"tables": "nope"},
            "no table 'nope' can be watched by its name; if a program has declared it",
        ),
        ({"tables": "group"}, "no table 'group'"),
        ({"tables": []}, "needs at least one"),
        ({"tables": 7}, "tables"),
        ({"tables": Watched("kv", rows=("owner",))}, "kv has no row 'owner'; it has record"),
        ({"tables": "kv", "broker": "b1"}, "only sessions and partitions have brokers"),
        ({"tables": "cluster", "tenant": "t"}, "cluster has no tenant"),
        ({"tables": Watched("kv", tenant=7)}, "kv: "),  # type: ignore[arg-type]
        ({"tables": "kv", "tenant": 7}, "^tenant: expected str | None, got int"),
        ({"tables": "kv", "tenant": "\ud800"}, "^tenant: the text has surrogates"),
        ({"tables": "kv", "prefix": "a\udfff"}, "^prefix: the text has surrogates"),
        ({"tables": "session", "broker": "\ud800"}, "^broker: the text has surrogates"),
        ({"tables": [Watched("kv", prefix="\ud800")]}, "^tables: kv: prefix: the text has surrogates"),
        ({"keys": [KvKey("ns", "\ud800")]}, "^keys: "),
        ({"tables": "kv", "keys": [SessionKey("t", "c")]}, "is the key of no table that is watched"),
        ({"keys": ["k"]}, "is the key of no table"),
        ({"keys": [KvKey("ns", 7)]}, "keys: "),  # type: ignore[arg-type]
        ({"keys": [OffsetKey("t", "g", "o", 0)] * 1001}, "1001 in groups of kind offset, 1000 are allowed"),
        ({"tables": "kv", "start": "then"}, "start: expected 'now' or 'snapshot'"),
        ({"tables": "kv", "token": ""}, "token: a token begins with 'w1.'"),
        ({"tables": "kv", "token": 7}, "token: expected str"),
        ({"tables": "kv", "progress_s": 0}, "progress_s: "),
        ({"tables": "kv", "idle_timeout_s": "1"}, "idle_timeout_s: "),
        ({"tables": "kv", "buffer_bytes": 0}, "buffer_bytes: "),
    ],
)
async def test_arguments_that_make_no_sense_are_refused_at_once(
    connected: Client, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidRequestError, match=said.replace("(", "\\(").replace("|", "\\|")):
        connected.watch(**arguments)
    assert not connected._dispatcher.followers


async def test_a_token_of_another_cluster_is_refused(connected: Client, nodes: WatchNodes, server: Server) -> None:
    from metad_client.watch.token import from_text, packed_slots, to_text

    token = (await connected.watch("kv").opened()).token
    assert server.map is not None
    _, kinds = from_text(token)
    other = to_text("c9", {kind: (position.indexes, packed_slots(position)) for kind, position in kinds.items()})
    server.map = None
    watch = connected.watch("kv", token=other)
    assert watch.token == other


# --- replicas and connections ---


async def test_a_lost_connection_is_no_gap_and_no_repetition(connected: Client, nodes: WatchNodes) -> None:
    watch = await connected.watch("kv").opened()
    a(nodes).put("k", b"1")
    assert await take(watch, 1) == [b"1"]
    a(nodes).put("k", b"2")
    (stream,) = a(nodes).live
    stream.peer.cut()
    a(nodes).put("k", b"3")
    assert await take(watch, 2) == [b"2", b"3"]
    (again,) = a(nodes).live
    assert again.peer.node != stream.peer.node
    assert connected.statistics().watch_resumes >= 1
    assert "gap" not in connected.statistics().watch_batches
    await nothing(watch)


@pytest.mark.parametrize("error", [DrainingError(), NotReplicaError(), OverloadedError(retry_after_ms=50)], ids=str)
async def test_a_stream_that_ends_goes_on_at_another_replica(connected: Client, nodes: WatchNodes, error: Any) -> None:
    watch = await connected.watch("kv").opened()
    (stream,) = a(nodes).live
    nodes.refusals[stream.peer.node, ""] = error
    a(nodes).put("k", b"1")
    stream.end(error)
    a(nodes).put("k", b"2")
    assert await take(watch, 2) == [b"1", b"2"]
    assert a(nodes).live[0].peer.node != stream.peer.node


async def test_a_node_that_says_goodbye_hands_its_watches_over_and_is_left(
    connected: Client, nodes: WatchNodes, server: Server
) -> None:
    """A watch is not waited for: the connection would never end."""
    watch = await connected.watch("kv").opened()
    (stream,) = a(nodes).live
    await server.stop_listening({"n1": "a", "n2": "b", "n3": "c"}[stream.peer.node])
    stream.peer.goaway()
    await server.until(lambda: stream.peer.gone)
    a(nodes).put("k", b"1")
    assert await take(watch, 1) == [b"1"]


async def test_streams_spread_over_the_replicas(connected: Client, nodes: WatchNodes) -> None:
    watches = [connected.watch("kv") for _ in range(30)]
    for watch in watches:
        await watch.opened()
    assert {stream.peer.node for stream in nodes.live} == {"n1", "n2", "n3"}
    assert len(nodes.server.live) == 3, "no watch has a connection of its own"


async def test_a_snapshot_spares_the_leader(connected: Client, nodes: WatchNodes) -> None:
    watches = [connected.watch("kv", start="snapshot") for _ in range(20)]
    for watch in watches:
        await watch.opened()
    assert all(nodes.leaders[stream.group.name] != stream.peer.node for stream in nodes.live)


async def test_nodes_of_the_own_region_are_preferred(server: Server, nodes: WatchNodes, dial: Any) -> None:
    from msgspec.structs import replace

    assert server.map is not None
    server.map = replace(
        server.map,
        nodes=[replace(node, region="west" if node.node_id == "n2" else "east") for node in server.map.nodes],
    )
    client = await dial(THREE, region="west")
    await server.until(lambda: len(server.live) == 3)
    await settled()
    watches = [client.watch("kv") for _ in range(10)]
    for watch in watches:
        await watch.opened()
    assert {stream.peer.node for stream in nodes.live} == {"n2"}


async def test_events_of_a_watch_come_by_the_quic_stream_with_the_fewest(server: Server, dial: Any) -> None:
    nodes = WatchNodes(server)
    nodes.place(nodes={"n1": "a:7420"}, data=2)
    transports = TransportChoice({"quic": server.transport}, PathRule())
    client = Client(parse_url("metadq://a"), Options(quic_streams=4), transports=transports, rng=random.Random(7))
    dial.clients.append(client)
    await client.open()
    await server.until(lambda: len(server.live) == 4)
    await settled()
    watches = [client.watch("kv") for _ in range(4)]
    for watch in watches:
        await watch.opened()
    assert sorted(len([s for s in nodes.live if s.peer is peer]) for peer in server.live) == [2, 2, 2, 2]
    a(nodes).put("k", b"1")
    for watch in watches:
        assert await take(watch, 1) == [b"1"]
    server.live[0].cut()
    a(nodes).put("k", b"2")
    for watch in watches:
        assert await take(watch, 1) == [b"2"]


async def test_an_open_watch_is_no_call_that_nobody_answers(
    connected: Client, nodes: WatchNodes, server: Server
) -> None:
    """It made its connection suspect, and the client asked for the map twice a second."""
    watch = await connected.watch("kv").opened()
    asked = len(server.map_requests)
    await asyncio.sleep(60)
    assert len(server.map_requests) <= asked + 60 / REFRESH_S
    assert connected.statistics().in_flight == 0
    a(nodes).put("k", b"1")
    assert await take(watch, 1) == [b"1"]


async def test_a_node_that_takes_its_time_to_begin_a_watch_is_not_suspect(
    connected: Client, nodes: WatchNodes, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = len(server.map_requests)
    server.answer = None
    watch = connected.watch("kv")
    await asyncio.sleep(5)
    assert len(server.map_requests) == asked
    await watch.close()


# --- logs that are cut ---


async def test_a_cut_log_is_no_gap_while_another_replica_has_it(connected: Client, nodes: WatchNodes) -> None:
    watch = await connected.watch("kv").opened()
    (stream,) = a(nodes).live
    group = a(nodes).name
    from metad_client import LogCutError

    others = sorted({"n1", "n2", "n3"} - {stream.peer.node})
    nodes.refusals[stream.peer.node, group] = nodes.refusals[others[0], group] = LogCutError()
    stream.end(LogCutError())
    a(nodes).put("k", b"1")
    assert await take(watch, 1) == [b"1"]
    assert a(nodes).live[0].peer.node == others[1]


async def test_a_log_that_nobody_has_is_a_gap_and_then_a_snapshot(connected: Client, nodes: WatchNodes) -> None:
    watch = await connected.watch("kv").opened()
    a(nodes).put("k1", b"1")
    b(nodes).put("k9", b"9", namespace=next(n for n in map(str, range(99)) if slot_of(n) in b(nodes).slots))
    assert sorted(await take(watch, 2)) == [b"1", b"9"]
    token = watch.token
    await watch.close()
    a(nodes).put("k1", b"2")
    a(nodes).put("k2", b"3")
    a(nodes).base = 2
    watch = connected.watch("kv", token=token)
    gap, snapshot = await anext(watch), await anext(watch)
    assert (gap.kind, gap.group, set(gap.slots)) == ("gap", a(nodes).name, a(nodes).slots)
    assert connected.statistics().watch_batches["gap"] == 1
    assert (snapshot.kind, snapshot.first, snapshot.last, told(snapshot)) == ("snapshot", True, True, [b"2", b"3"])
    assert snapshot.slots == gap.slots
    a(nodes).put("k1", b"4")
    assert await take(watch, 1) == [b"4"]
    # all three were asked before
    assert len({node for node, group, at in nodes.openings if (group, at) == (a(nodes).name, 1)}) == 3


async def test_a_gap_is_told_again_to_who_resumes_in_it(connected: Client, nodes: WatchNodes) -> None:
    """The token of a gap has its slots as missing: a snapshot of them comes first."""
    watch = await connected.watch("kv").opened()
    a(nodes).put("k1", b"1")
    token = watch.token
    await watch.close()
    a(nodes).base = 1
    nodes.holds_back_rows = True
    watch = connected.watch("kv", token=token)
    gap = await anext(watch)
    await watch.close()
    nodes.holds_back_rows = False
    again = connected.watch("kv", token=gap.token)
    snapshot = await anext(again)
    assert (snapshot.kind, snapshot.slots, told(snapshot)) == ("snapshot", gap.slots, [b"1"])


async def test_nothing_of_a_table_without_slots_comes_before_its_snapshot(connected: Client, nodes: WatchNodes) -> None:
    """The first that the program heard of a broker was that it had changed."""
    metadata = Group(nodes, 0, set(range(SLOTS)))
    metadata.name = "metadata-0"
    nodes.groups.append(metadata)
    table = TABLES["broker"]
    change = WatchChange(
        table.rows["record"], ChangeKind.WRITTEN, table.key_of(["one"]), encode(Broker("one", 7, "active", 10_000))
    )
    nodes.holds_back_rows = True
    watch = await connected.watch("broker", start="snapshot").opened()
    token = watch.token
    await watch.close()
    watch = await connected.watch("broker", token=token).opened()
    metadata.append([change])
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(watch), 0.2)
    (stream,) = metadata.live
    rows = WatchRows(change.row, [change.key], [change.value])
    stream.send(WatchEvents(stream.position, rows=[rows], snapshot_done=True))
    stream.peer.flush()
    assert (await anext(watch)).kind == "snapshot"


async def test_a_follower_that_is_behind_is_no_gap(connected: Client, nodes: WatchNodes) -> None:
    watch = await connected.watch("kv").opened()
    leader = nodes.leaders[a(nodes).name]
    for node in {"n1", "n2", "n3"} - {leader}:
        nodes.refusals[node, a(nodes).name] = PositionAheadError()
    (stream,) = a(nodes).live
    stream.end(DrainingError())
    a(nodes).put("k", b"1")
    assert await take(watch, 1) == [b"1"]
    assert a(nodes).live[0].peer.node == leader


async def test_a_position_that_even_the_leader_lacks_is_a_gap(connected: Client, nodes: WatchNodes) -> None:
    watch = await connected.watch("kv").opened()
    a(nodes).put("k", b"1")
    a(nodes).put("k", b"2")
    assert await take(watch, 2) == [b"1", b"2"]
    a(nodes).log.pop()
    for node in ("n1", "n2", "n3"):
        nodes.refusals[node, a(nodes).name] = PositionAheadError()
    (stream,) = a(nodes).live
    stream.end(DrainingError())
    seen = len(nodes.openings)
    await nodes.server.until(lambda: len(nodes.openings) >= seen + 4)
    nodes.refusals.clear()
    assert await take(watch, 2) == [("gap", a(nodes).name), b"2"]


# --- slots that move ---


async def test_a_moved_slot_is_read_on_in_its_new_group(connected: Client, nodes: WatchNodes) -> None:
    watch = await connected.watch("kv").opened()
    source, target = a(nodes), b(nodes)
    source.put("k", b"1")
    source.move_to(target, 50, {slot_of("ns")})
    target.put("k", b"2")
    assert await take(watch, 2) == [b"1", b"2"]
    token = watch.token
    target.move_to(source, 51, {slot_of("ns")})
    source.put("k", b"3")
    assert await take(watch, 1) == [b"3"]
    await nothing(watch)
    assert await take(connected.watch("kv", token=token), 1) == [b"3"]
    source.put("k", b"4")
    assert await take(connected.watch("kv", token=watch.token), 1) == [b"4"]


async def test_an_adoption_waits_for_what_the_source_has_still_to_tell(connected: Client, nodes: WatchNodes) -> None:
    token = (await connected.watch("kv").opened()).token
    source, target = a(nodes), b(nodes)
    refused = {(node, source.name): OverloadedError() for node in ("n1", "n2", "n3")}
    nodes.refusals.update(refused)
    source.put("k", b"1")
    source.move_to(target, 50, {slot_of("ns")})
    target.put("k", b"2")
    watch = connected.watch("kv", token=token)
    await nodes.server.until(lambda: bool(target.live))
    await nothing(watch)
    nodes.refusals.clear()
    assert await take(watch, 2) == [b"1", b"2"]


@pytest.mark.parametrize("source", [a, b], ids=["a", "b"])
async def test_a_slot_that_comes_back_at_once_is_read_on(
    connected: Client, nodes: WatchNodes, source: Callable[[WatchNodes], Group]
) -> None:
    """Each group's log waits for the other's, behind something that the other waits for."""
    token = (await connected.watch("kv").opened()).token
    first, second = source(nodes), (b if source is a else a)(nodes)
    slots = {min(first.slots)}
    nodes.fills_events = True
    first.move_to(second, 50, slots)
    second.move_to(first, 51, slots)
    a(nodes).put("k", b"1")
    async with asyncio.timeout(10):
        assert await take(connected.watch("kv", token=token), 1) == [b"1"]


async def test_a_slot_whose_way_is_unknown_is_read_anew(connected: Client, nodes: WatchNodes) -> None:
    """The log of the source is cut behind the seal: the target has the slot, and shows it."""
    token = (await connected.watch("kv").opened()).token
    source, target = a(nodes), b(nodes)
    source.put("k", b"1")
    source.move_to(target, 50, {slot_of("ns")})
    source.base = len(source.log)
    target.put("k", b"2")
    watch = connected.watch("kv", token=token)
    seen: list[Any] = []
    while not seen or seen[-1] != b"3":
        seen += told(await anext(watch))
        if b"2" in seen and b"3" not in seen and not watch._streams.positions["data"].missing:
            target.put("k", b"3")
    assert ("gap", source.name) in seen
    assert seen[-2:] == [b"2", b"3"]
    assert b"1" not in seen


async def test_a_slot_that_nobody_has_when_a_watch_begins_is_a_gap(connected: Client, nodes: WatchNodes) -> None:
    """A replica that is behind knows that the source has given a slot up, and not yet who has adopted it."""
    one, two, slot = a(nodes), b(nodes), slot_of("ns")
    one.brought[0].discard(slot)
    watch = await connected.watch("kv").opened()
    batch = await anext(watch)
    assert (batch.kind, batch.slots) == ("gap", {slot})
    two.adopt(10, {slot}, one, 0)
    two.put("k", b"1")
    shown: list[Any] = []
    async with asyncio.timeout(60):
        while watch._streams.is_missing:
            shown.append(await anext(watch))
    assert [(batch.kind, batch.slots) for batch in shown] == [("snapshot", {slot})]
    assert told(shown[0]) == [b"1"]


async def test_a_group_that_is_added_is_followed(
    connected: Client, nodes: WatchNodes, server: Server, a_map: Callable[..., Any]
) -> None:
    watch = await connected.watch("kv").opened()
    source = a(nodes)
    added = Group(nodes, 2, set())
    nodes.groups.append(added)
    leaders = dict(nodes.leaders)
    nodes.place(version=2, data=3)
    nodes.leaders.update(leaders)
    source.put("k", b"1")
    source.move_to(added, 50, {slot_of("ns")})
    added.put("k", b"2")
    assert await take(watch, 2) == [b"1", b"2"]


async def test_a_group_that_a_token_names_is_found(connected: Client, nodes: WatchNodes, server: Server) -> None:
    """The map that the client has is older than the token: its slots were read by nobody, and it said that all were."""
    added = Group(nodes, 2, set())
    nodes.groups.append(added)
    a(nodes).move_to(added, 50, {slot_of("ns")})
    old, leaders = server.map, dict(nodes.leaders)
    nodes.place(version=2, data=3)
    nodes.leaders.update(leaders)
    new, server.map = server.map, old
    token = token_of(nodes)
    added.put("k", b"1")
    watch = connected.watch("kv", token=token, progress_s=0.1)
    await settled()
    for group in nodes.groups[:2]:
        group.mark()
    await nothing(watch)
    assert not watch._streams.is_whole
    assert watch.age_ms is None
    assert not watch._streams.begun.done()
    server.map = new
    assert await take(watch, 1) == [b"1"]
    await watch.opened()
    assert watch._streams.is_whole


async def test_the_group_that_adopts_what_a_token_has_sealed_is_found(connected: Client, nodes: WatchNodes) -> None:
    """The token is of between the two steps of a move: neither it nor a marker that follows names the target."""
    source, added = a(nodes), Group(nodes, 2, set())
    sealed_index = source.seal(50, {slot_of("ns")}, added)
    token = token_of(nodes)
    nodes.groups.append(added)
    added.adopt(50, {slot_of("ns")}, source, sealed_index)
    source.close_move()
    added.put("k", b"1")
    leaders = dict(nodes.leaders)
    nodes.place(version=2, data=3)
    nodes.leaders.update(leaders)
    assert await take(connected.watch("kv", token=token), 1) == [b"1"]


@pytest.mark.parametrize("ends", [False, True])
async def test_a_group_that_no_map_has_is_a_gap(
    connected: Client, nodes: WatchNodes, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """As after a cluster was restored from an older backup. Nothing of its slots is passed over in silence."""
    monkeypatch.setattr("metad_client.watch.streams.MAP_RETRY_S", 0.001)
    slots = a(nodes).slots
    gone = Group(nodes, 2, set())
    nodes.groups.append(gone)
    a(nodes).move_to(gone, 50, slots)
    token = token_of(nodes)
    gone.put("k", b"1")
    watch = connected.watch("kv", token=token, until=token_of(nodes) if ends else None)
    async with asyncio.timeout(60):
        batch = await anext(watch)
        assert (batch.kind, batch.slots) == ("gap", slots)
        if ends:
            assert [batch async for batch in watch] == []
        else:
            await watch.opened()
            assert not watch._streams.is_whole


def token_of(nodes: WatchNodes) -> str:
    """Of a watch that has read all that there is."""
    pins = {group.ordinal: Pin.of(group.said()) for group in nodes.groups}
    position = Position.at(pins)
    assert nodes.server.map is not None
    return to_text(nodes.server.map.cluster_id, {"data": (position.indexes, packed_slots(position))})


async def test_a_pin_that_is_not_proven_is_refused(connected: Client, nodes: WatchNodes) -> None:
    """As nodes of an older version give it: it may be older than what the program knows."""
    nodes.proves = {"n2"}
    watch = await connected.watch("kv", start="snapshot").opened()
    assert {stream.peer.node for stream in nodes.live} == {"n2"}
    assert watch._streams.error is None
    nodes.proves = set()
    with pytest.raises(UnsupportedError, match=r"cannot prove how far data-\d is"):
        await connected.watch("kv").opened()


# --- credit ---


@pytest.mark.parametrize("buffer_bytes", [2**33 + 1, 2**80])
async def test_no_buffer_is_too_large_for_a_request(connected: Client, nodes: WatchNodes, buffer_bytes: int) -> None:
    watch = await connected.watch("kv", buffer_bytes=buffer_bytes).opened()
    assert {stream.credit for stream in nodes.live} == {min(buffer_bytes // 2, 2**32 - 1)}
    a(nodes).put("k", b"1")
    assert await take(watch, 1) == [b"1"]


async def test_a_program_that_does_not_read_stops_the_servers(connected: Client, nodes: WatchNodes) -> None:
    watch = await connected.watch("kv", buffer_bytes=1).opened()
    (stream,) = a(nodes).live
    value = b"v" * 1000
    for number in range(200):
        a(nodes).put("k", b"%03d" % number + value)
    await settled()
    assert stream.credit <= 0
    assert 50 < stream.position < 100
    assert watch._streams._streams
    assert sum(each.held_bytes for each in watch._streams._turn) < 2 * 64 * 1024
    assert [told[:3] for told in await take(watch, 200)] == [b"%03d" % number for number in range(200)]


async def test_reconnections_do_not_collect_what_is_not_read(connected: Client, nodes: WatchNodes) -> None:
    watch = await connected.watch("kv", buffer_bytes=1).opened()
    for number in range(200):
        a(nodes).put("k", b"%03d" % number + b"v" * 1000)
    for _ in range(6):
        await settled()
        (stream,) = a(nodes).live
        stream.end(DrainingError())
        await nodes.server.until(lambda: bool(a(nodes).live))
    await settled()
    assert sum(each.held_bytes for each in watch._streams._turn) < 3 * 64 * 1024
    assert [told[:3] for told in await take(watch, 200)] == [b"%03d" % number for number in range(200)]


async def test_marks_of_progress_do_not_pile_up(connected: Client, nodes: WatchNodes) -> None:
    watch = await connected.watch("kv", progress_s=0.1).opened()
    for _ in range(100):
        a(nodes).mark()
    await settled()
    assert sum(len(each.items) for each in watch._streams._turn) == 1


# --- the end ---


async def test_a_watch_that_cannot_begin_leaves_nothing(
    connected: Client, nodes: WatchNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[GroupStream] = []

    def hurry(stream: GroupStream) -> None:
        if begun:
            raise ValueError("a mistake")
        begun.append(stream)
        stream.start()

    monkeypatch.setattr(GroupStream, "hurry", hurry)
    with pytest.raises(ValueError, match="a mistake"):
        connected.watch("kv", idle_timeout_s=1)
    await settled()
    assert not connected._dispatcher.followers
    assert not nodes.live
    monkeypatch.undo()
    assert await connected.watch("kv").opened()


async def test_a_watch_that_fails_hinders_no_other(
    connected: Client, nodes: WatchNodes, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    failing = await connected.watch("kv").opened()
    other = await connected.watch("kv").opened()

    def changed() -> None:
        raise ValueError("a mistake")

    failing._streams.changed = changed  # type: ignore[method-assign]
    for peer in list(server.live):
        peer.cut()
    await server.until(lambda: len(nodes.live) == 2)
    a(nodes).put("k", b"1")
    assert await take(other, 1) == [b"1"]
    with pytest.raises(InternalError, match=r"the watch has failed: .*a mistake"):
        await anext(failing)
    assert list(connected._dispatcher.followers) == [other._streams]
    assert caplog.text.count("a watch has failed") == 1


async def test_a_watch_that_fails_at_the_end_does_not_keep_the_client_open(
    connected: Client, nodes: WatchNodes, server: Server
) -> None:
    failing = await connected.watch("kv").opened()
    other = await connected.watch("kv").opened()

    def closed() -> None:
        raise ValueError("a mistake")

    failing._streams.closed = closed  # type: ignore[method-assign]
    await connected.close()
    with pytest.raises(InternalError, match=r"the watch has failed: .*a mistake"):
        await anext(failing)
    assert [batch async for batch in other] == []
    await server.until(lambda: not server.live)


async def test_filters_that_no_request_can_hold_are_an_error(
    connected: Client, nodes: WatchNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dispatcher, "body_bytes_max", 500)
    async with asyncio.timeout(10):
        with pytest.raises(TooLargeError, match=r"the watch's filters take \d+ bytes in a request, 500 are allowed"):
            await connected.watch(keys=[KvKey("n", "x" * 600)]).opened()
    assert not connected._dispatcher.followers


@pytest.mark.parametrize(
    "error", [PermissionDeniedError("no"), InvalidRequestError("bad filter"), QuotaExceededError("too few")], ids=str
)
async def test_an_error_that_waiting_does_not_repair_is_raised(
    connected: Client, nodes: WatchNodes, error: Any
) -> None:
    for node in ("n1", "n2", "n3"):
        nodes.refusals[node, ""] = error
    watch = connected.watch("kv")
    with pytest.raises(type(error), match=error.message):
        await watch.opened()
    for _ in range(2):
        with pytest.raises(type(error), match=error.message):
            await anext(watch)
    assert not connected._dispatcher.followers


async def test_a_node_of_an_older_version_is_avoided(connected: Client, nodes: WatchNodes) -> None:
    nodes.refusals["n1", ""] = nodes.refusals["n2", ""] = UnknownMethodError()
    watches = [connected.watch("kv") for _ in range(5)]
    for watch in watches:
        await watch.opened()
    assert {stream.peer.node for stream in nodes.live} == {"n3"}
    nodes.refusals["n3", ""] = UnknownMethodError()
    with pytest.raises(UnknownMethodError):
        await connected.watch("kv").opened()


async def test_a_watch_ends_when_no_node_accepts_the_client_any_more(
    connected: Client, nodes: WatchNodes, server: Server
) -> None:
    """Other clients' watches hang once their credentials have expired."""
    watch = await connected.watch("kv").opened()
    server.greeting_error = UnauthenticatedError("the token has expired")
    for peer in list(server.live):
        peer.cut()
    with pytest.raises(UnauthenticatedError, match="the token has expired"):
        await anext(watch)


async def test_without_any_server_the_state_says_it_and_the_watch_goes_on_later(
    connected: Client, nodes: WatchNodes, server: Server
) -> None:
    states: list[ClientState] = []
    forget = connected.on_state(states.append)
    assert connected.state is ClientState.CONNECTED
    watch = await connected.watch("kv").opened()
    for host in ("a", "b", "c"):
        await server.stop_listening(host)
    for peer in list(server.live):
        peer.cut()
    waiting = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(29)
    assert states == [ClientState.SUSPENDED]
    await asyncio.sleep(2)
    assert states == [ClientState.SUSPENDED, ClientState.LOST]
    assert not waiting.done()
    for host, node in (("a", "n1"), ("b", "n2"), ("c", "n3")):
        await server.listen(host, node)
    a(nodes).put("k", b"1")
    assert told(await waiting) == [b"1"]
    assert states[2:] == [ClientState.CONNECTED]
    forget()
    await connected.close()
    assert len(states) == 3
    assert connected.state is ClientState.LOST


async def test_a_listener_that_fails_is_logged_and_hinders_nobody(
    server: Server, dial: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client = dial.make()
    states: list[ClientState] = []

    def fails(state: ClientState) -> None:
        raise ValueError("mine")

    client.on_state(fails)
    client.on_state(states.append)
    await client.open()
    assert states == [ClientState.CONNECTED]
    assert "a listener of the client's state has failed" in caplog.text


async def test_a_bounded_wait_for_streams_ends_the_watch(connected: Client, nodes: WatchNodes) -> None:
    watch = await connected.watch("kv", idle_timeout_s=5).opened()
    await asyncio.sleep(20)
    for node in ("n1", "n2", "n3"):
        nodes.refusals[node, a(nodes).name] = NotReplicaError()
    a(nodes).live[0].end(NotReplicaError())
    with pytest.raises(DeadlineExceededError, match=f"no stream of {a(nodes).name} for 5 s"):
        await anext(watch)


FULL = QuotaError("principal 'app' may have 1 watches at a node, and has 1", retry_after_ms=1_000)


async def test_a_watch_that_a_quota_keeps_from_beginning_ends(connected: Client, nodes: WatchNodes) -> None:
    """It waited for ever, and nothing said so."""
    for node in ("n1", "n2", "n3"):
        nodes.refusals[node, a(nodes).name] = FULL
    begun_s = asyncio.get_running_loop().time()
    watch = connected.watch("kv")
    with pytest.raises(QuotaError, match="may have 1 watches at a node"):
        await watch.opened()
    assert QUOTA_S <= asyncio.get_running_loop().time() - begun_s <= QUOTA_S + 10
    with pytest.raises(QuotaError):
        await anext(watch)
    asked = len(nodes.openings)
    await asyncio.sleep(60)
    assert len(nodes.openings) == asked, "it asks no more"
    assert not connected._dispatcher.followers


async def test_a_watch_that_begins_slowly_goes_on(connected: Client, nodes: WatchNodes) -> None:
    """A rate lets one stream after the other begin; and what has begun once waits until there is room again."""
    first, second = nodes.groups[0].name, nodes.groups[1].name
    refused = [(node, group) for group in (first, second) for node in ("n1", "n2", "n3")]
    nodes.refusals |= dict.fromkeys(refused, FULL)
    watch = connected.watch("kv")
    for group in (first, second):
        await asyncio.sleep(QUOTA_S - 20)
        for node in ("n1", "n2", "n3"):
            del nodes.refusals[node, group]
    await watch.opened()
    nodes.refusals |= dict.fromkeys(refused, FULL)
    nodes.groups[0].live[0].end(NotReplicaError())
    await asyncio.sleep(2 * QUOTA_S)
    nodes.refusals.clear()
    await asyncio.sleep(10)
    assert nodes.groups[0].live


async def test_a_bounded_wait_says_what_it_waited_for(connected: Client, nodes: WatchNodes) -> None:
    for node in ("n1", "n2", "n3"):
        nodes.refusals[node, ""] = FULL
    watch = connected.watch("kv", idle_timeout_s=5)
    with pytest.raises(DeadlineExceededError, match="no stream of data-0, data-1 for 5 s: principal 'app' may have 1"):
        await watch.opened()


async def test_a_closed_watch_ends_its_iteration_and_its_streams(connected: Client, nodes: WatchNodes) -> None:
    async with connected.watch("kv") as watch:
        await watch.opened()
        waiting = asyncio.ensure_future(collect(watch))
        await settled()
    assert await waiting == []
    await settled()
    assert not nodes.live
    assert not connected._dispatcher.followers
    await watch.close()
    with pytest.raises(ClosedError):
        await connected.watch("kv").__aexit__(None, None, None) or await closed(connected)


async def closed(client: Client) -> None:
    watch = client.watch("kv")
    await watch.close()
    await watch.opened()


async def collect(watch: Watch) -> list[WatchBatch]:
    return [batch async for batch in watch]


async def test_a_closed_client_ends_the_iteration(connected: Client, nodes: WatchNodes) -> None:
    watch = await connected.watch("kv").opened()
    waiting = asyncio.ensure_future(collect(watch))
    await settled()
    await connected.close()
    assert await waiting == []
    with pytest.raises(ClosedError):
        connected.watch("kv")


async def test_a_watch_that_is_dropped_leaves_nothing(connected: Client, nodes: WatchNodes) -> None:
    async def first() -> None:
        async for _ in connected.watch("kv"):
            return

    reading = asyncio.ensure_future(first())
    await nodes.server.until(lambda: len(nodes.live) == 2)
    await settled()
    a(nodes).put("k", b"1")
    await reading
    del reading
    gc.collect()
    await nodes.server.until(lambda: not nodes.live)
    assert not connected._dispatcher.followers
    assert len(nodes.server.live) == 3


async def test_a_cancelled_reader_loses_nothing(connected: Client, nodes: WatchNodes) -> None:
    watch = await connected.watch("kv").opened()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(watch), 0.1)
    a(nodes).put("k", b"1")
    assert await take(watch, 1) == [b"1"]
    reading = asyncio.ensure_future(anext(watch))
    await settled()
    with pytest.raises(RuntimeError, match="one task at a time"):
        await anext(watch)
    reading.cancel()


async def test_an_event_that_makes_no_sense_ends_the_watch(connected: Client, nodes: WatchNodes) -> None:
    from metad_client import InternalError

    watch = await connected.watch("kv").opened()
    (stream,) = a(nodes).live
    stream.peer.session.event(stream.id, b"\xc1")
    stream.peer.flush()
    with pytest.raises(InternalError, match="an event that makes no sense"):
        await anext(watch)
    assert WatchEvents(0)


# --- a watch that has an end ---


async def test_a_watch_until_a_token_delivers_what_is_between_and_ends(connected: Client, nodes: WatchNodes) -> None:
    watch = await connected.watch("kv").opened()
    begin = watch.token
    tokens = [begin]
    for number in range(6):
        (a(nodes) if number % 2 else b(nodes)).put("k", str(number).encode(), "ns" if number % 2 else other(nodes))
        tokens.append((await anext(watch)).token)
    for first in range(7):
        for last in range(first, 7):
            between = connected.watch("kv", token=tokens[first], until=tokens[last])
            found = [event.record.value async for batch in between for event in batch.events]
            assert sorted(found) == [str(number).encode() for number in range(first, last)]
            assert between.token == tokens[last]
    await settled()
    assert len(nodes.live) == 2  # of the first watch


async def test_a_group_that_is_at_the_end_has_no_stream_and_is_not_missed(connected: Client, nodes: WatchNodes) -> None:
    """As a task of Spark reads one group of several. The wait for the other one's stream ended it, after its bound."""
    watch = await connected.watch("kv").opened()
    begin = watch.token
    a(nodes).put("k", b"1", "ns")
    b(nodes).put("k", b"2", other(nodes))
    await take(watch, 2)
    cluster_id, last = from_text(watch.token)
    at = {**last["data"].indexes, a(nodes).ordinal: from_text(begin)[1]["data"].index(a(nodes).ordinal)}
    mine = to_text(cluster_id, {"data": (at, packed_slots(last["data"]))})
    await watch.close()
    between = connected.watch("kv", token=mine, until=watch.token, idle_timeout_s=5)
    await asyncio.sleep(20)
    assert len(nodes.live) == 1
    assert [event.record.value async for batch in between for event in batch.events] == [b"1"]


def other(nodes: WatchNodes) -> str:
    """A namespace of the other group."""
    return next(name for name in map(str, range(100)) if slot_of(name) in b(nodes).slots)


async def test_an_end_within_one_event_of_many_entries_is_kept(connected: Client, nodes: WatchNodes) -> None:
    watch = await connected.watch("kv").opened()
    begin = watch.token
    tokens: list[str] = []
    for number in range(5):
        a(nodes).put("k", str(number).encode())
        tokens.append((await anext(watch)).token)
    nodes.fills_events = True
    between = connected.watch("kv", token=begin, until=tokens[2])
    assert [event.record.value async for batch in between for event in batch.events] == [b"0", b"1", b"2"]
    assert between.token == tokens[2]


async def test_a_watch_with_an_end_follows_slots_that_move_before_it(connected: Client, nodes: WatchNodes) -> None:
    source, target = a(nodes), b(nodes)
    watch = await connected.watch("kv").opened()
    begin = watch.token
    source.put("k", b"1")
    source.move_to(target, 7, {slot_of("ns")})
    target.put("k", b"2")
    assert await take(watch, 2) == [b"1", b"2"]
    end = watch.token
    target.put("k", b"3")
    for _ in range(3):
        between = connected.watch("kv", token=begin, until=end)
        assert [event.record.value async for batch in between for event in batch.events] == [b"1", b"2"]


@pytest.mark.parametrize("name", ["keys", "previous", "keys_only", "coalesce"])
@pytest.mark.parametrize("value", [5, {1.5}])
async def test_an_argument_of_a_wrong_type_is_refused(connected: Client, name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{name}: "):
        connected.watch("kv", **{name: value})
    assert not connected._dispatcher.followers


async def test_an_end_without_a_beginning_is_refused(connected: Client, nodes: WatchNodes) -> None:
    token = (await connected.watch("kv").opened()).token
    with pytest.raises(InvalidRequestError, match="until: a watch that has an end begins at a token"):
        connected.watch("kv", until=token)
    with pytest.raises(InvalidRequestError, match="until: expected str, got int"):
        connected.watch("kv", token=token, until=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="until: it is of a watch of data groups"):
        connected.watch("offset", until=token)


def test_what_a_group_may_write_is_known_from_the_pin_on() -> None:
    """Entries before the state in which a stream was opened may be of slots that the group has lost by then."""
    owner: Any = SimpleNamespace(opened=lambda stream, pin: None)
    unused: Any = None
    stream = GroupStream(owner, unused, unused, GroupId("data", 0))
    stream._loop = SimpleNamespace(time=lambda: 0.0)  # type: ignore[assignment]
    one, two, three = (1 << number for number in range(3))

    def packed(slots: int) -> bytes:
        return slots.to_bytes(128, "big")

    def moved(step: MarkerStep, slots: int, index: int) -> None:
        stream.moved(SlotMarker(step, 1, packed(slots), 1), index)

    stream.opened(None, unused, WatchOpened(10, False, packed(one | two), b"", 0, [], True))
    assert [stream.writes_only(one | two, index) for index in (9, 10, 11)] == [False, False, True]
    assert not stream.writes_only(one, 11)
    moved(MarkerStep.SEALED, one | two, 9)
    moved(MarkerStep.ADOPTED, three, 10)
    assert stream.writes_only(one | two, 11), "the pin has what happened before it"
    assert not stream.writes_only(three, 11)
    moved(MarkerStep.SEALED, two, 11)
    assert stream.writes_only(one, 12)
    moved(MarkerStep.UNSEALED, two, 13)
    assert not stream.writes_only(one, 14)
    moved(MarkerStep.ADOPTED, three, 15)
    assert not stream.writes_only(one | two, 16)
    assert stream.writes_only(one | two | three, 16)
