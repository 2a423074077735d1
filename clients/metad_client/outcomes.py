"""How a reply becomes its callers' outcomes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from metad_wire.errors import ERRORS
from metad_wire.messages import ItemError, Message, WriteReply
from metad_wire.methods import Method

from .errors import InternalError, InvalidRequestError, MetadError, error_of_item

Reply = TypeVar("Reply", bound=Message)
Outcome = TypeVar("Outcome")


def reply_of(method: Method[Any, Reply], payload: bytes) -> Reply:
    """Raises InternalError where the server's answer makes no sense: the caller's request is not to blame."""
    try:
        return method.decode_reply(payload)
    except InvalidRequestError as error:
        raise InternalError(str(error)) from None


def worth_a_retry(method: Method[Any, Any], reply: Any) -> MetadError | None:
    """The first item's error that a retry of the whole request may heal; None where there is none.

    A group whose leader went away answers its part with such errors while the others have done theirs. With the
    same identity those answer again what they did, and the rest is found out, or done.
    """
    if not method.mutates:
        return None
    for item in reply.errors:
        known = ERRORS.get(item.code)
        if known is not None and known.retryable:
            return error_of_item(item)
    return None


def with_errors(outcomes: Sequence[Outcome], errors: Sequence[ItemError]) -> list[Outcome | MetadError]:
    """The outcomes by position, with the errors of the items that failed in their places."""
    merged: list[Outcome | MetadError] = list(outcomes)
    for error in errors:
        merged[error.index] = error_of_item(error)
    return merged


def wrote(items: list[Any], reply: WriteReply) -> list[MetadError | None]:
    """Nothing to tell but that it is done."""
    return with_errors([None] * len(items), reply.errors)
