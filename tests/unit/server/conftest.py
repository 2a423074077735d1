"""Makes this folder's helpers, strategies for messages, and golden rows importable: the tests have no packages. Some
files wait on a loop in virtual time."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from sim.nodes.loop import VirtualLoop

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "wire"), str(HERE.parents[1] / "golden")]
VIRTUAL = ("test_cluster_id.py", "test_namesakes.py", "test_quotas.py", "test_tenant_end.py")


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Any]:
    return {"virtual": VirtualLoop} if item.path.name in VIRTUAL else {"real": asyncio.new_event_loop}
