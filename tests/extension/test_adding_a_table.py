"""A table is its declaration: whoever adds one has nothing to forget.

``adding_a_table.diff`` adds ``reading`` to the tables in the code. These tests apply it to a copy of the
tree and run there, in a process of their own, what holds for every table. The same table, declared by a program, goes
through
put, list, slots that move under writes, a snapshot, a kill and a read in ``test_a_declared_table_…``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from changed_tree import apply, copy, files_of, lines_of, run, run_suites

DIFF = (Path(__file__).parent / "adding_a_table.diff").read_text(encoding="utf-8")
LINES_MAX = 30


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the diff touches, and of what is run, with the table in it."""
    tree = tmp_path_factory.mktemp("tree")
    copy(tree, ("wire", "tests"))
    apply(DIFF, tree)
    return tree


def test_the_diff_is_short_and_touches_the_declaration_and_what_is_made_of_it() -> None:
    assert lines_of(DIFF) <= LINES_MAX
    assert files_of(DIFF) == [
        "wire/metad_wire/families/reading.py",
        "tests/golden/messages.txt",
    ]


def test_the_golden_bytes_are_written_by_a_command_and_the_page_of_tables_stays(tree: Path) -> None:
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
    run_suites(tree, "reading")
