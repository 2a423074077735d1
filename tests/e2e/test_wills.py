"""Wills that are due, and brokers that publish them: each once, also where the broker that has claimed them dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

import pytest

import metad_client as sdk
from metad import embedded
from metad.node.replicas.driver import GroupDriver, Work
from metad.node.watches.will_turns import WillTurns
from metad_client import (
    SessionDisconnectItem,
    SessionProperties,
    SessionTakeoverItem,
    TakenWill,
    Will,
    WillKey,
    blocking,
)
from metad_client.requests.requests import Requests
from metad_wire.messages import Message
from metad_wire.methods import WILL_WAIT
from metad_wire.tables.will import WillClaim, WillWait

SOON = {"expiry": {"amnesty_ms": 100}, "groups": {"data": 3}}
WAIT_S = 120


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[tuple[Any, sdk.Client]]:
    async with embedded.serve(**{**SOON, **settings}) as server, sdk.connect(server.url) as m:
        yield server, m


def leaving(client: str) -> SessionProperties:
    """Of a client with a will that is due once it has gone."""
    return SessionProperties(60, will=Will(f"will/{client}", b"gone", 1))


async def go(m: sdk.Client, *clients: str) -> None:
    """These clients come, and go without a word."""
    takes = [SessionTakeoverItem("t", client, False, leaving(client)) for client in clients]
    (await m.sessions.takeover_many("b0", 1, takes)).raise_for_error()
    gone = await m.sessions.disconnect_many("b0", 1, [SessionDisconnectItem("t", client) for client in clients])
    gone.raise_for_error()


async def left(m: sdk.Client) -> list[str]:
    return [one.client_id async for one in m.wills.list("t")]


async def publish(m: sdk.Client, broker: str, published: list[str], count: int, **how: Any) -> None:
    """A broker that publishes until it has seen so many wills published, by whomever."""
    async with aclosing(m.wills.due(broker, 1, poll_s=0.1, **how)) as due:
        async for taken in due:
            published.append(taken.will.topic)
            if len(published) >= count:
                await m.wills.acknowledge(broker, 1, taken.key)
                return


async def test_brokers_share_the_wills_and_publish_each_once() -> None:
    names = [f"c{i:03}" for i in range(300)]
    published: list[str] = []
    async with serving() as (_, m), asyncio.timeout(WAIT_S):
        await go(m, *names[:100])
        brokers = [asyncio.create_task(publish(m, f"b{n}", published, 300, limit=20)) for n in range(3)]
        await go(m, *names[100:])
        await asyncio.wait(brokers, return_when=asyncio.FIRST_COMPLETED)
        while await left(m):
            await asyncio.gather(*(asyncio.wait([broker], timeout=0.05) for broker in brokers))
        for broker in brokers:
            broker.cancel()
        await asyncio.wait(brokers)
        assert sorted(published) == [f"will/{name}" for name in names]


async def test_a_will_costs_a_wait_and_a_claim_however_many_brokers_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wills become due one at a time; each is published once, by one of 20 brokers, and the others hear nothing."""
    asked: dict[type[Message], list[str]] = {}
    ask = Requests.one

    async def counted(self: Requests, method: Any, body: Any, *how: Any, **more: Any) -> Any:
        if isinstance(body, WillClaim | WillWait):
            asked.setdefault(type(body), []).append(body.broker)
        return await ask(self, method, body, *how, **more)

    monkeypatch.setattr(Requests, "one", counted)
    published: asyncio.Queue[str] = asyncio.Queue()

    async def serve(m: sdk.Client, broker: str) -> None:
        async for taken in m.wills.due(broker, 1, poll_s=3_600):
            await m.wills.acknowledge(broker, 1, taken.key)
            published.put_nowait(taken.key.client_id)

    async with serving() as (server, m), asyncio.timeout(4 * WAIT_S), AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(sdk.connect(server.url)) for _ in range(20)]
        brokers = [asyncio.create_task(serve(one, f"b{number}")) for number, one in enumerate(clients)]
        while len(asked.get(WillWait, ())) < 3 * 20:  # noqa: ASYNC110 - they all wait, in each group
            await asyncio.sleep(0.01)
        asked.clear()
        for number in range(160):
            await go(m, f"c{number}")
            assert await published.get() == f"c{number}"
        assert published.empty()
        assert len(asked[WillClaim]) <= 180, "all brokers hear of each will: 20 for each"
        assert len(asked[WillWait]) <= 2 * 180
        assert set(asked[WillClaim]) == {f"b{number}" for number in range(20)}, "they share the work"
        assert (await m.status()).watch_streams == 0
        for broker in brokers:
            broker.cancel()
        await asyncio.wait(brokers)


