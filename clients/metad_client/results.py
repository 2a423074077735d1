"""What a call on many items returns: one answer per item, kept in bulk.

A reply lists only the items that failed, so a result costs nothing per item until something is asked of it.
If a call became several requests, because it is long or its items belong to several groups, positions are still those
of the caller's sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from metad_wire.faults import UNFIT, fault
from metad_wire.messages import (
    InflightState,
    KvPutReply,
    KvTransactionResult,
    KvTransactReply,
    Owner,
    Revision,
    SessionProperties,
    SessionTakeoverItem,
    SessionTakeoverReply,
    Subscribed,
    TableRecord,
    TableTransactReply,
)
from metad_wire.tables.consumer import ConsumerJoinReply
from metad_wire.tables.lease import LeaseGrantReply
from metad_wire.tables.sequence import SequenceAddReply
from metad_wire.tables.subscription import SubscriptionAddReply

from .errors import InternalError, InvalidItemError, InvalidRequestError, MetadError, another, error_of_item

Reply = TypeVar("Reply")
Value = TypeVar("Value")


def newest(revisions: Sequence[Revision]) -> list[Revision]:
    """One of each group: the highest. Raises InvalidRequestError."""
    highest: dict[str, Revision] = {}
    try:
        for revision in revisions:
            known = highest.get(revision.group)
            if known is None or known.index < revision.index:
                highest[revision.group] = revision
    except UNFIT:
        what = fault(list(revisions) if isinstance(revisions, Iterable) else revisions, list[Revision])
        raise InvalidRequestError(f"min_revisions: {what or 'its items cannot be compared'}") from None
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


class _Errors:
    """Those of the pieces of a call."""

    def __init__(self, pieces: Sequence[Piece[Any]]) -> None:
        self._pieces = [piece for piece in pieces if piece.reply is None or piece.reply.errors]
        self._by_position: dict[int, MetadError] | None = None

    @property
    def by_position(self) -> dict[int, MetadError]:
        """Position in the caller's sequence -> error."""
        if self._by_position is None:
            found: dict[int, MetadError] = {}
            for piece in self._pieces:
                if piece.error is not None:
                    found.update((index, another(piece.error)) for index in piece.where)
                elif piece.reply is not None:
                    found.update((piece.where[item.index], error_of_item(item)) for item in piece.reply.errors)
            self._by_position = {index: _placed(error, index) for index, error in sorted(found.items())}
        return self._by_position

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def raise_first(self) -> None:
        """Raise the first, with a note of how many there are; return if there are none."""
        if not self:
            return
        errors = self.by_position
        index, error = next(iter(errors.items()))
        if len(errors) > 1 or index:
            error.add_note(f"item {index}; {len(errors)} items failed")
        raise error


def _placed(error: MetadError, index: int) -> MetadError:
    """The error with the position in its text, if that is about what the caller passed."""
    return InvalidItemError(f"{error.message} (item {index})") if isinstance(error, InvalidItemError) else error


class _PerItem:
    """A result that has an answer for each item of the caller's sequence."""

    def __init__(self, pieces: Sequence[Piece[Any]]) -> None:
        self._errors = _Errors(pieces)

    @property
    def ok(self) -> bool:
        """True iff no item failed."""
        return not self._errors

    @property
    def errors(self) -> dict[int, MetadError]:
        """The items that failed: position in the caller's sequence -> error. Empty if none did."""
        return self._errors.by_position

    def raise_for_error(self) -> None:
        """Raise the error of the first item that failed, with a note of how many did; return if none did."""
        self._errors.raise_first()


class ReadResult(_PerItem, list[Value]):
    """What was read, by position: a list. A key that could not be read, for example because its group has no leader or
    no record can have it, has the value of an absent record, and an error. A program that must not mistake one for the
    other calls :meth:`raise_for_error` first, or looks at ``errors``."""

    def __init__(self, pieces: Sequence[Piece[Any]], values_of: Callable[[Any], list[Value]], missing: Value) -> None:
        _PerItem.__init__(self, pieces)
        list.__init__(self, by_position(pieces, values_of, missing))


class RuleResult(_PerItem, list[Value | None]):
    """What a batch of a verb with rules did, by position: a list. None for an item that failed."""

    def __init__(self, found: Sequence[Value | MetadError]) -> None:
        _PerItem.__init__(
            self, [Piece(at, 1, None, error) for at, error in enumerate(found) if isinstance(error, MetadError)]
        )
        list.__init__(self, [None if isinstance(one, MetadError) else one for one in found])


class WriteResult(_PerItem):
    """The outcome of a batch of writes.

    ``revisions``: the entries that hold them, one per group that wrote and request that was sent.
    """

    def __init__(self, pieces: Sequence[Piece[Any]]) -> None:
        super().__init__(pieces)
        self.revisions: list[Revision] = []
        for piece in pieces:
            if piece.reply is not None:
                self.revisions += piece.reply.revisions

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'ok' if self.ok else f'{len(self.errors)} errors'}>"


def attachment_of(reply: SessionTakeoverReply) -> int:
    """What a takeover is called by what its broker says later of the connection: its revision."""
    if len(reply.revisions) != 1:
        raise InternalError(f"a reply of {len(reply.revisions)} revisions to a takeover in one group")
    return reply.revisions[0].index


