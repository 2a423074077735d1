"""Reads a TOML file, from the package or from the user, into a Struct, with errors in the user's words."""

from __future__ import annotations

import math
import re
import typing
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from .errors import SparkError

FILE_BYTES_MAX = 1024 * 1024
"""Nobody writes longer files by hand; bounds what we read from a wrong path."""

T = TypeVar("T")


def shipped(kind: str) -> list[str]:
    """The names of the package's files of a kind ("scenarios", "calibrations")."""
    folder = resources.files(__package__) / "data" / kind
    if not folder.is_dir():
        return []
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load(kind: str, name_or_path: str | Path, struct: type[T], error: type[SparkError]) -> T:
    """The file of that name, or at that path, as a ``struct``; raises ``error`` if it is missing or malformed."""
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
        plain = msgspec.toml.decode(text)
        if (key := _not_finite(plain)) is not None:
            raise error(f"{name_or_path}: {key} must be a finite number")
        return msgspec.convert(plain, type=struct)
    except msgspec.ValidationError as why:
        raise error(f"{name_or_path}: {why}{_allowed(struct, str(why))}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as why:
        raise error(f"{name_or_path}: not TOML: {why}") from None


def _not_finite(value: Any, key: str = "") -> str | None:
    """The key of a number that is none, or has no end; None where all are finite. An expiry without end is a session
    that never expires."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if value == math.inf and key.endswith(".expiry_s") else key
    parts: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        parts = [(f"{key}.{name}" if key else name, part) for name, part in value.items()]
    elif isinstance(value, list):
        parts = [(f"{key}[{at}]", part) for at, part in enumerate(value)]
    return next((found for name, part in parts if (found := _not_finite(part, name)) is not None), None)


def _allowed(struct: type, why: str) -> str:
    """The allowed keys, if the error is about an unknown one."""
    if "unknown field" not in why:
        return ""
    *_, path = why.rpartition("`$")
    kind: Any = struct
    for key in re.findall(r"\.(\w+)", path):
        kind = typing.get_type_hints(kind)[key]
        # For a list of tables, or a table that may be missing, use the inner type.
        while not hasattr(kind, "__struct_fields__"):
            kind = next(each for each in typing.get_args(kind) if each not in (type(None), ...))
    return f"; there are {', '.join(kind.__struct_fields__)}"
