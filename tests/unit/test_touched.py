"""The tests that `make test-touched` takes: those that import what changed, the nearest first, within its time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import touched


@pytest.fixture(scope="module")
def by() -> dict[str, set[str]]:
    return touched.importers(touched.tracked())


@pytest.mark.parametrize(
    ("changed", "test"),
    [
        ("metad/raft/log/journal.py", "tests/unit/raft/test_journal.py"),
        ("clients/metad_client/dispatch/discovery.py", "tests/unit/client/test_dispatch.py"),
        ("tests/unit/client/scripted.py", "tests/contract/test_answers.py"),
        ("tests/golden/messages.txt", "tests/golden/test_messages.py"),
        ("docs/OPERATE.md", "tests/unit/perf/test_operate_page.py"),
        ("Makefile", "tests/e2e/test_readme_commands.py"),
    ],
)
def test_what_imports_or_names_a_changed_file_is_nearest(by: dict[str, set[str]], changed: str, test: str) -> None:
    near = touched.nearest([changed], by)
    assert near[test] == 1
    assert list(near.values()) == sorted(near.values())


def test_a_changed_test_comes_first_and_the_map_leads_over_other_files(by: dict[str, set[str]]) -> None:
    near = touched.nearest(["wire/metad_wire/program/signals.py", "tests/e2e/test_wills.py"], by)
    assert next(iter(near)) == "tests/e2e/test_wills.py"
    assert near["tests/unit/wire/test_claims.py"] >= 1
    assert touched.nearest(["no/such/file.py"], by) == {}


def test_every_kind_of_import_is_seen() -> None:
    text = "import a.b as c, d\nfrom . import e\nfrom ..f import (\n    g,  # why\n    h as i,\n)\n"
    found = {name.rstrip(".") for name in touched._imported("metad/raft/log/x.py", text)}
    assert {"a.b", "d", "metad.raft.log.e", "metad.raft.f.g", "metad.raft.f.h"} <= found


def test_no_test_is_begun_after_its_time_and_those_left_are_counted() -> None:
    item: Any = SimpleNamespace()
    assert touched.Bounded(600.0).pytest_runtest_protocol(item) is None
    late = touched.Bounded(-1.0)
    assert [late.pytest_runtest_protocol(item) for _ in range(3)] == [True] * 3
    assert late.left == 3


def test_the_bugs_are_planted_whatever_changed() -> None:
    file, _, name = touched.BUGS.partition("::")
    assert f"def {name}(" in (Path(touched.ROOT) / "tests" / file).read_text()
