"""A verb that reads keys is its declaration and what a group does for it: the rest follows, and nobody lists it.

``adding_a_verb.diff`` adds ``inflight.count``, a verb of a table with rules. These tests apply it to a
copy of the tree, run the commands that write what follows, and there, in processes of their own, what holds for every
method, and the verb itself: on a real node, from both clients.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from changed_tree import apply, copy, files_of, lines_of, run, run_suites, run_tests

DIFF = (Path(__file__).parent / "adding_a_verb.diff").read_text(encoding="utf-8")
LINES_MAX, FILES_MAX = 15, 3
COMMANDS = ("unit/client/typed_verbs.py", "unit/wire/wire_document.py")
FRESH = "inflight.count or page or in_the_table"
"""Of the tests that say how new what is read is."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with the verb in it, and what the commands have written."""
    tree = tmp_path_factory.mktemp("tree")
    copy(tree, ("wire", "clients", "metad", "tests"))
    apply(DIFF, tree)
    for command in COMMANDS:
        run(tree, command)
    return tree


def test_the_diff_is_short_and_touches_few_files() -> None:
    assert lines_of(DIFF) <= LINES_MAX
    assert len(files_of(DIFF)) <= FILES_MAX


def test_what_is_written_is_as_the_linter_and_the_type_checker_want_it(tree: Path) -> None:
    written = [*files_of(DIFF), "clients/metad_client/namespaces/declared.py"]
    paths = [str(tree / path) for path in [*written, "clients/metad_client/blocking/namespaces.py"]]
    run(tree, "-m", "ruff", "check", *paths)
    run(tree, "-m", "ruff", "format", "--check", *paths)


def test_what_holds_for_every_method_holds_for_it(tree: Path) -> None:
    run_suites(tree, "inflight.count")


def test_what_holds_for_every_method_of_the_sdk_holds_for_it(tree: Path) -> None:
    run_tests(tree, "unit/client/test_surface.py", "unit/client/test_good_arguments.py", "-k", "not [watching]")
    run_tests(tree, "simulation/test_freshness.py", "-k", FRESH)


def test_on_real_nodes(tree: Path) -> None:
    run_tests(tree, "extension/counting_on_nodes.py")
