"""A storm's result as a report: what to look at first, in words and pictures. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ..calibration import Calibration
from ..changes import Change, Grid, patience_s, queue_s, serves
from ..models.results import StormResult
from ..scenario import Scenario
from ..target import Target
from ..wording import seconds, short
from . import charts
from .charts import Cell
from .page import Page, Picture, Table


def verdict(storm: StormResult, target: Target) -> str:
    """How it went, in a sentence."""
    reached = reached_s(storm, target)
    share = f"{target.share * 100:g} %"
    if storm.collapsed:
        back = percent(storm.restored / storm.clients)
        return f"It collapses: {back} are back at the end, and the rest make no headway."
    if reached is None:
        return f"{share} are not back by the end; {percent(storm.restored / storm.clients)} are."
    if reached <= target.seconds:
        return f"{share} are back after {seconds(reached)}, within the {seconds(target.seconds)} wanted."
    return f"{share} are back after {seconds(reached)}, {seconds(reached - target.seconds)} later than wanted."


def reached_s(storm: StormResult, target: Target) -> float | None:
    """When the target's share was back; None for never."""
    found: float | None = getattr(storm, f"{target.key}_s")
    return found


def percent(share: float) -> str:
    """Never 100 % where somebody is missing."""
    text = f"{100 * share:.4g}"
    return f"{'99.99' if text == '100' and share < 1 else text} %"


def report(
    *,
    scenario: Scenario,
    calibration: Calibration,
    storm: StormResult,
    clients: Sequence[int],
    target: Target,
    changes: Sequence[tuple[Change, StormResult]],
    grid: Grid,
    cells: Sequence[Sequence[StormResult]],
    settings: Sequence[tuple[str, str]],
    faults: Sequence[str] = (),
) -> Page:
    """The page. ``clients``: of each region. ``changes`` and ``cells`` (of ``grid.scenarios``): comparisons.
    ``faults``: why the storm must not be relied on."""
    reached = reached_s(storm, target)
    end = _end(storm)
    times = [0.0, *(second + 0.5 for second in range(end))]
    return Page(
        title=f"A storm of {storm.clients:,} clients",
        verdict=verdict(storm, target),
        good=not faults and reached is not None and reached <= target.seconds,
        faults=faults,
        figures=[
            (short(storm.clients), "clients"),
            (percent(storm.restored / storm.clients), "back at the end"),
            (_time(storm.t50_s), "half are back"),
            (_time(storm.t999_s), "99.9 % are back"),
            (f"{storm.attempts_per_client:.3g}", "attempts per client"),
            (short(storm.rejected), "refused"),
            (short(storm.queue_max), "longest queue"),
        ],
        parts=[
            _restored(scenario, storm, clients, target, end),
            _load(scenario, calibration, storm, times),
            _amplification(storm, times),
            _map(grid, cells),
            _table(changes, target),
        ],
        settings=settings,
    )


def _restored(scenario: Scenario, storm: StormResult, clients: Sequence[int], target: Target, end: int) -> Picture:
    regions = {}
    for name, by_s, count in zip(storm.regions, storm.restored_by_s, clients, strict=True):
        back = itertools.accumulate(by_s[:end])
        regions[name] = [0.0, *(min(1.0, so_far / count) if count else 1.0 for so_far in back)]
    events = {
        f"{change.nodes} nodes die" if change.nodes > 1 else "a node dies": change.at_s
        for change in scenario.leader_changes
    }
    return Picture(
        heading="Who is back when",
        caption="Share of each region's clients that has its session again.",
        svg=charts.restored(
            [float(second) for second in range(end + 1)], regions, target_s=target.seconds, events=events
        ),
    )


