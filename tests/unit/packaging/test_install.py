"""The program that ``make`` installs with: what it shows meanwhile must not end it."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

FILE = Path(__file__).resolve().parents[3] / ".ci" / "install.py"


def test_a_folder_that_pip_removes_while_it_is_measured_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location("install", FILE)
    assert spec is not None
    assert spec.loader is not None
    install = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(install)
    for name in ("a", "b", "c"):
        (tmp_path / name / "inner").mkdir(parents=True)
        (tmp_path / name / "inner" / "file").write_bytes(b"1234567890")
    (tmp_path / "file").write_bytes(b"12345")
    assert install._size(tmp_path) == 35
    lstat = os.lstat

    def look(path: str) -> os.stat_result:
        if (tmp_path / "b").exists():
            (tmp_path / "b").rename(tmp_path.parent / "gone")
        return lstat(path)

    monkeypatch.setattr(install.os, "lstat", look)
    assert install._size(tmp_path) == 25
