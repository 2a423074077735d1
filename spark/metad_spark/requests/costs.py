"""What each step of a request costs, read from a file that names its measurement.

All costs are seconds of one core: of the node that leads a group, of a node that follows it, and of the process that
runs brokers. :mod:`metad_spark.requests.fitting` makes such a file from runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from .. import toml
from ..errors import CalibrationError

NODE: tuple[str, ...] = (
    *("request_s", "item_s", "restore_s", "part_s", "refusal_s", "refused_item_s", "entry_s"),
    *("follower_entry_s", "follower_item_s", "grown_item_s", "idle_cores"),
)
"""The costs of nodes."""
BROKER: tuple[str, ...] = ("call_s", "attempt_s", "vain_s", "back_s", "back_part_s", "grown_back_s")
"""The costs of a process of brokers."""
_MEASURED = ("memtable_s", "sweep_row_s")  # by themselves: no run of a grid says them
REPLICAS: Final = 3
LITTLE: Final = 100_000
"""Sessions that a node leads, or clients of a process of brokers, which are little: those of the loads. Of more, less
is in the cores' own caches."""
_MUCH: Final = 5
"""Times :data:`LITTLE`: of more, nothing was measured."""

MEMTABLE_ITEMS: Final = 60_000
"""Owner rows of 70 bytes that fill a memtable of 4 MiB."""
MEMTABLE_S: Final = 4e-8
"""That the look-up of an item takes for each memtable: by a measurement of the store with up to 23 of them."""
SWEEP_ROW_S: Final = 2e-6
"""That a leader takes to read and to look at one owner row, for those of a life that is over: by a measurement of the
sweep."""


REFUSAL_S: Final = 5.2e-5
REFUSED_ITEM_S: Final = 0.0
"""Of a request that is turned away, and of each of its items: medians of seven rounds in which a leader did nothing
else (``metad-perf calibration-grid --only refused-1``)."""


class Interval(msgspec.Struct, frozen=True, array_like=True):
    """Bounds of 95 % confidence."""

    low: float
    high: float


