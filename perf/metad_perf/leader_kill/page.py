"""The page: latency over time around the kill, all rounds laid over each other. One HTML file without scripts or
external files, readable in light and dark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from metad_spark.report.page import Page, Picture, Table
from metad_spark.report.picture import INK, Plane

from .rounds import Curve, percentile

_ROUND, _MARK = "#2f6fb3", "#d9622b"
_TIME = "seconds after the kill"
_CAPTION = "A thin line is one round, the thick one their median."
_TICKS_MS = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000)
_COLUMNS = ("round", "node", "led", "led_again_ms", "worst_ms", "failed_operations", "refused", "unknown")


def page(made: Mapping[str, Any], curves: Sequence[Curve]) -> str:
    """The whole page, of the report and the curves of its rounds."""
    again = [ms for one in made["by_round"] for ms in one["led_again_ms"].values()]
    lost = f"{made['lost']:,} acknowledged writes were lost" if made["lost"] else "No acknowledged write was lost"
    return Page(
        title="A leader is killed",
        verdict=f"{lost}. {made['rounds']} times kill -9 of a node that leads, at {made['rate']:,.0f} operations a"
        f" second on {made['nodes']} nodes.",
        good=not any(made[name] for name in ("lost", "duplicated", "invented")) and not made["problems"],
        faults=[*made["examples"], *made["problems"]],
        figures=[
            (f"{made['led_again_ms_p95']:,.0f} ms", "until another node leads and serves, p95"),
            (f"{made['led_again_ms_p50']:,.0f} ms", "p50"),
            (f"{made['failed_operations_max']:,}", "operations failed in the worst round"),
            (f"{made['worst_ms']:,.0f} ms", "the longest that an operation took"),
        ],
        parts=[_latency(curves, again), _done(curves, made["rate"]), _rounds(made["by_round"])],
        settings=[
            (name, _cell(value)) for name, value in made.items() if name not in ("by_round", "examples", "problems")
        ],
        settings_heading="Measured with",
    ).html()


def _latency(curves: Sequence[Curve], again: Sequence[float]) -> Picture:
    highest = max((max(one.worst_ms, default=1.0) for one in curves), default=1.0)
    top = next((tick for tick in _TICKS_MS if tick >= highest), _TICKS_MS[-1])
    plane = _plane(curves, "latency around the kill", (1, max(top, 3)), log_y=True)
    plane.grid(x_name=_TIME, y_name="latency", y_ticks=[(tick, _ms(tick)) for tick in _TICKS_MS if tick <= top])
    for above, percent in enumerate((50, 95) if again else (), 1):
        at_ms = percentile(again, percent)
        plane.mark(at_ms / 1e3, f"led again, p{percent}: {at_ms:,.0f} ms", _MARK, row=above)
    _lines(plane, curves, lambda one: [max(value, 1.0) for value in one.worst_ms])
    return Picture(heading="Longest latency of the operations that were due then", caption=_CAPTION, svg=plane.svg())


def _done(curves: Sequence[Curve], rate: float) -> Picture:
    top = max([1.3 * rate, *(percentile(one.done_per_s, 98) for one in curves)])
    plane = _plane(curves, "operations done per second around the kill", (0, top))
    plane.grid(
        x_name=_TIME, y_name="a second", y_ticks=[(rate * share, f"{rate * share:,.0f}") for share in (0, 0.5, 1)]
    )
    _lines(plane, curves, lambda one: one.done_per_s)
    return Picture(heading="Operations done per second", caption=_CAPTION, svg=plane.svg())


def _plane(curves: Sequence[Curve], label: str, y: tuple[float, float], *, log_y: bool = False) -> Plane:
    at_ms = curves[0].at_ms if curves else [0.0, 1_000.0]
    plane = Plane(x=(at_ms[0] / 1e3, at_ms[-1] / 1e3), y=y, label=label, log_y=log_y)
    plane.mark(0, "kill -9", INK)
    return plane


def _lines(plane: Plane, curves: Sequence[Curve], of: Callable[[Curve], Sequence[float]]) -> None:
    """A thin line for each round, and one of their medians."""
    for one in curves:
        plane.line([ms / 1e3 for ms in one.at_ms], of(one), _ROUND, width=1, opacity=0.35)
    if curves:
        middle = [percentile(values, 50) for values in zip(*(of(one) for one in curves), strict=True)]
        plane.line([ms / 1e3 for ms in curves[0].at_ms], middle, _ROUND, width=3)


def _rounds(rows: Sequence[Mapping[str, Any]]) -> Table:
    return Table(
        heading="Rounds",
        caption="",
        columns=[name.replace("_", " ") for name in _COLUMNS],
        rows=[[_cell(one[name]) for name in _COLUMNS] for one in rows],
    )


def _cell(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_cell(one)}" for name, one in value.items())
    if isinstance(value, list):
        return ", ".join(_cell(one) for one in value)
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _ms(value: float) -> str:
    return f"{value:g} ms" if value < 1_000 else f"{value / 1e3:g} s"
