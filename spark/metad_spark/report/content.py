"""A storm's result as a report: the most important facts first, in words and pictures. Pure.

The four pictures are drawn from plain numbers: returns over time, load against capacity, amplification, and the
map of collapse.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ..calibration import Calibration
from ..changes import Change, Grid, patience_s, queue_s, serves
from ..models.histogram import BINS, RATIO, TIME_MIN_S, quantile_s
from ..models.node_input import FINE_POINTS, FINE_US
from ..models.results import Array, StormResult
from ..requests.costs import Costs
from ..requests.slices import ESTIMATED, Estimate, slices_of, unknown
from ..scenario import Scenario
from ..tables.queries import Curves
from ..target import Target
from ..validation import validity
from ..wording import LEFT_OUT, percent, seconds, short
from .page import Page, Picture, Table
from .picture import INK, Plane, Square, mixed, squares

COLOURS = ("#0657f9", "#049504", "#f90606", "#1fad96", "#f906f9", "#945738", "#f90680", "#6b8ac7")
"""Of regions, in order; after eight they repeat, with dashes. They can be told apart on white and on black."""
DASHES = ("", "7 3", "2 3", "9 3 2 3")
BLUE, RED = "#2563eb", "#dc2626"
_LINEAR_MAX = 4.0
"""Load this many times over capacity is drawn on a logarithmic scale, so that both can be read."""
_TIME = "seconds since everyone was cut off"
_FAST, _SLOW = "#dbeafe", "#1e40af"
"""Ends of the collapse map's scale: the darker, the longer."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One square of the collapse map."""

    t999_s: float | None
    """Seconds until 99.9 % are back; None if they never are."""
    restored: float
    """Share that is back at the end, 0 to 1."""
    here: bool = False
    """Whether it is the scenario's own setting."""


