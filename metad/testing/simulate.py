"""``python -m metad.testing.simulate``, in a checkout: the former name of ``python tests/simulate.py``."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
    sys.exit(import_module("simulate").main())
