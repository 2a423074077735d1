"""``metad-perf drill``: plays the operator's drills of OPERATE.md on real clusters, one after the other."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..errors import UsageError
from ..report import output
from ..report.story import Story
from .drills import DRILLS
from .play import Played, play

_PLAIN_S = 10.0


def show_list() -> int:
    """Print the drills, and what this machine lacks for each."""
    rows = [[drill.name, drill.about, drill.missing() or "yes"] for drill in DRILLS.values()]
    output.table("drills", ["drill", "what happens", "can be played here"], rows)
    return 0


def run(names: Sequence[str], *, seed: int | None, json: Path | None) -> int:
    """Play these drills, or all. Returns the exit code: 1 if an expectation was not met."""
    for name in names:
        if name not in DRILLS:
            raise UsageError(f"there is no drill {name!r}, but {', '.join(DRILLS)}")
    seed = secrets.randbits(32) if seed is None else seed
    played: list[Played] = []
    with Story(plain_s=_PLAIN_S) as story:
        for name in names or DRILLS:
            story.step(name)
            played.append(play(DRILLS[name], seed, story.event))
    passed = all(one.passed or one.skipped for one in played) and any(one.passed for one in played)
    report = {
        "drills": [msgspec.to_builtins(one) for one in played],
        "passed": passed,
        "seed": seed,
        "setting": output.machine(),
        "versions": output.versions(),
    }
    output.write_json(json, output.rounded(report))
    _show(played)
    return 0 if passed else 1


def _show(played: Sequence[Played]) -> None:
    output.table(
        "drills",
        ["drill", "passed", "steps passed", "seconds", "acknowledged", "lost", "failed calls"],
        [
            [
                one.name,
                "skipped" if one.skipped else "yes" if one.passed else "NO",
                f"{sum(step.passed for step in one.steps)} of {len(one.steps)}",
                one.seconds,
                one.acknowledged,
                one.lost,
                one.failed_calls,
            ]
            for one in played
        ],
    )
    for one in played:
        if one.skipped:
            output.say(f"{one.name} was skipped: {one.skipped}")
        for step in one.steps:
            if not step.passed:
                output.say(f"{one.name}: {step.what}: expected {step.expected}; saw {step.seen}")