async def test_a_broker_waits_for_wills_that_are_not_due_yet() -> None:
    async with serving() as (_, m), asyncio.timeout(WAIT_S), aclosing(m.wills.due("b1", 1, poll_s=3600)) as due:
        first = asyncio.ensure_future(anext(due))
        await asyncio.wait([first], timeout=0.3)
        assert not first.done()
        await go(m, "a")
        taken = await first
        assert (taken.key.client_id, taken.will, taken.claims) == ("a", Will("will/a", b"gone", 1), 1)
        second = asyncio.ensure_future(anext(due))
        await go(m, "b")
        assert (await second).key.client_id == "b"
        assert await left(m) == ["b"]


async def test_another_broker_takes_the_wills_of_one_that_died() -> None:
    async with serving() as (_, m), asyncio.timeout(WAIT_S):
        await go(m, "a", "b", "c")
        held = await m.wills.claim("dead", 1, lease_s=0.5)
        assert sorted(taken.key.client_id for taken in held) == ["a", "b", "c"]
        assert await m.wills.claim("b2", 1) == []
        found: list[TakenWill] = []
        async for taken in m.wills.due("b2", 1, poll_s=0.1):
            found.append(taken)
            if len(found) == 3:
                break
        assert {(taken.key.client_id, taken.claims) for taken in found} == {("a", 2), ("b", 2), ("c", 2)}
        late = await m.wills.acknowledge_many("dead", 1, [taken.key for taken in held])
        assert [type(error) for error in late.errors.values()] != []
        assert {type(error) for error in late.errors.values()} <= {sdk.ConflictError, sdk.NotFoundError}


async def test_who_leaves_the_loop_leaves_what_it_has_not_seen_to_others() -> None:
    async with serving() as (_, m), asyncio.timeout(WAIT_S):
        await go(m, *(f"c{i}" for i in range(20)))
        async with aclosing(m.wills.due("b1", 1)) as due:
            first = await anext(due)
            second = await anext(due)
            await m.wills.acknowledge("b1", 1, second.key)
        seen = {first.key, second.key}
        others = await m.wills.claim("b2", 1, limit=100)
        assert len(others) == 18
        assert seen.isdisjoint({taken.key for taken in others})
        assert {taken.claims for taken in others} == {2}


async def test_wills_that_nobody_publishes_are_dropped_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(expiry={"amnesty_ms": 100, "will_keep_s": 1_200}) as (server, m), asyncio.timeout(WAIT_S):
        await go(m, *(f"c{number}" for number in range(300)))
        await server.advance(600)
        assert len(await left(m)) == 300
        assert (await m.status()).backlog.wills == 300
        watch = await m.watch(sdk.Watched("will", tenant="t", rows=("due",))).opened()
        await server.advance(1_200)
        kinds: list[sdk.ChangeKind] = []
        while len(kinds) < 300:
            batch = await watch.next()
            assert batch is not None
            kinds += [event.kind for event in batch.events]
        assert set(kinds) == {sdk.ChangeKind.EXPIRED}
        assert await left(m) == []
        assert (await m.status()).wills_dropped == 300
    said = [record.message for record in caplog.records]
    assert "wills_wait" in said
    assert "wills_dropped" in said


async def test_a_fenced_life_publishes_nothing_more() -> None:
    async with serving() as (_, m), asyncio.timeout(WAIT_S):
        await go(m, "a", "b")
        mine = await m.wills.claim("b1", 1)
        assert len(mine) == 2
        again = await m.wills.claim("b1", 2)  # its next life has them at once
        assert {taken.key for taken in again} == {taken.key for taken in mine}
        result = await m.wills.acknowledge_many("b1", 1, [taken.key for taken in mine])
        assert {type(error) for error in result.errors.values()} == {sdk.ConflictError}
        (await m.wills.acknowledge_many("b1", 2, [taken.key for taken in again])).raise_for_error()
        with pytest.raises(sdk.NotFoundError):
            await m.wills.acknowledge("b1", 2, again[0].key)
        assert await left(m) == []


