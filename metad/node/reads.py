"""Reads: answered once it is certain that nobody else leads the group that they ask, and once it has come as far as the
read wants.

What has been answered is in the state that answers, so a group is never behind a revision that it gave out, unless it
has lost what it had, by a power failure without fsync or by a directory from a backup. Then such a read says so.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any

from metad_wire.errors import (
    DeadlineExceededError,
    InternalError,
    MetadError,
    NotLeaderError,
    TooLargeError,
    UnknownOutcomeError,
)
from metad_wire.frame import FRAME_BYTES_MAX, HEADER_BYTES
from metad_wire.messages import Message
from metad_wire.methods import encode
from metad_wire.policy.fair_queue import SHARE_ITEMS, FairQueue
from metad_wire.policy.precedence import Precedence
from metad_wire.transport.fair_share import FairShare

from ..control.host import Done
from ..errors import StorageError
from ..logs import bug
from ..state.tables import SPENT_BYTES, Command, Verb
from .deadlines import Deadlines
from .driver import GroupDriver
from .environment import Environment
from .health import Health
from .in_flight_budget import ITEM_BYTES, InFlightBudget

_SLICE_SPENT = 256
"""Of reads that were proven together and are answered in one go, in rows looked at: about a millisecond."""
_SLICE_READS = 128
"""The same in reads, which may look at no row; and of reads that waited too long."""
_PIECE_ROWS = 256
"""A read of more records than this is done in pieces of so many, about a millisecond each, with turns of others between
them. Each piece sees a state at least as new as the proof of the lead, which is all that a read of several promises."""
_READ_BYTES = 4 * ITEM_BYTES  # what a read takes while it waits, beside its items
_BEHIND_S = 10.0  # a read waits no longer for a revision, whatever its deadline: it may never come


class _Read:
    """A read that is not answered at once."""

    __slots__ = (
        "awaits",
        "command",
        "deadline_s",
        "done",
        "driver",
        "held",
        "items",
        "pieces",
        "replies",
        "source",
        "tenant",
        "verb",
    )

    def __init__(
        self,
        driver: GroupDriver,
        verb: Verb[Any, Any],
        command: Command[Any],
        held: int,
        deadline_s: float,
        done: Done,
        source: object,
    ) -> None:
        self.driver = driver
        self.verb = verb
        self.command = command
        self.held = held + _READ_BYTES + ITEM_BYTES * len(command.body.min_revisions)
        """What it takes while it waits, even if it asks for nothing: itself, and the revisions that it wants."""
        self.deadline_s = deadline_s
        self.done = done
        self.source = source
        self.tenant = command.tenant
        self.awaits = False
        """Whether it waits for a revision."""
        self.items = SHARE_ITEMS  # a piece is a turn
        self.pieces = command.rows.cut(_PIECE_ROWS)
        self.replies: list[Message] = []
        """To the pieces that are done."""

    @property
    def complete(self) -> bool:
        """Whether all pieces are done."""
        return len(self.replies) * _PIECE_ROWS >= len(self.command.rows)


class Reads:
    """Those that wait for a proof, and what answers them."""

    def __init__(
        self,
        budget: InFlightBudget,
        environment: Environment,
        health: Health,
        precedence: Precedence,
        *,
        frame_bytes_max: int,
    ) -> None:
        self._precedence = precedence
        self._budget = budget
        self._environment = environment
        self._health = health
        self._bytes_max = min(frame_bytes_max, FRAME_BYTES_MAX) - HEADER_BYTES  # of an encoded reply
        self.spent = 0
        """What all reads have cost so far, in rows looked at."""
        self._waiting: dict[int, _Read] = {}
        self._proven: deque[int] = deque()
        self._late: deque[int] = deque()
        self._long: FairQueue[_Read] = FairQueue()
        self._at_long = False
        self._expiry = Deadlines(environment, self._expire)
        self._last = 0

    def begin(
        self,
        driver: GroupDriver,
        verb: Verb[Any, Any],
        command: Command[Any],
        held: int,
        deadline_s: float,
        done: Done,
        source: object,
    ) -> None:
        """Read, now or when the group's leader has heard from its followers. Raises MetadError."""
        if driver.group.may_read() and not _behind(driver, command.body):
            if len(command.rows) > _PIECE_ROWS:
                read = _Read(driver, verb, command, held, deadline_s, done, source)
                self._budget.take(read.held, command.items, self._environment.now())
                self._begin_long(read)
            else:
                done(self._encoded(command, self._read(driver, verb, command)))
            return
        if not driver.group.is_leader:
            raise driver.not_leader()
        read = _Read(driver, verb, command, held, deadline_s, done, source)
        self._budget.take(read.held, command.items, self._environment.now())
        self._last += 1
        self._waiting[self._last] = read
        self._expiry.arm()
        driver.group.read(partial(self._advance, self._last))

    def _advance(self, number: int, ok: bool) -> None:
        """The lead was proven, or the awaited revision is there; or (not ``ok``) this node leads no longer."""
        read = self._waiting.get(number)
        if read is None:
            return  # it waited too long, or the node has ended
        if not ok:
            self._answer(number, NotLeaderError("the leader changed before the read; nothing was done"))
        elif revision := _behind(read.driver, read.command.body):
            read.awaits = True
            read.deadline_s = min(read.deadline_s, self._environment.now() + _BEHIND_S)
            read.driver.await_revision(number, revision, partial(self._advance, number))
        else:
            if not self._proven:
                self._environment.call_soon(self._read_proven)
            self._proven.append(number)

    def _read_proven(self) -> None:
        """Answer reads for a while; one round of heartbeats may have proven thousands."""
        begun_at = self.spent
        for _ in range(_SLICE_READS):
            if not self._proven or self.spent - begun_at >= _SLICE_SPENT:
                break
            read = self._waiting.pop(self._proven.popleft(), None)
            if read is None:
                continue  # it waited too long, or the node has ended
            if len(read.command.rows) > _PIECE_ROWS:
                self._begin_long(read)
                continue
            try:
                answer: bytes | MetadError = self._encoded(
                    read.command, self._read(read.driver, read.verb, read.command)
                )
            except Exception as error:  # noqa: BLE001 - told to whoever asked, and logged
                answer = failed(read.command.method.name, error, self._health)
            self._end(read, answer)
        if self._proven:
            self._environment.call_soon(self._read_proven)

    def abandon(self, reason: str) -> None:
        """The node cannot go on."""
        for number in list(self._waiting):
            self._answer(number, UnknownOutcomeError(reason))
        for read in self._long.drain():
            self._end(read, UnknownOutcomeError(reason))

    def stop(self) -> None:
        """Stop the timers."""
        self._expiry.stop()

    def _answer(self, number: int, answer: MetadError) -> None:
        read = self._waiting.pop(number)
        if read.awaits:
            read.driver.await_no_more(number)
        self._end(read, answer)

    def _end(self, read: _Read, answer: bytes | MetadError) -> None:
        self._budget.give(read.held, read.command.items)
        read.done(answer)

    def _expire(self, now_s: float) -> bool:
        if not self._late:  # else the last look is not through
            self._late += [number for number, read in self._waiting.items() if read.deadline_s < now_s]
            self._answer_late()
        return bool(self._waiting)

    def _answer_late(self) -> None:
        """Answer some of those that waited too long; thousands may have come together."""
        for _ in range(_SLICE_READS):
            if not self._late:
                return
            number = self._late.popleft()
            read = self._waiting.get(number)
            if read is None:
                continue  # it was answered after all, or the node has ended
            why = "the group has not come to the revision that was asked for" if read.awaits else "it was not begun"
            self._answer(number, DeadlineExceededError(f"the read waited too long: {why}; nothing was done"))
        if self._late:
            self._environment.call_soon(self._answer_late)

    # --- in pieces ---------------------------------------------------------------------------------------

    def _begin_long(self, read: _Read) -> None:
        self._long.add(read)
        if not self._at_long:
            self._at_long = True
            self._take_turns()

    def _take_turns(self) -> None:
        FairShare.here().take(self._next_piece)

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
                self._end(read, answer)
            self._precedence.heavy_done(begun_s)
        self._at_long = bool(self._long)
        return self._at_long

    def _advanced(self, read: _Read) -> bytes | MetadError | None:
        """The answer, once it is known."""
        command = read.command
        try:
            if read.deadline_s < self._environment.now():
                raise DeadlineExceededError("the deadline passed before everything was read; nothing was done")
            rows = next(read.pieces)
            spent = self.spent
            piece = Command(command.method, command.body, rows, command.reply_bytes_max)
            piece.arrived_s = command.arrived_s
            read.replies.append(self._read(read.driver, read.verb, piece))
            # What a read has cost says how long its records are, to a kilobyte in thirty.
            command.reply_bytes_max -= max(self.spent - spent - len(rows), 0) * SPENT_BYTES
            return self._encoded(command, _joined(read.replies)) if read.complete else None
        except Exception as error:  # noqa: BLE001 - told to whoever asked, and logged
            return failed(command.method.name, error, self._health)

    def _read(self, driver: GroupDriver, verb: Verb[Any, Any], command: Command[Any]) -> Message:
        assert verb.read is not None
        if driver.installing:  # since the lead was proven, or between two pieces
            raise driver.not_leader()
        machine, reader = driver.machine, driver.machine.reader
        machine.slots.check(command.rows)
        begun_at = reader.spent
        try:
            reply: Message = verb.read(reader, command)
        finally:
            self.spent += reader.spent - begun_at
        return reply

    def _encoded(self, command: Command[Any], reply: Message) -> bytes:
        encoded = encode(reply if command.refused is None else command.refused.widened(reply))
        if len(encoded) > self._bytes_max:  # keys of 4 KiB can outweigh the records
            raise TooLargeError("the reply would not fit a frame: ask for fewer records at once")
        return encoded


def failed(name: str, error: Exception, health: Health) -> MetadError:
    """What a client is told if a verb raised."""
    if isinstance(error, MetadError):
        return error
    if isinstance(error, StorageError):
        health.fail(error)
        return InternalError("the node's storage failed; its log says more")
    bug(name, error)
    return InternalError(f"{name} failed; the server's log says why")


def _joined(replies: list[Message]) -> Message:
    """The reply to a read in pieces: it has one column."""
    kind = type(replies[0])
    (column,) = kind.columns
    return kind([record for reply in replies for record in getattr(reply, column)])


def _behind(driver: GroupDriver, body: Any) -> int:
    """The revision that the read wants and the group has not come to; 0 if there is none."""
    machine = driver.machine
    wanted = max([revision.index for revision in body.min_revisions if revision.group == machine.name], default=0)
    return wanted if wanted > machine.revision else 0
