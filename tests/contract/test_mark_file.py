"""The file of a durable mark: the system's and the simulated one are held to the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from metad.storage.log import DurableMark, MarkFile, SystemFile
from sim.disk import SimFile

Open = Callable[[], MarkFile]


@pytest.fixture(params=["system", "simulated"])
def open_file(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    simulated = SimFile()
    return (lambda: SystemFile(tmp_path / "mark")) if request.param == "system" else lambda: simulated


def test_a_new_file_is_empty(open_file: Open) -> None:
    assert open_file().read() == b""


def test_a_write_replaces_the_beginning_and_outlives_the_process(open_file: Open) -> None:
    file = open_file()
    file.write(b"12345")
    file.write(b"abc")
    file.sync()
    assert file.read() == b"abc45"
    file.close()
    assert open_file().read() == b"abc45"


def test_a_mark_is_found_again(open_file: Open, tmp_path: Path) -> None:
    mark = DurableMark(tmp_path, lambda _: open_file())
    mark.advance({b"abc": 7, b"abd": 9})
    mark.lower(b"abc", 3)
    mark.close()
    again = DurableMark(tmp_path, lambda _: open_file())
    assert (again.get(b"abc"), again.get(b"abd")) == (3, 9)
