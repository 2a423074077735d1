"""Brokers that die and come back: what was acknowledged about a life holds in every group, whatever happens to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

from metad.config import ExpiryConfig, RaftConfig, StorageConfig
from metad.control.brokers import fencing
from metad.control.brokers.evidence import GRACE_S, HEARD_S
from metad.node.node import Node
from metad.state.cluster.fences import Fences
from metad_client import BrokerLife, Client, Owned
from metad_client.errors import FencedError, MetadError, NotLeaderError
from metad_wire import messages as m
from metad_wire.cluster import METADATA, SLOTS, GroupId
from metad_wire.families.mqtt import TOPIC_SETTINGS, TopicSettings
from metad_wire.methods import (
    BROKER_FENCE,
    BROKER_GET,
    BROKER_HEARTBEAT,
    BROKER_LIST,
    BROKER_REGISTER,
    KV_PUT,
    Method,
)
from metad_wire.tables import broker as b
from metad_wire.transport import Stream

from ..cluster import CLIENT_PORT, DATA, SimClient, SimNode
from ..links import SimTransport
from .scene import Scene, scenario

_CLIENTS = [f"c{number}" for number in range(16)]
_LEASE_MS = 2_000


def _asked(scene: Scene, method: Method[Any, Any], body: Any) -> Any:
    """What the leader of the metadata answers, whoever that is."""
    outcome: list[Any] = []

    def answered() -> bool:
        leader = scene.leader(METADATA)
        if leader is None or leader.node is None or leader.process is None:
            return False
        task = leader.process.start(leader.node.requests.call(method, body))
        if not scene.run_until(task.done, 20.0):
            raise AssertionError("there is no answer")
        try:
            outcome.append(task.result())
        except NotLeaderError:
            return False
        return True

    assert scene.run_until(answered, 20.0), "nobody leads the metadata"
    return outcome[0]


def _register(scene: Scene, broker: str, lease_ms: int = 600_000, probe_port: int = 0) -> int:
    asked = b.BrokerRegister(broker, lease_ms, wait_ms=15_000, probe_port=probe_port)
    registered = _asked(scene, BROKER_REGISTER, asked)
    assert registered.unfenced == [], registered
    return int(registered.broker_epoch)


def _take_all(scene: Scene, broker: str, epoch: int) -> dict[str, str]:
    """Client -> why its session could not be taken over, or an empty text."""
    outcomes: dict[str, str] = {}

    async def take(client: Client, name: str) -> None:
        await client.sessions.takeover(broker, epoch, "t", name)

    for name in _CLIENTS:
        try:
            scene.ask(scene.one, partial(take, name=name), 20.0)
        except MetadError as error:
            outcomes[name] = error.name
        else:
            outcomes[name] = ""
    return outcomes


async def _sessions(client: Client) -> list[m.Session | None]:
    return [*await client.sessions.get_many([m.SessionKey("t", name) for name in _CLIENTS])]


def _owners(scene: Scene) -> set[str]:
    found = scene.ask(scene.two, _sessions, 20.0)
    return {"" if session is None else session.broker for session in found}


def _check_zombie(scene: Scene, broker: str, epoch: int) -> None:
    """A life that is over writes nothing."""
    before = _owners(scene)
    assert set(_take_all(scene, broker, epoch).values()) == {"fenced"}, "a life that is over has written"
    assert _owners(scene) == before


@scenario
def a_zombie_steals_nothing_once_its_next_life_is_registered() -> None:
    """The sessions are another broker's, so nothing of theirs says that the life is over."""
    with Scene(data=2) as scene:
        first = _register(scene, "b1")
        assert set(_take_all(scene, "b1", first).values()) == {""}
        second = _register(scene, "b1")
        assert second > first
        assert set(_take_all(scene, "b2", 1).values()) == {""}
        _check_zombie(scene, "b1", first)
        assert set(_take_all(scene, "b1", second).values()) == {""}


@scenario
def a_zombie_writes_nothing_in_slots_that_moved_to_a_new_group() -> None:
    """The group is added once the fence has been acknowledged. It has it from the adoption alone."""
    with Scene() as scene:
        first = _register(scene, "b1")
        _register(scene, "b1")
        assert set(_take_all(scene, "b2", 1).values()) == {""}
        scene.ask(scene.one, lambda c: c.cluster.add_group("data"))
        scene.require_settled(20.0)
        scene.move(0, 1)
        assert scene.slots_of(0) == set()
        assert set(_take_all(scene, "b2", 1).values()) == {""}, "the client knows the new group from now on"
        _check_zombie(scene, "b1", first)


