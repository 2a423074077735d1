"""The pysyncobj that is installed is the one that was read line by line: metad/raft replaces parts of it by name."""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
from pathlib import Path

import pysyncobj.syncobj
import pytest
from pysyncobj import SyncObj

from metad.raft import state

REPLACED = (
    "_onTick",
    "_applyCommand",
    "_checkCommandsToApply",
    "_SyncObj__onMessageReceived",
    "_SyncObj__sendNextNodeIdx",
    "_SyncObj__sendAppendEntries",
    "_SyncObj__applyLogEntries",
    "_SyncObj__doApplyCommand",
    "_SyncObj__onBecomeLeader",
    "_SyncObj__tryLogCompaction",
    "_SyncObj__loadDumpFile",
    "_SyncObj__changeCluster",
    "_SyncObj__doChangeCluster",
    "_SyncObj__parseChangeClusterRequest",
    "_SyncObj__updateClusterConfiguration",
)


def test_the_installed_source_is_the_audited_one() -> None:
    source = Path(inspect.getfile(pysyncobj.syncobj)).read_bytes()
    assert hashlib.sha256(source).hexdigest() == state.AUDITED_SHA256, (
        "pysyncobj/syncobj.py is not the file metad/raft was written against. Read what changed before pinning it anew."
    )
    assert importlib.metadata.version("pysyncobj") == state.AUDITED_VERSION


@pytest.mark.parametrize("name", REPLACED)
def test_what_is_replaced_exists_and_is_ours(name: str) -> None:
    assert hasattr(SyncObj, name), f"SyncObj has no {name}: the replacement replaces nothing"
    assert getattr(state.ReplicaState, name) is not getattr(SyncObj, name)
