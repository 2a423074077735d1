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

from ...config import ExpiryConfig
from ...storage import keys
from ..environment import Environment, Timer
from ..health import Health
from ..replicas.driver import GroupDriver
from ..replicas.groups import Groups
from ..requests.requests import Requests

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


class _Pass:
    """How far the consumer groups of one group of metad were looked at."""

    def __init__(self, driver: GroupDriver) -> None:
        self.driver = driver
        self.begin_s = 0.0
        """No pass begins before."""
        self.group = b""
        """The next consumer group is this or behind it."""
        self.offset = b""
        """All offsets of ``group`` before this one are old."""
        self.due: list[m.ConsumerGroup] = []
        self.batch = _ORDERED_MAX
        """How many are deleted by the next order."""
        self.asking = False


class GroupExpiry:
    """That of a node. ``ended`` counts the offsets that were deleted since the start."""

    def __init__(
        self, config: ExpiryConfig, groups: Groups, requests: Requests, environment: Environment, health: Health
    ) -> None:
        self._unused_ms = config.consumer_group_ms
        self._groups = groups
        self._requests = requests
        self._environment = environment
        self._health = health
        self._passes: dict[GroupDriver, _Pass] = {}
        self._timer: Timer | None = None
        self.ended = 0

    def start(self) -> None:
        """Begin to look, if groups end at all."""
        if not self._unused_ms or self._health.failure is not None:
            return
        self._timer = self._environment.call_at(self._environment.now() + _LOOK_S, self.start)
        drivers = [driver for group, driver in self._groups.drivers.items() if group.kind == OFFSET.kind]
        self._passes = {driver: self._passes.get(driver) or _Pass(driver) for driver in drivers}
        for each in self._passes.values():
            self._go_on(each)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _before_ms(self, driver: GroupDriver) -> int:
        """What was used before and not since is over; 0 while nothing is."""
        now_s, time = self._environment.now(), driver.machine.time
        time.next(self._environment.wall_ms(), now_s)
        return max(0, time.past_ms(now_s) - self._unused_ms)

    def _go_on(self, each: _Pass) -> None:
        driver, now_s = each.driver, self._environment.now()
        if not driver.group.accepting or driver.installing:
            self._passes[driver] = _Pass(driver)
            return
        before_ms = self._before_ms(driver)
        if each.asking or now_s < each.begin_s or driver.waiting_items > _QUEUE_ITEMS_MAX or not before_ms:
            return
        room = _ROWS
        while room > 0 and len(each.due) < _ORDERED_MAX:
            suffix = self._next(each)
            room -= 2
            if suffix is None:
                each.group, each.begin_s = b"", now_s + min(_PAUSE_S, self._unused_ms / 1000 / 4)
                break
            if not self._is_held(each, suffix):  # it came early, or is yet to be dropped
                each.group, each.offset = keys.after_prefix(suffix), b""
                continue
            used, rows = self._look(each, suffix, before_ms)
            room -= rows
            if used is None:
                continue  # there are more offsets to look at
            if not used:
                each.due.append(m.ConsumerGroup(*CONSUMER.fields_of(suffix + TEXT_END, 2)))
            each.group, each.offset = keys.after_prefix(suffix), b""
        if each.due:
            self._order(each, before_ms)

    def _next(self, each: _Pass) -> bytes | None:
        """The key of the next consumer group that has offsets, or had members."""
        machine = each.driver.machine
        found: list[bytes] = []
        for row in (_OFFSET, _GROUP):
            prefix = keys.table_prefix(each.driver.group.prefix, row)
            rows = machine.reader.engine.scan(prefix + each.group, keys.after_prefix(prefix), 1)
            found += [_group_of(key[len(prefix) :]) for key, _ in rows]
        return min(found, default=None)

    def _is_held(self, each: _Pass, suffix: bytes) -> bool:
        """Whether the slot of a consumer group is held."""
        held = each.driver.machine.slots.mask
        return held is None or bool(held[CONSUMER.slot_of(suffix)])

    def _look(self, each: _Pass, suffix: bytes, before_ms: int) -> tuple[bool | None, int]:
        """Whether a consumer group was used since then; None: its next offsets will say. And how many rows said so."""
        engine, prefix = each.driver.machine.reader.engine, each.driver.group.prefix
        row = engine.get(keys.table_prefix(prefix, _GROUP) + suffix)
        info = None if row is None else _decode_group(row)
        if info is not None and (info.members or info.since_ms > before_ms):
            return True, 1
        begin = keys.table_prefix(prefix, _OFFSET) + suffix
        at = max(begin, each.offset) if each.group == suffix else begin
        rows = engine.scan(at, keys.after_prefix(begin), _PAGE_ROWS, _PAGE_BYTES)
        if any(_decode(value).committed_ms > before_ms for _, value in rows):
            return True, len(rows)
        if len(rows) < _PAGE_ROWS and sum([len(key) + len(value) for key, value in rows]) < _PAGE_BYTES:
            return False, len(rows)
        each.group, each.offset = suffix, rows[-1][0] + b"\0"
        return None, len(rows)

    def _order(self, each: _Pass, before_ms: int) -> None:
        each.asking = True
        ordered, each.due = each.due[: each.batch], each.due[each.batch :]
        body = OffsetExpireGroups(ordered, before_ms)
        answered = partial(self._answered, each, ordered, before_ms)
        self._requests.request(OFFSET_EXPIRE_GROUPS, body, answered, group=each.driver.group.name)

    def _answered(
        self, each: _Pass, ordered: list[m.ConsumerGroup], before_ms: int, answer: bytes | MetadError
    ) -> None:
        each.asking = False
        if isinstance(answer, bytes):
            reply = OFFSET_EXPIRE_GROUPS.decode_reply(answer)
            self.ended += sum(reply.deleted)
            each.due[:0] = [group for group, left in zip(ordered, reply.left, strict=True) if left]
            each.batch = min(_ORDERED_MAX, 2 * each.batch)
        elif not isinstance(answer, TooLargeError):
            each.due = []  # the next pass finds them again, as it does one that is too much by itself
        elif len(ordered) > 1:
            each.due[:0] = ordered
            each.batch = len(ordered) // 2
        if each.due:
            self._environment.call_soon(partial(self._order_rest, each, before_ms))

    def _order_rest(self, each: _Pass, before_ms: int) -> None:
        if each.due and not each.asking and each.driver.group.accepting:
            self._order(each, before_ms)


def _group_of(key: bytes) -> bytes:
    """The first two fields of a key."""
    tenant_end = key.index(TEXT_END) + len(TEXT_END)
    return key[: key.index(TEXT_END, tenant_end) + len(TEXT_END)]
