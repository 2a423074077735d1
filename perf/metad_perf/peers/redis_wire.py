"""Redis's protocol, RESP 2: commands and the replies to them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

_END = b"\r\n"


class Failed(str):
    """A reply that is an error: its first word."""

    __slots__ = ()


Reply = bytes | int | None | Failed | list[bytes | None]
"""A status or a string as bytes; a list only of strings."""


def command(*words: bytes) -> bytes:
    """One command."""
    return commanded(words)


def commanded(words: Iterable[bytes]) -> bytes:
    """One command of many words."""
    parts = [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
    return b"*%d\r\n%b" % (len(parts), b"".join(parts))


def cut(received: bytearray) -> list[Reply]:
    """The complete replies. Raises ValueError."""
    replies: list[Reply] = []
    data = bytes(received)
    at = 0
    while (found := _one(data, at)) is not None:
        reply, at = found
        replies.append(reply)
    del received[:at]
    return replies


def _one(data: bytes, at: int) -> tuple[Reply, int] | None:
    """A reply and where the next begins; None if it is incomplete."""
    end = data.find(_END, at)
    if end < 0:
        return None
    kind, line = data[at : at + 1], data[at + 1 : end]
    at = end + 2
    if kind == b"+":
        return line, at
    if kind == b"-":
        return Failed(line.partition(b" ")[0].decode(errors="replace")), at
    if kind == b":":
        return int(line), at
    if kind == b"$":
        return _string(data, at, int(line))
    if kind == b"*":
        return _list(data, at, int(line))
    raise ValueError(f"no reply of Redis begins with {kind!r}")


def _string(data: bytes, at: int, size: int) -> tuple[bytes | None, int] | None:
    if size < 0:
        return None, at
    return (data[at : at + size], at + size + 2) if at + size + 2 <= len(data) else None


def _list(data: bytes, at: int, count: int) -> tuple[list[bytes | None], int] | None:
    found: list[bytes | None] = []
    for _ in range(count):
        end = data.find(_END, at)
        if end < 0:
            return None
        if data[at : at + 1] != b"$":
            raise ValueError("a list of other things than strings")
        one = _string(data, end + 2, int(data[at + 1 : end]))
        if one is None:
            return None
        value, at = one
        found.append(value)
    return found, at
