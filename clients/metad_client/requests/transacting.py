"""What all transactions have in common, of key-values and of declared tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from metad_wire.messages import BATCH_ITEMS_MAX, TRANSACTION_ITEMS_MAX, TRANSACTIONS_MAX, operations_of

from ..errors import MetadError, error_of_item
from .wrong import UNFIT

_PARTS_MAX = 4 * TRANSACTION_ITEMS_MAX


def items_max_of(transactions: Iterable[Any]) -> int:
    """How many a request may hold, if all were as long as the longest of these."""
    longest = max(map(_parts_of, transactions), default=0)
    return min(TRANSACTIONS_MAX, BATCH_ITEMS_MAX // max(longest, 1))


def _parts_of(transaction: Any) -> int:
    try:
        parts = operations_of(transaction)
    except UNFIT:
        return 0  # it is refused, by the client or by the server, and so is one with more parts than it may have
    return parts if parts <= _PARTS_MAX else 0


def transacted(items: Sequence[Any], reply: Any) -> list[Any | MetadError]:
    """The result of each, or its error."""
    errors = {error.index: error_of_item(error) for error in reply.errors}
    return [errors[at] if result is None else result for at, result in enumerate(reply.results)]
