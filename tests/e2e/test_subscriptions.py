"""Subscriptions, and what is in flight, through real servers: two brokers hand clients over, a third one watches, and a
leader is killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import metad_client as sdk
from metad import embedded
from metad_client import (
    Inflight,
    InflightKey,
    InflightState,
    SessionKey,
    SessionTakeoverItem,
    Subscribed,
    Subscription,
    SubscriptionKey,
    SubscriptionOptions,
)

QOS_1 = SubscriptionOptions(qos=1)


async def test_two_brokers_hand_clients_over_and_a_third_watches(tmp_path: Path) -> None:
    clients = [f"c{i:03}" for i in range(100)]
    items = [Subscription("t", client, f"{client}/{n}/#", QOS_1) for client in clients for n in range(3)]
    async with embedded.serve(tmp_path, groups={"data": 3}) as server, sdk.connect(server.url) as m:
        watch = m.watch("subscription", tenant="t", start="snapshot")
        await watch.opened()
        takes = [SessionTakeoverItem("t", client) for client in clients]
        (await m.sessions.takeover_many("b1", 1, takes)).raise_for_error()
        added = await m.subscriptions.add_many("b1", 1, items)
        added.raise_for_error()
        assert added.created == [True] * 300
        assert await m.subscriptions.add("b1", 1, "t", "c000", "c000/0/#", QOS_1) is False
        (await m.sessions.takeover_many("b2", 1, takes)).raise_for_error()
        with pytest.raises(sdk.NotOwnerError):
            await m.subscriptions.add("b1", 1, "t", "c000", "late")
        with pytest.raises(sdk.InvalidItemError, match="#"):
            await m.subscriptions.add("b2", 1, "t", "c000", "a/#/b")
        gone = [SubscriptionKey("t", client, f"{client}/1/#") for client in clients]
        (await m.subscriptions.remove_many("b2", 1, gone)).raise_for_error()
        with pytest.raises(sdk.NotFoundError):
            await m.subscriptions.remove("b2", 1, "t", "c000", "c000/1/#")
        left = [one for one in items if "/1/" not in one.filter]
        image = {}
        async with asyncio.timeout(120):
            async for batch in watch:
                for event in batch.events:
                    if event.record is None:
                        image.pop(event.key, None)
                    else:
                        image[event.key] = event.record
                if len(image) == len(left) and not any("/1/" in key.filter for key in image):
                    break
        assert image == {SubscriptionKey(one.tenant, one.client_id, one.filter): one.options for one in left}
    async with embedded.serve(tmp_path, groups={"data": 3}) as server, sdk.connect(server.url) as m:
        found = await m.subscriptions.get_many([SessionKey("t", client) for client in clients])
        found.raise_for_error()
        assert found == [[Subscribed(f"{client}/{n}/#", QOS_1) for n in (0, 2)] for client in clients]
        assert await m.subscriptions.get("t", "c007") == found[7]
        assert await m.subscriptions.get("t", "nobody") == []
        assert [one async for one in m.subscriptions.list("t", page_size=7)] == left
        assert [one async for one in m.subscriptions.list("t", "c01")] == [
            one for one in left if one.client_id.startswith("c01")
        ]


async def test_what_was_answered_survives_the_kill_of_the_leader() -> None:
    async with embedded.cluster(nodes=3) as cluster, sdk.connect(cluster.url) as m:
        await m.sessions.takeover("b1", 1, "t", "c")
        stored = [f"{n}/+" for n in range(20)]
        assert all([await m.subscriptions.add("b1", 1, "t", "c", filter_) for filter_ in stored[:10]])
        cluster.kill((await m.cluster.map()).leaders["data-0"])
        created = await asyncio.gather(*(m.subscriptions.add("b1", 1, "t", "c", filter_) for filter_ in stored[10:]))
        assert created == [True] * 10
        assert [one.filter for one in await m.subscriptions.get("t", "c")] == sorted(stored)


async def test_what_is_in_flight_goes_to_the_next_owner() -> None:
    async with embedded.serve(groups={"data": 3}) as server, sdk.connect(server.url) as m:
        takes = [SessionTakeoverItem("t", f"c{i}") for i in range(50)]
        (await m.sessions.takeover_many("b1", 1, takes)).raise_for_error()
        items = [Inflight("t", f"c{i}", f"out/{n}", b"publish") for i in range(50) for n in range(4)]
        (await m.inflight.put_many("b1", 1, items)).raise_for_error()
        await m.inflight.put("b1", 1, "t", "c0", "out/0", b"release")
        gone = [InflightKey("t", f"c{i}", "out/3") for i in range(50)]
        (await m.inflight.delete_many("b1", 1, gone)).raise_for_error()
        await m.subscriptions.add("b1", 1, "t", "c7", "a/#", QOS_1)
        taken = await m.sessions.takeover_many(
            "b2", 1, [*takes, SessionTakeoverItem("t", "new")], restore=True, restore_parts=True
        )
        taken.raise_for_error()
        assert [list(taken.subscriptions(i)) for i in (7, 8, 50)] == [[Subscribed("a/#", QOS_1)], [], []]
        assert [state.name for state in taken.inflight(8)] == ["out/0", "out/1", "out/2"]
        assert taken.inflight(0)[0] == InflightState("out/0", b"release")
        assert (taken.properties(8), taken.session_present(50)) == (sdk.SessionProperties(), False)
        assert taken.inflight(50) == ()
        one = await m.sessions.takeover("b2", 1, "t", "c7", restore_parts=True)
        assert (one.subscriptions, len(one.inflight), one.properties) == ([Subscribed("a/#", QOS_1)], 3, None)
        assert (await m.sessions.takeover("b2", 1, "t", "c7", restore=True)).subscriptions == ()
        with pytest.raises(sdk.NotOwnerError):
            await m.inflight.put("b1", 1, "t", "c0", "out/0", b"")
        found = await m.inflight.get_many([SessionKey("t", f"c{i}") for i in range(50)])
        found.raise_for_error()
        assert found[1:] == [[InflightState(f"out/{n}", b"publish") for n in range(3)]] * 49
        assert await m.inflight.get("t", "c0") == [InflightState("out/0", b"release"), *found[1][1:]]
        await m.inflight.delete("b2", 1, "t", "c0", "out/0")
        with pytest.raises(sdk.NotFoundError):
            await m.inflight.delete("b2", 1, "t", "c0", "out/0")
