"""Retained messages that expire, on whole nodes: the sweep deletes them, and only them, through a dead leader and slots
that move. Where a scene settles, each message that expires must have a row among what is due."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from metad.config import ExpiryConfig
from metad.state.core.due import DUE, DueKind
from metad.storage import keys
from metad_client import Client, RetainedPutItem
from metad_wire.cluster import GroupId
from metad_wire.tables.retained import RETAINED

from ..cluster import DATA
from .scene import Scene, scenario

_AMNESTY_S = 1.5
_INTERVAL_S = 6
_LATE_S = 1.024 + 1.0  # rows stand so far apart, and the sweep looks four times a second
_OTHER = GroupId("data", 1)
_BRIEF = [f"brief/{number}" for number in range(20)]
_LONGER = [f"longer/{number}" for number in range(20)]
_KEPT = [f"kept/{number}" for number in range(20)]


class _Stage(Scene):
    """A scene with retained messages."""

    def __init__(self, **settings: Any) -> None:
        expiry = ExpiryConfig(amnesty_ms=int(1000 * _AMNESTY_S), batch_sessions=7)
        super().__init__(1, **{"expiry": expiry, **settings})

    def retain(self, topics: Iterable[str], interval_s: int | None = None) -> None:
        """Retain messages."""
        items = [RetainedPutItem("acme", topic, b"m", expiry_interval_s=interval_s) for topic in topics]

        async def put(client: Client) -> None:
            (await client.retained.put_many(items)).raise_for_error()

        self.ask(self.one, put)

    def put_all(self) -> float:
        """Those that expire; those that did and then were put again, for longer; those that do not. When that was."""
        self.retain([*_BRIEF, *_LONGER, *_KEPT], _INTERVAL_S)
        self.retain(_LONGER, 5 * _INTERVAL_S)
        self.retain(_KEPT)
        return self.loop.now

    def stored(self) -> set[str]:
        """The topics that the groups have messages of, expired or not."""
        return {topic for topic, _ in self._rows(RETAINED.rows["message"], 0)}

    def due(self) -> set[str]:
        """The topics of which something is due."""
        return {topic for topic, kind in self._rows(DUE, 9) if kind == DueKind.RETAINED}

    def _rows(self, row: int, skip: int) -> set[tuple[str, int]]:
        self.require_settled(20.0)
        found: set[tuple[str, int]] = set()
        for group in (DATA, _OTHER):
            lead = self.leader(group)
            if lead is not None and lead.node is not None:
                prefix = keys.table_prefix(keys.group_prefix(group), row)
                mask = lead.node.drivers[group].machine.slots.mask
                for key, _ in lead.disks.state.scan(prefix, keys.after_prefix(prefix), 1 << 30):
                    behind = key[keys.GROUP_PREFIX_BYTES :]
                    if mask is None or mask[keys.slot_of_key(behind) or 0]:
                        _, at = keys.split_text(key, len(prefix) + skip)
                        found.add((keys.split_text(key, at)[0], key[len(prefix) + skip - 1]))
        return found

    def until(self, moment_s: float) -> None:
        """Let time pass."""
        self.run(max(0.0, moment_s - self.loop.now))


@scenario
def retained_messages_are_deleted_when_they_have_expired() -> None:
    """The leader dies meanwhile; what was put again for longer, or for ever, stays."""
    with _Stage() as scene:
        scene.run(_AMNESTY_S)
        put_s = scene.put_all()
        scene.until(put_s + _INTERVAL_S - 1.0)
        assert scene.stored() == {*_BRIEF, *_LONGER, *_KEPT}, "a message was deleted too early"
        leader = scene.lead()
        leader.crash(power=True)
        scene.until(put_s + _INTERVAL_S + 2 * _AMNESTY_S + _LATE_S)
        leader.start()
        assert scene.stored() == {*_LONGER, *_KEPT}
        assert scene.due() == {*_LONGER}, "of the others nothing is due any more"
        scene.until(put_s + 5 * _INTERVAL_S * 9 / 8 + 2 * _AMNESTY_S + _LATE_S)
        assert scene.stored() == {*_KEPT}
        assert scene.due() == set()


@scenario
def retained_messages_expire_in_the_group_that_their_slots_have_moved_to() -> None:
    """All of them move, and back."""
    with _Stage(data=2) as scene:
        scene.run(_AMNESTY_S)
        put_s = scene.put_all()
        for source, target in ((0, 1), (1, 0)):
            scene.move(source, target)
            scene.require_settled(20.0)
        scene.until(put_s + 5 * _INTERVAL_S * 9 / 8 + 2 * _AMNESTY_S + 2 * _LATE_S)
        assert scene.stored() == {*_KEPT}
        assert scene.due() == set()
