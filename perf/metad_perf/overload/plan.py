"""The settings of a run, and what the naive clients send. Pure.

Requests are encoded before the clock starts, so that the load costs its senders as little as possible.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import ClusterMap, GroupId, unpack_slots
from metad_wire.method import Body, Method
from metad_wire.routing import ROUTES, SLOT_MASK

from ..errors import UsageError

MIX: Final = {"session.takeover": 0.5, "kv.put": 0.3, "offset.commit": 0.2}
"""The share of each verb in the requests."""
GUARD_TENANT: Final = "guarded"
LOAD_TENANT: Final = "load"
_PAYLOADS: Final = 24  # requests of each verb and group that are encoded; they are sent in turn
_EXPIRY_S: Final = 86_400
_DEADLINE_BYTES: Final = 5  # of milliseconds, at most
_FACTOR_MIN: Final = 1.0


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a run. ``factor``: by which the load exceeds the capacity, for ``seconds``; ``base``: the load
    before and after, by the capacity, for ``window_s`` each; ``gap_s``: between the end of the overload and the
    window after it. ``batch``: items of a request; ``timeout_s``: after which a naive client gives up;
    ``connections`` of each process to each node. ``brokers`` with a lease of ``lease_s`` serve ``sessions``, half of
    which are away."""

    factor: float = 3.0
    seconds: float = 60.0
    base: float = 0.5
    window_s: float = 10.0
    gap_s: float = 3.0
    batch: int = 100
    timeout_s: float = 1.0
    processes: int = 2
    connections: int = 2
    value_bytes: int = 100
    brokers: int = 5
    lease_s: float = 3.0
    sessions: int = 2_000
    step_s: float = 2.0
    seed: int = 1

    def checked(self) -> Measurement:
        """This. Raises UsageError."""
        for field in ("seconds", "window_s", "timeout_s", "step_s"):
            if not getattr(self, field) > 0:
                raise UsageError(f"--{field.replace('_', '-')} must be over 0")
        for field in ("batch", "processes", "connections", "value_bytes", "brokers"):
            if getattr(self, field) < 1:
                raise UsageError(f"--{field.replace('_', '-')} must be at least 1")
        if not self.factor > _FACTOR_MIN:
            raise UsageError("--factor must be over 1: less is no overload")
        if not 0 < self.base < 1:
            raise UsageError("--base must be over 0 and under 1")
        if self.batch > m.BATCH_ITEMS_MAX:
            raise UsageError(f"--batch must be at most {m.BATCH_ITEMS_MAX}")
        if self.lease_s < 1:
            raise UsageError("--lease-s must be at least 1")
        if not 0 <= self.gap_s <= 10:
            raise UsageError("--gap-s must be 0 to 10: a service that needs longer has not come back")
        if self.sessions < 2 * self.brokers:
            raise UsageError("--sessions must be at least two for each of --brokers")
        return self


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


def requests(measurement: Measurement, cluster: ClusterMap, share: int) -> Callable[[], Ready]:
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


def _encoded(
    verb: str, group: str, names: list[str], number: int, measurement: Measurement, rng: random.Random
) -> Ready:
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
