"""What is in a data directory can be read as it is, so nobody else may look into it."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from metad.config import Config, load_config
from metad.errors import ConfigError, StorageError
from metad.node.disk.stores import open_stores
from metad.storage.room import DiskUse
from metad.supervisor import local_cluster, workers_of


def opened(directory: Path) -> int:
    """The directory's mode while a node uses it."""
    stores = open_stores(load_config(None, {"data_dir": str(directory)}))
    mode = stat.S_IMODE(directory.stat().st_mode)
    stores.close()
    return mode


def test_a_new_one_is_its_owners_alone(tmp_path: Path) -> None:
    assert opened(tmp_path / "new" / "deep") == 0o700


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o777, 0o701])
def test_one_that_was_open_to_others_is_closed_and_that_is_said(
    tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "d"
    directory.mkdir()
    directory.chmod(mode)
    with caplog.at_level("WARNING", "metad"):
        assert opened(directory) == 0o700
        assert opened(directory) == 0o700
    said = [record.getMessage() for record in caplog.records]
    assert said == ["directory_was_open"]


def test_one_that_is_somebody_elses_is_used_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "d"
    directory.mkdir(mode=0o755)
    directory.chmod(0o755)

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refused)
    with caplog.at_level("WARNING", "metad"):
        assert opened(directory) == 0o755
    assert [record.getMessage() for record in caplog.records] == ["directory_is_open"]


def config_of(directory: Path) -> Config:
    return load_config(None, {"data_dir": str(directory), "listen": "127.0.0.1:7420"})


def start(directory: Path, how: str) -> None:
    """What is checked before a node serves, and its stores."""
    config = config_of(directory)
    if how == "serve":
        configs = [config]
    elif how == "cluster":
        configs = local_cluster(config, 3, 1)
    else:
        configs = workers_of(config, int(how))
    for one in configs:
        open_stores(one).close()


@pytest.mark.parametrize("before", ["serve", "cluster", "2", "3"])
@pytest.mark.parametrize("then", ["serve", "cluster", "2", "3"])
def test_a_directory_is_started_as_it_was_before_or_not_at_all(tmp_path: Path, before: str, then: str) -> None:
    """Guards data that was there and could not be found: other workers began an empty cluster beside it, and served."""
    start(tmp_path, before)
    if before == then:
        start(tmp_path, then)
        return
    with pytest.raises(ConfigError):
        start(tmp_path, then)


def test_workers_whose_first_start_was_interrupted_start_again(tmp_path: Path) -> None:
    open_stores(workers_of(config_of(tmp_path), 3)[0]).close()
    start(tmp_path, "3")


def test_a_start_on_a_full_disk_drops_what_was_being_received_and_touches_nothing_of_a_running_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "d"
    opened(directory)
    part, reserve = directory / "snapshots" / "1" / "000001.part", directory / "reserve"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"part")
    reserve.write_bytes(bytes(1024 * 1024))
    monkeypatch.setattr("metad.node.disk.stores.use_of", lambda _: DiskUse(0, 1 << 40))
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(directory / "raft" / "LOCK")], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    with pytest.raises(StorageError, match="is in use by another metad process"):
        opened(directory)
    assert part.exists()
    assert reserve.exists()
    holder.communicate()
    assert opened(directory) == 0o700
    assert not part.exists()
    assert not reserve.exists()


_HOLD = """
import fcntl, sys
file = open(sys.argv[1], "ab")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""
