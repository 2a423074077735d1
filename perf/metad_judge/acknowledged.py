"""Whether an acknowledged write is there, once. Pure: no SDK, no clock, no server.

One writer owns a record and has at most one write of it in flight. A write ends acknowledged (it must be there, once),
refused (it must not be there) or unknown (there once or not at all; as long as the server that got it lives, it may
still come). A *reading* taken while no write is in flight decides the unknown ones: after a restart of the server, or
in the end.

:class:`Counted` is for records whose version counts their writes, so that both a lost and a repeated write show in the
number; :class:`Stated` for records that only show their last state; :func:`settled` and its kin for very many whose
values count up, and who keep no more of each than the number of the last acknowledged write.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import msgspec

from . import verdict as verdicts

State = TypeVar("State", bound=Hashable)


class Verdict(verdicts.Verdict, kw_only=True):
    """Over all records. ``invented``: a number that nobody wrote last."""

    acknowledged: int = 0
    unknown: int = 0
    refused: int = 0
    read: int = 0
    in_doubt: int = 0
    lost: int = 0
    duplicated: int = 0
    invented: int = 0


class Counted:
    """A key-value record: its version is the number of writes since it was created, its value names the last one."""

    def __init__(self, name: str, verdict: Verdict) -> None:
        self._name = name
        self._verdict = verdict
        self.version = 0  # last acknowledged or read
        self._value: bytes | None = None
        self._maybe = 0  # unknown writes that no version has shown yet
        self._maybe_values: set[bytes] = set()

    def acknowledged(self, value: bytes, version: int) -> None:
        """A write was answered with the version that it made."""
        self._verdict.acknowledged += 1
        self._advance(version - 1, f"{self._name}: the write after version {self.version} made version {version}")
        self.version = version
        self._value = value

    def unknown(self, value: bytes) -> None:
        """A write ended without telling whether it happened."""
        self._verdict.unknown += 1
        self._maybe += 1
        self._maybe_values.add(value)

    def conflict(self, version: int) -> None:
        """A compare-and-set on :attr:`version` was refused, and the record was then read: ``version`` (0: absent).

        Only an unknown write can have moved it. If there is none, our own write was applied and then refused, which is
        a repeated write, or the record went back."""
        self._verdict.refused += 1
        why = f"{self._name}: expected version {self.version} was refused, and the record has {version}"
        if version == self.version:
            self._verdict.fault("lost", why)
        else:
            self._advance(version, why)
        self.version = version
        self._value = None  # the next reading shows whose write it was

    def read(self, value: bytes | None, version: int) -> None:
        """The record as found in quiescence; ``value`` None and ``version`` 0 if it is absent."""
        before, maybe = self.version, self._maybe
        self._advance(version, f"{self._name}: version {version} where {before} was acknowledged")
        if version == before and self._value is not None and value != self._value:
            self._verdict.fault("lost", f"{self._name}: version {version} holds {value!r}, not {self._value!r}")
        elif 0 < version - before <= maybe and value not in self._maybe_values:
            self._verdict.fault("lost", f"{self._name}: version {version} holds {value!r}, which nobody wrote")
        self.version, self._value = version, value
        self._maybe = 0
        self._maybe_values.clear()

    def _advance(self, version: int, why: str) -> None:
        """``version`` − :attr:`version` unknown writes have shown; more or fewer than possible is a fault."""
        came = version - self.version
        if came < 0:
            self._verdict.fault("lost", why, -came)
        elif came > self._maybe:
            self._verdict.fault("duplicated", f"{why}, with {self._maybe} unknown", came - self._maybe)
        self._maybe = max(0, self._maybe - max(0, came))


class Stated(Generic[State]):
    """A record that only shows its last state: a session's owner and payload, an offset. None: it is absent.

    Every write of one record must make a state that it never had before."""

    def __init__(self, name: str, verdict: Verdict) -> None:
        self._name = name
        self._verdict = verdict
        self.state: State | None = None  # last acknowledged or read
        self._maybe: set[State] = set()

    def acknowledged(self, state: State) -> None:
        """A write was answered."""
        self._verdict.acknowledged += 1
        self.state = state

    def unknown(self, state: State) -> None:
        """A write ended without telling whether it happened."""
        self._verdict.unknown += 1
        self._maybe.add(state)

    def replaced(self, shown: object, made: State, part: Callable[[State | None], object]) -> None:
        """The answer to a write shows a ``part`` of the state that it replaced. If that is the write's own, it was
        applied twice."""
        if shown == part(self.state) or any(shown == part(state) for state in self._maybe):
            return
        why = f"{self._name}: the write of {made!r} replaced {shown!r} where {self.state!r} was acknowledged"
        if shown == part(made):
            self._verdict.fault("duplicated", why)
        else:
            self._verdict.fault("lost", why)

    def refused(self, attempted: State, found: State | None) -> None:
        """A conditional write that should have passed was refused, and the record was then read."""
        self._verdict.refused += 1
        if found in self._maybe:
            return
        why = f"{self._name}: {attempted!r} after {self.state!r} was refused, and the record has {found!r}"
        if found == attempted:
            self._verdict.fault("duplicated", why)
        else:
            self._verdict.fault("lost", why)
        self.state = found

    def read(self, state: State | None) -> None:
        """The record as found in quiescence."""
        if state != self.state and state not in self._maybe:
            self._verdict.fault("lost", f"{self._name}: is {state!r} where {self.state!r} was acknowledged")
        self.state = state
        self._maybe.clear()

    @property
    def unsettled(self) -> bool:
        """Whether the outcome of some write is still unknown."""
        return bool(self._maybe)


class Seen(msgspec.Struct, frozen=True):
    """A record as it was read: the number of its last write, and how many writes it has had, if it says so."""

    number: int
    writes: int | None = None


def settled(verdict: Verdict, name: str, seen: Seen | None, acknowledged: int, in_doubt: int = 0) -> None:
    """Hold a reading against the number of the last acknowledged write, and of the one in doubt (0: none). A count of
    writes shows a lost one even if a later one is there."""
    verdict.read += 1
    verdict.in_doubt += bool(in_doubt)
    number = 0 if seen is None else seen.number
    writes = number if seen is None or seen.writes is None else seen.writes
    if number < acknowledged or writes < number:
        verdict.fault("lost", f"{name} has write {number} ({writes} in all), and {acknowledged} were acknowledged")
    elif number not in (acknowledged, in_doubt):
        verdict.fault("invented", f"{name} has write {number}, and only {max(acknowledged, in_doubt)} were made")
    elif writes > number:
        verdict.fault("duplicated", f"{name} has {writes} writes, and {number} were made")


def fresh(verdict: Verdict, name: str, seen: Seen | None, least: int) -> None:
    """A read has to see the write that was acknowledged before it began, if there was one."""
    number = 0 if seen is None else seen.number
    if number < least:
        verdict.fault("lost", f"{name} was read as of write {number}, and {least} were acknowledged")


def handed_on(verdict: Verdict, name: str, owner: str | None, expected: str | None) -> None:
    """A takeover names whose the session was: that of the takeover before."""
    if owner != expected:
        verdict.fault("lost", f"{name} was of {owner}, and {expected} had taken it")
