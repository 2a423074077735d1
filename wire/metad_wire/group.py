"""The name of a group. Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_NAME: Final = re.compile(r"([a-z]+)-(0|[1-9][0-9]{0,4})")


class GroupId(NamedTuple):
    """A group: its kind, and its number among the groups of that kind."""

    kind: str
    ordinal: int

    @property
    def name(self) -> str:
        """The text form, as in ``data-0``."""
        return f"{self.kind}-{self.ordinal}"

    @classmethod
    def parse(cls, name: str) -> GroupId | None:
        """Return the group that is called so. None means that no group can have this name."""
        found = _NAME.fullmatch(name)
        return None if found is None else cls(found[1], int(found[2]))


METADATA: Final = GroupId("metadata", 0)
"""The group that keeps the cluster map. Its leader decides about the cluster."""
