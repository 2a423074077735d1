"""The simulators stand beside the product: they import it, and it does not import them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import house

CONTRACTS = """
[importlinter]
root_packages =
    sim

[importlinter:contract:circles]
name = No circles in the simulators
type = acyclic_siblings
ancestors = sim
"""


def test_no_circles(tmp_path: Path) -> None:
    config = tmp_path / "contracts.ini"
    config.write_text(CONTRACTS, encoding="utf-8")
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--config", config, "--no-cache"],
        env={**os.environ, "PYTHONPATH": str(house.PARTS["tests"])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 kept, 0 broken" in done.stdout


def test_nobody_of_the_product_imports_them() -> None:
    names = ("import sim", "from sim", "import simulate", "from simulate")
    tools = [file for part in ("perf", "spark") for file in sorted(house.PARTS[part].rglob("*.py"))]
    found = [
        house.name_of(file)
        for file in [*house.shipped(), *tools]
        if any(line.strip().startswith(names) for line in file.read_text(encoding="utf-8").splitlines())
    ]
    assert not found
