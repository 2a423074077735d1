"""What a caller is told of arguments that do not fit. Nothing here runs while all goes well: it is called once routing,
encoding or a whole request has failed, and says which field of which item is to blame."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final

import msgspec

from metad_wire.faults import UNFIT as UNFIT
from metad_wire.faults import fault
from metad_wire.messages import Message
from metad_wire.methods import Method, encode

from ..errors import InvalidItemError, InvalidRequestError, MetadError


class Misfit:
    """Stands for a key or record that is none of its table, and cannot be sent: its item fails, and says why."""

    def __init__(self, why: str) -> None:
        self.why = why


def _fault(item: Any, kind: Any) -> str | None:
    for given in (item, getattr(item, "key", None), getattr(item, "record", None)):
        if isinstance(given, Misfit):
            return given.why
    return fault(item, kind)


def wrong_items(method: Method[Any, Any], items: Sequence[Any]) -> dict[int, InvalidItemError]:
    """The errors of the items with a field of a wrong type, by position."""
    faults = ((position, _fault(item, method.item)) for position, item in enumerate(items))
    return {position: InvalidItemError(why) for position, why in faults if why is not None}


def wrong_item(
    method: Method[Any, Any], item: Any, body_of: Callable[[list[Any]], Message], error: Exception
) -> MetadError:
    """The error of a request of this item alone, which could not be routed or encoded."""
    why = _fault(item, method.item)
    return wrong_body(method, body_of([]), error) if why is None else InvalidItemError(why)


def wrong_body(method: Method[Any, Any], body: Message, error: Exception) -> MetadError:
    """The error of a request whose items are not to blame."""
    why = fault(body, method.body) or f"an argument has a wrong type ({error})"
    return InvalidRequestError(f"{method.name}: {why}")


def too_long(method: Method[Any, Any], item: Any) -> InvalidItemError | None:
    """The error of an item whose key or value is over the limit: it might not even fit a frame."""
    why = _fault(item, method.item) or (method.route.fault(item) if method.route is not None else None)
    return None if why is None else InvalidItemError(why)


def too_long_items(method: Method[Any, Any], items: Sequence[Any]) -> dict[int, InvalidItemError]:
    """The errors of the items that are wrong by themselves, by position, when all of them have failed together.

    Most are right, and a thousand fail at once while a group has no leader: a decoder looks first, which is quick.
    """
    decode, limits = decoder_of(method.item), method.route.fault if method.route is not None else _fits
    wrong: dict[int, InvalidItemError] = {}
    for position, item in enumerate(items):
        try:
            decode(encode(item))
            why = limits(item)
        except UNFIT:
            why = _fault(item, method.item)
        if why is not None:
            wrong[position] = InvalidItemError(why)
    return wrong


def _fits(item: Any) -> None:
    """Nothing is wrong with an item that has no place of its own."""


@functools.lru_cache(4_096)
def decoder_of(kind: Any) -> Callable[[bytes], object]:
    """Raises one of :data:`UNFIT` for what is no ``kind``."""
    return msgspec.msgpack.Decoder(kind).decode


def sequence_of(method: Method[Any, Any], items: Any) -> list[Any]:
    """The items of a batch, in a list of our own. Raises InvalidRequestError."""
    return sequence(method.name, items, method.item.__name__)


def sequence(name: str, given: object, what: str) -> list[Any]:
    """An argument, in a list of our own. Raises InvalidRequestError if it is none of several ``what``."""
    with suppress(*UNFIT):  # an object may raise anything when it is looked at
        if isinstance(given, Sequence) and not isinstance(given, str | bytes | bytearray | memoryview):
            return list(given)
    raise InvalidRequestError(f"{name}: expected a sequence of {what}, got {type(given).__name__}")


def argument(name: str, value: object, kind: Any) -> None:
    """Raise InvalidRequestError if an argument is not of this type."""
    why = fault(value, kind)
    if why is not None:
        raise InvalidRequestError(f"{name}: {why}")


FRESHNESS_MS_MAX: Final = 86_400_000
"""A day: who does not care how old the state is says so."""
_Freshness = Annotated[int, msgspec.Meta(ge=0, le=FRESHNESS_MS_MAX)]


def fresh(freshness_ms: int) -> int:
    """The argument of a read, checked. Raises InvalidRequestError."""
    if freshness_ms != 0:
        argument("freshness_ms", freshness_ms, _Freshness)
    return freshness_ms
