"""Deletes consumer groups that nobody has used for a configured time, in the groups that this node leads.

The node goes through the consumer groups, a bounded number of rows at a time, and looks for those without members whose
offsets are all old: of a group in use, the first offset that it looks at says so. What it finds is ordered to be
deleted; the evaluation of the order looks again, by the time of the log. Whoever leads next begins anew.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from metad_wire import messages as m
from metad_wire.errors import MetadError, TooLargeError
from metad_wire.key import TEXT_END
from metad_wire.methods import OFFSET_EXPIRE_GROUPS
from metad_wire.tables.consumer import CONSUMER, ConsumerGroupInfo
from metad_wire.tables.offset import OFFSET, OffsetExpireGroups

from ...storage import keys
from ..replicas.driver import GroupDriver
from .chore import Chore, Done, Means

_OFFSET, _GROUP = OFFSET.rows["offset"], CONSUMER.rows["group"]
_LOOK_S: Final = 0.25
_PAUSE_S: Final = 60.0
"""Between two passes; less where the configured time is short."""
_ROWS: Final = 256
"""Looked at in one go, less than a millisecond."""
_PAGE_ROWS: Final = 64
_PAGE_BYTES: Final = 1024 * 1024
_ORDERED_MAX: Final = 50
_QUEUE_ITEMS_MAX: Final = 128
"""A group with more items waiting is busy with its clients."""
_decode = msgspec.msgpack.Decoder(m.Offset).decode
_decode_group = msgspec.msgpack.Decoder(ConsumerGroupInfo).decode


class GroupExpiry(Chore):
    """Deletes those of one group."""

    def __init__(self, driver: GroupDriver, unused_ms: int, means: Means) -> None:
        super().__init__(driver, _ORDERED_MAX, means)
        self.unused_ms = unused_ms
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._begin_s = 0.0
        """Nothing is looked at before."""
        self._group = b""
        """The next consumer group is this or behind it."""
        self._offset = b""
        """All offsets of ``_group`` before this one are old."""
        self._due: list[m.ConsumerGroup] = []

    def begin(self, room: int, done: Done) -> bool:
        if not self._leads():
            self._begin_anew()
            return False
        now_s, before_ms = self._environment.now(), self._before_ms()
        if self._asking or not before_ms or self._driver.waiting_items > _QUEUE_ITEMS_MAX:
            return False
        if not self._due:
            if now_s < self._begin_s:
                return False
            self._begin_s = now_s + _LOOK_S
            self._look_on(before_ms, now_s)
        if self._due:
            ordered, self._due = self._due[: self._batch.size], self._due[self._batch.size :]
            body = OffsetExpireGroups(ordered, before_ms)
            self._ask(OFFSET_EXPIRE_GROUPS, body, partial(self._answered, done, ordered))
        else:
            self._environment.call_soon(partial(done, 0))
        return True

    def _before_ms(self) -> int:
        """What was used before and not since is over; 0 while nothing is."""
        return max(0, self._past_ms() - self.unused_ms) if self.unused_ms else 0

    def _look_on(self, before_ms: int, now_s: float) -> None:
        room = _ROWS
        while room > 0 and len(self._due) < _ORDERED_MAX:
            suffix = self._next()
            room -= 2
            if suffix is None:
                self._group, self._begin_s = b"", now_s + min(_PAUSE_S, self.unused_ms / 1000 / 4)
                break
            if not self._serves(keys.table_prefix(self._driver.group.prefix, _GROUP) + suffix):
                self._group, self._offset = keys.after_prefix(suffix), b""
                continue
            used, rows = self._look(suffix, before_ms)
            room -= rows
            if used is None:
                continue  # there are more offsets to look at
            if not used:
                self._due.append(m.ConsumerGroup(*CONSUMER.fields_of(suffix + TEXT_END, 2)))
            self._group, self._offset = keys.after_prefix(suffix), b""

    def _next(self) -> bytes | None:
        """The key of the next consumer group that has offsets, or had members."""
        machine = self._driver.machine
        found: list[bytes] = []
        for row in (_OFFSET, _GROUP):
            prefix = keys.table_prefix(self._driver.group.prefix, row)
            rows = machine.reader.engine.scan(prefix + self._group, keys.after_prefix(prefix), 1)
            found += [_group_of(key[len(prefix) :]) for key, _ in rows]
        return min(found, default=None)

    def _look(self, suffix: bytes, before_ms: int) -> tuple[bool | None, int]:
        """Whether a consumer group was used since then; None: its next offsets will say. And how many rows said so."""
        engine, prefix = self._driver.machine.reader.engine, self._driver.group.prefix
        row = engine.get(keys.table_prefix(prefix, _GROUP) + suffix)
        info = None if row is None else _decode_group(row)
        if info is not None and (info.members or info.since_ms > before_ms):
            return True, 1
        begin = keys.table_prefix(prefix, _OFFSET) + suffix
        at = max(begin, self._offset) if self._group == suffix else begin
        rows = engine.scan(at, keys.after_prefix(begin), _PAGE_ROWS, _PAGE_BYTES)
        if any(_decode(value).committed_ms > before_ms for _, value in rows):
            return True, len(rows)
        if len(rows) < _PAGE_ROWS and sum([len(key) + len(value) for key, value in rows]) < _PAGE_BYTES:
            return False, len(rows)
        self._group, self._offset = suffix, rows[-1][0] + b"\0"
        return None, len(rows)

    def _answered(self, done: Done, ordered: list[m.ConsumerGroup], answer: bytes | MetadError) -> None:
        if isinstance(answer, bytes):
            reply = OFFSET_EXPIRE_GROUPS.decode_reply(answer)
            self._counts["deleted"] += sum(reply.deleted)
            self._due[:0] = [group for group, left in zip(ordered, reply.left, strict=True) if left]
        elif not isinstance(answer, TooLargeError):
            self._due = []  # the next pass finds them again, as it does one that is too much by itself
        elif len(ordered) > 1:
            self._due[:0] = ordered
        done(0)


def _group_of(key: bytes) -> bytes:
    """The first two fields of a key."""
    tenant_end = key.index(TEXT_END) + len(TEXT_END)
    return key[: key.index(TEXT_END, tenant_end) + len(TEXT_END)]
