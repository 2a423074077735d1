"""Makes helpers importable, of this folder and of the SDK's tests: the tests have no packages."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), *(str(HERE.parent / "unit" / folder) for folder in ("client", "wire"))]
