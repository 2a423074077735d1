"""Where a comparison's report goes: JSON, a page with pictures, the tables of the benchmark page.

The page shows bars with their spread, one picture for each load, the storm first. It is one HTML file without scripts
or external files, readable in light and dark. A bar is the median of a system's runs; the line across its end goes from
the lowest to the highest.

What it shows is taken from the runs: for each load and system the median of its runs and their
spread. It reads the JSON that ``metad-perf compare`` writes, so a page can be made again at any time.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import msgspec

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


_LEFT, _WIDTH, _RIGHT, _ROW, _TOP = 120, 420, 210, 40, 6


def page(report: Mapping[str, Any]) -> str:
    """The whole page."""
    shown = figures(report)
    maps = "".join(
        f"<figure><figcaption>{escape(one.title)}</figcaption><p class='axis'>{_better(one)}</p>{_bars(one)}</figure>"
        for one in shown
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>metad against others</title><style>{_STYLE}</style></head><body><main>
<h1>Who survives the minute?</h1>
<p class="lead">Three nodes of each system on the same {report["setting"]["cpus"]} cores, one system at a time.</p>
<div class="figures">{_headlines(report)}</div>
<p class="axis">Orange: metad. Blue: systems that promise as much of an answered write. Grey: those that promise less;
the table below says what.</p>
<div class="maps">{maps}</div>
<h2>Ratios</h2>
<p>metad ÷ the other, of runs made side by side: the median of {report["pairs"]} pairs, their lowest and highest.</p>
<div class="scroll">{_ratios(report)}</div>
<h2>What the same thing is in each system</h2><div class="scroll">{_models(report)}</div>
<h2>Settings</h2><div class="scroll">{_settings(report)}</div>
</main></body></html>
"""


def _better(figure: Figure) -> str:
    return "shorter is better" if figure.less_is_better else "longer is better"


def _bars(figure: Figure) -> str:
    most = max(one.high for one in figure.bars) or 1.0
    height = _TOP + len(figure.bars) * _ROW
    width = _LEFT + _WIDTH + _RIGHT
    rows = "".join(_row(at, bar, most) for at, bar in enumerate(figure.bars))
    label = escape(figure.title, quote=True)
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f'<svg {size} role="img" aria-label="{label}">{rows}</svg>'


def _row(at: int, bar: Bar, most: float) -> str:
    y = _TOP + at * _ROW
    middle = y + 13
    low, end, high = (_LEFT + _WIDTH * one / most for one in (bar.low, bar.median, bar.high))
    kind = "ours" if bar.system in (METAD, METAD_ALONE) else "floor" if bar.label else "theirs"
    cpu = f"{number(bar.per_server_cpu_s)} a CPU second" if bar.per_server_cpu_s else ""
    tip = f"{bar.title}: {number(bar.median)}, from {number(bar.low)} to {number(bar.high)}. {bar.label}"
    ends = f"M{low:.1f} {middle - 6}v12M{high:.1f} {middle - 6}v12"
    failed = f", {bar.failed:,} failed" if bar.failed else ""
    return (
        f"<g><title>{escape(tip)}</title>"
        f'<text class="name" x="{_LEFT - 10}" y="{middle + 5}">{escape(bar.title)}</text>'
        f'<rect class="{kind}" x="{_LEFT}" y="{y}" width="{max(1.0, end - _LEFT):.1f}" height="26" rx="3"/>'
        f'<path class="spread" d="M{low:.1f} {middle}H{high:.1f}{ends}"/>'
        f'<text class="value" x="{high + 10:.1f}" y="{middle + 1}">{number(bar.median)}{failed}</text>'
        f'<text class="cpu" x="{high + 10:.1f}" y="{middle + 15}">{cpu}</text></g>'
    )


def _headlines(report: Mapping[str, Any]) -> str:
    parts = []
    for name in report["peers"]:
        title = report["systems"][name]["title"]
        for ratio, words in (
            ("restore_ratio", "in restoring the same sessions"),
            ("batched_put_ratio", "in puts in batches"),
        ):
            found = report[name].get(ratio)
            if found is not None:
                parts.append(
                    f'<div class="figure"><b>{number(found["median"])} ×</b>'
                    f"<span>as fast as {escape(title)} {words}</span></div>"
                )
                break
    return "".join(parts)


