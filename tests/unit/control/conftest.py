"""Makes ``server_rig`` and this folder importable: the tests run without packages of their own."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "server"))
sys.path.insert(0, str(Path(__file__).parent))
