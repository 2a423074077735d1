"""A table is its declaration, and a verb that reads keys is one and what a group does for it: the rest follows, and
whoever adds one has nothing to forget.

``adding_a_table.diff`` adds ``reading`` to the tables in the code, ``adding_a_verb.diff`` the verb
``inflight.count`` to a table with rules. These tests apply both to a copy of the tree, run the commands that
write what follows, and there, in a process of its own, what holds for every table and every method, and the
verb itself: on a real node, from both clients. The same table, declared by a program, goes through put, list,
slots that move under writes, a snapshot, a kill and a read in ``test_a_declared_table_…``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from changed_tree import apply, copy, files_of, lines_of, run, run_suites

HERE = Path(__file__).parent
TABLE = (HERE / "adding_a_table.diff").read_text(encoding="utf-8")
VERB = (HERE / "adding_a_verb.diff").read_text(encoding="utf-8")
TABLE_LINES_MAX, VERB_LINES_MAX, VERB_FILES_MAX = 30, 15, 3
WRITTEN = ["clients/metad_client/namespaces/declared.py", "clients/metad_client/blocking/namespaces.py"]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with both in it, and what the commands have written."""
    tree = tmp_path_factory.mktemp("tree")
    copy(tree, ("wire", "clients", "metad", "tests"))
    paths = [tree / "tests/golden/messages.txt", tree / "wire/TABLES.md"]
    apply(TABLE, tree)
    before = [path.read_text(encoding="utf-8") for path in paths]
    run(tree, "golden/regenerate.py")
    run(tree, "unit/wire/wire_document.py")
    assert [path.read_text(encoding="utf-8") for path in paths] == before, (
        "the diff has the bytes; tables are on no page"
    )
    apply(VERB, tree)
    run(tree, "unit/client/typed_verbs.py")
    run(tree, "unit/wire/wire_document.py")
    return tree


def test_the_diffs_are_short_and_touch_the_declarations_and_what_is_made_of_them() -> None:
    assert lines_of(TABLE) <= TABLE_LINES_MAX
    assert files_of(TABLE) == ["wire/metad_wire/families/reading.py", "tests/golden/messages.txt"]
    assert lines_of(VERB) <= VERB_LINES_MAX
    assert len(files_of(VERB)) <= VERB_FILES_MAX


def test_what_is_written_is_as_the_linter_wants_it(tree: Path) -> None:
    paths = [str(tree / path) for path in [*files_of(TABLE)[:1], *files_of(VERB), *WRITTEN]]
    run(tree, "-m", "ruff", "check", *paths)
    run(tree, "-m", "ruff", "format", "--check", *paths)


def test_what_holds_for_every_table_and_method_holds_for_them(tree: Path) -> None:
    run_suites(tree, "reading", "inflight.count")
