"""Three nodes that the scenarios share. None of them ends a node of these, and each has tenants of its own.

A scenario does the job of one system with metad. Its docstring begins with the name of the system, and says what is
shown and what is not there yet. ``SHOWS`` names the methods of the protocol that it shows: a scenario of which a node
has not answered one of them fails. Tests of the README hold its table against both.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import e2e_metadctl
import pytest
from e2e_nodes import Nodes

from metad_client import Client, connect
from metad_client.options import Options
from metad_wire.methods import METHODS, Method

CONFIG = """
[groups]
data = 2
offset = 1
[expiry]
amnesty_ms = 100
[storage]
block_cache_bytes = 8388608
memtable_bytes = 33554432
owner_cache_bytes = 1000000
log_retained_bytes = 200000
watch_retained_bytes = 200000
"""
"""Logs are cut soon: one scenario asks for what was cut."""


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with Nodes(tmp_path_factory.mktemp("scenarios"), config=CONFIG) as nodes:
        yield nodes


@pytest.fixture
async def m(cluster: Nodes) -> AsyncIterator[Client]:
    async with connect(cluster.url, Options(deadline_s=60, connect_timeout_s=60)) as client:
        yield client


@pytest.fixture
def metadctl(cluster: Nodes) -> Callable[..., Awaitable[Any]]:
    """Runs a command that must succeed, at all nodes or at those that ``endpoint`` names: the document it prints."""

    async def run(*words: str, endpoint: str = cluster.where) -> Any:
        said = await asyncio.to_thread(e2e_metadctl.metadctl, endpoint, "--json", *words)
        assert said.returncode == 0, (words, said)
        return json.loads(said.stdout)

    return run


@pytest.fixture(scope="module", autouse=True)
def shown(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each method that the scenario says it shows was answered, if all of its tests ran and passed."""
    answered: set[str] = set()
    decode = Method.decode_reply

    def decode_reply(method: Method[Any, Any], payload: bytes) -> Any:
        reply = decode(method, payload)
        answered.add(METHODS[method.code].name)  # of all declared tables together
        return reply

    failed = request.session.testsfailed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Method, "decode_reply", decode_reply)
        yield
    ran = {item.originalname for item in request.session.items if getattr(item, "module", None) is request.module}
    whole = ran >= {name for name in vars(request.module) if name.startswith("test_")}
    if whole and request.session.testsfailed == failed:
        assert {*request.module.SHOWS.split()} <= answered