@scenario
def a_zombie_writes_no_record_in_slots_of_kind_metadata_that_moved_to_a_new_group() -> None:
    """In a table that is declared. Nothing but the adoption tells the group of the fence."""
    with Scene() as scene:
        first = _register(scene, "b1")
        second = _register(scene, "b1")
        scene.ask(scene.one, lambda c: c.cluster.add_group("metadata"))
        scene.require_settled(20.0)
        scene.move(0, 1, range(1, SLOTS), "metadata")
        added = GroupId("metadata", 1)
        leader = scene.lead(added)
        assert _is_refused(scene, leader, m.Owner("b1", first), group=added), "a life that is over has written"
        assert not _is_refused(scene, leader, m.Owner("b1", second), group=added)
        found = scene.ask(scene.one, lambda c: c.table(TOPIC_SETTINGS).get("acme", "t"))
        assert found is not None
        assert found.version == 1


@scenario
def who_speaks_for_an_earlier_connection_is_not_heard() -> None:
    """A client comes, goes, begins anew and moves on to a new group; what its broker said before comes again."""
    with Scene() as scene:
        epoch = _register(scene, "b1")
        other = _register(scene, "b2")
        for _ in range(40):  # so that the log is longer than that of the new group
            scene.ask(scene.two, lambda client: client.kv.put("ns", "k", b""))

        def take(broker: str, epoch: int) -> int:
            taken = scene.ask(scene.one, lambda client: client.sessions.takeover(broker, epoch, "t", "c"))
            return int(taken.attachment)

        def leave(attachment: int, interval_s: int = 600) -> str:
            async def disconnect(client: Client) -> str:
                try:
                    await client.sessions.disconnect(
                        "b1", epoch, "t", "c", expiry_interval_s=interval_s, attachment=attachment
                    )
                except MetadError as error:
                    return error.name
                return ""

            return str(scene.ask(scene.one, disconnect))

        past = [take("b1", epoch)]

        def check() -> None:
            """It comes back to the broker. What that said of earlier connections changes nothing."""
            last = take("b1", epoch)
            assert [leave(attachment) for attachment in past] == ["conflict"] * len(past), "a late word was heard"
            found = scene.ask(scene.two, lambda client: client.sessions.get("t", "c"))
            assert found.connected
            past.append(last)

        take("b2", other)
        check()
        assert leave(past[-1]) == ""
        check()
        assert leave(past[-1], 0) == ""
        check()
        scene.ask(scene.one, lambda c: c.cluster.add_group("data"))
        scene.require_settled(20.0)
        scene.move(0, 1)
        check()
        assert leave(past[-1]) == ""


@scenario
def a_silent_broker_is_fenced_and_one_that_is_heard_of_is_not() -> None:
    """Its sessions are untouched, and it writes nothing any more."""
    with Scene() as scene:
        dead, alive = _register(scene, "dead", _LEASE_MS), _register(scene, "alive", _LEASE_MS)
        assert set(_take_all(scene, "dead", dead).values()) == {""}
        for _ in range(6):
            scene.run(0.5)
            beat = _asked(scene, BROKER_HEARTBEAT, b.BrokerHeartbeat([b.BrokerBeat("alive", alive)]))
            assert beat.errors == []
        states = [record.state for record in _asked(scene, BROKER_GET, b.BrokerGet(["dead", "alive"])).brokers]
        assert states == ["fenced", "active"]
        _check_zombie(scene, "dead", dead)


@scenario
def who_gets_a_snapshot_knows_the_fences() -> None:
    """It has not seen the entries that raised them."""
    small = StorageConfig(engine="memory", log_retained_bytes=500)
    raft = RaftConfig(election_timeout_ms=300, heartbeat_ms=50, sleep_after_ms=500, log_cache_bytes=1)
    with Scene(storage=small, raft=raft) as scene:
        busy = {scene.lead(group).name for group in (METADATA, DATA)}
        late = next(name for name in scene.nodes if name not in busy)
        scene.isolate(late)
        first = _register(scene, "b1")
        _register(scene, "b1")
        assert set(_take_all(scene, "b2", 1).values()) == {""}
        scene.catch_up_by_snapshot()
        scene.transfer(late)
        _check_zombie(scene, "b1", first)


