"""The service stands still, and goes on: no life, lease or membership ends by it, nothing that has a deadline is over
until clients have had the time to come back, and what was ended by somebody does not go on."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from metad.config import ExpiryConfig
from metad.state.live.liveness import RESUME_S
from metad_client import (
    BrokerLife,
    Client,
    Generation,
    HeldLease,
    LeaseState,
    LifeState,
    Membership,
    SessionProperties,
    Will,
    WillKey,
)
from metad_judge.coordination import Hears
from metad_wire.cluster import METADATA, MapRequest
from metad_wire.messages import SessionKey, SessionTakeover, SessionTakeoverItem
from metad_wire.methods import CLUSTER_MAP, SESSION_TAKEOVER
from metad_wire.tables.will import WillDue

from ..cluster import DATA, SimClient
from .scene import Scene, scenario

_AMNESTY_S: Final = 4.0
_RESUMES_S: Final = 2.0
"""Everything goes on so soon after the service does."""
_AWAY_S: Final = 25
_SHORT_S: Final = 10
"""Until what is away is over: while the service stands still."""
_MANY: Final = 200
"""Items that a node looks at at once."""
_LIVES_S: Final = {"short": 0.5, "usual": 4.0}


class _WillsDue(Hears):
    """The wills that have become due, with the time."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.due: dict[str, float] = {}
        scene.written.coordination.hears.append(self)

    def will_due(self, key: WillKey, will: WillDue) -> None:
        """See Hears."""
        self.due[key.client_id] = self._scene.loop.now


