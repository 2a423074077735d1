"""A table is its declaration: whoever adds one has nothing to forget.

ARCHITECTURE.md shows the diff that adds ``reading``, a plain table. These tests apply it to a copy of the tree and run
there, in a process of their own, what holds for every table; and then take the new one through put, list, slots that
move under writes, a snapshot, a kill and a read, on real nodes and in the simulator.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINES_MAX = 30
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
    "contract/test_answers.py",
]
"""That go through all tables, rows, methods or messages."""


def documented_diff() -> str:
    """Of "Adding a table"."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    _, _, section = text.partition("\n## Adding a table\n")
    (diff,) = re.findall(r"```diff\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    assert isinstance(diff, str)
    return diff


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


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the diff touches, and of what is run, with the table in it."""
    tree = tmp_path_factory.mktemp("tree")
    for folder in ("wire", "tests"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    apply(documented_diff(), tree)
    return tree


def run(tree: Path, *command: str) -> str:
    """Run Python where the table is declared. Its output; AssertionError where it fails."""
    path = os.pathsep.join([str(tree / "wire"), *filter(None, [os.environ.get("PYTHONPATH")])])
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


def run_tests(tree: Path, *paths: str) -> None:
    assert " passed" in run(tree, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *paths)


def test_the_diff_is_short_and_touches_the_declaration_and_what_is_made_of_it() -> None:
    diff = documented_diff()
    assert len(re.findall(r"^\+(?!\+\+ )", diff, re.MULTILINE)) <= LINES_MAX
    assert re.findall(r"^\+\+\+ b/(\S+)$", diff, re.MULTILINE) == [
        "wire/metad_wire/tables/reading.py",
        "tests/golden/messages.txt",
        "wire/PROTOCOL.md",
    ]


def test_the_golden_bytes_and_the_row_of_the_document_are_written_by_commands(tree: Path) -> None:
    paths = [tree / "tests/golden/messages.txt", tree / "wire/PROTOCOL.md"]
    before = [path.read_text(encoding="utf-8") for path in paths]
    run(tree, "golden/regenerate.py")
    run(tree, "unit/wire/wire_document.py")
    assert [path.read_text(encoding="utf-8") for path in paths] == before


def test_the_declaration_is_as_the_linter_wants_it(tree: Path) -> None:
    declaration = str(tree / "wire/metad_wire/tables/reading.py")
    run(tree, "-m", "ruff", "check", declaration)
    run(tree, "-m", "ruff", "format", "--check", declaration)


def test_what_holds_for_every_table_holds_for_it(tree: Path) -> None:
    run_tests(tree, *SUITES)


def test_on_real_nodes(tree: Path) -> None:
    run_tests(tree, "extension/reading_on_nodes.py")


def test_in_the_simulator(tree: Path) -> None:
    run_tests(tree, "extension/reading_in_simulator.py")