@scenario
def the_next_leader_goes_on_with_a_fence() -> None:
    """The leader of the metadata dies between the write that ends a life and the fences."""
    with Scene(nodes=5, data=2) as scene:
        first = _register(scene, "b1")
        leader = scene.lead(METADATA)
        assert leader.node is not None
        _once_written(scene, leader, lambda: leader.crash(power=False))
        assert leader.process is not None
        leader.process.start(leader.node.requests.call(BROKER_FENCE, b.BrokerFence("b1")))
        assert scene.run_until(lambda: leader.node is None, 10.0), "it was not written"

        def everywhere() -> bool:
            (record,) = _asked(scene, BROKER_GET, b.BrokerGet(["b1"])).brokers
            assert record.state == "fenced"
            return bool(record.fenced)

        assert scene.run_until(everywhere, 15.0), "nobody goes on"
        _check_zombie(scene, "b1", first)


def _once_written(scene: Scene, leader: SimNode, what: Callable[[], None]) -> None:
    """Do something as soon as this leader of the metadata has applied the next entry."""

    def look(name: str, applied: GroupId, _: int) -> None:
        if applied == METADATA and name == leader.name:
            scene.on_applied.remove(look)
            scene.loop.call_soon(what, context=scene.loop.outside)

    scene.on_applied.append(look)


@scenario
def a_new_leader_fences_nobody_who_could_not_reach_it() -> None:
    """While there is no leader of the metadata nobody can be heard of. The next one gives everybody a whole lease."""
    with Scene() as scene:
        epoch = _register(scene, "b1", _LEASE_MS)
        scene.run(1.5)
        leader = scene.lead(METADATA)
        leader.crash(power=False)
        scene.run(_LEASE_MS / 1000 - 0.3)
        beat = _asked(scene, BROKER_HEARTBEAT, b.BrokerHeartbeat([b.BrokerBeat("b1", epoch)]))
        assert beat.errors == [], "a broker was fenced although nobody could hear of it"


@scenario
def who_was_ended_while_its_lease_ran_is_quiet_a_whole_lease_after_a_change_of_leaders() -> None:
    """The new leader does not know when the one before has acknowledged its last heartbeat. Then all groups know."""
    with Scene(data=2) as scene:
        first = _register(scene, "b1", 4_000)
        _register(scene, "b1")
        groups = [METADATA, DATA, GroupId("data", 1)]

        def know_it() -> list[bool]:
            machines = [node.groups.drivers[group].machine for group, node in _leading(scene, groups)]
            return [machine.parts[Fences].quiet("b1", first) for machine in machines]

        scene.run(3.0)
        scene.lead(METADATA).crash(power=False)
        assert scene.run_until(lambda: scene.leader(METADATA) is not None, 10.0)
        scene.run(2.5)
        assert not any(know_it()), "it may serve"
        assert scene.run_until(lambda: all(know_it()), 10.0), "not all groups were told"


def _leading(scene: Scene, groups: list[GroupId]) -> list[tuple[GroupId, Node]]:
    found = [(group, scene.lead(group).node) for group in groups]
    return [(group, node) for group, node in found if node is not None]


@scenario
def the_life_in_the_head_of_a_request_counts() -> None:
    """Writes that name no broker in their body are made in the name of one as well."""
    with Scene() as scene:
        first = _register(scene, "b1")
        second = _register(scene, "b1")
        leader = scene.lead()
        for epoch, refused in ((first, True), (second, False)):
            assert _is_refused(scene, leader, m.Owner("b1", epoch)) == refused
        assert scene.get(scene.two, "a") == (b"1", 1)


_PUTS: dict[GroupId, tuple[Method[Any, Any], Any]] = {
    DATA: (KV_PUT, m.KvPut([m.KvPutItem("space", "a", b"1")])),
    GroupId("metadata", 1): (
        TOPIC_SETTINGS.plain.put,
        m.TablePut(TOPIC_SETTINGS.number, 5, [m.TablePutItem(TopicSettings("acme", "t"))]),
    ),
}


def _is_refused(scene: Scene, leader: SimNode, life: m.Owner, *more: m.Feature, group: GroupId = DATA) -> bool:
    """Whether a write to a group in the name of a life is."""
    method, body = _PUTS[group]
    payload = method.encode_request(body, group=group.name, requires=int(sum(more, m.Feature.LIVES)), life=life)
    answers: list[Any] = []
    assert leader.node is not None
    leader.node.requests.submit(method.code, payload, answers.append)
    assert scene.run_until(partial(bool, answers), 10.0)
    return isinstance(answers[0], FencedError)


