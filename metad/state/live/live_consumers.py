"""The members of consumer groups, who of them was heard of lately, and what their groups do.

A rebalance lasts no longer than its group gives its members for it. Nobody speaks for it, so it ends like a member that
is silent; its key is that of the member without a name.
"""

from __future__ import annotations

import msgspec

from metad_wire import messages as m
from metad_wire.key import TEXT_END
from metad_wire.tables.consumer import CONSUMER, Beat, GroupState

from ..core.part import PartContext
from .live import HEARD, LiveRows

_MEMBER, _GROUP = CONSUMER.rows["member"], CONSUMER.rows["group"]
_IN_TIME = (GroupState.JOINING, GroupState.ASSIGNING)


class _MemberTime(m.Message, frozen=True):
    """Of a member's row."""

    tenant: msgspec.Raw
    group: msgspec.Raw
    member: msgspec.Raw
    instance: msgspec.Raw
    holder: msgspec.Raw
    session_ms: int


class _GroupTime(m.Message, frozen=True):
    """Of a group's row."""

    tenant: msgspec.Raw
    group: msgspec.Raw
    state: int
    generation: int
    protocol: msgspec.Raw
    leader: msgspec.Raw
    members: int
    waiting: int
    rebalance_ms: int


_decode_member = msgspec.msgpack.Decoder(_MemberTime).decode
_decode_group = msgspec.msgpack.Decoder(_GroupTime).decode


class LiveConsumers(LiveRows):
    """Members by their key, and the rebalances that go on."""

    lasting = (_MEMBER, _GROUP)
    rows = (*lasting, *HEARD)

    def __init__(self, context: PartContext) -> None:
        super().__init__(context)
        self._states: dict[bytes, tuple[int, int]] = {}  # by group: its state and generation

    def load(self) -> None:
        self._states.clear()
        super().load()

    def learn(self, row: int, key: bytes, value: bytes, now_s: float) -> None:
        if row == _MEMBER:
            self.last(key, _decode_member(value).session_ms, now_s)
            return
        group = _decode_group(value)
        state = group.state, group.generation
        if self._states.get(key) != state:
            self._states[key] = state
            super().end(key + TEXT_END)
        if group.state in _IN_TIME:
            self.last(key + TEXT_END, group.rebalance_ms, now_s)

    def end(self, key: bytes) -> None:
        if self._states.pop(key, None) is not None:
            key += TEXT_END  # of a group: its rebalance
        super().end(key)

    def heard(self, member: bytes, at_s: float | None) -> None:
        """A member, if it is one, was heard of at this time, or now."""
        self.renew(member, at_s)

    def beat(self, group: bytes, member: bytes, at_s: float | None) -> Beat | None:
        """A member was heard of at this time, or now: what it hears; None: there is no such member. Both are keys."""
        session_ms = self.renew(member, at_s)
        state = self._states.get(group)
        return Beat(session_ms, *state) if session_ms and state is not None else None

    def rebalance_over(self, group: bytes, state: int, generation: int) -> bool:
        """Whether the members of a group have had their time in this state, as the applied rows say. Both are what the
        caller believes of the group: if the rows do not say so yet, its time has just begun."""
        return self._states.get(group) == (state, generation) and self.is_over(group + TEXT_END)
