"""What numba compiles is kept where it can be, and works where it cannot; each process is new, as workers are."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

_MODULE = """
from metad_spark.models.vector_steps import in_place, kept_in_place

@in_place
def half(value):
    return value / 2

@kept_in_place
def quarter(value):
    return half(half(value))
"""
_ASKS = "import small; print(small.quarter(6.0), sum(small.quarter.stats.cache_hits.values()))"


def _quarter(path: Path, cache: Path) -> tuple[float, int]:
    """What a new process with the module on ``path`` says, and how often it found what another had compiled."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA")}
    environment |= {"PYTHONPATH": str(path), "XDG_CACHE_HOME": str(cache)}
    # Python's own cache takes two texts of the same length, written within one second, for the same.
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    command = [sys.executable, "-c", _ASKS]
    said = subprocess.run(command, env=environment, cwd=cache.parent, capture_output=True, text=True, timeout=300)
    assert said.returncode == 0, said.stderr
    value, hits = said.stdout.split()
    return float(value), int(hits)


@pytest.fixture
def no_cache(tmp_path: Path) -> Path:
    """A place that is no directory and in which nobody can make one, root neither."""
    place = tmp_path / "no cache"
    place.touch()
    return place


def test_the_next_process_finds_what_one_compiled(tmp_path: Path, no_cache: Path) -> None:
    (tmp_path / "small.py").write_text(_MODULE)
    assert _quarter(tmp_path, no_cache) == (1.5, 0)
    assert _quarter(tmp_path, no_cache) == (1.5, 1)


def test_what_changed_is_compiled_again(tmp_path: Path, no_cache: Path) -> None:
    """The inner function only: it is part of what is kept of the outer one."""
    (tmp_path / "small.py").write_text(_MODULE)
    assert _quarter(tmp_path, no_cache) == (1.5, 0)
    (tmp_path / "small.py").write_text(_MODULE.replace("/ 2", "/ 3"))
    assert _quarter(tmp_path, no_cache) == (pytest.approx(6 / 9), 0)


def test_the_users_directory_is_taken_where_the_source_is_not_to_be_written(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(_MODULE)
    (tmp_path / "__pycache__").touch()
    cache = tmp_path / "cache"
    assert _quarter(tmp_path, cache) == (1.5, 0)
    assert _quarter(tmp_path, cache) == (1.5, 1)


def test_each_process_compiles_where_nothing_can_be_written(tmp_path: Path, no_cache: Path) -> None:
    (tmp_path / "small.py").write_text(_MODULE)
    (tmp_path / "__pycache__").touch()
    for _ in range(2):
        assert _quarter(tmp_path, no_cache) == (1.5, 0)


def test_from_a_zip_it_works_and_leaves_nothing(tmp_path: Path) -> None:
    sent = tmp_path / "sent.zip"
    with zipfile.ZipFile(sent, "w") as archive:
        archive.writestr("small.py", _MODULE)
    cache = tmp_path / "cache"
    assert _quarter(sent, cache) == (1.5, 0)
    assert not cache.exists()
