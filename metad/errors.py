"""Why metad refuses to start, or stops. Errors that travel to clients are in :mod:`metad_wire.errors`."""

from __future__ import annotations


class ServerError(Exception):
    """Root of what stops a node; the text is for the operator and says what to do."""


class ConfigError(ServerError):
    """The configuration is wrong."""


class StorageError(ServerError):
    """The disk or RocksDB failed: full, read-only, broken."""


class DamagedStoreError(StorageError):
    """The log or the state on disk is not what was written; starting on it would lose or invent data."""
