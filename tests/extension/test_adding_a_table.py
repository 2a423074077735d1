"""A table is its declaration: whoever adds one has nothing to forget.

ARCHITECTURE.md shows the diff that adds ``reading`` to the tables in the code. These tests apply it to a copy of the
tree and run there, in a process of their own, what holds for every table. The same table, declared by a program, goes
through
put, list, slots that move under writes, a snapshot, a kill and a read in ``test_a_declared_table_…``.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from changed_tree import ROOT, SUITES, apply, copy, files_of, lines_of, run, run_tests

LINES_MAX = 30


def documented_diff() -> str:
    """Of "Adding a table"."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    _, _, section = text.partition("\n## Adding a table\n")
    (diff,) = re.findall(r"```diff\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    assert isinstance(diff, str)
    return diff


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the diff touches, and of what is run, with the table in it."""
    tree = tmp_path_factory.mktemp("tree")
    copy(tree, ("wire", "tests"))
    apply(documented_diff(), tree)
    return tree


def test_the_diff_is_short_and_touches_the_declaration_and_what_is_made_of_it() -> None:
    diff = documented_diff()
    assert lines_of(diff) <= LINES_MAX
    assert files_of(diff) == [
        "wire/metad_wire/families/reading.py",
        "tests/golden/messages.txt",
        "wire/TABLES.md",
    ]


def test_the_golden_bytes_and_the_row_of_the_document_are_written_by_commands(tree: Path) -> None:
    paths = [tree / "tests/golden/messages.txt", tree / "wire/TABLES.md"]
    before = [path.read_text(encoding="utf-8") for path in paths]
    run(tree, "golden/regenerate.py")
    run(tree, "unit/wire/wire_document.py")
    assert [path.read_text(encoding="utf-8") for path in paths] == before


def test_the_declaration_is_as_the_linter_wants_it(tree: Path) -> None:
    declaration = str(tree / "wire/metad_wire/families/reading.py")
    run(tree, "-m", "ruff", "check", declaration)
    run(tree, "-m", "ruff", "format", "--check", declaration)


def test_what_holds_for_every_table_holds_for_it(tree: Path) -> None:
    run_tests(tree, *SUITES)
