"""From the keys that an entry writes to the streams that want to hear of them.

A dictionary per length of prefix: a key costs one look-up for each length that occurs, and no work for the streams that
do not want it. Interests by broker are found by the brokers that an owner row names, now and before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from ..state.part import Origin
from .changes import Change, EntryChanges, broker_of
from .filters import Interest

Member = TypeVar("Member")


class _Interested(Generic[Member]):
    """Who wants keys with one prefix."""

    __slots__ = ("all", "by_broker")

    def __init__(self) -> None:
        self.all: dict[Member, None] = {}
        self.by_broker: dict[str, dict[Member, None]] = {}


class Index(Generic[Member]):
    """The interests of the members, in one group."""

    def __init__(self, group: bytes) -> None:
        self._group = group
        self._by_length: dict[int, dict[bytes, _Interested[Member]]] = {}

    def add(self, member: Member, interests: Iterable[Interest]) -> None:
        """Have a member hear of what it is interested in."""
        for interest in interests:
            prefix = self._prefix(interest)
            found = self._by_length.setdefault(len(prefix), {}).setdefault(prefix, _Interested())
            if interest.broker:
                found.by_broker.setdefault(interest.broker, {})[member] = None
            else:
                found.all[member] = None

    def remove(self, member: Member, interests: Iterable[Interest]) -> None:
        """Take back what :meth:`add` did."""
        for interest in interests:
            prefix = self._prefix(interest)
            by_prefix = self._by_length[len(prefix)]
            found = by_prefix[prefix]
            if interest.broker:
                members = found.by_broker[interest.broker]
                del members[member]
                if not members:
                    del found.by_broker[interest.broker]
            else:
                del found.all[member]
            if not found.all and not found.by_broker:
                del by_prefix[prefix]
                if not by_prefix:
                    del self._by_length[len(prefix)]

    def _prefix(self, interest: Interest) -> bytes:
        return self._group + bytes((interest.row,)) + interest.prefix

    def matches(self, changes: EntryChanges) -> dict[Member, list[Change]]:
        """The members that want changes of an entry, with those. What a slot move writes is no change."""
        found: dict[Member, dict[bytes, Change]] = {}
        entry = changes.entry
        if entry.origin == Origin.MIGRATION:
            return {}
        for writes in entry:
            if not writes:
                continue
            for length, by_prefix in self._by_length.items():
                for key in [key for key in writes if key[:length] in by_prefix]:
                    self._find(by_prefix[key[:length]], changes, key, writes[key], found)
        return {member: list(by_key.values()) for member, by_key in found.items()}

    def _find(
        self,
        interested: _Interested[Member],
        changes: EntryChanges,
        key: bytes,
        value: bytes | None,
        found: dict[Member, dict[bytes, Change]],
    ) -> None:
        members: list[Member] = [*interested.all]
        if interested.by_broker:
            for broker in changes.brokers(key, value):
                members += interested.by_broker.get(broker, ())
        if members:
            change = changes.change(key, value)
            for member in members:
                found.setdefault(member, {})[key] = change

    def wants(self, key: bytes, value: bytes) -> bool:
        """Whether any member is interested in a row as it is."""
        for length, by_prefix in self._by_length.items():
            interested = by_prefix.get(key[:length])
            if interested is not None and (
                interested.all or (interested.by_broker and broker_of(value) in interested.by_broker)
            ):
                return True
        return False
