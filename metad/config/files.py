"""Where the settings come from: a TOML file, and what flags and environment put on top of it."""

from __future__ import annotations

import difflib
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from ..errors import ConfigError
from .checks import problems, validated
from .declarations import SETTINGS, Config, Section

_SECTIONS = {key.partition(".")[0] for key in SETTINGS if "." in key}


def load_config(path: Path | None, overrides: Mapping[str, Any]) -> Config:
    """Read TOML (None: defaults), put overrides on top (of a table: those of its keys that are given), validate. Raises
    :class:`ConfigError`."""
    settings = merged(read(path) if path is not None else {}, overrides)
    for problem in _misfits(settings):
        raise ConfigError(f"{path or 'configuration'}: {problem}")
    return validated(msgspec.convert(settings, Config))


class Origins(NamedTuple):
    """Where a configuration is from."""

    file: str = ""
    """Empty: there is none."""
    given: Mapping[str, str] = {}
    """Setting -> ``file``, ``environment`` or ``flag``."""


NOWHERE: Final = Origins()
"""Of a program's settings."""


def origins_of(path: Path | None, environment: Mapping[str, Any], flags: Mapping[str, Any]) -> Origins:
    """Where each setting of :func:`load_config` is from. Raises :class:`ConfigError`."""
    given: dict[str, str] = {}
    for source, settings in (
        ("file", {} if path is None else read(path)),
        ("environment", environment),
        ("flag", flags),
    ):
        given |= dict.fromkeys(flat(settings), source)
    return Origins("" if path is None else str(path), given)


def flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a file by their keys, as ``limits.slow_ms``. What is no section stays as it is."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and name in _SECTIONS:
            found.update((f"{name}.{field}", inner) for field, inner in value.items())
        else:
            found[name] = value
    return found


def problems_in(settings: Mapping[str, Any]) -> list[str]:
    """All problems of the settings of a file, as ``key: text``."""
    return _misfits(settings) or list(problems(msgspec.convert(settings, Config)))


def merged(settings: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """``settings`` with ``overrides`` on top; of a table only those of its keys that are given."""
    made = dict(settings)
    for field, value in overrides.items():
        known = made.get(field)
        made[field] = known | value if isinstance(known, dict) and isinstance(value, dict) else value
    return made


def read(path: Path) -> dict[str, Any]:
    """The settings of a TOML file. Raises :class:`ConfigError`."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _misfits(settings: Mapping[str, Any], section: type[Section] = Config, within: str = "") -> list[str]:
    """The keys that do not exist, and the values of another type than their key takes."""
    types = typing.get_type_hints(section)
    found: list[str] = []
    for key, value in settings.items():
        name, wanted = f"{within}{key}", types.get(key)
        if wanted is None:
            like = _places(key) or [f"{within}{each}" for each in difflib.get_close_matches(key, types, 1)]
            hint = f"; did you mean {' or '.join(like)}?" if like else ""
            found.append(f"{name}: unknown key{hint}")
        elif isinstance(value, Mapping) and issubclass(typing.get_origin(wanted) or wanted, Section):
            found += _misfits(value, wanted, f"{name}.")
        else:
            try:
                msgspec.convert(value, wanted)
            except msgspec.ValidationError as error:
                text, _, inside = str(error).partition(" - at `$")
                text = text.replace("`object`", "`table`")  # TOML's word
                found.append(f"{name}{inside.rstrip('`')}: {text[:1].lower()}{text[1:]}")
    return found


def _places(key: str) -> list[str]:
    """Where a key of this name is, for whoever has put it into another section."""
    sections = {name: wanted for name, wanted in typing.get_type_hints(Config).items() if _is_section(wanted)}
    found = [key] if key in typing.get_type_hints(Config) else []
    return found + [f"{name}.{key}" for name, section in sections.items() if key in typing.get_type_hints(section)]


def _is_section(wanted: Any) -> bool:
    return isinstance(wanted, type) and issubclass(wanted, Section)


def to_toml(config: Config) -> str:
    """A file that :func:`load_config` reads back as this configuration."""
    plain: list[str] = []
    tables: list[str] = []
    for field in Config.__struct_fields__:
        value = getattr(config, field)
        if isinstance(value, Section):
            tables += [f"[{field}]", *(f"{key} = {toml(getattr(value, key))}" for key in value.__struct_fields__)]
        else:
            plain.append(f"{field} = {toml(value)}")
    return "\n".join([*plain, *tables, ""])


def toml(value: Any) -> str:
    """Strings, numbers and lists of TOML are those of JSON; its tables are not."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(key)} = {toml(item)}" for key, item in value.items()) + "}"
    return msgspec.json.encode(value).decode()
