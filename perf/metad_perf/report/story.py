"""A long run while it happens: the step it is in, how much of it is done and how fast, and the events so far.

In a terminal the step is redrawn several times a second, and the events stay above it. Elsewhere the step is one plain
line a second. A thread draws, so that a busy event loop does not stop the picture.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

_REDRAW_S = 0.2
_PLAIN_S = 1.0
_RATE_S = 1.0  # the rate is the mean of this long
_COLUMNS = 60  # of the curve, one for each redraw
_BARS = " ▁▂▃▄▅▆▇█"


class Story:
    """Tells what happens between ``with`` and its end. All calls are cheap enough for each of 100,000 sessions."""

    def __init__(self, console: Console | None = None, *, plain_s: float = _PLAIN_S) -> None:
        self._console = console or Console(file=sys.stdout, highlight=False)
        self._plain_s = plain_s
        self._animated = self._console.is_terminal and not self._console.is_dumb_terminal
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._begin_s = time.monotonic()
        self._step = ""
        self._total = 0
        self._done = 0
        self._also = ""
        self._looks: deque[tuple[float, int]] = deque()
        self._curve: deque[float] = deque(maxlen=_COLUMNS)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._draw, daemon=True, name="story")

    def __enter__(self) -> Self:
        if self._animated:
            self._live.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if self._animated:
            self._live.stop()

    def step(self, text: str, total: int = 0) -> None:
        """The run enters its next step. ``total`` is the number of sessions that the step is about; 0: none."""
        self._done, self._total, self._also = 0, total, ""
        self._looks.clear()
        self._curve.clear()
        self._step = text
        self.event(text)

    def add(self, count: int) -> None:
        """So many more sessions of the step are done."""
        self._done += count

    def also(self, text: str) -> None:
        """What else there is to say of the step just now, beside its progress."""
        self._also = text

    def event(self, text: str) -> None:
        """Print a line that stays."""
        line = f"{self._seconds():5.1f} s  {text}"
        if self._animated:
            self._console.print(line)
        else:
            self._line(line)

    def _line(self, text: str) -> None:
        print(text, file=self._console.file, flush=True)

    def _seconds(self) -> float:
        return time.monotonic() - self._begin_s

    def _draw(self) -> None:
        while not self._ended.wait(_REDRAW_S if self._animated else self._plain_s):
            rate = self._rate()
            if self._animated:
                self._curve.append(rate)
                self._live.update(self._picture(rate), refresh=True)
            else:
                self._line(f"{self._seconds():5.1f} s    {self._progress(rate) or f'{self._step} …'}")

    def _rate(self) -> float:
        """Sessions per second just now."""
        now = time.monotonic()
        self._looks.append((now, self._done))
        while len(self._looks) > 2 and now - self._looks[1][0] >= _RATE_S:
            self._looks.popleft()
        then, before = self._looks[0]
        return max(0.0, (self._done - before) / (now - then)) if now > then else 0.0

    def _progress(self, rate: float) -> str:
        if not self._total:
            return self._also
        progress = f"{self._done:,} of {self._total:,} sessions, {rate:,.0f} a second"
        return f"{progress}; {self._also}" if self._also else progress

    def _picture(self, rate: float) -> Group | Text:
        now = Text(f"{self._seconds():5.1f} s  {self._step} …")
        if not self._total:
            return Group(now, Text(f"{' ' * 9}{self._also}")) if self._also else now
        bar = Table.grid(padding=(0, 1))
        bar.add_row(" " * 8, ProgressBar(total=self._total, completed=self._done, width=30), self._progress(rate))
        highest = max(self._curve)
        if not highest:
            return Group(now, bar)
        heights = [_BARS[round(one / highest * (len(_BARS) - 1))] for one in self._curve]
        curve = Text(f"{' ' * 9}{''.join(heights)}  up to {highest:,.0f} a second", style="cyan")
        return Group(now, bar, curve)