def _ratios(report: Mapping[str, Any]) -> str:
    head = "".join(f"<th>{escape(report['systems'][name]['title'])}</th>" for name in report["peers"])
    rows = []
    for ratio, words in RATIO_WORDS.items():
        cells = [_ratio(report[name].get(ratio)) for name in report["peers"]]
        if any(cells):
            rows.append(f"<tr><td>{escape(words)}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    return f"<table><tr><th></th>{head}</tr>{''.join(rows)}</table>"


def _ratio(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    bar = f"<br><small>bar {found['bar']:g}: {'met' if found['met'] else 'missed'}</small>" if found["bar"] else ""
    spread = f"{number(found['low'])} to {number(found['high'])}"
    return f"<b>{number(found['median'])}</b> <small>{spread}</small>{bar}"


def _models(report: Mapping[str, Any]) -> str:
    rows = []
    for name in systems_in_order(report):
        about = report["systems"][name]
        words = (about["title"], about["session"], about["takeover"], about["batch"], about["label"] or "as metad")
        rows.append("<tr>" + "".join(f"<td>{escape(word)}</td>" for word in words) + "</tr>")
    columns = ("system", "a session", "a takeover", "a batch", "when a write is answered")
    head = "".join(f"<th>{word}</th>" for word in columns)
    return f'<table class="words"><tr>{head}</tr>{"".join(rows)}</table>'


def _settings(report: Mapping[str, Any]) -> str:
    shown: dict[str, object] = {
        name: report[name] for name in ("pairs", "seconds", "keys", "sessions", "processes", "value_bytes", "batch")
    }
    shown |= report["setting"] | report["versions"]
    for name in systems_in_order(report):
        hidden = ("title", "label", "session", "takeover", "batch")
        shown[name] = ", ".join(f"{key}={value}" for key, value in report["systems"][name].items() if key not in hidden)
        shown[f"{name}, calls in flight"] = _ways(report, name)
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(str(value))}</td></tr>" for name, value in shown.items())
    return f'<table class="words">{rows}</table>'


def _ways(report: Mapping[str, Any], system: str) -> str:
    """How each load was sent: its batch and the calls in flight, as the sweep has chosen."""
    ways = {
        one["load"]: f"{one['load']} {one['way']['in_flight']} × {one['way']['batch']}"
        for one in report["runs"]
        if one["system"] == system and one["pair"] >= 0
    }
    return ", ".join(ways.values())


_STYLE = """
:root{--paper:#fff;--ink:#1c1b19;--soft:#6b675f;--line:#e2ded5;--ours:#d9622b;--theirs:#2f6fb3;--floor:#a9b4bf}
@media(prefers-color-scheme:dark){:root{--paper:#171614;--ink:#f2efe8;--soft:#a39d92;--line:#3a3833;--ours:#e8733a;
--theirs:#4a90d9;--floor:#5d666f}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1640px;margin:0 auto;padding:40px 32px 64px}
h1{font-size:40px;line-height:1.1;margin:0 0 6px;letter-spacing:-.02em}h2{margin:40px 0 8px}
.lead{font-size:19px;color:var(--soft);margin:0 0 24px}
p{max-width:80ch;margin:0 0 12px}
.axis{color:var(--soft);font-size:13px;margin:0 0 8px}
.figures{display:flex;gap:40px;flex-wrap:wrap;margin:0 0 24px}
.figure b{display:block;font-size:34px;line-height:1.15;letter-spacing:-.02em}
.figure span{color:var(--soft);font-size:14px}
.maps{display:flex;flex-wrap:wrap;gap:36px}
figure{margin:0}figcaption{font-weight:650;font-size:19px}
svg{max-width:100%;height:auto;overflow:visible}
svg text{fill:var(--ink);font-family:inherit}svg .name{text-anchor:end;font-size:15px;font-weight:600}
svg .value{font-size:15px;font-weight:650}svg .cpu{font-size:11.5px;fill:var(--soft)}
svg .ours{fill:var(--ours)}svg .theirs{fill:var(--theirs)}svg .floor{fill:var(--floor)}
svg .spread{stroke:var(--ink);stroke-width:1.5;fill:none}
.scroll{overflow-x:auto}small{color:var(--soft)}
table{border-collapse:collapse;font-size:13.5px;font-variant-numeric:tabular-nums;margin-top:10px}
th,td{padding:5px 18px 5px 0;text-align:right;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--soft);font-weight:600}th:first-child,td:first-child{text-align:left}
.words td,.words th{text-align:left;max-width:60ch}
"""


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
