"""Many runs as one page: what they differ in, and what becomes of it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..tables.queries import Group, Spread
from ..target import Target
from ..wording import percent, seconds
from .page import Page, Table

_SETTINGS_MAX = 6
"""Columns for settings; the rest would not be read."""


def report(groups: Sequence[Group], target: Target, validation: str, made: Sequence[str] = ()) -> Page:
    """The page about groups of runs that differ by their seeds only, the best first. ``validation``: what is said of
    their predictions, first of all."""
    ordered = sorted(
        groups, key=lambda group: (group.spread(f"{target.key}_s").median, group.spread("restored").median)
    )
    meeting = [at for at, group in enumerate(ordered) if meets(group, target)]
    runs = sum(len(group.runs) for group in groups)
    faulty = sum(group.faulty for group in groups)
    keys = list(groups[0].settings)
    return Page(
        title=f"{runs} storms in {len(groups)} settings",
        verdict=f"{len(meeting)} of {len(groups)} settings have {target} with every seed.",
        good=bool(meeting) and not faulty,
        faults=[f"{faulty} of the storms must not be relied on: brokers and nodes do not agree."] if faulty else [],
        notice=validation,
        made=made,
        figures=[
            (f"{runs}", "storms"),
            (f"{len(groups)}", "settings"),
            (f"{len(meeting)}", f"have {target}"),
            (f"{sum(group.collapsed for group in groups)}", "storms collapse"),
        ],
        parts=[
            Table(
                heading="What becomes of each setting",
                caption="The best first. Of several seeds the median, and the range in brackets. Green: the target is"
                " met with every seed.",
                columns=[*keys[:_SETTINGS_MAX], *COLUMNS],
                rows=[row(group, keys[:_SETTINGS_MAX]) for group in ordered],
                strong=frozenset(meeting),
            )
        ],
        settings=[(f"run {run.run}", _words(group, run.question.seed)) for group in ordered for run in group.runs],
        settings_heading="The runs",
    )


COLUMNS = ("seeds", "50 % back", "99 % back", "99.9 % back", "attempts per client", "back at the end", "collapsed")
"""Of the table, after the settings."""


def row(group: Group, keys: Sequence[str]) -> list[str]:
    """A group in words: the values of the settings ``keys``, then :data:`COLUMNS`."""
    clients = group.runs[0].storm.clients
    restored = group.spread("restored")
    return [
        *(setting(group.settings[key]) for key in keys),
        f"{len(group.runs)}",
        *(_range(group.spread(f"{key}_s"), _time) for key in ("t50", "t99", "t999")),
        _range(group.spread("attempts_per_client"), lambda value: f"{value:.3g}"),
        percent(min(1.0, restored.median / clients)),
        f"{group.collapsed} of {len(group.runs)}",
    ]


def meets(group: Group, target: Target) -> bool:
    """Whether the target is met with every seed."""
    return group.spread(f"{target.key}_s").high <= target.seconds


def setting(value: Any) -> str:
    """A setting's value in words."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


def _words(group: Group, seed: int) -> str:
    words = [f"{key} {setting(value)}" for key, value in group.settings.items()]
    return ", ".join([*words, f"seed {seed}"])


def _range(spread: Spread, words: Any) -> str:
    low, middle, high = (words(value) for value in (spread.low, spread.median, spread.high))
    return middle if low == high else f"{middle} ({low} to {high})"


def _time(value: float) -> str:
    return "never" if math.isinf(value) else seconds(value)
