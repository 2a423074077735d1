"""Reads: answered once it is certain that nobody else leads any of the groups they ask, and once these have come as far
as the read wants.

What has been answered is in the state that answers, so a group is never behind a revision that it gave out, unless it
has lost what it had, by a power failure without fsync or by a directory from a backup. Then such a read says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
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
from metad_wire.methods import encode

from ..errors import StorageError
from ..logs import bug
from ..state.rows import Rows
from ..state.tables import Verb
from .driver import GroupDriver
from .environment import Environment
from .expiry import Expiry
from .groups import Groups
from .health import Health
from .parts import Done, Replies
from .room import Room

_SLICE_SPENT = 1_000
"""Of reads that were proven together and are answered in one go, in rows looked at: some milliseconds."""
_BEHIND_S = 10.0  # a read waits no longer for a revision, whatever its deadline: it may never come


class Reads:
    """Those that wait for a proof, and what answers them."""

    def __init__(self, groups: Groups, replies: Replies, room: Room, environment: Environment, health: Health) -> None:
        self._groups = groups
        self._replies = replies
        self._room = room
        self._environment = environment
        self._health = health
        self.spent = 0
        """What all reads have cost so far, in rows looked at."""
        self._waiting: dict[int, _Unproven] = {}
        self._proven: deque[tuple[int, Callable[[], bytes | MetadError]]] = deque()
        self._expiry = Expiry(environment, self._expire)
        self._last = 0

    def begin(
        self, verb: Verb[Any, Any], body: Any, parts: dict[int, Rows], held: int, deadline_s: float, done: Done
    ) -> None:
        """Read, now or when the leaders of all parts have heard from their followers. Raises MetadError."""
        drivers = [self._groups.driver(verb.table.kind, ordinal) for ordinal in parts]
        for driver in drivers:
            if not driver.group.may_read():
                break
        else:
            if not body.min_revisions or not _behind(drivers, body):
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
                self._proven.append((number, partial(self._read_late, verb, body, parts)))

        for driver in drivers:
            driver.group.read(proven)

    def _read_proven(self) -> None:
        """Answer reads for a while; one round of heartbeats may have proven thousands."""
        begun_at = self.spent
        while self._proven and self.spent - begun_at < _SLICE_SPENT:
            number, read = self._proven.popleft()
            waiting = self._waiting.pop(number, None)
            if waiting is not None:  # it is answered already where it has waited too long, or the node has ended
                self._room.give(waiting.held)
                waiting.done(read())
        if self._proven:
            self._environment.call_soon(self._read_proven)

    def abandon(self, reason: str) -> None:
        """The node cannot go on."""
        for number in list(self._waiting):
            self._answer(number, UnknownOutcomeError(reason))

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

    def _read_late(self, verb: Verb[Any, Any], body: Any, parts: dict[int, Rows]) -> bytes | MetadError:
        try:
            return self._read(verb, body, parts)
        except Exception as error:  # noqa: BLE001 - told to whoever asked, and logged
            return failed(verb.method.name, error, self._health)

    def _read(self, verb: Verb[Any, Any], body: Any, parts: dict[int, Rows]) -> bytes:
        assert verb.read is not None
        results: list[tuple[Rows, Any]] = []
        for ordinal, rows in parts.items():
            part = self._replies.part(verb, body, rows, len(parts))
            driver = self._groups.driver(verb.table.kind, ordinal)
            if driver.installing:  # since this group's proof, while another's was waited for
                raise driver.not_leader()
            machine, reader = driver.machine, driver.machine.reader
            machine.check_held(rows)
            begun_at = reader.spent
            results.append((rows, verb.read(reader, part)))
            self.spent += reader.spent - begun_at
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


class _Unproven(NamedTuple):
    """A read that waits until it is certain who leads."""

    done: Done
    held: int
    deadline_s: float
    behind: Sequence[GroupDriver] = ()
    """Groups that have not come as far as it wants."""


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
