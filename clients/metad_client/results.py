"""What a call on many items returns: one answer per item, kept in bulk.

A reply lists only the items that failed, so a result costs nothing per item until something is asked of it.
Where a call was cut into several requests, positions are those of the caller's sequence throughout.
"""

from __future__ import annotations

from collections.abc import Sequence
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

from .errors import MetadError, another, error_of_item

Reply = TypeVar("Reply")


class Piece(Generic[Reply]):
    """One request of a call: the items ``start`` to ``start + count`` and either their reply or why there is none."""

    __slots__ = ("count", "error", "reply", "start")

    def __init__(self, start: int, count: int, reply: Reply | None, error: MetadError | None) -> None:
        self.start = start
        self.count = count
        self.reply = reply
        self.error = error


class WriteResult:
    """The outcome of a batch of writes.

    ``revisions``: the entries that hold them, one per group that wrote and request that was sent.
    """

    def __init__(self, pieces: Sequence[Piece[Any]]) -> None:
        self.revisions: list[Revision] = []
        self._item_errors: list[tuple[int, ItemError]] = []  # (start of its request, error)
        self._lost_pieces: list[Piece[Any]] = []
        self._errors: dict[int, MetadError] | None = None
        for piece in pieces:
            if piece.error is not None:
                self._lost_pieces.append(piece)
                continue
            reply: Any = piece.reply
            self.revisions += reply.revisions
            if reply.errors:
                self._item_errors += [(piece.start, error) for error in reply.errors]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'ok' if self.ok else f'{len(self.errors)} errors'}>"

    @property
    def ok(self) -> bool:
        """True iff no item failed."""
        return not self._item_errors and not self._lost_pieces

    @property
    def errors(self) -> dict[int, MetadError]:
        """The items that failed: position in the caller's sequence -> error. Empty when all went well."""
        if self._errors is None:
            self._errors = {start + error.index: error_of_item(error) for start, error in self._item_errors}
            for piece in self._lost_pieces:
                assert piece.error is not None
                for index in range(piece.start, piece.start + piece.count):
                    self._errors[index] = another(piece.error)
            self._errors = dict(sorted(self._errors.items()))
        return self._errors

    def raise_for_error(self) -> None:
        """Raise the error of the first item that failed, with a note of how many did; return where none did."""
        if self.ok:
            return
        errors = self.errors
        index, error = next(iter(errors.items()))
        if len(errors) > 1 or index:
            error.add_note(f"item {index}; {len(errors)} items failed")
        raise error


class TakeoverResult(WriteResult):
    """The outcome of a batch of takeovers. By position of the caller's sequence:

    - ``previous_index[i]``: index in ``owners`` of item i's previous owner, -1 where there was none or i failed;
    - ``restored``: the stored properties where ``restore`` was asked for, otherwise empty.
    """

    def __init__(self, pieces: Sequence[Piece[SessionTakeoverReply]], items: Sequence[SessionTakeoverItem]) -> None:
        super().__init__(pieces)
        self._items = items
        self.owners: list[Owner]
        self.previous_index: list[int]
        self.restored: list[SessionProperties | None]
        if len(pieces) == 1 and pieces[0].reply is not None:
            reply = pieces[0].reply
            self.owners, self.previous_index, self.restored = reply.owners, reply.previous, reply.properties
        else:
            self.owners, self.previous_index, self.restored = [], [], []
            for piece in pieces:
                self._join(piece)
            if not any(piece.reply is not None and piece.reply.properties for piece in pieces):
                self.restored = []

    def _join(self, piece: Piece[SessionTakeoverReply]) -> None:
        reply = piece.reply
        if reply is None:
            self.previous_index += [-1] * piece.count
            self.restored += [None] * piece.count
            return
        # Owners are few: the same life of a broker gets one index, however many requests the call became.
        table = []
        for owner in reply.owners:
            if owner not in self.owners:
                self.owners.append(owner)
            table.append(self.owners.index(owner))
        table.append(-1)  # where -1 points
        self.previous_index += [table[index] for index in reply.previous]
        self.restored += reply.properties or [None] * piece.count

    def previous(self, i: int) -> Owner | None:
        """Who owned item i before; None where there was no session."""
        index = self.previous_index[i]
        return self.owners[index] if index >= 0 else None

    def session_present(self, i: int) -> bool:
        """Whether a stored session was taken over (MQTT's flag of that name)."""
        return self.previous_index[i] >= 0 and not self._items[i].clean_start

    def properties(self, i: int) -> SessionProperties | None:
        """What was stored, where ``restore`` was asked for and a session was present."""
        return self.restored[i] if self.restored else None


class Takeover(msgspec.Struct, frozen=True):
    """The outcome of one takeover. ``properties`` is what was stored, where ``restore`` was asked for."""

    previous: Owner | None
    session_present: bool
    properties: SessionProperties | None = None


class PutResult(WriteResult):
    """The outcome of a batch of puts. ``versions`` by position; 0 where the item failed."""

    def __init__(self, pieces: Sequence[Piece[KvPutReply]]) -> None:
        super().__init__(pieces)
        self.versions: list[int] = []
        for piece in pieces:
            self.versions += piece.reply.versions if piece.reply is not None else [0] * piece.count


class TransactResult(WriteResult):
    """The outcome of a batch of transactions. ``results`` by position; None where the item failed."""

    def __init__(self, pieces: Sequence[Piece[KvTransactReply]]) -> None:
        super().__init__(pieces)
        self.results: list[KvTransactionResult | None] = []
        for piece in pieces:
            self.results += piece.reply.results if piece.reply is not None else [None] * piece.count
