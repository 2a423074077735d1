"""Topic names and topic filters as MQTT 3.1.1 and 5 define them (sections 4.7 and 4.8.2 of both texts).

A topic name is levels of text with "/" between them, and a level may be empty. A filter may have "+" for any one level,
and "#" as its last level for all levels from there on, also for none. A filter that begins with a wildcard matches no
topic that begins with "$". ``$share/GROUP/FILTER`` is a shared subscription: FILTER decides what it matches, and one
member of GROUP gets each message.

MQTT bounds the levels by the length alone. metad takes fewer: each level is work for every message that is published.

The functions that end with ``_fault`` are the one grammar. Fields of messages name theirs by their kind
(:mod:`metad_wire.text.fields`), and :mod:`metad_wire.text.fields` checks messages by it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ..errors import InvalidRequestError

TOPIC_BYTES_MAX: Final = 65_535
"""Of a topic name or a filter, UTF-8 encoded: its length has two bytes in an MQTT packet."""
LEVELS_MAX: Final = 256
"""Of a topic name or a filter. Brokers that people run take 128 or 200."""
SEPARATOR: Final = "/"
ANY_LEVEL: Final = "+"
ALL_BELOW: Final = "#"
WILDCARDS: Final = frozenset((ANY_LEVEL, ALL_BELOW))
_SHARE: Final = "$share/"


class Subscription(NamedTuple):
    """A filter as a client sends it, in its parts. ``group`` is None if the subscription is not shared."""

    group: str | None
    filter: str


def topic_fault(topic: str) -> str | None:
    """Why nobody may publish to this topic name; None if it is right."""
    fault = _text_fault(topic, "a topic")
    if fault is None and (ANY_LEVEL in topic or ALL_BELOW in topic):
        return "a topic has no wildcards: + and # are for filters"
    return fault


def filter_fault(filter_: str) -> str | None:
    """Why nobody may subscribe to this filter, which may be a shared one; None if it is right."""
    fault = _text_fault(filter_, "a filter")
    if fault is not None:
        return fault
    if filter_.startswith(_SHARE):
        group, slash, filter_ = filter_[len(_SHARE) :].partition(SEPARATOR)
        if not group:
            return "a shared filter names its group: $share/GROUP/FILTER"
        if ANY_LEVEL in group or ALL_BELOW in group:
            return "the group of a shared filter has no wildcards"
        if not slash or not filter_:
            return "a shared filter has a filter behind its group: $share/GROUP/FILTER"
    if ANY_LEVEL not in filter_ and ALL_BELOW not in filter_:
        return None
    levels = filter_.split(SEPARATOR)
    if ALL_BELOW in levels[:-1]:
        return "# is only allowed as the last level of a filter"
    for level in levels:
        if len(level) > 1 and (ANY_LEVEL in level or ALL_BELOW in level):
            return "a wildcard is a whole level of a filter"
    return None


def unshared_filter_fault(filter_: str) -> str | None:
    """Why this is no filter of one client alone; None if it is."""
    if filter_.startswith(_SHARE):
        return "a shared subscription is not sent retained messages"
    return filter_fault(filter_)


def any_text_fault(text: str) -> str | None:
    """Nothing is wrong with a text that could be decoded: it is the broker's own, and its key bounds its length."""
    return None


def check_topic(topic: str) -> None:
    """Raise InvalidRequestError if nobody may publish to this topic name."""
    fault = topic_fault(topic)
    if fault is not None:
        raise InvalidRequestError(fault)


def check_filter(filter_: str) -> None:
    """Raise InvalidRequestError if nobody may subscribe to this filter, which may be a shared one."""
    fault = filter_fault(filter_)
    if fault is not None:
        raise InvalidRequestError(fault)


def subscription(filter_: str) -> Subscription:
    """The parts of a filter that is right."""
    if not filter_.startswith(_SHARE):
        return Subscription(None, filter_)
    group, _, rest = filter_[len(_SHARE) :].partition(SEPARATOR)
    return Subscription(group, rest)


def is_hidden(topic: str) -> bool:
    """Whether filters that begin with a wildcard do not match this topic: the server's own topics, as $SYS."""
    return topic.startswith("$")


def match(filter_: str, topic: str) -> bool:
    """Whether a filter, which may be a shared one, matches a topic name. Both have to be right."""
    filter_ = subscription(filter_).filter
    if ANY_LEVEL not in filter_ and ALL_BELOW not in filter_:
        return filter_ == topic
    if filter_[0] in WILDCARDS and is_hidden(topic):
        return False
    return match_levels(filter_.split(SEPARATOR), topic.split(SEPARATOR))


def match_levels(wanted: list[str], levels: list[str]) -> bool:
    """Whether levels of a filter match those of a topic name behind the first: there "$" means nothing."""
    if wanted[-1] == ALL_BELOW:
        wanted = wanted[:-1]
        if len(levels) < len(wanted):
            return False
    elif len(levels) != len(wanted):
        return False
    return all(one in (ANY_LEVEL, level) for one, level in zip(wanted, levels, strict=False))


def _text_fault(text: str, what: str) -> str | None:
    """What is wrong with a name or a filter, whatever its levels are."""
    if not text:
        return f"{what} has at least one character"
    if "\0" in text:
        return f"{what} has no NUL character"
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return f"{what} is UTF-8: it has no lone surrogates"
    if size > TOPIC_BYTES_MAX:
        return f"{what} of {size} bytes, {TOPIC_BYTES_MAX} are allowed"
    levels = text.count(SEPARATOR) + 1
    return f"{what} of {levels} levels, {LEVELS_MAX} are allowed" if levels > LEVELS_MAX else None