@scenario
def a_zombie_of_a_broker_that_is_forgotten_writes_nothing() -> None:
    """Names run out, so a broker that ended is forgotten in every group. Its sessions look disconnected by then, its
    name may be taken again, and neither a living broker nor one that has just ended is forgotten."""
    with (
        Scene(data=2) as scene,
        mock.patch.multiple(fencing, FORGET_FROM=3 * fencing.NAME_BYTES, FORGET_AFTER_MS=5_000),
    ):
        living = _register(scene, "living")
        first = _register(scene, "old", _LEASE_MS)
        assert set(_take_all(scene, "old", first).values()) == {""}
        _asked(scene, BROKER_FENCE, b.BrokerFence("old", wait_ms=10_000))
        scene.run(6.0)
        _asked(scene, BROKER_FENCE, b.BrokerFence("young", _register(scene, "young"), wait_ms=10_000))

        def names() -> list[str]:
            _register(scene, "living_too")
            return [record.broker for record in _asked(scene, BROKER_LIST, b.BrokerList()).found]

        assert scene.run_until(lambda: "old" not in names(), 20.0), "it is not forgotten"
        assert names() == ["living", "living_too", "young"]
        leader = scene.lead()
        assert leader.node is not None
        known = leader.node.groups.drivers[DATA].machine.parts[Fences]
        assert known.of("old") is None, "the group keeps the fence"
        assert _is_refused(scene, leader, m.Owner("old", first), m.Feature.REGISTERED), "a zombie has written"
        assert not _is_refused(scene, leader, m.Owner("living", living), m.Feature.REGISTERED)
        assert not any(found.connected for found in scene.ask(scene.two, _sessions, 20.0) if found is not None)
        assert _register(scene, "old") > first


@scenario
def a_broker_whose_sessions_are_not_swept_is_not_forgotten() -> None:
    """Its sessions look connected by their rows; without the fence they would be so for ever."""
    with (
        Scene(expiry=ExpiryConfig(sessions_per_s=2, batch_sessions=1)) as scene,
        mock.patch.multiple(fencing, FORGET_FROM=1, FORGET_AFTER_MS=0),
    ):
        first = _register(scene, "old", _LEASE_MS)
        assert set(_take_all(scene, "old", first).values()) == {""}
        _asked(scene, BROKER_FENCE, b.BrokerFence("old", wait_ms=10_000))
        scene.run(_LEASE_MS / 1000 + 0.5)  # it is quiet
        for _ in range(3):
            _register(scene, "living")
            scene.run(0.5)
            found = scene.ask(scene.two, _sessions, 20.0)
            assert not any(session.connected for session in found if session is not None), "nobody will ever notice"

        def gone() -> bool:
            _register(scene, "living")
            return [record.broker for record in _asked(scene, BROKER_LIST, b.BrokerList()).found] == ["living"]

        assert scene.run_until(gone, 60.0), "it is never forgotten"


# --- evidence of a death ---------------------------------------------------------------------------------

_PORT = 1883
_LONG_MS = 8_000
_SOON_S = GRACE_S + HEARD_S + 1.5


class _Mute:
    """What a broker says to whoever dials its port."""

    def connection_made(self, stream: Stream) -> None:
        self._stream = stream

    def data_received(self, data: bytes) -> None:
        raise AssertionError("a probe says nothing")

    def eof_received(self) -> bool | None:
        return None

    def pause_writing(self) -> None:
        """Nothing is written."""

    def resume_writing(self) -> None:
        """Nothing is written."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The probe is over."""


class _Probed:
    """A broker that lives in a client's process and has a port there, and whose life is older than its lease."""

    def __init__(self, scene: Scene, *, listens: bool = True) -> None:
        self.scene = scene
        self.sim: SimClient = scene.one
        if listens:
            scene.ask(self.sim, lambda _: self._transport.listen(self.sim.name, _PORT, _Mute))
        self.life: BrokerLife = scene.ask(
            self.sim,
            lambda c: c.brokers.register("b1", lease_s=_LONG_MS / 1000, probe_port=_PORT, wait_s=15.0),
            20.0,
        )
        scene.run(_LONG_MS / 1000 + 2.0)
        assert self.state == "active"

    @property
    def _transport(self) -> SimTransport:
        return self.scene.network.transport(self.sim.name)

    @property
    def state(self) -> str:
        """By the registry."""
        (record,) = _asked(self.scene, BROKER_GET, b.BrokerGet(["b1"])).brokers
        return str(record.state)

    def dies(self) -> None:
        """kill -9."""
        self.scene.network.crash(self.sim.process, self.sim.name, silently=False)

    def rejects(self) -> None:
        """From now on its host refuses whoever dials the port."""
        self.scene.network.reject(self.sim.name, _PORT)


