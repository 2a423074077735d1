"""Reading a TOML file, one that is shipped or one of the user's, into a Struct, with errors in the user's words."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TypeVar

import msgspec

from .errors import SparkError

FILE_BYTES_MAX = 1024 * 1024
"""Nobody writes more by hand; bounds what a wrong path can make us read."""

T = TypeVar("T")


def shipped(kind: str) -> list[str]:
    """The names of the files of a kind ("scenarios", "calibrations") that come with the package."""
    folder = resources.files(__package__) / "data" / kind
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load(kind: str, name_or_path: str | Path, struct: type[T], error: type[SparkError]) -> T:
    """The file of that name, or at that path, as a ``struct``; ``error`` where there is none or it makes no sense."""
    names = shipped(kind)
    if str(name_or_path) in names:
        text = (resources.files(__package__) / "data" / kind / f"{name_or_path}.toml").read_bytes()
    else:
        path = Path(name_or_path)
        try:
            if path.stat().st_size > FILE_BYTES_MAX:
                raise error(f"{path}: over {FILE_BYTES_MAX} bytes, which is no file of {kind}")
            text = path.read_bytes()
        except OSError as why:
            reason = why.strerror or type(why).__name__
            raise error(f"{name_or_path}: {reason}; give a TOML file, or one of {', '.join(names)}") from None
    try:
        return msgspec.toml.decode(text, type=struct)
    except msgspec.ValidationError as why:
        raise error(f"{name_or_path}: {why}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as why:
        raise error(f"{name_or_path}: not TOML: {why}") from None
