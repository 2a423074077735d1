"""``--vary KEY=V1,V2``: scenarios that differ from one by the values of its keys. Pure, but for calibrations' files."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from .errors import ScenarioError, UsageError
from .scenario import Scenario

Priced = TypeVar("Priced")
RUNS_MAX = 100_000
"""Of one sweep: more would take days, and as many folders."""
_CALIBRATION = "calibration"
_NOT = ("name", "description")


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A key of the scenario, and its values as they were written."""

    key: str
    values: tuple[str, ...]


def parse_axis(text: str) -> Axis:
    """An axis written as ``cluster.nodes=3,5,9``. Raises UsageError."""
    key, equals, rest = text.partition("=")
    values = tuple(value.strip() for value in rest.split(","))
    if not equals or not key.strip() or not all(values):
        raise UsageError(f"{text!r} is no variation: write one as cluster.nodes=3,5,9")
    if len(set(values)) < len(values):
        raise UsageError(f"--vary {text}: a value is there twice")
    return Axis(key=key.strip(), values=values)


def cells(
    scenario: Scenario, calibration: Priced, axes: Sequence[Axis], load: Callable[[str], Priced]
) -> list[tuple[Scenario, Priced]]:
    """The scenario with each combination of the axes' values, the last axis the fastest. ``load``: reads a calibration.
    Raises UsageError for a key that there is not, and ScenarioError for a combination that is no scenario."""
    keys = [axis.key for axis in axes]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise UsageError(f"--vary {twice[0]}: it is given twice")
    found = []
    for values in itertools.product(*(axis.values for axis in axes)):
        plain, costs = _lists(msgspec.to_builtins(scenario)), calibration
        for key, value in zip(keys, values, strict=True):
            if key == _CALIBRATION:
                costs = load(value)
            else:
                _set(plain, key, value)
        words = ", ".join(f"{key}={value}" for key, value in zip(keys, values, strict=True))
        try:
            made = msgspec.convert(plain, type=Scenario)
        except msgspec.ValidationError as why:
            raise ScenarioError(f"--vary {words}: {why}") from None
        if made.clients < made.cluster.groups:
            raise ScenarioError(f"--vary {words}: clients must be at least cluster.groups, {made.cluster.groups}")
        found.append((made, costs))
    return found


def _lists(value: Any) -> Any:
    """The same with lists for tuples, so that parts can be set."""
    if isinstance(value, dict):
        return {key: _lists(each) for key, each in value.items()}
    return [_lists(each) for each in value] if isinstance(value, list | tuple) else value


def _set(plain: dict[str, Any], key: str, value: str) -> None:
    """Set ``cluster.nodes``, or ``sdks.0.cap_s``, in a scenario of builtin types."""
    at: Any = plain
    *way, last = key.split(".")
    so_far: list[str] = []
    for name in [*way, last]:
        names = list(at) if isinstance(at, dict) else [str(i) for i in range(len(at))] if isinstance(at, list) else []
        names = [each for each in names if so_far or each not in _NOT]
        if name not in names:
            where = f"{'.'.join(so_far)} has" if so_far else "there are"
            raise UsageError(f"--vary {key}: there is no such key; {where} {', '.join(names) or 'no keys'}")
        so_far.append(name)
        if len(so_far) == len(way) + 1:
            break
        at = at[name] if isinstance(at, dict) else at[int(name)]
    place: Any = last if isinstance(at, dict) else int(last)
    if isinstance(at[place], dict):
        raise UsageError(f"--vary {key}: it has keys of its own: {', '.join(f'{key}.{each}' for each in at[place])}")
    if isinstance(at[place], list):
        raise UsageError(f"--vary {key}: it is a list; vary what is in it, as in {key}.0")
    at[place] = _value(key, value, at[place])


def _value(key: str, text: str, now: Any) -> Any:
    """The text as a value of the kind that is there now."""
    if isinstance(now, bool):
        if text not in ("true", "false"):
            raise UsageError(f"--vary {key}: {text!r} is neither true nor false")
        return text == "true"
    if isinstance(now, int | float):
        try:
            number = float(text.replace("_", ""))
        except ValueError:
            raise UsageError(f"--vary {key}: {text!r} is no number") from None
        if isinstance(now, float):
            return number
        if not number.is_integer():
            raise UsageError(f"--vary {key}: {text!r} is no whole number")
        return int(number)
    if now is None:
        raise UsageError(f"--vary {key}: the scenario has none; write one into its file to vary its keys")
    return text
