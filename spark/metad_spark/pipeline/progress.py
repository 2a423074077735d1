"""Progress of a simulation: a bar on a terminal, a line per job in a log. Written to stderr."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

_EVERY_S = 0.2
_LINE_EVERY_S = 10.0


class Steps:
    """Shows one step after the other, with the tasks of its job as they end."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._bar = not quiet and sys.stderr.isatty()

    @contextlib.contextmanager
    def step(self, label: str, tasks: int = 0) -> Iterator[str]:
        """Shows the step while the block runs. Yields a file: each byte in it is a task that has ended on this machine;
        tasks elsewhere are not counted, and the bar only waits."""
        began = time.monotonic()
        with tempfile.NamedTemporaryFile(prefix="metad-spark-", suffix=".done") as done:
            if self._bar:
                with _drawn(label, tasks, Path(done.name)):
                    yield done.name
            else:
                yield done.name
        if not self._quiet and not self._bar:
            count = f", {tasks} tasks" if tasks else ""
            print(f"{label}: {time.monotonic() - began:.1f} s{count}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def repeated(look: Callable[[], object], every_s: float, name: str) -> Iterator[None]:
    """Call ``look`` again and again while the block runs, from a thread of this name."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(every_s):
            look()

    watcher = threading.Thread(target=watch, name=name, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


@contextlib.contextmanager
def _drawn(label: str, tasks: int, done: Path) -> Iterator[None]:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=8) as bar:
        shown = bar.add_task(label, total=tasks or None)

        with repeated(lambda: bar.update(shown, completed=done.stat().st_size), _EVERY_S, "progress"):
            yield


@contextlib.contextmanager
def clock(label: str, limit_s: float, unit: str) -> Iterator[Callable[[float, int], None]]:
    """Yields what to tell how many simulated seconds are over, and how many of ``unit`` there are: a bar on a terminal,
    and in a log a line every ten seconds of real time."""
    if sys.stderr.isatty():
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=8) as bar:
            shown = bar.add_task(label, total=limit_s)

            def draw(time_s: float, count: int) -> None:
                bar.update(shown, completed=time_s, description=_at(label, time_s, limit_s, count, unit))

            yield draw
        return
    told_s = time.monotonic()

    def tell(time_s: float, count: int) -> None:
        nonlocal told_s
        if time.monotonic() - told_s >= _LINE_EVERY_S:
            told_s = time.monotonic()
            print(_at(label, time_s, limit_s, count, unit), file=sys.stderr, flush=True)

    yield tell


def _at(label: str, time_s: float, limit_s: float, count: int, unit: str) -> str:
    return f"{label}: {time_s:.1f} of at most {limit_s:,.0f} simulated seconds, {count:,} {unit}"


def mark(done_file: str | None) -> None:
    """Mark that a task has ended, for the display. Appending one byte is atomic; on another machine there is no
    file."""
    if done_file is None:
        return
    with contextlib.suppress(OSError):
        handle = os.open(done_file, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(handle, b".")
        finally:
            os.close(handle)
