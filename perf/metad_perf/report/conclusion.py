"""How a command ends: its report, written and shown, and its exit code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..commands import Options
from . import output


def reported(settings: Options, found: Mapping[str, Any]) -> dict[str, Any]:
    """The report of a command: what was found, its settings, the machine and the versions."""
    told = {name: value for name, value in settings.told().items() if name not in found}
    return output.rounded({**found, **told, "setting": output.machine(), "versions": output.versions()})


def conclude(title: str, made: Mapping[str, Any], settings: Options, *bars: str) -> int:
    """Write the report, and show it. Returns the exit code: 1 if one of ``bars`` is not 0, or there are problems."""
    output.write_json(settings.json, made)
    output.table(title, ["", "value"], [row for row in made.items() if not isinstance(row[1], dict | list | tuple)])
    problems = made.get("problems", [])
    for line in (*made.get("examples", []), *problems):
        output.say(line)
    return 1 if problems or any(made[bar] for bar in bars) else 0
