"""The grid: which runs there are. Pure.

Loads are takeovers by one client process, so that the work of a leader, and that of its followers, differ in one thing
from run to run: items in a request, requests in flight, whether properties are restored, groups. Storms that are *seen*
are for the fit as well: they have what a load does not, refusals, and brokers that look at what they restore.
*Unseen* ones are never used for a fit; they differ from the seen in size, brokers, groups, policy and trigger.

Storms of one setting differ by a twentieth. So each is made several times, in rounds over all of them: what changes on
a machine from one quarter of an hour to the next does not fall on one setting.
"""

from __future__ import annotations

from typing import Final

import msgspec

_DATA = "data={},offset=1"
SESSIONS_MIN: Final = 2_000
SECONDS_MIN: Final = 0.5
_STEADY_S: Final = 8
"""Until a storm begins, so that nodes have written what was stored to their files, as they have in hours of peace."""
_SEEN_RUNS: Final = 2
_UNSEEN_RUNS: Final = 3
"""Odd, so that there is a median."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Takeovers as fast as they are answered."""

    name: str
    batch: int
    in_flight: int
    restore: bool
    groups: int = 1
    seconds: float = 4.0


class StormRun(msgspec.Struct, frozen=True, kw_only=True):
    """A storm of ``metad-perf storm``. ``parts``: subscriptions and waiting messages of each client; None: those of
    the default population."""

    name: str
    seen: bool
    sessions: int
    brokers: int
    groups: int = 3
    policy: str = "return-slot"
    trigger: str = "all"
    parts: tuple[int, int] | None = None
    queue_ms: int = 0
    """``limits.queue_ms`` of the nodes; 0: the default."""
    limit_s: float = 60.0
    seed: int = 1
    number: int = 1
    """Of the run, among those of this setting."""

    @property
    def run(self) -> str:
        """The name of this run."""
        return f"{self.name}-{self.number}"

    def arguments(self) -> list[str]:
        """Of the command, without those that say where to write."""
        given = {
            "nodes": 3,
            "groups": _DATA.format(self.groups),
            "sessions": self.sessions,
            "brokers": self.brokers,
            "policy": self.policy,
            "trigger": self.trigger,
            "seconds-limit": f"{self.limit_s:g}",
            "lease-s": 30,
            "steady-s": _STEADY_S,
            "seed": self.seed,
        }
        return ["storm", *(word for key, value in given.items() for word in (f"--{key}", str(value)))]


def loads() -> list[Load]:
    """In their order: those of one number of groups share a cluster."""
    found = [
        Load(name=f"load-{batch}-{in_flight}{'-restore' * restore}", batch=batch, in_flight=in_flight, restore=restore)
        for batch in (1, 10, 100, 1_000)
        for in_flight in (1, 8)
        for restore in (False, True)
    ]
    found += [
        Load(name=f"load-{batch}-8{'-restore' * restore}-groups", batch=batch, in_flight=8, restore=restore, groups=3)
        for batch in (100, 1_000)
        for restore in (False, True)
    ]
    return found


def storms() -> list[StormRun]:
    """All runs in their order, a round after the other; the seen first in each."""
    return [
        msgspec.structs.replace(one, number=number)
        for number in range(1, max(_SEEN_RUNS, _UNSEEN_RUNS) + 1)
        for one in _settings()
        if number <= (_SEEN_RUNS if one.seen else _UNSEEN_RUNS)
    ]


def _settings() -> list[StormRun]:
    return [
        StormRun(name="seen-slots", seen=True, sessions=150_000, brokers=8),
        StormRun(name="seen-jitter", seen=True, sessions=150_000, brokers=8, policy="full-jitter", seed=2),
        StormRun(name="seen-groups", seen=True, sessions=200_000, brokers=20, groups=2, seed=3),
        StormRun(name="seen-parts", seen=True, sessions=120_000, brokers=8, parts=(6, 2), seed=4),
        StormRun(name="seen-bare", seen=True, sessions=150_000, brokers=8, parts=(0, 0), seed=5),
        StormRun(name="seen-more", seen=True, sessions=300_000, brokers=12, seed=6),
        StormRun(name="seen-most", seen=True, sessions=500_000, brokers=20, groups=2, seed=7),
        StormRun(name="seen-million", seen=True, sessions=1_000_000, brokers=20, groups=2, seed=8),
        StormRun(name="seen-large", seen=True, sessions=800_000, brokers=16, seed=11),
        StormRun(name="seen-naive", seen=True, sessions=700_000, brokers=10, policy="none", limit_s=4.0, seed=9),
        StormRun(name="seen-refused", seen=True, sessions=400_000, brokers=16, groups=2, queue_ms=1_500, seed=10),
        StormRun(name="unseen-slots", seen=False, sessions=450_000, brokers=14, seed=101),
        StormRun(
            name="unseen-jitter", seen=False, sessions=350_000, brokers=24, groups=4, policy="full-jitter", seed=102
        ),
        StormRun(name="unseen-rolling", seen=False, sessions=500_000, brokers=4, trigger="rolling", seed=103),
        StormRun(name="unseen-region", seen=False, sessions=900_000, brokers=15, groups=2, trigger="region", seed=104),
        StormRun(name="unseen-kill", seen=False, sessions=500_000, brokers=9, trigger="leader-kill", seed=105),
        StormRun(
            name="unseen-decorrelated",
            seen=False,
            sessions=650_000,
            brokers=18,
            groups=2,
            policy="decorrelated-jitter",
            seed=106,
        ),
        StormRun(
            name="unseen-too-many", seen=False, sessions=560_000, brokers=12, policy="none", limit_s=4.0, seed=107
        ),
    ]


def scaled(run: Load | StormRun, scale: float) -> Load | StormRun:
    """A smaller run, to try the grid: fewer sessions, or a shorter time."""
    if isinstance(run, Load):
        return msgspec.structs.replace(run, seconds=max(SECONDS_MIN, run.seconds * scale))
    return msgspec.structs.replace(run, sessions=max(SESSIONS_MIN, 100 * run.brokers, round(run.sessions * scale)))
