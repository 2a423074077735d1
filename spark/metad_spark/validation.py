"""Predictions held against storms that happened: the errors, and the verdict that every report repeats.

A storm is one setting of ``metad-perf calibration-grid``, or of reports of ``metad-perf storm --json``. It is predicted
from that alone, and from the speed of the cores. It may have several runs, which differ by a twentieth: then the run
with the median error counts, for each metric by itself, while recover or collapse must be right for all. What is *seen*
was used for the fit of the costs; only storms that are not count for the verdict.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from . import toml
from .errors import CalibrationError, ScenarioError
from .requests.costs import Costs
from .requests.simulate import Outcome, quantiles, simulate
from .requests.storm import Ints, Settings, Storm, storm_of

Floats = npt.NDArray[np.float64]
BARS_PCT: Final = {"t50_s": 10.0, "t99_s": 10.0, "t999_s": 10.0, "attempts_per_session": 5.0}
"""The largest error of each metric."""
STORMS_MIN: Final = 6
UNSEEN_MIN: Final = 3
DISTURBED_CORES: Final = 0.2
"""Of other programs: a storm beside more is told apart, because it says something of them as well."""
_VERDICT: Final = "last"


class Metric(msgspec.Struct, frozen=True):
    """``error_pct`` is signed, of what was measured; None where one of the two is not a number: that share of the
    clients never came back."""

    predicted: float | None
    measured: float | None
    error_pct: float | None


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One storm. ``metrics`` are those of the run with the median error, and ``errors_pct`` the errors of all runs.
    ``ks``: the largest difference between the shares that were back at any time, predicted and measured.
    ``wasserstein_s``: the mean difference of the times, over the clients that came back in both. Both are medians of
    the runs, and ``others_cores`` is the most of any."""

    trace: str
    seen: bool
    trigger: str
    sessions: int
    metrics: dict[str, Metric]
    errors_pct: dict[str, list[float | None]]
    recovered: bool
    class_right: bool
    ks: float
    wasserstein_s: float
    others_cores: float
    nodes: int = 0
    linger_ms: float = 0.0
    rejected: int = 0
    """Requests that nodes turned away, of the run with the most."""

    @property
    def runs(self) -> int:
        """How many there were."""
        return len(next(iter(self.errors_pct.values())))

    @property
    def within(self) -> bool:
        """Whether every error is within its bar, and recover or collapse is right."""
        return self.class_right and all(_within(one, BARS_PCT[name]) for name, one in self.metrics.items())


def _within(metric: Metric, bar_pct: float) -> bool:
    if metric.predicted is None or metric.measured is None:
        return metric.predicted is metric.measured
    return metric.error_pct is not None and abs(metric.error_pct) <= bar_pct


