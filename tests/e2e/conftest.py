"""Makes helpers importable, of this folder and of the SDK's tests: the tests have no packages. And a cluster."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), *(str(HERE.parent / folder) for folder in ("unit/client", "unit/wire", "golden"))]

from e2e_nodes import Nodes  # noqa: E402 - its folder is on the path only now


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """Three of them, for one test. A file whose tests share nodes has a fixture of its own."""
    with Nodes(tmp_path) as nodes:
        yield nodes
