"""Tells the node what its own commands make of wills: that one may be claimed, and that one was.

The news come while a command is evaluated, before its entry is committed. So whoever hears of them looks at the state
once it has come to the revision that they name.
"""

from __future__ import annotations

from typing import Protocol

from ..core.part import PartContext, StatePart


class Hears(Protocol):
    """Who is told."""

    def claimable(self, revision: int, tenant: str, key: bytes) -> None:
        """A will of this tenant, with this key in its table, may be claimed from this revision on."""

    def claimed(self, revision: int, broker: str, count: int, *, more: bool) -> None:
        """A broker has claimed so many wills. ``more``: it wanted no more of them, so there may be others."""


class WillNews(StatePart):
    """Those of a group."""

    def __init__(self, context: PartContext) -> None:
        self.hears: list[Hears] = []
        """Who is told."""
