"""Images: local tables that show what the cluster has, through gaps and interruptions; how old they are; their end."""

from __future__ import annotations

import asyncio
import gc
import threading
from functools import partial
from typing import Any

import pytest
from scripted import Server, settled
from watch_server import RECORD, Group, WatchNodes, kv_key, slot_of

from metad_client import (
    Broker,
    BrokerKey,
    ChangeKind,
    Client,
    ClientState,
    ClosedError,
    ConsumerGroup,
    DeadlineExceededError,
    DrainingError,
    Image,
    InvalidRequestError,
    Kv,
    KvKey,
    Offset,
    OffsetKey,
    PermissionDeniedError,
    Session,
    SessionKey,
    SessionOwner,
    SessionProperties,
    Watched,
    WatchEvent,
    blocking,
)
from metad_wire.cluster import ClusterMap
from metad_wire.methods import encode
from metad_wire.tables import TABLES
from metad_wire.watch import BEHIND_UNKNOWN_MS, WatchChange, WatchEvents, WatchRows

OFFSET = TABLES["offset"].rows["offset"]
OWNER, PROPERTIES = TABLES["session"].rows["owner"], TABLES["session"].rows["properties"]


@pytest.fixture
async def nodes(server: Server) -> WatchNodes:
    await server.listen("b", "n2")
    await server.listen("c", "n3")
    return WatchNodes(server, data=1)


@pytest.fixture
async def connected(server: Server, nodes: WatchNodes, dial: Any) -> Client:
    client: Client = await dial("metad://a,b,c")
    await server.until(lambda: len(server.live) == 3)
    await settled()
    return client


@pytest.fixture
def group(nodes: WatchNodes) -> Group:
    return nodes.groups[0]


def owner(client_id: str, broker: str, *, connected: bool = True, expires_ms: int = 0, will_ms: int = 0) -> WatchChange:
    key = TABLES["session"].key_of(["acme", client_id])
    record = SessionOwner(connected, broker, 1, 0, expires_ms=expires_ms, will_ms=will_ms)
    return WatchChange(OWNER, ChangeKind.WRITTEN, key, encode(record))


def properties(client_id: str, payload: bytes) -> WatchChange:
    key = TABLES["session"].key_of(["acme", client_id])
    return WatchChange(PROPERTIES, ChangeKind.WRITTEN, key, encode(SessionProperties(60, payload)))


def values(image: Image) -> dict[str, bytes]:
    return {key.key: record.value for key, record in image["kv"].items()}


async def test_the_slots_of_one_kind_of_groups_are_not_those_of_another(connected: Client, nodes: WatchNodes) -> None:
    """A snapshot of a group of data dropped the offsets in slots of the same numbers."""
    offsets = Group(nodes, 0, set(range(1024)))
    offsets.name = "offset-0"
    nodes.groups.append(offsets)
    nodes.holds_back_rows = True
    image = connected.image(["kv", "offset"])
    await settled()
    key = TABLES["offset"].key_of(["t", "g", "topic", 0])
    offset = Offset("t", "g", "topic", 0, 7, 0, 0, "")
    (stream,) = offsets.live
    stream.send(WatchEvents(0, rows=[WatchRows(OFFSET, [key], [encode(offset)])], snapshot_done=True))
    stream.peer.flush()
    await settled()
    nodes.groups[0].send_rows(nodes.groups[0].live[0])
    await image.caught_up()
    assert dict(image["offset"]) == {OffsetKey("t", "g", "topic", 0): offset}


