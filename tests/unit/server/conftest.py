"""Makes this folder's helpers, strategies for messages, and golden rows importable: the tests have no packages."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "wire"), str(HERE.parents[1] / "golden")]
