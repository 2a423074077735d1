"""What happens to simulated replicas: clients that ask, and faults. Each seed draws its own mix, so that a run is rich
in a few things instead of having a little of everything."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from metad.raft.base import Timing
from metad.raft.log.journal import DISK_ELECTIONS
from metad.raft.roles.membership import ChangeRefusedError
from metad_judge.invariants import Violation
from metad_judge.linearizability import Operation

from ..faults import Faults, Weighted
from .machine import Command
from .network import Link
from .world import Settings, SimNode, World

_LOOK_S = 0.1
_HAND_OVER_S = 1.0
"""Beyond what it takes to tell a disk that hangs from a slow one."""
_SAMPLED = 16
"""Of the reads of a flood, every so manyth is in the history. All are held to what was acknowledged before."""


@dataclass(slots=True)
class _Call:
    """One operation of a client, as it turns out."""

    key: tuple[bytes, str]
    kind: str
    argument: Any
    invoked: int
    returned: int | None = None
    result: Any = None
    open: bool = True
    happened: bool = True
    """False: it certainly did not."""


class Client:
    """Asks one thing at a time, of whom it takes for the leader; gives up after a while and goes on."""

    def __init__(self, chaos: Chaos, name: str, rng: random.Random, think_s: float) -> None:
        self._chaos = chaos
        self._world = chaos.world
        self._name = name
        self._rng = rng
        self._think_s = think_s
        self._loyalty = rng.choice([0.0, 0.7, 0.97])
        self._reads = rng.choice([1, 5, 1000])
        self._asked = 0
        self._leader: str | None = None
        self._seen: dict[tuple[bytes, str], Any] = {}
        self._next()

    def _next(self) -> None:
        self._world.clock.call_later(self._rng.expovariate(1 / self._think_s), self._ask)

    def _ask(self) -> None:
        chaos, rng, world = self._chaos, self._rng, self._world
        if chaos.over:
            return
        node = world.nodes.get(self._leader or "") if rng.random() < self._loyalty else None
        if node is None or not node.up:
            node = self._somebody()
            self._leader = node.name
            if not node.up:
                self._leader = None
                self._next()
                return
        self._asked += 1
        key = (rng.choice(world.groups), rng.choice(chaos.keys))
        kind = rng.choices(
            ["get", "put", "compare_and_set", "get_and_set", "delete"], [self._reads, 3, 2, 2, 0.3]
        )[0]  # fmt: skip
        identity = f"{self._name}.{self._asked}"
        argument: Any = identity
        if kind == "get" or kind == "delete":
            argument = None
        elif kind == "compare_and_set":
            argument = (self._seen.get(key), identity)
        chaos.moment += 1
        call = _Call(key, kind, argument, chaos.moment)
        chaos.calls.append(call)
        delay = rng.uniform(*world.settings.link.delay)
        node.later(delay, self._arrive, node, node.life, call, identity)
        world.clock.call_later(chaos.give_up_s, lambda: self._give_up(call))

    def _somebody(self) -> SimNode:
        """Half of the time one that says it leads: there may be several."""
        nodes = list(self._world.nodes.values())
        if self._rng.random() < 0.5:
            nodes = [node for node in nodes if any(h.group.is_leader for h in node.hosted.values())] or nodes
        return self._rng.choice(nodes)

    def _arrive(self, node: SimNode, life: int, call: _Call, identity: str) -> None:
        world = self._world
        group, key = call.key

        def tell(outcome: str, result: Any) -> None:
            delay = self._rng.uniform(*world.settings.link.delay)
            world.clock.call_later(delay, lambda: self._told(call, outcome, result))

        if world.tracing:
            node.trace(f"is asked {identity}: {call.kind} {key} {call.argument}")
        if call.kind == "get":
            node.read(group, key, tell)
        else:
            node.propose(group, Command(identity, call.kind, key, call.argument), tell)

    def _told(self, call: _Call, outcome: str, result: Any) -> None:
        if outcome == "refused":
            call.happened = False
        if not call.open:
            return
        if self._world.tracing:
            self._world.trace(f"{self._name} hears of {call.kind} {call.argument}: {outcome} {result}")
        call.open = False
        if outcome == "done":
            self._chaos.moment += 1
            self._chaos.answered += 1
            call.returned = self._chaos.moment
            call.result = result
            if call.kind in ("get", "get_and_set"):
                self._seen[call.key] = result if call.kind == "get" else call.argument
        else:
            self._leader = None
        self._next()

    def _give_up(self, call: _Call) -> None:
        if call.open:
            call.open = False
            self._leader = None
            self._next()


class Chaos(Faults[SimNode]):
    """The clients and faults of one run."""

    power_share = 0.75
    pauses_s = (0.05, 0.2, 0.7, 2.0)
    heals_s = (0.05, 0.3, 1.2, 2.0)

    def __init__(self, world: World, rng: random.Random, *, wide: bool = False) -> None:
        super().__init__(rng, rng.choice([0.15, 0.5, 1.2]))
        self.world = world
        self.moment = 0
        self.answered = 0
        self.calls: list[_Call] = []
        self._written = 0
        self.changes = 0
        self.transfers = 0
        timings = world.settings.timings
        longest_s = max((timing.election_s for timing in timings.values()), default=0.0)
        # Whoever is patient is seldom elected; handed a group, it holds the longest lease.
        self._patient = [name for name, timing in timings.items() if timing.election_s == longest_s] * 3
        self.keys = ["a", "b", "c"][: rng.randint(1, 3)]
        self.give_up_s = rng.choice([0.2, 1.0])
        think_s = rng.choice([0.005, 0.02, 0.06])
        self.clients = [
            Client(self, f"c{number}", random.Random(rng.getrandbits(64)), think_s)
            for number in range(1, rng.randint(3, 5) + 1)
        ]
        faults: list[Weighted] = [
            (self.crash, 4),
            (self.crash_leader, 1.5),
            (self.blackout, 0.4),
            (self.pause, 2),
            (self._partition, 2),
            (self._isolate_leader, 3),
            (self._reject, 2),
            (self._cut_one_way, 1.5),
            (self._reset, 1),
            (self._slow_disk, 1),
            (self._transfer, 2),
        ]
        self._faults = [(fault, weight) for fault, weight in faults if rng.random() < 0.6]
        if world.settings.spares or rng.random() < 0.3:
            self._faults.append((self._change, rng.choice([1.0, 5.0])))
        if self._patient:
            self._faults.append((self._transfer, 3))
        if wide:
            more: list[Weighted] = [
                (self._flood, 1.0),
                (self._flood_a_minority, 1.5),
                (self._hang_disk, 1.5),
                (self._suspend, 2.0),
                (self._reconfigure, 1.5),
                (self._bury, 1.0),
            ]
            self._faults += [(fault, weight) for fault, weight in more if rng.random() < 0.6]
        self.begin()

    def history(self) -> list[Operation]:
        """What the clients saw."""
        return [
            Operation(c.key, c.kind, c.argument, c.result, c.invoked, c.returned)  # type: ignore[arg-type]
            for c in self.calls
            if c.happened and (c.kind != "get" or c.returned is not None)
        ]

    def end(self) -> None:
        """No more questions, no more faults, and everything works again."""
        world = self.world
        self.over = True
        world.trace("all faults are over")
        world.network.heal()
        link = world.settings.link
        world.network.shape(Link(delay=link.delay, silent=not link.connected))
        world.calm = True
        for node in world.nodes.values():
            node.disk_slow_until = 0.0
            node.unhang_disk()
            if not node.up:
                node.start()

    # --- faults ------------------------------------------------------------------------------------------

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """See :class:`Faults`."""
        self.world.clock.call_later(seconds, what)

    def everybody(self) -> list[SimNode]:
        """See :class:`Faults`."""
        return list(self.world.nodes.values())

    def leader(self) -> SimNode | None:
        """See :class:`Faults`."""
        name = self.world.leader(self._rng.choice(self.world.groups))
        return None if name is None else self.world.nodes[name]

    def heal(self) -> None:
        """See :class:`Faults`."""
        self.world.trace("every link is whole again")
        self.world.network.heal()

    def _partition(self) -> None:
        names = list(self.world.nodes)
        self._rng.shuffle(names)
        side = names[: self._rng.randint(1, len(names) - 1)]
        self.world.trace(f"{side} are cut off")
        self.world.network.partition(side)
        self.heal_later()

    def _isolate_leader(self) -> None:
        if leader := self.leader():
            leader.trace("is isolated")
            self.world.network.isolate(leader.name)
            self.heal_later()

    def _reject(self) -> None:
        """A firewall rejects who dials a leader, or whom the leader dials, or some of them: all live."""
        rng, network = self._rng, self.world.network
        if leader := self.leader():
            names = [name for name in self.world.nodes if name != leader.name]
            rejected = names if rng.random() < 0.5 else rng.sample(names, rng.randint(1, len(names)))
            leader.trace(f"is behind a firewall, away from {rejected}")
            for name in rejected:
                network.reject(name, leader.name)
                if rng.random() < 0.5:
                    network.reject(leader.name, name)
            if rng.random() < 0.5:
                self._ask_many(leader, rng.choice(self.world.groups), 0.003)
            self.heal_later()

    def _cut_one_way(self) -> None:
        one, other = self._rng.sample(list(self.world.nodes), 2)
        self.world.trace(f"{one} cannot reach {other}")
        self.world.network.cut(one, other)
        self.heal_later()

    def _reset(self) -> None:
        one, other = self._rng.sample(list(self.world.nodes), 2)
        self.world.network.reset(one, other)

    def _slow_disk(self) -> None:
        if up := self.up():
            node = self._rng.choice(up)
            node.trace("has a slow disk")
            node.disk_slow_until = self.world.clock.now + self._rng.uniform(0.1, 1.5)

    # --- of wide runs ---

    def _flood(self) -> None:
        """Hundreds of reads, one right after the other."""
        if leader := self.leader():
            self._ask_many(leader, self._rng.choice(self.world.groups), self._rng.choice([0.0003, 0.001, 0.003]))

    def _ask_many(self, leader: SimNode, group: bytes, every_s: float) -> None:
        rng = self._rng
        reads = rng.randint(100, 700)
        leader.trace(f"is asked {reads} reads")
        life, node = leader.life, leader

        def ask(left: int) -> None:
            if self.over or not node.up or node.life != life or not node.leads(group):
                return
            key = rng.choice(self.keys)
            if left % _SAMPLED:
                node.run(life, node.read, group, key, lambda outcome, result: None)
            else:
                self._sample(node, group, key)
            if left:
                self.later(every_s * rng.uniform(0.5, 1.5), lambda: ask(left - 1))

        ask(reads)

    def _write(self, node: SimNode, group: bytes, then: Callable[[], None]) -> None:
        """A write that is in the history, and what follows once it is acknowledged."""
        self._written += 1
        self.moment += 1
        identity, key = f"chaos.{self._written}", self._rng.choice(self.keys)
        call = _Call((group, key), "put", identity, self.moment)
        self.calls.append(call)

        def tell(outcome: str, result: Any) -> None:
            call.open, call.happened = False, outcome != "refused"
            if outcome == "done":
                self.moment += 1
                self.answered += 1
                call.returned = self.moment
                then()

        node.run(node.life, node.propose, group, Command(identity, "put", key, identity), tell)

    def _sample(self, node: SimNode, group: bytes, key: str) -> None:
        """A read that is in the history."""
        self.moment += 1
        call = _Call((group, key), "get", None, self.moment)
        self.calls.append(call)

        def tell(outcome: str, result: Any) -> None:
            call.open = False
            if outcome == "done":
                self.moment += 1
                self.answered += 1
                call.returned, call.result = self.moment, result

        node.run(node.life, node.read, group, key, tell)

    def _flood_a_minority(self) -> None:
        """A leader is cut off with as many as cannot decide, and is read from."""
        rng, world = self._rng, self.world
        group = rng.choice(world.groups)
        name = world.leader(group)
        if name is None:
            return
        configuration = world.group(name, group).configuration
        followers = [voter for voter in configuration.voters if voter != name]
        side = [name, *rng.sample(followers, max(0, min(len(followers), configuration.quorum() - 2)))]
        side += [learner for learner in configuration.learners if rng.random() < 0.7]
        world.trace(f"{side} are cut off")
        world.network.partition(side)
        self._ask_when_deposed(world.nodes[name], group, world.clock.now + 4.0)
        self.later(rng.uniform(1.0, 5.0), self.heal)

    def _ask_when_deposed(self, old: SimNode, group: bytes, until_s: float) -> None:
        """Once another leads and has acknowledged a write, ask the one that led before, as long as it believes that it
        still does."""
        world = self.world
        name = world.leader(group)
        if self.over or world.clock.now > until_s or name is None or not old.leads(group):
            return
        if name == old.name:
            self.later(0.02, lambda: self._ask_when_deposed(old, group, until_s))
            return
        self._write(world.nodes[name], group, lambda: self._ask_many(old, group, self._rng.choice([0.0002, 0.0005])))

    def _hang_disk(self) -> None:
        """An fsync does not end for seconds, and the rest of the node runs."""
        leader = self.leader() if self._rng.random() < 0.6 else None
        up = self.up()
        if leader is None and not up:
            return
        node = leader or self._rng.choice(up)
        node.hang_disk()
        life = node.life
        over_s = self.world.clock.now + self._rng.uniform(0.5, 8.0)
        self.later(over_s - self.world.clock.now, node.unhang_disk)
        for group in self.world.groups:
            self._require_hand_over(node, life, group, over_s, 0.0, (0, 0))

    def _require_hand_over(
        self, node: SimNode, life: int, group: bytes, over_s: float, waits_s: float, leadership: tuple[int, int]
    ) -> None:
        """Nobody leads for long whose disk lacks what a majority of others has."""
        now_s = self.world.clock.now
        hosted = node.hosted.get(group)
        if self.over or hosted is None or node.life != life or now_s > over_s or not node.disk_hangs:
            return
        replica = hosted.group
        same = (replica.term, replica.log.durable_index)
        others = [v for v, p in replica.peers.items() if p.match > replica.log.durable_index]
        voters = replica.configuration
        go_on = len(set(others).intersection(voters.voters)) >= voters.quorum()
        waits = replica.is_leader and go_on and node.paused_until < now_s - _LOOK_S
        waits_s = waits_s + _LOOK_S if waits and same == leadership else 0.0
        if waits_s > DISK_ELECTIONS * node.replicas.timing.election_s + _HAND_OVER_S:
            raise Violation("disks that hang", f"{node.name} leads on, and has applied nothing for {waits_s:.1f} s")
        self.later(_LOOK_S, lambda: self._require_hand_over(node, life, group, over_s, waits_s, same))

    def _suspend(self) -> None:
        """A machine sleeps, at best one that leads: nothing reaches it, and when it wakes it is asked at once."""
        rng, world = self._rng, self.world
        node = self.leader() if rng.random() < 0.7 else None
        up = self.up()
        if node is None and not up:
            return
        asleep = node or rng.choice(up)
        group, life = rng.choice(world.groups), asleep.life
        seconds = rng.uniform(0.3, 3.0)
        world.network.isolate(asleep.name)
        asleep.suspend(seconds)

        def wake() -> None:
            for key in self.keys:
                if asleep.up and asleep.life == life:
                    self._sample(asleep, group, key)

        self.later(seconds, wake)
        self.later(seconds + rng.uniform(0.0, 0.3), self.heal)

    def _reconfigure(self) -> None:
        """A node starts again, more or less patient than it was."""
        timings = self.world.settings.timings
        if up := [node for node in self.up() if node.name in timings]:
            node = self._rng.choice(up)
            election_s = self._rng.choice([0.3, 0.6, 1.8])
            self.world.timings[node.name] = parted(timings[node.name]._replace(election_s=election_s), self._rng)
            self._down(node)

    def _bury(self) -> None:
        """A node is gone for so long that nobody waits for it."""
        if up := self.up():
            node = self._rng.choice(up)
            node.crash(power=self._rng.random() < self.power_share)

            def wake() -> None:
                if not node.up:
                    node.start()

            self.later(self._rng.uniform(2.0, 8.0), wake)

    def _transfer(self) -> None:
        leader, group = self.leader(), self._rng.choice(self.world.groups)
        if leader is None or (hosted := leader.hosted.get(group)) is None:
            return
        target = self._rng.choice([*self.world.nodes, *self._patient])
        leader.trace(f"is asked to hand over to {target}")
        try:
            hosted.group.transfer(target)
            self.transfers += 1
        except ChangeRefusedError:
            return

    def _change(self) -> None:
        """Add, promote or remove a replica. Not always at the newest leader: an old one must do no harm."""
        rng, world = self._rng, self.world
        group = rng.choice(world.groups)
        leaders = [node for node in self.up() if (h := node.hosted.get(group)) is not None and h.group.is_leader]
        if not leaders:
            return
        leader = rng.choice(leaders)
        replica = leader.hosted[group].group
        configuration = replica.configuration
        outside = [name for name in world.nodes if name not in configuration.members]
        choices: list[tuple[str, str]] = [("add", name) for name in outside]
        choices += [("promote", name) for name in configuration.learners] * 4
        if len(configuration.voters) > (1 if rng.random() < 0.1 else 2):
            choices += [("remove", name) for name in configuration.members]
        if not choices:
            return
        what, name = rng.choice(choices)
        leader.trace(f"is asked to {what} {name}")
        node = world.nodes[name]
        try:
            if what == "add":
                replica.add_learner(name)
                if group in node.initial and rng.random() < 0.5 and world.forgotten(group, name):
                    node.leave(group)
                if group not in node.initial:
                    node.join(group)
            elif what == "promote":
                replica.promote(name)
            else:
                replica.remove(name)
            self.changes += 1
        except ChangeRefusedError:
            return


def parted(timing: Timing, rng: random.Random) -> Timing:
    """With a promise between a heartbeat and the election timeout, or as long as that."""
    shortest_s = min(1.5 * timing.heartbeat_s, timing.election_s)
    lease_s = rng.choice([timing.election_s, max(shortest_s, timing.election_s / 3), shortest_s])
    return timing._replace(lease_s=lease_s, step_down_s=rng.choice([lease_s, timing.election_s, 2 * timing.election_s]))


def draw(rng: random.Random, nodes: int, *, wide: bool = False) -> Settings:
    """A cluster of its own for a seed. ``wide``: with learners, and nodes that are configured in different ways."""
    delay = rng.choice([(0.0002, 0.002), (0.001, 0.01), (0.005, 0.05)])
    if rng.random() < 0.6:
        link = Link(delay=delay, loss=rng.choice([0.0, 0.0, 0.003, 0.01]))
    else:
        link = Link(
            delay=delay,
            loss=rng.choice([0.0, 0.02, 0.1]),
            duplication=rng.choice([0.0, 0.02, 0.1]),
            reorder=rng.choice([0.0, 0.05, 0.2]),
            reorder_delay=(0.0, rng.choice([0.05, 0.5])),
            silent=True,
        )
    timing = Timing(
        election_s=0.6,
        heartbeat_s=rng.choice([0.05, 0.1, 0.2]),
        # Who sleeps relies on being told that a connection is over.
        sleep_after_s=1e9 if link.silent else rng.choice([0.25, 1.0, 1e9]),
    )
    timing = parted(timing, rng)
    spares = rng.choice([1, 2]) if wide else rng.choice([0, 0, 1, 2])
    timings = {}
    if wide and rng.random() < 0.5:
        patient = rng.randint(1, nodes)
        for number in range(1, nodes + spares + 1):
            election_s = 1.8 if number == patient else rng.choice([0.3, 0.6])
            timings[f"n{number}"] = parted(timing._replace(election_s=election_s), rng)
    old = [f"n{number}" for number in range(1, nodes + 1) if rng.random() < 0.5] if rng.random() < 0.2 else []
    return Settings(
        nodes=nodes,
        spares=spares,
        groups=2 if rng.random() < 0.1 else 1,
        timing=timing,
        timings=timings,
        link=link,
        fsync=rng.choice([(0.0001, 0.001), (0.001, 0.01), (0.005, 0.03)]),
        slow_fsync=rng.choice([0.0, 0.01, 0.05]),
        turn=rng.choice([(0.0, 0.0005), (0.0, 0.005)]),
        apply_at_once=rng.random() < 0.3,
        apply_entries=rng.choice([1, 5, 100]),
        compact_entries=rng.choice([1 << 30, 5, 5, 15]),
        cache_bytes=rng.choice([0, 200, 600]),
        drift=rng.choice([0.0, timing.drift]),
        uncounted=rng.random() < 0.3,
        old=frozenset(old),
    )