class Verdict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What reports say of all predictions. Errors are the largest over unseen storms, in per cent."""

    passed: bool
    storms: int
    unseen: int
    within: int
    """Of the unseen, those with every error within its bar."""
    disturbed: int
    """Storms that other programs ran beside."""
    runs: int = 0
    """Of the unseen storms."""
    worst_pct: dict[str, float] = {}
    worst_run_pct: dict[str, float] = {}
    """Of any single run: what an operator may meet."""
    median_pct: dict[str, float] = {}
    classes_wrong: int = 0
    """Unseen storms of which it is said wrongly whether they end."""
    nodes: list[int] = []
    """How many the unseen storms had: each number once."""
    linger_ms: list[float] = []
    """For how long their brokers waited for further clients: each value once."""
    sessions: list[int] = []
    """The least and the most of their clients."""
    rejected: int = 0
    """The most requests that were turned away in one of them."""
    costs: str = ""
    """What the predictions rest on: name and setting."""
    date: str = ""


class Measured(msgspec.Struct, frozen=True):
    """One run of a storm that happened. ``name``: of the storm. ``waits_s``: of each client that was to come back,
    infinite if it did not; None where there is no trace of it."""

    name: str
    seen: bool
    report: Mapping[str, Any]
    begin_ns: Ints | None
    waits_s: Floats | None


def storms_of(paths: Sequence[Path]) -> list[Measured]:
    """The storms in folders of a grid, and in reports. Raises CalibrationError."""
    found: list[Measured] = []
    for path in paths:
        files = sorted(path.glob("*.json")) if path.is_dir() else [path]
        for file in files:
            try:
                made = msgspec.json.decode(file.read_bytes())
            except (OSError, msgspec.DecodeError) as why:
                raise CalibrationError(f"{file}: no report of a storm: {why}") from None
            if not isinstance(made, dict) or (path.is_dir() and made.get("kind") != "storm"):
                continue
            report = made.get("report", made)
            if "settings" not in report or "t999_s" not in report:
                raise CalibrationError(f"{file}: no report of metad-perf storm")
            name = str((made.get("setting") if "report" in made else None) or made.get("name", file.stem))
            found.append(_measured(name, bool(made.get("seen", False)), report, file.parent / file.stem))
    if not found:
        raise CalibrationError(f"no storms in {', '.join(map(str, paths))}")
    return found


def _measured(name: str, seen: bool, report: Mapping[str, Any], trace: Path) -> Measured:
    if not trace.is_dir():
        return Measured(name, seen, report, None, None)
    import pyarrow.parquet as pq

    columns = ["client", "attempt", "scheduled_ns", "answered_ns", "outcome"]
    try:
        table = pq.read_table(sorted(trace.glob("attempts-*.parquet")), columns=columns)
    except (OSError, ValueError, KeyError) as why:
        raise CalibrationError(f"{trace}: no trace of metad-perf storm: {str(why).partition(chr(10))[0]}") from None
    client = table["client"].to_numpy().astype(np.int64)
    first = table["attempt"].to_numpy() == 1
    begin_ns = np.full(report["sessions"], -1, dtype=np.int64)
    begin_ns[client[first]] = table["scheduled_ns"].to_numpy()[first]
    back = np.array(table["outcome"].to_pylist()) == "restored"
    waits_s = np.full(report["returning"], np.inf)
    answered_s = (table["answered_ns"].to_numpy()[back] - begin_ns[client[back]]) / 1e9
    waits_s[: len(answered_s)] = answered_s
    begin_ns[begin_ns < 0] = 0  # it had no attempt that ended
    return Measured(name, seen, report, begin_ns if report["settings"]["replay"] else None, waits_s)


def by_storm(runs: Sequence[Measured]) -> list[list[Measured]]:
    """Those of one name and one setting together."""
    found: dict[tuple[object, ...], list[Measured]] = {}
    for run in runs:
        shape = [run.report.get(key) for key in ("settings", "nodes", "groups", "fsync", "queue_ms")]
        found.setdefault((run.name, run.seen, msgspec.json.encode(shape, order="sorted")), []).append(run)
    return [*found.values()]


class _Compared(msgspec.Struct, frozen=True):
    """One run. ``settings``: of its storm, as the model takes them."""

    settings: Settings
    metrics: dict[str, Metric]
    recovered: bool
    class_right: bool
    ks: float
    wasserstein_s: float
    others_cores: float
    nodes: int
    rejected: int


def judge(runs: Sequence[Measured], costs: Costs, seeds: int = 3) -> Judged:
    """Predict each run of a storm, with the median of some seeds, and compare. Raises ScenarioError for a storm that
    the model does not know."""
    compared = [_compared(one, costs, seeds) for one in runs]
    settings = compared[0].settings  # those of all
    return Judged(
        trace=runs[0].name,
        seen=runs[0].seen,
        trigger=settings.trigger,
        sessions=settings.sessions,
        metrics={name: _middle([one.metrics[name] for one in compared]) for name in BARS_PCT},
        errors_pct={name: [one.metrics[name].error_pct for one in compared] for name in BARS_PCT},
        recovered=2 * sum(one.recovered for one in compared) > len(compared),
        class_right=all(one.class_right for one in compared),
        ks=statistics.median(one.ks for one in compared),
        wasserstein_s=statistics.median(one.wasserstein_s for one in compared),
        others_cores=max(one.others_cores for one in compared),
        nodes=compared[0].nodes,
        linger_ms=settings.linger_ms,
        rejected=max(one.rejected for one in compared),
    )


def _compared(run: Measured, costs: Costs, seeds: int) -> _Compared:
    known = storm_of(run.report, run.begin_ns)
    outcomes = [simulate(known, costs, seed) for seed in range(seeds)]
    report = run.report
    recovered = report["restored"] >= report["returning"]
    predicted = 2 * sum(one.recovered for one in outcomes) > seeds
    middle = sorted(outcomes, key=_ends)[seeds // 2]
    waits_s = run.waits_s if run.waits_s is not None else _from_percentiles(report)
    ks, wasserstein_s = distance(np.array(middle.waits_s), np.array(quantiles(waits_s)))
    return _Compared(
        settings=known.settings,
        metrics={name: _metric([getattr(one, name) for one in outcomes], report[name]) for name in BARS_PCT},
        recovered=recovered,
        class_right=recovered == predicted,
        ks=ks,
        wasserstein_s=wasserstein_s,
        others_cores=float(report.get("accounts", {}).get("others_cores", 0.0)),
        nodes=known.nodes,
        rejected=max(one.rejected for one in outcomes),
    )


def _middle(metrics: Sequence[Metric]) -> Metric:
    """That with the median error; of the two in the middle of an even number, the worse. Where only the prediction, or
    only the measure, is a number, that counts as an error beyond all others."""

    def error_pct(one: Metric) -> float:
        if one.error_pct is not None:
            return one.error_pct
        return 0.0 if one.predicted is one.measured else float("inf" if one.predicted is None else "-inf")

    ordered = sorted(metrics, key=error_pct)
    return max(ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2], key=lambda one: abs(error_pct(one)))


def _ends(outcome: Outcome) -> float:
    return float("inf") if outcome.t999_s is None else outcome.t999_s


def _metric(predicted: Sequence[float | None], measured: float | None) -> Metric:
    finite = [one for one in predicted if one is not None]
    middle = statistics.median(finite) if 2 * len(finite) > len(predicted) else None
    if middle is None or measured is None:
        return Metric(middle, measured, None)
    return Metric(middle, measured, 100.0 * (middle - measured) / measured if measured else 0.0)


def _from_percentiles(report: Mapping[str, Any]) -> Floats:
    """A curve from the percentiles that a report has."""
    known = sorted((float(share), time_s) for share, time_s in report["percentiles_s"].items() if time_s is not None)
    if not known:
        return np.full(1_000, np.inf)
    places = (np.arange(1_000) + 1) / 10.0
    shares, times_s = zip(*known, strict=True)
    return np.where(places <= shares[-1], np.interp(places, shares, times_s), np.inf)


def distance(one_s: Floats, two_s: Floats) -> tuple[float, float]:
    """Of two restore curves, as quantiles at the same places: Kolmogorov and Smirnov's, and Wasserstein's in
    seconds."""
    times_s = np.unique(np.concatenate([one_s[np.isfinite(one_s)], two_s[np.isfinite(two_s)]]))
    if not len(times_s):
        return 0.0, 0.0
    shares = [np.searchsorted(np.sort(curve), times_s, side="right") / len(curve) for curve in (one_s, two_s)]
    both = np.isfinite(one_s) & np.isfinite(two_s)
    wasserstein_s = float(np.abs(one_s[both] - two_s[both]).mean()) if both.any() else 0.0
    return float(np.abs(shares[0] - shares[1]).max()), wasserstein_s


def verdict_of(judged: Sequence[Judged], costs: Costs, date: str) -> Verdict:
    """It passes with at least six storms, three of them unseen, if every unseen storm is within the bars."""
    unseen = [one for one in judged if not one.seen]
    errors = {
        name: [abs(error) for one in unseen if (error := one.metrics[name].error_pct) is not None] for name in BARS_PCT
    }
    of_runs = {
        name: [abs(error) for one in unseen for error in one.errors_pct[name] if error is not None] for name in BARS_PCT
    }
    within = sum(one.within for one in unseen)
    return Verdict(
        passed=len(judged) >= STORMS_MIN and len(unseen) >= UNSEEN_MIN and within == len(unseen),
        storms=len(judged),
        unseen=len(unseen),
        within=within,
        disturbed=sum(one.others_cores > DISTURBED_CORES for one in judged),
        runs=sum(one.runs for one in unseen),
        worst_pct={name: round(max(found), 1) for name, found in errors.items() if found},
        worst_run_pct={name: round(max(found), 1) for name, found in of_runs.items() if found},
        median_pct={name: round(statistics.median(found), 1) for name, found in errors.items() if found},
        classes_wrong=sum(not one.class_right for one in unseen),
        nodes=sorted({one.nodes for one in unseen}),
        linger_ms=sorted({one.linger_ms for one in unseen}),
        sessions=[min(counts), max(counts)] if (counts := [one.sessions for one in unseen]) else [],
        rejected=max((one.rejected for one in unseen), default=0),
        costs=f"{costs.name}: {costs.setting}",
        date=date,
    )


def last_verdict() -> Verdict | None:
    """The verdict that ships; None if there is none. Raises CalibrationError where it cannot be read."""
    if _VERDICT not in toml.shipped("validations"):
        return None
    return toml.load("validations", _VERDICT, Verdict, CalibrationError)


def to_toml(verdict: Verdict) -> str:
    """The text of a verdict's file."""
    values = msgspec.to_builtins(verdict)
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    lines = [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in values.items() if key not in tables]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {value}" for key, value in table.items())]
    return "# Made by metad-spark validate.\n" + "\n".join(lines) + "\n"


