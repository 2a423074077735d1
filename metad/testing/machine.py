"""A small state machine for simulated replicas: registers by key, on an engine, with the applied index beside them.

It stands where a group's real state machine does: behind the log after a crash, replayed, flushed before the log is
compacted, exported and installed as a snapshot. It refuses an entry that it has applied before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from ..raft.messages import Configuration
from ..storage import keys
from ..storage.engine import Engine


class Origin(msgspec.Struct, frozen=True, array_like=True):
    """Where the installed snapshot ended. Durable with it, so that a crash before the log knows can be repaired."""

    index: int
    term: int
    configuration: Configuration


class Command(msgspec.Struct, frozen=True, array_like=True):
    """A write to one key. ``identity`` is in one command only."""

    identity: str
    kind: str
    key: str
    argument: Any


class StateMachine(Protocol):
    """What a simulated node needs of a group's state."""

    applied: int
    origin: Origin | None

    def apply(self, index: int, payloads: Sequence[bytes | None]) -> list[Any]:
        """Entries from ``index`` on, in one write with the applied index; None for those of Raft itself."""

    def read(self, key: str) -> Any:
        """What a client reads."""

    def export(self) -> list[bytes]:
        """The whole state as of ``applied``, in pieces."""

    def install(self, pieces: Sequence[bytes], origin: Origin) -> None:
        """Replace everything by an exported state, in one write."""

    def contents(self) -> dict[bytes, bytes]:
        """Everything that must be the same on all replicas that have applied as much."""


class AppliedTwiceError(AssertionError):
    """An entry has had its effect before."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_decode_command = msgspec.msgpack.Decoder(Command).decode
_decode_origin = msgspec.msgpack.Decoder(Origin).decode
_decode_rows = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]]).decode
_PIECE_ROWS = 24


class Registers:
    """See :class:`StateMachine`."""

    def __init__(self, engine: Engine, group: bytes) -> None:
        self._engine = engine
        self._begin, self._end = group, keys.after_prefix(group)
        self._applied_key = group + b"\x00applied"
        self._origin_key = group + b"\x00origin"
        self._register = group + b"\x01"
        self._done = group + b"\x02"
        stored = engine.get(self._applied_key)
        self.applied = 0 if stored is None else int.from_bytes(stored, "big")
        origin = engine.get(self._origin_key)
        self.origin = None if origin is None else _decode_origin(origin)

    def apply(self, index: int, payloads: Sequence[bytes | None]) -> list[Any]:
        if index != self.applied + 1:
            raise AppliedTwiceError(f"entry {index} applied behind {self.applied}")
        writes: dict[bytes, bytes | None] = {}
        results = []
        for payload in payloads:
            results.append(None if payload is None else self._apply(_decode_command(payload), index, writes))
            index += 1
        self.applied = index - 1
        writes[self._applied_key] = keys.u64(self.applied)
        self._engine.write(writes)
        return results

    def _apply(self, command: Command, index: int, writes: dict[bytes, bytes | None]) -> Any:
        done = self._done + command.identity.encode()
        before = writes.get(done) or self._engine.get(done)
        if before is not None:
            raise AppliedTwiceError(f"{command.identity} applied as entry {int.from_bytes(before, 'big')} and {index}")
        writes[done] = keys.u64(index)
        key = self._register + command.key.encode()
        stored = writes[key] if key in writes else self._engine.get(key)
        value = None if stored is None else _decode(stored)
        kind, argument = command.kind, command.argument
        if kind == "compare_and_set":
            if value != argument[0]:
                return False
            writes[key] = _encode(argument[1])
            return True
        writes[key] = None if kind == "delete" else _encode(argument)
        return value if kind == "get_and_set" else None

    def read(self, key: str) -> Any:
        stored = self._engine.get(self._register + key.encode())
        return None if stored is None else _decode(stored)

    def export(self) -> list[bytes]:
        rows = sorted(self.contents().items())
        return [_encode(rows[at : at + _PIECE_ROWS]) for at in range(0, len(rows), _PIECE_ROWS)]

    def install(self, pieces: Sequence[bytes], origin: Origin) -> None:
        writes: dict[bytes, bytes | None] = {}
        for piece in pieces:
            writes.update(_decode_rows(piece))
        writes[self._applied_key] = keys.u64(origin.index)
        writes[self._origin_key] = _encode(origin)
        self._engine.write(writes, delete_ranges=[(self._begin, self._end)])
        self.applied, self.origin = origin.index, origin

    def contents(self) -> dict[bytes, bytes]:
        rows = self._engine.scan(self._begin, self._end, 1 << 30)
        return {key: value for key, value in rows if key != self._origin_key}
