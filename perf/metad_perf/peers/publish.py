"""Where a comparison's report goes: JSON, a page with pictures, the tables of the benchmark page.

The page shows bars with their spread, one picture for each load, the storm first.

What it shows is taken from the runs: for each load and system the median of its runs and their
spread. It reads the JSON that ``metad-perf compare`` writes, so a page can be made again at any time.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from metad_spark.report import picture as drawing
from metad_spark.report.page import Page, Picture, Table
from metad_spark.report.picture import bars

from ..errors import UsageError
from ..report import output
from .catalog import KINDS, METAD, METAD_ALONE
from .loads import INSERTS, LATEST, MIXES, PACED, PAIRS, PUTS, RESTORE, SINGLES, TAKEOVERS
from .verdict import P99, TO_PUT

TITLES = {
    RESTORE: "Everybody comes back: seconds until all sessions are restored",
    TAKEOVERS: "Takeovers in batches, items/s",
    PUTS: "Puts in batches, items/s",
    INSERTS: "Inserts in batches, items/s",
    SINGLES: "Single puts, items/s",
    PACED: "p99 of single puts at the same rate, ms",
    PAIRS: "Sessions that begin and end, sessions/s",
    **{name: f"YCSB {name[-1].upper()}, operations/s" for name in (*MIXES, LATEST)},
}
"""In the order of the page."""
_LESS_IS_BETTER = (RESTORE, PACED)
RATIO_WORDS = {
    "restore_ratio": "restoring all sessions at once",
    "batched_takeover_ratio": "takeovers in batches",
    TO_PUT: "takeovers in batches ÷ the other's puts",
    "batched_put_ratio": "puts in batches",
    "batched_insert_ratio": "inserts in batches",
    "single_put_ratio": "single puts",
    P99: "p99 of single puts at the same rate (below 1 is better)",
    "session_create_close_ratio": "sessions that begin and end",
    **{f"{name}_ratio": f"YCSB {name[-1].upper()}" for name in (*MIXES, LATEST)},
}


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """One system under one load: the median of its runs, and the lowest and highest."""

    system: str
    title: str
    label: str
    median: float
    low: float
    high: float
    per_server_cpu_s: float
    """Items per second of the nodes' CPU; 0: unknown."""
    per_client_cpu_s: float
    failed: int
    """Items, over all runs."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One load, best system first."""

    load: str
    title: str
    less_is_better: bool
    bars: list[Bar]


def figures(report: Mapping[str, Any]) -> list[Figure]:
    """One for each load that was measured."""
    found = []
    for load, title in TITLES.items():
        less = load in _LESS_IS_BETTER
        bars = [_bar(report, load, system) for system in systems_in_order(report)]
        known = sorted((one for one in bars if one is not None), key=lambda one: one.median, reverse=not less)
        if known:
            found.append(Figure(load=load, title=title, less_is_better=less, bars=known))
    return found


def _bar(report: Mapping[str, Any], load: str, system: str) -> Bar | None:
    runs = [one for one in report["runs"] if one["load"] == load and one["pair"] >= 0 and _shown_as(one) == system]
    if not runs:
        return None
    value = {RESTORE: "seconds", PACED: "p99_ms"}.get(load, "items_per_s")
    values = [one[value] for one in runs]
    about = report["systems"][system]
    return Bar(
        system=system,
        title=about["title"],
        label=about["label"],
        median=statistics.median(values),
        low=min(values),
        high=max(values),
        per_server_cpu_s=statistics.median(one["items_per_server_cpu_s"] for one in runs),
        per_client_cpu_s=statistics.median(one["items_per_client_cpu_s"] for one in runs),
        failed=sum(one["failed"] for one in runs),
    )


def _shown_as(run: Mapping[str, Any]) -> str:
    """The system of a run; metad as one node is another than metad as three."""
    system: str = run["system"]
    return METAD_ALONE if system == METAD and KINDS[run["peer"]].alone else system


def number(value: float) -> str:
    """Three significant digits, or whole thousands."""
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


