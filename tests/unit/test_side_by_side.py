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
    monkeypatch.setattr(ordering, "shares", lambda file: file.name == "test_shared.py")
    names = {
        *("tests/unit/test_a.py::test_1", "tests/unit/test_a.py::test_2", "tests/simulation/test_b.py::test_1"),
        *("tests/e2e/test_c.py::test_1", "tests/e2e/test_c.py::test_2", "tests/e2e/test_shared.py::test_1"),
        *("tests/spark/test_d.py::test_1", "tests/spark/test_e.py::test_1", "tests/golden/test_f.py::test_1"),
    }
    items = [SimpleNamespace(nodeid=name) for name in sorted(names)]
    ordered = [item.nodeid.removeprefix("tests/") for item in ordering.in_order(TESTS.parent, items)]
    assert ordered == [
        *("spark/test_d.py::test_1", "spark/test_e.py::test_1", "simulation/test_b.py::test_1"),
        *("e2e/test_c.py::test_1", "unit/test_a.py::test_1", "unit/test_a.py::test_2", "e2e/test_c.py::test_2"),
        *("golden/test_f.py::test_1", "e2e/test_shared.py::test_1"),
    ]
