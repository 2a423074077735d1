"""What the processes of brokers are told, and what they answer."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from metad_judge.sessions import Verdict
from metad_wire.messages import Owner

from .population import Ints
from .trace import Series


class Register(msgspec.Struct, frozen=True):
    """The brokers begin their lives. The reply: their owners, by number."""


class Store(msgspec.Struct, frozen=True):
    """The clients at these positions connect for the first time, and store what they have. The reply: how many did."""

    begin: int
    end: int


class Leave(msgspec.Struct, frozen=True):
    """The clients whose sessions are to end disconnect, so that they end at this Unix time. The reply: how many."""

    moment_s: float


class Prepare(msgspec.Struct, frozen=True):
    """Make ready all that can be made before the storm. ``owners``: the life of each broker until then."""

    owners: Mapping[int, Owner]


class Go(msgspec.Struct, frozen=True):
    """The storm begins at this time of the machine's monotonic clock."""

    t0_ns: int


class Look(msgspec.Struct, frozen=True):
    """The reply: :class:`Counts` so far."""


class Counts(msgspec.Struct, frozen=True):
    """Attempts and clients so far; ``done``: nobody of this process is away any more, or the limit is over."""

    sent: int = 0
    restored: int = 0
    refused: int = 0
    failed: int = 0
    done: bool = True

    def plus(self, other: Counts) -> Counts:
        """The sum."""
        return Counts(
            self.sent + other.sent,
            self.restored + other.restored,
            self.refused + other.refused,
            self.failed + other.failed,
            self.done and other.done,
        )


class Finish(msgspec.Struct, frozen=True):
    """The storm is over. The reply: :class:`Result`. ``steps``: of its series."""

    steps: int


class Result(msgspec.Struct, frozen=True):
    """Of one process. ``waited_ns``: of each client that was to come back, from when it lost its connection until it
    was restored, -1 if it was not. ``retried``, ``repeated`` and ``requests`` are those of the SDK: takeover
    requests that it repeated by the name of the reason, the clients in them, and all requests that it began."""

    waited_ns: Ints
    attempts: int
    items: int
    refused: int
    failed: dict[str, int]
    series: Series
    verdict: Verdict
    retried: dict[str, int]
    repeated: dict[str, int]
    requests: int
    lives_lost: int
    cpu_s: float


class Verify(msgspec.Struct, frozen=True):
    """Read every session of the process back. The reply: :class:`metad_judge.sessions.Verdict`. ``begin`` and
    ``end`` are positions."""

    begin: int
    end: int


class Forget(msgspec.Struct, frozen=True):
    """Delete the sessions at these positions. The reply: how many."""

    begin: int
    end: int
