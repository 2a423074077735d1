"""metad's own packages as one zip, for executors that do not have them installed."""

from __future__ import annotations

import zipfile
from pathlib import Path

import metad_spark
import metad_wire

_SUFFIXES = {".py", ".toml", ".json"}


def package_zip(folder: Path) -> Path:
    """Write ``metad_packages.zip`` into the folder. The cluster must provide the packages' imports (numpy, pyarrow,
    pandas, msgspec)."""
    made = folder / "metad_packages.zip"
    roots = (Path(metad_spark.__path__[0]), Path(metad_wire.__path__[0]))
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for root in roots:
            for file in sorted(root.rglob("*")):
                if file.suffix in _SUFFIXES:
                    archive.write(file, Path(root.name) / file.relative_to(root))
    return made
