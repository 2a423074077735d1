"""The coverage-guided search runs, and finds nothing in a short time. ``make fuzz`` searches for longer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).with_name("fuzz_wire.py")
SECONDS = int(os.environ.get("METAD_FUZZ_SECONDS", "4"))


@pytest.mark.parametrize("target", ["frame", "session"])
def test_a_search_finds_nothing(target: str) -> None:
    command = [sys.executable, str(FUZZ), target, "--seconds", str(SECONDS), "--input-seconds", "60"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    print(ran.stdout, ran.stderr)
    assert ran.returncode == 0
