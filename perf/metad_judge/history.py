"""What all clients of a simulated cluster were told, and whether it can all be true.

Keys that are never deleted have versions, which are a total order of their writes: every answer is checked against it,
so a write that was done twice, lost or reordered shows even if little of it was seen. Everything else is a register,
which :mod:`metad_judge.linearizability` judges.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import pairwise

from .invariants import Violation
from .linearizability import Operation, Outcome, check


@dataclass(slots=True)
class Seen:
    """One write or read of a versioned key. ``version`` is None where it is not known."""

    key: Hashable
    write: bool
    value: bytes | None
    version: int | None
    invoked: int
    returned: int | None = None
    expected: int | None = None
    never: bool = False
    """It was said that it did not happen."""
    revision: int | None = None
    """``mod_revision`` of what was read."""


class History:
    """What all clients of a run were told."""

    def __init__(self) -> None:
        self.moment = 0
        self.operations: list[Operation] = []
        self.seen: list[Seen] = []
        self.answered = 0
        self.failed = 0
        self.open: dict[int, str] = {}
        """Calls that have not ended."""

    def now(self) -> int:
        """A moment of its own."""
        self.moment += 1
        return self.moment

    def check(self) -> None:
        """Raise Violation unless the answers can all be true."""
        by_key: dict[Hashable, list[Seen]] = {}
        for each in self.seen:
            by_key.setdefault(each.key, []).append(each)
        for key, records in by_key.items():
            _check_versions(key, records)
        verdict = check(self.operations)
        if verdict.outcome is not Outcome.LINEARIZABLE:
            raise Violation("linearizability", str(verdict))


def _check_versions(key: Hashable, records: list[Seen]) -> None:
    writes = {record.value: record for record in records if record.write}
    versions: dict[bytes, int] = {}  # of each value

    def place(value: bytes | None, version: int) -> None:
        if value is None:
            return
        known = versions.setdefault(value, version)
        if known != version:
            raise Violation("exactly once", f"{key}: {value!r} is version {known} and {version}")

    for record in records:
        if record.version is not None and record.version > 0:
            place(record.value, record.version)
    values: dict[int, bytes] = {}
    for value, version in versions.items():
        other = values.setdefault(version, value)
        if other != value:
            raise Violation("exactly once", f"{key}: version {version} is {other!r} and {value!r}")
        write = writes.get(value)
        if write is None:
            raise Violation("no value from nowhere", f"{key}: {value!r} was never written")
        if write.never:
            raise Violation("no lies", f"{key}: {value!r} was said not to have happened, and is version {version}")
        if write.expected is not None and version != write.expected + 1:
            raise Violation("compare and set", f"{key}: {value!r} expected {write.expected}, and is version {version}")
    read = sorted({(each.version, each.revision) for each in records if each.version and each.revision is not None})
    for (version, revision), (next_version, next_revision) in pairwise(read):
        if version == next_version or revision > next_revision:  # one entry may hold several writes
            text = f"version {version} has revision {revision}, version {next_version} has {next_revision}"
            raise Violation("revisions only grow", f"{key}: {text}")
    # Versions are an order of all writes: it must agree with time.
    events: list[tuple[int, int, Seen, int]] = []
    for record in records:
        position = record.version
        if position is None:
            position = versions.get(record.value or b"") if record.write else None
        if position is not None:
            events.append((record.invoked, 0, record, position))
            if record.returned is not None:
                events.append((record.returned, 1, record, position))
    highest, by = 0, None
    for _, returned, record, position in sorted(events, key=lambda event: event[0]):
        if returned:
            if position > highest:
                highest, by = position, record
        elif position < highest or (record.write and position == highest):
            raise Violation("real time", f"{key}: {record} begins when version {highest} was known by {by}")
    last = max(versions.values(), default=0)
    possible = sum(record.write and not record.never and record.version != 0 for record in records)
    if last > possible:
        raise Violation("exactly once", f"{key}: version {last} of {possible} writes")
