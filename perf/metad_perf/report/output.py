"""Output for people and scripts: tables on stdout, progress on stderr, JSON files."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

T = TypeVar("T")
_LINE_EVERY_S = 30.0

_PACKAGES = ("metad-service", "msgspec", "rocksdict", "uvloop", "aioquic", "grpcio", "protobuf", "paho-mqtt")


def write_json(path: Path | None, report: Mapping[str, Any]) -> None:
    """Write the report, if a path is given."""
    if path is not None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; numbers are aligned to the right."""
    shown = [[_cell(value) for value in row] for row in rows]
    made = Table(title=title, title_justify="left")
    for at, column in enumerate(columns):
        numeric = all(row[at][:1].isdigit() or row[at] in ("", "-") for row in shown)
        made.add_column(column, justify="right" if numeric and at else "left")
    for row in shown:
        made.add_row(*row)
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 120, highlight=False)
    console.print(made)


def say(text: str) -> None:
    """Print a sentence under the tables."""
    print(text, flush=True)


@contextlib.contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yields a function that counts ``n`` more items as done: a bar on a terminal, a line every half minute in a
    log."""
    if not sys.stderr.isatty():
        done, told_s = 0, time.monotonic()

        def tell(count: int) -> None:
            nonlocal done, told_s
            done += count
            if time.monotonic() - told_s >= _LINE_EVERY_S:
                told_s = time.monotonic()
                print(f"{label}: {done:,} of {total:,}", file=sys.stderr, flush=True)

        yield tell
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=5) as bar:
        task = bar.add_task(label, total=total)
        yield lambda count: bar.advance(task, count)


def ratio(numerator: float, denominator: float) -> float:
    """The ratio; 0 if the denominator is 0."""
    return numerator / denominator if denominator else 0.0


def median_ratio(pairs: Iterable[tuple[float, float]]) -> float:
    """The median of each pair's own ratio: a pair ran side by side, so a slow machine slowed both."""
    ratios = [ratio(first, second) for first, second in pairs]
    return statistics.median(ratios) if ratios else 0.0


def rounded(value: T) -> T:
    """Floats to five significant digits, in dicts and lists too: measurements have no more."""
    made: Any = value
    if isinstance(value, float):
        made = float(f"{value:.5g}")
    elif isinstance(value, dict):
        made = {key: rounded(one) for key, one in value.items()}
    elif isinstance(value, list):
        made = [rounded(one) for one in value]
    return cast("T", made)


def versions() -> dict[str, str]:
    """The versions of the measured software."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def machine() -> dict[str, Any]:
    """The machine that the measurement ran on."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cpus": cpus, "cpu": _cpu_model(), "kernel": platform.release()}


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"
    return str(value)
