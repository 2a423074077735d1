"""What a call on many items returns: one answer per item, kept in bulk.

A reply lists only the items that failed, so a result costs nothing per item until something is asked of it.
If a call became several requests, because it is long or its items belong to several groups, positions are still those
of the caller's sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from metad_wire.messages import (
    ItemError,
    KvPutReply,
    KvTransactionResult,
    KvTransactReply,
    Owner,
    Revision,
    SessionProperties,
    SessionTakeoverItem,
    SessionTakeoverReply,
)

from .errors import InternalError, MetadError, another, error_of_item

Reply = TypeVar("Reply")
Value = TypeVar("Value")


def newest(revisions: Sequence[Revision]) -> list[Revision]:
    """One of each group: the highest."""
    highest: dict[str, Revision] = {}
    for revision in revisions:
        known = highest.get(revision.group)
        if known is None or known.index < revision.index:
            highest[revision.group] = revision
    return list(highest.values())


class Piece(Generic[Reply]):
    """One request of a call: the items at the positions ``where`` (by default ``count`` from ``start`` on), and either
    their reply or why there is none."""

    __slots__ = ("count", "error", "reply", "start", "where")

    def __init__(
        self, start: int, count: int, reply: Reply | None, error: MetadError | None, where: Sequence[int] | None = None
    ) -> None:
        self.start = start
        self.count = count
        self.reply = reply
        self.error = error
        self.where = range(start, start + count) if where is None else where

    def within(self, positions: Sequence[int]) -> Piece[Reply]:
        """The piece of a longer call, whose items at ``positions`` were this call's."""
        where = [positions[i] for i in self.where]
        return Piece(where[0], self.count, self.reply, self.error, where)


def by_position(
    pieces: Sequence[Piece[Reply]], values_of: Callable[[Reply], list[Value]], missing: Value
) -> list[Value]:
    """What the replies say of their items, by position of the caller's sequence; ``missing`` if there is no reply.
    Raises InternalError if a reply does not fit its request."""
    if len(pieces) == 1 and (reply := pieces[0].reply) is not None:
        return values_of(reply)
    merged = [missing] * sum(piece.count for piece in pieces)
    for piece in pieces:
        if piece.reply is not None:
            values = values_of(piece.reply)
            if len(values) != piece.count:
                raise InternalError(f"a reply of {len(values)} values to a request of {piece.count} items")
            for position, value in zip(piece.where, values, strict=True):
                merged[position] = value
    return merged


class WriteResult:
    """The outcome of a batch of writes.

    ``revisions``: the entries that hold them, one per group that wrote and request that was sent.
    """

    def __init__(self, pieces: Sequence[Piece[Any]]) -> None:
        self.revisions: list[Revision] = []
        self._item_errors: list[tuple[Sequence[int], ItemError]] = []  # (positions of its request's items, error)
        self._lost_pieces: list[Piece[Any]] = []
        self._errors: dict[int, MetadError] | None = None
        for piece in pieces:
            if piece.error is not None:
                self._lost_pieces.append(piece)
                continue
            reply: Any = piece.reply
            self.revisions += reply.revisions
            if reply.errors:
                self._item_errors += [(piece.where, error) for error in reply.errors]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'ok' if self.ok else f'{len(self.errors)} errors'}>"

    @property
    def ok(self) -> bool:
        """True iff no item failed."""
        return not self._item_errors and not self._lost_pieces

    @property
    def errors(self) -> dict[int, MetadError]:
        """The items that failed: position in the caller's sequence -> error. Empty if none did."""
        if self._errors is None:
            self._errors = {where[error.index]: error_of_item(error) for where, error in self._item_errors}
            for piece in self._lost_pieces:
                assert piece.error is not None
                for index in piece.where:
                    self._errors[index] = another(piece.error)
            self._errors = dict(sorted(self._errors.items()))
        return self._errors

    def raise_for_error(self) -> None:
        """Raise the error of the first item that failed, with a note of how many did; return if none did."""
        if self.ok:
            return
        errors = self.errors
        index, error = next(iter(errors.items()))
        if len(errors) > 1 or index:
            error.add_note(f"item {index}; {len(errors)} items failed")
        raise error


class TakeoverResult(WriteResult):
    """The outcome of a batch of takeovers. By position of the caller's sequence:

    - ``previous_index[i]``: index in ``owners`` of item i's previous owner, -1 if there was none or i failed;
    - ``restored``: the stored properties if ``restore`` was asked for, otherwise empty.
    """

    def __init__(self, pieces: Sequence[Piece[SessionTakeoverReply]], items: Sequence[SessionTakeoverItem]) -> None:
        super().__init__(pieces)
        self._items = items
        self.owners: list[Owner]
        self.previous_index: list[int]
        if len(pieces) == 1 and pieces[0].reply is not None:
            self.owners, self.previous_index = pieces[0].reply.owners, pieces[0].reply.previous
        else:
            self.owners = []
            self.previous_index = by_position(pieces, self._renumbered, -1)
        self.restored: list[SessionProperties | None] = []
        if any(piece.reply is not None and piece.reply.properties for piece in pieces):
            self.restored = by_position(pieces, lambda reply: reply.properties or [None] * len(reply.previous), None)

    def _renumbered(self, reply: SessionTakeoverReply) -> list[int]:
        """``previous`` as indexes into the list of owners that all replies share. Owners are few: one life of a broker
        has one index, however many requests the call became."""
        table = []
        for owner in reply.owners:
            if owner not in self.owners:
                self.owners.append(owner)
            table.append(self.owners.index(owner))
        table.append(-1)  # what index -1 finds
        return [table[index] for index in reply.previous]

    def previous(self, i: int) -> Owner | None:
        """The previous owner of item i; None if there was no session."""
        index = self.previous_index[i]
        return self.owners[index] if index >= 0 else None

    def session_present(self, i: int) -> bool:
        """Whether a stored session was taken over (MQTT's flag of that name)."""
        return self.previous_index[i] >= 0 and not self._items[i].clean_start

    def properties(self, i: int) -> SessionProperties | None:
        """What was stored, if ``restore`` was asked for and a session was present."""
        return self.restored[i] if self.restored else None


class Takeover(msgspec.Struct, frozen=True):
    """The outcome of one takeover. ``properties`` is what was stored, if ``restore`` was asked for."""

    previous: Owner | None
    session_present: bool
    properties: SessionProperties | None = None


class PutResult(WriteResult):
    """The outcome of a batch of puts. ``versions`` by position; 0 if the item failed."""

    def __init__(self, pieces: Sequence[Piece[KvPutReply]]) -> None:
        super().__init__(pieces)
        self.versions: list[int] = by_position(pieces, lambda reply: reply.versions, 0)


class TransactResult(WriteResult):
    """The outcome of a batch of transactions. ``results`` by position; None if the item failed."""

    def __init__(self, pieces: Sequence[Piece[KvTransactReply]]) -> None:
        super().__init__(pieces)
        self.results: list[KvTransactionResult | None] = by_position(pieces, lambda reply: reply.results, None)
