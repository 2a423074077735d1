"""Why metad refuses to start, or stops. Errors that travel to clients are in :mod:`metad_wire.errors`."""

from __future__ import annotations

from typing import Final


class ServerError(Exception):
    """Root of what stops a node; the text is for the operator and says what to do."""


class ConfigError(ServerError):
    """The configuration is wrong."""


class StorageError(ServerError):
    """The disk or RocksDB failed: full, read-only, broken."""


JOIN_ANEW: Final = "Let it leave, and join again with an empty data directory under a new name."

REPLACE: Final = (
    "Where other nodes have replicas of its groups, let this node leave (metadctl leave) and join again with an empty "
    "data directory under a new name. Only where it had the only ones, restore the data directory from a backup: what "
    "was written since is lost. README.md, 'A lost or damaged disk'"
)
"""What to do about a directory that is damaged. In a group of several replicas an older copy of it is no remedy: it has
forgotten votes and acknowledgements that the others count on, and they refuse it."""

START_AGAIN: Final = "Start the node again: it is sent another"
"""What to do about a snapshot that is damaged."""


class DamagedStoreError(StorageError):
    """The log or the state on disk is not what was written; starting on it would lose or invent data."""

    def __init__(self, fault: str, remedy: str = REPLACE) -> None:
        super().__init__(f"{fault}. {remedy}")
