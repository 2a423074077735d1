"""Several nodes: each group's items go to its leader, and nobody hears of it when that changes."""

from __future__ import annotations

import asyncio
import gc
import random
from zlib import crc32

import pytest
from msgspec.structs import replace
from scripted import ENDPOINTS

from metad_client import (
    ClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    InvalidItemError,
    InvalidRequestError,
    KvKey,
    KvPutItem,
    MetadError,
    NotFoundError,
    NotLeaderError,
    OverloadedError,
    PermissionDeniedError,
    Record,
    SessionKey,
    StaleRouteError,
    UnknownOutcomeError,
)
from metad_client.dispatch.discovery import REFRESH_S, SEEK_MAX_S
from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire.cluster import GroupId
from metad_wire.methods import CLUSTER_ADD_GROUP, CLUSTER_MAP
from metad_wire.routing import ROUTES, split, text, text2
from metad_wire.tables.offset import OFFSET, KnownGroup
from metad_wire.tables.retained import RETAINED, Retained
from metad_wire.tables.session import SESSION
from metad_wire.tables.subscription import SUBSCRIPTION, Subscription
from metad_wire.tables.table import PlainTable
from metad_wire.tables.will import WILL, DueWill


def start(coroutine):
    return asyncio.ensure_future(coroutine)


