"""Makes this folder's helpers, and the reader of PROTOCOL.md, importable: the tests have no packages."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "wire")]