async def test_wills_and_claims_survive_a_restart(tmp_path: Any) -> None:
    async with asyncio.timeout(WAIT_S):
        async with embedded.serve(tmp_path, **SOON) as server, sdk.connect(server.url) as m:
            await go(m, "a", "b")
            mine = await m.wills.claim("b1", 1, lease_s=3600)
            await m.wills.acknowledge("b1", 1, next(taken.key for taken in mine if taken.key.client_id == "a"))
        async with embedded.serve(tmp_path, **SOON) as server, sdk.connect(server.url) as m:
            (will,) = [one async for one in m.wills.list()]
            assert will.claimant is not None
            assert (will.client_id, will.claimant.broker, will.claimant.claims) == ("b", "b1", 1)
            assert await m.wills.claim("b2", 1) == []
            await m.wills.acknowledge("b1", 1, WillKey(will.tenant, will.client_id, will.id))
            assert await left(m) == []


async def test_each_will_is_acknowledged_once_though_the_leader_is_killed() -> None:
    """Two brokers publish while clients go, and the leader of the group dies with kill -9 in the middle of it."""
    names = [f"c{i:03}" for i in range(200)]
    published: list[tuple[str, int]] = []

    async def publish_all(m: sdk.Client, broker: str) -> None:
        async for taken in m.wills.due(broker, 1, poll_s=0.2, lease_s=5, limit=20):
            published.append((taken.key.client_id, taken.claims))

    async with embedded.cluster(nodes=3) as cluster, sdk.connect(cluster.url) as m, asyncio.timeout(2 * WAIT_S):
        brokers = [asyncio.create_task(publish_all(m, f"b{n}")) for n in range(2)]
        await go(m, *names[:100])
        going = asyncio.create_task(go(m, *names[100:]))
        cluster.kill((await m.cluster.map()).leaders["data-0"])
        await going
        while {name for name, _ in published} != set(names) or await left(m):
            await asyncio.wait(brokers, timeout=0.1)
            assert not any(broker.done() for broker in brokers)
        for broker in brokers:
            broker.cancel()
        await asyncio.wait(brokers)
    first = [name for name, claims in published if claims == 1]
    assert len(first) == len(set(first)), "a will that nobody had claimed before went to two"


def test_the_blocking_client_sees_each_will_before_it_is_acknowledged() -> None:
    with embedded.serve_in_thread(**SOON) as server, blocking.connect(server.url) as m:
        takes = [SessionTakeoverItem("t", f"c{i}", False, leaving(f"c{i}")) for i in range(5)]
        m.sessions.takeover_many("b0", 1, takes).raise_for_error()
        m.sessions.disconnect_many("b0", 1, [SessionDisconnectItem("t", f"c{i}") for i in range(5)]).raise_for_error()
        seen = []
        for taken in m.wills.due("b1", 1):
            assert taken.key.client_id in {one.client_id for one in m.wills.list("t")}
            seen.append(taken.key.client_id)
            if len(seen) == 5:
                m.wills.acknowledge("b1", 1, taken.key)
                break
        assert sorted(seen) == [f"c{i}" for i in range(5)]


async def test_a_broker_that_has_a_turn_and_does_nothing_delays_wills_by_that_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its process hangs, or its connection is gone without a word: the next one in line publishes the will."""
    waiting: list[str] = []
    wait_for_turn = WillTurns.wait

    def seen(self: WillTurns, driver: GroupDriver, work: Work) -> None:
        wait_for_turn(self, driver, work)
        waiting.append(work.command.body.broker)

    monkeypatch.setattr(WillTurns, "wait", seen)
    async with serving() as (server, m), asyncio.timeout(WAIT_S), AsyncExitStack() as stack:
        hung = await stack.enter_async_context(sdk.connect(server.url))
        groups = [f"data-{number}" for number in range(3)]
        waits = [
            asyncio.create_task(hung._requests.one(WILL_WAIT, WillWait("hung", 1, 60_000), 60.0, group=group))
            for group in groups
        ]
        while len(waiting) < len(groups):  # noqa: ASYNC110 - it is the first in each line
            await asyncio.sleep(0.01)
        async with aclosing(m.wills.due("b1", 1, poll_s=3600)) as due:
            first = asyncio.ensure_future(anext(due))
            await asyncio.wait([first], timeout=0.2)
            await go(m, "a")
            assert (await first).key.client_id == "a"
        told = [wait for wait in waits if wait.done()]
        assert [wait.result().claimable for wait in told] == [True], "it was its turn"
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)


async def test_a_life_that_is_over_is_told_while_it_waits() -> None:
    async with serving() as (_, m), asyncio.timeout(WAIT_S), aclosing(m.wills.due("b1", 1, poll_s=3600)) as due:
        first = asyncio.ensure_future(anext(due))
        await asyncio.wait([first], timeout=0.2)
        await m.brokers.register("b1", lease_s=60)
        with pytest.raises(sdk.FencedError):
            await first
