"""The settings that do not fit, each as one line that begins with its key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from metad_wire.cluster import GROUP_KINDS

from ..errors import ConfigError
from . import addresses
from .declarations import MIB, SETTINGS, Config, RaftConfig, value_in

REGION_BYTES_MAX: Final = 64
REPLICAS_MAX: Final = 15
"""Of a group. More make every write slower, and no machine room is safer for them."""
_NUMBER_MAX: Final = 2**48  # a larger number is a mistake, and would break timers or RocksDB
_NAME_BYTES_MAX: Final = 256


def validated(config: Config) -> Config:
    """The configuration with the region of the node filled in. Raises :class:`ConfigError` with the first problem."""
    for problem in problems(config):
        raise ConfigError(problem)
    cluster = msgspec.structs.replace(config.cluster, region=_region(config))
    return msgspec.structs.replace(config, cluster=cluster)


def problems(config: Config) -> Iterator[str]:
    """All problems, as ``key: text``."""
    yield from _choices(config)
    yield from _numbers(config)
    yield from _limits(config)
    yield from _security(config)
    yield from _raft(config.raft)
    yield from _membership(config)
    yield from addresses.problems(config)
    yield from _names(config)
    yield from _regions(config)


def _raft(raft: RaftConfig) -> Iterator[str]:
    if raft.heartbeat_ms * 3 > raft.election_timeout_ms:
        yield "raft.heartbeat_ms: at most a third of raft.election_timeout_ms"
    if not raft.heartbeat_ms < raft.promised_ms <= raft.election_timeout_ms:
        yield "raft.lease_ms: longer than raft.heartbeat_ms, and at most raft.election_timeout_ms"
    if not raft.promised_ms <= raft.patience_ms <= 2 * raft.election_timeout_ms:
        yield "raft.step_down_ms: at least raft.lease_ms, and at most two of raft.election_timeout_ms"


def is_region(name: str) -> bool:
    """Whether this can be the name of a region."""
    return 1 <= len(name.encode()) <= REGION_BYTES_MAX and _is_visible(name)


def _is_visible(name: str) -> bool:
    return name.isprintable() and name == name.strip()


def _choices(config: Config) -> Iterator[str]:
    if config.storage.engine not in ("rocksdb", "memory"):
        yield f"storage.engine: {config.storage.engine!r} is neither 'rocksdb' nor 'memory'"
    if config.storage.engine == "rocksdb" and not config.data_dir:
        yield "data_dir: give a directory (--data-dir or METAD_DATA_DIR)"
    if config.log_level not in ("debug", "info", "warning", "error"):
        yield f"log_level: {config.log_level!r} is not one of debug, info, warning, error"


_MAY_BE_ZERO = ("commit.linger_ms", "raft.lease_ms", "raft.step_down_ms")


def _numbers(config: Config) -> Iterator[str]:
    for key, declared in SETTINGS.items():
        if declared.type not in (int, float):
            continue
        value, live = value_in(config, key), declared.live
        least = live.least if live is not None else 0 if key in _MAY_BE_ZERO else 1
        most = live.most if live is not None else _NUMBER_MAX
        if value < least:
            yield f"{key}: {value} is too small: at least {least:,}"
        elif not value <= most:  # in this form it is also true of nan
            yield f"{key}: {value} is too large: at most {most:,}"
    for kind in GROUP_KINDS:
        if getattr(config.groups, kind) > 1024:
            yield f"groups.{kind}: at most 1024, the number of slots"
    if config.cluster.replicas > REPLICAS_MAX:
        yield f"cluster.replicas: at most {REPLICAS_MAX}"


def _limits(config: Config) -> Iterator[str]:
    limits = config.limits
    if not 4 * MIB <= limits.frame_bytes_max <= 1024 * MIB:
        yield "limits.frame_bytes_max: at least 4 MiB, which holds any page, and at most 1 GiB"
    for field in (
        "connection_window_bytes",
        "in_flight_bytes_max",
        "unfinished_bytes_max",
        "unbegun_bytes_max",
        "unsent_bytes_max",
    ):
        if getattr(limits, field) < limits.frame_bytes_max:
            yield f"limits.{field}: must hold at least one frame of frame_bytes_max"


def _security(config: Config) -> Iterator[str]:
    security = config.security
    named = [field for field in ("certificate", "key", "ca") if getattr(security, field)]
    if named and len(named) < 3:
        yield "security: certificate, key and ca go together"
    if named and security.plaintext:
        yield "security.plaintext: cannot be set together with certificates"
    if not named:
        for key, wanted in (
            ("quic", config.quic),
            ("security.require_client_certificate", security.require_client_certificate),
            ("security.administrators", security.administrators),
            ("security.authorization", security.authorization),
            ("security.tokens_file", security.tokens_file),  # in clear text a token does not stay a secret
            ("security.jwt_keys_file", security.jwt_keys_file),
        ):
            if wanted:
                yield f"{key}: needs security.certificate, security.key and security.ca"
    if not security.jwt_keys_file:
        for field in ("jwt_issuer", "jwt_audience"):
            if getattr(security, field):
                yield f"security.{field}: needs security.jwt_keys_file"
    if not security.jwt_principal_claim:
        yield "security.jwt_principal_claim: must name a claim"


def _membership(config: Config) -> Iterator[str]:
    cluster = config.cluster
    if cluster.seeds and cluster.join:
        yield "cluster.join: a founding node (cluster.seeds) does not join"
    if cluster.seeds and config.node_id not in cluster.seeds:
        yield f"cluster.seeds: this node, {config.node_id!r}, is not among them"


def _names(config: Config) -> Iterator[str]:
    if not 1 <= len(config.node_id.encode()) <= _NAME_BYTES_MAX:
        yield "node_id: must take 1 to 256 bytes"
    if len(config.cluster_id.encode()) > _NAME_BYTES_MAX:
        yield "cluster_id: must take at most 256 bytes"
    if not _is_visible(config.node_id):
        yield f"node_id: {config.node_id!r} has characters that cannot be seen"


def _regions(config: Config) -> Iterator[str]:
    cluster = config.cluster
    named = {f"cluster.seed_regions.{node}": region for node, region in cluster.seed_regions.items()}
    for key, region in (named | {"cluster.region": cluster.region} if cluster.region else named).items():
        if not is_region(region):
            yield f"{key}: {region!r} is not a valid region name"
    for node in cluster.seed_regions:
        if node not in cluster.seeds:
            yield f"cluster.seed_regions: {node!r} is not among cluster.seeds"
    if cluster.region not in ("", _region(config)):
        yield f"cluster.region: cluster.seed_regions says {_region(config)!r}"


def _region(config: Config) -> str:
    """The region of this node, as its seeds or the node itself give it."""
    return config.cluster.seed_regions.get(config.node_id, config.cluster.region)
