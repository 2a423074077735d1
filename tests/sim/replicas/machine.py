"""A small state machine for simulated replicas: registers by key, on an engine, with the applied index beside them.

It stands where a group's real state machine does: behind the log after a crash, replayed, flushed before the log is
compacted, exported and replaced by a snapshot. It refuses an entry that it has applied before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from metad.storage import keys
from metad.storage.engine import Engine
from metad_wire.tables.cluster import GROUP
from metad_wire.tables.kv import KV


class Command(msgspec.Struct, frozen=True, array_like=True):
    """A write to one key. ``identity`` is in one command only."""

    identity: str
    kind: str
    key: str
    argument: Any


class StateMachine(Protocol):
    """What a simulated node needs of a group's state."""

    applied: int

    def apply(self, index: int, payloads: Sequence[bytes | None]) -> list[Any]:
        """Entries from ``index`` on, in one write with the applied index; None for those of Raft itself."""

    def read(self, key: str) -> Any:
        """What a client reads."""

    def contents(self) -> dict[bytes, bytes]:
        """Everything that must be the same on all replicas that have applied as much."""


class AppliedTwiceError(AssertionError):
    """An entry has had its effect before."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_decode_command = msgspec.msgpack.Decoder(Command).decode


class Registers:
    """See :class:`StateMachine`."""

    def __init__(self, engine: Engine, group: bytes) -> None:
        self._engine = engine
        self._begin, self._end = group, keys.after_prefix(group)
        self._applied_key = keys.applied(group)
        self._mark_key = keys.snapshot_mark(group)
        self._register = keys.table_prefix(group, KV.rows["record"])
        self._done = keys.table_prefix(group, GROUP.rows["dedupe"])
        stored = engine.get(self._applied_key)
        self.applied = 0 if stored is None else int.from_bytes(stored, "big")

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

    def contents(self) -> dict[bytes, bytes]:
        rows = self._engine.scan(self._begin, self._end, 1 << 30)
        return {key: value for key, value in rows if key != self._mark_key}
