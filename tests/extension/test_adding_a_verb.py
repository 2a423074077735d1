"""A verb that has a shape is its declaration and what a group does for it: the rest follows, and nobody lists it.

``adding_a_read.diff`` adds ``inflight.count``, which reads keys of a table with rules. ``adding_a_write.diff`` adds
``sequence.set``, which has a rule: it does some items of a batch and refuses others. These tests apply each to a copy
of the tree, run the commands that write what follows, and there, in processes of their own, what holds for every
method, and the verb itself: on a real node, from both clients.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from changed_tree import SUITES, apply, copy, files_of, lines_of, run, run_tests


class Verb(NamedTuple):
    """A verb that is added. ``lines_max``: more are not needed for it, in so many files at most."""

    name: str
    diff: str
    lines_max: int
    files_max: int
    on_nodes: str
    fresh: str
    """Of the tests that say how new what is read is."""


VERBS = (
    Verb(
        "inflight.count", "adding_a_read.diff", 15, 3, "counting_on_nodes.py", "inflight.count or page or in_the_table"
    ),
    Verb("sequence.set", "adding_a_write.diff", 60, 6, "setting_on_nodes.py", "page or in_the_table"),
)
COMMANDS = ("unit/client/typed_verbs.py", "unit/wire/wire_document.py")
WRITTEN = ("clients/metad_client/namespaces/declared.py", "clients/metad_client/blocking/namespaces.py")


def diff_of(verb: Verb) -> str:
    """What is added for it."""
    return (Path(__file__).parent / verb.diff).read_text(encoding="utf-8")


@pytest.fixture(scope="module", params=VERBS, ids=lambda verb: verb.name)
def verb(request: pytest.FixtureRequest) -> Verb:
    """One of them."""
    added: Verb = request.param
    return added


@pytest.fixture(scope="module")
def tree(verb: Verb, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with the verb in it, and what the commands have written."""
    tree = tmp_path_factory.mktemp("tree")
    copy(tree, ("wire", "clients", "metad", "tests"))
    apply(diff_of(verb), tree)
    for command in COMMANDS:
        run(tree, command)
    return tree


def test_the_diff_is_short_and_touches_few_files(verb: Verb) -> None:
    assert lines_of(diff_of(verb)) <= verb.lines_max
    assert len(files_of(diff_of(verb))) <= verb.files_max


def test_what_is_written_is_as_the_linter_and_the_type_checker_want_it(verb: Verb, tree: Path) -> None:
    written = [path for path in (*files_of(diff_of(verb)), *WRITTEN) if path.endswith(".py")]
    paths = [str(tree / path) for path in written]
    run(tree, "-m", "ruff", "check", *paths)
    run(tree, "-m", "ruff", "format", "--check", *paths)


def test_what_holds_for_every_method_holds_for_it(tree: Path) -> None:
    run_tests(tree, *SUITES)


def test_what_holds_for_every_method_of_the_sdk_holds_for_it(verb: Verb, tree: Path) -> None:
    run_tests(tree, "unit/client/test_surface.py", "unit/client/test_good_arguments.py", "unit/client/test_metadctl.py")
    run_tests(tree, "simulation/test_freshness.py", "-k", verb.fresh)


def test_on_real_nodes(verb: Verb, tree: Path) -> None:
    run_tests(tree, f"extension/{verb.on_nodes}")