class _Town:
    """Brokers with clients that are connected and that are away, a holder of a lease, and a member of a group."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.wills = _WillsDue(scene)
        self.lives: dict[str, BrokerLife] = {}
        self.lost: list[str] = []
        self._sims: dict[str, SimClient] = {}
        for name, lease_s in _LIVES_S.items():
            self._sims[name] = sim = scene.client()
            scene.ask(sim, partial(self._settle, name=name, lease_s=lease_s), 20.0)
        self.lease: HeldLease = scene.ask(scene.one, self._hold)
        self.member: Membership = scene.ask(scene.one, self._join)
        self.generation: Generation = scene.ask(scene.one, lambda _: self.member.next())
        self._id = self.member.member

    async def _settle(self, client: Client, name: str, lease_s: float) -> None:
        life = await client.brokers.register(name, lease_s=lease_s, wait_s=15.0)
        self.lives[name] = life
        life.on_state(lambda state: self.lost.append(name) if state is LifeState.LOST else None)
        for client_id, away in ((f"{name}-here", False), (f"{name}-away", True)):
            properties = SessionProperties(_SHORT_S, b"", Will("gone", b"", delay_s=_SHORT_S if away else 0))
            where = life.broker, life.epoch, "t", client_id
            await client.sessions.takeover(*where, properties=properties)
            if away:
                await client.sessions.disconnect(*where)

    async def _hold(self, client: Client) -> HeldLease:
        lease = await client.hold("space", ttl_s=1.0).opened()
        lease.on_state(lambda state: self.lost.append("lease") if state is LeaseState.LOST else None)
        await client.kv.put("space", "mine", b"1", lease=lease.name)
        return lease

    async def _join(self, client: Client) -> Membership:
        return await client.consume("t", "g", assign=lambda *_: {}, session_s=1.0).opened()

    def serves(self) -> bool:
        """Whether everybody may believe in what it has."""
        lives = all(life.state is LifeState.SERVING for life in self.lives.values())
        return lives and self.lease.state is self.member.state is LeaseState.CONNECTED

    def require_untouched(self) -> None:
        """Nothing has ended, and nothing is due."""
        assert not self.lost
        assert not self.wills.due
        ids = [f"{name}-{where}" for name in self.lives for where in ("here", "away")]
        found = self.scene.ask(self.scene.two, lambda c: c.sessions.get_many([SessionKey("t", one) for one in ids]))
        assert [None if one is None else one.connected for one in found] == [True, False] * len(self.lives)
        assert self.scene.get(self.scene.two, "mine") is not None, "the lease has ended"
        assert self.member.member == self._id, "the member was sent away"
        assert self.generation.is_current

    def require_life(self) -> None:
        """Everybody lives on, and what is away ends by and by."""
        scene = self.scene
        scene.run(3 * _AMNESTY_S)
        assert not self.lost
        assert self.serves()
        assert sorted(self.wills.due) == sorted(f"{name}-away" for name in self.lives)

        async def write(client: Client, life: BrokerLife) -> None:
            await client.sessions.takeover(life.broker, life.epoch, "t", "late")

        for name, life in self.lives.items():
            scene.ask(self._sims[name], partial(write, life=life))


def _stand_still(who: str) -> None:
    expiry = ExpiryConfig(amnesty_ms=int(1000 * _AMNESTY_S))
    with Scene(expiry=expiry) as scene:
        town = _Town(scene)
        scene.run(1.0)
        scene.stand_still(who, _AWAY_S)
        scene.run(_AWAY_S - 0.1)
        if who != "leader":  # else another leads soon
            assert {life.state for life in town.lives.values()} == {LifeState.SUSPENDED}
            assert town.lease.state is LeaseState.SUSPENDED
        scene.run(0.1)
        assert scene.run_until(town.serves, _RESUMES_S), "the service is there, and does not serve"
        if who != "leader":  # else what is away is over, as it should be
            town.require_untouched()
        town.require_life()


@scenario
def a_standstill_of_all_nodes_ends_nothing() -> None:
    """Whoever led may lead on, and has heard nobody for long."""
    _stand_still("all")


@scenario
def a_client_that_comes_first_after_a_standstill_has_its_session() -> None:
    """The node looks at what has arrived before any of its timers."""
    with Scene(nodes=1, expiry=ExpiryConfig(amnesty_ms=int(1000 * _AMNESTY_S))) as scene:
        wills = _WillsDue(scene)

        async def settle(client: Client) -> None:
            properties = SessionProperties(_SHORT_S, b"", Will("gone", b"", delay_s=_SHORT_S))
            await client.sessions.takeover("b1", 1, "t", "c", properties=properties)
            await client.sessions.disconnect("b1", 1, "t", "c")

        scene.ask(scene.one, settle)
        scene.run(2 * _AMNESTY_S)
        leader = scene.lead()
        assert leader.node is not None
        assert leader.process is not None
        scene.stand_still("all", _AWAY_S)
        scene.run(_AWAY_S - 0.01)
        items = [SessionTakeoverItem("t", name) for name in ("c", *map(str, range(_MANY)))]
        asked = SESSION_TAKEOVER.encode_request(SessionTakeover("b2", 1, items), group=DATA.name)
        answers: list[Any] = []
        leader.process.context.run(leader.node.requests.submit, SESSION_TAKEOVER.code, asked, answers.append)
        assert scene.run_until(lambda: bool(answers), _RESUMES_S)
        taken = SESSION_TAKEOVER.decode_reply(answers[0])
        assert taken.previous[0] >= 0, "its session was over before it could come"
        scene.run(_AMNESTY_S)
        assert not wills.due


@scenario
def a_standstill_of_a_majority_ends_nothing() -> None:
    """One node answers that there is no leader."""
    _stand_still("majority")


@scenario
def a_standstill_of_the_leader_of_the_metadata_ends_nothing() -> None:
    """The others elect another, and the old one comes back with what it knew."""
    _stand_still("leader")


@scenario
def a_leader_that_stood_still_names_nobody_before_it_hears_of_the_others() -> None:
    """A client that asked it was led astray: it believed the old leader for as long as it took to ask again."""
    with Scene() as scene:
        scene.run(2.0)
        leader = scene.lead(METADATA)
        assert leader.node is not None
        assert leader.process is not None
        run, submit = leader.process.context.run, leader.node.requests.submit
        group = leader.node.groups.drivers[METADATA].group
        asked = CLUSTER_MAP.encode_request(MapRequest())
        said: list[Any] = []

        def ask() -> str:
            """Whom it names in the first answer that it gives."""
            run(submit, CLUSTER_MAP.code, asked, said.append)
            return CLUSTER_MAP.decode_reply(said.pop()).leaders[METADATA.name]

        assert ask() == leader.name
        scene.stand_still("leader", _AWAY_S)
        scene.run(_AWAY_S - 0.01)
        assert group.is_leader, "it was to have heard nothing yet"
        assert ask() == ""
        assert scene.run_until(lambda: scene.lead(METADATA) is not leader, _RESUMES_S)


@scenario
def a_short_lease_lasts_until_its_holder_has_found_the_new_leader() -> None:
    """The leader dies, and the way of a broker and of a holder to the next one takes longer than their leases."""
    with Scene() as scene:
        sim = scene.client()
        life: BrokerLife = scene.ask(sim, lambda client: client.brokers.register("b1", lease_s=0.5))
        lease: HeldLease = scene.ask(sim, lambda client: client.hold("space", ttl_s=0.5).opened())
        scene.run(2.0)
        leaders = {scene.lead(METADATA), scene.lead(DATA)}
        scene.isolate(sim.name)
        for leader in leaders:
            leader.crash(power=False)
        for leader in leaders:
            leader.start()
        assert scene.lead(METADATA)
        assert scene.lead(DATA)
        scene.run(2.0)
        scene.network.heal()
        assert scene.run_until(lambda: life.state is LifeState.SERVING, 5.0), "the life has ended"
        assert scene.run_until(lambda: lease.state is LeaseState.CONNECTED, 5.0), "the lease has ended"


@scenario
def a_short_lease_lasts_until_its_holder_is_back_at_a_node_that_stood_still() -> None:
    """Their connection has ended meanwhile, and the way back takes longer than the lease."""
    with Scene(nodes=1) as scene:
        sim = scene.client()
        life: BrokerLife = scene.ask(sim, lambda client: client.brokers.register("b1", lease_s=0.5))
        scene.run(2.0)
        scene.stand_still("all", 3.0)
        scene.network.reset(sim.name, *scene.nodes)
        scene.isolate(sim.name)
        scene.run(3.0 + 2.0)
        scene.network.heal()
        assert scene.run_until(lambda: life.state is LifeState.SERVING, 5.0), "the life has ended"


@scenario
def a_life_that_was_fenced_while_nobody_heard_it_does_not_resume() -> None:
    """It is cut off alone, and an administrator ends it. It hears of that, and neither serves nor writes."""
    with Scene() as scene:
        sim = scene.client()
        life: BrokerLife = scene.ask(sim, lambda client: client.brokers.register("b1", lease_s=4.0))
        for node in scene.nodes:
            scene.network.cut(sim.name, node)
            scene.network.cut(node, sim.name)
        scene.ask(scene.one, lambda client: client.brokers.fence("b1"))
        told: list[LifeState] = []
        life.on_state(told.append)
        scene.run(10.0)
        assert life.state is LifeState.SUSPENDED
        scene.network.heal()
        assert scene.run_until(lambda: life.state is LifeState.LOST, 10.0), "it does not hear of its end"
        scene.run(10.0)
        assert told == [LifeState.SUSPENDED, LifeState.LOST], "it resumed after its fence"


@scenario
def a_holder_whose_lease_has_ended_does_not_resume() -> None:
    """It is cut off alone for longer than its time to live."""
    with Scene() as scene:
        sim = scene.client()
        lease: HeldLease = scene.ask(sim, lambda client: client.hold("space", ttl_s=1.0).opened())
        told: list[LeaseState] = []
        lease.on_state(told.append)
        for node in scene.nodes:
            scene.network.cut(sim.name, node)
            scene.network.cut(node, sim.name)
        scene.run(2 * RESUME_S)

        async def is_there(client: Client) -> Any:
            return await client.leases.get("space", lease.name)

        assert scene.ask(scene.one, is_there) is None
        assert lease.state is LeaseState.SUSPENDED
        scene.network.heal()
        assert scene.run_until(lambda: lease.state is LeaseState.LOST, 10.0), "it does not hear of its end"
        assert told == [LeaseState.SUSPENDED, LeaseState.LOST]


@scenario
def a_leader_without_a_quorum_ends_nobody_once_it_has_one_again() -> None:
    """It leads on, for it is patient, and what was said to the others in vain was no silence."""
    from .leases import _PATIENT

    with Scene(raft=_PATIENT) as scene:
        sim = scene.client()
        life: BrokerLife = scene.ask(sim, lambda client: client.brokers.register("b1", lease_s=1.0))
        scene.run(1.0)
        leader = scene.lead(METADATA)
        others = [name for name in scene.nodes if name != leader.name]
        scene.network.partition([leader.name], [*others, *(client.name for client in scene.clients)])
        scene.run(2.5)
        scene.network.heal()
        assert scene.run_until(lambda: life.state is LifeState.SERVING, 5.0)
        scene.run(5.0)
        assert scene.lead(METADATA) is leader
        assert life.over is None