@scenario
def a_broker_whose_process_dies_is_fenced_before_its_lease_is_over() -> None:
    """Its connections end, and its port refuses."""
    with Scene() as scene:
        broker = _Probed(scene)
        broker.dies()
        scene.run(_SOON_S)
        assert broker.state == "fenced", "nobody looks at the evidence"


@scenario
def a_firewall_that_rejects_ends_no_broker() -> None:
    """The broker lives and its connection is up: whatever its port says, nothing happens. Nor does it when the
    connection breaks and the broker comes back."""
    with Scene() as scene:
        broker = _Probed(scene)
        broker.rejects()
        scene.run(2 * _LONG_MS / 1000)
        assert broker.state == "active"
        for _ in range(3):
            scene.network.reset(broker.sim.name, scene.lead(METADATA).name)
            scene.run(_SOON_S)
            assert broker.state == "active", "a broker that came back was fenced"
        assert broker.life.over is None


class _Source:
    """A connection from a broker's host on which nothing comes of itself."""

    def __init__(self, host: str) -> None:
        self.host = self.holder = host
        self.principal = None


class _Frozen:
    """A broker whose process stands still: it sends nothing, opens no connection, and does not die. What it has sent
    before came from this source."""

    def __init__(self, scene: Scene, *, reached: bool = True) -> None:
        self.scene = scene
        self.source = _Source("frozen")
        self.epoch = _register(scene, "b1", _LONG_MS, _PORT)
        if reached:
            self.listens()
        self.beats(_LONG_MS / 1000 + 1.0)

    def listens(self) -> None:
        """Its host accepts connections on the port."""
        transport = self.scene.network.transport(self.source.host)
        self.scene.ask(self.scene.one, lambda _: transport.listen(self.source.host, _PORT, _Mute))

    def beats(self, seconds: float) -> None:
        """It is heard of all the while, by the leader of the metadata."""
        for _ in range(round(seconds)):
            self.beat()
            self.scene.run(1.0)

    def beat(self, source: _Source | None = None) -> None:
        """One heartbeat."""
        payload = BROKER_HEARTBEAT.encode_request(b.BrokerHeartbeat([b.BrokerBeat("b1", self.epoch)]))
        answers: list[Any] = []
        by = source or self.source
        self._at_leader(lambda node: node.requests.submit(BROKER_HEARTBEAT.code, payload, answers.append, source=by))
        assert self.scene.run_until(partial(bool, answers), 10.0)

    def ends(self, *, by_peer: bool = True) -> None:
        """Its connection is down."""
        self._at_leader(lambda node: node.brokers.ended(self.source, by_peer=by_peer))

    def _at_leader(self, what: Callable[[Node], object]) -> None:
        """In the process that leads the metadata."""
        leader = self.scene.lead(METADATA)
        assert leader.process is not None
        node = leader.node
        assert node is not None

        async def do() -> None:
            what(node)

        assert self.scene.run_until(leader.process.start(do()).done, 1.0)

    def rejects(self) -> None:
        """From now on its host refuses whoever dials the port."""
        self.scene.network.reject(self.source.host, _PORT)

    def is_fenced_after(self, seconds: float) -> bool:
        """Whether it is by then."""
        self.scene.run(seconds)
        (record,) = _asked(self.scene, BROKER_GET, b.BrokerGet(["b1"])).brokers
        return str(record.state) == "fenced"


@scenario
def a_broker_that_stands_still_is_fenced_if_all_says_that_it_is_dead() -> None:
    """That is the price: evidence is no proof. What it costs, the following scenarios show, is nothing else."""
    with Scene() as scene:
        broker = _Frozen(scene)
        broker.rejects()
        broker.ends()
        assert not broker.is_fenced_after(GRACE_S / 2), "it had no time to come back"
        assert broker.is_fenced_after(_SOON_S)


@scenario
def a_port_that_was_never_reached_ends_no_broker() -> None:
    """A firewall has rejected everything from the beginning, or the broker is behind an address translation."""
    with Scene() as scene:
        broker = _Frozen(scene, reached=False)
        broker.ends()
        assert not broker.is_fenced_after(_SOON_S), "what rejects always says nothing"
        assert broker.is_fenced_after(_LONG_MS / 1000), "silence ends it"


