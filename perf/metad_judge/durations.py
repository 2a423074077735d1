"""Whether what is to last for a time lasts so long, and ends then, by a clock that no node has: that of the run.

A log has a time of its own, and a node a calendar, and both may be wrong by hours. So the other judges, which go by
what the entries say, would believe a deadline that has crossed from one log to another as it stood. This one counts
from the moment at which something began: a client went, the life of its broker was over, a message was retained.
"""

from __future__ import annotations

from typing import Final

import msgspec

from metad.state.core.entry import Entry
from metad.state.core.part import Origin
from metad.storage.keys import GROUP_PREFIX_BYTES
from metad_wire.key import split_text
from metad_wire.messages import NEVER_S, SessionOwner, SessionProperties
from metad_wire.tables.cluster import GROUP
from metad_wire.tables.retained import RETAINED, Retained
from metad_wire.tables.session import SESSION

from .invariants import Violation

PACE_MAX: Final = 1.07
"""How much faster than time a log may go: a node's clock by 5 %, and 1 % while the log catches up."""
_SLACK_S: Final = 10.0
"""Between the making of an entry and the moment at which somebody applies it."""
_LATE_S: Final = 45.0
"""What is over is ended within this time, and the amnesty, where nothing goes wrong any more."""
_FENCE: Final = GROUP.rows["fence"]
_OWNER: Final = SESSION.rows["owner"]
_PROPERTIES: Final = SESSION.rows["properties"]
_MESSAGE: Final = RETAINED.rows["message"]
_decode_owner = msgspec.msgpack.Decoder(SessionOwner).decode
_decode_properties = msgspec.msgpack.Decoder(SessionProperties).decode
_decode_message = msgspec.msgpack.Decoder(Retained).decode


class Durations:
    """Those of all groups of a cluster. Rows are known by their keys, wherever their slots are."""

    def __init__(self, amnesty_s: float) -> None:
        self._amnesty_s = amnesty_s
        self._owners: dict[bytes, SessionOwner] = {}
        self._away_s: dict[bytes, float] = {}  # since when clients are
        self._intervals_s: dict[bytes, int] = {}  # of sessions
        self._over_s: dict[str, dict[int, float]] = {}  # broker -> least epoch -> since when
        self._retained: dict[bytes, tuple[float, float]] = {}  # since when, and for how many seconds
        self.ended = 0
        """By time."""

    def enter(self, where: str, entry: Entry, moment_s: float) -> None:
        """A replica applies an entry of a group, as the first one that does."""
        for writes in entry:
            for stored, value in writes.items():
                key = stored[GROUP_PREFIX_BYTES:]
                if key[0] == _FENCE and value is not None:
                    least = msgspec.msgpack.decode(value)[0]
                    self._over_s.setdefault(split_text(key, 1)[0], {}).setdefault(least, moment_s)
                elif entry.origin == Origin.MIGRATION:
                    continue  # what is imported goes on
                elif key[0] == _OWNER:
                    self._owner(where, entry, key[1:], None if value is None else _decode_owner(value), moment_s)
                elif key[0] == _PROPERTIES and value is not None:
                    self._intervals_s[key[1:]] = _decode_properties(value).expiry_interval_s
                elif key[0] == _MESSAGE:
                    self._message(where, entry, key, value, moment_s)

    def _owner(self, where: str, entry: Entry, key: bytes, after: SessionOwner | None, moment_s: float) -> None:
        before, since_s = self._owners.pop(key, None), self._away_s.pop(key, moment_s)
        if before is not None and not before.connected and entry.origin == Origin.EXPIRY:
            deadline_ms = before.expires_ms if after is None else before.will_ms
            self._end(f"{where} ends {before}", since_s, (deadline_ms - before.disconnected_ms) / 1000, moment_s)
        if after is None:
            return
        self._owners[key] = after
        if after.connected:
            return
        if before is None or before.connected:
            over_s = self._life_over_s(after) if entry.origin == Origin.EXPIRY else None
            since_s = moment_s if over_s is None else over_s
        self._away_s[key] = since_s

    def _message(self, where: str, entry: Entry, key: bytes, value: bytes | None, moment_s: float) -> None:
        put_s, lasts_s = self._retained.pop(key, (moment_s, 0.0))
        if value is None and entry.origin == Origin.EXPIRY:
            self._end(f"{where} ends {key!r}", put_s, lasts_s, moment_s)
        elif value is not None and (expires_ms := _decode_message(value).expires_ms):
            self._retained[key] = moment_s, (expires_ms - entry.now_ms) / 1000

    def _end(self, what: str, since_s: float, lasts_s: float, moment_s: float) -> None:
        self.ended += 1
        passed_s = moment_s - since_s
        if (passed_s + _SLACK_S) * PACE_MAX < lasts_s:
            raise Violation("durations", f"{what} after {passed_s:.1f} s of {lasts_s:.1f} s")

    def _life_over_s(self, owner: SessionOwner) -> float | None:
        """Since when the life that a session looks connected to is over."""
        over = self._over_s.get(owner.broker, {})
        return min((moment_s for least, moment_s in over.items() if least > owner.broker_epoch), default=None)

    def overdue(self, now_s: float) -> list[bytes]:
        """Sessions that should have ended long ago, if nothing has gone wrong since then."""
        found = []
        for key, owner in self._owners.items():
            since_s, interval_s = self._away_s.get(key), self._intervals_s.get(key, 0)
            if owner.connected:
                since_s = self._life_over_s(owner)
            elif not owner.expires_ms:
                continue
            else:
                interval_s = (owner.expires_ms - owner.disconnected_ms) // 1000
            if since_s is None or interval_s == NEVER_S:
                continue
            if now_s > since_s + interval_s * PACE_MAX + _LATE_S + self._amnesty_s:
                found.append(key)
        return found