def checked(verdict: Verdict) -> str:
    """The settings that the unseen storms had, in words."""
    least, most = verdict.sessions or (0, 0)
    return ", ".join(
        [
            f"{_either(verdict.nodes)} nodes",
            f"linger {_either(verdict.linger_ms)} ms",
            f"{least:,} to {most:,} clients",
            "nobody refused" if not verdict.rejected else f"up to {verdict.rejected:,} refused",
            "nodes and brokers on the cores of one machine",
        ]
    )


def _either(values: Sequence[float]) -> str:
    return " or ".join(f"{value:g}" for value in values) or "no"


def differences(verdict: Verdict, storm: Storm, rejected: int, *, apart: bool) -> list[str]:
    """What of a predicted storm no checked one had, in words. ``rejected``: of its requests; ``apart``: its processes
    do not share the cores of one machine."""
    settings = storm.settings
    least, most = verdict.sessions or (0, 0)
    found = []
    if storm.nodes not in verdict.nodes:
        found.append(f"{storm.nodes} nodes")
    if settings.linger_ms not in verdict.linger_ms:
        found.append(f"linger {settings.linger_ms:g} ms")
    if not least <= settings.sessions <= most:
        found.append(f"{settings.sessions:,} clients")
    if rejected > verdict.rejected:
        found.append(f"{rejected:,} refused")
    if apart:
        found.append("a core for each process")
    return found