@pytest.mark.parametrize("first", ["data", "offset"])
async def test_a_gap_of_one_kind_of_groups_touches_no_record_of_another(
    connected: Client, nodes: WatchNodes, group: Group, first: str
) -> None:
    """Whichever kind is read first, and whichever has the gap: all rows are in slots of the same numbers."""
    offsets = Group(nodes, 0, set(range(1024)))
    offsets.name = "offset-0"
    nodes.groups.append(offsets)
    nodes.holds_back_rows = True
    heard: list[WatchEvent] = []
    image = connected.image(["kv", "session", "offset"])
    image.on_change(heard.append)
    await nodes.server.until(lambda: bool(group.live and offsets.live))

    def rows(kind: str, tenants: list[str]) -> list[WatchRows]:
        if kind == "offset":
            keys = [TABLES["offset"].key_of([tenant, "g", "topic", 0]) for tenant in tenants]
            return [WatchRows(OFFSET, keys, [encode(Offset(t, "g", "topic", 0, 7, 0, 0, "")) for t in tenants])]
        sessions = [TABLES["session"].key_of([tenant, "c"]) for tenant in tenants]
        return [
            WatchRows(RECORD, [kv_key("k", t) for t in tenants], [encode(Kv(t, "k", b"v", 1, 1, 1)) for t in tenants]),
            WatchRows(OWNER, sessions, [encode(SessionOwner(True, "b", 1, 0))] * len(sessions)),
        ]

    async def send(kind: str, count: int) -> None:
        (stream,) = (group if kind == "data" else offsets).live
        stream.send(
            WatchEvents(
                stream.position, rows=rows(kind, [f"t{number:03}" for number in range(count)]), snapshot_done=True
            )
        )
        stream.peer.flush()
        await settled()

    def counted() -> tuple[int, int, int]:
        return len(image["kv"]), len(image["session"]), len(image["offset"])

    second = "offset" if first == "data" else "data"
    await send(first, 200)
    await send(second, 200)
    await image.caught_up()
    assert counted() == (200, 200, 200)
    left = {"data": 200, "offset": 200}
    for kind in (first, second):
        cut = group if kind == "data" else offsets
        heard.clear()
        (stream,) = cut.live
        stream.end(DrainingError())
        cut.append([])
        cut.base = len(cut.log)
        await nodes.server.until(partial(lambda cut: bool(cut.live), cut))
        await send(kind, 150)
        await image.caught_up()
        left[kind] = 150
        assert counted() == (left["data"], left["data"], left["offset"])
        assert {event.kind for event in heard} == {ChangeKind.DELETED}
        assert {event.table for event in heard} == ({"kv", "session"} if kind == "data" else {"offset"})


async def test_an_image_shows_the_records_and_their_changes(connected: Client, group: Group) -> None:
    group.put("k1", b"1")
    group.put("k2", b"2")
    image = await connected.image("kv").caught_up()
    table = image["kv"]
    assert table[KvKey("ns", "k1")] == Kv("ns", "k1", b"1", 1, 10, 10)
    assert (len(table), list(table), KvKey("ns", "k2") in table, KvKey("ns", "k3") in table) == (
        2,
        [KvKey("ns", "k1"), KvKey("ns", "k2")],
        True,
        False,
    )
    assert dict(table) == {record_key(record): record for record in table.values()} == dict(table.items())
    assert table.get(KvKey("ns", "k3")) is None
    with pytest.raises(KeyError):
        table[KvKey("ns", "k3")]
    with pytest.raises(TypeError, match="a key of kv is KvKey, not 'k1'"):
        table["k1"]
    with pytest.raises(KeyError, match="no table 'session'; it has kv"):
        image["session"]
    group.put("k3", b"3")
    group.put("k1", b"4")
    group.delete("k2")
    await settled()
    assert values(image) == {"k1": b"4", "k3": b"3"}
    assert await connected.watch("kv", token=image.token).opened()


def record_key(record: Kv) -> KvKey:
    return KvKey(record.namespace, record.key)


async def test_a_session_is_joined_of_its_rows(connected: Client, group: Group) -> None:
    image = await connected.image("session").caught_up()
    group.append([owner("c1", "b1"), properties("c1", b"state")])
    group.append([owner("c2", "b2", connected=False, expires_ms=7_000, will_ms=5_000)])
    await settled()
    sessions = image["session"]
    assert sessions[SessionKey("acme", "c1")] == Session(
        "acme", "c1", True, "b1", 1, 0, SessionProperties(60, b"state")
    )
    assert sessions[SessionKey("acme", "c2")] == Session(
        "acme", "c2", False, "b2", 1, 0, SessionProperties(), expires_ms=7_000, will_ms=5_000
    )
    assert [session.client_id for session in sessions.values()] == ["c1", "c2"]
    key = TABLES["session"].key_of(["acme", "c1"])
    group.append([WatchChange(OWNER, ChangeKind.EXPIRED, key), WatchChange(PROPERTIES, ChangeKind.EXPIRED, key)])
    await settled()
    assert list(sessions) == [SessionKey("acme", "c2")]


async def test_an_image_of_a_brokers_sessions_has_no_other(connected: Client, group: Group) -> None:
    image = await connected.image("session", broker="b1").caught_up()
    assert group.live[0].received.body.filters[0].broker == "b1"
    group.append([owner("c1", "b1")])
    await settled()
    assert list(image["session/owner"].values()) == [SessionOwner(True, "b1", 1, 0)]
    group.append([owner("c1", "b2")])
    await settled()
    assert not image["session/owner"]