class Costs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """:func:`load_costs` raises CalibrationError for values out of range."""

    name: str = "unnamed"
    setting: str = ""
    """The machine, commands and date of the measurement."""
    cores: int = 2
    """That all processes share."""
    request_s: float
    """Leader: a request that is done, whatever its items."""
    item_s: float
    """Leader: an item, from its bytes to its answer, without what it restores."""
    restore_s: float = 0.0
    """Leader: the properties of an item that are restored."""
    part_s: float = 0.0
    """Leader: a subscription or message that is restored."""
    refusal_s: float = 0.0
    """Leader: a request that is turned away."""
    refused_item_s: float = 0.0
    """Leader: an item of it."""
    entry_s: float = 0.0
    """Leader: an entry of the log, whatever its items."""
    follower_entry_s: float = 0.0
    follower_item_s: float = 0.0
    grown_item_s: float = 0.0
    """Leader: an item, for each :data:`LITTLE` sessions that it leads beyond the first."""
    memtable_s: float = MEMTABLE_S
    """Leader: an item, for each memtable that the storm has filled before: its look-up asks all of them. Nodes flush
    while they are calm, so a storm begins with none."""
    sweep_row_s: float = SWEEP_ROW_S
    """Leader: an owner row that it looks at once a broker has begun its next life."""
    idle_cores: float = 0.0
    """Of a node, without any work of the storm: heartbeats, and the other work beside it."""
    unused_cores: float = 0.0
    """Of the machine, that neither nodes nor brokers use while a storm lasts: they wait for each other, or for a thread
    to be woken, where the model has no wait."""
    unled_cores: float = 0.0
    """The same, beyond it, for each node that leads no group of sessions: it only follows, and waits for the others."""
    call_s: float = 0.0
    """Brokers: a call of the SDK, from its begin to its answer."""
    attempt_s: float = 0.0
    """Brokers: an item of a call."""
    vain_s: float = 0.0
    """Brokers: a call that is turned away, until each of its clients waits for its next attempt."""
    back_s: float = 0.0
    """Brokers: an item that is restored, and looked at."""
    back_part_s: float = 0.0
    """Brokers: a subscription or message of it."""
    grown_back_s: float = 0.0
    """Brokers: an item that is restored, for each :data:`LITTLE` clients of its process beyond the first."""
    fsync_s: tuple[float, ...] = (0.001,)
    """Quantiles, evenly spaced, of the time in which what was appended is durable."""
    failover_s: float = 0.25
    """From the death of a node until others lead its groups (``metad-perf leader-kill``)."""
    start_s: float = 0.75
    """CPU time of a node that starts again, until it follows (of the killed nodes in ``metad-perf storm``)."""
    restart_s: float = 0.1
    """From the end of a broker's life until it takes clients in its next."""
    delay_s: float = 0.0002
    """Of a message between two processes."""
    core_us: float = 0.0
    """How fast the cores were to which the costs belong: microseconds that a fixed piece of work takes of one
    (``metad_perf.core_speed``), in the mean of the storms that the costs were fitted to. 0: not known."""
    intervals: dict[str, Interval] = {}
    """Of the fitted costs, by name."""
    r2: dict[str, float] = {}
    """Share of the variance of CPU time that the fit explains: of nodes, of brokers."""

    def __post_init__(self) -> None:
        for key in (
            *NODE,
            *BROKER,
            *_MEASURED,
            "unused_cores",
            "unled_cores",
            "failover_s",
            "start_s",
            "restart_s",
            "delay_s",
        ):
            if not 0 <= getattr(self, key) <= 60:
                raise ValueError(f"{key} must be from 0 to 60, not {getattr(self, key)!r}")
        if self.request_s + self.item_s <= 0:
            raise ValueError("request_s and item_s must not both be 0")
        if not 1 <= self.cores <= 10_000:
            raise ValueError(f"cores must be from 1 to 10,000, not {self.cores!r}")
        if not 0 <= self.core_us <= 1e6:
            raise ValueError(f"core_us must be from 0 to 1,000,000, not {self.core_us!r}")
        if not 1 <= len(self.fsync_s) <= 10_000 or min(self.fsync_s) < 0:
            raise ValueError("fsync_s must be 1 to 10,000 times from 0 on")

    def at_speed(self, core_us: float) -> Costs:
        """The same on cores on which that work takes so long; unchanged if either speed is not known (0)."""
        if not core_us or not self.core_us:
            return self
        factor = core_us / self.core_us
        return msgspec.structs.replace(self, core_us=core_us, **self._times(factor, (*NODE, *BROKER, "start_s")))

    def slower(self, factor: float) -> Costs:
        """The same of a node that is so many times slower."""
        return msgspec.structs.replace(self, **self._times(factor, NODE))

    def _times(self, factor: float, keys: Iterable[str]) -> dict[str, float]:
        return {key: getattr(self, key) * factor for key in (*keys, *_MEASURED)}


def working_set(sessions: int, returning: int) -> float:
    """Of how many sessions the look-ups of a storm are like: files grow with all that are stored, and what the caches
    are to hold with those that come back. Where both differ, storms cost as much as halfway between the two."""
    return (sessions + returning) / 2


def growth(sessions: float) -> float:
    """How many times :data:`LITTLE` these are beyond the first."""
    return min(max(sessions / LITTLE, 1.0), _MUCH) - 1.0


def memtables(items: float, nodes: int) -> float:
    """How many memtables of a node so many takeovers of the cluster have filled."""
    return items * min(REPLICAS, nodes) / nodes / MEMTABLE_ITEMS


def load_costs(name_or_path: str | Path = "default") -> Costs:
    """The costs of the package, by name, or those of a TOML file. Raises CalibrationError."""
    return toml.load("requests", name_or_path, Costs, CalibrationError)


def to_toml(costs: Costs) -> str:
    """The text of a file that :func:`load_costs` reads."""
    values = msgspec.to_builtins(costs)
    tables = {key: values.pop(key) for key in ("intervals", "r2")}
    lines = [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in values.items()]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {msgspec.json.encode(one).decode()}" for key, one in table.items())]
    return "\n".join(lines) + "\n"
