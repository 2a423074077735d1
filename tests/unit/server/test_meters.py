"""What a node counts: who is loudest of however many, in bounded room; which requests were slow, and what they waited
for."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

from metad.node.meters import FADES_S, Loudest, Meters
from metad_wire import messages as m
from metad_wire.errors import InvalidItemError, OverloadedError, QuotaExceededError
from metad_wire.methods import KV_PUT
from metad_wire.refused import Refused
from metad_wire.tables.kv import KV


def test_the_loudest_are_found_among_many() -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    rng = random.Random(seed)
    loud: Loudest[str] = Loudest()
    truth: Counter[str] = Counter()
    for _ in range(20_000):
        name = f"loud-{rng.randrange(5)}" if rng.random() < 0.4 else f"quiet-{rng.randrange(100_000)}"
        weight = rng.randrange(1, 20)
        truth[name] += weight
        loud.add(name, weight)
    found = loud.top(5)
    assert {one.name for one in found} == {f"loud-{number}" for number in range(5)}
    for one in loud.top(1_000_000):
        assert one.at_least <= truth[one.name] <= one.at_most
        assert one.at_most - one.at_least <= sum(truth.values()) / Loudest.KEPT
    assert len(loud.top(1_000_000)) <= 2 * Loudest.KEPT


def test_few_are_counted_exactly() -> None:
    loud: Loudest[str] = Loudest()
    for number in range(2 * Loudest.KEPT):
        loud.add(str(number), number + 1)
    assert loud.top(2)[0] == (str(2 * Loudest.KEPT - 1), 2 * Loudest.KEPT, 2 * Loudest.KEPT)


def test_who_was_loud_is_forgotten() -> None:
    loud: Loudest[str] = Loudest()
    loud.fade(1_000.0)
    loud.add("a", 64)
    loud.fade(1_000.0 + FADES_S - 1)
    assert loud.top(1) == [("a", 64, 64)]
    loud.fade(1_000.0 + FADES_S)
    loud.add("b", 40)
    assert loud.top(2) == [("b", 40, 40), ("a", 32, 32)]
    loud.fade(1_000.0 + 3 * FADES_S)
    assert loud.top(2) == [("b", 10, 10), ("a", 8, 8)]
    loud.fade(1_000.0 + 10_000 * FADES_S)
    assert loud.top(2) == []


HOST: Any = SimpleNamespace(holder="host")


def command(tenant: bytes, *keys: bytes, items: int | None = None) -> Any:
    """As :class:`Command` is, for the meters."""
    found = [KV.key_of((tenant.decode(), key.decode())) for key in keys]
    return SimpleNamespace(method=KV_PUT, items=items or len(found), tenant=tenant, rows=SimpleNamespace(keys=found))


def test_one_request_of_seven_is_looked_at_and_counts_for_all() -> None:
    meters = Meters()
    for _ in range(70):
        meters.begun(command(b"acme", b"k", items=10), None, HOST, m.Owner("b1", 1), 0.0)
    reply = meters.activity(m.Activity(), shows_names=True)
    assert reply.tenants == [m.Loud("acme", 700, 700)]
    assert reply.clients == [m.Loud("host", 700, 700)]
    assert reply.brokers == [m.Loud("b1", 700, 700)]
    assert meters.by_name()["kv.put"].items == 700


def test_keys_are_named_and_not_for_everybody() -> None:
    meters = Meters()
    for _ in range(7):
        meters.begun(command(b"ns", b"hot"), None, HOST, None, 0.0)
    (hot,) = meters.activity(m.Activity(), shows_names=True).keys
    assert hot.name == f"{KV.name} ns/hot"
    reply = meters.activity(m.Activity(), shows_names=False)
    assert (reply.keys, reply.brokers, reply.clients, len(reply.tenants)) == ([], [], [], 1)


def test_of_a_batch_not_always_the_same_key_is_looked_at() -> None:
    meters = Meters()
    for _ in range(14):
        meters.begun(command(b"ns", b"a", b"b"), None, HOST, None, 0.0)
    assert {one.name.rpartition("/")[2] for one in meters.activity(m.Activity(), shows_names=True).keys} == {"a", "b"}


def test_how_slow_a_node_is_is_what_nine_of_ten_took_in_the_last_minute() -> None:
    meters = Meters()
    for _ in range(19):
        meters.sync_s.add(0.2)
    assert meters.tail() == m.Tail(), "few say nothing"
    meters.sync_s.add(0.2)
    meters.apply_s.buckets[0] += 90
    meters.apply_s.buckets[-1] += 10
    for _ in range(100):
        meters.loop_late_s.add(100.0)
    assert meters.tail() == m.Tail(250_000, 100, 10_000_000)
    for second in range(75):
        meters.look(float(second))
    assert meters.tail() == m.Tail(), "what is over for a minute"
    for _ in range(20):
        meters.sync_s.add(0.0007)
    assert meters.tail() == m.Tail(1_000)


def test_refused_items_are_counted_by_error() -> None:
    meters = Meters()
    refused = Refused(
        5, {0: "its key is too long", 3: QuotaExceededError("too much"), 4: QuotaExceededError("too much")}
    )
    meters.begun(command(b"ns", b"a"), refused, HOST, None, 0.0)
    assert meters.refused == {InvalidItemError.name: 1, QuotaExceededError.name: 2}
    meters.turned_away(QuotaExceededError.name, 7)
    assert meters.refused[QuotaExceededError.name] == 9, "with those of a request that was refused as a whole"


def test_a_reply_is_bounded_and_the_newest_comes_first() -> None:
    meters = Meters()
    for number in range(Meters.SLOW_KEPT + 50):
        meters.slow.append(m.SlowRequest(number, "kv.put", "c", "t", "", OverloadedError.name, "7:1", 1, 1, 1, 0, 1))
    assert {(one.client, one.identity) for one in meters.activity(m.Activity(), shows_names=True).slow} == {
        ("c", "7:1")
    }
    reply = meters.activity(m.Activity(3), shows_names=False)
    assert {(one.client, one.identity, one.tenant) for one in reply.slow} == {("", "", "t")}, "names are not for all"
    assert [one.ended_ms for one in reply.slow] == [Meters.SLOW_KEPT + 49 - at for at in range(3)]
    assert len(meters.activity(m.Activity(10**9), shows_names=False).slow) == Meters.SLOW_KEPT
