"""What a client says of the cluster when a quorum is away, and comes back: by itself, and with calls that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from metad import embedded
from metad_client import ClientState, MetadError, Observer, StateChanged, connect
from waiting import WAIT_S

CONNECTED, SUSPENDED = ClientState.CONNECTED, ClientState.SUSPENDED
KINDS = {"metadata", "data", "offset"}


class Heard(Observer):
    """The changes of a client."""

    def __init__(self) -> None:
        self.changes: list[StateChanged] = []

    def state_changed(self, event: StateChanged) -> None:
        self.changes.append(event)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("is_idle", [True, False])
async def test_a_client_is_not_connected_while_two_of_three_nodes_are_dead(tmp_path: Path, is_idle: bool) -> None:
    """Guards a client that was CONNECTED although no write was possible."""
    with embedded.cluster(nodes=3, data_dir=tmp_path) as cluster:
        heard, told = Heard(), []
        async with connect(cluster.url, observer=heard) as m:
            m.on_state(told.append)
            await m.kv.put("ns", "k", b"1")
            await _until(lambda: m.state is CONNECTED and set(m.states.values()) == {CONNECTED})
            assert set(m.states) == KINDS
            for name in ("n1", "n2"):
                await asyncio.to_thread(cluster.kill, name)
            writing = None if is_idle else asyncio.create_task(m.kv.put("ns", "k", b"2", deadline_s=2 * WAIT_S))
            await _until(lambda: m.state is SUSPENDED and set(m.states.values()) == {SUSPENDED})
            assert m.alone_s == 0, "one node answers"
            with pytest.raises(MetadError):
                await m.kv.put("ns", "k", b"3", deadline_s=0.5)
            assert heard.changes[-1].state == "suspended"
            assert heard.changes[-1].kinds == dict.fromkeys(KINDS, "suspended")
            for name in ("n1", "n2"):
                await asyncio.to_thread(cluster.start, name)
            if writing is not None:
                await writing
            await _until(lambda: m.state is CONNECTED and set(m.states.values()) == {CONNECTED})
            assert told[-1] is CONNECTED
            assert heard.changes[-1].state == "connected"
