"""Three times as much is asked of a group as its disk can do. Saturation is never failure: nobody is elected, fenced or
expired, and as much is done as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metad.config import CommitConfig, LimitsConfig, RaftConfig
from metad.node.node import Node
from metad_wire import messages as m
from metad_wire.cluster import METADATA
from metad_wire.errors import MetadError, OverloadedError
from metad_wire.methods import (
    BROKER_FENCE,
    BROKER_GET,
    BROKER_HEARTBEAT,
    BROKER_REGISTER,
    KV_PUT,
    LEASE_GRANT,
    LEASE_KEEP_ALIVE,
    SESSION_GET,
    SESSION_TAKEOVER,
    Method,
)
from metad_wire.tables import broker as b
from metad_wire.tables import lease as l

from ..cluster import DATA, SimNode
from ..host import Pace
from .scene import Scene, scenario

_TENANTS = 60
_ITEMS = 25
_TICK_S = 0.01
_PER_S = 12_000
"""Items that are asked; the disk allows a third of that, or less."""
_LEASE_MS = 2_000
_SOON_S = 0.1
"""A heartbeat is answered within this time."""


class _Line:
    """A client's connection."""

    host = holder = ""
    principal = None


class _Asked:
    """A request and its answer."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.began_s = scene.loop.now
        self.took_s = 0.0
        self.result: bytes | MetadError | None = None

    def done(self, result: bytes | MetadError) -> None:
        self.took_s = self._scene.loop.now - self.began_s
        self.result = result


class _Storm:
    """Writes of many tenants at one node that leads all, each on a connection of its own; open loop."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.lines = [_Line() for _ in range(_TENANTS)]
        self.asked = self.done = self.refused = 0
        self.others: list[object] = []
        leader = scene.lead(METADATA)
        if scene.lead(DATA) is not leader:
            scene.transfer(leader.name)
        self.leader: SimNode = leader
        self.terms = self.terms_now()
        self._stopped = False

    def terms_now(self) -> dict[str, int]:
        """Of the groups, as the leader knows them."""
        assert self.leader.node is not None
        return {group.name: driver.group.term for group, driver in self.leader.node.drivers.items()}

    def at(self, what: Callable[[Node], object]) -> None:
        """In the leader's process."""
        node, process = self.leader.node, self.leader.process
        assert node is not None
        assert process is not None

        async def do() -> None:
            what(node)

        process.start(do())

    def ask(self, method: Method[Any, Any], body: Any, group: str = "") -> _Asked:
        """On the connection of one that asks much."""
        asked = _Asked(self.scene)
        payload = method.encode_request(body, 10_000, None, group)
        self.at(lambda node: node.requests.submit(method.code, payload, asked.done, source=self.lines[0]))
        return asked

    def reply(self, method: Method[Any, Any], body: Any, group: str = "", within_s: float = 5.0) -> Any:
        """The answer, which comes in time."""
        asked = self.ask(method, body, group)
        assert self.scene.run_until(lambda: asked.result is not None, 10.0), f"{method.name}: there is no answer"
        assert isinstance(asked.result, bytes), f"{method.name}: {asked.result!r}"
        assert asked.took_s <= within_s, f"{method.name} took {asked.took_s:.3f} s"
        return method.decode_reply(asked.result)

    def begin(self) -> None:
        """From now on until :meth:`end`."""
        self.at(self._tick)

    def end(self) -> None:
        """No more."""
        self._stopped = True

    def _tick(self, node: Node) -> None:
        if self._stopped:
            return
        for _ in range(round(_PER_S * _TICK_S / _ITEMS)):
            self.asked += 1
            tenant = self.asked % _TENANTS
            items = [m.KvPutItem(f"tenant-{tenant}", f"{self.asked}-{at}", bytes(100)) for at in range(_ITEMS)]
            payload = KV_PUT.encode_request(m.KvPut(items), 5_000, None, DATA.name)
            node.requests.submit(KV_PUT.code, payload, self._answered, source=self.lines[tenant])
        self.scene.loop.call_later(_TICK_S, self._tick, node)

    def _answered(self, result: bytes | MetadError) -> None:
        if isinstance(result, bytes):
            self.done += 1
        elif isinstance(result, OverloadedError):
            self.refused += 1
        else:
            self.others.append(result)

    def goodput(self, seconds: float, meanwhile: Callable[[], None]) -> float:
        """Items per second that are done in so many seconds; every half second something else is."""
        done, began_s = self.done, self.scene.loop.now
        for _ in range(round(2 * seconds)):
            self.scene.run(0.5)
            meanwhile()
        return (self.done - done) * _ITEMS / (self.scene.loop.now - began_s)


