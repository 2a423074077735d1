"""The way of every client: a row for each attempt, in columns; and Parquet files of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from metad_wire.program.extras import advice

from ..errors import UsageError
from .population import Ints

_NO_SLOT = -1
ROWS_MAX = 500_000
"""Rows in memory, some 23 MB."""


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
    ("jitter_ms", np.int32),
    ("group", np.uint16),
    ("kind", np.uint8),
    ("region", np.uint8),
    ("policy", np.uint8),
)
"""Times are in nanoseconds after the trigger. ``scheduled_ns``: the device begins the attempt. ``sent_ns``: its broker
calls the SDK. ``slot_ms``: the time to come back that the server gave, -1 if it gave none; ``jitter_ms``: by how much
the client may come earlier or later. ``group``: the ordinal of the client's data group when the storm began. ``kind``,
``region``: of the population. ``policy``: how the client waits after it was turned away. These three and ``outcome``
are words in the file."""
STORM: Final = "storm.json"
"""The name of the file beside a trace that says which storm it is of."""
FORMAT: Final = 1
"""Of that file."""
Words: TypeAlias = Mapping[str, Sequence[str]]
"""Per column with words: the words, by number."""


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


class Tally:
    """Attempts over time, in steps; it stays as small as it is, however many attempts there are."""

    def __init__(self, step_s: float, steps: int) -> None:
        self._step_s = step_s
        self._step_ns = round(step_s * 1e9)
        self._begun, self._sent, *self._ended = (np.zeros(steps, dtype=np.int64) for _ in range(2 + len(Outcome)))

    def note(self, scheduled_ns: Ints, sent_ns: int, answered_ns: int, outcome: Outcome) -> None:
        """Attempts that were sent and answered together."""
        last = len(self._sent) - 1
        at = np.clip(scheduled_ns // self._step_ns, 0, last)
        self._begun += np.bincount(at, minlength=last + 1)
        self._sent[min(sent_ns // self._step_ns, last)] += len(at)
        self._ended[outcome][min(answered_ns // self._step_ns, last)] += len(at)

    def series(self, steps: int) -> Series:
        """The first steps; the last of them has all that came later."""

        def cut(counts: Ints) -> list[int]:
            return [*counts[: steps - 1].tolist(), int(counts[steps - 1 :].sum())]

        restored, refused, timeout, failed = self._ended
        return Series(
            self._step_s, cut(self._begun), cut(self._sent), cut(restored), cut(refused), cut(timeout + failed)
        )


class Trace:
    """Attempts as they end, a batch at a time, on their way to a Parquet file; rows are in the order of their ends.
    At most ``rows_max`` are in memory. Without a path they go nowhere. ``words``: those of ``kind``, ``region`` and
    ``policy``."""

    def __init__(self, path: str = "", rows_max: int = ROWS_MAX, words: Words | None = None) -> None:
        self._path = path
        self._rows_max = rows_max
        self._words = {"outcome": [one.name.lower() for one in Outcome], **(words or {})}
        self._parts: list[list[npt.NDArray[Any]]] = [[] for _ in COLUMNS]
        self._rows = 0
        self._writer: Any = None

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
        jitter_ms: int = 0,
        *,
        group: Ints,
        kind: Ints,
        region: Ints,
        policy: Ints,
    ) -> None:
        """Attempts that were sent and answered together. ``kind``, ``region``, ``policy``: numbers of words."""
        if not self._path:
            return
        values: tuple[Any, ...] = (
            *(client, broker, attempt, scheduled_ns, sent_ns, answered_ns, int(outcome), slot_ms, jitter_ms),
            *(group, kind, region, policy),
        )
        for part, value, (_, width) in zip(self._parts, values, COLUMNS, strict=True):
            part.append(value.astype(width) if isinstance(value, np.ndarray) else np.full(len(client), value, width))
        self._rows += len(client)
        if self._rows >= self._rows_max:
            self._flush()

    def close(self) -> None:
        """Write the rest."""
        if self._path:
            self._flush()
            self._writer.close()
            self._path = ""

    def _flush(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        words = {name: pa.array(each) for name, each in self._words.items()}
        columns = {
            name: np.concatenate(part) if part else np.empty(0, kind)
            for part, (name, kind) in zip(self._parts, COLUMNS, strict=True)
        }
        table = pa.table(
            {
                name: pa.DictionaryArray.from_arrays(pa.array(column.astype(np.int16)), words[name])
                if name in words
                else pa.array(column)
                for name, column in columns.items()
            }
        )
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, table.schema, compression="zstd")
        self._writer.write_table(table)
        self._parts = [[] for _ in COLUMNS]
        self._rows = 0


def describe(directory: Path, facts: Mapping[str, Any]) -> None:
    """Write beside the attempts which storm they are of."""
    (directory / STORM).write_bytes(msgspec.json.format(msgspec.json.encode(facts), indent=1) + b"\n")


def check_parquet() -> None:
    """Raises UsageError if Parquet files cannot be written or read here."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ModuleNotFoundError as missing:
        raise UsageError(f"--trace and --replay: {advice(missing, 'trace')}") from None


def read_schedule(directory: Path) -> Ints:
    """The begins of clients in nanoseconds, in order of their ids, as ``metad-spark schedule`` has written them. Raises
    UsageError."""
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(directory / "first_attempts", columns=["t_ns", "client_id"])
    except (OSError, ValueError) as error:
        what = str(error).partition("\n")[0]
        raise UsageError(f"--replay {directory}: no schedule of metad-spark: {what}") from None
    order = np.argsort(table["client_id"].to_numpy(), kind="stable")
    found: Ints = table["t_ns"].to_numpy()[order].astype(np.int64)
    return found
