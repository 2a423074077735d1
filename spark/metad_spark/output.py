"""Output for people and scripts: a few lines on stdout, JSON files."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table


def write_json(path: Path | None, report: Mapping[str, Any]) -> None:
    """Write the report, if a path is given; floats to six significant digits."""
    if path is not None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(rounded(report)), indent=2) + b"\n")


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; columns of numbers are aligned to the right."""
    made = Table(title=title, title_justify="left")
    for at, column in enumerate(columns):
        numeric = at > 0 and all(row[at][:1].isdigit() or row[at][:1] in ("", "-") for row in rows)
        made.add_column(column, justify="right" if numeric else "left")
    for row in rows:
        made.add_row(*row)
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 120, highlight=False).print(made)


def say(text: str) -> None:
    """Print a sentence."""
    print(text, flush=True)


def warn(text: str) -> None:
    """Print a sentence in red, where there is colour."""
    Console(file=sys.stdout, soft_wrap=True, highlight=False).print(text, style="bold red", markup=False)


def rounded(value: Any) -> Any:
    """Floats to six significant digits, in dicts and lists too."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return value
