"""The environment variables that ``metad serve`` reads, for containers. They win over the file, and flags over them.

Only the command reads the environment. It passes the variables to :func:`overrides_of`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final

from ..errors import ConfigError
from .declarations import Config

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
_TRUTHS: Final = {"true": True, "1": True, "false": False, "0": False}


def overrides_of(environment: Mapping[str, str]) -> dict[str, Any]:
    """The settings that the variables give. An empty variable gives none. Raises ConfigError."""
    found: dict[str, Any] = {}
    for variable, key in VARIABLES.items():
        if text := environment.get(variable, ""):
            section, _, field = key.rpartition(".")
            table = found.setdefault(section, {}) if section else found
            table[field] = _value(variable, text, _default(section, field))
    return found


def unknown_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables whose names are nearly those of settings, with the names that were probably meant."""
    strangers = [name for name in environment if name.startswith("METAD_") and name not in VARIABLES]
    like = {name: difflib.get_close_matches(name, VARIABLES, 1, 0.85) for name in strangers}
    return {name: names[0] for name, names in like.items() if names}


def _default(section: str, field: str) -> Any:
    return getattr(getattr(Config(), section) if section else Config(), field)


def _value(variable: str, text: str, default: Any) -> Any:
    """The text as a value of the type of the default."""
    if isinstance(default, bool):
        if text.lower() not in _TRUTHS:
            raise ConfigError(f"{variable}: {text!r} is neither true nor false")
        return _TRUTHS[text.lower()]
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if isinstance(default, list):
        return parts
    if isinstance(default, dict):
        pairs = [part.partition("=") for part in parts]
        if not all(name and equals and value for name, equals, value in pairs):
            raise ConfigError(f"{variable}: {text!r} is not NAME=VALUE,...")
        return {name.strip(): value.strip() for name, _, value in pairs}
    return text
