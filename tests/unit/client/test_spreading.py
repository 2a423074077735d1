"""Whatever the routes are and however they change: a result is what one server with everything would have said."""

from __future__ import annotations

import asyncio
import random
from typing import Any
from zlib import crc32

import pytest

from metad_client import InternalError, MetadError, TooLargeError
from metad_client.results import Piece, PutResult, SubscribeResult, TakeoverResult, TransactResult, WriteResult
from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire.cluster import GroupId
from metad_wire.errors import FencedError, NotLeaderError, OverloadedError, UnknownOutcomeError
from metad_wire.methods import KV_GET, OFFSET_FETCH, RETAINED_GET, SESSION_GET
from metad_wire.routing import KINDS, ROUTES, split, text2
from metad_wire.tables.retained import (
    Retained,
    RetainedDelete,
    RetainedDeleteItem,
    RetainedKey,
    RetainedPut,
    RetainedPutItem,
)
from metad_wire.tables.subscription import (
    Subscription,
    SubscriptionAdd,
    SubscriptionAddReply,
    SubscriptionKey,
    SubscriptionRemove,
)

ENDPOINTS = {"n1": "a:7420", "n2": "b:7420", "n3": "c:7420"}
TENANTS = ("t", "tenant\0", "ü")


def number(item: Any) -> int:
    """What makes one item's answer differ from another's."""
    return crc32(repr(item).encode())


def reply_to(body: Any, group: str = "data-0") -> m.Message:
    """The answer of a server to these items, whichever others come with them."""
    items = body.items
    errors = [m.ItemError(i, FencedError.code, str(n)) for i, item in enumerate(items) if (n := number(item)) % 5 == 0]
    failed = {error.index for error in errors}
    revisions = [m.Revision(group, 7)]
    match body:
        case m.SessionTakeover():
            lives = [m.Owner(f"b{number(item) % 3}", 1) for item in items]
            owners = list(dict.fromkeys(lives))
            previous = [
                -1 if i in failed or number(x) % 7 == 0 else owners.index(lives[i]) for i, x in enumerate(items)
            ]
            restored = [
                m.SessionProperties(number(item) % 99, b"p") if body.restore and previous[i] >= 0 else None
                for i, item in enumerate(items)
            ]
            return m.SessionTakeoverReply(revisions, errors, owners, previous, restored if any(restored) else [])
        case m.Get() if isinstance(body, SESSION_GET.body):
            return SESSION_GET.reply([None if number(i) % 3 == 0 else session(i.tenant, i.client_id) for i in items])
        case m.Get() if isinstance(body, OFFSET_FETCH.body):
            return OFFSET_FETCH.reply(
                [
                    None
                    if number(i) % 3 == 0
                    else m.Offset(i.tenant, i.group, i.topic, i.partition, number(i), 1, 0, "")
                    for i in items
                ]
            )
        case m.OffsetGenerations():
            return m.OffsetGenerationsReply([number(i) % 9 for i in items])
        case m.Get() if isinstance(body, KV_GET.body):
            return KV_GET.reply(
                [None if number(i) % 3 == 0 else m.Kv(i.namespace, i.key, b"v", number(i), 1, 1) for i in items]
            )
        case m.Get() if isinstance(body, RETAINED_GET.body):
            return RETAINED_GET.reply(
                [None if number(i) % 3 == 0 else Retained(i.tenant, i.topic, b"%d" % number(i)) for i in items]
            )
        case m.KvPut():
            return m.KvPutReply(revisions, errors, [0 if i in failed else number(x) for i, x in enumerate(items)])
        case SubscriptionAdd():
            created = [i not in failed and number(x) % 2 == 0 for i, x in enumerate(items)]
            return SubscriptionAddReply(revisions, errors, created)
        case m.KvTransact():
            results = [
                None if i in failed else m.KvTransactionResult(number(x) % 2 == 0, []) for i, x in enumerate(items)
            ]
            return m.KvTransactReply(revisions, errors, results)
    return m.WriteReply(revisions, errors)


def session(tenant: str, client_id: str) -> m.Session:
    return m.Session(tenant, client_id, True, "b", 1, 0, m.SessionProperties())


