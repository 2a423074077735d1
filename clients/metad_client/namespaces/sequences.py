"""``m.sequences``: counters by (namespace, sequence), which are only added to."""

from __future__ import annotations

from collections.abc import Sequence

from metad_wire import methods
from metad_wire.tables.sequence import (
    SequenceAddItem,
)

from ..requests.requests import Verb
from ..results import AddResult
from .declared import _SequenceDeclared


class Sequences(_SequenceDeclared):
    """Sequences by (namespace, sequence).

    A ``*_many`` method reports errors per item in its result, and raises a MetadError only if the whole call failed. An
    item that is wrong by itself is an InvalidItemError. The other methods raise the error of their item; those called
    at the same time share a request. ``deadline_s`` counts from now, and None means the client's default.
    """

    async def add_many(self, items: Sequence[SequenceAddItem], *, deadline_s: float | None = None) -> AddResult:
        """Add to sequences. The result has their new ``values``: with a delta of 100, the 100 numbers up to the value
        are the caller's. Item errors: ConflictError (the value would be below 0, or over 63 bits)."""
        return AddResult(await _ADD.many(self._requests, items, deadline_s))

    async def add(self, namespace: str, sequence: str, delta: int = 1, *, deadline_s: float | None = None) -> int:
        """Add to one sequence; returns its new value, as :meth:`add_many` does. Raises ConflictError."""
        item = SequenceAddItem(namespace, sequence, delta)
        return await _ADD.one(self._requests, item, deadline_s)


_ADD: Verb[SequenceAddItem, int] = Verb(methods.SEQUENCE_ADD)
