"""The world of a partition with one owner.

Of each broker several lives may run at once: a second process of the same name. A life serves while its lease runs by
its own clock, and its view of the record names it as the owner. ``metadata-0`` registers lives, and fences them after
silence (then the lease is over, where clocks run), or at once: an administrator does, or a newer life registers.
``quiet_epoch`` of a fence follows it. ``other`` is a group that owners write to.

Kinds of steps: ``s`` those that happen by themselves, ``x`` the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from metad_judge.invariants import Violation
from metad_wire.tables import assignment as a

from .exploring import Goal, Step
from .in_sync import put
from .judging import PLAIN, Member, Preference, Refused, Row, Rules, Said, merged, resource

View = tuple[int, str]
"""(leader_epoch, state) of the record that names a life."""


@dataclass(frozen=True)
class Config:
    """How large, and how often the environment may do what."""

    brokers: int = 2
    replicas: tuple[int, ...] = (0, 1)
    outside: bool = False
    """Whether a broker may own the partition that is no replica, where no replica lives."""
    clocks: bool = True
    """Whether a lease ends by the clock of its broker before it ends by that of ``metadata-0``."""
    everywhere: bool = False
    """Whether a life is quiet only once the other group is told, too."""
    lives: int = 1
    fences: int = 1
    hands: int = 1
    """Hand-overs that somebody asks for."""
    wanted: tuple[int, ...] = ()
    """They are moves of the partition to these brokers; none: an administrator chooses the owner."""
    cancels: int = 1
    writes: bool = False


class Life(NamedTuple):
    """A process."""

    leases: bool
    """Whether its lease runs, by its own clock."""
    view: View | None


class Budget(NamedTuple):
    """How often something may happen still."""

    lives: int
    fences: int
    hands: int
    cancels: int


class State(NamedTuple):
    """Of the world."""

    lives: tuple[tuple[Member, Life], ...]
    registry: tuple[Said, ...]
    fences: tuple[Said, ...]
    row: Row
    released: frozenset[tuple[Member, int]]
    """On their way: (life, leader_epoch)."""
    other: tuple[tuple[int, ...], int]
    """(least epochs by broker, the leader_epoch of the newest effect) of the other group."""
    left: Budget


class Owner:
    """The world."""

    def __repr__(self) -> str:
        return repr(self.config)

    def __init__(self, config: Config) -> None:
        self.config = config
        self.rules = Rules(config.brokers)
        self._resource = resource("owner", len(config.replicas))
        self._preference = Preference(replacing=True) if config.outside else PLAIN
        self.goals: tuple[Goal, ...] = (Goal("s", self._served),)
        self._compares_epochs = self._is_compared()

    def _is_compared(self) -> bool:
        start = self.start()
        item = {"broker": 0, "broker_epoch": 1, "leader_epoch": -1}
        return isinstance(self.rules.said("release", start.row, start.fences, self._resource, item), Refused)

    def start(self) -> State:
        """All run; the first one owns the partition."""
        c = self.config
        owner = c.replicas[0], 1
        row = Row(0, 1, owner, frozenset([owner]), frozenset(), c.replicas, 1)
        lives = tuple(((broker, 1), Life(True, None)) for broker in range(c.brokers))
        known: tuple[Said, ...] = ((1, True, 0, 1),) * c.brokers
        other = (1,) * c.brokers, 0
        return State(lives, known, known, row, frozenset(), other, Budget(c.lives, c.fences, c.hands, c.cancels))

    # --- what happens ---

    def steps(self, state: State) -> Iterator[Step]:
        """All that may happen."""
        for broker in range(self.config.brokers):
            yield from self._registry(state, broker)
        for member, life in state.lives:
            yield from self._lives(state, member, life)
        yield from self._decides(state)
        yield from self._administrators(state)

    def _registry(self, state: State, broker: int) -> Iterator[Step]:
        least, live, unclean, quiet = state.registry[broker]
        left, lives = state.left, dict(state.lives)

        def said(kind: str, name: str, new: Said, left: Budget = left) -> Step:
            return Step(kind, name, state._replace(registry=put(state.registry, broker, new), left=left))

        if left.lives:
            epoch = least + 1 if live else least
            new = epoch, True, unclean, quiet
            kind, name, after = said(
                "x", f"life {epoch} of {broker} registers", new, left._replace(lives=left.lives - 1)
            )
            lived = _with(state.lives, (broker, epoch), Life(True, None))
            yield Step(kind, name, after._replace(lives=lived))
        if live and left.fences:
            new = least + 1, False, unclean, quiet
            yield said("x", f"an administrator fences {broker}", new, left._replace(fences=left.fences - 1))
        leased = [epoch for (name, epoch), life in state.lives if name == broker and life.leases]
        current = lives.get((broker, least))
        if live and (current is None or not current.leases or not self.config.clocks):
            silent = all(epoch > least for epoch in leased)
            new = least + 1, False, unclean, least + 1 if silent else quiet
            yield said("s", f"{broker} was silent: fenced", new)
        over = not self.config.clocks or all(epoch >= least for epoch in leased)
        told = not self.config.everywhere or state.other[0][broker] >= least
        if quiet < least and over and told:
            yield said("s", f"{broker} is quiet below {least}", (least, live, unclean, least))
        new = merged(state.fences[broker], state.registry[broker])
        if self.config.everywhere and new[3] > state.other[0][broker]:
            new = (*new[:3], state.fences[broker][3])
        if new != state.fences[broker]:
            yield Step(
                "s", f"the group is told {new} of {broker}", state._replace(fences=put(state.fences, broker, new))
            )
        if self.config.writes and state.other[0][broker] < least:
            after = state._replace(other=(put(state.other[0], broker, least), state.other[1]))
            yield Step("s", f"the other group fences {broker} below {least}", after)

    def _lives(self, state: State, member: Member, life: Life) -> Iterator[Step]:
        leases, view = life
        row = state.row
        yield Step("x", f"{member} dies", state._replace(lives=_with(state.lives, member, None)))
        if leases:
            after = state._replace(lives=_with(state.lives, member, Life(False, view)))
            yield Step("x", f"the lease of {member} ends", after)
        elif state.registry[member[0]][:2] == (member[1], True):
            after = state._replace(lives=_with(state.lives, member, Life(True, view)))
            yield Step("x", f"{member} is heard again", after)
        now = (row.leader_epoch, row.state) if row.leader == member else None
        if view != now:
            after = state._replace(lives=_with(state.lives, member, Life(leases, now)))
            yield Step("s", f"{member} learns leader_epoch {row.leader_epoch}", after)
        if view is None:
            return
        leader_epoch, what = view
        if what == a.RELEASING and (member, leader_epoch) not in state.released:
            after = state._replace(released=state.released | {(member, leader_epoch)})
            yield Step("s", f"{member} has stopped, and releases {leader_epoch}", after)
        least, newest = state.other
        if self.config.writes and what == a.ONLINE and leases and least[member[0]] <= member[1]:
            if newest > leader_epoch:
                raise Violation("order", "an effect of an earlier owner comes behind one of a later owner")
            if newest < leader_epoch:
                after = state._replace(other=(least, leader_epoch))
                yield Step("x", f"{member} writes to the other group as owner {leader_epoch}", after)

    def _decides(self, state: State) -> Iterator[Step]:
        row, fences, r, preference = state.row, state.fences, self._resource, self._preference
        plain = self.rules.looked(row, fences, r, preference)
        if plain != row:
            yield Step("s", "the group decides", state._replace(row=plain))
        for first in range(self.config.brokers):
            draining = frozenset(range(self.config.brokers)) - {first}
            new = self.rules.looked(row, fences, r, preference._replace(draining=draining))
            if new not in (plain, row):
                yield Step("x", "the group decides, where brokers drain", state._replace(row=new))
        for member, leader_epoch in state.released:
            item = {"broker": member[0], "broker_epoch": member[1], "leader_epoch": leader_epoch}
            answer = self.rules.said("release", row, fences, r, item, preference)
            if not isinstance(answer, Refused):
                left = state.released - {(member, leader_epoch)} if self._compares_epochs else state.released
                after = state._replace(row=answer[1], released=left)
                yield Step("s", f"the release of {leader_epoch} by {member} counts", after)

    def _administrators(self, state: State) -> Iterator[Step]:
        row, fences, r, left, c = state.row, state.fences, self._resource, state.left, self.config
        less = left._replace(hands=left.hands - 1)
        if left.hands and c.wanted:
            answer = self.rules.said("begin", row, fences, r, {"wanted": c.wanted}, self._preference)
            if not isinstance(answer, Refused):
                yield Step("x", "a move begins", state._replace(row=answer[1], left=less))
        elif left.hands:
            for broker in range(c.brokers):
                answer = self.rules.said("elect", row, fences, r, {"broker": broker}, self._preference)
                if not isinstance(answer, Refused):
                    yield Step("x", f"an administrator chooses {broker}", state._replace(row=answer[1], left=less))
        if left.cancels:
            answer = self.rules.said("move", row, fences, r, {"wanted": ()}, self._preference)
            if not isinstance(answer, Refused):
                less = left._replace(cancels=left.cancels - 1)
                yield Step("x", "the move is cancelled", state._replace(row=answer[1], left=less))

    # --- how states are compared ---

    def canonical(self, state: State) -> State:
        """With epochs ranked, and without what can have no effect."""
        row, released = state.row, state.released
        if self._compares_epochs:
            released = frozenset(one for one in released if one[1] == row.leader_epoch)
        epochs = {row.leader_epoch, state.other[1], *(epoch for _, epoch in released)}
        epochs |= {life.view[0] for _, life in state.lives if life.view is not None}
        rank = {epoch: at for at, epoch in enumerate(sorted(epochs))}
        return state._replace(
            lives=tuple(
                (member, life if life.view is None else Life(life.leases, (rank[life.view[0]], life.view[1])))
                for member, life in state.lives
            ),
            row=row._replace(partition_epoch=0, leader_epoch=rank[row.leader_epoch]),
            released=frozenset((member, rank[epoch]) for member, epoch in released),
            other=(state.other[0], rank[state.other[1]]),
        )

    # --- what must hold ---

    def _serving(self, state: State) -> list[Member]:
        return [m for m, life in state.lives if life.leases and life.view is not None and life.view[1] == a.ONLINE]

    def check(self, state: State) -> None:
        """One serves at a time, and each leader_epoch has one owner."""
        serving = self._serving(state)
        if len(serving) > 1 and not (self.config.writes and not self.config.clocks):
            raise Violation("owner", f"two serve at once: {serving}")
        owners: dict[int, Member] = {}
        for member, life in state.lives:
            if life.view is not None and owners.setdefault(life.view[0], member) != member:
                raise Violation("owner", "two own it in one leader_epoch")

    def check_step(self, before: State, after: State) -> None:
        """Epochs only grow, and one that names another owner does."""
        old, new = before.row, after.row
        if new is old or new == old:
            return
        if new.partition_epoch <= old.partition_epoch or new.leader_epoch < old.leader_epoch:
            raise Violation("epochs", "one does not grow")
        if new.leader != old.leader and new.leader_epoch <= old.leader_epoch:
            raise Violation("epochs", "another life owns it, or none, and leader_epoch is the same")

    def _served(self, state: State) -> None:
        """Whoever is registered and runs: one of them serves."""
        able = [
            member
            for member, life in state.lives
            if life.leases and state.registry[member[0]][:2] == (member[1], True) and self._may(state, member[0])
        ]
        zombies = any(
            life.leases and state.registry[member[0]][:2] != (member[1], True) for member, life in state.lives
        )
        if able and self.config.clocks and not zombies and not self._serving(state):
            raise Violation("liveness", "nobody serves for ever, though a broker could")
        move = state.row.move
        if (
            move is not None
            and not zombies
            and self._serving(state)
            and any(state.fences[broker][1] for broker in move[1])
        ):
            raise Violation("liveness", "a move never ends, though a broker lives that is to own it")

    def _may(self, state: State, broker: int) -> bool:
        return self.config.outside or broker in state.row.replicas


def _with(lives: tuple[tuple[Member, Life], ...], member: Member, life: Life | None) -> tuple[tuple[Member, Life], ...]:
    others = {one: what for one, what in lives if one != member}
    if life is not None:
        others[member] = life
    return tuple(sorted(others.items(), key=lambda item: item[0]))
