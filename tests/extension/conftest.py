"""Makes this folder's helpers and those of real nodes importable: the tests have no packages."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "e2e")]
