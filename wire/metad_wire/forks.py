"""Whether this is still the process that made an object: in a fork its threads and its event loop are not there."""

from __future__ import annotations

import os

_forks = 0
"""Since the first process that imported this module. The process's own number would be a system call to ask for."""


def _forked() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Process:
    """The process that runs now."""

    __slots__ = ("_forks",)

    def __init__(self) -> None:
        self._forks = _forks

    @property
    def is_here(self) -> bool:
        """Whether the caller is in that process, and not in a fork of it."""
        return self._forks == _forks
