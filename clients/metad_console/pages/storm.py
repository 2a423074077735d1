"""Storm: what comes, what is let in, and what waits, against what the groups can do. The last ten minutes."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any, Final

from nicegui import ui

from metad_client import Watch, Watched
from metad_client.cli import people
from metad_client.errors import MetadError

from ..frame import button, clock, each_reading, frame, headline, label, late, problem, reason, tag
from ..samples import SAMPLES_MAX, Sample
from ..sessions import Session

PROGRESS_S: Final = 1.0
"""How often the nodes say that nothing is missing of what is counted."""
WIDTH_MIN_MS: Final = 60_000
"""What a chart shows at least; at most it is ten minutes."""
_GREY: Final = "#8b949e"


def page() -> None:
    """Build it."""
    with frame("/storm", "Storm", "Asked once a second while a page of yours is open.") as session:
        failed = problem("")
        with tag("div", classes="card"):
            numbers = tag("div", classes="numbers", role="status")
        with tag("div", classes="cards"):
            requests = _Chart("Requests a second", {"let in": "#3b82a6", "turned away": "#b9574d"})
            items = _Chart("Items", {"wait": "#d28a2d", "the groups do a second": "#5a9e62"})
            slots = _Chart("Return slots", {"items that may return a second": "#8a7fc0"})
            elections = _Chart("Elections", {"terms begun": "#a5638f"}, bars=True)
        _Takeovers(session)

    def show() -> None:
        reading = session.poll.reading
        failed.set_text(headline(session) if reading is not None and reading.error is not None else "")
        samples = session.poll.samples
        if not samples:
            return
        last = samples[-1]
        numbers.clear()
        with numbers:
            for name, value in _numbers(last).items():
                with tag("div"):
                    tag("b", value)
                    tag("span", name)
        at = [one.at_s for one in samples]
        requests.show(at, [one.admitted_per_s for one in samples], [one.refused_per_s for one in samples])
        items.show(at, [one.waiting_items for one in samples], [one.capacity_per_s for one in samples])
        slots.show(at, [one.returns_per_s for one in samples])
        elections.show(at, [one.elections for one in samples])

    each_reading(session, show)


def _numbers(last: Sample) -> dict[str, str]:
    return {
        "requests let in a second": f"{last.admitted_per_s:,.0f}",
        "turned away a second": f"{last.refused_per_s:,.0f}",
        "items wait": f"{last.waiting_items:,}",
        "items a second at most, as measured last": f"{last.capacity_per_s:,}",
        "of return slots taken": people.duration(last.ahead_ms),
        "client connections": f"{last.connections:,}",
    }


class _Chart:
    """Lines over the last ten minutes."""

    def __init__(self, title: str, series: dict[str, str], *, bars: bool = False) -> None:
        with tag("section", classes="card", aria_label=title) as self.section:
            tag("h2", title)
            self._chart = ui.echart(_options(series, bars=bars)).classes("chart")

    def show(self, at_s: list[float], *values: list[float] | list[int]) -> None:
        """Draw these: a value for each time, of which there is at least one."""
        times_ms = [int(one * 1_000) for one in at_s]
        for line, numbers in zip(self._chart.options["series"], values, strict=True):
            line["data"] = [[at, round(value, 1)] for at, value in zip(times_ms, numbers, strict=True)]
        now_ms = times_ms[-1]
        self._chart.options["xAxis"]["min"] = min(times_ms[0], now_ms - WIDTH_MIN_MS)
        self._chart.options["xAxis"]["max"] = now_ms
        self._chart.update()


def _options(series: dict[str, str], *, bars: bool) -> dict[str, Any]:
    axis = {"axisLabel": {"color": _GREY}, "splitLine": {"lineStyle": {"color": _GREY, "opacity": 0.25}}}
    return {
        "animation": False,
        "backgroundColor": "transparent",
        "grid": {"left": 8, "right": 14, "top": 34, "bottom": 4, "containLabel": True},
        "legend": {"left": 0, "top": 0, "textStyle": {"color": _GREY}, "itemWidth": 14},
        "tooltip": {"trigger": "axis"},
        "xAxis": {"type": "time", "axisLabel": {"color": _GREY, "hideOverlap": True}, "splitLine": {"show": False}},
        "yAxis": {"type": "value", "minInterval": 1, **axis},
        "series": [
            {
                "name": name,
                "type": "bar" if bars else "line",
                "showSymbol": False,
                "color": colour,
                "data": [],
                "lineStyle": {"width": 1.8},
            }
            for name, colour in series.items()
        ],
    }


class _Takeovers:
    """How many sessions brokers have taken over a second. No status says it: it is counted by a watch of their owners,
    which costs each node a stream. So a person begins it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._task: asyncio.Task[None] | None = None
        self._count = self._counted = 0
        self._is_open = False
        self._watched: Watch[Any] | None = None
        self._begun_s: float | None = None
        self._seconds: deque[tuple[float, int]] = deque(maxlen=SAMPLES_MAX)
        tag("h2", "Sessions taken over")
        with tag("div", classes="pager"):
            self._button = button("Count from now on", self._begin)
            self._said = label("Each node then sends a stream of all sessions' owners to this page.", "soft")
        self._problem = problem("")
        self._chart = _Chart("Sessions taken over or let go a second", {"owners that changed": "#4f9d9b"})
        self._chart.section.set_visibility(False)
        ui.context.client.on_delete(self._end)

    def _begin(self) -> None:
        if self._task is None:
            self._begun_s = time.monotonic()
            self._task = asyncio.get_running_loop().create_task(self._run(), name="console-takeovers")
            self._button.set_visibility(False)
            self._chart.section.set_visibility(True)
            ui.timer(1.0, self._show)

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            m = await self._session.client()
            async with m.watch(Watched("session", rows=("owner",)), keys_only=True, progress_s=PROGRESS_S) as found:
                self._watched = found
                async for batch in found:
                    self._is_open = True  # from the first word of progress on, every change comes
                    # Counted as they came: to decode a hundred thousand a second would stall every page.
                    self._count += sum(len(changes) for _, changes in batch.entries)
        except MetadError as error:
            self._begun_s = None  # it has ended
            self._problem.set_text(reason(error, "sessions"))

    def _show(self) -> None:
        self._seconds.append((time.time(), self._count - self._counted))
        self._counted = self._count
        since = clock(self._seconds[0][0])
        if self._begun_s is not None:
            self._problem.set_text(late(self._watched, self._begun_s))
        self._said.set_text(f"{'counting' if self._is_open else 'opening'}, {self._count:,} since {since}")
        self._chart.show([at for at, _ in self._seconds], [count for _, count in self._seconds])
