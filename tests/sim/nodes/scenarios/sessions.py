"""The life of sessions on whole nodes: they end when their time has come, and not before, through dead leaders,
calendars that are set and slots that move. The judge of what was written looks at every end, and where a scene settles,
the index of deadlines is compared with the sessions."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from metad.config import ExpiryConfig, RaftConfig, StorageConfig
from metad.storage import keys
from metad_client import Client, SessionDisconnectItem, SessionProperties, SessionTakeoverItem, Will
from metad_wire.cluster import METADATA, FenceItem, GroupFence, GroupId
from metad_wire.methods import GROUP_FENCE
from metad_wire.tables.will import WILL

from ..cluster import DATA
from .scene import Scene, scenario

_AMNESTY_S = 1.5
_CLIENTS = [f"device-{number}" for number in range(30)]
_INTERVAL_S, _DELAY_S = 6, 3
_SLACK_S = 1.0  # the sweep looks four times a second
_OTHER = GroupId("data", 1)
_SLOW = ExpiryConfig(amnesty_ms=int(1000 * _AMNESTY_S), batch_sessions=2, sessions_per_s=2)
"""So that something happens on the way."""


class Stage(Scene):
    """A scene with clients that have gone."""

    def __init__(self, seed: int = 1, **settings: Any) -> None:
        expiry = ExpiryConfig(amnesty_ms=int(1000 * _AMNESTY_S), batch_sessions=7)
        super().__init__(seed, **{"expiry": expiry, **settings})

    def come(self, clients: list[str] = _CLIENTS, *, interval_s: int = _INTERVAL_S) -> None:
        """Have clients connect to a broker."""
        properties = SessionProperties(interval_s, b"", Will("gone", delay_s=_DELAY_S))
        items = [SessionTakeoverItem("acme", name, properties=properties) for name in clients]
        self.ask(self.one, lambda client: client.sessions.takeover_many("one", 1, items)).raise_for_error()

    def go(self, clients: list[str] = _CLIENTS, *, interval_s: int = _INTERVAL_S) -> float:
        """Have clients come and go. When they have gone."""
        self.come(clients, interval_s=interval_s)

        async def go(client: Client) -> None:
            gone = [SessionDisconnectItem("acme", name) for name in clients]
            (await client.sessions.disconnect_many("one", 1, gone)).raise_for_error()

        self.ask(self.one, go)
        return self.loop.now

    def fence(self, *groups: GroupId) -> None:
        """The life of the clients' broker is over, these groups hear."""
        for group in groups:
            sim = self.lead(group)
            assert sim.node is not None
            assert sim.process is not None
            assert sim.environment is not None
            body = GroupFence([FenceItem("one", 2, sim.environment.wall_ms())])
            task = sim.process.start(sim.node.requests.call(GROUP_FENCE, body, group=group.name))
            assert self.run_until(task.done, 5.0)
            task.result()

    def end(self, tenant: str = "acme") -> None:
        """Order the end of a tenant."""
        self.ask(self.two, lambda client: client.sessions.end_tenant(tenant, publish_wills=True))

    def ended(self) -> None:
        """Until all orders are carried out."""

        async def endings(client: Client) -> int:
            return len(await client.sessions.endings())

        assert self.run_until(lambda: not self.ask(self.two, endings), 60.0), "the end of a tenant stands still"

    def back(self, clients: list[str]) -> set[str]:
        """Have clients come to another broker. Those that had a session."""

        async def come(client: Client) -> set[str]:
            properties = SessionProperties(600)
            items = [SessionTakeoverItem("acme", name, properties=properties) for name in clients]
            taken = await client.sessions.takeover_many("two", 1, items)
            taken.raise_for_error()
            return {name for at, name in enumerate(clients) if taken.session_present(at)}

        found: set[str] = self.ask(self.two, come)
        return found

    def left(self) -> set[str]:
        """The clients that have a session."""

        async def listed(client: Client) -> set[str]:
            return {session.client_id async for session in client.sessions.list("acme")}

        found: set[str] = self.ask(self.two, listed)
        return found

    def wills(self) -> int:
        """That are due, in the groups of data."""
        self.require_settled(20.0)
        found: set[bytes] = set()
        for group in (DATA, _OTHER):
            lead = self.leader(group)
            if lead is not None:
                prefix = keys.table_prefix(keys.group_prefix(group), WILL.rows["due"])
                rows = lead.disks.state.scan(prefix, keys.after_prefix(prefix), 1 << 30)
                found |= {key[len(prefix) :] for key, _ in rows}
        return len(found)

    def until(self, moment_s: float) -> None:
        """Let time pass."""
        self.run(max(0.0, moment_s - self.loop.now))


