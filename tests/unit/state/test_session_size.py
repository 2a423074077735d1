"""However much a session has, it can be ended; and few requests do not end so much that no follower could take it."""

from __future__ import annotations

from typing import Any

import pytest
from state_rig import Rig, command_of, item_errors
from sweep_rig import HOUR_MS, World, do

from metad.node.chores.session_sweeps import DueSweep
from metad.state.core.due import DUE
from metad.state.core.limits import ENTRY_BYTES_MAX
from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import TooLargeError
from metad_wire.messages import SessionProperties, SessionTakeoverItem, Will
from metad_wire.method import Method
from metad_wire.tables.inflight import INFLIGHT_BYTES_MAX, INFLIGHT_MAX, Inflight, InflightPut
from metad_wire.tables.session import SESSION
from metad_wire.tables.subscription import SUBSCRIPTION_BYTES_MAX, Subscription, SubscriptionAdd

CLIENT = "c" * 1_000
"""With long names the keys of what belongs to a session are long, and few of them reach the quota."""


def take(rig: Rig, *clients: str, properties: SessionProperties | None = None, clean: bool = False) -> Any:
    items = [SessionTakeoverItem("t", client, clean, properties) for client in clients]
    return rig.write(methods.SESSION_TAKEOVER, m.SessionTakeover("b", 1, items))


