"""The items of a request that are refused one by one, and how the reply to the other items becomes the reply to all.

An item is refused for what it is, whatever is stored: a field of a wrong type, a key or a value that is too long, or a
record that the client may not have. The other items are carried out as if they had come alone. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from .errors import InvalidItemError, MetadError
from .messages import ItemError, Message

Reply = TypeVar("Reply", bound=Message)


class Refused:
    """``reasons`` says by position why items of a request of ``count`` items are refused: as ``invalid_item``, if it is
    a text."""

    __slots__ = ("_count", "_places", "_reasons")

    def __init__(self, count: int, reasons: Mapping[int, str | MetadError]) -> None:
        self._count = count
        self._reasons = dict(reasons)
        self._places = [position for position in range(count) if position not in self._reasons]

    def __len__(self) -> int:
        return len(self._reasons)

    def names(self) -> Iterator[str]:
        """Of the errors."""
        for why in self._reasons.values():
            yield InvalidItemError.name if isinstance(why, str) else why.name

    def and_also(self, reasons: Mapping[int, str | MetadError]) -> Refused:
        """These, and further ones by their positions among the items that were left."""
        more = {self._places[position]: why for position, why in reasons.items()}
        return Refused(self._count, {**self._reasons, **more})

    def widened(self, reply: Reply) -> Reply:
        """The reply to the whole request, where ``reply`` is the one to the items that were left."""
        answers: Any = reply
        errors = [msgspec.structs.replace(error, index=self._places[error.index]) for error in answers.errors]
        for position, why in self._reasons.items():
            error = InvalidItemError(why) if isinstance(why, str) else why
            errors.append(ItemError(position, error.code, error.message))
        changed: dict[str, Any] = {"errors": sorted(errors, key=lambda error: error.index)}
        for name, missing in reply.columns.items():
            column: Sequence[Any] = getattr(reply, name)
            if len(column) == len(self._places):  # otherwise it was not asked for
                values = [missing] * self._count
                for position, value in zip(self._places, column, strict=True):
                    values[position] = value
                changed[name] = values
        return msgspec.structs.replace(reply, **changed)

    def narrowed(self, reply: Reply) -> Reply:
        """What :meth:`widened` was given."""
        answers: Any = reply
        index = {position: at for at, position in enumerate(self._places)}
        errors = [
            msgspec.structs.replace(error, index=index[error.index]) for error in answers.errors if error.index in index
        ]
        changed: dict[str, Any] = {"errors": errors}
        for name in reply.columns:
            column: Sequence[Any] = getattr(reply, name)
            if len(column) == self._count:
                changed[name] = [column[position] for position in self._places]
        return msgspec.structs.replace(reply, **changed)


def without(items: Sequence[Any], reasons: Mapping[int, object]) -> list[Any]:
    """The items that are not refused."""
    return [item for position, item in enumerate(items) if position not in reasons]


def narrowed(body: Any, refused: Refused | None, reasons: Mapping[int, str | MetadError]) -> tuple[Any, Refused]:
    """A body without the items at these positions; they are among those that are refused. ``refused``: others that are
    so already."""
    fields = {name: getattr(body, name) for name in body.__struct_fields__}
    fields["items"] = without(body.items, reasons)
    return type(body)(**fields), Refused(len(body.items), reasons) if refused is None else refused.and_also(reasons)
