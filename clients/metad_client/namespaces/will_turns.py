"""Whose turn it is to claim a will: every broker hears that one is due, and one claim is enough.

The brokers that publish wills rank each other, for each will anew, by a hash of their names and the will (rendezvous
hashing). So all agree on who is first, and each is first for its share. The first one claims nearly at once. Each of
the others waits a little longer than the one before it, and does nothing if it hears of a claim meanwhile. A broker
knows of those that it has seen claim something. Of several that believe to be first, another one wins each time,
because chance decides a little about when they begin: so all get known, also those that are far away. One that has let
its turn pass is forgotten until it claims again: it has died, or has enough to do. So the worst that a wrong belief
does is a claim too many, or a will that waits for some turns. Where many wills are due at once, there is enough for
everybody, and nobody waits.

This knows no clock and no connection: times come in.
"""

from __future__ import annotations

import random
from hashlib import blake2b
from typing import Final, NamedTuple, TypeVar

from metad_wire.tables.will import WillKey

TURN_S: Final = 0.1
"""The next one waits so much longer: a claim takes some ten milliseconds, and as long until others hear of it."""
CHANCE_S: Final = TURN_S / 2
"""Up to so long after its turn has come, a broker begins."""
_TURNS_MAX: Final = 10
"""From this rank on all try at once."""
_OTHERS_MAX: Final = 1_000
"""Brokers that are remembered."""
_DUE_MAX: Final = 100
"""Wills that await a claim, from which on everybody claims."""
_CLAIMED_MAX: Final = 1_000
"""Wills that are remembered as claimed, because the word of that may come before the word that they are due."""


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class _Due(NamedTuple):
    """A will that nobody has claimed, as far as this broker knows."""

    group: str
    since_s: float
    at_s: float
    """When it is this broker's turn."""


class Turns:
    """Those of one broker. ``now_s`` is everywhere a monotonic clock."""

    def __init__(self, broker: str, rng: random.Random) -> None:
        self._broker = broker
        self._own = _hash(broker)
        self._rng = rng
        self._others: dict[str, int] = {}  # with their hashes
        self._due: dict[WillKey, _Due] = {}
        self._claimed: dict[WillKey, None] = {}
        self._groups: set[str] = set()  # in which more is due than is worth waiting for

    def due(self, group: str, key: WillKey, now_s: float) -> None:
        """A will is due in this group."""
        if key in self._claimed or key in self._due:
            return
        if len(self._due) >= _DUE_MAX:
            self._groups.add(group)
            return
        of_key = _hash(key.tenant, key.client_id, key.id)
        own = _weight(self._own, of_key)
        rank = sum([_weight(other, of_key) < own for other in self._others.values()])
        self._due[key] = _Due(group, now_s, now_s + TURN_S * min(rank, _TURNS_MAX) + CHANCE_S * self._rng.random())

    def claimed(self, key: WillKey, broker: str, now_s: float) -> None:
        """A broker, perhaps this one, has claimed a will."""
        _remember(self._claimed, key, None, _CLAIMED_MAX)
        if due := self._due.pop(key, None):
            self._passed(key, due, broker, now_s)
        if broker != self._broker:
            _remember(self._others, broker, _hash(broker), _OTHERS_MAX)

    def gone(self, key: WillKey) -> None:
        """A will was published, or dropped."""
        self._due.pop(key, None)

    def take(self, now_s: float) -> set[str]:
        """The groups in which it is this broker's turn to claim what there is. It is assumed to do so."""
        groups, self._groups = self._groups, set()
        if len(self._due) >= _DUE_MAX:
            groups.update(due.group for due in self._due.values())
        groups.update(due.group for due in self._due.values() if due.at_s <= now_s)
        for key, due in [*self._due.items()]:
            if due.group in groups:
                del self._due[key]
                if due.at_s <= now_s:
                    self._passed(key, due, self._broker, now_s)
        return groups

    @property
    def next_s(self) -> float | None:
        """When it is this broker's turn next; None: not before something else is due."""
        return 0.0 if self._groups else min((due.at_s for due in self._due.values()), default=None)

    def _passed(self, key: WillKey, due: _Due, by: str, now_s: float) -> None:
        """Forget those who were before this broker and did not use their turns."""
        if now_s < due.since_s + TURN_S:
            return
        of_key = _hash(key.tenant, key.client_id, key.id)
        bound = _weight(_hash(by), of_key)
        before = sorted([(_weight(hashed, of_key), other) for other, hashed in self._others.items()])
        for rank, (weight, other) in enumerate(before):
            if weight < bound and due.since_s + TURN_S * (rank + 1) <= now_s:
                del self._others[other]


def _hash(*texts: str) -> int:
    named = "\0".join(texts).encode(errors="surrogatepass")
    return int.from_bytes(blake2b(named, digest_size=8).digest())


def _weight(of_broker: int, of_key: int) -> int:
    """Who has less of it is before others. The factor makes each bit count in the higher ones."""
    return (of_broker ^ of_key) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF


def _remember(known: dict[_Key, _Value], one: _Key, value: _Value, count: int) -> None:
    """The oldest is forgotten for the newest."""
    known.pop(one, None)
    known[one] = value
    if len(known) > count:
        del known[next(iter(known))]
