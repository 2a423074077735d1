"""The world of a partition whose leader is elected by position: a master, with replicas that follow it.

A master appends, and whoever follows it takes its records one by one. A record is acknowledged when so many brokers
have it as the resource says. There is no clock: a master that is fenced goes on. Each broker keeps what it has promised
with its log: it takes nothing of a lower leader_epoch. A life that has lost that follows nobody until it has read the
record again. The master says who has everything; what it says arrives late or never. Once it has said so, and a move
is under way, only those that are to remain count as copies. A master that is to hand over takes nothing any more.

A forced election loses what nobody had who reported, and what a deposed master acknowledges until it learns of it.
Nothing else is lost, whatever disks are.

Kinds of steps: as in :mod:`.in_sync`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from metad.state.assignment.resources import altered
from metad_judge.invariants import Violation
from metad_wire.errors import InvalidItemError
from metad_wire.tables import assignment as a
from metad_wire.tables.assignment import ResourceAlter

from .exploring import Goal, Step
from .in_sync import ended, put, registered
from .judging import LATE, Member, Refused, Row, Rules, Said, merged, resource

Log = tuple[tuple[int, int], ...]
"""(leader_epoch, number) of each record."""
UNKNOWN = -1


@dataclass(frozen=True)
class Config:
    """How large, and how often the environment may do what."""

    brokers: int = 3
    replicas: tuple[int, ...] = (0, 1, 2)
    copies: int = 2
    records: int = 1
    stops: int = 1
    losses: int = 0
    fences: int = 1
    forces: int = 0
    wanted: tuple[int, ...] = ()
    copies_then: int = 0
    """An administrator sets them."""
    claims: int = 0
    """How often the master says who has everything."""
    hands: int = 0
    """How often an administrator chooses another master."""


class Known(NamedTuple):
    """What a master knows of the record."""

    partition_epoch: int
    replicas: tuple[int, ...]
    remaining: frozenset[int]
    """Who has it once the move is over."""
    copies: int
    """Of the resource, with which a record is acknowledged."""
    said: bool = False
    """Whether it has said who has everything, which may end the move."""
    target: int | None = None
    """For whom it is to stop."""


class Process(NamedTuple):
    """A broker."""

    runs: bool
    unclean: bool
    life: int
    log: Log
    promised: int
    """It takes nothing of a lower leader_epoch; UNKNOWN: it takes nothing."""
    master: int
    """The leader_epoch in which it is the master; 0: in none."""
    known: Known | None
    """The master has it."""


class Proposal(NamedTuple):
    """On its way."""

    leader: Member
    leader_epoch: int
    partition_epoch: int
    isr: frozenset[Member]


class Budget(NamedTuple):
    """How often something may happen still."""

    records: int
    stops: int
    losses: int
    fences: int
    forces: int
    plans: int
    claims: int
    hands: int


class State(NamedTuple):
    """Of the world."""

    processes: tuple[Process, ...]
    registry: tuple[Said, ...]
    fences: tuple[Said, ...]
    row: Row
    copies: int
    claim: Proposal | None
    acknowledged: Log
    cut: tuple[int, Log]
    """Of the last forced election: its leader_epoch, and what the one had that leads. What a deposed master
    acknowledges besides is in vain."""
    left: Budget


def common(one: Log, other: Log) -> Log:
    """What both begin with."""
    count = 0
    for x, y in zip(one, other, strict=False):
        if x != y:
            break
        count += 1
    return one[:count]


def position(log: Log) -> tuple[int, int]:
    """(leader_epoch of the last record, how many)."""
    return (log[-1][0] if log else 0), len(log)


def _remaining(row: Row) -> frozenset[int]:
    """Who has the partition once the move is over."""
    if row.move is None:
        return frozenset(row.replicas)
    original, wanted, cancelling = row.move
    return frozenset(original if cancelling else wanted)


def takes(process: Process, leader_epoch: int) -> bool:
    """Whether a broker takes the records of a master."""
    return process.promised != UNKNOWN and process.promised <= leader_epoch


def reports(process: Process, row: Row) -> bool:
    """Whether a broker reports its position: once it has promised the leader_epoch of the election."""
    return row.state == a.ELECTING and process.promised == row.leader_epoch


def counted(known: Known) -> set[int]:
    """Whose copies count for a master: once it has said what may end a move, only those of who remains."""
    return {*known.replicas} & known.remaining if known.said else {*known.replicas}


def takes_more(known: Known) -> bool:
    """Whether a master appends."""
    return known.target is None


def whole(log: Log, other: Log) -> bool:
    """Whether a replica has everything that its master has."""
    return log == other


class Position:
    """The world."""

    def __repr__(self) -> str:
        return repr(self.config)

    def __init__(self, config: Config) -> None:
        self.config = config
        self.rules = Rules(config.brokers)
        count = max(len(config.replicas), len(config.wanted))
        self._claims_any = bool(config.claims or config.wanted or config.hands)
        self._resources = {
            copies: resource("position", count, copies=copies)
            for copies in {config.copies, config.copies_then}
            if copies
        }
        self._compares = self._is_compared()
        self.goals: tuple[Goal, ...] = (Goal("sq", self._led),)
        if config.wanted:
            self.goals += (Goal("sud", self._moved),)

    def _is_compared(self) -> bool:
        start = self.start()
        item = {"broker": 0, "broker_epoch": 1, "leader_epoch": 1, "partition_epoch": -1, "isr": start.row.isr}
        r = self._resources[self.config.copies]
        return isinstance(self.rules.said("in_sync", start.row, start.fences, r, item), Refused)

    def start(self) -> State:
        """All run, and have everything."""
        c = self.config
        members = frozenset((broker, 1) for broker in c.replicas)
        row = Row(0, 1, (c.replicas[0], 1), members, members, c.replicas, 1)
        first = Known(0, c.replicas, frozenset(c.replicas), c.copies)
        processes = tuple(
            Process(True, False, 1, (), 1 if broker in c.replicas else UNKNOWN, int(master), first if master else None)
            for broker in range(c.brokers)
            for master in [broker == c.replicas[0]]
        )
        known: tuple[Said, ...] = ((1, True, 0, 0),) * c.brokers
        left = Budget(c.records, c.stops, c.losses, c.fences, c.forces, int(bool(c.wanted)), c.claims, c.hands)
        return State(processes, known, known, row, c.copies, None, (), (0, ()), left)

    # --- what happens ---

    def steps(self, state: State) -> Iterator[Step]:
        """All that may happen."""
        for broker, process in enumerate(state.processes):
            if not process.runs:
                yield from self._starts(state, broker, process)
                continue
            yield from self._stops(state, broker, process)
            if state.fences[broker][:2] >= (process.life, True):  # its registration was answered
                yield from self._learns(state, broker, process)
            if process.master:
                yield from self._masters(state, broker, process)
        for broker, known in enumerate(state.fences):
            told = merged(known, state.registry[broker])
            if told != known:
                after = state._replace(fences=put(state.fences, broker, told))
                yield Step("s", f"the group is told of broker {broker}: {told}", after)
        row = self.rules.looked(state.row, state.fences, self._resources[state.copies])
        if row != state.row:
            yield Step("s", "the group decides", state._replace(row=row))
        if state.claim is not None:
            yield self._answers(state, state.claim)
        yield from self._administrators(state)

    def _starts(self, state: State, broker: int, process: Process) -> Iterator[Step]:
        life, known = process.life + 1, state.registry[broker]
        promised = UNKNOWN if process.unclean else process.promised
        new = Process(True, False, life, process.log, promised, 0, None)
        after = state._replace(
            processes=put(state.processes, broker, new),
            registry=put(state.registry, broker, registered(known, life, process.unclean)),
        )
        yield Step("u", f"broker {broker} starts, life {life}{' unclean' * process.unclean}", after)
        if known[1]:
            after = state._replace(registry=put(state.registry, broker, ended(known, process.life)))
            yield Step("q", f"broker {broker} is silent: fenced", after)

    def _stops(self, state: State, broker: int, process: Process) -> Iterator[Step]:
        left, log, known = state.left, process.log, state.registry[broker]
        if left.stops:
            stopped = process._replace(runs=False, master=0, known=None)
            after = state._replace(
                processes=put(state.processes, broker, stopped), left=left._replace(stops=left.stops - 1)
            )
            yield Step("x", f"broker {broker} stops", after)
            for kept in range(len(log)) if left.losses else ():
                lost = stopped._replace(unclean=True, log=log[:kept], promised=0)
                after = state._replace(
                    processes=put(state.processes, broker, lost),
                    left=left._replace(stops=left.stops - 1, losses=left.losses - 1),
                )
                yield Step("x", f"broker {broker} stops, and loses its log from {kept} on", after)
        if known[:2] == (process.life, True) and left.fences:
            after = state._replace(
                registry=put(state.registry, broker, ended(known, process.life)),
                left=left._replace(fences=left.fences - 1),
            )
            yield Step("x", f"broker {broker} runs, and is fenced", after)
        if not known[1]:
            again = process._replace(life=process.life + 1, master=0, known=None)
            after = state._replace(
                processes=put(state.processes, broker, again),
                registry=put(state.registry, broker, registered(known, process.life + 1, False)),
            )
            yield Step("s", f"broker {broker} registers again, life {process.life + 1}", after)

    def _learns(self, state: State, broker: int, process: Process) -> Iterator[Step]:
        row, me = state.row, (broker, process.life)
        master = row.leader_epoch if row.leader == me else 0
        known = process.known if master else None
        if master and (known is None or known[::3] != (row.partition_epoch, state.copies)):
            known = Known(row.partition_epoch, row.replicas, _remaining(row), state.copies, target=row.target)
        new = process._replace(promised=max(process.promised, row.leader_epoch), master=master, known=known)
        if new != process and process.promised <= row.leader_epoch:
            after = state._replace(processes=put(state.processes, broker, new))
            yield Step("s", f"broker {broker} learns leader_epoch {row.leader_epoch}", after)
        reported = any(member == me for member, _, _ in row.reports)
        if reports(process, row) and not process.master and not reported:
            last, length = position(process.log)
            item = {"broker": broker, "broker_epoch": process.life, "leader_epoch": row.leader_epoch}
            item |= {"last_epoch": last, "length": length}
            answer = self.rules.said("report", row, state.fences, self._resources[state.copies], item)
            if not isinstance(answer, Refused):
                after = self._elected(state, answer[1], False)
                yield Step("s", f"broker {broker} reports {position(process.log)}", after)

    def _masters(self, state: State, broker: int, process: Process) -> Iterator[Step]:
        left, log, processes, known = state.left, process.log, state.processes, process.known
        assert known is not None
        if left.records and takes_more(known):
            record = process.master, self.config.records - left.records + 1
            after = state._replace(
                processes=put(processes, broker, process._replace(log=(*log, record))),
                left=left._replace(records=left.records - 1),
            )
            yield Step("x", f"master {broker} of {process.master} appends", after)
        for follower, other in enumerate(processes):
            if follower == broker or not other.runs or other.master >= process.master or other.log == log:
                continue
            if follower in known.replicas and takes(other, process.master):
                same = common(other.log, log)
                new = same if len(same) == len(log) else (*same, log[len(same)])
                promised = max(other.promised, process.master)
                taken = other._replace(log=new, promised=promised, master=0, known=None)
                after = state._replace(processes=put(processes, follower, taken))
                yield Step("d", f"{follower} takes from {broker}", after)
        yield from self._acknowledges(state, broker, process, known)
        yield from self._claims(state, broker, process, known)

    def _acknowledges(self, state: State, broker: int, process: Process, known: Known) -> Iterator[Step]:
        acknowledged, log = state.acknowledged, process.log
        count = len(acknowledged)
        if count >= len(log):
            return
        new, (epoch, kept) = log[: count + 1], state.cut
        if process.master < epoch and new != kept[: count + 1]:
            return  # in vain: a forced election has deposed it
        able = counted(known)
        have = sum(broker in able and other.log[: count + 1] == new for broker, other in enumerate(state.processes))
        if log[:count] == acknowledged and have >= known.copies:
            yield Step("d", f"master {broker} acknowledges {count + 1}", state._replace(acknowledged=new))

    def _claims(self, state: State, broker: int, process: Process, known: Known) -> Iterator[Step]:
        processes = state.processes
        if known.said or not state.left.claims:
            return
        members = {(broker, process.life)}
        for follower in known.replicas:
            other = processes[follower]
            follows = other.runs and other.promised == process.master and not other.master
            if follower != broker and follows and whole(process.log, other.log):
                members.add((follower, other.life))
        isr = frozenset(members)
        claim = Proposal((broker, process.life), process.master, known.partition_epoch, isr)
        after = state._replace(
            processes=put(processes, broker, process._replace(known=known._replace(said=True))),
            claim=claim,
            left=state.left._replace(claims=state.left.claims - 1),
        )
        yield Step("x", f"master {broker} says that {sorted(isr)} have everything", after)

    def _answers(self, state: State, claim: Proposal) -> Step:
        (broker, life), leader_epoch, partition_epoch, isr = claim
        item: dict[str, Any] = {"broker": broker, "broker_epoch": life, "leader_epoch": leader_epoch}
        item |= {"partition_epoch": partition_epoch, "isr": isr}
        answer = self.rules.said("in_sync", state.row, state.fences, self._resources[state.copies], item)
        process = state.processes[broker]
        heard = state._replace(claim=None)
        if isinstance(answer, Refused):
            known = process.known
            if known is not None and known.said and known.partition_epoch == partition_epoch and process.life == life:
                new = process._replace(known=known._replace(said=False))
                heard = heard._replace(processes=put(state.processes, broker, new))
            return Step("d", f"what {claim.leader} said is refused: {answer.error}", heard)
        return Step("d", f"what {claim.leader} said is accepted", heard._replace(row=answer[1]))

    def _administrators(self, state: State) -> Iterator[Step]:
        row, fences, r, left = state.row, state.fences, self._resources[state.copies], state.left
        if left.forces and row.leader is None:
            answer = self.rules.said("elect", row, fences, r, {"broker": None, "force": True})
            if not isinstance(answer, Refused):
                after = self._elected(state, answer[1], True)
                yield Step("x", "forced", after._replace(left=left._replace(forces=left.forces - 1)))
        if self.config.copies_then not in (0, state.copies):
            with contextlib.suppress(InvalidItemError):
                copies = altered(r, ResourceAlter("t", "r", "k", copies=self.config.copies_then)).copies
                yield Step("x", f"copies of the resource are {copies}", state._replace(copies=copies))
        for broker in self.config.replicas if left.hands and row.leader is not None else ():
            answer = self.rules.said("elect", row, fences, r, {"broker": broker})
            if not isinstance(answer, Refused):
                less = left._replace(hands=left.hands - 1)
                yield Step("x", f"an administrator chooses {broker}", state._replace(row=answer[1], left=less))
        if self._claims_any and (late := self.rules.looked(row, fences, r, now=LATE)) != row:
            yield Step("x", "it has waited for long", state._replace(row=late))
        if left.plans:
            answer = self.rules.said("begin", row, fences, r, {"wanted": self.config.wanted})
            if not isinstance(answer, Refused):
                yield Step("x", "a move begins", state._replace(row=answer[1], left=left._replace(plans=0)))

    def _elected(self, state: State, row: Row, forced: bool) -> State:
        if row.leader is None or not forced:
            return state._replace(row=row)
        best = {(last, length) for member, last, length in state.row.reports if member == row.leader}
        process = state.processes[row.leader[0]]
        if position(process.log) not in best:  # it has lost its log since it reported
            return state._replace(row=row, acknowledged=(), cut=(row.leader_epoch, ()))
        kept = common(state.acknowledged, process.log)
        return state._replace(row=row, acknowledged=kept, cut=(row.leader_epoch, process.log))

    # --- how states are compared ---

    def canonical(self, state: State) -> State:
        """Without partition_epochs that nobody knows any more, and with the others ranked."""
        claim, row = state.claim, state.row
        if self._compares and claim is not None and claim.partition_epoch != row.partition_epoch:
            claim = None
        if not self._claims_any:  # nobody compares them
            processes = tuple(
                p if p.known is None else p._replace(known=p.known._replace(partition_epoch=0)) for p in state.processes
            )
            return state._replace(row=row._replace(partition_epoch=0), processes=processes)
        epochs = {row.partition_epoch if claim is None else claim.partition_epoch, row.partition_epoch}
        epochs |= {*(p.known.partition_epoch for p in state.processes if p.known is not None)}
        rank = {epoch: at for at, epoch in enumerate(sorted(epochs))}
        return state._replace(
            row=row._replace(partition_epoch=rank[row.partition_epoch]),
            claim=None if claim is None else claim._replace(partition_epoch=rank[claim.partition_epoch]),
            processes=tuple(
                p
                if p.known is None
                else p._replace(known=p.known._replace(partition_epoch=rank[p.known.partition_epoch]))
                for p in state.processes
            ),
        )

    # --- what must hold ---

    def check_step(self, before: State, after: State) -> None:
        """Epochs only grow; one that names another master did when its election began."""
        old, new = before.row, after.row
        if new is old or new == old:
            return
        if new.partition_epoch <= old.partition_epoch or new.leader_epoch < old.leader_epoch:
            raise Violation("epochs", "one does not grow")
        if old.leader is not None and new.leader != old.leader and new.leader_epoch <= old.leader_epoch:
            raise Violation("epochs", "another life leads, or none, and leader_epoch is the same")

    def check(self, state: State) -> None:
        """One master in each leader_epoch, and the one that the record names has what was acknowledged."""
        masters = [process.master for process in state.processes if process.master]
        if len({*masters}) < len(masters):
            raise Violation("leader", "two are masters in one leader_epoch")
        leader, acknowledged = state.row.leader, state.acknowledged
        if leader is not None:
            process = state.processes[leader[0]]
            if process.life == leader[1] and not process.unclean and process.log[: len(acknowledged)] != acknowledged:
                raise Violation("acknowledged", "a record is lost")

    def _led(self, state: State) -> None:
        """With enough replicas that count, one of them leads."""
        row, fences = state.row, state.fences
        known = dict(row.elr)
        able = [
            broker
            for broker in row.replicas
            if state.processes[broker].runs and broker in known and fences[broker][2] <= known[broker]
        ]
        if row.target is not None and not fences[row.target][1]:
            raise Violation("liveness", "a master waits for one that is away")
        led = row.leader is not None and state.processes[row.leader[0]].master == row.leader_epoch
        if not led and len(able) >= len(row.replicas) - state.copies + 1:
            raise Violation("liveness", "nobody leads for ever, though enough replicas run")

    def _moved(self, state: State) -> None:
        """Where all run and have everything, the master has but to say so, and to hand over, and a move ends."""
        row, fences, r = state.row, state.fences, self._resources[state.copies]
        if row.move is None or row.leader is None:
            return
        for _ in range(3):  # it says so, is told to hand over, and says so again
            assert row.leader is not None
            isr = frozenset((broker, state.processes[broker].life) for broker in row.replicas)
            item: dict[str, Any] = {"broker": row.leader[0], "broker_epoch": row.leader[1], "isr": isr}
            item |= {"leader_epoch": row.leader_epoch, "partition_epoch": row.partition_epoch}
            answer = self.rules.said("in_sync", row, fences, r, item)
            if isinstance(answer, Refused) or answer[1].move is None:
                break
            row = answer[1]
            if row.state != a.RELEASING:
                row = self.rules.looked(row, fences, r, now=LATE)
        if isinstance(answer, Refused) or answer[1].move is not None:
            raise Violation("liveness", "a move does not end though all have everything")