class TakeoverResult(WriteResult):
    """The outcome of a batch of takeovers. By position of the caller's sequence:

    - ``previous_index[i]``: index in ``owners`` of item i's previous owner, -1 if there was none or i failed;
    - ``restored``: the stored properties if ``restore`` was asked for, otherwise empty;
    - ``restored_subscriptions`` and ``restored_inflight``: the same of ``restore_parts``.
    """

    def __init__(self, pieces: Sequence[Piece[SessionTakeoverReply]], items: Sequence[SessionTakeoverItem]) -> None:
        super().__init__(pieces)
        self._pieces = pieces
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
        self.restored_subscriptions: list[list[Subscribed] | None] = []
        self.restored_inflight: list[list[InflightState] | None] = []
        if any(piece.reply is not None and piece.reply.subscriptions for piece in pieces):
            self.restored_subscriptions = by_position(
                pieces, lambda reply: reply.subscriptions or [None] * len(reply.previous), None
            )
            self.restored_inflight = by_position(
                pieces, lambda reply: reply.inflight or [None] * len(reply.previous), None
            )

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

    @property
    def attachments(self) -> list[int]:
        """By position: what a disconnect of this connection says. 0 if the item failed."""
        found = by_position(self._pieces, lambda reply: [attachment_of(reply)] * len(reply.previous), 0)
        for failed in self.errors:
            found[failed] = 0
        return found

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

    def subscriptions(self, i: int) -> Sequence[Subscribed]:
        """The filters of the client, if ``restore_parts`` was asked for and a session was present."""
        return (self.restored_subscriptions[i] if self.restored_subscriptions else None) or ()

    def inflight(self, i: int) -> Sequence[InflightState]:
        """What is in flight for the client, if ``restore_parts`` was asked for and a session was present."""
        return (self.restored_inflight[i] if self.restored_inflight else None) or ()


class Takeover(msgspec.Struct, frozen=True):
    """The outcome of one takeover. ``properties`` is what was stored, if ``restore`` was asked for; ``subscriptions``
    and ``inflight``, if ``restore_parts`` was. ``attachment`` is what a disconnect of this connection says."""

    previous: Owner | None
    session_present: bool
    properties: SessionProperties | None = None
    subscriptions: Sequence[Subscribed] = ()
    inflight: Sequence[InflightState] = ()
    attachment: int = 0


class SubscribeResult(WriteResult):
    """The outcome of a batch of subscriptions. ``created`` by position: whether the client did not have the filter
    before; False if the item failed."""

    def __init__(self, pieces: Sequence[Piece[SubscriptionAddReply]]) -> None:
        super().__init__(pieces)
        self.created: list[bool] = by_position(pieces, lambda reply: reply.created, False)


class PutResult(WriteResult):
    """The outcome of a batch of puts. ``versions`` by position; 0 if the item failed."""

    def __init__(self, pieces: Sequence[Piece[KvPutReply]]) -> None:
        super().__init__(pieces)
        self.versions: list[int] = by_position(pieces, lambda reply: reply.versions, 0)


class GrantResult(WriteResult):
    """The outcome of a batch of grants. ``leases``: their names by position; None if the item failed."""

    def __init__(self, pieces: Sequence[Piece[LeaseGrantReply]]) -> None:
        super().__init__(pieces)
        self.leases: list[str | None] = by_position(pieces, lambda reply: reply.leases, None)


class JoinResult(WriteResult):
    """The outcome of a batch of joins. By position: ``members``, their ids, None if the item failed; and ``joined``,
    the generations that they are in or wait for, 0 if it failed."""

    def __init__(self, pieces: Sequence[Piece[ConsumerJoinReply]]) -> None:
        super().__init__(pieces)
        self.members: list[str | None] = by_position(pieces, lambda reply: reply.members, None)
        self.joined: list[int] = by_position(pieces, lambda reply: reply.joined, 0)


class AddResult(WriteResult):
    """The outcome of a batch of additions. ``values`` by position, behind the item; 0 if it failed."""

    def __init__(self, pieces: Sequence[Piece[SequenceAddReply]]) -> None:
        super().__init__(pieces)
        self.values: list[int] = by_position(pieces, lambda reply: reply.values, 0)


class TransactionResult(NamedTuple):
    """What a transaction did."""

    succeeded: bool
    """Every compare held."""
    versions: list[int]
    """Of its operations by position: the version that was written; 0 for a deletion."""
    found: list[TableRecord[Any] | None]
    """Answers ``reads`` by position; None if there is no record."""


class TablesTransactResult(WriteResult):
    """The outcome of a batch of transactions over declared tables. ``results`` by position; None if the item failed."""

    def __init__(self, pieces: Sequence[Piece[TableTransactReply]], decode: Sequence[Callable[[Any], Any]]) -> None:
        super().__init__(pieces)
        found: list[Any] = by_position(pieces, lambda reply: reply.results, None)
        self.results: list[TransactionResult | None] = [
            None if one is None else decoded(one) for decoded, one in zip(decode, found, strict=True)
        ]


class TransactResult(WriteResult):
    """The outcome of a batch of transactions. ``results`` by position; None if the item failed."""

    def __init__(self, pieces: Sequence[Piece[KvTransactReply]]) -> None:
        super().__init__(pieces)
        self.results: list[KvTransactionResult | None] = by_position(pieces, lambda reply: reply.results, None)
