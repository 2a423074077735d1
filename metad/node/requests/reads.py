"""Reads: answered once it is certain that nobody else leads the group that they ask, and once it has come as far as the
read wants.

What has been answered is in the state that answers, so a group is never behind a revision that it gave out, unless it
has lost what it had, by a power failure without fsync or by a directory from a backup. Then such a read says so.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import chain
from typing import Any

from metad_wire.connection.frame import FRAME_BYTES_MAX, HEADER_BYTES
from metad_wire.errors import (
    DeadlineExceededError,
    InternalError,
    MetadError,
    NotLeaderError,
    OverloadedError,
    TooLargeError,
    UnknownOutcomeError,
)
from metad_wire.messages import Message, Request
from metad_wire.methods import NEAR, Method, encode
from metad_wire.policy.fair_queue import Precedence
from metad_wire.policy.fair_room import FairRoom, Place, holder_of
from metad_wire.policy.slices import SLICE_ROWS, Slices
from metad_wire.transport.fair_share import FairShare, Rank

from ...control.host import Done, Source
from ...errors import StorageError
from ...logs import bug
from ...state.cluster.tenant_moves import TenantMoves, admitted
from ...state.core.verb import SPENT_BYTES, Command, Verb
from ..environment import Deadlines, Environment
from ..health import Health
from ..replicas.driver import GroupDriver
from .admission import ITEM_BYTES, REQUEST_BYTES, InFlightBudget
from .near import NearReads, not_fresh

PIECE_ROWS = SLICE_ROWS
"""A read of more records than this is done in pieces of so many, about a millisecond each, with turns of others between
them. Each piece sees a state at least as new as the proof of the lead, which is all that a read of several promises."""
_BEHIND_S = 10.0  # a read waits no longer for a revision, whatever its deadline: it may never come
_BEHIND_BYTES_MAX = 24 * 1024 * 1024  # of reads that wait for a revision, counted as those in flight are
_AGAIN_MS = 500  # when to come again with a read whose room others need


class _Read:
    """A read that is not answered at once."""

    __slots__ = (
        "awaits",
        "behind",
        "command",
        "deadline_s",
        "done",
        "driver",
        "held",
        "number",
        "over",
        "pieces",
        "place",
        "replies",
        "source",
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
        source: Source | None,
    ) -> None:
        self.driver = driver
        self.verb = verb
        self.command = command
        self.held = held + REQUEST_BYTES + ITEM_BYTES * len(command.body.min_revisions)
        """What it takes while it waits, even if it asks for nothing: itself, and the revisions that it wants."""
        self.deadline_s = deadline_s
        self.done = done
        self.source = source
        self.number = 0
        """Where it waits for a proof."""
        self.awaits = False
        """Whether it waits for a revision."""
        self.over = False
        """Whether it is answered, though it is still in a queue."""
        self.place: Place | None = None
        """Its room, once it has some."""
        self.behind = False
        """Whether that is among those that wait for a revision."""
        self.pieces = command.rows.cut(PIECE_ROWS)
        self.replies: list[Message] = []
        """To the pieces that are done."""

    @property
    def complete(self) -> bool:
        """Whether all pieces are done."""
        return len(self.replies) * PIECE_ROWS >= len(self.command.rows)


class Reads:
    """Those that wait for a proof, and what answers them."""

    def __init__(
        self,
        budget: InFlightBudget,
        environment: Environment,
        health: Health,
        precedence: Precedence,
        slices: Slices,
        near: NearReads,
        *,
        frame_bytes_max: int,
    ) -> None:
        self._precedence = precedence
        self._slices = slices
        self._near = near
        self._budget = budget
        self._environment = environment
        self._health = health
        self._bytes_max = min(frame_bytes_max, FRAME_BYTES_MAX) - HEADER_BYTES  # of an encoded reply
        self.spent = 0
        """What all reads have cost so far, in rows looked at."""
        self._waiting: dict[int, _Read] = {}
        self._behind = FairRoom("bytes of reads that wait for a revision", _BEHIND_BYTES_MAX, ends="ten seconds")
        self._late: set[int] = set()  # those that are about to hear that they waited too long
        self._long: dict[Source | None, deque[_Read]] = {}  # by connection, each of which takes turns with others
        self._expiry = Deadlines(environment, self._expire)
        self._last = 0
        self._abandoned = ""  # why the node cannot go on

    @property
    def behind_bytes(self) -> int:
        """What reads take that wait for a revision."""
        return self._behind.held

    def is_near(self, driver: GroupDriver, method: Method[Any, Any], request: Request[Any]) -> bool:
        """Whether a request is a read that this replica is to answer without leading. Raises NotFreshError if it
        cannot."""
        if method.code not in NEAR or driver.group.is_leader:
            return False
        self._near.check(driver, request.freshness_ms)
        if _behind(driver, request.body):
            raise not_fresh(driver, "that it has come to the revision that was asked for")
        return True

    def begin(
        self,
        driver: GroupDriver,
        verb: Verb[Any, Any],
        command: Command[Any],
        held: int,
        deadline_s: float,
        done: Done,
        source: Source | None,
        *,
        near: bool = False,
    ) -> None:
        """Read, now or when the group's leader has heard from its followers. ``near``: this replica need not lead.
        Raises MetadError."""
        behind = _behind(driver, command.body)
        if (near or driver.group.may_read()) and not behind:
            if len(command.rows) > PIECE_ROWS:
                read = _Read(driver, verb, command, held, deadline_s, done, source)
                self._take(read, behind=False)
                self._begin_long(read)
            else:
                done(self._encoded(command, self._read(driver, verb, command)))
            return
        if not driver.group.is_leader:
            raise driver.not_leader()
        read = _Read(driver, verb, command, held, deadline_s, done, source)
        self._take(read, behind=bool(behind))
        self._last += 1
        read.number = self._last
        self._waiting[self._last] = read
        self._expiry.arm()
        driver.group.read(partial(self._advance, self._last))

    def _advance(self, number: int, ok: bool) -> None:
        """The lead was proven, or the awaited revision is there; or (not ``ok``) this node leads no longer."""
        read = self._waiting.get(number)
        if read is None:
            return  # it waited too long, or the node has ended
        if not ok:
            error = NotLeaderError("the leader changed before the read; nothing was done")
            self._slices.now(partial(self._answer, number, error))
        elif revision := _behind(read.driver, read.command.body):
            read.awaits = True
            read.deadline_s = min(read.deadline_s, self._environment.now() + _BEHIND_S)
            read.driver.await_revision(number, revision, partial(self._advance, number))
        else:
            self._slices.later(partial(self._read_proven, number))

    def _read_proven(self, number: int) -> int:
        """Answer a read; how many rows it has looked at. One round of heartbeats may have proven thousands."""
        read = self._waiting.pop(number, None)
        if read is None:
            return 0  # it waited too long, or the node has ended
        if len(read.command.rows) > PIECE_ROWS:
            self._begin_long(read)
            return 0
        if self._abandoned:
            self._end(read, UnknownOutcomeError(self._abandoned))
            return 0
        begun_at = self.spent
        try:
            answer: bytes | MetadError = self._encoded(read.command, self._read(read.driver, read.verb, read.command))
        except Exception as error:  # noqa: BLE001 - told to whoever asked, and logged
            answer = failed(read.command.method.name, error, self._health)
        self._end(read, answer)
        return self.spent - begun_at

    def abandon(self, reason: str) -> None:
        """The node cannot go on."""
        self._abandoned, error = reason, UnknownOutcomeError(reason)
        for number in list(self._waiting):
            self._slices.now(partial(self._answer, number, error))
        for read in chain.from_iterable(self._long.values()):
            self._slices.now(partial(self._end, read, error))

    def stop(self) -> None:
        """Stop the timers."""
        self._expiry.stop()
        self._near.stop()

    def _answer(self, number: int, answer: MetadError) -> None:
        read = self._waiting.pop(number, None)
        if read is None:
            return  # it was answered already
        if read.awaits:
            read.driver.await_no_more(number)
        self._end(read, answer)

    def _end(self, read: _Read, answer: bytes | MetadError) -> None:
        if read.over:
            return
        read.over = True
        if read.place is not None:
            if read.behind:
                self._behind.give(read.place)
            else:
                self._budget.give(read.place, read.command.items)
        read.done(answer)

    def _take(self, read: _Read, *, behind: bool) -> None:
        """Take room for a read that waits: for a revision, or for a proof and its turn. Others that need it may have it
        back. Raises OverloadedError."""
        read.behind, take_back = behind, partial(self._take_back, read)
        if not behind:
            now_s = self._environment.now()
            read.place = self._budget.take(read.source, read.held, read.command.items, now_s, take_back=take_back)
            return
        read.place = self._behind.take(holder_of(read.source), read.held, take_back, source=read.source)
        if read.place is None:
            raise _no_room()

    def _take_back(self, read: _Read) -> None:
        error = _no_room()
        if read.number in self._waiting:
            self._answer(read.number, error)
        else:
            self._end(read, error)

    def _expire(self, now_s: float) -> bool:
        for number, read in self._waiting.items():
            if read.deadline_s < now_s and number not in self._late:
                self._late.add(number)
                self._slices.later(partial(self._answer_late, number))
        return bool(self._waiting)

    def _answer_late(self, number: int) -> None:
        """Answer one that waited too long; thousands may have come together."""
        self._late.discard(number)
        read = self._waiting.get(number)
        if read is None:
            return  # it was answered after all, or the node has ended
        why = "the group has not come to the revision that was asked for" if read.awaits else "it was not begun"
        self._answer(number, DeadlineExceededError(f"the read waited too long: {why}; nothing was done"))

    # --- in pieces ---------------------------------------------------------------------------------------

    def _begin_long(self, read: _Read) -> None:
        source = read.source
        reads = self._long.get(source)
        if reads is None:
            reads = self._long[source] = deque()
            FairShare.here().take(partial(self._next_piece, source, reads), holder_of(source), Rank.HEAVY)
        reads.append(read)

    def _next_piece(self, source: Source | None, reads: deque[_Read]) -> bool:
        """Do a piece of the first long read of a connection; whether there is more to do."""
        turns = FairShare.here()
        if wait_s := self._precedence.heavy_wait_s:
            turns.rest(wait_s)
            return True
        while reads and reads[0].over:
            reads.popleft()
        if reads:
            begun_s, spent = self._environment.now(), self.spent
            answer = self._advanced(reads[0])
            if answer is not None:
                self._end(reads.popleft(), answer)
            self._precedence.heavy_done(begun_s)
            turns.spend(max((self.spent - spent) / PIECE_ROWS, 0.5))
        if not reads:
            del self._long[source]
        return bool(reads)

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
        if verb.table.moves:
            machine.slots.check(command.rows)
        begun_at, refused = reader.spent, None
        if (moves := machine.parts[TenantMoves]).closed_to_reads:
            command, refused = admitted(verb, command, moves.closed_to_reads, _none)
        try:
            reply: Message = verb.read(reader, command)
        finally:
            self.spent += reader.spent - begun_at
        return reply if refused is None else refused.widened(reply)

    def _encoded(self, command: Command[Any], reply: Message) -> bytes:
        encoded = encode(reply if command.refused is None else command.refused.widened(reply))
        if len(encoded) > self._bytes_max:  # keys of 4 KiB can outweigh the records
            raise TooLargeError("the reply would not fit a frame: ask for fewer records at once")
        return encoded


def _none(_: str) -> bool:
    """No read is a part of ending a tenant."""
    return False


def failed(name: str, error: Exception, health: Health) -> MetadError:
    """What a client is told if a verb raised."""
    if isinstance(error, MetadError):
        return error
    if isinstance(error, StorageError):
        health.fail(error)
        return InternalError("the node's storage failed; its log says more")
    bug(name, error)
    return InternalError(f"{name} failed; the server's log says why")


def _no_room() -> OverloadedError:
    why = "others need the room of reads that wait; nothing was done"
    return OverloadedError(why, retry_after_ms=_AGAIN_MS, retry_jitter_ms=_AGAIN_MS)


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