def _load(scenario: Scenario, calibration: Calibration, storm: StormResult, times: Sequence[float]) -> Picture:
    arrivals = [sum(column) for column in zip(*storm.attempts_by_s, strict=True)][: len(times) - 1]
    capacity = serves(scenario, calibration)
    limits = {"nodes": capacity}
    if scenario.brokers.connects_per_s:
        limits["brokers"] = scenario.brokers.connects_per_s * scenario.brokers.count
        capacity = min(limits.values())
    over = sum(1 for value in arrivals if value > capacity)
    wasted = storm.wasted / max(1.0, sum(storm.served_by_s))
    said = f"More arrives than can be served for {seconds(over)}. " if over else "Never more than can be served. "
    said += f"{percent(wasted)} of what was served was for clients that had given up." if storm.wasted else ""
    return Picture(
        heading="Load against capacity",
        caption=said.strip(),
        svg=charts.load(
            times, arrivals=_from_0(arrivals), served=_from_0(storm.served_by_s[: len(times) - 1]), limits=limits
        ),
        legend=[(charts.RED, "attempts begun by clients"), (charts.BLUE, "served")],
    )


def _amplification(storm: StormResult, times: Sequence[float]) -> Picture:
    attempts = itertools.accumulate(sum(column) for column in zip(*storm.attempts_by_s, strict=True))
    back = itertools.accumulate(sum(column) for column in zip(*storm.restored_by_s, strict=True))
    ratios = [tried / done if done else float("inf") for tried, done in zip(attempts, back, strict=True)]
    return Picture(
        heading="Amplification",
        caption="What retries make of the load. A line that does not come down is a storm that feeds itself.",
        svg=charts.amplification(times, _from_0(ratios[: len(times) - 1])),
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
        " the number of nodes. The frame is this storm; all squares are the fluid model's, and no node dies in them.",
        svg=charts.collapse_map(
            squares,
            rows=grid.rows,
            columns=grid.columns,
            row_name="queue of a group",
            column_name="size of the cluster",
        ),
    )


def _table(changes: Sequence[tuple[Change, StormResult]], target: Target) -> Table:
    rows = [
        [
            change.name,
            _time(storm.t999_s),
            percent(storm.restored / storm.clients),
            f"{storm.attempts_per_client:.3g}",
            short(storm.rejected),
            change.price,
        ]
        for change, storm in changes
    ]
    good = frozenset(
        index
        for index, (_, storm) in enumerate(changes)
        if (reached := reached_s(storm, target)) is not None and reached <= target.seconds
    )
    return Table(
        heading="What to change",
        caption=f"One change at a time, by the fluid model, and no node dies. Green: {target}.",
        columns=["change", "99.9 % back", "back at the end", "attempts per client", "refused", "what it costs"],
        rows=rows,
        strong=good,
    )


def settings(scenario: Scenario, calibration: Calibration) -> list[tuple[str, str]]:
    """What was simulated, for who wants to repeat or to doubt it."""
    cluster, brokers = scenario.cluster, scenario.brokers
    bound = queue_s(scenario, calibration)
    return [
        ("scenario", f"{scenario.name}: {scenario.description}"),
        ("cluster", f"{cluster.nodes} nodes, {cluster.groups} groups, entries of {cluster.batch_items:,} items"),
        ("serves", f"{short(serves(scenario, calibration))} items/s at its best"),
        (
            "queue",
            f"{cluster.queue_items:,} items a group, {seconds(bound)} of work" if cluster.queue_items else "no bound",
        ),
        ("patience", f"{seconds(scenario.client_timeout_s)}, {seconds(patience_s(scenario))} of it for the queue"),
        ("brokers", f"{brokers.count}, linger {brokers.linger_ms:g} ms, {brokers.batch_items:,} items a request"),
        ("regions", ", ".join(f"{r.name} {100 * r.share:g} % {r.rtt_ms:g} ms" for r in scenario.regions)),
        ("SDKs", ", ".join(f"{sdk.name} {100 * sdk.share:g} %" for sdk in scenario.sdks)),
        ("cost of serving", calibration.setting),
    ]


def _from_0(by_s: Sequence[float]) -> list[float]:
    """Values of whole seconds, drawn in the middle of each, with one at the begin."""
    return [by_s[0], *by_s]


def _end(storm: StormResult) -> int:
    """Seconds to draw: until nearly all are back and a little more, or all of it where they never are."""
    total = list(itertools.accumulate(sum(column) for column in zip(*storm.restored_by_s, strict=True)))
    enough = next((second for second, back in enumerate(total) if back >= 0.9995 * storm.clients), len(total) - 1)
    return min(len(total), max(5, round((enough + 1) * 1.1)))


def _time(value: float | None) -> str:
    return "never" if value is None else seconds(value)
