"""How many files a process may have open, and whom they are for. Sockets count."""

from __future__ import annotations

import contextlib
import resource
from typing import Final

_PEER_FILES_MAX: Final = 512
"""Connections with other nodes or brokers, those that this one dials and those that come, and of strangers on the port
for them."""


def limit_of(kind: int) -> int:
    """The limit of this process for a kind of thing (``resource.RLIMIT_…``); a very large number if there is none."""
    soft, _ = resource.getrlimit(kind)
    return 1 << 62 if soft == resource.RLIM_INFINITY else soft


def raise_files_limit() -> int:
    """Let the process open as many files as it may; returns how many these are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return limit_of(resource.RLIMIT_NOFILE)


def peer_files(files: int) -> int:
    """How many of the files that a process may open are for other nodes, or for other brokers."""
    return min(_PEER_FILES_MAX, files // 8)
