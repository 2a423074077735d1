"""Makes the scripted nodes and the requests about plain tables importable: the tests have no packages."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent / "unit" / folder) for folder in ("client", "wire")]
