"""The world of a partition whose replicas elect among themselves, until it is sealed, and deleted.

A replica that has won a term of its own claims it, any number of times and late. The leader seals the partition, too.
Once the resource is being deleted, each replica deletes what it has, and says so. Kinds of steps: as in
:mod:`.in_sync`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from metad_judge.invariants import Violation
from metad_wire.tables import assignment as a

from .exploring import Goal, Step
from .in_sync import ended, put, registered
from .judging import LATE, Member, Refused, Row, Rules, Said, merged, resource


@dataclass(frozen=True)
class Config:
    """How large, and how often the environment may do what."""

    brokers: int = 2
    terms: int = 2
    stops: int = 1
    fences: int = 1
    seals: int = 0
    deletes: int = 0


class Process(NamedTuple):
    """A broker."""

    runs: bool
    life: int
    has: bool
    """Whether it has some of the partition."""
    leads: int
    """The term that it has won in this life, and seals under; 0: none."""


class Budget(NamedTuple):
    """How often something may happen still."""

    terms: int
    stops: int
    fences: int
    seals: int
    deletes: int


class State(NamedTuple):
    """Of the world."""

    processes: tuple[Process, ...]
    registry: tuple[Said, ...]
    fences: tuple[Said, ...]
    row: Row
    won: tuple[Member, ...]
    """Who won each term, from 2 on."""
    seals: frozenset[tuple[Member, int, int]]
    """Said: (life, term, end)."""
    is_deleted: bool
    """Whether the resource is being deleted."""
    left: Budget


class External:
    """The world."""

    def __repr__(self) -> str:
        return repr(self.config)

    def __init__(self, config: Config) -> None:
        self.config = config
        self.rules = Rules(config.brokers)
        self._resources = {
            deleting: resource("external", config.brokers, state="deleting" if deleting else "active")
            for deleting in (False, True)
        }
        self.goals: tuple[Goal, ...] = (Goal("suq", self._at_rest),)

    def start(self) -> State:
        """All run; nobody has been elected."""
        c = self.config
        row = Row(0, 1, None, frozenset(), frozenset(), tuple(range(c.brokers)), 1, a.READABLE)
        known: tuple[Said, ...] = ((1, True, 0, 0),) * c.brokers
        processes = (Process(True, 1, True, 0),) * c.brokers
        left = Budget(c.terms, c.stops, c.fences, c.seals, c.deletes)
        return State(processes, known, known, row, (), frozenset(), False, left)

    # --- what happens ---

    def steps(self, state: State) -> Iterator[Step]:
        """All that may happen."""
        for broker, process in enumerate(state.processes):
            yield from self._lives(state, broker, process)
            if process.runs:
                yield from self._says(state, broker, process)
        for broker, known in enumerate(state.fences):
            told = merged(known, state.registry[broker])
            if told != known:
                after = state._replace(fences=put(state.fences, broker, told))
                yield Step("s", f"the group is told of broker {broker}: {told}", after)
        r = self._resources[state.is_deleted]
        row = self.rules.looked(state.row, state.fences, r)
        if row != state.row:
            yield Step("s", "the group decides", state._replace(row=row))
        late = self.rules.looked(state.row, state.fences, r, now=LATE)
        if late not in (row, state.row):
            processes = tuple(  # what the dead have by then is nobody's business
                process if state.fences[broker][1] else process._replace(has=False)
                for broker, process in enumerate(state.processes)
            )
            yield Step("x", "the group decides after a day", state._replace(row=late, processes=processes))
        for seal in state.seals:
            (name, life), term, end = seal
            item = {"broker": name, "broker_epoch": life, "leader_epoch": term, "end": end, "successor": False}
            answer = self.rules.said("seal", state.row, state.fences, r, item)
            if not isinstance(answer, Refused):
                if state.row.end is not None:
                    raise Violation("sealed", "it ends twice")
                yield Step("s", f"the seal of {seal} counts", state._replace(row=answer[1]))
        if state.left.deletes:
            after = state._replace(is_deleted=True, left=state.left._replace(deletes=0))
            yield Step("x", "the resource is deleted", after)

    def _lives(self, state: State, broker: int, process: Process) -> Iterator[Step]:
        left, known, life = state.left, state.registry[broker], process.life + 1

        def lived(kind: str, name: str, new: Process, said: Said, left: Budget) -> Step:
            processes, registry = put(state.processes, broker, new), put(state.registry, broker, said)
            return Step(kind, name, state._replace(processes=processes, registry=registry, left=left))

        if not process.runs or not known[1]:
            new = process._replace(runs=True, life=life, leads=0)
            yield lived("u", f"broker {broker} starts, life {life}", new, registered(known, life, False), left)
        if not process.runs and known[1]:
            yield lived("q", f"broker {broker} is silent: fenced", process, ended(known, process.life), left)
        if process.runs and left.stops:
            new = process._replace(runs=False, leads=0)
            yield lived("x", f"broker {broker} stops", new, known, left._replace(stops=left.stops - 1))
        if process.runs and left.fences and known[:2] == (process.life, True):
            less = left._replace(fences=left.fences - 1)
            yield lived("x", f"broker {broker} runs, and is fenced", process, ended(known, process.life), less)

    def _says(self, state: State, broker: int, process: Process) -> Iterator[Step]:
        left, row, r, me = state.left, state.row, self._resources[state.is_deleted], (broker, process.life)
        if left.terms and process.has:
            term = len(state.won) + 2
            new = process._replace(leads=term)
            after = state._replace(processes=put(state.processes, broker, new), won=(*state.won, me))
            less = left._replace(terms=left.terms - 1)
            yield Step("x", f"{me} has won term {term}", after._replace(left=less))
        for at, member in enumerate(state.won):
            if member == me:
                item: dict[str, Any] = {"broker": broker, "broker_epoch": process.life, "term": at + 2}
                answer = self.rules.said("claim", row, state.fences, r, item)
                if not isinstance(answer, Refused):
                    yield Step("s", f"{me} claims term {at + 2}", state._replace(row=answer[1]))
        if left.seals and process.leads:
            seal = me, process.leads, left.seals
            after = state._replace(seals=state.seals | {seal}, left=left._replace(seals=left.seals - 1))
            yield Step("x", f"{me} seals at {left.seals}", after)
        if row.state == a.DELETING and process.has:
            after = state._replace(processes=put(state.processes, broker, process._replace(has=False, leads=0)))
            yield Step("s", f"{me} deletes what it has", after)
        if row.state == a.DELETING and not process.has:
            item = {"broker": broker, "broker_epoch": process.life, "leader_epoch": row.leader_epoch}
            answer = self.rules.said("release", row, state.fences, r, item)
            if not isinstance(answer, Refused):
                yield Step("s", f"{me} has deleted it", state._replace(row=answer[1]))

    def canonical(self, state: State) -> State:
        """Nobody compares partition_epochs here."""
        return state._replace(row=state.row._replace(partition_epoch=0))

    # --- what must hold ---

    def check(self, state: State) -> None:
        """Who leads has won the term; what is deleted is had by nobody but the dead."""
        row = state.row
        if row.leader is not None and row.leader not in state.won[row.leader_epoch - 2 : row.leader_epoch - 1]:
            raise Violation("leader", "one leads in a term that another has won")
        for broker, process in enumerate(state.processes):
            if row.state == a.DELETING and process.has and broker not in row.replicas and state.fences[broker][1]:
                raise Violation("deleted", "a replica that lives is not waited for")

    def check_step(self, before: State, after: State) -> None:
        """Epochs only grow, and what is sealed stays so."""
        old, new = before.row, after.row
        if new is old or new == old:
            return
        if new.partition_epoch <= old.partition_epoch or new.leader_epoch < old.leader_epoch:
            raise Violation("epochs", "one does not grow")
        if new.leader not in (None, old.leader) and new.leader_epoch <= old.leader_epoch:
            raise Violation("epochs", "another life leads, and leader_epoch is the same")
        if old.end is not None and new.end != old.end:
            raise Violation("sealed", "what was sealed ends elsewhere")
        if old.state == a.DELETING and new.state != a.DELETING:
            raise Violation("deleted", "it is there again")

    def _at_rest(self, state: State) -> None:
        """Who has won the newest term leads; what is deleted is gone."""
        row = state.row
        if state.is_deleted:
            if row.state != a.DELETING or row.replicas:
                raise Violation("liveness", "it is not gone, though all brokers run")
        elif state.won and state.processes[state.won[-1][0]].life == state.won[-1][1] and row.leader != state.won[-1]:
            raise Violation("liveness", "who has won the newest term never leads")
