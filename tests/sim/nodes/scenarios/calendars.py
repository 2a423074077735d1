"""Calendars that disagree by hours, and so do the logs of groups that were begun by them. What lasts for a time lasts
so long in each of them, and through every way from one to another."""

from __future__ import annotations

from typing import Any

from metad.config import ExpiryConfig
from metad_client import Client, SessionDisconnectItem, SessionProperties, SessionTakeoverItem, Will
from metad_wire.cluster import METADATA, FenceItem, GroupFence, GroupId
from metad_wire.methods import BROKER_FENCE, BROKER_REGISTER, GROUP_FENCE
from metad_wire.tables import broker as b

from ..cluster import DATA
from .scene import Scene, scenario

_OTHER = GroupId("data", 1)
_HOUR_S = 3_600
_AMNESTY_S = 1.5
_LATE_S = 2.0 + _AMNESTY_S
_CLIENTS = [f"device-{number}" for number in range(24)]
_LONG_S, _SHORT_S = 600, 12
_SEEDS = 40


class Apart(Scene):
    """A cluster in which the times of two logs are apart, because those who began them had such calendars."""

    def __init__(self, seed: int, **settings: Any) -> None:
        expiry = ExpiryConfig(amnesty_ms=int(1000 * _AMNESTY_S), batch_sessions=7)
        skews = {"n1": -_HOUR_S, "n2": 0, "n3": _HOUR_S}
        super().__init__(seed, **{"data": 2, "expiry": expiry, "skews_s": skews, **settings})

    def log_ms(self, group: GroupId) -> int:
        """The time of a group's log."""
        node = self.lead(group).node
        assert node is not None
        return node.drivers[group].machine.reader.now_ms()

    def come(self, broker: str, epoch: int, interval_s: int, clients: list[str] = _CLIENTS) -> None:
        """Have clients connect to a broker."""
        properties = SessionProperties(interval_s, b"", Will("gone", delay_s=interval_s))
        items = [SessionTakeoverItem("acme", name, properties=properties) for name in clients]
        self.ask(self.one, lambda client: client.sessions.takeover_many(broker, epoch, items)).raise_for_error()

    def go(self, broker: str, epoch: int, clients: list[str] = _CLIENTS) -> float:
        """Have them leave. When they have."""

        async def go(client: Client) -> None:
            gone = [SessionDisconnectItem("acme", name) for name in clients]
            (await client.sessions.disconnect_many(broker, epoch, gone)).raise_for_error()

        self.ask(self.one, go)
        return self.loop.now

    def retain(self, interval_s: int) -> None:
        """Have a message of each client retained."""

        async def retain(client: Client) -> None:
            for name in _CLIENTS:
                await client.retained.put(name, "topic", b".", expiry_interval_s=interval_s)

        self.ask(self.one, retain, 30.0)

    def sessions(self) -> dict[str, int]:
        """Those that there are, and since when the client of each is away, by its log."""

        async def listed(client: Client) -> dict[str, int]:
            return {session.client_id: session.disconnected_ms async for session in client.sessions.list("acme")}

        found: dict[str, int] = self.ask(self.two, listed)
        return found

    def messages(self) -> int:
        """That are retained."""

        async def got(client: Client) -> int:
            return sum([await client.retained.get(name, "topic") is not None for name in _CLIENTS])

        found: int = self.ask(self.two, got, 30.0)
        return found

    def at_leader(self, method: Any, body: Any) -> Any:
        """Ask who leads the metadata."""
        leader = self.lead(METADATA)
        assert leader.node is not None
        assert leader.process is not None
        task = leader.process.start(leader.node.requests.call(method, body))
        assert self.run_until(task.done, 20.0), "there is no answer"
        return task.result()

    def register(self, broker: str) -> int:
        """The epoch of a broker's life."""
        registered = self.at_leader(BROKER_REGISTER, b.BrokerRegister(broker, 600_000, wait_ms=15_000))
        return int(registered.broker_epoch)


def apart(behind: GroupId, ahead: GroupId, **settings: Any) -> Apart:
    """A cluster in which one log is hours ahead of another: the first seed that has it."""
    for seed in range(1, _SEEDS):
        with Apart(seed, **settings) as scene:
            if scene.log_ms(ahead) - scene.log_ms(behind) > 900 * _HOUR_S:
                return Apart(seed, **settings)
    raise AssertionError("no seed has such logs")