class Nodes:
    """Three nodes over random slots, whose leaders change and which now and then do not answer as they should."""

    def __init__(self, server: Any, rng: random.Random, trouble: float) -> None:
        self.server = server
        self.rng = rng
        self.trouble = trouble
        self.leaders: dict[str, str] = {}
        groups, slots = [c.GroupRecord("metadata", 0, [], [])], {}
        for kind in ("offset", "data"):
            count = rng.choice([1, 2, 3, 7])
            groups += [c.GroupRecord(kind, ordinal, list(ENDPOINTS), list(ENDPOINTS)) for ordinal in range(count)]
            slots[kind] = rng.choices(range(count), k=c.SLOTS)
        self.slots = slots
        packed = {kind: c.pack_slots(table) for kind, table in slots.items()}
        nodes = [c.NodeRecord(node, at, "") for node, at in ENDPOINTS.items()]
        server.map = c.ClusterMap(1, nodes, groups, packed)
        server.leaders = self.leaders
        self.names = [group.group_id.name for group in groups]
        self.shuffle()
        server.answer = self.answer
        self.done: set[tuple[int, int]] = set()
        self.records: list[m.Session] = []

    def shuffle(self) -> None:
        for name in self.names:
            if name not in self.leaders or self.rng.random() < 0.7:
                self.leaders[name] = self.rng.choice(list(ENDPOINTS))

    def group_of(self, received: Any) -> str:
        code, body = received.method.code, received.body
        kind = KINDS[code]
        if code in ROUTES:
            parts = split(ROUTES[code], getattr(body, "items", [body]), self.slots[kind], 8)
        else:
            return str(received.request.group)
        assert len(parts) == 1, "a request holds items of one group"
        group = GroupId(kind, *parts).name
        assert received.request.group == group
        return group

    def answer(self, received: Any) -> None:
        rng, group = self.rng, self.group_of(received)
        if rng.random() < self.trouble:
            self.shuffle()
        if received.peer.node != self.leaders[group]:
            received.fail(NotLeaderError(leader=rng.choice(["", self.leaders[group], "n1"])))
            return
        identity = received.request.identity
        if identity is not None and (identity.client_id, identity.seq) in self.done:
            assert identity.age_ms > 0
        if rng.random() < self.trouble:
            if rng.random() < 0.5 and identity is not None:
                self.done.add((identity.client_id, identity.seq))
            how = rng.randrange(3)
            if how == 0:
                received.peer.cut()
            else:
                received.fail([UnknownOutcomeError(), OverloadedError()][how - 1])
            return
        if isinstance(received.body, m.SessionList):
            received.reply(self.page(received.body, group))
        else:
            received.reply(reply_to(received.body, group))

    def page(self, body: m.SessionList, group: str) -> m.ListReply[m.Session]:
        """Pages end at odd places, as those of servers do that look at a bounded number of records."""
        found: list[m.Session] = []
        for record in self.records:
            key = text2(record.tenant, record.client_id)
            if key <= body.page.cursor or f"data-{self.slots['data'][crc32(key) % c.SLOTS]}" != group:
                continue
            if (body.tenant in (None, record.tenant)) and record.client_id.startswith(body.client_id_prefix):
                found.append(record)
            if len(found) == body.page.limit or self.rng.random() < 0.1:
                return m.ListReply(found, key)
        return m.ListReply(found, b"")


def outcome(result: WriteResult, count: int) -> Any:
    told: list[Any] = [{i: (type(error), error.message.rpartition(": ")[2]) for i, error in result.errors.items()}]
    match result:
        case TakeoverResult():
            told += [[(result.previous(i), result.session_present(i), result.properties(i)) for i in range(count)]]
        case PutResult():
            told += [result.versions]
        case SubscribeResult():
            told += [result.created]
        case TransactResult():
            told += [result.results]
    return told


class Call:
    """A verb with random items: :meth:`ours` asks the cluster, :meth:`theirs` one server."""

    def __init__(self, rng: random.Random) -> None:
        count = rng.choice([1, 2, 3, 10, 40])
        self.verb = rng.choice(list(VERBS))
        self.items = [VERBS[self.verb][0](rng) for _ in range(count)]

    async def ours(self, client: Any) -> Any:
        result = await VERBS[self.verb][1](client, self.items)
        return outcome(result, len(self.items)) if isinstance(result, WriteResult) else result

    def theirs(self) -> Any:
        body, result_of = VERBS[self.verb][2](self.items)
        reply = reply_to(body)
        result = result_of([Piece(0, len(self.items), reply, None)])
        return outcome(result, len(self.items)) if isinstance(result, WriteResult) else result


def _pair(rng: random.Random) -> tuple[str, str]:
    return rng.choice(TENANTS), f"c{rng.randrange(500)}"


