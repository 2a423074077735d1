"""The way of every client: a row for each attempt, in columns; and Parquet files of them."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from metad_wire.extras import advice

from ..errors import UsageError
from .population import Ints

_NO_SLOT = -1


class Outcome(IntEnum):
    """What became of an attempt."""

    RESTORED = 0
    REFUSED = 1
    """Turned away: the server was overloaded, and nothing was done."""
    TIMEOUT = 2
    """No answer by the device's deadline: it may have happened."""
    FAILED = 3
    """Any other error."""


COLUMNS: Final = (
    ("client", np.uint32),
    ("broker", np.uint16),
    ("attempt", np.uint16),
    ("scheduled_ns", np.int64),
    ("sent_ns", np.int64),
    ("answered_ns", np.int64),
    ("outcome", np.uint8),
    ("slot_ms", np.int32),
)
"""Times are in nanoseconds after the trigger. ``scheduled_ns``: the device begins the attempt. ``sent_ns``: its broker
calls the SDK. ``slot_ms``: the time to come back that the server gave, -1 if it gave none."""


class Trace:
    """Attempts as they end, a batch at a time."""

    def __init__(self) -> None:
        self._parts: list[list[npt.NDArray[Any]]] = [[] for _ in COLUMNS]

    def note(
        self,
        client: Ints,
        broker: int,
        attempt: Ints,
        scheduled_ns: Ints,
        sent_ns: int,
        answered_ns: int,
        outcome: Outcome,
        slot_ms: int = _NO_SLOT,
    ) -> None:
        """Attempts that were sent and answered together."""
        values = (client, broker, attempt, scheduled_ns, sent_ns, answered_ns, int(outcome), slot_ms)
        for part, value, (_, kind) in zip(self._parts, values, COLUMNS, strict=True):
            part.append(value.astype(kind) if isinstance(value, np.ndarray) else np.full(len(client), value, kind))

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """All attempts so far, by the name of the column."""
        return {
            name: np.concatenate(part) if part else np.empty(0, kind)
            for part, (name, kind) in zip(self._parts, COLUMNS, strict=True)
        }


class Series(msgspec.Struct, frozen=True):
    """Attempts a step of time: begun, sent, and how they ended, in the step of that. The last step has all that came
    later."""

    step_s: float
    begun: list[int]
    sent: list[int]
    restored: list[int]
    refused: list[int]
    failed: list[int]
    """Timeouts included."""

    def plus(self, other: Series) -> Series:
        """The sum of both."""
        names = [name for name in self.__struct_fields__ if name != "step_s"]
        sums = {
            name: [one + two for one, two in zip(getattr(self, name), getattr(other, name), strict=True)]
            for name in names
        }
        return Series(self.step_s, **sums)


def series(columns: dict[str, npt.NDArray[Any]], step_s: float, steps: int) -> Series:
    """The attempts of a trace over time."""

    def counted(times_ns: npt.NDArray[Any]) -> list[int]:
        at = np.clip(times_ns // round(step_s * 1e9), 0, steps - 1).astype(np.int64)
        return [int(count) for count in np.bincount(at, minlength=steps)]

    outcome, answered = columns["outcome"], columns["answered_ns"]
    return Series(
        step_s,
        counted(columns["scheduled_ns"]),
        counted(columns["sent_ns"]),
        counted(answered[outcome == Outcome.RESTORED]),
        counted(answered[outcome == Outcome.REFUSED]),
        counted(answered[outcome >= Outcome.TIMEOUT]),
    )


def check_parquet() -> None:
    """Raises UsageError if Parquet files cannot be written or read here."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ModuleNotFoundError as missing:
        raise UsageError(f"--trace and --replay: {advice(missing, 'trace')}") from None


def write(path: Path, columns: dict[str, npt.NDArray[Any]]) -> None:
    """Write a trace as Parquet, sorted by client and attempt; ``outcome`` in words."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    order = np.lexsort((columns["attempt"], columns["client"]))
    names = pa.array([one.name.lower() for one in Outcome])
    table = pa.table(
        {
            name: pa.DictionaryArray.from_arrays(pa.array(column[order].astype(np.int8)), names)
            if name == "outcome"
            else pa.array(column[order])
            for name, column in columns.items()
        }
    )
    pq.write_table(table, path, compression="zstd")


def read_schedule(directory: Path) -> Ints:
    """The begins of clients in nanoseconds, in order of their ids, as ``metad-spark schedule`` has written them."""
    import pyarrow.parquet as pq

    table = pq.read_table(directory / "first_attempts", columns=["t_ns", "client_id"])
    order = np.argsort(table["client_id"].to_numpy(), kind="stable")
    found: Ints = table["t_ns"].to_numpy()[order].astype(np.int64)
    return found
