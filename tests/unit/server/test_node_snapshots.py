"""A snapshot is put in place of a group's state, and opened, beside the event loop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from server_rig import Rig

from metad.node.environment import Queue
from metad.raft.messages import Configuration, Snapshot


async def test_the_state_of_a_snapshot_is_opened_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the loop: what a group keeps in memory of 200,000 leases takes a second to read."""
    monkeypatch.setattr("metad.node.disk.node_snapshots.replace_state", lambda *_: None)
    rig = Rig()
    node = await rig.open()
    driver, snapshots = rig.driver("data-0"), node.snapshots
    works: list[Any] = []
    opened: list[Any] = []
    real = snapshots._machines.open

    def counted(group: Any) -> Any:
        opened.append(real(group))
        return opened[-1]

    monkeypatch.setattr(snapshots._machines, "open", counted)
    monkeypatch.setattr(node.environment, "beside", lambda work, done, queue: works.append((work, done, queue)))
    monkeypatch.setattr(driver.group, "snapshot_installed", lambda message: None)
    streams: Any = SimpleNamespace(install=lambda group, message: [], installed=lambda group, message: None)
    monkeypatch.setattr(snapshots, "streams", streams)
    snapshots.install(driver, Snapshot(1, 1, 1, Configuration(("node-1",)), "s"))
    ((work, done, queue),) = works
    assert (queue, opened, driver.installing) == (Queue.LONG, [], True)
    work()
    before, (machine,) = driver.machine, opened
    assert before is not machine
    done(None)
    assert (driver.machine, len(opened), driver.installing) == (machine, 1, False)
    rig.kill()
