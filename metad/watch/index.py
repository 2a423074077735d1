"""From the keys that an entry writes to the streams that want to hear of them.

A dictionary per length of prefix: a key costs one look-up for each length that occurs, and no work for the streams that
do not want it. Most keys are wanted by nobody, and those are to cost one look-up only, however many lengths there are.
So the shortest lengths are *sieves*: they know the beginnings of all longer prefixes, too, and a key that begins like
none of these is looked at no further.

Interests by broker are found by the brokers that an owner row names, now and before.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final, Generic, TypeVar

from ..state.part import Origin, Writes
from .changes import KEY_AT, Change, EntryChanges, broker_of
from .filters import Interest

Member = TypeVar("Member")

_SIEVES_MAX: Final = 3
"""A sieve costs memory for each longer prefix, and a look-up for each key that passes the ones before."""


class _Interested(Generic[Member]):
    """Who wants keys with one prefix. ``some``: members that may want a key for two reasons, one of them a broker."""

    __slots__ = ("all", "by_broker", "some")

    def __init__(self) -> None:
        self.all: dict[Member, None] = {}
        self.some: dict[Member, None] | None = None
        self.by_broker: dict[str, dict[Member, None]] | None = None

    @property
    def empty(self) -> bool:
        """Whether nobody is left."""
        return not self.all and not self.some and not self.by_broker


class _Length(Generic[Member]):
    """The prefixes of one length."""

    __slots__ = ("by_prefix", "length", "stems")

    def __init__(self, length: int) -> None:
        self.length = length
        self.by_prefix: dict[bytes, _Interested[Member]] = {}
        self.stems: dict[bytes, int] | None = None
        """Of a sieve: how many prefixes, of this length and longer ones, begin so."""


class Index(Generic[Member]):
    """The interests of the members, in one group."""

    def __init__(self, group: bytes) -> None:
        self._group = group
        self._lengths: list[_Length[Member]] = []  # ascending

    def add(self, member: Member, interests: Sequence[Interest]) -> None:
        """Have a member hear of what it is interested in: no interest includes another."""
        twice = any(interest.broker for interest in interests)
        for interest in interests:
            prefix = self._prefix(interest)
            by_prefix = self._of(len(prefix)).by_prefix
            found = by_prefix.get(prefix)
            if found is None:
                found = by_prefix[prefix] = _Interested()
                self._count(prefix, 1)
            if interest.broker:
                if found.by_broker is None:
                    found.by_broker = {}
                found.by_broker.setdefault(interest.broker, {})[member] = None
            elif twice:
                if found.some is None:
                    found.some = {}
                found.some[member] = None
            else:
                found.all[member] = None

    def remove(self, member: Member, interests: Sequence[Interest]) -> None:
        """Take back what :meth:`add` did."""
        for interest in interests:
            prefix = self._prefix(interest)
            of_length = self._of(len(prefix))
            found = of_length.by_prefix[prefix]
            if interest.broker:
                assert found.by_broker is not None
                members = found.by_broker[interest.broker]
                del members[member]
                if not members:
                    del found.by_broker[interest.broker]
            elif found.some is not None and member in found.some:
                del found.some[member]
            else:
                del found.all[member]
            if found.empty:
                del of_length.by_prefix[prefix]
                self._count(prefix, -1)
                if not of_length.by_prefix:
                    self._lengths.remove(of_length)

    def _prefix(self, interest: Interest) -> bytes:
        return self._group + bytes((interest.row,)) + interest.prefix

    def _of(self, length: int) -> _Length[Member]:
        """The prefixes of this length. The first lengths beyond whole rows become sieves."""
        for known in self._lengths:
            if known.length == length:
                return known
        new: _Length[Member] = _Length(length)
        if length > KEY_AT and sum([known.stems is not None for known in self._lengths]) < _SIEVES_MAX:
            new.stems = {}
            for known in self._lengths:
                if known.length > length:
                    for prefix in known.by_prefix:
                        new.stems[prefix[:length]] = new.stems.get(prefix[:length], 0) + 1
        insort(self._lengths, new, key=attrgetter("length"))
        return new

    def _count(self, prefix: bytes, by: int) -> None:
        """A prefix is there from now on (1), or no longer (-1)."""
        for known in self._lengths:
            if known.stems is not None and known.length <= len(prefix):
                stem = prefix[: known.length]
                count = known.stems.get(stem, 0) + by
                if count:
                    known.stems[stem] = count
                else:
                    del known.stems[stem]

    # --- looking -----------------------------------------------------------------------------------------

    def matches(
        self, changes: EntryChanges, parts: Iterable[tuple[Iterable[bytes], Writes]] | None = None
    ) -> dict[Member, list[Change]]:
        """The members that want changes of an entry, with those. What a slot move writes is no change. ``parts`` are
        keys of the entry's writes that are to be looked at, and no others."""
        entry = changes.entry
        found: dict[Member, list[Change]] = {}
        if entry.origin == Origin.MIGRATION:
            return found
        twice: dict[Member, dict[bytes, Change]] = {}
        make = changes.change
        for keys, writes in zip(entry, entry, strict=True) if parts is None else parts:
            for of_length in self._lengths:
                length, by_prefix, stems = of_length.length, of_length.by_prefix, of_length.stems
                if stems is not None:
                    keys = [key for key in keys if key[:length] in stems]
                    if not keys:
                        break
                for key in [key for key in keys if key[:length] in by_prefix]:
                    interested = by_prefix[key[:length]]
                    value = writes[key]
                    if interested.all:
                        change = make(key, value)
                        for member in interested.all:
                            if member in found:
                                found[member].append(change)
                            else:
                                found[member] = [change]
                    if interested.some or interested.by_broker:
                        for member in _some(interested, changes, key, value):
                            twice.setdefault(member, {})[key] = make(key, value)
        for member, by_key in twice.items():
            found[member] = [*by_key.values()]
        return found

    def wants(self, key: bytes, value: bytes) -> bool:
        """Whether any member is interested in a row as it is."""
        for of_length in self._lengths:
            interested = of_length.by_prefix.get(key[: of_length.length])
            if interested is not None and (
                interested.all or interested.some or (interested.by_broker and broker_of(value) in interested.by_broker)
            ):
                return True
        return False


def _some(interested: _Interested[Member], changes: EntryChanges, key: bytes, value: bytes | None) -> Iterable[Member]:
    """Members that may want a key for two reasons, as far as these are here."""
    yield from interested.some or ()
    if interested.by_broker:
        for broker in changes.brokers(key, value):
            yield from interested.by_broker.get(broker, ())