async def test_an_image_invents_no_row_that_is_not_watched(connected: Client) -> None:
    """Guards sessions without a will, because the watch of a broker's sessions reads their owners only."""
    of_broker = connected.image("session", broker="b1")
    with pytest.raises(KeyError, match=r'it has session/owner"$'):
        of_broker["session"]
    both = connected.image([Watched("session", "acme"), Watched("session", broker="b1")])
    with pytest.raises(KeyError, match=r'it has session/owner, session/properties"$'):
        both["session"]


async def test_other_tables_have_their_own_shapes(connected: Client, nodes: WatchNodes) -> None:
    offsets, metadata = Group(nodes, 0, set(range(1024))), Group(nodes, 0, set(range(1024)))
    offsets.name, metadata.name = "offset-0", "metadata-0"
    nodes.groups += [offsets, metadata]
    image = await connected.image(["offset", "cluster"]).caught_up()
    table = TABLES["offset"]
    key = table.key_of(["acme", "g", "topic", 0])
    offset = Offset("acme", "g", "topic", 0, 42, 7, 1, "")
    offsets.append([WatchChange(table.rows["offset"], ChangeKind.WRITTEN, key, encode(offset))])
    offsets.append([WatchChange(table.rows["generation"], ChangeKind.WRITTEN, table.key_of(["acme", "g"]), encode(7))])
    assert nodes.server.map is not None
    metadata.append([WatchChange(TABLES["cluster"].rows["map"], ChangeKind.CHANGED, b"", encode(nodes.server.map))])
    await settled()
    assert image["offset"][OffsetKey("acme", "g", "topic", 0)] == offset
    assert image["offset/generation"][ConsumerGroup("acme", "g")] == 7
    assert isinstance(image["cluster"][None], ClusterMap)
    with pytest.raises(TypeError, match="a key of cluster is None"):
        image["cluster"][KvKey("a", "b")]


