"""Which build of metad this is: its version, and the commit that it was made from.

A wheel brings the commit in a module that ``clients/setup.py`` writes while the wheel is built. A source checkout is
asked by reading git's own files, so no node needs git. A build from sources without either says its version alone.
"""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import Final

from .. import __version__

_SHOWN: Final = 10
"""Digits of a commit: enough for a repository of any size that a person reads."""
_CHECKOUT: Final = Path(__file__).resolve().parents[3]
_HOPS_MAX: Final = 5
"""References that lead to others: git itself allows as many."""


@functools.cache
def build() -> str:
    """Say the version with its commit, as in ``0.1.0+g07f471a2c3``. A source checkout has ``.src`` behind that, because
    its files may have changed since the commit; a wheel of files that had changed has ``.dirty``."""
    packed = _of_wheel()
    if packed:
        commit, _, state = packed.partition(".")
        return f"{__version__}+g{commit[:_SHOWN]}" + (f".{state}" if state else "")
    commit = commit_of(_CHECKOUT)
    return f"{__version__}+g{commit[:_SHOWN]}.src" if commit else __version__


def _of_wheel() -> str:
    """The commit that the wheel was built from, and ``.dirty`` if files had changed; empty if this is no wheel."""
    try:
        module = importlib.import_module("metad_wire._commit")
    except ModuleNotFoundError:
        return ""
    return str(module.COMMIT)


def commit_of(checkout: Path) -> str:
    """Return the commit that is checked out in a directory, as git's files say it. Empty if they do not."""
    try:
        folder = checkout / ".git"
        if folder.is_file():  # a further work tree, whose files are in the folder of the first
            folder = checkout / folder.read_text("utf-8").removeprefix("gitdir:").strip()
        shared = folder / "commondir"
        common = folder / shared.read_text("utf-8").strip() if shared.is_file() else folder
        said = (folder / "HEAD").read_text("utf-8").strip()
        for _ in range(_HOPS_MAX):
            if not said.startswith("ref:"):
                break
            said = _reference(said.removeprefix("ref:").strip(), folder, common)
    except (OSError, UnicodeDecodeError):
        return ""
    return said if len(said) >= _SHOWN and set(said) <= set("0123456789abcdef") else ""


def _reference(name: str, folder: Path, common: Path) -> str:
    """What a branch is at. Raises OSError."""
    for place in (folder / name, common / name):
        if place.is_file():
            return place.read_text("utf-8").strip()
    for line in (common / "packed-refs").read_text("utf-8").splitlines():
        commit, _, packed = line.partition(" ")
        if packed == name:
            return commit
    return ""
