"""The order in which tests are handed to processes: none is lost, and waiting and computing tests take turns."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture
def ordering(request: pytest.FixtureRequest) -> Any:
    """The conftest.py of all tests."""
    file = str(TESTS / "conftest.py")
    return next(one for one in request.config.pluginmanager.get_plugins() if getattr(one, "__file__", "") == file)


def test_no_test_is_lost(ordering: Any, request: pytest.FixtureRequest) -> None:
    items = [SimpleNamespace(nodeid=f"tests/{ring}/test_x.py::test_y[{n}]") for ring in ("new", "unit") for n in (1, 2)]
    given = [*request.session.items, *items]
    assert sorted(map(id, ordering.in_order(TESTS.parent, given))) == sorted(map(id, given))


def test_what_waits_and_what_computes_take_turns(ordering: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"test_shared.py": 'scope="module"', "test_d.py": "context: Context", "test_e.py": "context: Context"}
    monkeypatch.setattr(ordering, "text", lambda file: texts.get(file.name, ""))
    names = {
        *("tests/unit/test_a.py::test_1", "tests/unit/test_a.py::test_2", "tests/simulation/test_b.py::test_1"),
        *("tests/e2e/test_c.py::test_1", "tests/e2e/test_c.py::test_2", "tests/e2e/test_shared.py::test_1"),
        *("tests/spark/test_d.py::test_1", "tests/spark/test_e.py::test_1", "tests/golden/test_f.py::test_1"),
    }
    items = [SimpleNamespace(nodeid=name) for name in sorted(names)]
    ordered = [item.nodeid.removeprefix("tests/") for item in ordering.in_order(TESTS.parent, items)]
    assert ordered == [
        *("spark/test_d.py::test_1", "spark/test_e.py::test_1", "unit/test_a.py::test_1", "unit/test_a.py::test_2"),
        *("e2e/test_c.py::test_1", "golden/test_f.py::test_1", "e2e/test_c.py::test_2", "simulation/test_b.py::test_1"),
        "e2e/test_shared.py::test_1",
    ]


def test_files_of_spark_share_a_process_only_with_what_they_share(ordering: Any) -> None:
    together: dict[str, set[str]] = {}
    for path in sorted((TESTS / "spark").glob("test_*.py")):
        together.setdefault(ordering.scope(TESTS.parent, f"tests/spark/{path.name}::test_x"), set()).add(path.name)
    assert {"test_census.py", "test_query_mutants.py"} <= together["tests/spark/jvm"]
    assert together["tests/spark/port"] == {"test_command.py", "test_everywhere.py"}
    assert together["tests/spark/test_import.py"] == {"test_import.py"}


def test_all_scenarios_share_a_process_and_with_it_their_nodes(ordering: Any) -> None:
    files = (TESTS / "e2e" / "scenarios").glob("test_*.py")
    assert {ordering.scope(TESTS.parent, f"tests/e2e/scenarios/{path.name}::test_x") for path in files} == {
        ordering.SCENARIOS
    }
