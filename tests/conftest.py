"""Tests side by side: what goes together to one of the processes, and in which order.

``make test`` runs the tests in several processes (``-n auto`` of pytest-xdist). A test that measures is marked
``alone`` and runs after the others. Without ``-n`` nothing here does anything.
"""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Iterator
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from metad_wire.program.signals import default_for_children

default_for_children()  # `make test &` has the shell ignore SIGINT for all that it starts

# Else an example that takes 200 ms fails its test, and so do examples that are slow to make: on a busy machine, any. So
# many examples find every planted bug.
settings.register_profile("metad", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("metad")

_PRODUCT = tuple(str(Path(__file__).resolve().parent.parent / folder) + os.sep for folder in ("metad", "wire"))
# Hypothesis tries the constants of all modules that are no package's, tests among them: parsing them takes each process
# seven seconds. Those of the server are the ones that matter.
providers.is_local_module_file = lambda path: path.startswith(_PRODUCT)  # type: ignore[assignment]

WORKERS_MAX = 8
"""More have been tried by nobody, and each of them has an interpreter and nodes."""
BY_TEST = ("e2e", "extension", "simulation")
"""Rings of which one file may take minutes."""
OF_SPARK = {"jvm": "context: Context", "port": '"--connect"'}
"""What files in ``spark`` share: the JVM of the session, or Connect's port; and the words by which they name it."""
SCENARIOS = "tests/e2e/scenarios"
"""All files share nodes."""
WAITING = ("spark", "fuzz", "e2e", "console", "extension")
"""Rings whose tests mostly wait: for processes to start, to die or to be late. Tests that compute run beside them, for
else the cores would be idle meanwhile. The folder that takes longest comes first."""
COMPUTING = ("unit", "contract", "golden", "simulation")
"""Whole files first, as much work beside a test that waits as can be; single tests last, so that all processes end
together."""
RINGS = (*WAITING, *COMPUTING)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two for each core: half of the tests wait for processes that they have started."""
    return min(2 * (os.cpu_count() or 1), WORKERS_MAX)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        """Work is handed out in the order of the items, the tests of one scope to one process."""

        def _split_scope(self, nodeid: str) -> str:
            return scope(config.rootpath, nodeid)

    config.option.loadscopereorder = False
    return Together(config, log)


def scope(root: Path, nodeid: str) -> str:
    """What of a test must be the same for all tests that run in one process: the file where they share nodes or are
    short, what files of Spark share, else the test itself."""
    path = nodeid.partition("::")[0]
    if path.startswith(f"{SCENARIOS}/"):
        return SCENARIOS
    ring = ring_of(path)
    if ring == "spark":
        return next((f"tests/{ring}/{shared}" for shared, mark in OF_SPARK.items() if mark in text(root / path)), path)
    return nodeid if ring in BY_TEST and not shares(root / path) else path


def ring_of(path: str) -> str:
    return Path(path).parts[1]


@functools.cache
def text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def shares(file: Path) -> bool:
    return 'scope="module"' in text(file)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collecting makes many thousand objects and drops none: to look for garbage would take a fifth of its time. Nor do
    later collections look at them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 10, 10)  # a simulated cluster makes as much in a moment: a tenth of its time
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items[:] = in_order(config.rootpath, items)


def in_order(root: Path, items: list[pytest.Item]) -> list[pytest.Item]:
    """Take scopes that wait and scopes that compute in turn, ring by ring. A ring that is not listed here computes."""
    scopes: dict[str, list[pytest.Item]] = {}
    for item in items:
        scopes.setdefault(scope(root, item.nodeid), []).append(item)
    names = sorted(scopes, key=lambda name: RINGS.index(ring) if (ring := ring_of(name)) in RINGS else len(RINGS))
    waiting, computing = ([name for name in names if (ring_of(name) in WAITING) == waits] for waits in (True, False))
    paired = chain.from_iterable(zip_longest(waiting, computing))
    return [item for name in paired if name is not None for item in scopes[name]]
