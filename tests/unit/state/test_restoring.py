"""A takeover restores what belongs to its sessions, as the writes before it have left it, whatever is in flight."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from part_counts import COPIED, check_counts
from state_rig import Rig

from metad.state.core import counts
from metad.state.core.counts import COPY_BYTES_MAX
from metad.storage.memory import MemoryEngine
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import FenceItem, GroupFence
from metad_wire.errors import TooLargeError
from metad_wire.messages import Identity, InflightState, SessionProperties, SessionTakeover, Subscribed
from metad_wire.messages import SessionTakeoverItem as Take
from metad_wire.tables.inflight import (
    INFLIGHT,
    INFLIGHT_VALUE_BYTES_MAX,
    Inflight,
    InflightDelete,
    InflightKey,
    InflightPut,
)
from metad_wire.tables.subscription import Subscription, SubscriptionAdd, SubscriptionKey, SubscriptionRemove

LAGS = (0, 3, 50)  # entries that stay in flight: a command must believe in them


@pytest.fixture(params=LAGS, ids=lambda lag: f"lag{lag}")
def rig(request: pytest.FixtureRequest) -> Rig:
    rig = Rig(lag=request.param)
    take(rig, "b1", Take("t", "a"), Take("t", "b"), parts=False)
    return rig


def take(rig: Rig, broker: str, *items: Take, parts: bool = True, **more: Any) -> m.SessionTakeoverReply:
    body = SessionTakeover(broker, 1, list(items), more.pop("restore", False), parts)
    reply: m.SessionTakeoverReply = rig.write(methods.SESSION_TAKEOVER, body, **more)
    return reply


def subscribe(rig: Rig, client: str, *filters: str, broker: str = "b1") -> None:
    body = SubscriptionAdd(broker, 1, [Subscription("t", client, each) for each in filters])
    assert rig.write(methods.SUBSCRIPTION_ADD, body).errors == []


def unsubscribe(rig: Rig, client: str, *filters: str) -> None:
    body = SubscriptionRemove("b1", 1, [SubscriptionKey("t", client, each) for each in filters])
    assert rig.write(methods.SUBSCRIPTION_REMOVE, body).errors == []


def put(rig: Rig, client: str, value: bytes, *names: str) -> None:
    body = InflightPut("b1", 1, [Inflight("t", client, name, value) for name in names])
    assert rig.write(methods.INFLIGHT_PUT, body).errors == []


def test_it_restores_what_there_is(rig: Rig) -> None:
    subscribe(rig, "a", "x", "y/#")
    put(rig, "a", b"1", "out/1", "out/2")
    unsubscribe(rig, "a", "x")
    put(rig, "a", b"2", "out/2")
    reply = take(rig, "b2", Take("t", "b"), Take("t", "a"), Take("t", "new"))
    assert reply.subscriptions == [[], [Subscribed("y/#")], None]
    assert reply.inflight == [[], [InflightState("out/1", b"1"), InflightState("out/2", b"2")], None]
    assert reply.properties == []


def test_it_restores_nothing_that_is_not_asked_for_or_begins_anew(rig: Rig) -> None:
    subscribe(rig, "a", "x")
    reply = take(rig, "b1", Take("t", "a"), parts=False, restore=True)
    assert (reply.subscriptions, reply.inflight, reply.properties) == ([], [], [SessionProperties()])
    reply = take(rig, "b1", Take("t", "a", clean_start=True), restore=True)
    assert (reply.subscriptions, reply.inflight, reply.properties) == ([None], [None], [None])


def test_a_fenced_item_restores_nothing(rig: Rig) -> None:
    subscribe(rig, "a", "x")
    rig.write(methods.SESSION_TAKEOVER, SessionTakeover("b1", 3, [Take("t", "a")]))
    reply = take(rig, "b1", Take("t", "a"), Take("t", "b"))
    assert [error.index for error in reply.errors] == [0]
    assert (reply.subscriptions, reply.inflight) == ([None, []], [None, []])


@pytest.mark.parametrize("parts", [True, False])
def test_a_session_of_a_life_that_is_over_is_judged_by_its_own_properties(rig: Rig, *, parts: bool) -> None:
    # Some have counts with a copy of their properties, some with none because these are long, and some have no counts.
    given = {f"c{n}": SessionProperties(60 if n % 2 else 7_200, bytes(1_000 if n % 3 else n)) for n in range(12)}
    take(rig, "b1", *[Take("t", name, properties=kept) for name, kept in given.items()], parts=False)
    for name in list(given)[:8]:
        subscribe(rig, name, f"to/{name}")
    rig.write(methods.GROUP_FENCE, GroupFence([FenceItem("b1", 2, rig.now_ms)]))
    rig.advance(3_600_000)
    reply = take(rig, "b2", *[Take("t", name) for name in reversed(given)], Take("t", "new"), restore=True, parts=parts)
    lives = [*[name if kept.expiry_interval_s > 3_600 else None for name, kept in reversed(given.items())], None]
    assert reply.previous == [-1 if name is None else 0 for name in lives]
    assert reply.properties == [None if name is None else given[name] for name in lives]
    had = [None if name is None else [Subscribed(f"to/{name}")] if int(name[1:]) < 8 else [] for name in lives]
    assert reply.subscriptions == (had if parts else [])


def test_an_item_that_is_refused_has_its_place(rig: Rig) -> None:
    subscribe(rig, "b", "x")
    reply = take(rig, "b2", Take("t", "x" * 5_000), Take("t", "b"))
    assert (reply.subscriptions, reply.inflight) == ([None, [Subscribed("x")]], [None, []])


def test_a_retry_is_told_the_same_without_the_log_holding_it(rig: Rig) -> None:
    subscribe(rig, "a", "x" * 2_000)
    put(rig, "a", bytes(5_000), "1")
    first = take(rig, "b2", Take("t", "a"), Take("t", "new"), restore=True, identity=Identity(1, 1, 1))
    assert first.subscriptions == [[Subscribed("x" * 2_000)], None]
    assert len(rig.group.log[-1]) < 1_000
    again = take(rig, "b2", Take("t", "a"), Take("t", "new"), restore=True, identity=Identity(1, 1, 1, 5))
    assert again == first


def test_more_than_a_reply_holds_is_to_be_restored_in_parts() -> None:
    rig = Rig()
    clients = [f"c{n}" for n in range(12)]
    takes = [Take("t", client, properties=SessionProperties(1, bytes(200_000))) for client in clients]
    for one in takes:
        take(rig, "b1", one, parts=False)
    for client in clients:
        for n in range(6):
            put(rig, client, bytes(INFLIGHT_VALUE_BYTES_MAX), f"{n}")
    with pytest.raises(TooLargeError, match="ask for fewer"):
        take(rig, "b2", *(Take("t", client) for client in clients))
    with pytest.raises(TooLargeError, match="ask for fewer"):  # properties count, too
        take(rig, "b2", *(Take("t", client) for client in clients[:8]), restore=True)
    for client in clients[:8]:
        for n in range(30):
            subscribe(rig, client, *(f"{n}/{part}/{'x' * 3_900}" for part in range(4)))
    with pytest.raises(TooLargeError, match="ask for fewer"):  # and so do subscriptions
        take(rig, "b2", *(Take("t", client) for client in clients[:8]))
    for client in clients[:8]:
        for n in range(30):
            unsubscribe(rig, client, *(f"{n}/{part}/{'x' * 3_900}" for part in range(4)))
    reply = take(rig, "b2", *(Take("t", client) for client in clients[:8]))
    assert [len(states or ()) for states in reply.inflight] == [6] * 8


steps = st.lists(
    st.tuples(st.booleans(), st.sampled_from(["a", "b"]), st.lists(st.sampled_from("xyz"), min_size=1, unique=True)),
    max_size=12,
)


@settings(max_examples=100)
@given(steps=steps, lag=st.sampled_from(LAGS), applied=st.integers(0, 12), copied=st.sampled_from(COPIED))
def test_whatever_is_in_flight_it_restores_what_the_writes_left(
    steps: list[tuple[bool, str, list[str]]], lag: int, applied: int, copied: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counts, "COPY_BYTES_MAX", copied)
        restores_what_the_writes_left(steps, lag, applied)


def restores_what_the_writes_left(steps: list[tuple[bool, str, list[str]]], lag: int, applied: int) -> None:
    rig = Rig(lag=lag)
    take(rig, "b1", Take("t", "a"), Take("t", "b"), parts=False)
    model: dict[str, dict[str, bytes]] = {"a": {}, "b": {}}
    for number, (adds, client, names) in enumerate(steps):
        value = b"%d" % number
        if adds:
            put(rig, client, value, *names)
            model[client] |= dict.fromkeys(names, value)
        else:
            body = InflightDelete("b1", 1, [InflightKey("t", client, name) for name in names])
            rig.write(methods.INFLIGHT_DELETE, body)
            model[client] = {name: value for name, value in model[client].items() if name not in names}
        if number == applied:
            rig.settle()
    reply = take(rig, "b2", Take("t", "b"), Take("t", "a"))
    found = [{state.name: state.value for state in states or ()} for states in reply.inflight]
    assert found == [model["b"], model["a"]]
    assert [[state.name for state in states or ()] for states in reply.inflight] == [
        sorted(model["b"]),
        sorted(model["a"]),
    ]
    check_counts(rig, INFLIGHT, "state")


def test_short_rows_are_restored_without_a_scan_and_long_ones_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the cost of a storm: a scan costs as much as a dozen look-ups."""
    rig, scans = Rig(), 0
    take(rig, "b1", Take("t", "a"), Take("t", "b"), parts=False)
    subscribe(rig, "a", "x", "y/#")
    put(rig, "a", b"1", "out/1")
    put(rig, "b", bytes(COPY_BYTES_MAX // 2), "out/1", "out/2")

    def scan(engine: MemoryEngine, *arguments: Any) -> list[tuple[bytes, bytes]]:
        nonlocal scans
        scans += 1
        return plain(engine, *arguments)

    plain = MemoryEngine.scan
    monkeypatch.setattr(MemoryEngine, "scan", scan)
    reply = take(rig, "b2", Take("t", "a"))
    assert (reply.subscriptions, reply.inflight) == (
        [[Subscribed("x"), Subscribed("y/#")]], [[InflightState("out/1", b"1")]],
    )  # fmt: skip
    assert scans == 0
    reply = take(rig, "b2", Take("t", "b"))
    assert [state.name for state in reply.inflight[0] or ()] == ["out/1", "out/2"]
    assert scans == 1


def test_rows_that_have_outgrown_their_copy_have_one_again_after_they_are_gone(rig: Rig) -> None:
    put(rig, "a", bytes(COPY_BYTES_MAX), "1")
    put(rig, "a", b"short", "1", "2")
    assert take(rig, "b1", Take("t", "a")).inflight == [[InflightState("1", b"short"), InflightState("2", b"short")]]
    delete = InflightDelete("b1", 1, [InflightKey("t", "a", "1"), InflightKey("t", "a", "2")])
    assert rig.write(methods.INFLIGHT_DELETE, delete).errors == []
    assert take(rig, "b1", Take("t", "a")).inflight == [[]]
    put(rig, "a", b"short", "1", "3")
    assert take(rig, "b1", Take("t", "a")).inflight == [[InflightState("1", b"short"), InflightState("3", b"short")]]
    check_counts(rig, INFLIGHT, "state")


def test_a_client_that_begins_anew_and_is_there_twice_has_nothing_of_its_lost_session() -> None:
    rig = Rig()
    rig.write(methods.GROUP_FENCE, GroupFence([FenceItem("b1", 1, rig.now_ms)]))
    take(rig, "b1", Take("t", "a", properties=SessionProperties(1_000)))
    subscribe(rig, "a", "x/y")
    rig.write(methods.GROUP_FENCE, GroupFence([FenceItem("b1", 2, rig.now_ms)]))
    body = SessionTakeover("b1", 2, [Take("t", "a", clean_start=True), Take("t", "a")], True, True)
    reply = rig.write(methods.SESSION_TAKEOVER, body)
    assert [None if rows is None else len(rows) for rows in reply.subscriptions] == [None, 0]