@scenario
def a_port_that_accepts_ends_no_broker() -> None:
    """The process is there."""
    with Scene() as scene:
        broker = _Frozen(scene)
        broker.ends()
        assert not broker.is_fenced_after(_SOON_S)
        assert broker.is_fenced_after(_LONG_MS / 1000), "silence ends it"


@scenario
def a_host_that_does_not_answer_ends_no_broker() -> None:
    """The network is cut, and nobody knows what is behind."""
    with Scene() as scene:
        broker = _Frozen(scene)
        scene.network.partition([broker.source.host], [*scene.nodes])
        broker.ends()
        assert not broker.is_fenced_after(_SOON_S)


@scenario
def a_connection_that_the_node_has_ended_ends_no_broker() -> None:
    """It is draining, or nothing came for long, or its answers were not read."""
    with Scene() as scene:
        broker = _Frozen(scene)
        broker.rejects()
        broker.ends(by_peer=False)
        assert not broker.is_fenced_after(_SOON_S)


@scenario
def another_connection_of_a_broker_speaks_for_it() -> None:
    """Only the last one that ends is evidence."""
    with Scene() as scene:
        broker = _Frozen(scene)
        broker.beat(_Source(broker.source.host))
        broker.rejects()
        broker.ends()
        assert not broker.is_fenced_after(_SOON_S)


@scenario
def a_heartbeat_in_time_cancels_the_evidence() -> None:
    """It comes on a new connection, from another host even."""
    with Scene() as scene:
        broker = _Frozen(scene)
        broker.rejects()
        broker.ends()
        scene.run(GRACE_S / 2)
        broker.beat(_Source("elsewhere"))
        assert not broker.is_fenced_after(_SOON_S)


@scenario
def a_connection_from_the_host_in_time_cancels_the_evidence() -> None:
    """Its heartbeat may be late, because the node is busy."""
    with Scene() as scene:
        broker = _Frozen(scene)
        broker.rejects()
        broker.ends()
        scene.run(GRACE_S / 2)
        transport, leader = scene.network.transport(broker.source.host), scene.lead(METADATA)
        scene.ask(scene.one, lambda _: transport.dial(leader.name, CLIENT_PORT, _Mute, 5.0))
        assert not broker.is_fenced_after(_SOON_S)


@scenario
def a_new_leader_has_no_evidence_for_a_whole_lease() -> None:
    """Connections end in a change of leaders, and brokers look for the new one."""
    with Scene() as scene:
        broker = _Frozen(scene)
        scene.lead(METADATA).crash(power=False)
        scene.run(2.0)
        broker.beat()
        scene.run(0.5)
        broker.rejects()
        broker.ends()
        assert not broker.is_fenced_after(_SOON_S)


def _connections(scene: Scene, ids: list[str]) -> dict[str, list[str]]:
    """Have each client connect to both brokers at the same instant. Client -> the brokers that believe to have it."""

    async def connect(client: Client, broker: str) -> list[Owned | BaseException]:
        return await asyncio.gather(*(client.owned(broker, 1, "t", name) for name in ids), return_exceptions=True)

    tasks = {
        broker: scene.begin(client, partial(connect, broker=broker))
        for broker, client in (("b1", scene.one), ("b2", scene.two))
    }
    assert scene.run_until(lambda: all(task.done() for task in tasks.values()), 20.0), "there is no answer"
    scene.run(1.0)
    found: dict[str, list[str]] = {name: [] for name in ids}
    for broker, task in tasks.items():
        for name, owned in zip(ids, task.result(), strict=True):
            if isinstance(owned, Owned) and owned.error is None:
                found[name].append(broker)
    return found


@scenario
def of_connections_at_one_instant_one_stays() -> None:
    """The news of the loss comes before the answer, with it, or long after it."""
    for seed in range(1, 7):
        with Scene(seed) as scene:
            scene.network.slow(scene.lead().name, scene.one.name, 60.0)  # the answers; the news comes from a follower
            for trial in range(8):
                ids = [f"{trial}-{number}" for number in range(12)]
                found = _connections(scene, ids)

                async def owners(client: Client, ids: list[str] = ids) -> list[str]:
                    sessions = await client.sessions.get_many([m.SessionKey("t", name) for name in ids])
                    return ["" if session is None else session.broker for session in sessions]

                truth = scene.ask(scene.one, owners)
                assert [*found.values()] == [[broker] for broker in truth], "a client has not one connection"