def headline(verdict: Verdict | None, model: str, differs: Sequence[str] = ()) -> str:
    """What a report says of its prediction, by a model. ``differs``: what no storm had that was checked. Only the model
    of requests is held against storms, so nothing is said of its errors where another one predicts."""
    if verdict is None or model != "requests":
        return "Not validated against a measured storm."
    worst = verdict.worst_pct
    errors = ", ".join(f"{label} {worst[name]:g} %" for name, label in _LABELS.items() if name in worst)
    runs = f" ({verdict.runs} runs; the median of each counts)" if verdict.runs > verdict.unseen else ""
    against = f"{verdict.unseen} storms that happened and were not used for its calibration{runs}"
    if differs:
        return (
            f"Outside of what was checked: it has {', '.join(differs)}. The {verdict.unseen} storms that the model was"
            f" checked with had {checked(verdict)}. How far off this prediction is, nobody knows."
        )
    if verdict.passed:
        return f"Validated against {against}, with {checked(verdict)}: errors of at most {errors}."
    wrong = "" if not verdict.classes_wrong else f"; for {verdict.classes_wrong} it is wrong about whether they end"
    within = f"{verdict.within} are predicted within the bars"
    return f"Not validated: of {against}, {within}; errors of up to {errors}{wrong}."


def validity(model: str, differs: Sequence[str] = ()) -> str:
    """:func:`headline` of the verdict that ships."""
    return headline(last_verdict(), model, differs)


_LABELS: Final = {"t50_s": "t50", "t99_s": "t99", "t999_s": "t99.9", "attempts_per_session": "attempts"}

BEGIN_MARK: Final = "<!-- metad-spark validate -->"
END_MARK: Final = "<!-- end of metad-spark validate -->"


_COLUMNS: Final = (
    "storm",
    "seen",
    "sessions",
    "t50, s",
    "t99, s",
    "t99.9, s",
    "attempts",
    "recovers",
    "KS",
    "others, cores",
    "t99 of each run, %",
)


def table_of(judged: Sequence[Judged], verdict: Verdict) -> str:
    """The table in Markdown."""
    lines = [
        f"| {' | '.join(_COLUMNS)} |",
        f"|{' --- |' * len(_COLUMNS)}",
    ]
    for one in judged:
        cells = [
            one.trace,
            "yes" if one.seen else "no",
            f"{one.sessions:,}",
            *(_cell(one.metrics[name]) for name in BARS_PCT),
            f"{'yes' if one.recovered else 'no'}{'' if one.class_right else ', predicted otherwise'}",
            f"{one.ks:.2f}",
            f"{one.others_cores:.2f}",
            ", ".join(rounded_errors(one.errors_pct["t99_s"])),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    said = "passed" if verdict.passed else "not passed"
    lines += [
        "",
        "Each cell: predicted / measured (error), of the run with the median error."
        f" {verdict.within} of {verdict.unseen} unseen storms are within the"
        f" bars (10 % of times, 5 % of attempts): **{said}**. {verdict.date}; costs {verdict.costs}.",
    ]
    return "\n".join(lines)


def rounded_errors(errors_pct: Sequence[float | None]) -> list[str]:
    """Of the runs of a storm, the least first; "-" where there is none."""
    known = sorted(error for error in errors_pct if error is not None)
    return [f"{error:+.0f}" for error in known] + ["-"] * (len(errors_pct) - len(known))


def _cell(metric: Metric) -> str:
    def number(value: float | None) -> str:
        return "never" if value is None else f"{value:.3g}"

    error = "" if metric.error_pct is None else f" ({metric.error_pct:+.0f} %)"
    return f"{number(metric.predicted)} / {number(metric.measured)}{error}"


def replaced(page: str, table: str) -> str:
    """A page with the table between its marks. Raises ScenarioError if it has no marks."""
    before, begin, rest = page.partition(BEGIN_MARK)
    _, end, after = rest.partition(END_MARK)
    if not begin or not end:
        raise ScenarioError(f"the page needs the lines {BEGIN_MARK} and {END_MARK}")
    return f"{before}{BEGIN_MARK}\n\n{table}\n\n{END_MARK}{after}"
