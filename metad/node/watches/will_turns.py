"""Whose turn it is to claim wills, in the groups that this node leads.

Brokers wait for their turns, and one at a time gets it: so a will is heard of by one broker, however many there are.
A turn is given when a read finds a will that may be claimed, to who has waited the longest. It ends with the claim of
that broker, or when its time is over: then the next one has it. So a broker that has died, or does something else,
delays wills by the time of a turn; then it is behind all others until it uses one. Turns are only about who hears of
wills; a claim decides who has one.

What commands make of wills is heard of at once (:class:`metad.state.session.will_news.WillNews`). What comes otherwise,
because a claim is over or slots move here, is found by a look at all wills of the group from time to time.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Final

from metad_wire.errors import (
    CancelledError,
    DrainingError,
    InvalidRequestError,
    MetadError,
    StaleRouteError,
    UnknownOutcomeError,
)
from metad_wire.messages import BROKER_BYTES_MAX, Owner, Revision
from metad_wire.methods import WILL_WAIT, encode
from metad_wire.policy.slices import Slices
from metad_wire.tables.will import WillWait, WillWaitReply

from ...state.cluster.fences import Fences
from ...state.session.will_news import WillNews
from ...state.session.wills import just_before
from ..environment import Deadlines, Environment, Timer
from ..replicas.driver import GroupDriver, Work
from ..requests.requests import Requests

TURN_S: Final = 0.2
"""Some round trips. Who has not claimed by then has died, or has something else to do."""
PAUSE_S: Final = 0.02
"""Between a turn and the next one: what becomes due meanwhile is claimed at once, by one entry."""
LOOK_S: Final = 1.0
"""How often all wills are looked at while somebody waits and there may be any."""
_REST: Final = 50
"""A look at all of them is followed by a rest of so many times its own duration at least: the engine keeps deleted rows
for a while, and a look that begins with the first one goes past them."""
_LOOKS_MAX: Final = 10
"""Of those looks in one go, if many tenants are waited for."""
_MISSED_MAX: Final = 256
"""Names of brokers that are remembered for a line."""
_END: Final = b"\xff"
"""Behind all keys."""


class _Line:
    """Those who wait for wills of a group: of one tenant, or of any."""

    __slots__ = (
        "again",
        "all_since_s",
        "any",
        "at",
        "driver",
        "late",
        "look_s",
        "looking",
        "machine",
        "missed",
        "quiet",
        "revision",
        "slots",
        "soon",
        "tenant",
        "timer",
        "turn_of",
        "turn_until_s",
        "works",
    )

    def __init__(self, driver: GroupDriver, tenant: str | None, look_s: float) -> None:
        self.driver = driver
        self.machine = driver.machine
        self.tenant = tenant
        self.works: deque[Work] = deque()
        self.missed: dict[str, None] = {}
        """Brokers that let a turn pass, and have not used one since."""
        self.late: deque[Work] = deque()
        """Those of ``missed`` wait behind all others."""
        self.at = b""
        """No will that is behind this cursor, and none that is before it, may be claimed, as far as is known."""
        self.revision = 0
        """The state in which to look."""
        self.quiet = False
        """Whether a look has found nothing, and nothing was heard of since."""
        self.looking = self.again = self.soon = False
        """Whether a look is under way, whether something was heard of since the last one began, and whether one begins
        soon."""
        self.turn_of = ""
        self.turn_until_s = 0.0
        """Whose turn it is, and until when nobody else gets one."""
        self.timer: Timer | None = None
        self.look_s = look_s
        """When to look at all wills."""
        self.any = False
        """Whether there may be wills, also such as somebody has claimed. The first look is at all of them."""
        self.slots = driver.machine.slots.mask
        """Those of the group; others bring wills."""
        self.all_since_s: float | None = None
        """Since when a look at all wills is under way."""

    def heard(self, revision: int, at: bytes) -> None:
        """A will behind this cursor may be claimed."""
        self.revision = max(self.revision, revision)
        self.at = min(self.at, at)
        self.quiet = False
        self.again = self.any = True

    def add(self, work: Work) -> None:
        """One more waits."""
        (self.late if work.command.body.broker in self.missed else self.works).append(work)

    def turn_missed(self) -> None:
        """The broker whose turn it was has not claimed anything."""
        missed, self.turn_of = self.turn_of, ""
        self.missed.pop(missed, None)
        self.missed[missed] = None
        waiting, self.works = self.works, deque()
        for work in waiting:
            self.add(work)
        if len(self.missed) > _MISSED_MAX:
            del self.missed[next(iter(self.missed))]

    @property
    def next(self) -> deque[Work]:
        """What the next one waits in; empty if nobody does."""
        return self.works or self.late


class _Ear:
    """Hears the news of a group."""

    def __init__(self, turns: WillTurns, driver: GroupDriver) -> None:
        self._turns = turns
        self._driver = driver

    def claimable(self, revision: int, tenant: str, key: bytes) -> None:
        for named in (tenant, None):
            self._turns.heard(self._driver, named, revision, just_before(key))

    def claimed(self, revision: int, broker: str, count: int, *, more: bool) -> None:
        self._turns.claimed(self._driver, revision, broker, count, more=more)


class WillTurns:
    """Those of a node."""

    def __init__(self, requests: Requests, environment: Environment) -> None:
        self._requests = requests
        self._environment = environment
        self._slices = Slices(environment.call_soon)
        self._lines: dict[tuple[GroupDriver, str | None], _Line] = {}
        self._in_turn: dict[_Line, None] = {}
        self._draining = False
        self._ticks = Deadlines(environment, self._tick)

    def wait(self, driver: GroupDriver, work: Work) -> None:
        """Answer the work, a ``will.wait``, when it is its broker's turn, or its time is over. Raises MetadError."""
        if not driver.group.is_leader or driver.installing:
            raise driver.not_leader()
        if self._draining:
            raise DrainingError
        body: WillWait = work.command.body
        if len(body.broker.encode()) > BROKER_BYTES_MAX:
            raise InvalidRequestError(f"the broker's name takes over {BROKER_BYTES_MAX} bytes")
        key = driver, body.tenant
        line = self._lines.get(key)
        if line is None or line.machine is not driver.machine:
            hears = driver.machine.parts[WillNews].hears
            if not hears:
                hears.append(_Ear(self, driver))
            if line is not None:
                self._in_turn.pop(line, None)
                self._end(line, driver.not_leader())
            line = self._lines[key] = _Line(driver, body.tenant, self._environment.now() + LOOK_S)
        line.add(work)
        self._ticks.arm()
        if not line.quiet:
            self._look_soon(line)

    def drain(self) -> None:
        """Nobody waits here any more."""
        self._draining = True
        for line in self._lines.values():
            self._end(line, DrainingError())

    def abandon(self, reason: str) -> None:
        """The node cannot go on."""
        for line in self._lines.values():
            self._end(line, UnknownOutcomeError(reason))

    def stop(self) -> None:
        """Stop the timers."""
        self._ticks.stop()
        for line in self._lines.values():
            if line.timer is not None:
                line.timer.cancel()

    # --- news --------------------------------------------------------------------------------------------

    def heard(self, driver: GroupDriver, tenant: str | None, revision: int, at: bytes) -> None:
        """A will behind this cursor may be claimed once the group has come to this revision."""
        line = self._lines.get((driver, tenant))
        if line is not None:
            line.heard(revision, at)
            self._look_soon(line)

    def claimed(self, driver: GroupDriver, revision: int, broker: str, count: int, *, more: bool) -> None:
        """A broker has claimed so many wills. Its turn is over."""
        for line in [line for line in self._in_turn if line.driver is driver and line.turn_of == broker]:
            del self._in_turn[line]
            line.missed.pop(broker, None)
            line.revision = max(line.revision, revision)
            line.turn_of, line.any = "", True
            if count or line.again:
                line.turn_until_s = min(line.turn_until_s, self._environment.now() + (0.0 if more else PAUSE_S))
            else:  # by the log's time there is none, which may be behind: the next look at all will find out
                line.quiet, line.at, line.turn_until_s = True, _END, 0.0
            self._look_soon(line)

    # --- looks -------------------------------------------------------------------------------------------

    def _look_soon(self, line: _Line) -> None:
        """Look once what is being done is done: news come in the middle of an evaluation."""
        if not (line.soon or line.looking or line.quiet):
            line.soon = True
            self._environment.call_soon(partial(self._look, line))

    def _look(self, line: _Line) -> None:
        line.soon = False
        if line.looking or line.quiet:
            return
        now_s = self._environment.now()
        if line.timer is not None:
            line.timer.cancel()
            line.timer = None
        if line.turn_until_s > now_s:
            line.timer = self._environment.call_at(line.turn_until_s, partial(self._look, line))
            return
        if line.turn_of and line.next:
            self._in_turn.pop(line, None)
            line.turn_missed()
        first = self._first(line)
        if first is None:
            return
        line.looking, line.again = True, False
        line.all_since_s = None if line.at else now_s
        body: WillWait = first.command.body
        revisions = [Revision(line.machine.name, line.revision)] if line.revision else []
        asked = WillWait(body.broker, body.broker_epoch, 0, line.tenant, line.at, revisions)
        line.at = _END
        self._requests.request(WILL_WAIT, asked, partial(self._looked, line), group=line.driver.group.name)

    def _looked(self, line: _Line, outcome: bytes | MetadError) -> None:
        line.looking = False
        if isinstance(outcome, MetadError):
            self._end(line, outcome)
            return
        reply = WILL_WAIT.decode_reply(outcome)
        now_s = self._environment.now()
        if line.all_since_s is not None:
            line.look_s = now_s + max(LOOK_S, _REST * (now_s - line.all_since_s))
            line.all_since_s = None
        line.any |= reply.claimable or reply.others or bool(reply.cursor)
        if not reply.claimable and not reply.cursor:
            line.quiet = not line.again
        else:
            line.at = min(line.at, reply.cursor)
            if reply.claimable and (first := self._first(line)) is not None:
                line.next.popleft()
                line.turn_of = first.command.body.broker
                line.turn_until_s = now_s + TURN_S
                self._in_turn[line] = None
                first.answer(encode(reply))
        self._look_soon(line)

    def _first(self, line: _Line) -> Work | None:
        """Who is next, of those that still wait and may claim."""
        fences = line.machine.parts[Fences]
        while waiting := line.next:
            work = waiting[0]
            if (over := _over(work, fences)) is None:
                return work
            waiting.popleft()
            work.answer(over)
        return None

    # --- the end of waiting ------------------------------------------------------------------------------

    def _end(self, line: _Line, error: MetadError) -> None:
        """Nobody waits in this line any more."""
        while waiting := line.next:
            self._slices.now(partial(waiting.popleft().answer, error))

    def _tick(self, now_s: float) -> bool:
        looks = 0
        for key, line in [*self._lines.items()]:
            driver = line.driver
            if not driver.group.is_leader or driver.installing or driver.machine is not line.machine:
                self._end(line, driver.not_leader())
            elif line.slots is not line.machine.slots.mask:
                # Those who wait may not know of the groups where the slots are now. And wills may have come with slots.
                line.slots, line.any = line.machine.slots.mask, True
                self._end(line, StaleRouteError())
            self._end_single(line, now_s)
            if not line.next and line.turn_until_s <= now_s and not line.looking:
                del self._lines[key]
                self._in_turn.pop(line, None)
            elif line.look_s <= now_s and not line.looking and looks < _LOOKS_MAX:
                line.look_s = now_s + LOOK_S
                if line.any:
                    looks += 1
                    self._lines[key] = self._lines.pop(key)  # others are before it the next time
                    line.at, line.quiet, line.any = b"", False, False
                self._look_soon(line)
        return bool(self._lines)

    def _end_single(self, line: _Line, now_s: float) -> None:
        """Answer those whose wait is over, and lives that are. Many thousands may wait, and this is done ten times a
        second."""
        fences = line.machine.parts[Fences]
        allows = fences.allows
        over = [
            work
            for waiting in (line.works, line.late)
            for work in waiting
            if work.deadline_s <= now_s
            or work.cancelled
            or not allows(work.command.body.broker, work.command.body.broker_epoch)
        ]
        if not over:
            return
        ended = set(over)
        line.works = deque(work for work in line.works if work not in ended)
        line.late = deque(work for work in line.late if work not in ended)
        for work in over:
            error = None if work.deadline_s <= now_s else _over(work, fences)
            answer = encode(WillWaitReply(False, b"")) if error is None else error
            self._slices.now(partial(work.answer, answer))


def _over(work: Work, fences: Fences) -> MetadError | None:
    """Why this one waits no more, before its time is over."""
    if work.cancelled:
        return CancelledError("the request was cancelled; nothing was done")
    body: WillWait = work.command.body
    return fences.refusal(False, Owner(body.broker, body.broker_epoch))
