"""The environment variables that ``metad serve`` reads, for containers. They win over the file, and flags over them.

Only the command reads the environment. It passes the variables to :func:`overrides_of`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, Final

from ..errors import ConfigError
from .declarations import SETTINGS

VARIABLES: Final = {
    "METAD_NODE_ID": "node_id",
    "METAD_CLUSTER_ID": "cluster_id",
    "METAD_DATA_DIR": "data_dir",
    "METAD_LISTEN": "listen",
    "METAD_QUIC": "quic",
    "METAD_HTTP": "http",
    "METAD_LOG_LEVEL": "log_level",
    "METAD_SEEDS": "cluster.seeds",
    "METAD_SEED_REGIONS": "cluster.seed_regions",
    "METAD_JOIN": "cluster.join",
    "METAD_CLUSTER_LISTEN": "cluster.listen",
    "METAD_ADVERTISE": "cluster.advertise",
    "METAD_ADVERTISE_CLIENTS": "cluster.advertise_clients",
    "METAD_ADVERTISE_QUIC": "cluster.advertise_quic",
    "METAD_REGION": "cluster.region",
    "METAD_TLS_CERT": "security.certificate",
    "METAD_TLS_KEY": "security.key",
    "METAD_TLS_CA": "security.ca",
    "METAD_TOKENS_FILE": "security.tokens_file",
    "METAD_JWT_KEYS_FILE": "security.jwt_keys_file",
    "METAD_PLAINTEXT": "security.plaintext",
}
"""Variable -> key."""
_TIMES_S: Final = {"s": 1, "min": 60, "h": 3_600, "d": 86_400}
_UNITS: Final = {
    "_ms": {"ms": 1, **{unit: 1_000 * size for unit, size in _TIMES_S.items()}},
    "_s": _TIMES_S,
    "_bytes": {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40},
}
"""By the end of a setting's name."""
_TRUTHS: Final = {"true": True, "1": True, "false": False, "0": False}


def overrides_of(environment: Mapping[str, str]) -> dict[str, Any]:
    """The settings that the variables give. An empty variable gives none. Raises ConfigError."""
    found: dict[str, Any] = {}
    for variable, key in VARIABLES.items():
        if text := environment.get(variable, ""):
            section, _, field = key.rpartition(".")
            table = found.setdefault(section, {}) if section else found
            table[field] = value_of(variable, key, text)
    return found


def unknown_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables whose names are nearly those of settings, with the names that were probably meant."""
    strangers = [name for name in environment if name.startswith("METAD_") and name not in VARIABLES]
    like = {name: difflib.get_close_matches(name, VARIABLES, 1, 0.85) for name in strangers}
    return {name: names[0] for name, names in like.items() if names}


def value_of(what: str, key: str, text: str) -> Any:
    """A text as a value of the type of a setting: ``64MiB``, ``30s`` or a plain number in the unit of its name. Raises
    ConfigError, which begins with ``what``."""
    default = SETTINGS[key].default
    if isinstance(default, bool):
        if text.lower() not in _TRUTHS:
            raise ConfigError(f"{what}: {text!r} is neither true nor false")
        return _TRUTHS[text.lower()]
    if isinstance(default, int | float):
        return _number(what, key, text, whole=isinstance(default, int))
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if isinstance(default, list):
        return parts
    if isinstance(default, dict):
        pairs = [part.partition("=") for part in parts]
        if not all(name and equals and value for name, equals, value in pairs):
            raise ConfigError(f"{what}: {text!r} is not NAME=VALUE,...")
        return {name.strip(): value.strip() for name, _, value in pairs}
    return text


def _number(what: str, key: str, text: str, *, whole: bool) -> int | float:
    name = key.removesuffix("_max")
    units = next((sizes for end, sizes in _UNITS.items() if name.endswith(end) and not name.endswith("per_s")), {})
    found = re.fullmatch(r"(-?[0-9][0-9_]{0,18}(?:\.[0-9]{1,9})?) ?([A-Za-z]*)", text.strip())
    if found is None or (found[2] and found[2] not in units):
        known = f", as in {', '.join(f'2{unit}' for unit in units)}" if units else ""
        raise ConfigError(f"{what}: {text!r} is no number{known}")
    number = float(found[1]) * units.get(found[2], 1)
    if not whole:
        return number
    if "." not in found[1]:
        return int(found[1]) * units.get(found[2], 1)
    if number != int(number):
        raise ConfigError(f"{what}: {text!r} is no whole number")
    return int(number)