def _offset(rng: random.Random) -> tuple[str, str, str, int]:
    return (*_pair(rng), "topic", rng.randrange(4))


VERBS: dict[str, tuple[Any, Any, Any]] = {
    "takeover": (
        lambda rng: m.SessionTakeoverItem(*_pair(rng), rng.random() < 0.2),
        lambda client, items: client.sessions.takeover_many("b", 1, items, restore=True),
        lambda items: (m.SessionTakeover("b", 1, items, True), lambda pieces: TakeoverResult(pieces, items)),
    ),
    "update": (
        lambda rng: m.SessionUpdateItem(*_pair(rng), m.SessionProperties(1)),
        lambda client, items: client.sessions.update_many("b", 1, items),
        lambda items: (m.SessionUpdate("b", 1, items), WriteResult),
    ),
    "disconnect": (
        lambda rng: m.SessionDisconnectItem(*_pair(rng)),
        lambda client, items: client.sessions.disconnect_many("b", 1, items),
        lambda items: (m.SessionDisconnect("b", 1, items), WriteResult),
    ),
    "get": (
        lambda rng: m.SessionKey(*_pair(rng)),
        lambda client, items: client.sessions.get_many(items),
        lambda items: (SESSION_GET.body(items), lambda pieces: pieces[0].reply.found),
    ),
    "delete": (
        lambda rng: m.SessionDeleteItem(*_pair(rng)),
        lambda client, items: client.sessions.delete_many(items),
        lambda items: (m.SessionDelete(items), WriteResult),
    ),
    "subscribe": (
        lambda rng: Subscription(*_pair(rng), "f/+"),
        lambda client, items: client.subscriptions.add_many("b", 1, items),
        lambda items: (SubscriptionAdd("b", 1, items), SubscribeResult),
    ),
    "unsubscribe": (
        lambda rng: SubscriptionKey(*_pair(rng), "f/+"),
        lambda client, items: client.subscriptions.remove_many("b", 1, items),
        lambda items: (SubscriptionRemove("b", 1, items), WriteResult),
    ),
    "commit": (
        lambda rng: m.OffsetCommitItem(*_offset(rng), 42),
        lambda client, items: client.offsets.commit_many(items),
        lambda items: (m.OffsetCommit(items), WriteResult),
    ),
    "fetch": (
        lambda rng: m.OffsetKey(*_offset(rng)),
        lambda client, items: client.offsets.fetch_many(items),
        lambda items: (OFFSET_FETCH.body(items), lambda pieces: pieces[0].reply.found),
    ),
    "forget": (
        lambda rng: m.OffsetKey(*_offset(rng)),
        lambda client, items: client.offsets.delete_many(items),
        lambda items: (m.Items(items), WriteResult),
    ),
    "generations": (
        lambda rng: m.ConsumerGroup(*_pair(rng)),
        lambda client, items: client.offsets.generations_many(items),
        lambda items: (m.OffsetGenerations(items), lambda pieces: pieces[0].reply.generations),
    ),
    "reset": (
        lambda rng: m.GenerationReset(*_pair(rng), 3),
        lambda client, items: client.offsets.reset_generations_many(items),
        lambda items: (m.OffsetResetGenerations(items), WriteResult),
    ),
    "put": (
        lambda rng: m.KvPutItem(*_pair(rng), b"v"),
        lambda client, items: client.kv.put_many(items),
        lambda items: (m.KvPut(items), PutResult),
    ),
    "read": (
        lambda rng: m.KvKey(*_pair(rng)),
        lambda client, items: client.kv.get_many(items),
        lambda items: (KV_GET.body(items), lambda pieces: pieces[0].reply.found),
    ),
    "remove": (
        lambda rng: m.KvDeleteItem(*_pair(rng)),
        lambda client, items: client.kv.delete_many(items),
        lambda items: (m.KvDelete(items), WriteResult),
    ),
    "retain": (
        lambda rng: RetainedPutItem(*_pair(rng), b"v"),
        lambda client, items: client.retained.put_many(items),
        lambda items: (RetainedPut(items), WriteResult),
    ),
    "retained": (
        lambda rng: RetainedKey(*_pair(rng)),
        lambda client, items: client.retained.get_many(items),
        lambda items: (RETAINED_GET.body(items), lambda pieces: pieces[0].reply.found),
    ),
    "retain no more": (
        lambda rng: RetainedDeleteItem(*_pair(rng)),
        lambda client, items: client.retained.delete_many(items),
        lambda items: (RetainedDelete(items), WriteResult),
    ),
    "transact": (
        lambda rng: m.KvTransaction(_pair(rng)[1], [], []),
        lambda client, items: client.kv.transact_many(items),
        lambda items: (m.KvTransact(items), TransactResult),
    ),
}