@scenario
def sessions_end_when_their_time_has_come() -> None:
    """Their wills are due before."""
    with Stage() as scene:
        scene.run(_AMNESTY_S)
        gone_s = scene.go()
        scene.until(gone_s + _DELAY_S - 0.5)
        assert scene.wills() == 0, "a will is due too early"
        scene.until(gone_s + _DELAY_S + _SLACK_S)
        assert scene.wills() == len(_CLIENTS)
        scene.until(gone_s + _INTERVAL_S - 0.5)
        assert scene.left() == {*_CLIENTS}, "a session has ended too early"
        scene.until(gone_s + _INTERVAL_S + _SLACK_S)
        assert scene.left() == set()
        assert scene.wills() == len(_CLIENTS), "a will is due twice"
        scene.require_settled(20.0)


@scenario
def who_comes_back_in_time_keeps_the_session() -> None:
    """Half of the clients come back just before, to another broker."""
    with Stage() as scene:
        scene.run(_AMNESTY_S)
        gone_s = scene.go()
        scene.until(gone_s + _DELAY_S - 0.5)

        async def back(client: Client) -> None:
            items = [SessionTakeoverItem("acme", name) for name in _CLIENTS[::2]]
            taken = await client.sessions.takeover_many("two", 1, items, restore=True)
            assert all(taken.session_present(at) for at in range(len(items)))

        scene.ask(scene.two, back)
        assert scene.wills() == 0
        scene.until(gone_s + _INTERVAL_S + _SLACK_S)
        assert scene.left() == {*_CLIENTS[::2]}
        assert scene.wills() == len(_CLIENTS[1::2])


@scenario
def a_new_leader_ends_nothing_for_a_while() -> None:
    """The leader dies when the sessions are about to end. Their clients may have tried in vain to come back."""
    with Stage() as scene:
        scene.run(_AMNESTY_S)
        gone_s = scene.go()
        scene.until(gone_s + _DELAY_S + _SLACK_S)
        scene.until(gone_s + _INTERVAL_S - 0.3)
        leader = scene.lead()
        leader.crash(power=True)
        scene.until(gone_s + _INTERVAL_S + 0.5)
        assert scene.left() == {*_CLIENTS}
        scene.until(scene.loop.now + 2 * _AMNESTY_S + _SLACK_S)
        assert scene.left() == set()
        leader.start()
        assert scene.wills() == len(_CLIENTS)


@scenario
def a_calendar_that_is_set_ends_no_session() -> None:
    """An hour ahead at the leader, and then at the others."""
    with Stage() as scene:
        scene.run(_AMNESTY_S)
        gone_s = scene.go(interval_s=30)
        for sim in (scene.lead(), *scene.nodes.values()):
            assert sim.environment is not None
            sim.environment.stepped_ms += 3_600_000
            scene.run(_AMNESTY_S + 0.5)
        assert scene.loop.now < gone_s + 20.0
        assert scene.left() == {*_CLIENTS}, "a session has ended too early"
        scene.until(gone_s + 30.0 + _AMNESTY_S + _SLACK_S)
        assert scene.left() == set()
        scene.require_settled(20.0)