def restored(
    times: Sequence[float],
    regions: Mapping[str, Sequence[float]],
    *,
    target_s: float | None = None,
    events: Mapping[str, float] | None = None,
    band: tuple[Sequence[float], Sequence[float]] | None = None,
) -> str:
    """Share of each region's clients that is back (0 to 1), over seconds since the disconnect. ``band``: between which
    shares that of all clients is."""
    plane = Plane(x=(0, times[-1]), y=(0, 1), label="share of clients restored over time, by region")
    quarters = [(share / 4, f"{share * 25} %") for share in range(5)]
    plane.grid(x_name=_TIME, y_name="clients back", y_ticks=quarters)
    for name, at in {**(events or {}), **({f"target {seconds(target_s)}": target_s} if target_s else {})}.items():
        if at < times[-1]:
            plane.mark(at, name)
    for index, (name, shares) in enumerate(regions.items()):
        dash = DASHES[index // len(COLOURS) % len(DASHES)]
        plane.line(times, shares, COLOURS[index % len(COLOURS)], f"{name}  {percent(shares[-1])}", dash=dash)
    for shares, name in zip(band or (), ("", "all, by the sample"), strict=False):
        plane.line(times, shares, INK, name, width=1, dash="2 3")
    return plane.svg()


def by_second(regions: Mapping[str, Sequence[float]], what: str) -> str:
    """How many of something there are in each second, by region."""
    count = len(next(iter(regions.values())))
    top = max(1.0, *(max(counts) for counts in regions.values()))
    plane = Plane(x=(0, count), y=(0, top * 1.08), label=f"{what} over time, by region")
    plane.grid(x_name=_TIME, y_name=f"{what} per second")
    steps = [at for second in range(count) for at in (second, second + 1)]
    for index, (name, counts) in enumerate(regions.items()):
        colour, dash = COLOURS[index % len(COLOURS)], DASHES[index // len(COLOURS) % len(DASHES)]
        plane.line(
            steps, [each for each in counts for _ in range(2)], colour, f"{name}  {short(sum(counts))}", dash=dash
        )
    return plane.svg()


def waits(regions: Mapping[str, Sequence[float]]) -> str:
    """How long clients that are back waited: of each region, seconds at evenly spaced shares of them."""
    every = [time for times in regions.values() for time in times] or [1.0]
    plane = Plane(x=(0, 100), y=(min(every) / 1.2, max(every) * 1.2), label="waits of clients, by region", log_y=True)
    plane.grid(x_name="% of the clients that are back waited no longer", y_name="seconds, each from its own begin")
    for index, (name, times) in enumerate(regions.items()):
        if times:
            at = [100 * (place + 1) / len(times) for place in range(len(times))]
            dash = DASHES[index // len(COLOURS) % len(DASHES)]
            plane.line(at, times, COLOURS[index % len(COLOURS)], f"{name}  {seconds(times[-1])}", dash=dash)
    return plane.svg()


def load(
    times: Sequence[float],
    *,
    arrivals: Sequence[float],
    served: Sequence[float],
    limits: Mapping[str, float],
) -> str:
    """Attempts a second and what is served of them, against what could be: ``limits``, by name, in items/s."""
    top, most = max(*arrivals, *limits.values(), 1.0) * 1.08, max(*limits.values(), *served)
    is_log = top > _LINEAR_MAX * most  # capacity would be a line at the bottom
    low = min(limits.values()) / 100 if is_log else 0.0
    label = "arriving and answered requests per second against capacity"
    plane = Plane(x=(0, times[-1]), y=(low, top), label=label, log_y=is_log)
    plane.grid(x_name=_TIME, y_name=f"items per second, all groups{', each line ten times the last' if is_log else ''}")
    plane.area(times, arrivals, RED, opacity=0.12)
    plane.area(times, served, BLUE)
    plane.line(times, served, BLUE, "", width=1.5)
    plane.line(times, arrivals, RED, "", width=1.5)
    for name, limit in limits.items():
        plane.line([0, times[-1]], [limit, limit], INK, f"{name} {short(limit)}/s", width=1.5, dash="6 4")
    return plane.svg()


def amplification(times: Sequence[float], attempts: Sequence[float]) -> str:
    """Attempts so far for each client that is back so far."""
    shown = [(time, value) for time, value in zip(times, attempts, strict=True) if value > 0 and math.isfinite(value)]
    top = max((value for _, value in shown), default=1.0)
    label = "attempts so far per client restored so far, over time"
    plane = Plane(x=(0, times[-1]), y=(1, max(10.0, top * 1.3)), label=label, log_y=True)
    plane.grid(x_name=_TIME, y_name="attempts so far for each client that is back so far (1 is perfect)")
    if shown:
        plane.line(
            [time for time, _ in shown], [value for _, value in shown], COLOURS[4], f"{shown[-1][1]:.3g} in the end"
        )
    return plane.svg()


def collapse_map(
    cells: Sequence[Sequence[Cell]], *, rows: Sequence[str], columns: Sequence[str], row_name: str, column_name: str
) -> str:
    """A square per setting: time until 99.9 % are back, or that they never are. ``cells[row][column]``."""
    times = [cell.t999_s for line in cells for cell in line if cell.t999_s is not None] or [1.0]
    return squares(
        [[_shade(cell, min(times), max(times)) for cell in line] for line in cells],
        rows=rows,
        columns=columns,
        row_name=row_name,
        column_name=column_name,
        label="collapse map",
    )


_PLAIN_INK = "#1f2938"
"""On a square, whose colour no dark screen changes."""


def _shade(cell: Cell, fastest: float, slowest: float) -> Square:
    """The square of a setting. The scale is logarithmic: twice as long is as much darker everywhere, and a ratio under
    two never spans the whole scale."""
    frame = INK if cell.here else ""
    if cell.t999_s is None:
        return Square(fill="#fecaca", ink="#991b1b", words=[f"never: {percent(cell.restored)} back"], frame=frame)
    span = max(math.log(2.0), math.log(slowest / fastest)) if fastest > 0 else 1.0
    share = math.log(cell.t999_s / fastest) / span if fastest > 0 else 0.0
    ink = "#ffffff" if share > 0.45 else _PLAIN_INK
    return Square(fill=mixed(_FAST, _SLOW, share), ink=ink, words=[seconds(cell.t999_s)], frame=frame)


_NEAR, _NEAR_S = 0.005, 0.05
"""Storms that end this near to each other, of themselves or in seconds, are not told apart."""


def verdict(storm: StormResult, target: Target) -> str:
    """The outcome, in a sentence."""
    reached = reached_s(storm, target)
    share = f"{target.share * 100:g} %"
    if storm.collapsed:
        back = percent(storm.restored / storm.clients)
        return f"It collapses: {back} are back at the end, and most of what the rest attempt is in vain."
    if reached is None:
        return f"{share} are not back by the end; {percent(storm.restored / storm.clients)} are."
    if reached <= target.seconds:
        return f"{share} are back after {seconds(reached)}, within the {seconds(target.seconds)} wanted."
    return f"{share} are back after {seconds(reached)}, {seconds(reached - target.seconds)} later than wanted."


def reached_s(storm: StormResult, target: Target) -> float | None:
    """When the target's share was back; None for never."""
    found: float | None = getattr(storm, f"{target.key}_s")
    return found


def report(
    *,
    scenario: Scenario,
    calibration: Calibration,
    storm: StormResult,
    clients: Sequence[int],
    target: Target,
    changes: Sequence[tuple[Change, StormResult]] = (),
    grid: Grid | None = None,
    cells: Sequence[Sequence[StormResult]] = (),
    settings: Sequence[tuple[str, str]],
    faults: Sequence[str] = (),
    made: Sequence[str] = (),
) -> Page:
    """The page. ``clients``: of each region. ``changes`` and ``cells`` (of ``grid.scenarios``): comparisons; the page
    has none where none are given.
    ``faults``: why the storm must not be relied on. ``made``: how and when the page was made."""
    reached = reached_s(storm, target)
    drawn = _drawn(storm)
    return Page(
        title=f"A storm of {storm.clients:,} clients",
        verdict=verdict(storm, target),
        good=not faults and reached is not None and reached <= target.seconds,
        faults=faults,
        notice=f"{validity(storm.model)} {LEFT_OUT}",
        made=made,
        figures=[
            (short(storm.clients), "clients"),
            (percent(storm.restored / storm.clients), "back at the end"),
            (_time(storm.t50_s), "half are back"),
            (_time(storm.t999_s), "99.9 % are back"),
            (f"{storm.attempts_per_client:.3g}", "attempts per client"),
            (short(storm.rejected), "refused"),
            (short(storm.queue_max or 0), "longest queue"),
        ],
        parts=[
            _restored(scenario, storm, clients, target, drawn),
            _load(scenario, calibration, storm, drawn),
            _amplification(drawn),
            *([_map(grid, cells)] if grid is not None else []),
            *([_table(changes, target)] if changes else []),
        ],
        settings=settings,
    )


def sliced(
    *,
    scenario: Scenario,
    costs: Costs,
    storm: StormResult,
    curves: Curves,
    found: Estimate,
    validation: str,
    target: Target,
    run: str,
    made: Sequence[str] = (),
) -> Page:
    """The page about a storm by the model of requests. ``validation``: what is said of its prediction, first of all.
    ``found``: its numbers, with the errors of the choice of slices."""
    reached = reached_s(storm, target)
    of = len(slices_of(scenario))
    sampled = f"{len(curves.sizes)} of {of} slices of three nodes" + ("" if len(curves.sizes) < of else ", so all")
    parts = [_back(curves, of, target), *_by_second(curves)]
    return Page(
        title=f"A storm of {storm.clients:,} clients",
        verdict=verdict(storm, target),
        good=reached is not None and reached <= target.seconds and not storm.collapsed,
        faults=[f"The model of requests leaves out {what}." for what in unknown(scenario)],
        notice=validation,
        made=made,
        figures=[
            (short(storm.clients), "clients"),
            (percent(storm.restored / storm.clients), "back at the end"),
            *((_time(getattr(storm, key)), f"{name} are back{_off(found, key)}") for key, name in _WHEN.items()),
            (f"{storm.attempts_per_client:.3g}", f"attempts per client{_off(found, ESTIMATED[3])}"),
            (short(storm.rejected), "refused"),
            (short(storm.timeouts), "given up"),
        ],
        parts=[*parts, _waits(curves)],
        settings=[
            *(("model", storm.model), ("run", run), ("slices", sampled)),
            *_asked(scenario),
            ("cost of serving", f"{costs.name}: {costs.setting}"),
        ],
    )


_WHEN: Final = {"t50_s": "half", "t99_s": "99 %", "t999_s": "99.9 %"}


def _off(found: Estimate, key: str) -> str:
    """What the choice of slices leaves open of a number: two standard errors."""
    error_pct = found.errors_pct[key]
    return f", ± {error_pct:.2g} %" if error_pct else ""


def _back(curves: Curves, of: int, target: Target) -> Picture:
    """Who is back when, from the bins of the times until each client was back."""
    back, clients = curves.storm.sum(axis=0).cumsum(), sum(curves.clients)
    enough = int(np.searchsorted(back, 0.9995 * clients)) if back[-1] >= 0.9995 * clients else BINS
    last = int(np.flatnonzero(curves.storm.any(axis=0)).max(initial=0))
    edges = TIME_MIN_S * RATIO ** np.arange(1, BINS + 1)
    shown = edges <= max(1.1 * edges[min(enough, last)], 0.1)
    drawn = shown & (edges >= edges[shown][-1] / 1_000)

    def shares(counts: Array, whole: float) -> list[float]:
        return [0.0, *np.minimum(1.0, counts.cumsum()[drawn] / max(1.0, whole))]

    parts = zip(curves.regions, curves.storm, curves.clients, strict=True)
    band = None
    words = "All slices were simulated."
    if 1 < (count := len(curves.sizes)) < of:
        others = (back - curves.slices.cumsum(axis=1)) / (clients - np.array(curves.sizes))[:, None]
        error = 2 * np.sqrt((count - 1) * others.var(axis=0) * (1 - count / of))[drawn]
        whole = back[drawn] / clients
        band = [0.0, *np.maximum(0.0, whole - error)], [0.0, *np.minimum(1.0, whole + error)]
        words = f"Dotted: two standard errors of all clients' share, because {count} of {of} slices were simulated."
    elif count < of:
        words = f"One of {of} slices was simulated, which does not say how far the others are from it."
    return Picture(
        heading="Who is back when",
        caption=f"Share of each region's clients that has its session again. {words}",
        svg=restored(
            [0.0, *edges[drawn]],
            {name: shares(counts, whole) for name, counts, whole in parts},
            target_s=target.seconds,
            band=band,
        ),
    )


def _by_second(curves: Curves) -> list[Picture]:
    """Attempts, refusals and what retries make of them."""
    end = _end(curves.by_s["restored"].tolist(), math.fsum(curves.clients))
    shown = {name: counts[:, :end].tolist() for name, counts in curves.by_s.items()}
    regions = {name: dict(zip(curves.regions, counts, strict=True)) for name, counts in shown.items()}
    found = [
        Picture(
            heading="What is attempted",
            caption="Attempts that clients begin in each second, in the slices that were simulated.",
            svg=by_second(regions["attempts"], "attempts"),
        )
    ]
    if curves.by_s["refused"].any():
        caption = "Attempts that nodes turn away in each second, in the slices that were simulated."
        svg = by_second(regions["refused"], "refusals")
        found.append(Picture(heading="What is turned away", caption=caption, svg=svg))
    served = [0.0] * end
    drawn = _Drawn(step_s=1.0, restored=shown["restored"], attempts=shown["attempts"], served=served)
    return [*found, _amplification(drawn)]


def _waits(curves: Curves) -> Picture:
    found: dict[str, list[float]] = {}
    for name, counts in zip(curves.regions, curves.waits, strict=True):
        times = [quantile_s(counts, place / 200, float(counts.sum())) for place in range(1, 201)]
        found[name] = [time for time in times if time is not None]
    return Picture(
        heading="How long clients wait",
        caption="Of the clients that are back: each from when it lost its connection.",
        svg=waits(found),
    )


@dataclass(frozen=True, kw_only=True)
class _Drawn:
    """What the pictures show of a storm: its seconds or, of a short one, smaller steps, until nearly all are back."""

    step_s: float
    restored: Sequence[Sequence[float]]
    """(region, step), as the other two."""
    attempts: Sequence[Sequence[float]]
    served: Sequence[float]

    @property
    def edges(self) -> list[float]:
        """The begin of each step, and the end of the last one."""
        return [step * self.step_s for step in range(len(self.served) + 1)]

    @property
    def middles(self) -> list[float]:
        """The middle of each step."""
        return [(step + 0.5) * self.step_s for step in range(len(self.served))]


def _drawn(storm: StormResult) -> _Drawn:
    end = _end(storm.restored_by_s, storm.clients)
    tables = (storm.restored_by_s, storm.attempts_by_s, storm.served_by_s)
    step_s = 1.0
    if end <= FINE_POINTS * FINE_US * 1e-6 / 1.1:
        tables = (storm.restored_fine, storm.attempts_fine, storm.served_fine)
        step_s = FINE_US * 1e-6
        end = _end(storm.restored_fine, storm.clients)
    restored, attempts, served = tables
    return _Drawn(
        step_s=step_s,
        restored=[row[:end] for row in restored],
        attempts=[row[:end] for row in attempts],
        served=served[:end],
    )


def _restored(scenario: Scenario, storm: StormResult, clients: Sequence[int], target: Target, drawn: _Drawn) -> Picture:
    regions = {}
    for name, by_step, count in zip(storm.regions, drawn.restored, clients, strict=True):
        back = itertools.accumulate(by_step)
        regions[name] = [0.0, *(min(1.0, so_far / count) if count else 1.0 for so_far in back)]
    events = {
        f"{change.nodes} nodes die" if change.nodes > 1 else "a node dies": change.at_s
        for change in scenario.leader_changes
    }
    return Picture(
        heading="Who is back when",
        caption="Share of each region's clients that has its session again.",
        svg=restored(drawn.edges, regions, target_s=target.seconds, events=events),
    )


def _load(scenario: Scenario, calibration: Calibration, storm: StormResult, drawn: _Drawn) -> Picture:
    arrivals = [sum(column) / drawn.step_s for column in zip(*drawn.attempts, strict=True)]
    capacity = serves(scenario, calibration)
    limits = {"nodes": capacity}
    if scenario.brokers.connects_per_s:
        limits["brokers"] = scenario.brokers.connects_per_s * scenario.brokers.count
        capacity = min(limits.values())
    over = sum(drawn.step_s for value in arrivals if value > capacity)
    wasted = (storm.wasted or 0) / max(1.0, sum(storm.served_by_s))
    said = f"More arrives than can be served for {seconds(over)}. " if over else "Never more than can be served. "
    said += f"{percent(wasted)} of what was served was for clients that had given up." if storm.wasted else ""
    served = [value / drawn.step_s for value in drawn.served]
    return Picture(
        heading="Load against capacity",
        caption=said.strip(),
        svg=load(drawn.middles, arrivals=arrivals, served=served, limits=limits),
        legend=[(RED, "attempts begun by clients"), (BLUE, "served")],
    )


def _amplification(drawn: _Drawn) -> Picture:
    attempts = itertools.accumulate(sum(column) for column in zip(*drawn.attempts, strict=True))
    back = itertools.accumulate(sum(column) for column in zip(*drawn.restored, strict=True))
    ratios = [tried / done if done else float("inf") for tried, done in zip(attempts, back, strict=True)]
    return Picture(
        heading="Amplification",
        caption="What retries make of the load. A line that does not come down is a storm that feeds itself.",
        svg=amplification(drawn.middles, ratios),
    )


def _map(grid: Grid, cells: Sequence[Sequence[StormResult]]) -> Picture:
    squares = [
        [
            Cell(t999_s=cell.t999_s, restored=cell.restored / cell.clients, here=(row, column) == grid.here)
            for column, cell in enumerate(line)
        ]
        for row, line in enumerate(cells)
    ]
    return Picture(
        heading="Where it collapses",
        caption="Time until 99.9 % are back, by what a group's queue may hold (and how long that takes to serve) and by"
        " the number of nodes. The frame is this storm; squares are comparisons, and no node dies in them.",
        svg=collapse_map(
            squares,
            rows=grid.rows,
            columns=grid.columns,
            row_name="queue of a group",
            column_name="size of the cluster",
        ),
    )


def _table(changes: Sequence[tuple[Change, StormResult]], target: Target) -> Table:
    """``changes``: the scenario itself first."""
    (_, now), *_ = changes

    def end_s(storm: StormResult) -> float:
        reached = reached_s(storm, target)
        return float("inf") if reached is None else reached

    def better(storm: StormResult) -> tuple[float, float]:
        return end_s(storm), -storm.restored / storm.clients

    ordered = [changes[0], *sorted(changes[1:], key=lambda pair: better(pair[1]))]
    rows = [
        [
            change.name,
            _time(storm.t999_s),
            "" if index == 0 else _difference(end_s(storm), end_s(now)),
            percent(storm.restored / storm.clients),
            f"{storm.attempts_per_client:.3g}",
            short(storm.rejected),
            change.price,
            storm.model,
        ]
        for index, (change, storm) in enumerate(ordered)
    ]
    good = frozenset(
        index
        for index, (_, storm) in enumerate(ordered)
        if end_s(storm) <= target.seconds and not _difference(end_s(storm), end_s(now)).endswith("later")
    )
    return Table(
        heading="What to change",
        caption=f"One change at a time, the best first, and no node dies. Green: {target}, and no later than as it is.",
        columns=[
            *("change", "99.9 % back", "difference", "back at the end", "attempts per client", "refused"),
            *("what it costs", "model"),
        ],
        rows=rows,
        strong=good,
    )


def _difference(end_s: float, now_s: float) -> str:
    """How much sooner or later the target's share is back."""
    if end_s == now_s:
        return "none"
    if math.isinf(now_s):
        return "ends"
    if math.isinf(end_s):
        return "never ends"
    if abs(end_s - now_s) <= max(_NEAR_S, _NEAR * now_s):
        return "none"
    return f"{seconds(abs(end_s - now_s))} {'sooner' if end_s < now_s else 'later'}"


def settings(scenario: Scenario, calibration: Calibration) -> list[tuple[str, str]]:
    """The settings of the simulation, for readers who want to repeat or to doubt it."""
    cluster = scenario.cluster
    bound = queue_s(scenario, calibration)
    return [
        ("serves", f"{short(serves(scenario, calibration))} items/s at its best"),
        (
            "queue",
            f"{cluster.queue_items:,} items a group, {seconds(bound)} of work" if cluster.queue_items else "no bound",
        ),
        *_asked(scenario),
        ("cost of serving", calibration.setting),
    ]


def _asked(scenario: Scenario) -> list[tuple[str, str]]:
    """What the scenario says, whatever the model."""
    cluster, brokers = scenario.cluster, scenario.brokers
    return [
        ("scenario", f"{scenario.name}: {scenario.description}"),
        ("cluster", f"{cluster.nodes} nodes, {cluster.groups} groups, entries of {cluster.batch_items:,} items"),
        ("patience", f"{seconds(scenario.client_timeout_s)}, {seconds(patience_s(scenario))} of it for the queue"),
        ("brokers", f"{brokers.count}, linger {brokers.linger_ms:g} ms, {brokers.batch_items:,} items a request"),
        ("regions", ", ".join(f"{r.name} {100 * r.share:g} % {r.rtt_ms:g} ms" for r in scenario.regions)),
        ("SDKs", ", ".join(f"{sdk.name} {100 * sdk.share:g} %" for sdk in scenario.sdks)),
    ]


def _end(restored: Sequence[Sequence[float]], clients: float) -> int:
    """Steps to draw: until nearly all are back and a little more, or all of it where they never are."""
    total = list(itertools.accumulate(sum(column) for column in zip(*restored, strict=True)))
    enough = next((step for step, back in enumerate(total) if back >= 0.9995 * clients), len(total) - 1)
    return min(len(total), max(5, round((enough + 1) * 1.1)))


def _time(value: float | None) -> str:
    return "never" if value is None else seconds(value)
