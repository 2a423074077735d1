"""Makes ``server_rig`` importable: the tests run without packages of their own."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "server"))
