"""From the keys that an entry writes to the streams that want to hear of them.

A dictionary per length of prefix: a key costs one look-up for each length that occurs, and no work for the streams that
do not want it. Most keys are wanted by nobody, and those are to cost one look-up only, however many lengths there are.
So some lengths are *sieves*, each twice the one before: they know the beginnings of all longer prefixes, too, and a key
that begins like none of these, or is shorter, is looked at no further. Which lengths are sieves does not depend on what
is there: so a prefix that comes or goes costs the same whatever else is watched.

Interests by broker are found by the brokers that an owner row names, now and before.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from operator import attrgetter
from typing import Final, Generic, TypeVar

from ..state.core.part import Origin, Writes
from .changes import KEY_AT, Change, EntryChanges, brokers_in
from .filters import Interest

Member = TypeVar("Member")

_SIEVES: Final = tuple([KEY_AT + (4 << step) for step in range(11)])
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
        self.stems: dict[bytes, int] | None = {} if length in _SIEVES else None
        """Of a sieve: how many prefixes, of this length and longer ones, begin so."""

    @property
    def empty(self) -> bool:
        """Whether nothing is left to be looked for."""
        return not self.by_prefix and not self.stems


class Index(Generic[Member]):
    """The interests of the members, in one group."""

    def __init__(self, group: bytes) -> None:
        self._group = group
        self._lengths: list[_Length[Member]] = []  # ascending
        self._by_length: dict[int, _Length[Member]] = {}

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
                self._drop_if_empty(of_length)
                self._count(prefix, -1)

    def _prefix(self, interest: Interest) -> bytes:
        return self._group + bytes((interest.row,)) + interest.prefix

    def _of(self, length: int) -> _Length[Member]:
        """The prefixes of this length."""
        of_length = self._by_length.get(length)
        if of_length is None:
            of_length = self._by_length[length] = _Length(length)
            insort(self._lengths, of_length, key=attrgetter("length"))
        return of_length

    def _drop_if_empty(self, of_length: _Length[Member]) -> None:
        if of_length.empty:
            del self._by_length[of_length.length]
            self._lengths.remove(of_length)

    def _count(self, prefix: bytes, by: int) -> None:
        """A prefix is there from now on (1), or no longer (-1)."""
        for length in _SIEVES:
            if length > len(prefix):
                break
            sieve = self._of(length)
            assert sieve.stems is not None
            stem = prefix[:length]
            count = sieve.stems.get(stem, 0) + by
            if count:
                sieve.stems[stem] = count
            else:
                del sieve.stems[stem]
                self._drop_if_empty(sieve)

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
            for of_length, following in zip_longest(self._lengths, self._lengths[1:]):
                length, by_prefix, stems = of_length.length, of_length.by_prefix, of_length.stems
                if not by_prefix and following is not None and following.stems is not None:
                    continue  # what passes the sieve that follows passes this one
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
            stem = key[: of_length.length]
            if of_length.stems is not None and stem not in of_length.stems:
                break
            interested = of_length.by_prefix.get(stem)
            if interested is not None and (
                interested.all
                or interested.some
                or (
                    interested.by_broker
                    and not interested.by_broker.keys().isdisjoint(brokers_in(key[KEY_AT - 1], value))
                )
            ):
                return True
        return False


def _some(interested: _Interested[Member], changes: EntryChanges, key: bytes, value: bytes | None) -> Iterable[Member]:
    """Members that may want a key for two reasons, as far as these are here."""
    yield from interested.some or ()
    if interested.by_broker:
        for broker in changes.brokers(key, value):
            yield from interested.by_broker.get(broker, ())