@scenario
def a_calendar_that_is_set_back_keeps_no_session() -> None:
    """By an hour, at all nodes: the time of the log goes a tenth slower, and does not wait for the calendars."""
    with Stage() as scene:
        scene.run(_AMNESTY_S)
        gone_s = scene.go(interval_s=30)
        for sim in scene.nodes.values():
            assert sim.environment is not None
            sim.environment.stepped_ms -= 3_600_000
        scene.until(gone_s + 30.0)
        assert scene.left() == {*_CLIENTS}
        scene.until(gone_s + 34.0 + _AMNESTY_S + _SLACK_S)
        assert scene.left() == set()
        scene.require_settled(20.0)


@scenario
def sessions_end_in_the_group_that_their_slots_have_moved_to() -> None:
    """Half of the sessions move while they are away, and back."""
    with Stage(data=2) as scene:
        scene.run(_AMNESTY_S)
        gone_s = scene.go()
        for source, target in ((0, 1), (1, 0)):
            scene.move(source, target)
            scene.require_settled(20.0)
        scene.until(gone_s + _INTERVAL_S + _AMNESTY_S + 2 * _SLACK_S)
        assert scene.left() == set()
        assert scene.wills() == len(_CLIENTS)


@scenario
def sessions_of_a_broker_that_has_died_end() -> None:
    """Nobody reports that their clients have gone. Some of them come back to another broker, and the leader dies."""
    with Stage() as scene:
        scene.run(_AMNESTY_S)
        scene.come()
        scene.run(2 * _INTERVAL_S)
        assert scene.left() == {*_CLIENTS}
        assert scene.wills() == 0
        scene.fence(DATA)
        fenced_s = scene.loop.now

        async def back(client: Client) -> None:
            items = [SessionTakeoverItem("acme", name) for name in _CLIENTS[:10]]
            taken = await client.sessions.takeover_many("two", 1, items)
            assert all(taken.session_present(at) for at in range(len(items)))
            sessions = [session async for session in client.sessions.list("acme")]
            assert sum(session.connected for session in sessions) == len(items)

        scene.ask(scene.two, back)
        scene.lead().crash(power=True)
        scene.until(fenced_s + _INTERVAL_S - 0.5)
        assert scene.left() == {*_CLIENTS}, "a session has ended too early"
        scene.until(fenced_s + _INTERVAL_S + 2 * _AMNESTY_S + _SLACK_S)
        assert scene.left() == {*_CLIENTS[:10]}
        for sim in scene.nodes.values():
            if not sim.up:
                sim.start()
        assert scene.wills() == len(_CLIENTS[10:])


@scenario
def sessions_of_a_dead_broker_end_where_their_slots_have_moved_to() -> None:
    """The group that they come to has heard of the death, and has looked at all that it had. Theirs has not."""
    with Stage(data=2) as scene:
        scene.run(_AMNESTY_S)
        scene.come()
        scene.fence(_OTHER)
        scene.run(2.0)
        before = scene.left()
        scene.move(0, 1)
        scene.run(_INTERVAL_S + _AMNESTY_S + 2 * _SLACK_S)
        assert before
        assert scene.left() == set()
        assert scene.wills() == len(_CLIENTS)


@scenario
def a_tenant_ends_through_dead_leaders_and_who_comes_meanwhile_stays() -> None:
    """Its sessions are of two brokers; half of the clients are away. Some come back before the leader has come to their
    sessions, and find none. The leader dies twice on the way."""
    with Stage(expiry=_SLOW) as scene:
        scene.go(_CLIENTS[::2], interval_s=600)
        scene.come(_CLIENTS[1::2], interval_s=600)
        scene.end()
        back = _CLIENTS[-4:]
        assert not scene.back(back), "a session is found after the order"
        for _ in range(2):
            before = len(scene.left())
            assert scene.run_until(lambda: len(scene.left()) < before, 20.0)  # noqa: B023
            leader = scene.lead()
            leader.crash(power=True)
            scene.run(1.0)
            leader.start()
        assert len(back) < len(scene.left()) < len(_CLIENTS), "the leader did not die on the way"
        scene.ended()
        assert scene.left() == {*back}
        assert scene.wills() == len(_CLIENTS)
        assert scene.back(back) == {*back}, "a session that came after the order has ended"


