"""The world of a partition with in-sync replicas.

Brokers have lives. ``metadata-0`` registers and ends them, and each group of kind ``metadata`` hears of it by fences,
at any time, of the last one only. The record lives in the group that has its slot, and slots move. A leader appends,
followers fetch one record at a time, and the SDK's helper says what is acknowledged (:mod:`.broker`). There is no clock
and no lease: a life that is fenced goes on as long as it likes, so that nothing rests on time. Proposals arrive late or
never. A group looks at the record at any time after something has changed. Epochs are ranked, so that changes are
unbounded.

Kinds of steps: ``s`` the system, ``q`` silence is noticed, ``u`` and ``v`` a broker starts (``v``: one that only a move
wants), ``d`` data, ``c`` an administrator cancels the move, ``x`` whatever else there is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from metad_judge.invariants import Violation

from . import broker as b
from . import moving
from .exploring import Goal, Step
from .judging import LATE, Member, Preference, Refused, Row, Rules, Said, merged, resource

Log = tuple[int, ...]


@dataclass(frozen=True)
class Config:
    """How large, and how often the environment may do what."""

    brokers: int = 3
    replicas: tuple[int, ...] = (0, 1, 2)
    min_isr: int = 2
    written: int = 0
    """So many records are acknowledged at the start, and all have them."""
    records: int = 1
    stops: int = 1
    losses: int = 0
    """A broker that stops loses its log from some record on, and starts unclean."""
    fences: int = 0
    """A broker is fenced that lives."""
    elections: int = 0
    """An administrator, a broker that hands over, or one that drains, has another leader elected."""
    doubts: int = 0
    """A leader waits in vain for the answer to a proposal, and proposes again."""
    forces: int = 0
    """An administrator lets a broker lead that lacks records, where nobody else can."""
    groups: int = 1
    moves: int = 0
    """Of the slot."""
    wanted: tuple[int, ...] = ()
    """An administrator moves the partition there."""
    repairs: int = 0
    """A broker that is dead is replaced."""
    min_isr_then: int = 0
    """An administrator sets it."""
    late: bool = False
    """The group's decisions are asked for at one time, and evaluated at another one."""


class Process(NamedTuple):
    """A broker."""

    runs: bool
    unclean: bool
    life: int
    log: Log
    view: tuple[Member | None, int] | None
    """(leader, leader_epoch) of the newest record that it knows."""
    leading: b.Leading | None


class Proposal(NamedTuple):
    """On its way."""

    leader: Member
    leader_epoch: int
    partition_epoch: int
    isr: b.Members


class Budget(NamedTuple):
    """How often something may happen still."""

    records: int
    stops: int
    losses: int
    fences: int
    elections: int
    moves: int
    plans: int
    repairs: int
    doubts: int
    forces: int


class State(NamedTuple):
    """Of the world."""

    processes: tuple[Process, ...]
    registry: tuple[Said, ...]
    """The fences as ``metadata-0`` has them."""
    fences: tuple[tuple[Said, ...], ...]
    """By group, and broker."""
    slot: moving.Slot
    row: Row
    min_isr: int
    """Of the resource, which the record follows."""
    acknowledged: Log
    said: frozenset[Proposal]
    asked: Any
    """Where decisions are late: (group, partition_epoch, its fences) as one was asked for."""
    fenced: tuple[int, ...]
    """By broker: the least epoch of the greatest fence that this partition has ever been under."""
    left: Budget
    vain: frozenset[int] = frozenset()
    """Leaders that a forced election has deposed, and that do not know it: what they acknowledge is lost."""


def put(items: tuple[Any, ...], at: int, item: Any) -> tuple[Any, ...]:
    """The same with another item at this place."""
    return (*items[:at], item, *items[at + 1 :])


def common(one: Log, other: Log) -> Log:
    """What both begin with."""
    count = 0
    for x, y in zip(one, other, strict=False):
        if x != y:
            break
        count += 1
    return one[:count]


def names(members: b.Members) -> set[int]:
    """The brokers."""
    return {broker for broker, _ in members}


def registered(said: Said, life: int, unclean: bool) -> Said:
    """What ``metadata-0`` knows of a broker once a life of it is registered."""
    return life, True, life if unclean else said[2], said[3]


