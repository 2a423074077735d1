"""The crash run's knowledge of each record, and the states that it may therefore find. Pure: no SDK, no clock, no
server.

One writer owns a record and has at most one write of it in flight. A write ends acknowledged (it must be there, once),
refused (it must not be there) or unknown (there once or not at all; as long as the server that got it lives, it may
still come). A *reading* taken while no write is in flight and after a restart of the server decides the unknown ones.

Two ledgers: :class:`Counted` for records whose version counts their writes, so that both a lost and a repeated write
show in the number; :class:`Stated` for records that only show their last state.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import msgspec

State = TypeVar("State", bound=Hashable)
_EXAMPLES_MAX = 20


class Verdict(msgspec.Struct, kw_only=True):
    """The sums over all records. ``examples``: the first faults, in words."""

    acknowledged: int = 0
    unknown: int = 0
    refused: int = 0
    lost: int = 0
    duplicated: int = 0
    examples: list[str] = msgspec.field(default_factory=list)

    def found_lost(self, count: int, why: str) -> None:
        """Acknowledged writes are missing."""
        self.lost += count
        self._example(f"lost: {why}")

    def found_duplicated(self, count: int, why: str) -> None:
        """Writes are there more often than they were made."""
        self.duplicated += count
        self._example(f"duplicated: {why}")

    def _example(self, text: str) -> None:
        if len(self.examples) < _EXAMPLES_MAX:
            self.examples.append(text)


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
            self._verdict.found_lost(1, why)
        else:
            self._advance(version, why)
        self.version = version
        self._value = None  # the next reading shows whose write it was

    def read(self, value: bytes | None, version: int) -> None:
        """The record as found in quiescence; ``value`` None and ``version`` 0 if it is absent."""
        before, maybe = self.version, self._maybe
        self._advance(version, f"{self._name}: version {version} where {before} was acknowledged")
        if version == before and self._value is not None and value != self._value:
            self._verdict.found_lost(1, f"{self._name}: version {version} holds {value!r}, not {self._value!r}")
        elif 0 < version - before <= maybe and value not in self._maybe_values:
            self._verdict.found_lost(1, f"{self._name}: version {version} holds {value!r}, which nobody wrote")
        self.version, self._value = version, value
        self._maybe = 0
        self._maybe_values.clear()

    def _advance(self, version: int, why: str) -> None:
        """``version`` − :attr:`version` unknown writes have shown; more or fewer than possible is a fault."""
        came = version - self.version
        if came < 0:
            self._verdict.found_lost(-came, why)
        elif came > self._maybe:
            self._verdict.found_duplicated(came - self._maybe, f"{why}, with {self._maybe} unknown")
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
            self._verdict.found_duplicated(1, why)
        else:
            self._verdict.found_lost(1, why)

    def refused(self, attempted: State, found: State | None) -> None:
        """A conditional write that should have passed was refused, and the record was then read."""
        self._verdict.refused += 1
        if found in self._maybe:
            return
        why = f"{self._name}: {attempted!r} after {self.state!r} was refused, and the record has {found!r}"
        if found == attempted:
            self._verdict.found_duplicated(1, why)
        else:
            self._verdict.found_lost(1, why)
        self.state = found

    def read(self, state: State | None) -> None:
        """The record as found in quiescence."""
        if state != self.state and state not in self._maybe:
            self._verdict.found_lost(1, f"{self._name}: is {state!r} where {self.state!r} was acknowledged")
        self.state = state
        self._maybe.clear()

    @property
    def unsettled(self) -> bool:
        """Whether the outcome of some write is still unknown."""
        return bool(self._maybe)