async def test_it_has_not_caught_up_while_a_slot_is_on_its_way(
    connected: Client, nodes: WatchNodes, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group that has it by now may be in no map that the client knows, and have what was acknowledged since."""
    monkeypatch.setattr("metad_client.watch.streams.TARGET_RETRY_S", 0.05)
    group.put("k1", b"1")
    added = Group(nodes, 1, set())
    nodes.groups.append(added)
    sealed_index = group.seal(50, {slot_of("ns")}, added)
    image = connected.image("kv")
    with pytest.raises(DeadlineExceededError):
        await image.caught_up(0.1)
    added.adopt(50, {slot_of("ns")}, group, sealed_index)
    added.put("k2", b"2")
    nodes.place(version=2, data=2)
    await image.caught_up()
    assert values(image) == {"k1": b"1", "k2": b"2"}


async def test_brokers_are_shown_and_those_that_are_forgotten_meanwhile_vanish(
    connected: Client, nodes: WatchNodes
) -> None:
    """They are in no slot: what a snapshot does not bring is gone all the same."""
    metadata = Group(nodes, 0, set(range(1024)))
    metadata.name = "metadata-0"
    nodes.groups.append(metadata)
    table = TABLES["broker"]
    row = table.rows["record"]
    image = await connected.image("broker").caught_up()
    one, two = (Broker(name, 7, "active", 10_000) for name in ("one", "two"))
    for broker in (one, two):
        metadata.append([WatchChange(row, ChangeKind.WRITTEN, table.key_of([broker.broker]), encode(broker))])
    await settled()
    assert dict(image["broker"]) == {BrokerKey("one"): one, BrokerKey("two"): two}
    nodes.holds_back_rows = True
    (stream,) = metadata.live
    stream.end(DrainingError())
    metadata.append([])
    metadata.base = len(metadata.log)
    await nodes.server.until(lambda: bool(metadata.live))
    (stream,) = metadata.live
    rows = WatchRows(row, [table.key_of(["two"])], [encode(two)])
    stream.send(WatchEvents(stream.position, rows=[rows], snapshot_done=True))
    stream.peer.flush()
    await settled()
    await image.caught_up()
    assert dict(image["broker"]) == {BrokerKey("two"): two}


async def test_after_a_gap_it_shows_what_there_is_and_tells_what_has_changed(
    connected: Client, nodes: WatchNodes, group: Group
) -> None:
    for key in ("k1", "k2", "k3"):
        group.put(key, b"1")
    image = await connected.image("kv").caught_up()
    heard: list[WatchEvent] = []
    forget = image.on_change(heard.append)
    (stream,) = group.live
    stream.peer.server.answer = None
    stream.end(DrainingError())
    group.put("k1", b"2")
    group.delete("k2")
    group.put("k4", b"1")
    group.base = len(group.log)
    await settled()
    assert values(image) == {"k1": b"1", "k2": b"1", "k3": b"1"}
    nodes.server.answer = nodes.answer
    for received in list(nodes.server.received):
        if received.request_id in received.peer.session.unanswered:
            nodes.answer(received)
    await nodes.server.until(lambda: bool(group.live))
    await settled()
    await image.caught_up()
    assert values(image) == {"k1": b"2", "k3": b"1", "k4": b"1"}
    assert [(event.kind, event.key.key) for event in heard] == [
        (ChangeKind.CHANGED, "k1"),
        (ChangeKind.CREATED, "k4"),
        (ChangeKind.DELETED, "k2"),
    ]
    forget()
    forget()
    group.put("k1", b"3")
    await settled()
    assert len(heard) == 3


async def test_an_interrupted_snapshot_leaves_no_row_that_is_gone(
    connected: Client, nodes: WatchNodes, group: Group
) -> None:
    nodes.holds_back_rows = True
    group.put("k1", b"1")
    image = connected.image("kv")
    await nodes.server.until(lambda: bool(group.live))
    group.send_rows(group.live[0], done=False)
    await settled()
    assert values(image) == {"k1": b"1"}
    nodes.holds_back_rows = False
    group.delete("k1")
    group.put("k2", b"2")
    group.live[0].end(DrainingError())
    await image.caught_up()
    assert values(image) == {"k2": b"2"}


async def test_listeners_hear_each_change_and_one_that_fails_hinders_nobody(
    connected: Client, group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    image = await connected.image("kv").caught_up()
    seen: list[tuple[ChangeKind, int]] = []

    def fails(event: WatchEvent) -> None:
        raise ValueError("mine")

    image.on_change(fails)
    image.on_change(lambda event: seen.append((event.kind, len(image["kv"]))))
    group.put("k", b"1")
    group.delete("k")
    await settled()
    assert [kind for kind, _ in seen] == [ChangeKind.CREATED, ChangeKind.DELETED]
    assert "a listener of an image has failed" in caplog.text


async def test_a_listener_finds_in_the_image_what_it_is_told(connected: Client, group: Group) -> None:
    """Also what a snapshot brings: it was told before the image showed it."""
    group.put("before", b"1")
    image = connected.image("kv")
    seen: list[tuple[Kv, Kv | None]] = []
    image.on_change(lambda event: seen.append((event.record, image["kv"].get(event.key))))
    await image.caught_up()
    group.put("after", b"2")
    await settled()
    assert [told.key for told, _ in seen] == ["before", "after"]
    assert all(told == shown for told, shown in seen)


async def test_its_age_is_what_the_servers_last_proved(
    connected: Client, nodes: WatchNodes, group: Group, server: Server
) -> None:
    group.put("k", b"1")
    nodes.holds_back_rows = True
    image = connected.image("kv")
    await settled()
    group.mark()
    await settled()
    assert image.age_ms is None, "it shows nothing yet, however fresh that is"
    (stream,) = group.live
    group.send_rows(stream)
    await image.caught_up()
    assert stream.received.body.progress_ms == 1000
    assert image.age_ms == pytest.approx(0, abs=50)
    await asyncio.sleep(10)
    assert image.age_ms == pytest.approx(10_000, abs=50), "what it had when it was opened is known"
    group.mark(behind_ms=BEHIND_UNKNOWN_MS)
    await settled()
    assert image.age_ms == pytest.approx(10_000, abs=50), "a replica that knows nothing proves nothing"
    group.mark(behind_ms=100)
    await settled()
    assert image.age_ms == pytest.approx(100)
    for host in ("a", "b", "c"):
        await server.stop_listening(host)
    for peer in list(server.live):
        peer.cut()
    await asyncio.sleep(60)
    assert connected.state is ClientState.LOST
    assert values(image) == {"k": b"1"}
    assert image.age_ms == pytest.approx(60_100, rel=0.01)


async def test_one_that_is_not_complete_in_time_says_so(connected: Client, nodes: WatchNodes, group: Group) -> None:
    nodes.holds_back_rows = True
    image = connected.image("kv")
    with pytest.raises(DeadlineExceededError, match="not complete after 5 s"):
        await image.caught_up(5)
    group.send_rows(group.live[0])
    await image.caught_up(5)


async def test_it_ends_with_an_error_with_close_or_with_its_client(
    connected: Client, nodes: WatchNodes, group: Group
) -> None:
    group.put("k", b"1")
    async with connected.image("kv") as image:
        await image.caught_up()
    await settled()
    assert not group.live
    assert values(image) == {"k": b"1"}
    other = connected.image("kv", keys=[KvKey("ns", "nope")])
    await other.caught_up()
    await connected.close()
    assert other.error is None
    with pytest.raises(ClosedError):
        connected.image("kv")


async def test_a_refusal_is_raised_by_who_waits(connected: Client, nodes: WatchNodes) -> None:
    for node in ("n1", "n2", "n3"):
        nodes.refusals[node, ""] = PermissionDeniedError("no")
    image = connected.image("kv")
    with pytest.raises(PermissionDeniedError):
        await image.caught_up()
    assert isinstance(image.error, PermissionDeniedError)
    closed = connected.image("kv")
    await closed.close()
    with pytest.raises(ClosedError):
        await closed.caught_up()
    with pytest.raises(InvalidRequestError):
        connected.image("nope")
    with pytest.raises(InvalidRequestError, match="progress_s"):
        connected.image("kv", progress_s=0)
    with pytest.raises(InvalidRequestError, match="buffer_bytes"):
        connected.image("kv", buffer_bytes=0)
    with pytest.raises(InvalidRequestError, match="keys: expected a sequence of keys, got int"):
        connected.image("kv", keys=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="timeout_s: "):
        await closed.caught_up("x")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="prefix: the text has surrogates"):
        connected.image("kv", prefix="\ud800")
    assert not connected._dispatcher.followers


async def test_an_image_that_is_dropped_leaves_nothing(connected: Client, group: Group, nodes: WatchNodes) -> None:
    await connected.image("kv").caught_up()
    gc.collect()
    await nodes.server.until(lambda: not group.live)
    assert not connected._dispatcher.followers


async def test_large_snapshots_come_in_turns(connected: Client, nodes: WatchNodes, group: Group) -> None:
    nodes.holds_back_rows = True
    image = connected.image("kv")
    await nodes.server.until(lambda: bool(group.live))
    (stream,) = group.live
    for part in range(50):
        keys = [f"k{part * 100 + at:05}" for at in range(100)]
        values = [encode(Kv("ns", key, b"v", 1, 1, 1)) for key in keys]
        stream.send(WatchEvents(0, rows=[WatchRows(0x30, [kv_key(key, "ns") for key in keys], list(values))]))
    group.send_rows(stream)
    await image.caught_up()
    assert len(image["kv"]) == 5000


def test_a_blocking_program_has_watches_and_images_too(scripted_server: Server) -> None:
    nodes = WatchNodes(scripted_server, data=1)
    nodes.place(nodes={"n1": "a:7420"}, data=1)
    (group,) = nodes.groups
    group.put("k", b"1")
    with blocking.connect("metad://a", transport=scripted_server.transport) as client:
        assert client.state is ClientState.CONNECTED
        with client.watch("kv", start="snapshot") as watch, client.image("kv") as image:
            assert watch.opened() is watch
            image.caught_up(30)
            assert image["kv"][KvKey("ns", "k")].value == b"1"
            assert [event.record.value for event in next(watch).events] == [b"1"]
            # each event as it comes: nothing waits for more of them
            heard = threading.Event()
            forget = image.on_change(lambda _: heard.set())
            client._portal.call(group.put, "k", b"2")
            assert [event.record.value for event in next(watch).events] == [b"2"]
            assert heard.wait(30)
            forget()
            assert watch.token == image.token != ""
            assert watch.age_ms is not None
            assert image.age_ms is not None
            assert image.error is None
        assert list(watch) == []
        states: list[ClientState] = []
        forget = client.on_state(states.append)
        left = client.watch("kv")
    assert list(left) == []
    assert left.next() is None
    left.close()
    image.close()
    forget()
    assert states == [ClientState.LOST]
    assert image["kv"][KvKey("ns", "k")].value == b"2"
    assert image.token