def markdown(report: Mapping[str, Any]) -> str:
    """The tables of the benchmark page."""
    setting, pairs = report["setting"], report["pairs"]
    lines = [
        f"{setting['cpu']}, {setting['cpus']} cores for everything; three nodes each unless endpoints were given; "
        f"{report['processes']} load-generating processes; values of {report['value_bytes']} bytes; {report['keys']:,} "
        f"keys; {pairs} pair{'s' if pairs != 1 else ''} of {report['seconds']:g} s a run; a storm of "
        f"{report['sessions']:,} sessions.",
        "",
        "Ratios, metad ÷ the other: the median of the pairs, and their lowest and highest. Above 1, metad is better.",
        "",
        "| load | " + " | ".join(report["systems"][name]["title"] for name in report["peers"]) + " |",
        "| --- |" + " ---: |" * len(report["peers"]),
    ]
    for ratio, words in RATIO_WORDS.items():
        cells = [_cell(report[name].get(ratio)) for name in report["peers"]]
        if any(cells):
            lines.append(f"| {words} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "Medians of all runs. CPU: items per second of CPU time, of all nodes of the system, and of its clients.",
        "",
        "| load | system | median | lowest | highest | items per nodes' CPU s | items per clients' CPU s | failed |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for figure in figures(report):
        for bar in figure.bars:
            cpu = number(bar.per_server_cpu_s) if bar.per_server_cpu_s else "unknown"
            lines.append(
                f"| {figure.title} | {bar.title} | {number(bar.median)} | {number(bar.low)} | {number(bar.high)} "
                f"| {cpu} | {number(bar.per_client_cpu_s)} | {bar.failed:,} |"
            )
    lines += ["", "| system | version | what it is | settings |", "| --- | --- | --- | --- |"]
    for about in report["systems"].values():
        flags = " ".join(str(one) for one in about.get("flags", ())) or "defaults"
        synced = "synced before the answer" if about.get("fsync") else "not synced before the answer"
        lines.append(
            f"| {about['title']} | {about.get('version', 'this one')} | {about['label'] or 'as metad'} "
            f"| {flags}; {about.get('transport', about.get('endpoints'))}; {synced} |"
        )
    return "\n".join(lines) + "\n"


def _cell(ratio: Mapping[str, Any] | None) -> str:
    if ratio is None:
        return ""
    bar = f", bar {ratio['bar']:g} {'met' if ratio['met'] else 'missed'}" if ratio["bar"] else ""
    return f"{number(ratio['median'])} ({number(ratio['low'])} to {number(ratio['high'])}){bar}"


BEGIN, END = "<!-- compare: begin -->\n", "<!-- compare: end -->\n"


def replaced(page: str, tables: str) -> str | None:
    """The page with the tables between its two marks; None if it has no marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{begin}{tables}{end}{after}" if begin and end else None


def systems_in_order(report: Mapping[str, Any]) -> Sequence[str]:
    """metad first."""
    return sorted(report["systems"], key=lambda name: name not in (METAD, METAD_ALONE))


_OURS, _THEIRS, _FLOOR = "#d9622b", "#2f6fb3", "#a9b4bf"
_LEGEND = (
    (_OURS, "metad"),
    (_THEIRS, "systems that promise as much of an answered write"),
    (_FLOOR, "systems that promise less; a table below says what"),
)


def page(report: Mapping[str, Any]) -> str:
    """The whole page."""
    return Page(
        title="Who survives the minute?",
        verdict=f"Three nodes of each system on the same {report['setting']['cpus']} cores, one system at a time.",
        good=True,
        figures=_headlines(report),
        parts=[*map(_picture, figures(report)), _ratios(report), _models(report)],
        settings=_settings(report),
        settings_heading="Settings",
    ).html()


def _picture(figure: Figure) -> Picture:
    better = "shorter is better" if figure.less_is_better else "longer is better"
    return Picture(
        heading=figure.title,
        caption=f"The median of a system's runs, and the lowest and the highest; {better}.",
        svg=bars([_drawn(bar) for bar in figure.bars], label=figure.title),
        legend=_LEGEND,
    )


def _drawn(bar: Bar) -> drawing.Bar:
    failed = f", {bar.failed:,} failed" if bar.failed else ""
    cpu = f"\n{number(bar.per_server_cpu_s)} a CPU second" if bar.per_server_cpu_s else ""
    return drawing.Bar(
        name=bar.title,
        value=bar.median,
        low=bar.low,
        high=bar.high,
        words=f"{number(bar.median)}{failed}{cpu}",
        colour=_OURS if bar.system in (METAD, METAD_ALONE) else _FLOOR if bar.label else _THEIRS,
    )


def _headlines(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = []
    for name in report["peers"]:
        title = report["systems"][name]["title"]
        for ratio, words in (
            ("restore_ratio", "in restoring the same sessions"),
            ("batched_put_ratio", "in puts in batches"),
        ):
            if (of := report[name].get(ratio)) is not None:
                found.append((f"{number(of['median'])} ×", f"as fast as {title} {words}"))
                break
    return found


def _ratios(report: Mapping[str, Any]) -> Table:
    rows = []
    for ratio, words in RATIO_WORDS.items():
        cells = [_cell(report[name].get(ratio)) for name in report["peers"]]
        if any(cells):
            rows.append([words, *cells])
    return Table(
        heading="Ratios",
        caption=f"metad ÷ the other, of runs made side by side: the median of {report['pairs']} pairs, their lowest and"
        " highest.",
        columns=["", *(report["systems"][name]["title"] for name in report["peers"])],
        rows=rows,
    )


def _models(report: Mapping[str, Any]) -> Table:
    rows = []
    for name in systems_in_order(report):
        about = report["systems"][name]
        rows.append([about["title"], about["session"], about["takeover"], about["batch"], about["label"] or "as metad"])
    return Table(
        heading="What the same thing is in each system",
        caption="",
        columns=("system", "a session", "a takeover", "a batch", "when a write is answered"),
        rows=rows,
    )


def _settings(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    shown: dict[str, object] = {
        name: report[name] for name in ("pairs", "seconds", "keys", "sessions", "processes", "value_bytes", "batch")
    }
    shown |= report["setting"] | report["versions"]
    for name in systems_in_order(report):
        hidden = ("title", "label", "session", "takeover", "batch")
        shown[name] = ", ".join(f"{key}={value}" for key, value in report["systems"][name].items() if key not in hidden)
        shown[f"{name}, calls in flight"] = _ways(report, name)
    return [(name, str(value)) for name, value in shown.items()]


def _ways(report: Mapping[str, Any], system: str) -> str:
    """How each load was sent: its batch and the calls in flight, as the sweep has chosen."""
    ways = {
        one["load"]: f"{one['load']} {one['way']['in_flight']} × {one['way']['batch']}"
        for one in report["runs"]
        if one["system"] == system and one["pair"] >= 0
    }
    return ", ".join(ways.values())


class Pages(msgspec.Struct, frozen=True, kw_only=True):
    """The files that are wanted. ``tables`` exists and has the two marks."""

    json: Path | None = None
    report: Path | None = None
    tables: Path | None = None

    def checked(self) -> Pages:
        """These, before anything is measured. Raises UsageError."""
        if self.tables is not None and replaced(_text(self.tables, "--tables"), "") is None:
            raise UsageError(f"--tables {self.tables}: it has no lines {BEGIN.strip()} and {END.strip()}")
        return self

    def write(self, report: Mapping[str, Any]) -> None:
        """Write all of them."""
        output.write_json(self.json, report)
        if self.report is not None:
            self.report.write_text(page(report))
        if self.tables is not None:
            text = replaced(self.tables.read_text(), markdown(report))
            assert text is not None, "checked before"
            self.tables.write_text(text)


def publish(made: Path, pages: Pages) -> int:
    """Write the pages from the JSON of an earlier run. Returns the exit code."""
    try:
        report = msgspec.json.decode(_text(made, "--from"), type=dict[str, Any])
        pages.write(report)
    except (msgspec.DecodeError, KeyError) as error:
        raise UsageError(f"--from {made}: it is no report of compare: {error}") from None
    return 0


def _text(path: Path, flag: str) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise UsageError(f"{flag} {path}: {error.strerror}") from None
