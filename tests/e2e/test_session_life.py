"""A real node ends the sessions of clients that stay away, and has their wills due; its status says so."""

from __future__ import annotations

import asyncio

import metad_client as sdk
from metad import embedded
from metad_client import SessionDisconnectItem, SessionProperties, SessionTakeoverItem, Will

SOON = {"expiry": {"amnesty_ms": 100, "sessions_per_s": 500, "batch_sessions": 40}, "groups": {"data": 3}}
WAIT_S = 120
CLIENTS = [f"c{number:03}" for number in range(300)]


async def left(m: sdk.Client) -> set[str]:
    return {session.client_id async for session in m.sessions.list("t")}


async def test_sessions_end_and_their_wills_are_due() -> None:
    async with embedded.serve(**SOON) as server, sdk.connect(server.url) as m, asyncio.timeout(WAIT_S):
        properties = SessionProperties(1, b"", Will("gone", b"bye", delay_s=3_600))
        taken = [SessionTakeoverItem("t", client, properties=properties) for client in CLIENTS]
        (await m.sessions.takeover_many("b", 1, taken)).raise_for_error()
        stays = await m.sessions.takeover("b", 1, "t", "stays", properties=SessionProperties(3_600))
        assert not stays.session_present
        gone = [SessionDisconnectItem("t", client) for client in [*CLIENTS, "stays"]]
        (await m.sessions.disconnect_many("b", 1, gone)).raise_for_error()
        assert await left(m) == {*CLIENTS, "stays"}
        while await left(m) != {"stays"}:  # noqa: ASYNC110 - the node does not call back
            await asyncio.sleep(0.05)
        assert len([one async for one in m.wills.list("t")]) == len(CLIENTS)
        status = await m.status()
        assert (status.sessions_ended, status.wills_due, status.overdue_ms) == (len(CLIENTS), len(CLIENTS), 0)
        assert (status.backlog.deadlines, status.backlog.wills, status.backlog.unclaimed) == (0, 300, 300)
        assert status.backlog.unclaimed_ms > 0
        claimed = await m.wills.claim("b", 1, limit=1_000)
        assert (await m.status()).backlog.unclaimed == 0
        keys = [taken.key for taken in claimed]
        (await m.wills.acknowledge_many("b", 1, keys)).raise_for_error()
        assert (await m.status()).backlog == sdk.Backlog()
        again = await m.sessions.takeover("b", 1, "t", CLIENTS[0])
        assert not again.session_present
        assert (await m.sessions.takeover("b", 1, "t", "stays")).session_present


async def test_a_tenant_ends_with_all_that_it_has() -> None:
    async with embedded.serve(**SOON) as server, sdk.connect(server.url) as m, asyncio.timeout(WAIT_S):
        properties = SessionProperties(3_600, b"", Will("gone", b"bye"))
        taken = [SessionTakeoverItem("t", client, properties=properties) for client in CLIENTS]
        (await m.sessions.takeover_many("b", 1, [*taken, SessionTakeoverItem("other", "c")])).raise_for_error()
        await m.subscriptions.add("b", 1, "t", CLIENTS[0], "a/#")
        await m.retained.put("t", "a/b", b"v")
        await m.sessions.end_tenant("t", publish_wills=False, retained=True)
        await m.retained.put("t", "a/c", b"v")
        again = await m.sessions.takeover("b2", 1, "t", CLIENTS[0], restore=True, restore_parts=True)
        assert (again.session_present, again.properties, again.subscriptions) == (False, None, ())
        while await m.sessions.endings("t"):  # noqa: ASYNC110 - the node does not call back
            await asyncio.sleep(0.05)
        assert await left(m) == {CLIENTS[0]}
        assert await m.sessions.get("other", "c") is not None
        assert [one.topic async for one in m.retained.match("t", "#")] == ["a/c"]
        assert [one async for one in m.wills.list("t")] == []
        assert await m.sessions.endings() == []
        status = await m.status()
        assert (status.sessions_ended, status.backlog.tenants) == (len(CLIENTS) - 1, 0)
