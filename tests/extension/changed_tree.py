"""A copy of the tree with a change in it, and what runs there in a process of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SOURCES = ("wire", "clients", ".")
"""Where packages are, as far as a copy has them."""
ROOT = Path(__file__).resolve().parents[2]
SUITES = [
    "golden",
    "unit/wire/test_fuzz_smoke.py",
    "unit/wire/test_methods.py",
    "unit/wire/test_protocol_document.py",
    "unit/wire/test_routing.py",
    "unit/wire/test_tables.py",
    "unit/storage/test_keys.py",
    "unit/control/test_moved_rows.py",
    "unit/server/test_hostile_requests.py",
    "unit/client/test_surface.py",
    "unit/client/test_good_arguments.py",
    "contract/test_answers.py",
    "extension/counting_on_nodes.py",
    "simulation/test_freshness.py",
]
"""That go through all tables, rows, methods or messages, and what counts on nodes."""


def lines_of(diff: str) -> int:
    """How many lines are written for it."""
    return len(re.findall(r"^\+(?!\+\+ )", diff, re.MULTILINE))


def files_of(diff: str) -> list[str]:
    """The files in which they are."""
    return re.findall(r"^\+\+\+ b/(\S+)$", diff, re.MULTILINE)


def copy(tree: Path, folders: Sequence[str]) -> None:
    """Make the copy: of these folders, and of what says how tests run."""
    for folder in folders:
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tree)


def apply(diff: str, tree: Path) -> None:
    """What ``patch -p1`` does. Raises AssertionError where a hunk does not fit."""
    for part in re.split(r"^(?=--- )", diff, flags=re.MULTILINE)[1:]:
        names, *hunks = re.split(r"^@@.*\n", part, flags=re.MULTILINE)
        path = tree / re.findall(r"^\+\+\+ b/(\S+)$", names, re.MULTILINE)[0]
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        for hunk in hunks:
            lines = hunk.splitlines(keepends=True)
            old = "".join(line[1:] for line in lines if line[0] in " -")
            new = "".join(line[1:] for line in lines if line[0] in " +")
            assert before.count(old) == 1 or not before, f"{path.name}: a hunk does not fit"
            before = before.replace(old, new) if before else new
        path.write_text(before, encoding="utf-8")


def run(tree: Path, *command: str) -> str:
    """Run Python where the change is made. Its output; AssertionError where it fails."""
    path = os.pathsep.join([*(str(tree / found) for found in SOURCES), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tree / "tests",
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def run_suites(tree: Path, *new: str) -> None:
    """What can fail because of something new: the cases that have its name, those of the SDK's blocking face, and the
    tests that have no cases. The other cases are about one of the others each, and this tree's own run has them. Raises
    AssertionError where one fails, or there is none."""
    chosen = " or ".join([*new, "blocking", "not ["])
    assert " passed" in run(tree, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *SUITES, "-k", chosen)