def fill(rig: Rig, client: str, subscriptions: int = 127, inflight: int = INFLIGHT_MAX) -> None:
    """Give a session as much of both as it may have, in so many rows."""
    own = len(SESSION.key_of(["t", client])) + 2
    for begin in range(0, subscriptions, 50):
        long = min(m.KEY_BYTES_MAX, SUBSCRIPTION_BYTES_MAX // subscriptions - 8) - own
        names = [f"{n:04}".ljust(long, "x") for n in range(begin, min(subscriptions, begin + 50))]
        body = SubscriptionAdd("b", 1, [Subscription("t", client, name) for name in names])
        assert item_errors(rig.write(methods.SUBSCRIPTION_ADD, body)) == {}
    for begin in range(0, inflight, 1_000):
        long = min(m.KEY_BYTES_MAX, INFLIGHT_BYTES_MAX // inflight - 2) - own
        names = [f"{n:04}".ljust(long, "x") for n in range(begin, min(inflight, begin + 1_000))]
        put = InflightPut("b", 1, [Inflight("t", client, name, b"") for name in names])
        assert item_errors(rig.write(methods.INFLIGHT_PUT, put)) == {}


def will_of(size: int) -> Will:
    return Will("w", bytes(size - 1), delay_s=1)


@pytest.fixture(scope="module")
def full() -> Rig:
    """A session with as many short rows as there may be, and one with as long ones; both with the longest will."""
    rig = Rig()
    properties = SessionProperties(expiry_interval_s=5, will=will_of(m.VALUE_BYTES_MAX))
    for client in ("short", CLIENT):
        take(rig, client, properties=properties)
    fill(rig, "short")
    fill(rig, CLIENT, 127, 127)
    rig.settle()
    return rig


ENDS: dict[str, tuple[Method[Any, Any], Any]] = {
    "delete": (methods.SESSION_DELETE, lambda client: m.SessionDelete([m.SessionDeleteItem("t", client)])),
    "disconnect": (
        methods.SESSION_DISCONNECT,
        lambda client: m.SessionDisconnect("b", 1, [m.SessionDisconnectItem("t", client, 0)]),
    ),
    "clean start": (
        methods.SESSION_TAKEOVER,
        lambda client: m.SessionTakeover("b", 1, [SessionTakeoverItem("t", client, True)]),
    ),
}


@pytest.mark.parametrize("client", ["short", CLIENT], ids=["short rows", "long rows"])
@pytest.mark.parametrize("end", ENDS)
def test_a_session_with_all_that_it_may_have_can_be_ended(full: Rig, client: str, end: str) -> None:
    method, body_of = ENDS[end]
    body = body_of(client)
    command = command_of(method, body, size=len(method.encode_request(body)))
    (outcome,) = full.group.propose([(command, None)], full.now_ms)
    assert isinstance(outcome, bytes), outcome
    assert len(full.group.log[-1]) <= ENTRY_BYTES_MAX
    full.group.machine.forget()  # it was not committed: the next test finds the sessions as they were
    full.group.in_flight.clear()
    full.group.log.pop()


def test_the_sweep_ends_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    take(rig, "a", properties=SessionProperties(5, b"", will_of(m.VALUE_BYTES_MAX)))
    fill(rig, "a")
    rig.settle()
    world = World(DueSweep, DUE, rig.group, monkeypatch)
    gone = m.SessionDisconnect("b", 1, [m.SessionDisconnectItem("t", "a")])
    do(world.group, methods.SESSION_DISCONNECT, gone)
    world.advance(HOUR_MS)
    do(world.group, methods.KV_PUT, m.KvPut([m.KvPutItem("n", "k", b"")]))
    world.advance(HOUR_MS)
    world.turns()
    assert world.counts["ended"] == 1


def test_what_fits_no_entry_holds_up_no_other_session(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    names = [f"c{n}" for n in range(4)]
    take(rig, *names, properties=SessionProperties(5))
    world = World(DueSweep, DUE, rig.group, monkeypatch)
    gone = m.SessionDisconnect("b", 1, [m.SessionDisconnectItem("t", name) for name in names])
    do(world.group, methods.SESSION_DISCONNECT, gone)
    world.advance(HOUR_MS)
    do(world.group, methods.KV_PUT, m.KvPut([m.KvPutItem("n", "k", b"")]))
    world.advance(HOUR_MS)
    request = world.request

    def refuse_one(method: Any, body: c.SessionSweep, done: Any, *, group: str) -> None:
        world.refusal = TooLargeError("") if any(item.client_id == "c1" for item in body.items) else None
        request(method, body, done, group=group)

    monkeypatch.setattr(world, "request", refuse_one)
    world.turns()
    assert world.counts["ended"] == 3
    assert not world.sweep.begin(1_000, world.done.append), "it does not ask for the same for ever"


def test_few_short_requests_make_no_entry_that_a_follower_cannot_take() -> None:
    """40 deletes of 19 bytes once made an entry of 34 MB: longer than a frame between nodes."""
    rig = Rig()
    clients = [f"c{n:02}" for n in range(12)]
    take(rig, *clients, properties=SessionProperties(1))
    for client in clients:
        fill(rig, client, 127, 127)
    rig.settle()
    bodies = [m.SessionDelete([m.SessionDeleteItem("t", client)]) for client in clients]
    size = len(methods.SESSION_DELETE.encode_request(bodies[0]))
    commands = [(command_of(methods.SESSION_DELETE, body, size=size), None) for body in bodies]
    outcomes = rig.group.propose(commands, rig.now_ms)
    assert all(isinstance(outcome, bytes) for outcome in outcomes)
    assert len(rig.group.log[-1]) <= ENTRY_BYTES_MAX
    assert len(outcomes) < len(clients), "the others are for the next entry"


def test_more_than_one_session_may_have_is_ended_in_parts() -> None:
    rig = Rig()
    take(rig, "a", "b", properties=SessionProperties(1))
    for client in "ab":
        fill(rig, client, 127, 127)
    with pytest.raises(TooLargeError, match="name fewer"):
        rig.write(methods.SESSION_DELETE, m.SessionDelete([m.SessionDeleteItem("t", client) for client in "ab"]))


def test_wills_that_become_due_count_as_what_a_request_changes() -> None:
    rig = Rig()
    clients = [f"c{n}" for n in range(8)]
    for client in clients:
        take(rig, client, properties=SessionProperties(1_000, b"", Will("w", bytes(m.VALUE_BYTES_MAX - 1))))
    body = m.SessionDisconnect("b", 1, [m.SessionDisconnectItem("t", client) for client in clients])
    command = command_of(methods.SESSION_DISCONNECT, body, size=len(methods.SESSION_DISCONNECT.encode_request(body)))
    (outcome,) = rig.group.propose([(command, None)], rig.now_ms)
    assert isinstance(outcome, TooLargeError)
    assert rig.write(methods.SESSION_DISCONNECT, m.SessionDisconnect("b", 1, body.items[:1])).errors == []


def test_a_will_counts_as_a_part_of_what_a_broker_keeps() -> None:
    half = m.VALUE_BYTES_MAX // 2
    allowed = SessionTakeoverItem("t", "a", properties=SessionProperties(1, bytes(half), will_of(half)))
    assert SESSION.fault(allowed) is None
    for payload, will in (
        (bytes(half + 1), will_of(half)),
        (b"", Will("w", bytes(m.VALUE_BYTES_MAX))),
        (b"", Will("é" * half, b"e")),
        (b"", Will("w", properties=bytes(m.VALUE_BYTES_MAX))),
    ):
        properties = SessionProperties(1, payload, will)
        for item in (SessionTakeoverItem("t", "a", properties=properties), m.SessionUpdateItem("t", "a", properties)):
            assert "1048576 are allowed" in str(SESSION.fault(item))
