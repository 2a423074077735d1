"""Writes docs/BENCHMARKS.md from ``perf/results/*.json``: ``python tests/unit/packaging/results_page.py``."""

from __future__ import annotations

from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "perf" / "results"
PAGE = ROOT / "docs" / "BENCHMARKS.md"
HEAD = """\
# Benchmarks

`tests/unit/packaging/results_page.py` writes this page from `perf/results/*.json`. To change a number, run its command
and write there what was measured.

Nodes, clients and other programs share the machine, and a command varies by 15 % from hour to hour: compare only
numbers of one run. Reasons for them: [decisions](decisions/README.md).
"""


class Result(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One claim of a run. ``low`` and ``high`` are the spread over its repetitions."""

    claim: str
    value: float
    unit: str = ""
    low: float | None = None
    high: float | None = None
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""

    @property
    def missed(self) -> bool:
        """Whether the value is on the wrong side of its bar."""
        too_much = self.at_most is not None and self.value > self.at_most
        return too_much or (self.at_least is not None and self.value < self.at_least)

    def line(self) -> str:
        """The claim, what was measured, its spread and its bar."""
        spread = f" ({_number(self.low)} to {_number(self.high)})" if self.low is not None else ""
        bars = [
            f"bar {sign if at else ''} {_number(at)}".replace("  ", " ")
            for sign, at in (("≤", self.at_most), ("≥", self.at_least))
            if at is not None
        ]
        measured = f"{self.claim}: {_number(self.value)} {self.unit}".rstrip() + spread
        return "; ".join([measured, *bars, *([self.note] if self.note else [])])


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one command measured."""

    order: int  # of its section on the page
    title: str
    command: str
    machine: str
    date: str
    commit: str  # that wrote the results down
    remark: str = ""
    results: list[Result]


def runs() -> list[Run]:
    """All runs, in the order of the page. Raises msgspec.ValidationError where a file is wrong."""
    found = [msgspec.json.decode(file.read_bytes(), type=Run) for file in RESULTS.glob("*.json")]
    return sorted(found, key=lambda run: run.order)


def page() -> str:
    """The page: the results that miss their bars, then each run with its others."""
    missed = [f"- **{run.title}**: {result.line()}" for run in runs() for result in run.results if result.missed]
    lines = [HEAD, "## Missed\n", *missed]
    for run in runs():
        lines.append(
            f"\n## {run.title}\n\n`{run.command}`\n{run.machine}; {run.date}, {run.commit}. {run.remark}".rstrip()
            + "\n"
        )
        lines += [f"- {result.line()}" for result in run.results if not result.missed] or ["- (missed)"]
    return "\n".join(lines) + "\n"


def _number(value: float | None) -> str:
    return f"{value:,.10g}"


if __name__ == "__main__":
    PAGE.write_text(page())
