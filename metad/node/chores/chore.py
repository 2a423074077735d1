"""What a leader does for one group in batches, and nobody waits for: it reads the applied state, and orders the group
to end what it has found. What is really over is decided when the order is evaluated, so no chore has to be exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from metad_wire import cluster as c
from metad_wire.errors import MetadError, TooLargeError
from metad_wire.method import Method

from ... import log_events
from ...logs import event
from ...state.cluster.declarations import Declarations
from ...state.cluster.tenant_moves import TenantMoves
from ..environment import Environment
from ..replicas.driver import GroupDriver
from ..requests.requests import Requests

Done = Callable[[int | None], None]
"""A turn is over, in which so many sessions were asked for; None: it failed, and a later look finds out why."""
Answered = Callable[[bytes | MetadError], None]
"""Hears the answer to an order."""


class Batch:
    """How much the next order names: half of what was too much for an entry, and then twice as much each time."""

    __slots__ = ("_most", "size")

    def __init__(self, most: int) -> None:
        self.size = self._most = most

    def learn(self, asked: int, answer: bytes | MetadError) -> None:
        """An order that named so many was answered."""
        if isinstance(answer, bytes):
            self.size = min(self._most, 2 * self.size)
        elif isinstance(answer, TooLargeError):
            self.size = max(1, asked // 2)


class Means(NamedTuple):
    """What all chores of a node share."""

    requests: Requests
    environment: Environment
    counts: Counter[str]
    """How much was done since the start: sessions ``ended``, ``wills`` that became due, wills ``dropped``, and offsets
    ``deleted``."""


BEHIND_S: Final = 30.0
"""After this time behind, a chore rests half as long; after twice the time, a third; and so on."""


class Chore:
    """The base of all chores of a group. One order of each is under way at a time."""

    def __init__(self, driver: GroupDriver, batch: int, means: Means) -> None:
        self._driver = driver
        self._requests, self._environment, self._counts = means
        self._batch = Batch(batch)
        self._asking = False
        self._behind_s: float | None = None
        """Since when there has always been more that is over than an order names; None: it keeps up."""

    @property
    def hurry(self) -> float:
        """What the rest behind a turn of this chore is divided by. Deadlines do not wait: a chore that ends fewer than
        come due would be later by the hour, and what it should have ended would fill the disk."""
        return 1.0 if self._behind_s is None else 1.0 + (self._environment.now() - self._behind_s) / BEHIND_S

    def _keeps_up(self, does: bool) -> None:
        """Say whether the order that begins names all that is over."""
        if does:
            self._behind_s = None
        elif self._behind_s is None:
            self._behind_s = self._environment.now()

    def begin(self, room: int, done: Done) -> bool:
        """Do the next batch, of so many sessions at most, and call ``done`` once. False: there is nothing to do, and
        ``done`` is not called."""
        raise NotImplementedError

    def _leads(self) -> bool:
        """Whether this node leads the group, and may read its state."""
        return self._driver.group.accepting and not self._driver.installing

    def _past_ms(self) -> int:
        """The time by which deadlines are judged, by the group's log; 0: nothing is over for a while."""
        now_s, time = self._environment.now(), self._driver.machine.time
        time.next(self._environment.wall_ms(), now_s)
        return time.past_ms(now_s)

    def _ends_until_ms(self) -> int:
        """The time until which deadlines are over, for a chore that ends what has one (:attr:`hurry`); 0: not now."""
        if self._asking:
            return 0
        past_ms = self._past_ms() if self._leads() else 0
        if not past_ms:
            self._keeps_up(True)
        return past_ms

    def _holds(self, key: bytes) -> bool:
        """Whether the group holds the slot of this row, also by what is in flight. Rows of others came early, or are
        yet to be dropped."""
        return self._driver.machine.slots.holds_key(key)

    def _serves(self, key: bytes) -> bool:
        """Whether the group also serves the tenant of this row, which is not on its way to another cluster or from
        one."""
        machine = self._driver.machine
        moves = machine.parts[TenantMoves]
        if not moves.closed and not moves.closed_to_reads:
            return self._holds(key)
        return self._holds(key) and not moves.holds_back(key, machine.parts[Declarations].known)

    def _ask(self, method: Method[Any, Any], body: Any, answered: Answered) -> None:
        self._asking = True

        def done(answer: bytes | MetadError) -> None:
            self._asking = False
            self._batch.learn(len(getattr(body, "items", ())), answer)
            answered(answer)

        self._requests.request(method, body, done, group=self._driver.group.name)

    def _passes_over(self, items: Sequence[c.SessionDue | c.SessionEndItem]) -> bool:
        """Whether an order that is too much for an entry named one item only: then it is to hold up no other. It is
        logged."""
        if len(items) != 1:
            return False
        (item,) = items
        group = self._driver.group.name
        event(log_events.SWEEP_PASSED_OVER, group=group, tenant=item.tenant, client_id=item.client_id)
        return True