def _scene(**settings: Any) -> Scene:
    return Scene(pace=Pace(fsync=(0.02, 0.03)), limits=LimitsConfig(queue_ms=500), **settings)


@scenario
def at_three_times_the_capacity_nobody_is_elected_fenced_or_expired() -> None:
    """And heartbeats are answered in time, on the very connections that ask for too much."""
    with _scene(commit=CommitConfig(entry_items_max=50, pipeline_entries_max=2)) as scene:
        storm = _Storm(scene)
        dead = storm.reply(BROKER_REGISTER, b.BrokerRegister("dead", 600_000)).broker_epoch
        epoch = storm.reply(BROKER_REGISTER, b.BrokerRegister("alive", _LEASE_MS)).broker_epoch
        key = l.LeaseKey("locks", "one")
        grant = l.LeaseGrant([l.LeaseGrantItem("locks", _LEASE_MS, "one")])
        assert storm.reply(LEASE_GRANT, grant, DATA.name).errors == []
        owner = m.SessionTakeover("alive", epoch, [m.SessionTakeoverItem("t", "c")])
        storm.reply(SESSION_TAKEOVER, owner, DATA.name)
        assert dead

        def lives() -> None:
            beat = b.BrokerHeartbeat([b.BrokerBeat("alive", epoch)])
            assert storm.reply(BROKER_HEARTBEAT, beat, within_s=_SOON_S).errors == []
            kept = storm.reply(LEASE_KEEP_ALIVE, l.LeaseKeepAlive([key]), DATA.name, within_s=_SOON_S)
            assert kept.ttl_ms == [_LEASE_MS], f"the lease is gone: {kept}"

        storm.begin()
        before = storm.goodput(4.0, lives)
        during = storm.goodput(6.0, lives)
        assert storm.refused > 2 * storm.done, f"no overload: {storm.refused} refused, {storm.done} done"
        assert storm.others == [], storm.others[:3]
        assert during >= 0.9 * before, f"{during:.0f} a second after {before:.0f}"
        began_s = scene.loop.now
        storm.reply(BROKER_FENCE, b.BrokerFence("dead"))

        def fenced() -> bool:
            (record,) = storm.reply(BROKER_GET, b.BrokerGet(["dead"])).brokers
            return bool(record.state == "fenced" and record.fenced)

        assert scene.run_until(fenced, 10.0)
        took_s = scene.loop.now - began_s
        assert took_s < 0.5, f"a fence waited for {took_s:.3f} s"
        assert storm.terms_now() == storm.terms, "there was an election"
        (alive,) = storm.reply(BROKER_GET, b.BrokerGet(["alive"])).brokers
        assert alive.state == "active"
        (session,) = storm.reply(SESSION_GET, SESSION_GET.body([m.SessionKey("t", "c")]), DATA.name).found
        assert session is not None
        assert session.connected
        storm.end()


@scenario
def after_a_stall_of_the_disk_as_much_is_done_as_before() -> None:
    """What is learnt of a group while it stands still must not keep everybody out for ever."""
    patient = RaftConfig(election_timeout_ms=6_000, heartbeat_ms=50, sleep_after_ms=8_000)
    with _scene(raft=patient, commit=CommitConfig(entry_items_max=100, pipeline_entries_max=1)) as scene:
        storm = _Storm(scene)
        storm.begin()
        before = storm.goodput(4.0, lambda: None)
        assert storm.refused > storm.done, f"no overload: {storm.refused} refused, {storm.done} done"
        for sim in scene.nodes.values():
            assert sim.environment is not None
            sim.environment.hang_disk()
        assert storm.goodput(4.0, lambda: None) < before / 2, "nothing stands still"
        for sim in scene.nodes.values():
            assert sim.environment is not None
            assert sim.process is not None
            sim.process.context.run(sim.environment.unhang_disk)
        storm.goodput(2.0, lambda: None)
        after = storm.goodput(4.0, lambda: None)
        assert after >= 0.8 * before, f"{after:.0f} a second after {before:.0f}"
        assert storm.terms == storm.terms_now(), "there was an election"
        storm.end()
