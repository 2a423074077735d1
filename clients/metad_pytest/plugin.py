"""Fixtures that give each test a server of its own, in memory and started in milliseconds, or a cluster of processes.

- ``metad_server``: a server. Its ``url`` is what the broker under test connects to, and ``advance(seconds)`` lets
  time pass for it.
- ``metad``: a blocking client of that server
- ``metad_async``: an asyncio client of that server, if pytest-asyncio is installed. It works in every mode of
  pytest-asyncio. Without pytest-asyncio, write ``async with metad_client.connect(metad_server.url)``.
- ``metad_cluster``: three nodes that can be killed, stopped, paused and started again. It takes three seconds.

No test sees data of another. What one test needs beside these, it makes with :mod:`metad.embedded`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from metad.embedded import Cluster, ServingInThread
    from metad_client.blocking import BlockingClient


def pytest_configure(config: pytest.Config) -> None:
    """Add the asyncio fixture if there is somebody to run it."""
    if config.pluginmanager.hasplugin("asyncio"):
        from . import asyncio_fixtures

        config.pluginmanager.register(asyncio_fixtures, "metad_asyncio")


@pytest.fixture
def metad_server() -> Iterator[ServingInThread]:
    """A server of this test's own: in memory, in a thread, on a free loopback port."""
    with _saying_what_is_missing():
        from metad import embedded
    with embedded.serve_in_thread() as serving:
        yield serving


@pytest.fixture
def metad(metad_server: ServingInThread) -> Iterator[BlockingClient]:
    """A blocking client of ``metad_server``."""
    from metad_client import blocking

    with blocking.connect(metad_server.url) as client:
        yield client


@pytest.fixture
def metad_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes, each a process of its own. pytest keeps their data and logs for a while, as it does ``tmp_path``."""
    with _saying_what_is_missing():
        from metad import embedded
    with embedded.cluster(nodes=3, data_dir=tmp_path_factory.mktemp("metad")) as cluster:
        yield cluster


@contextlib.contextmanager
def _saying_what_is_missing() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as missing:
        pytest.fail(str(missing), pytrace=False)