@scenario
def a_tenant_ends_where_its_slots_have_moved_to() -> None:
    """All slots of one group go to the other on the way and come back, and clients come back in between."""
    with Stage(data=2, expiry=_SLOW) as scene:
        scene.come(interval_s=600)
        scene.end()
        back = _CLIENTS[-4:]
        scene.move(0, 1)
        assert not scene.back(back), "a session is found after the order"
        scene.require_settled(20.0)
        scene.move(1, 0)
        scene.ended()
        assert scene.left() == {*back}
        assert scene.wills() == len(_CLIENTS)
        assert scene.back(back) == {*back}, "a session that came after the order has ended"


@scenario
def who_gets_a_snapshot_goes_on_with_the_end_of_a_tenant() -> None:
    """It has not seen the order's entry, and leads then."""
    small = StorageConfig(engine="memory", log_retained_bytes=500)
    raft = RaftConfig(election_timeout_ms=300, heartbeat_ms=50, sleep_after_ms=500, log_cache_bytes=1)
    with Stage(expiry=_SLOW, storage=small, raft=raft) as scene:
        scene.come(interval_s=600)
        scene.ask(scene.one, lambda client: client.sessions.takeover("one", 1, "blue", "device-1"))
        busy = {scene.lead(group).name for group in (METADATA, DATA)}
        late = next(name for name in scene.nodes if name not in busy)
        scene.isolate(late)
        scene.end()
        scene.end("blue")  # of which nothing is written before the other order is carried out
        scene.catch_up_by_snapshot()
        scene.transfer(late)
        assert scene.left(), "it was over too early"
        scene.ended()
        assert scene.left() == set()
        assert scene.ask(scene.two, lambda client: client.sessions.get("blue", "device-1")) is None


@scenario
def sessions_come_go_and_end_through_trouble() -> None:
    """Clients come and go while leaders die; nothing is said of who is there, but the judge looks at each
    end, and in the end the index is that of the sessions."""
    with Stage(data=2) as scene:
        over = asyncio.Event()

        async def live(client: Client, number: int, rng: random.Random) -> None:
            while not over.is_set():
                name = f"device-{rng.randrange(6)}"
                properties = SessionProperties(rng.randrange(4), b"", Will("gone", delay_s=rng.randrange(3)))
                broker = f"broker-{number}"
                taken = await client.sessions.takeover_many(
                    broker, 1, [SessionTakeoverItem("acme", name, rng.random() < 0.2, properties)], deadline_s=20.0
                )
                if not taken.errors:
                    gone = [SessionDisconnectItem("acme", name, None, rng.random() < 0.3)]
                    await client.sessions.disconnect_many(broker, 1, gone, deadline_s=20.0)
                await asyncio.sleep(0.01)

        tasks = [
            scene.begin(host, lambda client, number=number: live(client, number, scene.rng))  # type: ignore[misc]
            for number, host in enumerate((scene.one, scene.two))
        ]
        for _ in range(2):
            scene.run(4.0)
            leader = scene.lead()
            leader.crash(power=True)
            scene.run(1.0)
            leader.start()
        over.set()
        assert scene.run_until(lambda: all(task.done() for task in tasks), 30.0)
        for task in tasks:
            task.result()
        scene.require_settled(30.0)
        scene.run(4.0 + 3 * _AMNESTY_S)
        assert scene.left() == set()
        scene.require_settled(30.0)