def namespace(group, groups=4):
    """A namespace of data group number ``group`` of so many."""
    return next(n for n in map(str, range(1000)) if crc32(text(n)) % 1024 * groups // 1024 == group)


def put(group, key="k"):
    return KvPutItem(namespace(group), key, b"1")


# --- to the leaders ---


async def test_each_groups_items_go_to_its_leader_in_a_request_of_their_own(server, nodes, dial, settle):
    client = await dial()
    await settle()
    keys = [SessionKey("t", f"c{i}") for i in range(200)]
    found = await client.sessions.get_many(keys)
    assert [session.client_id for session in found] == [key.client_id for key in keys]
    asked = {nodes.group_of(received): received.peer.node for received in server.received}
    assert asked == {"data-0": "n1", "data-1": "n2", "data-2": "n3", "data-3": "n1"}
    assert len(server.received) == 4
    assert client.statistics().retries == 0
    assert client.statistics().nodes == 3


async def test_singles_travel_with_those_of_their_group(server, nodes, dial, settle):
    client = await dial()
    await settle()
    await asyncio.gather(*[client.kv.get(namespace(i % 4), f"k{i}") for i in range(40)])
    assert sorted(len(received.body.items) for received in server.received) == [10, 10, 10, 10]


async def test_calls_do_not_wait_for_other_nodes_to_be_reached(server, nodes, dial):
    await server.stop_listening("c")
    client = await dial()
    assert (await client.kv.put_many([put(0), put(1)])).ok
    assert asyncio.get_running_loop().time() < 1001


async def test_a_listing_of_one_group_asks_its_leader_only(server, nodes, dial):
    client = await dial()
    [_ async for _ in client.kv.scan(namespace(2))]
    [_ async for _ in client.offsets.list("t", "g")]
    groups = [received.request.group for received in server.received]
    assert groups[0] == "data-2"
    assert groups[1:] in (["offset-0"], ["offset-1"])
    assert client.statistics().retries == 0


async def test_status_of_one_node_and_of_all(server, nodes, dial, settle):
    client = await dial()
    await settle()
    assert (await client.status("n3")).node_id == "n1"  # as scripted
    assert [received.peer.node for received in server.received] == ["n3"]
    server.received.clear()
    assert sorted(await client.cluster.statuses()) == ["n1", "n2", "n3"]
    assert sorted(received.peer.node for received in server.received) == ["n1", "n2", "n3"]
    with pytest.raises(NotFoundError, match="n9 is no member"):
        await client.status("n9")


async def test_a_node_that_is_down_has_an_error_for_a_status(server, nodes, dial, settle):
    await server.stop_listening("c")
    client = await dial()
    await settle()
    statuses = await client.cluster.statuses(deadline_s=1)
    assert isinstance(statuses["n2"], m.StatusReply)
    assert isinstance(statuses["n3"], DeadlineExceededError)
    assert "connection refused by c:7420" in str(statuses["n3"])


# --- hints and news ---


async def test_a_hint_is_followed_at_once_and_kept(server, nodes, dial, settle):
    loop = asyncio.get_running_loop()
    client = await dial()
    await settle()
    nodes.leaders["data-1"] = "n3"
    begun = loop.time()
    assert (await client.kv.put_many([put(1)])).ok
    assert loop.time() == begun
    first, second = server.received
    assert (first.peer.node, second.peer.node) == ("n2", "n3")
    assert first.body_bytes == second.body_bytes
    assert (first.identity.client_id, first.identity.seq) == (second.identity.client_id, second.identity.seq)
    assert second.identity.age_ms > 0
    await client.kv.put_many([put(1)])
    assert server.received[-1].peer.node == "n3"
    assert len(server.received) == 3


async def test_without_a_hint_the_others_are_asked_and_only_once_for_all_calls(server, nodes, dial, settle):
    client = await dial()
    await settle()
    nodes.hints = False
    nodes.leaders["data-1"] = "n3"
    server.map_requests.clear()
    results = await asyncio.gather(*[client.kv.put_many([put(1)]) for _ in range(50)])
    assert all(result.ok for result in results)
    assert len(server.map_requests) == 1
    assert client.statistics().retries == 50


async def test_while_nobody_leads_calls_wait_and_the_questions_are_few(server, nodes, dial, settle):
    loop = asyncio.get_running_loop()
    client = await dial()
    await settle()
    nodes.leaders["data-1"] = ""
    server.map_requests.clear()
    calls = [start(client.kv.put_many([put(1)])) for _ in range(50)]
    await asyncio.sleep(0)
    await asyncio.sleep(2)
    assert len(server.map_requests) < 30
    sent = len(server.received)
    assert sent < 50 + 30  # one attempt each, then a probe with a question at most
    nodes.leaders["data-1"] = "n1"
    news = loop.time()
    await asyncio.gather(*calls)
    assert loop.time() - news <= SEEK_MAX_S + 0.01
    assert (await client.kv.put_many([put(0)])).ok


async def test_news_of_a_leader_end_the_wait_of_those_that_were_refused(server, nodes, dial, settle):
    """The backoff is for nodes that have too much to do, not for those that were asked in vain."""
    loop = asyncio.get_running_loop()
    client = await dial()
    await settle()
    nodes.hints = False
    server.leaders = {}
    nodes.leaders["data-1"] = "n3"
    call = start(client.kv.put_many([put(1)]))
    await settle()
    begun = loop.time()
    server.leaders = nodes.leaders
    client._dispatcher.seek(at_once=True)
    assert (await call).ok
    assert loop.time() == begun


async def test_nodes_that_point_at_each_other_are_not_asked_in_a_hurry(server, nodes, dial, settle):
    other = {"n2": "n3", "n3": "n2", "n1": "n2"}
    server.answer = lambda received: received.fail(NotLeaderError(leader=other[received.peer.node]))
    server.leaders = {}
    client = await dial()
    await settle()
    with pytest.raises(DeadlineExceededError, match="did not happen"):
        await client.kv.put_many([put(1)], deadline_s=2)
    assert len(server.received) < 40


async def test_what_a_follower_believes_counts_for_less_than_a_refusal(server, nodes, dial, settle):
    client = await dial()
    await settle()
    nodes.hints = False
    nodes.leaders["data-1"] = "n3"
    server.leaders_by = {"n1": {"data-1": "n2"}, "n2": {"data-1": "n2"}, "n3": {"data-1": "n3"}}
    assert (await client.kv.put_many([put(1)])).ok
    refusals = [received for received in server.received if received.peer.node == "n2"]
    assert len(refusals) <= 2
    assert server.received[-1].peer.node == "n3"


async def test_a_hint_of_a_node_that_is_not_known_fetches_the_map(server, nodes, dial, settle):
    client = await dial()
    await settle()
    await server.listen("d", "n4")
    nodes.place(version=2, nodes={**ENDPOINTS, "n4": "d:7420"}, data=4)
    nodes.leaders["data-1"] = "n4"
    assert (await client.kv.put_many([put(1)])).ok
    assert [received.peer.node for received in server.received] == ["n2", "n4"]
    assert client.statistics().nodes == 4


async def test_a_node_that_left_is_hung_up_on_once_it_has_answered(server, nodes, dial, settle):
    client = await dial()
    await settle()
    server.answer = None
    call = start(client.kv.put_many([put(2)]))
    (received,) = await server.requests(1)
    assert received.peer.node == "n3"
    nodes.place(version=2, nodes={"n1": "a:7420", "n2": "b:7420"}, data=4)
    client._dispatcher.seek(at_once=True)
    await asyncio.sleep(0.1)
    assert not received.peer.gone
    received.reply()
    assert (await call).ok
    await server.until(lambda: received.peer.gone)
    await asyncio.sleep(5)
    assert server.live_of("n3") == []
    assert client.statistics().nodes == 2


# --- the end of a leader ---


async def test_a_write_in_doubt_goes_to_the_next_leader_with_the_same_identity(server, nodes, dial, settle):
    client = await dial()
    await settle()
    server.answer = None
    call = start(client.kv.put_many([put(1)]))
    (first,) = await server.requests(1)
    server.answer = nodes.answer
    await server.stop_listening("b")
    first.peer.cut()
    await asyncio.sleep(0.7)
    assert len(server.received) == 1  # the others still name the one that is gone: nobody is bothered
    nodes.leaders["data-1"] = "n3"
    assert (await call).ok
    again = server.received[-1]
    assert again.peer.node == "n3"
    assert (again.body_bytes, again.identity.seq) == (first.body_bytes, first.identity.seq)
    assert again.identity.client_id == first.identity.client_id
    assert again.identity.age_ms >= 700


async def test_a_leader_that_stepped_down_leaves_its_writes_in_doubt(server, nodes, dial, settle):
    client = await dial()
    await settle()

    def stepped_down(received):
        server.answer = nodes.answer
        nodes.leaders["data-1"] = "n1"
        received.fail(UnknownOutcomeError())

    server.answer = stepped_down
    assert (await client.kv.put_many([put(1)])).ok
    assert [received.peer.node for received in nodes.of("data-1")][-1] == "n1"
    assert len({(r.identity.client_id, r.identity.seq) for r in nodes.of("data-1")}) == 1


async def test_a_leader_that_answers_no_more_is_left_once_the_others_go_on_without_it(server, nodes, dial, settle):
    loop = asyncio.get_running_loop()
    client = await dial()
    await settle()
    server.answer = lambda received: None if received.peer.node == "n2" else nodes.answer(received)
    begun = loop.time()
    calls = [start(client.kv.put_many([put(1, f"k{i}")])) for i in range(5)]
    await server.requests(5)
    server.frozen.add("n2")
    await asyncio.sleep(3)
    assert len(server.received) == 5  # it still is the leader: it may be slow
    nodes.leaders["data-1"] = "n3"
    await asyncio.gather(*calls)
    assert loop.time() - begun < 4.5
    assert [received.peer.node for received in nodes.of("data-1")[5:]] == ["n3"] * 5
    sent = {(r.identity.client_id, r.identity.seq) for r in nodes.of("data-1")}
    assert len(sent) == 5


async def test_a_call_is_taken_back_from_a_node_that_leaves_and_answers_no_more(server, nodes, dial, settle):
    """Its connection ends with the last call on it, while the connections are walked."""
    loop = asyncio.get_running_loop()
    client = await dial()
    await settle()
    server.answer = None
    call = start(client.kv.put_many([put(1)]))
    (first,) = await server.requests(1)
    first.peer.goaway()
    await settle()
    server.answer = nodes.answer
    nodes.leaders["data-1"] = "n3"
    bugs = []
    loop.set_exception_handler(lambda _, context: bugs.append(context))
    assert (await call).ok
    await settle()
    assert not bugs
    assert first.peer.gone
    assert [received.peer.node for received in nodes.of("data-1")] == ["n2", "n3"]


async def test_a_dead_node_holds_up_nobody_else(server, nodes, dial, settle):
    loop = asyncio.get_running_loop()
    client = await dial(batches_in_flight=2)
    await settle()
    server.frozen.add("n2")
    stuck = [start(client.kv.put(namespace(1), f"k{i}", b"1", deadline_s=5)) for i in range(20)]
    stuck += [start(client.kv.put_many([put(1)], deadline_s=5)) for _ in range(20)]
    await asyncio.sleep(0.1)
    begun = loop.time()
    for group in (0, 2, 3):
        await client.kv.put(namespace(group), "k", b"1")
        assert (await client.kv.put_many([put(group)])).ok
    assert loop.time() == begun
    for outcome in await asyncio.gather(*stuck, return_exceptions=True):
        assert isinstance(outcome, DeadlineExceededError)


async def test_a_node_that_cannot_be_reached_is_named_at_the_deadline(server, nodes, dial):
    await server.stop_listening("b")
    client = await dial()
    with pytest.raises(DeadlineExceededError, match=r"connection refused by b:7420.*nothing was done"):
        await client.kv.put_many([put(1)], deadline_s=1)
    result = await client.kv.put_many([put(0), put(1, "x"), put(2), put(1, "y")], deadline_s=1)
    assert sorted(result.errors) == [1, 3]
    assert all("nothing was done" in str(error) for error in result.errors.values())


async def lose(server, settle, **nodes):
    """Cut these nodes off: host -> node."""
    for host, node in nodes.items():
        await server.stop_listening(host)
        server.live_of(node)[0].cut()
    await settle()


async def test_a_call_without_a_quorum_names_the_group_and_its_replicas(server, nodes, dial, settle):
    client = await dial()
    await settle()
    nodes.leaders["data-1"] = ""
    await lose(server, settle, b="n2", c="n3")
    text = r"data-1 has no leader; 1 of 3 replicas reachable: connection refused by b:7420\); nothing was done"
    for _ in range(2):
        with pytest.raises(DeadlineExceededError, match=text) as raised:
            await client.kv.put_many([put(1)], deadline_s=1)
        assert isinstance(raised.value.__cause__, NotLeaderError)


async def test_a_batch_read_answers_for_the_groups_that_have_a_leader(server, nodes, dial, settle):
    client = await dial()
    await settle()
    nodes.leaders["data-1"] = ""
    await lose(server, settle, b="n2")
    keys = [KvKey(namespace(group), "k") for group in (0, 1, 2, 1)]
    found = await client.kv.get_many(keys, deadline_s=1)
    assert [kv and kv.namespace for kv in found] == [namespace(0), None, namespace(2), None]
    assert sorted(found.errors) == [1, 3]
    with pytest.raises(DeadlineExceededError, match=r"data-1.* 2 of 3 replicas reachable"):
        found.raise_for_error()
    with pytest.raises(DeadlineExceededError, match=r"data-1.* 2 of 3 replicas reachable"):
        await client.kv.get_many([keys[1]], deadline_s=1)
    sessions = await client.sessions.get_many([SessionKey("t", f"c{i}") for i in range(40)], deadline_s=1)
    assert 0 < len(sessions.errors) < 40
    assert [at for at, session in enumerate(sessions) if session is None] == sorted(sessions.errors)


@pytest.mark.parametrize("hints", [True, False])
async def test_without_a_leader_every_call_ends_at_its_deadline_and_not_before(nodes, dial, settle, hints):
    """The nodes answer, but none leads: after each refusal the next attempt may be one that does not fit any more."""
    client = await dial()
    await settle()
    nodes.leaders["data-1"] = ""
    nodes.hints = hints
    clock = asyncio.get_running_loop().time
    began = clock()

    async def ending(call):
        with pytest.raises(MetadError) as raised:
            await call
        return type(raised.value), raised.value.outcome_known, round(clock() - began, 2), "data-1" in str(raised.value)

    puts = [client.kv.put(namespace(1), f"k{i}", b"1", deadline_s=3 + i / 1000) for i in range(40)]
    batches = [client.kv.put_many([put(1)], deadline_s=3) for _ in range(40)]
    endings = await asyncio.gather(*map(ending, [*puts, *batches]))
    assert {(kind, known, named) for kind, known, _, named in endings} == {(DeadlineExceededError, True, True)}
    assert all(3.0 <= seconds <= 3.1 for _, _, seconds, _ in endings)


async def test_an_item_that_is_wrong_by_itself_is_told_so_although_its_group_has_no_leader(server, nodes, dial, settle):
    client = await dial()
    await settle()
    nodes.leaders["data-1"] = ""
    await lose(server, settle, b="n2")
    items = [put(0), put(1), put(1, "x" * 5000), put(1, "y")]
    kinds = {1: DeadlineExceededError, 2: InvalidItemError, 3: DeadlineExceededError}
    for result in (
        await client.kv.put_many(items, deadline_s=1),
        await client.kv.get_many([KvKey(item.namespace, item.key) for item in items], deadline_s=1),
    ):
        assert {at: type(error) for at, error in result.errors.items()} == kinds
        assert "item 2" in str(result.errors[2])
    singles = [client.kv.put(item.namespace, item.key, b"1", deadline_s=1) for item in items]
    answers = await asyncio.gather(*singles, return_exceptions=True)
    assert {at: type(answer) for at, answer in enumerate(answers) if at} == kinds


async def test_a_node_without_a_replica_of_the_group_is_not_counted(server, nodes, dial, settle):
    client = await dial()
    await settle()
    nodes.leaders["data-1"] = ""
    # It was wiped and is refused by the others: it has nothing but an empty replica of metadata-0.
    server.leaders_by["n1"] = {"metadata-0": ""}
    await lose(server, settle, b="n2", c="n3")
    with pytest.raises(DeadlineExceededError, match="data-1 has no leader; 0 of 3 replicas reachable"):
        await client.kv.put_many([put(1)], deadline_s=2)


async def test_a_leader_that_only_this_client_cannot_reach_is_named(server, nodes, dial, settle):
    client = await dial()
    await settle()
    await lose(server, settle, b="n2")
    with pytest.raises(DeadlineExceededError, match="n2 leads data-1 and cannot be reached; 2 of 3 replicas reachable"):
        await client.kv.put_many([put(1)], deadline_s=1)


async def test_a_node_that_comes_back_is_used_again(server, nodes, dial, settle):
    client = await dial()
    await settle()
    await server.stop_listening("b")
    server.live_of("n2")[0].cut()
    call = start(client.kv.put_many([put(1)]))
    await asyncio.sleep(3)
    await server.listen("b", "n2")
    assert (await call).ok
    assert (client.statistics().connects, client.statistics().reconnects) == (4, 1)


async def test_a_node_that_shuts_down_is_answered_and_left(server, nodes, dial, settle):
    client = await dial()
    await settle()
    server.answer = None
    call = start(client.kv.put_many([put(1)]))
    (received,) = await server.requests(1)
    server.answer = nodes.answer
    await server.stop_listening("b")
    received.peer.goaway()
    nodes.leaders["data-1"] = "n1"
    other = start(client.kv.put_many([put(1)]))
    assert (await other).ok
    assert server.received[-1].peer.node == "n1"
    received.reply()
    assert (await call).ok
    assert client.statistics().retries <= 1


async def test_a_client_that_is_closed_ends_what_waits_for_a_leader(server, nodes, dial, settle):
    await server.stop_listening("b")
    client = await dial()
    calls = [start(client.kv.put_many([put(1)])), start(client.kv.put(namespace(1), "k", b"1"))]
    await settle()
    assert client.statistics().waiting == 2
    await client.close()
    assert [type(e) for e in await asyncio.gather(*calls, return_exceptions=True)] == [ClosedError, ClosedError]


async def test_what_waits_for_a_leader_is_bounded_too(server, nodes, dial, settle):
    await server.stop_listening("b")
    client = await dial(waiting_max=2)
    calls = [start(client.kv.put_many([put(1)], deadline_s=1)) for _ in range(3)]
    await settle()
    with pytest.raises(OverloadedError, match="nothing was done"):
        await calls[2]
    assert (await client.kv.put_many([put(0)])).ok
    await asyncio.gather(*calls, return_exceptions=True)
    assert client.statistics().waiting == 0


# --- endpoints ---


async def test_a_node_that_moved_is_followed_and_its_past_life_left(server, nodes, dial, settle):
    client = await dial("metad://b")
    await settle()
    old = server.live_of("n2")[0]
    server.answer = None
    call = start(client.kv.put_many([put(1)]))
    await server.requests(1)
    server.answer = nodes.answer
    await server.listen("e", "n2")
    nodes.place(version=2, nodes={**ENDPOINTS, "n2": "e:7420"}, data=4)
    client._dispatcher.seek(at_once=True)
    await server.until(lambda: len(server.live_of("n2")) == 2)
    server.received[0].reply()
    assert (await call).ok
    await server.until(lambda: old.gone)
    assert (await client.kv.put_many([put(1)])).ok
    assert server.received[-1].peer is server.live_of("n2")[0]


async def test_through_a_proxy_the_name_of_the_node_counts(server, a_map, dial, settle):
    """The map's endpoints are not reachable from here, but the user's are."""
    server.map = a_map({"n1": "inside:7420", "n2": "inside:7421", "n3": "inside:7422"}, data=4)
    await server.listen("b", "n2")
    await server.listen("c", "n3")
    client = await dial("metad://a,b,c")
    await server.until(lambda: len(server.live) == 3)
    assert (await client.kv.put_many([put(group) for group in range(4)])).ok
    assert client.statistics().retries == 0
    server.live_of("n2")[0].cut()
    assert (await client.kv.put_many([put(1)])).ok
    assert len(server.live_of("n2")) == 1


async def test_a_node_behind_a_proxy_is_found_again(server, a_map, dial):
    server.map = a_map({"n1": "inside:7420"})
    client = await dial("metad://a")
    for _ in range(3):
        server.live[0].cut()
        assert (await client.kv.put_many([put(0)])).ok
    assert client.statistics().endpoint == "a:7420"


async def test_a_server_of_another_cluster_is_not_taken_for_a_node(server, nodes, dial, settle, monkeypatch):
    await server.stop_listening("b")
    client = await dial()
    await settle()
    server.cluster_id = "somebody else's"
    await server.listen("b", "n2")
    with pytest.raises(DeadlineExceededError):
        await client.kv.put_many([put(1)], deadline_s=3)
    assert client.statistics().nodes == 2
    server.cluster_id = "c1"
    assert (await client.kv.put_many([put(1)])).ok


async def test_a_cluster_founded_anew_is_believed_though_its_map_is_younger(server, nodes, dial, settle):
    nodes.place(version=50, data=4)
    client = await dial()
    await settle()
    for host in "abc":
        await server.stop_listening(host)
    for peer in server.live:
        peer.cut()
    await settle()
    nodes.place(version=2, nodes={"n7": "a:7420"}, data=2)
    server.cluster_id = "c2"
    await server.listen("a", "n7")
    assert (await client.kv.put_many([put(0)])).ok
    assert (await client.kv.put_many([put(0), put(3)])).ok
    assert {received.peer.node for received in server.received} == {"n7"}
    assert client.statistics().nodes == 1


# --- without a map ---


async def test_a_cluster_that_is_being_formed_is_waited_for(server, nodes, dial, settle):
    formed = server.map
    server.map, server.leaders = None, {}
    client = await dial()
    calls = [
        start(client.kv.put_many([put(group) for group in range(4)])),
        start(client.kv.put(namespace(2), "k", b"7")),
        start(client.kv.put(namespace(0), "k", b"8")),
        start(client.kv.get(namespace(1), "k")),
    ]
    listing = client.sessions.list("t")
    calls.append(start(anext(listing)))
    await asyncio.sleep(2)
    assert server.received == []
    assert len(server.map_requests) < 35
    server.map, server.leaders = formed, nodes.leaders
    many, seven, eight, _, session = await asyncio.gather(*calls)
    assert many.ok
    assert (seven, eight) == (7, 8)
    assert session.tenant == "t"
    assert client.statistics().retries == 0
    await listing.aclose()


async def test_a_cluster_that_is_never_formed_ends_calls_at_their_deadline(server, nodes, dial):
    server.map, server.leaders = None, {}
    client = await dial()
    for call in (client.kv.put_many([put(0)], deadline_s=1), client.kv.put("ns", "k", b"", deadline_s=1)):
        with pytest.raises(DeadlineExceededError, match=r"being formed.*nothing was done"):
            await call


async def test_a_kind_without_groups_is_waited_for(server, nodes, dial):
    whole = server.map
    server.map = c.ClusterMap(1, whole.nodes, whole.groups, {"data": whole.slots["data"]})
    client = await dial()
    assert (await client.kv.put_many([put(0)])).ok
    call = start(client.offsets.fetch("t", "g", "topic", 0))
    await asyncio.sleep(1)
    assert len(server.map_requests) < 35
    server.map = c.ClusterMap(2, whole.nodes, whole.groups, whole.slots)
    assert (await call).offset == 42


# --- identities ---


async def test_a_group_out_of_reach_keeps_no_other_from_forgetting(server, nodes, dial, settle):
    client = await dial()
    await settle()
    server.answer = lambda received: None if received.peer.node == "n2" else nodes.answer(received)
    stuck = start(client.kv.put_many([put(1)]))
    await server.requests(1)
    for _ in range(3):
        await client.kv.put_many([put(0)])
    identities = [received.identity for received in nodes.of("data-0")]
    assert [(identity.seq, identity.low) for identity in identities] == [(1, 1), (2, 2), (3, 3)]
    assert identities[0].client_id != nodes.of("data-1")[0].identity.client_id
    stuck.cancel()


# --- the cluster itself ---


async def test_changes_go_to_who_decides(server, nodes, dial, settle):
    client = await dial()
    await settle()
    nodes.leaders["metadata-0"] = "n2"
    server.answer = lambda received: nodes.refuse(received) or received.reply(c.Done("under way", 7))
    record = c.NodeRecord("n4", "d:7420", "d:7421")
    assert await client.cluster.join(record) == c.Done("under way", 7)
    await client.cluster.leave("n4")
    await client.cluster.add_group("data")
    await client.cluster.rebalance()
    await client.cluster.transfer("data-2", "n1")
    await client.cluster.prefer("data-2", "eu")
    first, *others = server.received
    assert first.peer.node == "n1"
    assert [received.peer.node for received in others] == ["n2"] * 6
    assert [received.body for received in others] == [
        c.Join(record),
        c.Leave("n4"),
        c.AddGroup("data"),
        c.Rebalance(),
        c.Transfer("data-2", "n1"),
        c.Transfer("data-2", "", "eu"),
    ]
    assert client._dispatcher._leaders.by_group["data-2"] == "n3", "who decides about it leads it not"
    with pytest.raises(NotFoundError, match="there is no group data-9"):
        await client.cluster.transfer("data-9", "n1")
    reply = await client.cluster.map()
    assert reply.map == server.map
    assert reply.leaders == nodes.leaders


async def test_the_newest_map_is_that_of_whichever_node_has_it(server, nodes, dial, settle):
    """One node may not have heard yet what another has done: a look at that one would show what is over."""
    client = await dial()
    await settle()
    known, server.scripts_map = server.map, True
    newer = replace(known, version=known.version + 1)
    told = {"n1": (known, None), "n2": (known, None), "n3": (newer, newer)}

    def answer(received):
        shown, changed = told[received.peer.node]
        received.reply(c.MapReply(shown.version, changed, {}))

    server.answer = answer
    server.received.clear()
    assert (await client.cluster.map(newer_than=known.version)).map == newer
    assert [received.body for received in server.received] == [c.MapRequest(known.version)] * 3
    told["n3"] = (known, None)
    assert await client.cluster.map(newer_than=known.version) == c.MapReply(known.version, None, {})
    server.answer = lambda received: received.fail(PermissionDeniedError())
    with pytest.raises(PermissionDeniedError):
        await client.cluster.map(newer_than=known.version)


async def test_a_group_is_not_added_twice(server, nodes, dial, settle):
    client = await dial()
    await settle()
    server.answer = lambda received: received.peer.cut()
    with pytest.raises(ConnectionLostError):
        await client.cluster.add_group("data")
    server.answer = lambda received: received.fail(UnknownOutcomeError())
    with pytest.raises(UnknownOutcomeError):
        await client.cluster.add_group("data")
    assert [received.method for received in server.received] == [CLUSTER_ADD_GROUP] * 2


async def test_nobody_waits_where_a_node_that_ends_has_handed_over(server, nodes, dial, settle):
    """It says goaway once others lead: who has calls for it asks them at once."""
    loop = asyncio.get_running_loop()
    client = await dial()
    await settle()
    nodes.leaders |= {"data-0": "n2", "data-3": "n3"}
    for peer in server.live_of("n1"):
        peer.goaway()
    await settle()
    begun = loop.time()
    assert (await client.kv.put_many([put(0), put(3)])).ok
    assert loop.time() == begun
    assert client.statistics().retries == 0


# --- questions ---


async def test_a_node_that_does_not_say_is_not_waited_for(server, nodes, dial, settle):
    """One of the others may know."""
    loop = asyncio.get_running_loop()
    client = await dial()
    await settle()
    server.frozen.add("n1")
    nodes.hints = False
    nodes.leaders["data-1"] = "n3"
    begun = loop.time()
    assert (await client.kv.put_many([put(1)])).ok
    assert loop.time() - begun < 2


async def test_the_question_carries_what_is_known(server, nodes, dial, settle):
    nodes.place(version=9, data=4)
    client = await dial()
    await settle()
    client._dispatcher.seek(at_once=True)
    await asyncio.sleep(0.1)
    assert (server.map_requests[0][1], server.map_requests[-1][1]) == (0, 9)


async def test_a_map_that_makes_no_sense_changes_nothing(server, nodes, dial, settle):
    client = await dial()
    await settle()
    server.answer = lambda received: received.reply()
    server.map = c.ClusterMap(2, [], [], {"data": b"short"})
    client._dispatcher.seek(at_once=True)
    await asyncio.sleep(0.1)
    assert (await client.kv.put_many([put(0)])).ok
    assert client.statistics().nodes == 3


async def test_the_map_is_asked_for_seldom_without_a_reason(server, nodes, dial, settle):
    client = await dial()
    await settle()
    server.map_requests.clear()
    rng = random.Random(1)
    for _ in range(50):
        await client.kv.get_many([KvKey(namespace(rng.randrange(4)), "k")])
        await asyncio.sleep(1)
    assert 3 <= len(server.map_requests) <= 50 / REFRESH_S
    assert {node for node, _ in server.map_requests} == {"n1", "n2", "n3"}, "in turn"
    assert CLUSTER_MAP not in [received.method for received in server.received]


async def test_nodes_that_have_joined_are_known_before_the_others_die(server, nodes, dial):
    """Once wrong: a client whose calls all found their leader never heard of them, and had nobody left to ask."""
    nodes.place(nodes={"n1": ENDPOINTS["n1"]}, data=1)
    client = await dial("metad://a")
    assert (await client.kv.put_many([put(0)])).ok
    leaders = dict(nodes.leaders)
    nodes.place(version=2, data=1)
    nodes.leaders = server.leaders = leaders  # none has moved to those that have joined
    await asyncio.sleep(REFRESH_S + 1)
    assert client.statistics().nodes == 3


# --- slots that move ---


class Moving:
    """Holds what groups hold apart from what the map says: while a slot moves, it is nobody's."""

    def __init__(self, nodes):
        self.nodes = nodes
        self.held = c.unpack_slots(nodes.server.map.slots["data"])
        nodes.server.answer = self.answer

    def to(self, slots):
        """The groups hold these slots, but the map does not say so yet."""
        self.held = slots

    def publish(self, version):
        packed = self.nodes.server.map.slots | {"data": c.pack_slots(self.held)}
        known = self.nodes.server.map
        self.nodes.server.map = c.ClusterMap(version, known.nodes, known.groups, packed)

    def answer(self, received):
        group = received.request.group
        if received.peer.node != self.nodes.leaders[group]:
            received.fail(NotLeaderError(leader=self.nodes.leaders[group]))
            return
        parts = split(ROUTES[received.method.code], getattr(received.body, "items", [received.body]), self.held, 9)
        if {GroupId("data", ordinal).name for ordinal in parts} != {group}:
            received.fail(StaleRouteError())
        else:
            received.reply()


def swapped(slots):
    return [{0: 1, 1: 0}.get(ordinal, ordinal) for ordinal in slots]


@pytest.fixture
def moving(nodes):
    return Moving(nodes)


async def test_a_request_says_which_group_it_means(server, nodes, dial, settle):
    client = await dial()
    await settle()
    await client.kv.put_many([put(group) for group in range(4)])
    await client.kv.get(namespace(2), "k")
    assert all(received.request.group == nodes.group_of(received) for received in server.received)


async def test_items_follow_their_slots(server, nodes, moving, dial, settle):
    client = await dial()
    await settle()
    moving.to(swapped(moving.held))
    moving.publish(2)
    items = [KvPutItem(namespace(i % 4), f"k{i}", str(i).encode()) for i in range(40)]
    singles = [client.kv.put(namespace(i % 4), f"k{i}", str(i).encode()) for i in range(8)]
    result, records, *versions = await asyncio.gather(
        client.kv.put_many(items), client.kv.get_many([KvKey(i.namespace, i.key) for i in items]), *singles
    )
    assert result.ok
    assert result.versions == list(range(40))
    assert [record.key for record in records] == [item.key for item in items]
    assert versions == list(range(8))
    assert [kv.key async for kv in client.kv.scan(namespace(0))] == ["k"]
    before = len(server.received)
    await client.kv.put_many(items)
    assert len(server.received) == before + 4  # the new map is known by now


async def test_a_listing_follows_its_slot(server, nodes, moving, dial, settle):
    client = await dial()
    await settle()
    moving.to(swapped(moving.held))
    moving.publish(2)
    assert [kv.key async for kv in client.kv.scan(namespace(0))] == ["k"]
    assert list(dict.fromkeys(received.request.group for received in server.received)) == ["data-0", "data-1"]


LISTINGS = {
    "client.sessions.list": (
        SESSION,
        lambda name: m.Session("t", name, True, "b", 1, 0, m.SessionProperties()),
        m.ListReply,
        lambda client: client.sessions.list("t", page_size=40),
    ),
    "client.subscriptions.list": (
        SUBSCRIPTION,
        lambda name: Subscription("t", name, "f"),
        m.ListReply,
        lambda client: client.subscriptions.list("t", page_size=40),
    ),
    "client.wills.list": (
        WILL,
        lambda name: DueWill("t", name, "1", m.Will("w"), 1),
        m.ListReply,
        lambda client: client.wills.list("t", page_size=40),
    ),
    "client.retained.match": (
        RETAINED,
        lambda name: Retained("t", name, b"v"),
        m.ListReply,
        lambda client: client.retained.match("t", "+", page_size=40),
    ),
    "client.offsets.groups": (
        OFFSET,
        lambda name: KnownGroup("t", name, 1),
        m.ListReply,
        lambda client: client.offsets.groups("t", page_size=40),
    ),
}
NAMES = [f"c{i:03}" for i in range(200)]


class Listed:
    """Groups that list the names of the slots that they hold, ten a page. Between two pages all slots move."""

    def __init__(self, nodes, table, record_of, reply):
        self.nodes, self.kind, self.record_of, self.reply = nodes, table.kind, record_of, reply
        self.answers = self.moves = 0

    def answer(self, received):
        server, group, body = self.nodes.server, received.request.group, received.body
        if received.peer.node != self.nodes.leaders[group]:
            received.fail(NotLeaderError(leader=self.nodes.leaders[group]))
            return
        self.answers += 1
        if self.answers in (6, 13):
            self.move()
        holders = c.unpack_slots(server.map.slots[self.kind])
        held = {slot for slot, ordinal in enumerate(holders) if ordinal == GroupId.parse(group).ordinal}
        wanted = {slot for slot in range(c.SLOTS) if body.slots and body.slots[slot // 8] & 128 >> slot % 8}
        if not wanted <= held:
            received.fail(StaleRouteError())
            return
        after = getattr(body.after, "client_id", body.after) or ""
        keys = [(name, text2("t", name)) for name in NAMES if name > after]
        found = [
            (name, key) for name, key in keys if key > body.page.cursor and crc32(key) % c.SLOTS in (wanted or held)
        ]
        cursor = found[9][1] if len(found) > 10 else b""
        received.reply(self.reply([self.record_of(name) for name, _ in found[:10]], cursor))

    def move(self):
        self.moves += 1
        known = self.nodes.server.map
        count = sum(group.kind == self.kind for group in known.groups)
        slots = [(ordinal + 1) % count for ordinal in c.unpack_slots(known.slots[self.kind])]
        packed = known.slots | {self.kind: c.pack_slots(slots)}
        self.nodes.server.map = c.ClusterMap(known.version + 1, known.nodes, known.groups, packed)


@pytest.mark.parametrize("name", LISTINGS)
async def test_a_listing_of_all_groups_has_each_record_once_where_slots_move(server, nodes, dial, settle, name):
    table, record_of, reply, records = LISTINGS[name]
    listed = Listed(nodes, table, record_of, reply)
    server.answer = listed.answer
    client = await dial()
    await settle()
    assert [record async for record in records(client)] == [record_of(name) for name in NAMES]
    assert listed.moves == 2


class Thing(Record, frozen=True):
    """A record of a declared table."""

    tenant: str
    name: str


THINGS = PlainTable("thing", number=1024, kind="data", record=Thing, key=("tenant", "name"))


@pytest.mark.parametrize("order", [1, -1])
async def test_groups_that_all_refuse_a_count_leave_no_complaint(server, nodes, dial, settle, order):
    """Whichever answers first: one error is raised, and nobody has to fetch the others."""
    loop, complaints = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    client = await dial()
    await settle()
    begun = len(server.received)
    server.answer = None
    call = start(client.table(THINGS).count())
    asked = (await server.requests(begun + 4))[begun:]
    for received in asked[::order]:
        received.fail(InvalidRequestError("no"))
    with pytest.raises(InvalidRequestError):
        await call
    del call
    await settle()
    gc.collect()
    assert not complaints


async def test_until_the_map_says_where_a_slot_is_its_items_wait(server, nodes, moving, dial, settle):
    client = await dial()
    await settle()
    moving.to(swapped(moving.held))
    calls = [start(client.kv.put_many([put(0), put(2)])), start(client.kv.put(namespace(1), "k", b"7"))]
    await asyncio.sleep(1)
    assert not any(call.done() for call in calls)
    assert len(server.map_requests) < 30
    moving.publish(2)
    result, version = await asyncio.gather(*calls)
    assert result.ok
    assert version == 7


async def test_a_write_that_moved_is_another_write(server, nodes, moving, dial, settle):
    """The group that refused it would have known it: whoever holds the item now has never heard of it."""
    client = await dial()
    await settle()
    server.answer = None
    call = start(client.kv.put_many([put(0)]))
    (first,) = await server.requests(1)
    server.answer = moving.answer
    moving.to(swapped(moving.held))
    moving.publish(2)
    first.peer.cut()
    assert (await call).ok
    _, refused, done = server.received
    assert (refused.request.group, refused.identity.seq) == ("data-0", first.identity.seq)
    assert refused.identity.client_id == first.identity.client_id
    assert done.request.group == "data-1"
    assert done.identity.client_id != first.identity.client_id
    assert done.identity.age_ms == 0


async def test_a_write_whose_last_attempt_was_lost_is_asked_for_where_it_may_be_done(
    server, nodes, moving, dial, settle
):
    """The group did not hold the item at first, and then it did. The write was made again in the next group."""
    client = await dial()
    await settle()
    server.answer = None
    call = start(client.kv.put_many([put(0)]))
    (first,) = await server.requests(1)
    first.fail(StaleRouteError())
    *_, second = await server.requests(2)
    server.answer = moving.answer
    moving.to(swapped(moving.held))
    moving.publish(2)
    second.peer.cut()
    assert (await call).ok
    _, _, third, *_ = server.received
    assert (third.request.group, third.identity.seq) == ("data-0", first.identity.seq)
    assert third.identity.client_id == first.identity.client_id


async def test_a_move_that_is_taken_back_is_only_a_wait(server, nodes, moving, dial, settle):
    client = await dial()
    await settle()
    before = moving.held
    moving.to(swapped(before))
    call = start(client.kv.put_many([put(0)]))
    await asyncio.sleep(0.5)
    moving.to(before)
    assert (await call).ok
    assert {received.request.group for received in server.received} == {"data-0"}
    assert len({received.identity.seq for received in server.received}) == 1


async def test_a_slot_that_is_nobodys_ends_calls_at_their_deadline(server, nodes, moving, dial, settle):
    client = await dial()
    await settle()
    moving.to(swapped(moving.held))
    for call in (client.kv.put_many([put(0)], deadline_s=1), client.kv.put(namespace(0), "k", b"", deadline_s=1)):
        with pytest.raises(MetadError) as raised:
            await call
        assert isinstance(raised.value, StaleRouteError | DeadlineExceededError)
        assert "may have" not in str(raised.value)