async def single_put(client: Any, item: m.KvPutItem) -> tuple[Any, Any]:
    """(what came of it, what should have)."""
    expected: Any = FencedError if number(item) % 5 == 0 else number(item)
    try:
        return await client.kv.put(item.namespace, item.key, item.value), expected
    except MetadError as error:
        return type(error), expected


@pytest.fixture
async def cluster(server):
    await server.listen("b", "n2")
    await server.listen("c", "n3")
    return server


@pytest.mark.parametrize("seed", range(25))
async def test_results_are_those_of_one_server(cluster, dial, seed):
    rng = random.Random(seed)
    Nodes(cluster, rng, trouble=rng.choice([0.0, 0.02, 0.1]))
    client = await dial(deadline_s=600, batch_items=rng.choice([3, 10, 1000]))
    for _ in range(6):
        calls = [Call(rng) for _ in range(6)]
        singles = [single_put(client, m.KvPutItem(*_pair(rng), b"v")) for _ in range(10)]
        ours = await asyncio.gather(*[call.ours(client) for call in calls], *singles)
        for call, result in zip(calls, ours, strict=False):
            assert result == call.theirs(), call.verb
        for result, expected in ours[len(calls) :]:
            assert result == expected
    assert client.statistics().waiting == 0


@pytest.mark.parametrize("seed", range(25))
async def test_pages_of_all_groups_are_one_listing(cluster, dial, seed):
    rng = random.Random(seed)
    nodes = Nodes(cluster, rng, trouble=rng.choice([0.0, 0.1]))
    names = {(rng.choice(TENANTS), rng.choice(["", "a", "b\0"]) + str(i)) for i in range(rng.choice([0, 1, 60, 300]))}
    nodes.records = [session(*name) for name in sorted(names, key=lambda name: text2(*name))]
    client = await dial(deadline_s=600)
    for tenant, prefix, page_size in ((None, "", 50), (None, "", 1), ("t", "", 7), ("tenant\0", "b\0", 1000)):
        found = [(s.tenant, s.client_id) async for s in client.sessions.list(tenant, prefix, page_size=page_size)]
        expected = [name for name in sorted(names) if tenant in (None, name[0]) and name[1].startswith(prefix)]
        assert found == expected


async def test_a_listing_that_is_left_early_asks_for_no_more(cluster, dial, settle):
    nodes = Nodes(cluster, random.Random(1), trouble=0.0)
    nodes.records = [session("t", f"c{i:03}") for i in range(300)]
    client = await dial()
    async for found in client.sessions.list("t", page_size=30):
        if found.client_id == "c003":
            break
    await settle()
    count = len(cluster.received)
    await asyncio.sleep(5)
    assert len(cluster.received) == count <= 8
    assert client.statistics().in_flight == 0


async def test_a_read_that_one_group_refuses_is_asked_for_in_halves(cluster, dial):
    Nodes(cluster, random.Random(6), trouble=0.0)
    usual = cluster.answer
    cluster.answer = lambda received: (
        received.fail(TooLargeError("too much")) if len(received.body.items) > 2 else usual(received)
    )
    client = await dial()
    keys = [m.SessionKey("t", f"c{i}") for i in range(40)]
    assert await client.sessions.get_many(keys) == reply_to(SESSION_GET.body(keys)).found


async def test_replies_that_do_not_fit_are_the_servers_fault(cluster, dial):
    nodes = Nodes(cluster, random.Random(6), trouble=0.0)
    client = await dial()
    items = [m.KvPutItem(f"ns{i}", "k", b"1") for i in range(40)]
    cluster.answer = lambda received: (
        received.reply(m.KvPutReply([], [], [1]))
        if received.peer.node == nodes.leaders[nodes.group_of(received)]
        else received.fail(NotLeaderError())
    )
    with pytest.raises(InternalError, match="a reply of 1 values"):
        await client.kv.put_many(items)


def test_pieces_know_their_positions():
    assert list(Piece(3, 2, None, None).where) == [3, 4]
    assert Piece(3, 2, None, None, [3, 8]).where == [3, 8]
