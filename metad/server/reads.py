"""Reads: answered once it is certain that nobody else leads any of the groups they ask, and once these have come as far
as the read wants.

What has been answered is in the state that answers, so a group is never behind a revision that it gave out, unless it
has lost what it had, by a power failure without fsync or by a directory from a backup. Then such a read says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from metad_wire.errors import (
    DeadlineExceededError,
    InternalError,
    InvalidRequestError,
    MetadError,
    NotLeaderError,
    UnknownOutcomeError,
)
from metad_wire.group import GroupId
from metad_wire.methods import encode
from metad_wire.transport.turns import Turns

from ..errors import StorageError
from ..logs import bug
from ..state.rows import Rows
from ..state.tables import SPENT_BYTES, Command, Verb
from .driver import GroupDriver
from .environment import Environment
from .expiry import Expiry
from .fair_queue import SHARE_ITEMS, FairQueue
from .groups import Groups
from .health import Health
from .parts import Done, Replies
from .precedence import Precedence
from .room import Room

_SLICE_SPENT = 256
"""Of reads that were proven together and are answered in one go, in rows looked at: about a millisecond."""
_PIECE_ROWS = 256
"""A read of more records than this is done in pieces of so many, about a millisecond each, with turns of others between
them. Each piece sees a state at least as new as the proof of the lead, which is all that a read of several promises."""
_BEHIND_S = 10.0  # a read waits no longer for a revision, whatever its deadline: it may never come


class Reads:
    """Those that wait for a proof, and what answers them."""

    def __init__(
        self,
        groups: Groups,
        replies: Replies,
        room: Room,
        environment: Environment,
        health: Health,
        precedence: Precedence,
    ) -> None:
        self._precedence = precedence
        self._groups = groups
        self._replies = replies
        self._room = room
        self._environment = environment
        self._health = health
        self.spent = 0
        """What all reads have cost so far, in rows looked at."""
        self._waiting: dict[int, _Unproven] = {}
        self._proven: deque[tuple[int, Callable[[], None]]] = deque()
        self._long: FairQueue[_Long] = FairQueue()
        self._at_long = False
        self._expiry = Expiry(environment, self._expire)
        self._last = 0

    def begin(
        self,
        verb: Verb[Any, Any],
        body: Any,
        parts: dict[int, Rows],
        held: int,
        deadline_s: float,
        done: Done,
        source: object,
    ) -> None:
        """Read, now or when the leaders of all parts have heard from their followers. Raises MetadError."""
        drivers = [self._groups.driver(GroupId(verb.table.kind, ordinal)) for ordinal in parts]
        for driver in drivers:
            if not driver.group.may_read():
                break
        else:
            if not body.min_revisions or not _behind(drivers, body):
                if _rows(parts) > _PIECE_ROWS:
                    self._room.take(held)
                    self._begin_long(verb, body, parts, _Unproven(done, held, deadline_s), source)
                else:
                    done(self._read(verb, body, parts))
                return
        for driver in drivers:
            if not driver.group.is_leader:
                raise driver.not_leader()
        self._room.take(held)
        self._last += 1
        number, missing = self._last, len(drivers)
        self._waiting[number] = _Unproven(done, held, deadline_s)
        self._expiry.arm()

        def proven(ok: bool) -> None:
            nonlocal missing
            if number not in self._waiting:
                return  # answered: another group was lost, or the node
            missing -= 1
            if not ok:
                self._answer(number, NotLeaderError("the leader changed before the read; nothing was done"))
            elif not missing:
                if behind := _behind(drivers, body):
                    missing = len(behind)
                    self._await(number, behind, proven)
                    return
                if not self._proven:
                    self._environment.call_soon(self._read_proven)
                self._proven.append((number, partial(self._read_late, number, verb, body, parts, source)))

        for driver in drivers:
            driver.group.read(proven)

    def _read_proven(self) -> None:
        """Answer reads for a while; one round of heartbeats may have proven thousands."""
        begun_at = self.spent
        while self._proven and self.spent - begun_at < _SLICE_SPENT:
            number, read = self._proven.popleft()
            if number in self._waiting:  # it is answered already where it has waited too long, or the node has ended
                read()
        if self._proven:
            self._environment.call_soon(self._read_proven)

    def abandon(self, reason: str) -> None:
        """The node cannot go on."""
        for number in list(self._waiting):
            self._answer(number, UnknownOutcomeError(reason))
        for read in self._long.drain():
            self._room.give(read.waiting.held)
            read.waiting.done(UnknownOutcomeError(reason))

    def stop(self) -> None:
        """No more timers."""
        self._expiry.stop()

    def _await(self, number: int, behind: list[tuple[GroupDriver, int]], reached: Callable[[bool], None]) -> None:
        for driver, revision in behind:
            driver.await_revision(number, revision, reached)
        waiting = self._waiting[number]
        until_s = min(waiting.deadline_s, self._environment.now() + _BEHIND_S)
        self._waiting[number] = waiting._replace(deadline_s=until_s, behind=[driver for driver, _ in behind])

    def _answer(self, number: int, answer: bytes | MetadError) -> None:
        waiting = self._waiting.pop(number)
        for driver in waiting.behind:
            driver.await_no_more(number)
        self._room.give(waiting.held)
        waiting.done(answer)

    def _expire(self, now_s: float) -> bool:
        for number, waiting in [(n, waiting) for n, waiting in self._waiting.items() if waiting.deadline_s < now_s]:
            why = "a group has not come to the revision that was asked for" if waiting.behind else "it was not begun"
            self._answer(number, DeadlineExceededError(f"the read waited too long: {why}; nothing was done"))
        return bool(self._waiting)

    def _read_late(self, number: int, verb: Verb[Any, Any], body: Any, parts: dict[int, Rows], source: object) -> None:
        waiting = self._waiting.pop(number)  # before it is read: what ends the node answers all that waits
        if _rows(parts) > _PIECE_ROWS:
            self._begin_long(verb, body, parts, waiting, source)
            return
        try:
            answer: bytes | MetadError = self._read(verb, body, parts)
        except Exception as error:  # noqa: BLE001 - told to whoever asked, and logged
            answer = failed(verb.method.name, error, self._health)
        self._room.give(waiting.held)
        waiting.done(answer)

    # --- in pieces ---------------------------------------------------------------------------------------

    def _begin_long(
        self, verb: Verb[Any, Any], body: Any, parts: dict[int, Rows], waiting: _Unproven, source: object
    ) -> None:
        pieces = [
            (ordinal, self._replies.part(verb, body, piece, len(parts), of=rows))
            for ordinal, rows in parts.items()
            for piece in rows.cut(_PIECE_ROWS)
        ]
        self._long.add(_Long(verb, body, pieces, waiting, source))
        if not self._at_long:
            self._at_long = True
            self._take_turns()

    def _take_turns(self) -> None:
        Turns.here().take(self._next_piece)

    def _next_piece(self) -> bool:
        """Do a piece of a long read, of each source in turn; whether there is more to do at once."""
        if self._long and (wait_s := self._precedence.heavy_wait_s):
            self._environment.call_at(self._environment.now() + wait_s, self._take_turns)
            return False
        begun_s = self._environment.now()
        if self._long:
            read = self._long.pop()
            answer = self._advanced(read)
            if answer is None:
                self._long.add(read)
            else:
                self._room.give(read.waiting.held)
                read.waiting.done(answer)
            self._precedence.heavy_done(begun_s)
        self._at_long = bool(self._long)
        return self._at_long

    def _advanced(self, read: _Long) -> bytes | MetadError | None:
        """The answer, once it is known."""
        try:
            if read.waiting.deadline_s < self._environment.now():
                raise DeadlineExceededError("the deadline passed before everything was read; nothing was done")
            ordinal, part = read.pieces.popleft()
            part.reply_bytes_max -= read.taken.get(ordinal, 0)
            spent = self.spent
            read.results.append((part.rows, self._read_part(read.verb, ordinal, part)))
            # What a read has cost says how long its records are, to a kilobyte in thirty.
            taken = (self.spent - spent - len(part.rows)) * SPENT_BYTES
            read.taken[ordinal] = read.taken.get(ordinal, 0) + max(taken, 0)
            return None if read.pieces else self._reply(read.verb, read.body, read.results)
        except Exception as error:  # noqa: BLE001 - told to whoever asked, and logged
            return failed(read.verb.method.name, error, self._health)

    def _read(self, verb: Verb[Any, Any], body: Any, parts: dict[int, Rows]) -> bytes:
        results: list[tuple[Rows, Any]] = []
        for ordinal, rows in parts.items():
            results.append((rows, self._read_part(verb, ordinal, self._replies.part(verb, body, rows, len(parts)))))
        return self._reply(verb, body, results)

    def _read_part(self, verb: Verb[Any, Any], ordinal: int, part: Command[Any]) -> Any:
        assert verb.read is not None
        driver = self._groups.driver(GroupId(verb.table.kind, ordinal))
        if driver.installing:  # since this group's proof, while another's was waited for, or between two pieces
            raise driver.not_leader()
        machine, reader = driver.machine, driver.machine.reader
        machine.slots.check(part.rows)
        begun_at = reader.spent
        try:
            return verb.read(reader, part)
        finally:
            self.spent += reader.spent - begun_at

    def _reply(self, verb: Verb[Any, Any], body: Any, results: list[tuple[Rows, Any]]) -> bytes:
        reply = encode(verb.merge(body, results))
        if len(reply) > self._replies.bytes_max:  # keys of 4 KiB can outweigh the records
            raise InvalidRequestError("the reply would not fit a frame: ask for fewer records at once")
        return reply


def failed(name: str, error: Exception, health: Health) -> MetadError:
    """What a client is told where a verb raised."""
    if isinstance(error, MetadError):
        return error
    if isinstance(error, StorageError):
        health.fail(error)
        return InternalError("the node's storage failed; its log says more")
    bug(name, error)
    return InternalError(f"{name} failed; the server's log says why")


class _Long:
    """A read that is done in pieces."""

    __slots__ = ("body", "items", "pieces", "results", "source", "taken", "verb", "waiting")

    def __init__(
        self,
        verb: Verb[Any, Any],
        body: Any,
        pieces: Iterable[tuple[int, Command[Any]]],
        waiting: _Unproven,
        source: object,
    ) -> None:
        self.verb = verb
        self.body = body
        self.pieces = deque(pieces)
        """(group, its next part)."""
        self.waiting = waiting
        self.source = source
        self.items = SHARE_ITEMS  # a piece is a turn
        self.results: list[tuple[Rows, Any]] = []
        self.taken: dict[int, int] = {}
        """Bytes of records found so far, by group."""


class _Unproven(NamedTuple):
    """A read that waits until it is certain who leads."""

    done: Done
    held: int
    deadline_s: float
    behind: Sequence[GroupDriver] = ()
    """Groups that have not come as far as it wants."""


def _rows(parts: dict[int, Rows]) -> int:
    return sum(map(len, parts.values()))


def _behind(drivers: list[GroupDriver], body: Any) -> list[tuple[GroupDriver, int]]:
    """The groups that have not come as far as the read wants, and how far that is."""
    wanted: dict[str, int] = {}
    for revision in body.min_revisions:
        wanted[revision.group] = max(revision.index, wanted.get(revision.group, 0))
    return [
        (driver, revision)
        for driver in drivers
        if (revision := wanted.get(driver.machine.name, 0)) > driver.machine.revision
    ]