@scenario
def a_dead_brokers_sessions_last_as_long_in_every_group() -> None:
    """The time of metadata-0's log is hours behind that of a group of data, or ahead."""
    for behind, ahead in ((METADATA, DATA), (DATA, METADATA)):
        with apart(behind, ahead) as scene:
            lives = {interval_s: scene.register(f"b{interval_s}") for interval_s in (_LONG_S, _SHORT_S)}
            for interval_s, clients in ((_LONG_S, _CLIENTS[::2]), (_SHORT_S, _CLIENTS[1::2])):
                scene.come(f"b{interval_s}", lives[interval_s], interval_s, clients)
            scene.run(5.0)
            for interval_s, epoch in lives.items():
                scene.at_leader(BROKER_FENCE, b.BrokerFence(f"b{interval_s}", epoch, wait_ms=15_000))
            fenced_s = scene.loop.now
            scene.run(_SHORT_S - 2.0)
            assert {*scene.sessions()} == {*_CLIENTS}, "a session has ended too early"
            scene.run(fenced_s + 1.1 * _SHORT_S + _LATE_S - scene.loop.now)
            assert {*scene.sessions()} == {*_CLIENTS[::2]}


@scenario
def what_moves_lasts_as_long_where_it_comes_to() -> None:
    """To a group whose log is hours ahead, and back, and to one whose log is hours behind. So does what it meets there,
    and the short ones end in time."""
    for source, target in ((DATA, _OTHER), (_OTHER, DATA)):
        with apart(source, target) as scene:
            for interval_s, clients in ((_LONG_S, _CLIENTS[::2]), (_SHORT_S, _CLIENTS[1::2])):
                scene.come("b", 1, interval_s, clients)
            scene.retain(_LONG_S)
            gone_s = scene.go("b", 1)
            scene.move(source.ordinal, target.ordinal)
            scene.run(2.0 + _AMNESTY_S)
            assert scene.messages() == len(_CLIENTS), "a message has ended too early"
            scene.move(target.ordinal, source.ordinal)
            scene.run(gone_s + _SHORT_S - 1.0 - scene.loop.now)
            assert {*scene.sessions()} == {*_CLIENTS}, "a session has ended too early"
            scene.run(gone_s + 1.1 * _SHORT_S + 2 * _LATE_S - scene.loop.now)
            assert {*scene.sessions()} == {*_CLIENTS[::2]}
            assert scene.messages() == len(_CLIENTS), "a message has ended too early"
            scene.require_settled(20.0)


@scenario
def a_fence_that_comes_with_slots_is_as_old() -> None:
    """The group that the slots come to has not heard of it, and its log is hours ahead. Few of the sessions were looked
    at before."""
    slow = ExpiryConfig(amnesty_ms=int(1000 * _AMNESTY_S), batch_sessions=2, sessions_per_s=2)
    with apart(DATA, _OTHER, expiry=slow) as scene:
        scene.come("b", 1, _LONG_S)
        scene.run(1.0)
        fenced_s = scene.loop.now
        scene.at(scene.lead(DATA), GROUP_FENCE, GroupFence([FenceItem("b", 2, age_ms=0)]))
        scene.move(DATA.ordinal, _OTHER.ordinal)
        scene.run(2.0)
        moved = scene.sessions()
        assert {*moved} == {*_CLIENTS}, "a session has ended too early"
        passed_ms, now_ms = 1000 * (scene.loop.now - fenced_s), scene.log_ms(_OTHER)
        ages_ms = [now_ms - since_ms for since_ms in moved.values() if since_ms]
        assert len(ages_ms) > len(_CLIENTS) // 3, "no session has moved"
        assert all(abs(age_ms - passed_ms) < 1_500 for age_ms in ages_ms), f"{ages_ms} are not {passed_ms}"


@scenario
def who_comes_and_goes_while_slots_move_has_one_deadline() -> None:
    """A row that is sent, and sent again or deleted, is put ahead by the same each time: the index of deadlines in the
    target has those of the sessions, and no others."""
    with apart(DATA, _OTHER) as scene:
        scene.come("b", 1, _SHORT_S)
        scene.go("b", 1)
        moved = scene.begin_move(DATA.ordinal, _OTHER.ordinal)
        over = scene.loop.now + 20.0
        while not scene.is_moved(moved) and scene.loop.now < over:
            scene.come("b", 1, _SHORT_S, _CLIENTS[::3])
            scene.go("b", 1, _CLIENTS[::3])
        scene.require_settled(20.0)
        scene.run(1.1 * _SHORT_S + 2 * _LATE_S)
        assert scene.sessions() == {}
        scene.require_settled(20.0)
