"""The reasons why metad refuses to start, or stops. Errors that travel to clients are in :mod:`metad_wire.errors`."""

from __future__ import annotations

import errno
from typing import ClassVar, Final

_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)


class ServerError(Exception):
    """Root of the errors that stop a node; the text tells the operator what to do."""

    exit_status: ClassVar[int] = 1
    """Of the process."""


class ConfigError(ServerError):
    """The configuration is wrong."""


class StorageError(ServerError):
    """The disk or RocksDB failed: full, read-only, broken."""


class DiskFullError(StorageError):
    """The disk has no space left. The node stops; its process waits for room, and then opens the node again."""


def file_error(what: str, cause: OSError) -> StorageError:
    """The error of a file operation: what failed, and why."""
    kind = DiskFullError if is_full(cause) else StorageError
    return kind(f"{what}: {cause.strerror or cause}")


def is_full(cause: OSError) -> bool:
    """Whether the disk has no space left."""
    return cause.errno in _NO_SPACE


JOIN_ANEW: Final = (
    "Stop it, replace it (metadctl replace), and start it with an empty data directory and [cluster] join. README.md, "
    "'A lost or damaged disk'"
)

LOST_DISK: Final = (
    "If its disk is lost, replace it (metadctl replace), and start this node with an empty data directory and "
    "[cluster] join. README.md, 'A lost or damaged disk'"
)
"""The advice to a node whose name is that of a member that is out of reach."""

REPLACE: Final = (
    "If other nodes have replicas of its groups, replace this node (metadctl replace): it joins again with an empty "
    "data directory. Only if it had the only ones, restore the data directory from a backup: what was written since is "
    "lost. README.md, 'A lost or damaged disk'"
)
"""The remedy for a damaged directory. In a group of several replicas an older copy of it does not help: it has
forgotten votes and acknowledgements that the others count on, and they refuse it."""

START_AGAIN: Final = "Start the node again: it receives another snapshot"
"""The remedy for a damaged snapshot."""


class RefusedError(ServerError):
    """Every other node refuses this one. It would be refused again, so whoever starts nodes must not start it again
    before an operator has done something."""

    exit_status = 3


class LeftError(ServerError):
    """The node has left its cluster. One that serves ends in order, with exit status 0. One that is started again with
    the directory that it had there does not start, and would not the next time either."""

    exit_status = RefusedError.exit_status


class DamagedStoreError(StorageError):
    """The log or the state on disk is not as it was written; a start on it would lose or invent data."""

    def __init__(self, fault: str, remedy: str = REPLACE) -> None:
        super().__init__(f"{fault}. {remedy}")
