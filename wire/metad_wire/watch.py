"""The messages of a watch: a stream of one group's changes, from one of its replicas."""

from __future__ import annotations

import enum

from .fields import U32, U63
from .messages import Message


class MarkerStep(enum.IntEnum):
    """The steps of a slot move that decide which group's changes count."""

    SEALED = 1
    UNSEALED = 2
    ADOPTED = 3


class SlotMarker(Message, frozen=True):
    """A step of slot move ``move`` in a group's log. ``step`` is one of :class:`MarkerStep`, ``slots`` a bit map.
    ``other`` is the ordinal of the other group, of the same kind: the target of a seal, the source of an adoption.
    ``sealed_index``: of an adoption, the index at which the source sealed the slots in its own log."""

    step: U32
    move: U63
    slots: bytes
    other: U32 = 0
    sealed_index: U63 = 0
