"""Who subscribes to what, with the groups of shared subscriptions: what a broker asks for each message."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar, cast

import msgspec

from metad_wire.text.topics import check_filter, subscription

from .trie import FilterTrie

S = TypeVar("S", bound=Hashable)
Options = TypeVar("Options")


class SharedGroup(NamedTuple, Generic[S, Options]):
    """The members of a group that share a filter, each with its options: one of them gets the message."""

    name: str
    filter: str
    members: Mapping[S, Options]


class Matched(NamedTuple, Generic[S, Options]):
    """Who gets a message. A client is in ``subscribers`` once for each of its filters that match, as MQTT wants it to
    be told of the options of all of them."""

    subscribers: list[tuple[S, Options]]
    groups: list[SharedGroup[S, Options]]


class _Entry(msgspec.Struct, gc=False):
    """Who subscribes to one filter. Most filters have one subscriber, who needs no dictionary."""

    subscriber: Any = None
    options: Any = None
    more: dict[Any, Any] | None = None
    """All subscribers, once there are several; it stays when they become fewer."""
    groups: dict[str, SharedGroup[Any, Any]] | None = None

    def is_empty(self) -> bool:
        return self.subscriber is None and not self.more and not self.groups


class Subscribers(Generic[S, Options]):
    """Subscriptions of many clients. A subscriber is what identifies one (a name, not None); options are what the
    broker wants to know of its subscription."""

    def __init__(self) -> None:
        self._entries = FilterTrie[_Entry]()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, filter_: str, subscriber: S, options: Options) -> bool:
        """Subscribe, or replace the options of a subscription. Returns whether it is new. Raises InvalidRequestError if
        the filter is not right."""
        check_filter(filter_)
        group, plain = subscription(filter_)
        entry = self._entries.get(plain)
        if entry is None:
            entry = _Entry()
            self._entries.put(plain, entry)
        is_new = _add(entry, subscriber, options) if group is None else _join(entry, group, plain, subscriber, options)
        self._count += is_new
        return is_new

    def remove(self, filter_: str, subscriber: S) -> bool:
        """End a subscription. Returns whether there was one."""
        group, plain = subscription(filter_)
        entry = self._entries.get(plain)
        if entry is None:
            return False
        was_there = _remove(entry, subscriber) if group is None else _leave(entry, group, subscriber)
        if was_there:
            self._count -= 1
            if entry.is_empty():
                self._entries.pop(plain)
        return was_there

    def match(self, topic: str) -> Matched[S, Options]:
        """Who gets a message of this topic, whose name has to be right."""
        subscribers: list[tuple[S, Options]] = []
        groups: list[SharedGroup[S, Options]] = []
        for entry in self._entries.match(topic):
            if entry.subscriber is not None:
                subscribers.append((entry.subscriber, entry.options))
            elif entry.more:
                subscribers += entry.more.items()
            if entry.groups:
                groups += entry.groups.values()
        return Matched(subscribers, groups)


def _add(entry: _Entry, subscriber: Any, options: Any) -> bool:
    if entry.more is None:
        if entry.subscriber is None or entry.subscriber == subscriber:
            is_new = entry.subscriber is None
            entry.subscriber, entry.options = subscriber, options
            return is_new
        entry.more = {entry.subscriber: entry.options}
        entry.subscriber = entry.options = None
    is_new = subscriber not in entry.more
    entry.more[subscriber] = options
    return is_new


def _remove(entry: _Entry, subscriber: Any) -> bool:
    if entry.more is not None:
        if subscriber not in entry.more:
            return False
        del entry.more[subscriber]
        return True
    if entry.subscriber is None or entry.subscriber != subscriber:
        return False
    entry.subscriber = entry.options = None
    return True


def _join(entry: _Entry, name: str, filter_: str, subscriber: Any, options: Any) -> bool:
    if entry.groups is None:
        entry.groups = {}
    group = entry.groups.get(name)
    if group is None:
        group = entry.groups[name] = SharedGroup(name, filter_, {})
    members = cast("dict[Any, Any]", group.members)
    is_new = subscriber not in members
    members[subscriber] = options
    return is_new


def _leave(entry: _Entry, name: str, subscriber: Any) -> bool:
    group = (entry.groups or {}).get(name)
    if group is None or subscriber not in group.members:
        return False
    members = cast("dict[Any, Any]", group.members)
    del members[subscriber]
    if not members:
        assert entry.groups is not None  # the group is in it
        del entry.groups[name]
    return True
