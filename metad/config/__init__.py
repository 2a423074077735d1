"""Configuration: what may be set, where it is read from, and what is wrong with it.

- :mod:`.declarations`: the settings, each with its default and its text
- :mod:`.addresses`: what a node binds, and what it tells others to dial
- :mod:`.checks`: the settings that do not fit, each named by its key
- :mod:`.files`: TOML and the overrides of flags and environment
- :mod:`.environment`: the variables that containers set
- :mod:`.pages`: the reference and the sample file, made from the declarations
"""

from .addresses import UNIX, bound_for_nodes, collide, dialable_problem, is_loopback, told_to_nodes
from .checks import REGION_BYTES_MAX, REPLICAS_MAX, is_region, validated
from .declarations import (
    MIB,
    ClusterConfig,
    CommitConfig,
    Config,
    DedupeConfig,
    ExpiryConfig,
    GroupsConfig,
    LimitsConfig,
    RaftConfig,
    SecurityConfig,
    StorageConfig,
)
from .files import load_config, to_toml

__all__ = [
    "MIB",
    "REGION_BYTES_MAX",
    "REPLICAS_MAX",
    "UNIX",
    "ClusterConfig",
    "CommitConfig",
    "Config",
    "DedupeConfig",
    "ExpiryConfig",
    "GroupsConfig",
    "LimitsConfig",
    "RaftConfig",
    "SecurityConfig",
    "StorageConfig",
    "bound_for_nodes",
    "collide",
    "dialable_problem",
    "is_loopback",
    "is_region",
    "load_config",
    "to_toml",
    "told_to_nodes",
    "validated",
]
