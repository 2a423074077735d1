"""A topic filter as a scan that skips: from each topic that it sees it knows where the next one may be that matches.

Topics are in the order of their UTF-8, as bytes. The levels of a filter are literal up to the first "+", so what
matches is in one range, and within that range a "+" takes one value after the other. Behind a topic whose level is not
the literal one, the scan goes to that literal, or, if it is past it, to the next value of the last "+" before it.

If literal levels follow the last "+", then one topic of each of its values can match, and the value says which. The
scan does not go there: it names that topic, and goes on with the next value. So the caller can get many such topics by
their keys at once, and none of those that are not stored here. That costs less than a look into an order, and there is
one of those for each value that a "+" takes, whatever else is stored.

Levels do not make the order a tree: "a!" is between "a" and "a/b", because "!" is less than "/". The steps below allow
for that. All texts here are UTF-8 and have no NUL.
"""

from __future__ import annotations

from typing import Final

from metad_wire.text.topics import ALL_BELOW, ANY_LEVEL, SEPARATOR, WILDCARDS

_SEPARATOR: Final = SEPARATOR.encode()
_ANY_LEVEL: Final = ANY_LEVEL.encode()
_BEHIND_SEPARATOR: Final = bytes((_SEPARATOR[0] + 1,))
"""Greater than all that begins with a separator, and no more."""
_BEHIND_HIDDEN: Final = b"%"
"""Greater than all that begins with "$"."""
AFTER: Final = b"\0\x02"
"""Behind a topic: greater than the topic's key, which ends with 0x00 0x01, and less than that of any longer topic."""


class TopicScan:
    """``begin``: nothing that is less matches the filter, which has to be right and not a shared one."""

    def __init__(self, filter_: str) -> None:
        levels = filter_.split(SEPARATOR)
        self._hides = levels[0] in WILDCARDS
        self._below = levels[-1] == ALL_BELOW
        if self._below:
            levels.pop()
        self._levels = [level.encode() for level in levels]
        self._tail_at, self._tail = self._tail_of()
        self._literals = [self._literal(at) for at in range(len(levels) + 1)]
        self.begin = self._literals[0]

    def _literal(self, begin: int) -> bytes:
        """What everything has from this level on that matches: the levels up to the next "+"."""
        levels = self._levels
        end = next((at for at in range(begin, len(levels)) if levels[at] == _ANY_LEVEL), len(levels))
        literal = _SEPARATOR.join(levels[begin:end])
        return literal + _SEPARATOR if begin < end < len(levels) else literal

    def _tail_of(self) -> tuple[int, bytes]:
        """At which level the literal ones behind the last "+" begin, and these, with the separator in front of them; 0
        if there are none, or no "+", or if topics below them match, too."""
        begin = len(self._levels)
        while begin and self._levels[begin - 1] != _ANY_LEVEL:
            begin -= 1
        if self._below or begin in (0, len(self._levels)):
            return 0, b""
        return begin, _SEPARATOR + _SEPARATOR.join(self._levels[begin:])

    def look(self, topic: bytes) -> tuple[bytes | None, bytes | None]:
        """A stored topic is this. The topic that matches if it is stored: this one, or a greater one; None if nothing
        is known to match. And a text that is greater than the given topic, while between them nothing else matches;
        None if nothing matches any more."""
        if self._hides and topic.startswith(b"$"):
            return None, _BEHIND_HIDDEN
        levels, wanted = topic.split(_SEPARATOR), self._levels
        last_any = -1  # the last "+" so far
        for at, (level, one) in enumerate(zip(levels, wanted, strict=False)):
            if at == self._tail_at and at:
                value = _SEPARATOR.join(levels[:at])
                match = value + self._tail  # before this topic it is not stored, or the listing has passed it
                return match if match >= topic else None, value + _BEHIND_SEPARATOR
            if one == _ANY_LEVEL:
                last_any = at
            elif one != level:
                return None, self._behind_mismatch(topic, levels, at, last_any)
        if len(levels) < len(wanted):
            if last_any == len(levels) - 1:
                # Its last level may be longer by a character that is less than the separator.
                return None, topic + AFTER
            return None, topic + _SEPARATOR + self._literals[len(levels)]
        if self._below or (len(levels) == len(wanted) and last_any == len(levels) - 1):
            return topic, topic + AFTER
        return topic if len(levels) == len(wanted) else None, _next_value(levels, last_any)

    def _behind_mismatch(self, topic: bytes, levels: list[bytes], at: int, last_any: int) -> bytes | None:
        """The same of a topic whose level ``at`` is another than the literal one of the filter."""
        candidate = _SEPARATOR.join([*levels[:at], self._literals[at]])
        if candidate > topic:
            return candidate
        if self._below and _ANY_LEVEL not in self._levels[at:]:
            # All levels are literal up to "#": the candidate itself matches, and then only what is below it.
            candidate += _SEPARATOR
            if candidate > topic:
                return candidate
        return _next_value(levels, last_any)


def _next_value(levels: list[bytes], at: int) -> bytes | None:
    """Where a greater value of level ``at`` may begin, for the same levels before it: values that are this one and a
    character less than the separator were seen before it had levels below. None if there is no such level."""
    return None if at < 0 else _SEPARATOR.join(levels[: at + 1]) + _BEHIND_SEPARATOR
