"""The settings of a run, and what the naive clients send. Pure.

Requests are encoded before the clock starts, so that the load costs its senders as little as possible.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import ClusterMap, GroupId, unpack_slots
from metad_wire.method import Body, Method
from metad_wire.routing import ROUTES, SLOT_MASK

from ..commands import Overload

MIX: Final = {"session.takeover": 0.5, "kv.put": 0.3, "offset.commit": 0.2}
"""The share of each verb in the requests."""
GUARD_TENANT: Final = "guarded"
LOAD_TENANT: Final = "load"
_PAYLOADS: Final = 24  # requests of each verb and group that are encoded; they are sent in turn
_EXPIRY_S: Final = 86_400
_DEADLINE_BYTES: Final = 5  # of milliseconds, at most


class Ready(NamedTuple):
    """A request that is encoded, but for its deadline. ``method`` is its code."""

    group: str
    method: int
    begin: bytes
    rest: bytes

    @property
    def size(self) -> int:
        """Bytes of the payload, at most."""
        return len(self.begin) + _DEADLINE_BYTES + len(self.rest)

    def payload(self, deadline_ms: int) -> bytes:
        """The whole payload, for a sender that waits so much longer."""
        return b"".join((self.begin, methods.encode(deadline_ms), self.rest))


def requests(measurement: Overload, cluster: ClusterMap, share: int) -> Callable[[], Ready]:
    """What one process sends: returns the next request, verbs by their shares, the groups of each in turn. The
    deadline of a request is that of its sender."""
    rng = random.Random(f"{measurement.seed}/{share}")
    made: dict[str, list[Ready]] = {verb: [] for verb in MIX}
    for verb in MIX:
        namer = _names(verb, cluster, f"p{share}", rng)
        of_group: dict[str, list[str]] = {}
        for _ in range(measurement.batch * _PAYLOADS * len(set(unpack_slots(cluster.slots[_kind(verb)])))):
            group, name = next(namer)
            of_group.setdefault(group, []).append(name)
        for group, names in sorted(of_group.items()):
            for begin in range(0, len(names), measurement.batch):
                some = names[begin : begin + measurement.batch]
                if len(some) == measurement.batch:
                    made[verb].append(_encoded(verb, group, some, begin, measurement, rng))
        rng.shuffle(made[verb])
    at = dict.fromkeys(MIX, 0)
    verbs, weights = list(MIX), list(MIX.values())

    def following() -> Ready:
        (verb,) = rng.choices(verbs, weights)
        ready = made[verb]
        at[verb] = index = (at[verb] + 1) % len(ready)
        return ready[index]

    return following


def _kind(verb: str) -> str:
    return "offset" if verb == "offset.commit" else "data"


def _names(verb: str, cluster: ClusterMap, prefix: str, rng: random.Random) -> Iterator[tuple[str, str]]:
    """(group, name) of new records: client ids, namespaces or consumer groups."""
    kind = _kind(verb)
    slots = unpack_slots(cluster.slots[kind])
    number = 0
    while True:
        number += 1
        name = f"{prefix}-{number}-{rng.getrandbits(24):06x}"
        item: m.Message
        if verb == "offset.commit":
            item, method = m.OffsetKey(LOAD_TENANT, name, "orders", 0), methods.OFFSET_FETCH.code
        elif verb == "kv.put":
            item, method = m.KvKey(name, "key"), methods.KV_GET.code
        else:
            item, method = m.SessionKey(LOAD_TENANT, name), methods.SESSION_GET.code
        (crc,) = ROUTES[method].crcs([item])
        yield GroupId(kind, slots[crc & SLOT_MASK]).name, name


def _encoded(verb: str, group: str, names: list[str], number: int, measurement: Overload, rng: random.Random) -> Ready:
    values = [rng.randbytes(measurement.value_bytes) for _ in names]
    if verb == "kv.put":
        puts = [m.KvPutItem(name, "key", value) for name, value in zip(names, values, strict=True)]
        return _ready(group, methods.KV_PUT, m.KvPut(puts))
    if verb == "offset.commit":
        commits = [m.OffsetCommitItem(LOAD_TENANT, name, "orders", 0, number) for name in names]
        return _ready(group, methods.OFFSET_COMMIT, m.OffsetCommit(commits))
    items = [
        m.SessionTakeoverItem(LOAD_TENANT, name, False, m.SessionProperties(_EXPIRY_S, value))
        for name, value in zip(names, values, strict=True)
    ]
    taken = m.SessionTakeover(f"crowd-{number % 7}", 1, items)
    return _ready(group, methods.SESSION_TAKEOVER, taken)


def _ready(group: str, method: Method[Body, Any], body: Body) -> Ready:
    """The deadline is the first field of a request: an array of few fields has a head of one byte, and 0 takes one."""
    payload = method.encode_request(body, 0, None, group)
    return Ready(group, method.code, payload[:1], payload[2:])