def ended(said: Said, life: int) -> Said:
    """The same once that life is over."""
    return life + 1, False, said[2], said[3]


def judged_by(state: State) -> tuple[Said, ...]:
    """The fences by which an entry is evaluated: those of its group, as they are by then."""
    return state.fences[state.slot.group]


class InSync:
    """The world."""

    def __repr__(self) -> str:
        return repr(self.config)

    def __init__(self, config: Config) -> None:
        self.config = config
        self.rules = Rules(config.brokers)
        self.brokers = b.Brokers(config.brokers)
        fields = {"repair_after_ms": 1} if config.repairs else {}
        count = max(len(config.replicas), len(config.wanted))
        self._resources = {
            min_isr: resource("isr", count, min_isr=min_isr, **fields)
            for min_isr in {config.min_isr, config.min_isr_then}
            if min_isr
        }
        self.goals: tuple[Goal, ...] = (Goal("sq", self._led),)
        if config.wanted or config.repairs:
            self.goals += (Goal("suvdq", self._moved), Goal("sucdq", self._given_up))
        self._others = [frozenset(range(config.brokers)) - {first} for first in range(config.brokers)]
        self._compares_epochs = self._is_compared()

    def _is_compared(self) -> bool:
        """Whether a proposal for another partition_epoch is refused: then it need not be kept."""
        row, fences = self.start().row, self.start().fences[0]
        item = {"broker": 0, "broker_epoch": 1, "leader_epoch": row.leader_epoch, "partition_epoch": -1, "isr": row.isr}
        return isinstance(self.rules.said("in_sync", row, fences, self._resources[row.min_isr], item), Refused)

    def start(self) -> State:
        """All run, and are in sync."""
        c = self.config
        isr = frozenset((broker, 1) for broker in c.replicas)
        row = Row(0, 0, (c.replicas[0], 1), isr, frozenset(), c.replicas, c.min_isr)
        log = tuple(range(c.records + 1, c.records + c.written + 1))
        processes = tuple(
            Process(True, False, 1, log, (row.leader, 0), self.brokers.learnt(None, (broker, 1), row, len(log)))
            for broker in range(c.brokers)
        )
        known: tuple[Said, ...] = ((1, True, 0, 0),) * c.brokers
        left = Budget(
            c.records,
            c.stops,
            c.losses,
            c.fences,
            c.elections,
            c.moves,
            int(bool(c.wanted)),
            c.repairs,
            c.doubts,
            c.forces,
        )
        slot = moving.Slot(0, None, False)
        return State(
            processes, known, (known,) * c.groups, slot, row, c.min_isr, log, frozenset(), None, (1,) * c.brokers, left
        )

    # --- what happens ---

    def steps(self, state: State) -> Iterator[Step]:
        """All that may happen."""
        for broker, process in enumerate(state.processes):
            if not process.runs:
                yield from self._starts(state, broker, process)
            else:
                yield from self._lives(state, broker, process)
                if process.leading is not None:
                    yield from self._leads(state, broker, process, process.leading)
        for group, fences in enumerate(state.fences):
            for broker, known in enumerate(fences):
                told = merged(known, state.registry[broker])
                if told != known:
                    yield self._told(state, group, broker, told)
        if state.slot.group >= 0:
            yield from self._answers(state)
            yield from self._looks(state)
            yield from self._administrators(state)
        yield from moving.steps(state, self.config.groups)

    def _starts(self, state: State, broker: int, process: Process) -> Iterator[Step]:
        life, known = process.life + 1, state.registry[broker]
        kind = "u" if broker in self.config.replicas else "v"
        new = Process(True, False, life, process.log, None, None)
        said = registered(known, life, process.unclean)
        yield Step(
            kind,
            f"broker {broker} starts, life {life}{' unclean' * process.unclean}",
            state._replace(processes=put(state.processes, broker, new), registry=put(state.registry, broker, said)),
        )
        if known[1]:
            said = ended(known, process.life)
            after = state._replace(registry=put(state.registry, broker, said))
            yield Step("q", f"broker {broker} is silent: fenced", after)

    def _lives(self, state: State, broker: int, process: Process) -> Iterator[Step]:
        left, log, known = state.left, process.log, state.registry[broker]
        if left.stops:
            stopped = Process(False, process.unclean, process.life, log, None, None)
            after = state._replace(
                processes=put(state.processes, broker, stopped), left=left._replace(stops=left.stops - 1)
            )
            yield Step("x", f"broker {broker} stops", after)
            for kept in range(len(log)) if left.losses else ():
                lost = Process(False, True, process.life, log[:kept], None, None)
                after = state._replace(
                    processes=put(state.processes, broker, lost),
                    left=left._replace(stops=left.stops - 1, losses=left.losses - 1),
                )
                yield Step("x", f"broker {broker} stops, and loses its log from {kept} on", after)
        if known[1] and known[0] == process.life and left.fences:
            after = state._replace(
                registry=put(state.registry, broker, ended(known, process.life)),
                left=left._replace(fences=left.fences - 1),
            )
            yield Step("x", f"broker {broker} runs, and is fenced", after)
        if not known[1]:
            life = process.life + 1
            again = Process(True, False, life, log, None, None)
            after = state._replace(
                processes=put(state.processes, broker, again),
                registry=put(state.registry, broker, registered(known, life, False)),
            )
            yield Step("s", f"broker {broker} registers again, life {life}", after)
        row = state.row
        behind = process.leading is not None and process.leading.partition_epoch != row.partition_epoch
        if behind or process.view != (row.leader, row.leader_epoch):
            me = broker, process.life
            leading = self.brokers.learnt(process.leading, me, row, len(log))
            new = process._replace(view=(row.leader, row.leader_epoch), leading=leading)
            after = state._replace(processes=put(state.processes, broker, new), vain=state.vain - {broker})
            after = self._acknowledged(after, broker)
            yield Step("s", f"broker {broker} learns partition_epoch {row.partition_epoch}", after)

    def _leads(self, state: State, broker: int, process: Process, leading: b.Leading) -> Iterator[Step]:
        left, log, processes, me = state.left, process.log, state.processes, (broker, process.life)
        if left.records:
            longer = (*log, self.config.records - left.records + 1)
            new = process._replace(log=longer, leading=self.brokers.appended(leading, me, len(longer)))
            after = state._replace(processes=put(processes, broker, new), left=left._replace(records=left.records - 1))
            yield Step("x", f"leader {broker} appends", self._acknowledged(after, broker))
        for follower, other in enumerate(processes):
            if follower == broker or not other.runs or other.view is None or other.leading is not None:
                continue
            if b.may_fetch(leading, broker, other.view):
                yield from self._fetches(state, broker, follower)
        if leading.asked is not None and left.doubts:
            doubting = self.brokers.doubted(leading, me, len(log))
            after = state._replace(
                processes=put(processes, broker, process._replace(leading=doubting)),
                left=left._replace(doubts=left.doubts - 1),
            )
            yield Step("x", f"leader {broker} waits in vain for an answer", self._acknowledged(after, broker))
        seen = {leading}
        for lagging in self._lagging(leading, broker):
            asking = self.brokers.proposal(leading, me, len(log), lagging)
            if asking not in seen:
                seen.add(asking)
                yield self._proposes(state, broker, asking, "x" if lagging else "d")

    def _lagging(self, leading: b.Leading, broker: int) -> Iterator[b.Members]:
        others = [member for member in sorted(leading.isr) if member[0] != broker]
        for count in range(len(others) + 1):
            yield from map(frozenset, itertools.combinations(others, count))

    def _fetches(self, state: State, broker: int, follower: int) -> Iterator[Step]:
        leader, other = state.processes[broker], state.processes[follower]
        assert leader.leading is not None
        same = common(other.log, leader.log)
        life = b.life_of(other.life, state.registry[follower][0])
        me = broker, leader.life
        leading = self.brokers.fetched(leader.leading, me, len(leader.log), (follower, life), len(same))
        if leading is None:
            return
        log = same if len(same) == len(leader.log) else (*same, leader.log[len(same)])
        if log != other.log or leading != leader.leading:
            processes = put(state.processes, broker, leader._replace(leading=leading))
            after = state._replace(processes=put(processes, follower, other._replace(log=log)))
            yield Step("d", f"{follower} fetches from {broker}", self._acknowledged(after, broker))

    def _acknowledged(self, state: State, broker: int) -> State:
        """Once a leader has looked how far it may acknowledge records."""
        process = state.processes[broker]
        if process.leading is None or not process.leading.high or broker in state.vain:
            return state
        log, known = process.log[: process.leading.high], state.acknowledged
        if common(log, known) not in (log, known):
            raise Violation("acknowledged", "two histories are acknowledged")
        return state._replace(acknowledged=log) if len(log) > len(known) else state

    def _proposes(self, state: State, broker: int, leading: b.Leading, kind: str) -> Step:
        process, asked = state.processes[broker], leading.asked
        after = state._replace(processes=put(state.processes, broker, process._replace(leading=leading)))
        if asked is not None:
            said = Proposal((broker, process.life), leading.leader_epoch, leading.partition_epoch, asked)
            after = after._replace(said=state.said | {said})
        what = "nobody else" if asked is None else sorted(asked)
        return Step(kind, f"leader {broker} proposes {what}", self._acknowledged(after, broker))

    def _told(self, state: State, group: int, broker: int, told: Said) -> Step:
        fences = put(state.fences[group], broker, told)
        after = state._replace(fences=put(state.fences, group, fences))
        if group == state.slot.group:
            fenced = put(state.fenced, broker, max(state.fenced[broker], told[0]))
            after = after._replace(fenced=fenced, slot=after.slot._replace(unstepped=self.config.moves > 0))
        return Step("s", f"group {group} is told of broker {broker}: {told}", after)

    # --- what a group evaluates ---

    def _answers(self, state: State) -> Iterator[Step]:
        r, fences = self._resources[state.min_isr], state.fences[state.slot.group]
        for said in state.said:
            (name, life), leader_epoch, partition_epoch, isr = said
            item = {
                "broker": name,
                "broker_epoch": life,
                "leader_epoch": leader_epoch,
                "partition_epoch": partition_epoch,
                "isr": isr,
            }
            answer = self.rules.said("in_sync", state.row, fences, r, item)
            heard = state._replace(said=state.said - {said})
            if isinstance(answer, Refused):
                process = state.processes[name]
                leading = process.leading
                if leading is not None and (leading.partition_epoch, leading.asked) == (partition_epoch, isr):
                    me, length = (name, process.life), len(process.log)
                    if answer.error == "conflict":
                        leading = self.brokers.doubted(leading, me, length)
                    else:
                        leading = self.brokers.refused(leading, me, length, answer.error == "ineligible")
                    new = process._replace(leading=leading)
                    after = self._acknowledged(heard._replace(processes=put(state.processes, name, new)), name)
                    yield Step("d", f"the proposal of {said.leader} is refused: {answer.error}", after)
                continue
            first, row = answer
            for member in (*first.isr, said.leader):
                self._check_fenced(state, member)
            yield Step("d", f"the proposal of {said.leader} is accepted: {sorted(isr)}", heard._replace(row=row))

    def _looks(self, state: State) -> Iterator[Step]:
        r = self._resources[state.min_isr]
        if self.config.late:
            yield from self._looks_late(state, r)
            return
        if self.config.moves and not state.slot.unstepped:
            return
        done = state.slot._replace(unstepped=False)
        plain = self.rules.looked(state.row, judged_by(state), r)
        if plain != state.row or done != state.slot:
            yield Step("s", "the group decides", self._decided(state, plain)._replace(slot=done))
        alive = plain.leader == state.row.leader
        if alive and not state.left.elections:
            return
        left = state.left._replace(elections=state.left.elections - alive)
        for draining in self._others:
            row = self.rules.looked(state.row, judged_by(state), r, Preference(draining))
            if row not in (plain, state.row):
                after = self._decided(state, row)._replace(slot=done, left=left)
                yield Step("x", f"the group decides, others drain than {row.leader}", after)

    def _looks_late(self, state: State, r: Any) -> Iterator[Step]:
        group, row = state.slot.group, state.row
        if state.asked is None or state.asked[:2] != (group, row.partition_epoch):
            if self.rules.looked(row, state.fences[group], r) != row:
                asked = group, row.partition_epoch, state.fences[group]
                yield Step("s", "the leader of the group asks for a decision", state._replace(asked=asked))
        else:
            after = self._decided(state, self.rules.looked(row, judged_by(state), r))
            yield Step("s", "the group decides", after._replace(asked=None))

    def _decided(self, state: State, row: Row) -> State:
        for member in row.isr:
            self._check_fenced(state, member)
        return state._replace(row=row)

    def _check_fenced(self, state: State, member: Member) -> None:
        if member[1] < state.fenced[member[0]]:
            raise Violation("fence", f"life {member} is over for this partition, and changes it, or is in sync")

    def _administrators(self, state: State) -> Iterator[Step]:
        c, left, row, fences = self.config, state.left, state.row, state.fences[state.slot.group]
        r = self._resources[state.min_isr]
        if left.plans and row.leader is not None:
            answer = self.rules.said("begin", row, fences, r, {"wanted": c.wanted})
            if not isinstance(answer, Refused):
                yield Step("x", "a move begins", state._replace(row=answer[1], left=left._replace(plans=0)))
        if row.move is not None and not row.move[2]:
            answer = self.rules.said("move", row, fences, r, {"wanted": ()})
            if not isinstance(answer, Refused):
                yield Step("c", "the move is cancelled", state._replace(row=answer[1]))
        if left.repairs:
            new = self.rules.looked(row, fences, r, Preference(replacing=True), LATE)
            if new.move is not None and row.move is None:
                after = self._decided(state, new)._replace(left=left._replace(repairs=left.repairs - 1))
                yield Step("x", "a repair begins", after)
        if c.min_isr_then and state.min_isr != c.min_isr_then:
            yield Step("x", f"min_isr of the resource is {c.min_isr_then}", state._replace(min_isr=c.min_isr_then))
        if left.elections and row.leader is not None:
            yield from self._elects(state, row, fences)
        if left.forces and row.leader is None:
            answer = self.rules.said("elect", row, fences, r, {"broker": None, "force": True})
            if not isinstance(answer, Refused):
                yield Step("x", "an election is forced", self._forced(state, answer[1]))

    def _forced(self, state: State, row: Row) -> State:
        """What the one does not have that leads is lost."""
        assert row.leader is not None
        return self._decided(state, row)._replace(
            acknowledged=common(state.acknowledged, state.processes[row.leader[0]].log),
            left=state.left._replace(forces=state.left.forces - 1),
            vain=frozenset(broker for broker, process in enumerate(state.processes) if process.leading is not None),
        )

    def _elects(self, state: State, row: Row, fences: tuple[Said, ...]) -> Iterator[Step]:
        assert row.leader is not None
        r, less = self._resources[state.min_isr], state.left._replace(elections=state.left.elections - 1)
        life = {"broker": row.leader[0], "broker_epoch": row.leader[1], "leader_epoch": row.leader_epoch}
        answer = self.rules.said("release", row, fences, r, life)
        if not isinstance(answer, Refused):
            yield Step("x", f"{row.leader} hands over", self._decided(state, answer[1])._replace(left=less))
        for other in row.replicas:
            answer = self.rules.said("elect", row, fences, r, {"broker": other})
            if not isinstance(answer, Refused):
                after = self._decided(state, answer[1])._replace(left=less)
                yield Step("x", f"an administrator chooses {other}", after)

    # --- how states are compared ---

    def canonical(self, state: State) -> State:
        """With epochs ranked, and without what can have no effect."""
        row, said, asked = state.row, state.said, state.asked
        now = row.partition_epoch
        if self._compares_epochs:
            said = frozenset(one for one in said if one.partition_epoch == now)
        if asked is not None and asked[:2] != (state.slot.group, now):
            asked = None
        partition_epochs, leader_epochs = {now}, {row.leader_epoch}
        for process in state.processes:
            if process.view is not None:
                leader_epochs.add(process.view[1])
            leading = process.leading
            if leading is not None:
                leader_epochs.add(leading.leader_epoch)
                partition_epochs.add(leading.partition_epoch)
        for one in said:
            partition_epochs.add(one.partition_epoch)
            leader_epochs.add(one.leader_epoch)
        if max(partition_epochs) < len(partition_epochs) and max(leader_epochs) < len(leader_epochs):
            return state if said == state.said and asked == state.asked else state._replace(said=said, asked=asked)
        p = {epoch: rank for rank, epoch in enumerate(sorted(partition_epochs))}
        n = {epoch: rank for rank, epoch in enumerate(sorted(leader_epochs))}
        return state._replace(
            processes=tuple(_ranked(process, p, n) for process in state.processes),
            row=row._replace(partition_epoch=p[now], leader_epoch=n[row.leader_epoch]),
            said=frozenset(Proposal(one.leader, n[one.leader_epoch], p[one.partition_epoch], one.isr) for one in said),
            asked=None if asked is None else (asked[0], p[asked[1]], asked[2]),
        )

    # --- what must hold ---

    def check_step(self, before: State, after: State) -> None:
        """Epochs and fences only grow."""
        old, new = before.row, after.row
        if new is not old and new != old:
            leads = new.leader != old.leader
            if new.partition_epoch <= old.partition_epoch or new.leader_epoch < old.leader_epoch:
                raise Violation("epochs", "one does not grow")
            if leads and new.leader_epoch <= old.leader_epoch:
                raise Violation("epochs", "another life leads, or none, and leader_epoch is the same")
        if after.fences is not before.fences:
            for was, now in zip(before.fences, after.fences, strict=True):
                for one, other in zip(was, now, strict=True):
                    if other[:2] < one[:2] or other[2] < one[2]:
                        raise Violation("fences", "one goes down")

    def check(self, state: State) -> None:
        """One leader in each leader_epoch, and no acknowledged record is lost."""
        c, row, acknowledged = self.config, state.row, state.acknowledged
        led: set[int] = set()
        for process in state.processes:
            if process.leading is not None:
                if process.leading.leader_epoch in led:
                    raise Violation("leader", "two lead in one leader_epoch")
                led.add(process.leading.leader_epoch)
        if row.leader is not None:
            process = state.processes[row.leader[0]]
            there = process.runs and (process.life == row.leader[1] or process.leading is not None)
            if there and process.log[: len(acknowledged)] != acknowledged:
                raise Violation("acknowledged", "a record is lost")
        if (state.left.losses, state.left.forces) == (c.losses, c.forces):
            able = row.isr | row.elr
            copies = sum(state.processes[m[0]].log[: len(acknowledged)] == acknowledged for m in able)
            if copies < min(c.min_isr, c.min_isr_then or c.min_isr):
                raise Violation("acknowledged", "a record has fewer copies than min_isr among those who may lead")
            if not able:
                raise Violation("eligible", "nobody is, though nobody has lost a log")

    def _led(self, state: State) -> None:
        """Lives that are silent are over, fences have arrived, slots have moved, groups have decided, brokers have
        learnt: a broker leads, if one runs that may."""
        row, fences = state.row, state.fences[state.slot.group]
        able = [
            (broker, life)
            for broker, life in row.isr | row.elr
            if state.processes[broker].runs and fences[broker][1] and fences[broker][2] <= life
        ]
        if able and not self._is_led(state):
            raise Violation("liveness", "nobody leads for ever, though one runs that could")

    def _is_led(self, state: State) -> bool:
        leader, fences = state.row.leader, state.fences[state.slot.group]
        if leader is None or fences[leader[0]][:2] != (leader[1], True):
            return False
        return state.processes[leader[0]].leading is not None

    def _moved(self, state: State) -> None:
        if state.row.move is not None and self._is_led(state):
            raise Violation("liveness", "a move never ends, though all brokers run")

    def _given_up(self, state: State) -> None:
        if state.row.move is not None and self._is_led(state):
            raise Violation("liveness", "a move to a broker that never comes back cannot be cancelled")


def _ranked(process: Process, p: dict[int, int], n: dict[int, int]) -> Process:
    view, leading = process.view, process.leading
    if view is not None:
        view = view[0], n[view[1]]
    if leading is not None:
        leading = leading._replace(leader_epoch=n[leading.leader_epoch], partition_epoch=p[leading.partition_epoch])
    return Process(*process[:4], view, leading)
