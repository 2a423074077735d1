"""An embedded node in a fork of its process: its thread is not there, so nothing may wait for it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metad.embedded.hosting import node
from metad.errors import ServerError


@pytest.mark.parametrize(
    "use",
    [
        lambda hosted: hosted.close(),
        lambda hosted: hosted.endpoint,
        lambda hosted: hosted.__enter__(),
        lambda hosted: hosted.__exit__(None, None, None),
        lambda hosted: asyncio.run(hosted.ended()),
    ],
    ids=["close", "endpoint", "begin", "leave", "ended"],
)
def test_a_fork_is_told_so(tmp_path: Path, use: Callable[[Any], Any]) -> None:
    hosted = node(tmp_path, node_id="n1")
    child = os.fork()
    if child == 0:
        status = 9
        try:
            use(hosted)
        except ServerError as error:
            status = 3 if "fork" in str(error) and not hosted.running else 4
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 3
