"""Makes this folder's helpers, the golden rows and the fuzz drivers importable: the tests have no packages."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "golden"), str(HERE.parents[1] / "fuzz")]
