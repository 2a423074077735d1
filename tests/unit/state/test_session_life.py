"""The life of a session by the time of the log: its deadlines, its end and what goes with it, and its will."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from state_rig import Rig, contents, item_errors

from metad.state.cluster.fences import Fences
from metad.state.core.due import DUE, DueKind, due_key, split_due
from metad.state.core.slot_assignment import ALL_SLOTS
from metad.state.session import session_end
from metad.storage import keys
from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import TooLargeError
from metad_wire.messages import NEVER_S, SessionDisconnectItem, SessionProperties, SessionTakeoverItem, Will
from metad_wire.methods import encode
from metad_wire.tables import inflight, subscription
from metad_wire.tables import will as due_wills
from metad_wire.tables.kv import KV
from metad_wire.tables.session import SESSION

LAGS = (0, 3)
WILL = Will("gone", b"bye", delay_s=30)
AT_ONCE = Will("gone", b"bye")
_decode_owner = msgspec.msgpack.Decoder(m.SessionOwner).decode
_decode_will = msgspec.msgpack.Decoder(due_wills.WillDue).decode


@pytest.fixture(params=LAGS, ids=lambda lag: f"lag{lag}")
def rig(request: pytest.FixtureRequest) -> Rig:
    return begun(request.param)


def begun(lag: int = 0) -> Rig:
    """A group whose leader has led for long."""
    rig = Rig(lag=lag)
    rig.write(methods.KV_PUT, m.KvPut([m.KvPutItem("n", "k", b"")]))
    rig.settle()  # nothing is in flight for an hour: the log's time goes on from when an entry was applied
    rig.advance(3_600_000)
    return rig


def connect(
    rig: Rig, name: str = "a", properties: SessionProperties | None = None, *, broker: str = "b", **how: Any
) -> m.SessionTakeoverReply:
    item = SessionTakeoverItem("t", name, properties=properties, **how)
    reply: m.SessionTakeoverReply = rig.write(
        methods.SESSION_TAKEOVER, m.SessionTakeover(broker, 1, [item], restore=True)
    )
    return reply


def leave(rig: Rig, name: str = "a", *, broker: str = "b", **how: Any) -> dict[int, str]:
    item = SessionDisconnectItem("t", name, **how)
    return item_errors(rig.write(methods.SESSION_DISCONNECT, m.SessionDisconnect(broker, 1, [item])))


def delete(rig: Rig, name: str = "a", disconnected_ms: int = 0) -> m.WriteReply:
    reply: m.WriteReply = rig.write(
        methods.SESSION_DELETE, m.SessionDelete([m.SessionDeleteItem("t", name, disconnected_ms)])
    )
    return reply


def sweep(rig: Rig, *items: c.SessionDue) -> tuple[int, int, int]:
    """(ended, wills, waiting)"""
    reply: c.SessionSweepReply = rig.write(methods.SESSION_SWEEP, c.SessionSweep(list(items)))
    return reply.ended, reply.wills, reply.waiting


def owner(rig: Rig, name: str = "a") -> m.SessionOwner | None:
    rig.settle()
    row = rig.group.engine.get(keys.table_prefix(rig.group.prefix, SESSION.rows["owner"]) + keys.text2("t", name))
    return None if row is None else _decode_owner(row)


def due(rig: Rig) -> list[tuple[int, int, str]]:
    """What the index has: (deadline, kind, client)."""
    rig.settle()
    prefix = keys.table_prefix(rig.group.prefix, DUE)
    found = [split_due(key) for key, _ in contents(rig.group.engine) if key.startswith(prefix)]
    return [(one.at_ms, one.kind, keys.split_text(one.session, 2 + 1)[0]) for one in found]


def wills(rig: Rig) -> list[tuple[str, Will]]:
    """Those that are due, with their clients, in the order of the clients."""
    rig.settle()
    prefix = keys.table_prefix(rig.group.prefix, due_wills.WILL.rows["due"])
    rows = [(key[len(prefix) :], value) for key, value in contents(rig.group.engine) if key.startswith(prefix)]
    return [(keys.split_text(key, 2 + 1)[0], _decode_will(value).will) for key, value in rows]


def present(reply: m.SessionTakeoverReply) -> bool:
    return reply.previous[0] >= 0


# --- deadlines -------------------------------------------------------------------------------------------


def test_a_disconnect_sets_the_deadlines_and_a_takeover_cancels_them(rig: Rig) -> None:
    connect(rig, properties=SessionProperties(600, b"p", WILL))
    assert due(rig) == []
    assert leave(rig) == {}
    now = rig.now_ms
    assert owner(rig) == m.SessionOwner(False, "b", 1, now, 0, now + 600_000, now + 30_000)
    assert due(rig) == [(now + 30_000, DueKind.WILL, "a"), (now + 600_000, DueKind.EXPIRY, "a")]
    rig.advance(29_000)
    reply = connect(rig, broker="other")
    assert present(reply)
    assert reply.properties == [SessionProperties(600, b"p", WILL)]
    assert (due(rig), wills(rig)) == ([], [])


def test_an_interval_of_the_disconnect_counts_instead(rig: Rig) -> None:
    connect(rig, properties=SessionProperties(600))
    leave(rig, expiry_interval_s=7)
    assert due(rig) == [(rig.now_ms + 7_000, DueKind.EXPIRY, "a")]


def test_a_session_that_never_ends_has_no_deadline(rig: Rig) -> None:
    connect(rig, properties=SessionProperties(NEVER_S, b"", WILL))
    leave(rig)
    assert due(rig) == [(rig.now_ms + 30_000, DueKind.WILL, "a")]
    connect(rig, "b", SessionProperties(NEVER_S, b"", WILL))
    leave(rig, "b", will_discard=True)
    assert [client for _, _, client in due(rig)] == ["a"]


def test_an_interval_of_nothing_ends_the_session_at_once(rig: Rig) -> None:
    connect(rig, properties=SessionProperties(0, b"p", WILL))
    connect(rig, "b", SessionProperties(600, b"p", WILL))
    leave(rig)
    leave(rig, "b", expiry_interval_s=0, will_discard=True)
    assert (owner(rig), owner(rig, "b"), due(rig)) == (None, None, [])
    assert wills(rig) == [("a", WILL)]
    assert leave(rig) == {0: "not_found"}
    reply = connect(rig)
    assert (present(reply), reply.properties) == (False, [None])


def test_a_client_twice_in_one_disconnect_goes_once(rig: Rig) -> None:
    connect(rig, properties=SessionProperties(0, b"", AT_ONCE))
    connect(rig, "b", SessionProperties(60))
    items = [SessionDisconnectItem("t", name) for name in "ab"]
    items += [SessionDisconnectItem("t", name, 0) for name in "ab"]
    reply = rig.write(methods.SESSION_DISCONNECT, m.SessionDisconnect("b", 1, items))
    assert item_errors(reply) == {}
    assert (len(wills(rig)), len(due(rig))) == (1, 1)


def test_a_repeated_disconnect_changes_no_deadline(rig: Rig) -> None:
    connect(rig, properties=SessionProperties(60))
    leave(rig)
    before = owner(rig), due(rig)
    rig.advance(5_000)
    assert leave(rig, expiry_interval_s=0) == {}
    assert (owner(rig), due(rig)) == before


def test_the_rows_are_in_the_order_of_their_deadlines_and_a_will_is_before_the_end() -> None:
    session = keys.text2("t", "a")
    found = [
        due_key(b"\x03\0\0", at_ms, kind, session) for at_ms in (1, 255, 256) for kind in (DueKind.WILL, DueKind.EXPIRY)
    ]
    assert found == sorted(found)
    assert found[-1] == b"\x03\0\0\x15" + b"\0\0\0\0\0\0\x01\0" + b"\x02" + session
    assert split_due(found[-1]) == (256, DueKind.EXPIRY, session)
    assert keys.slot_of_key(found[-1][3:]) == keys.slot_of_key(bytes((SESSION.rows["owner"],)) + session)


# --- takeovers that come after the deadline --------------------------------------------------------------


def test_a_takeover_after_the_end_finds_no_session(rig: Rig) -> None:
    connect(rig, properties=SessionProperties(60, b"old", WILL))
    leave(rig)
    rig.advance(60_000)
    reply = connect(rig, broker="other")
    assert (present(reply), reply.properties, reply.owners) == (False, [None], [])
    assert (due(rig), wills(rig)) == ([], [("a", WILL)])
    again = connect(rig)
    assert (present(again), again.properties) == (True, [SessionProperties()])


def test_a_takeover_after_the_end_that_restores_nothing_begins_a_session(rig: Rig) -> None:
    connect(rig, properties=SessionProperties(60, b"old"))
    leave(rig)
    rig.advance(60_000)
    rig.write(methods.SESSION_TAKEOVER, m.SessionTakeover("b", 1, [SessionTakeoverItem("t", "a")]))
    assert connect(rig).properties == [SessionProperties()]


def test_a_takeover_before_the_end_finds_the_session_whose_will_was_published(rig: Rig) -> None:
    connect(rig, properties=SessionProperties(60, b"old", WILL))
    leave(rig)
    rig.advance(30_000)
    assert present(connect(rig, broker="other"))
    assert (due(rig), wills(rig)) == ([], [("a", WILL)])


def test_a_clean_start_publishes_the_will_of_the_session_that_it_ends(rig: Rig) -> None:
    connect(rig, properties=SessionProperties(60, b"old", WILL))
    leave(rig)
    connect(rig, clean_start=True)
    assert wills(rig) == [("a", WILL)]
    connect(rig, "c", SessionProperties(60, b"old", WILL))
    connect(rig, "c", broker="other", clean_start=True)
    assert wills(rig) == [("a", WILL), ("c", WILL)]
    connect(rig, "c", clean_start=True)
    assert len(wills(rig)) == 2


def test_a_client_twice_in_a_takeover_of_a_session_that_is_over(rig: Rig) -> None:
    connect(rig, properties=SessionProperties(60, b"old", WILL))
    leave(rig)
    rig.advance(60_000)
    items = [SessionTakeoverItem("t", "a", properties=SessionProperties(5)), SessionTakeoverItem("t", "a")]
    reply = rig.write(methods.SESSION_TAKEOVER, m.SessionTakeover("b", 2, items, restore=True))
    assert [number >= 0 for number in reply.previous] == [False, True]
    assert reply.properties == [None, SessionProperties(5)]
    assert wills(rig) == [("a", WILL)]


def test_a_fenced_takeover_ends_nothing(rig: Rig) -> None:
    rig.write(methods.SESSION_TAKEOVER, m.SessionTakeover("b", 9, [SessionTakeoverItem("t", "a")]))
    items = [SessionDisconnectItem("t", "a", 60)]
    rig.write(methods.SESSION_DISCONNECT, m.SessionDisconnect("b", 9, items))
    connected = [SessionTakeoverItem("t", "c", properties=SessionProperties(60, b"", WILL))]
    rig.write(methods.SESSION_TAKEOVER, m.SessionTakeover("b", 9, connected))
    before = owner(rig), owner(rig, "c"), due(rig)
    for name in "ac":
        assert item_errors(connect(rig, name, clean_start=True)) == {0: "fenced"}
    assert (owner(rig), owner(rig, "c"), due(rig)) == before
    assert wills(rig) == []


# --- amnesty ---------------------------------------------------------------------------------------------


def test_nothing_has_passed_for_a_leader_that_has_just_begun(rig: Rig) -> None:
    connect(rig, properties=SessionProperties(60, b"p", WILL))
    leave(rig)
    rig.settle()
    (will, end) = due(rig)
    rig.advance(120_000)
    rig.group.machine.forget()
    assert sweep(rig, *(c.SessionDue("t", client, at_ms, kind) for at_ms, kind, client in (will, end))) == (0, 0, 2)
    assert present(connect(rig, broker="other"))
    assert wills(rig) == []


# --- the sweep -------------------------------------------------------------------------------------------


def test_the_sweep_does_what_is_due_and_only_that(rig: Rig) -> None:
    connect(rig, properties=SessionProperties(60, b"p", WILL))
    leave(rig)
    will, end = (c.SessionDue("t", client, at_ms, kind) for at_ms, kind, client in due(rig))
    rig.advance(29_999)
    assert sweep(rig, will, end) == (0, 0, 2)
    rig.advance(1)
    assert sweep(rig, will, end) == (0, 1, 1)
    assert sweep(rig, will) == (0, 0, 0)
    assert due(rig) == [(end.at_ms, DueKind.EXPIRY, "a")]
    assert wills(rig) == [("a", WILL)]
    rig.advance(30_000)
    assert sweep(rig, end) == (1, 0, 0)
    assert (owner(rig), due(rig), len(wills(rig))) == (None, [], 1)
    rows = [key for key, _ in contents(rig.group.engine) if b"t\0\1a" in key]
    assert len(rows) == 1, "nothing is left but the will"


def test_the_sweep_does_a_late_will_and_the_end_at_once(rig: Rig) -> None:
    connect(rig, properties=SessionProperties(60, b"p", WILL))
    leave(rig)
    will, end = (c.SessionDue("t", client, at_ms, kind) for at_ms, kind, client in due(rig))
    rig.advance(60_000)
    assert sweep(rig, end, will) == (1, 1, 0)
    assert (owner(rig), due(rig), wills(rig)) == (None, [], [("a", WILL)])
    assert sweep(rig, will, end) == (0, 0, 0)


def test_the_sweep_ends_no_session_that_has_come_back(rig: Rig) -> None:
    connect(rig, properties=SessionProperties(60))
    leave(rig)
    ((at_ms, kind, _),) = due(rig)
    rig.advance(10_000)
    connect(rig)
    rig.advance(100_000)
    assert sweep(rig, c.SessionDue("t", "a", at_ms, kind)) == (0, 0, 0)
    assert sweep(rig, c.SessionDue("t", "a", 0, kind)) == (0, 0, 0)
    leave(rig)
    assert sweep(rig, c.SessionDue("t", "a", at_ms, kind)) == (0, 0, 0)
    assert owner(rig) is not None


def test_the_entry_of_a_sweep_says_why_the_session_went() -> None:
    rig = begun(lag=1)
    connect(rig, properties=SessionProperties(60))
    leave(rig)
    ((at_ms, kind, _),) = due(rig)
    rig.advance(60_000)
    sweep(rig, c.SessionDue("t", "a", at_ms, kind))
    assert rig.group.in_flight[-1][2].origin == 2


# --- delete ----------------------------------------------------------------------------------------------


def test_a_session_is_deleted_only_if_it_is_still_what_was_seen(rig: Rig) -> None:
    """Once a sweeper that had seen a session of its broker disconnected deleted it although it was connected again."""
    connect(rig, properties=SessionProperties(60, b"", WILL))
    leave(rig)
    seen_ms = rig.now_ms
    rig.advance(1_000)
    connect(rig)
    for current in (0, rig.now_ms + 1_000):
        (error,) = delete(rig, disconnected_ms=seen_ms).errors
        assert (error.code, error.current) == (203, current)
        rig.advance(1_000)
        leave(rig)
    assert item_errors(delete(rig, disconnected_ms=rig.now_ms - 1_000)) == {}
    assert (owner(rig), due(rig), wills(rig)) == (None, [], [])


def test_a_session_of_a_life_that_is_over_is_deleted_by_what_a_read_shows_of_it() -> None:
    rig = begun()
    connect(rig, properties=SessionProperties(60, b"", WILL))
    rig.advance(1_000)
    fence(rig)
    rig.advance(1_000)
    seen_ms = read(rig).disconnected_ms
    (error,) = delete(rig, disconnected_ms=seen_ms + 1).errors
    assert (error.code, error.current) == (203, seen_ms), "the sweep has not come to it yet"
    assert item_errors(delete(rig, disconnected_ms=seen_ms)) == {}
    assert owner(rig) is None


# --- what belongs to a session ---------------------------------------------------------------------------

PARTS = types.SimpleNamespace(name="parts", part_of="session", rows={"part": KV.rows["record"]})
COUNTED = types.SimpleNamespace(name="subscription", part_of="session", rows=PARTS.rows)
ENDS: dict[str, Callable[[Rig], Any]] = {
    "disconnect": lambda rig: leave(rig, expiry_interval_s=0),
    "delete": delete,
    "clean start": lambda rig: connect(rig, clean_start=True),
}


def put_parts(rig: Rig, row: int, *names: str) -> None:
    rig.settle()
    prefix = keys.table_prefix(rig.group.prefix, row)
    rows = {prefix + keys.text2("t", name) + keys.text("part"): b"." for name in names}
    rig.group.engine.write(rows)
    rig.group.follower_engine.write(rows)


def parts(rig: Rig, row: int) -> list[bytes]:
    rig.settle()
    prefix = keys.table_prefix(rig.group.prefix, row)
    return [key[len(prefix) :] for key, _ in contents(rig.group.engine) if key.startswith(prefix) and b"t\0" in key]


@pytest.mark.parametrize("how", ENDS)
def test_what_belongs_to_a_session_goes_with_it(monkeypatch: pytest.MonkeyPatch, rig: Rig, how: str) -> None:
    monkeypatch.setattr(session_end, "TABLES", {"parts": PARTS, **session_end.TABLES})
    connect(rig, properties=SessionProperties(60))
    put_parts(rig, KV.rows["record"], "a", "ab", "b")
    ENDS[how](rig)
    assert parts(rig, KV.rows["record"]) == [
        keys.text2("t", "ab") + keys.text("part"),
        keys.text2("t", "b") + keys.text("part"),
    ]


@pytest.mark.parametrize("how", ENDS)
def test_subscriptions_and_what_is_in_flight_for_the_client_go_with_its_session(rig: Rig, how: str) -> None:
    for name in ("a", "b"):
        connect(rig, name, SessionProperties(60))
        subscribed = [subscription.Subscription("t", name, topic) for topic in ("f/1", "f/2")]
        rig.write(methods.SUBSCRIPTION_ADD, subscription.SubscriptionAdd("b", 1, subscribed))
        rig.write(methods.INFLIGHT_PUT, inflight.InflightPut("b", 1, [inflight.Inflight("t", name, "n", b"v")]))
    ENDS[how](rig)
    tables = subscription.SUBSCRIPTION, inflight.INFLIGHT
    rows = [SESSION.rows["parts"], *(row for table in tables for row in table.rows.values())]
    assert [len(parts(rig, row)) for row in rows] == [1, 2, 1]
    assert all(key.startswith(keys.text2("t", "b")) for row in rows for key in parts(rig, row))


def test_what_is_in_flight_goes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_end, "TABLES", {"parts": PARTS})
    rig = begun(lag=10)
    connect(rig, properties=SessionProperties(60))
    for key in ("a", "b"):  # a record of the namespace "t" has the key of a session of this tenant
        rig.write(methods.KV_PUT, m.KvPut([m.KvPutItem("t", key, b"")]))
    assert len(rig.group.in_flight) > 2
    delete(rig)
    assert parts(rig, KV.rows["record"]) == [keys.text2("t", "b")]


def test_a_session_without_a_count_is_not_searched(monkeypatch: pytest.MonkeyPatch, rig: Rig) -> None:
    monkeypatch.setattr(session_end, "TABLES", {"subscription": COUNTED})
    for name in "ab":
        connect(rig, name, SessionProperties(60))
    put_parts(rig, KV.rows["record"], "a", "b")
    added = [subscription.Subscription("t", "a", "f")]
    rig.write(methods.SUBSCRIPTION_ADD, subscription.SubscriptionAdd("b", 1, added))
    for name in "ab":
        delete(rig, name)
    assert parts(rig, SESSION.rows["parts"]) == []
    assert parts(rig, KV.rows["record"]) == [keys.text2("t", "b") + keys.text("part")]


def test_a_session_with_too_much_is_not_ended_in_part(monkeypatch: pytest.MonkeyPatch, rig: Rig) -> None:
    monkeypatch.setattr(session_end, "TABLES", {"parts": PARTS})
    monkeypatch.setattr(session_end, "PARTS_MAX", 2)
    for name in ("a", "b", "c"):
        connect(rig, name, SessionProperties(60))
    put_parts(rig, KV.rows["record"], "a", "b", "c")
    items = [m.SessionDeleteItem("t", name) for name in "abc"]
    with pytest.raises(TooLargeError, match="fewer"):
        rig.write(methods.SESSION_DELETE, m.SessionDelete(items))
    assert all(owner(rig, name) for name in "abc")
    rig.write(methods.SESSION_DELETE, m.SessionDelete(items[:2]))
    assert parts(rig, KV.rows["record"]) == [keys.text2("t", "c") + keys.text("part")]


# --- rows of earlier versions ----------------------------------------------------------------------------


def test_rows_without_deadlines_are_read(rig: Rig) -> None:
    session = keys.text2("t", "a")
    rig.settle()
    for engine in (rig.group.engine, rig.group.follower_engine):
        engine.write(
            {
                keys.table_prefix(rig.group.prefix, SESSION.rows["owner"]) + session: encode((False, "b", 1, 99)),
                keys.table_prefix(rig.group.prefix, SESSION.rows["properties"]) + session: encode((60, b"p")),
            }
        )
    (found,) = rig.read(methods.SESSION_GET, methods.SESSION_GET.body([m.SessionKey("t", "a")])).found
    assert found == m.Session("t", "a", False, "b", 1, 99, SessionProperties(60, b"p"))
    reply = connect(rig)
    assert (present(reply), reply.properties) == (True, [SessionProperties(60, b"p")])


# --- everything at once ----------------------------------------------------------------------------------

names = st.sampled_from("ab")
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("connect"),
            names,
            st.booleans(),
            st.none()
            | st.builds(
                SessionProperties,
                st.sampled_from([0, 5, 10, NEVER_S]),
                st.just(b""),
                st.none() | st.builds(Will, st.just("gone"), delay_s=st.sampled_from([0, 3, 7])),
            ),
        ),
        st.tuples(st.just("leave"), names, st.booleans(), st.none() | st.sampled_from([0, 5])),
        st.tuples(st.just("delete"), names),
        st.tuples(st.just("sweep")),
        st.tuples(st.just("advance"), st.integers(1, 6)),
        st.tuples(st.just("forget")),
    ),
    max_size=25,
)


class Model:
    """One session, as plainly as possible."""

    def __init__(self) -> None:
        self.properties = SessionProperties()
        self.expires_ms = self.will_ms = 0
        self.connected = True


@settings(deadline=None)  # a machine that is busy takes its time
@given(steps, st.sampled_from(LAGS))
@example([("delete", "a"), ("advance", 1), ("forget",), ("connect", "a", False, None), ("leave", "a", False, 5)], 3)
def test_sessions_against_a_model(steps: list[tuple[Any, ...]], lag: int) -> None:
    rig = begun(lag)
    model: dict[str, Model] = {}
    published: list[tuple[str, Will]] = []
    amnesty_until_s, begins = 0.0, False  # to lead, with the next entry

    def end(name: str) -> None:
        one = model.pop(name)
        if one.will_ms and one.properties.will is not None:
            published.append((name, one.properties.will))

    for step in steps:
        if begins and (step[0] in ("connect", "leave", "delete") or (step[0] == "sweep" and due(rig))):
            amnesty_until_s, begins = rig.group.now_s + 10.0, False
        past_ms = 0 if rig.group.now_s < amnesty_until_s else rig.now_ms
        match step:
            case "advance", seconds:
                rig.advance(1_000 * seconds)
            case ("forget",):
                rig.settle()
                rig.group.machine.forget()
                begins = True
            case "delete", name:
                assert bool(item_errors(delete(rig, name))) == (name not in model)
                model.pop(name, None)
            case "leave", name, discard, interval_s:
                errors = leave(rig, name, will_discard=discard, expiry_interval_s=interval_s)
                assert bool(errors) == (name not in model)
                one = model.get(name)
                if one is None or not one.connected:
                    continue
                will = None if discard else one.properties.will
                interval_s = one.properties.expiry_interval_s if interval_s is None else interval_s
                if will is not None and min(will.delay_s, interval_s) == 0:
                    published.append((name, will))
                    will = None
                one.connected = False
                one.will_ms = 0 if will is None else rig.now_ms + 1_000 * min(will.delay_s, interval_s)
                one.expires_ms = 0 if interval_s == NEVER_S else rig.now_ms + 1_000 * interval_s
                if not interval_s:
                    end(name)
            case ("sweep",):
                rows = [c.SessionDue("t", client, at_ms, kind) for at_ms, kind, client in due(rig)]
                if rows:
                    sweep(rig, *rows)
                for name, one in [*model.items()]:
                    if 0 < one.will_ms <= past_ms:
                        assert one.properties.will is not None
                        published.append((name, one.properties.will))
                        one.will_ms = 0
                    if 0 < one.expires_ms <= past_ms:
                        end(name)
            case "connect", name, clean, properties:
                reply = connect(rig, name, properties, clean_start=clean)
                one = model.get(name)
                assert present(reply) == (one is not None and not 0 < one.expires_ms <= past_ms)
                if one is not None and (clean or not present(reply)):
                    if one.connected and one.properties.will is not None:
                        published.append((name, one.properties.will))
                    end(name)
                    one = None
                if one is None:
                    one = model[name] = Model()
                elif 0 < one.will_ms <= past_ms:
                    assert one.properties.will is not None
                    published.append((name, one.properties.will))
                one.connected, one.expires_ms, one.will_ms = True, 0, 0
                one.properties = properties or one.properties
    rig.settle()
    for name in "ab":
        row, one = owner(rig, name), model.get(name)
        assert (row is None) == (one is None)
        if row is not None and one is not None:
            assert (row.connected, row.expires_ms, row.will_ms) == (one.connected, one.expires_ms, one.will_ms)
    expected = [(one.will_ms, DueKind.WILL, name) for name, one in model.items() if one.will_ms]
    expected += [(one.expires_ms, DueKind.EXPIRY, name) for name, one in model.items() if one.expires_ms]
    assert due(rig) == sorted(expected)
    assert sorted(map(str, wills(rig))) == sorted(map(str, published))


# --- brokers whose life is over --------------------------------------------------------------------------


def fence(rig: Rig, broker: str = "b", least_epoch: int = 2) -> None:
    rig.write(methods.GROUP_FENCE, c.GroupFence([c.FenceItem(broker, least_epoch, rig.now_ms)]))


def lose(rig: Rig, *names: str, swept: bool = False, adopted_move: int = 0, slots: bytes = ALL_SLOTS) -> None:
    items = [m.SessionKey("t", name) for name in names]
    fences = [c.FenceItem("b", 2, 0)] if swept else []
    rig.write(methods.SESSION_LOSE, c.SessionLose(items, fences, adopted_move, slots))


def read(rig: Rig, name: str = "a") -> m.Session:
    rig.settle()
    (found,) = rig.read(methods.SESSION_GET, methods.SESSION_GET.body([m.SessionKey("t", name)])).found
    listed = {one.client_id: one for one in rig.read(methods.SESSION_LIST, m.SessionList("t")).found}
    assert found is not None
    assert listed[name] == found
    return found


def test_a_session_is_read_with_its_deadlines(rig: Rig) -> None:
    connect(rig, properties=SessionProperties(60, b"", Will("gone", delay_s=5)))
    connected = read(rig)
    assert (connected.disconnected_ms, connected.expires_ms, connected.will_ms) == (0, 0, 0)
    leave(rig, expiry_interval_s=600)  # which counts instead of that of the properties
    away = read(rig)
    assert (away.expires_ms, away.will_ms) == (away.disconnected_ms + 600_000, away.disconnected_ms + 5_000)
    connect(rig, "c", SessionProperties(60))
    fence(rig)
    unswept = read(rig, "c")
    assert (unswept.connected, unswept.expires_ms, unswept.will_ms) == (False, 0, 0)
    lose(rig, "c", swept=True)
    swept = read(rig, "c")
    assert swept.expires_ms == swept.disconnected_ms + 60_000


def test_a_session_is_connected_only_while_the_life_of_its_broker_is_not_over(rig: Rig) -> None:
    connect(rig, properties=SessionProperties(60))
    connect(rig, "c", SessionProperties(60), broker="other")
    fence(rig, least_epoch=1)
    assert read(rig).connected
    fence(rig)
    assert (read(rig).connected, read(rig).disconnected_ms) == (False, rig.now_ms)
    assert read(rig, "c").connected


def test_the_sessions_of_a_life_that_is_over_get_their_deadlines_from_the_fence_on(rig: Rig) -> None:
    for name, properties in (("a", SessionProperties(60, b"", WILL)), ("c", SessionProperties(NEVER_S)), ("d", None)):
        connect(rig, name, properties)
    connect(rig, "e", SessionProperties(60), broker="other")
    fence(rig)
    at_ms = rig.now_ms
    rig.advance(10_000)
    lose(rig, "a", "c", "d", "e", "nobody")
    assert owner(rig) == m.SessionOwner(False, "b", 1, at_ms, 0, at_ms + 60_000, at_ms + 30_000)
    assert due(rig) == [
        (rig.now_ms, DueKind.EXPIRY, "d"),  # it ends at once, but nothing comes into the index behind what is done
        (at_ms + 30_000, DueKind.WILL, "a"),
        (at_ms + 60_000, DueKind.EXPIRY, "a"),
    ]
    assert owner(rig, "c") == m.SessionOwner(False, "b", 1, at_ms)
    assert read(rig, "e").connected
    before = contents(rig.group.engine)
    lose(rig, "a", "c", "d")
    rig.settle()
    assert [row for row in contents(rig.group.engine) if row not in before and row[0][3] in (0x10, 0x15)] == []


def test_a_takeover_judges_the_session_of_a_life_that_is_over_as_the_sweep_would(rig: Rig) -> None:
    for name in ("late", "soon", "very soon", "clean"):
        connect(rig, name, SessionProperties(60, b"p", WILL))
    connect(rig, "ends", SessionProperties(0, b"p"))
    fence(rig)
    assert not present(connect(rig, "ends", broker="other"))
    assert present(connect(rig, "very soon", broker="other"))
    assert wills(rig) == []
    connect(rig, "clean", broker="other", clean_start=True)
    assert wills(rig) == [("clean", WILL)]
    rig.advance(30_000)
    reply = connect(rig, "soon", broker="other")
    assert (present(reply), reply.properties) == (True, [SessionProperties(60, b"p", WILL)])
    rig.advance(30_000)
    reply = connect(rig, "late", broker="other")
    assert (present(reply), reply.properties) == (False, [None])
    assert wills(rig) == [("clean", WILL), ("late", WILL), ("soon", WILL)]
    assert due(rig) == []
    lose(rig, "late", "soon", "very soon", "clean", "ends")
    assert due(rig) == []


def test_within_an_amnesty_the_session_of_a_life_that_is_over_is_there(rig: Rig) -> None:
    connect(rig, properties=SessionProperties(60, b"p", WILL))
    fence(rig)
    rig.advance(100_000)
    rig.settle()
    rig.group.machine.forget()
    assert present(connect(rig, broker="other"))
    assert wills(rig) == []


def test_a_fence_is_swept_for_the_lives_and_the_slots_that_were_looked_at(rig: Rig) -> None:
    fences = rig.group.machine.parts[Fences]
    assert fences.unswept() == []
    fence(rig)
    rig.settle()
    assert [item.broker for item in fences.unswept()] == ["b"]
    lose(rig, swept=True, adopted_move=7)
    rig.settle()
    assert len(fences.unswept()) == 1, "slots have come meanwhile"
    lose(rig, swept=True, slots=c.slot_bits(range(1, c.SLOTS)))
    rig.settle()
    assert len(fences.unswept()) == 1, "a slot was not looked at, because it was sealed then"
    lose(rig, swept=True)
    rig.settle()
    assert fences.unswept() == []
    fence(rig, least_epoch=3)
    lose(rig, swept=True)
    rig.settle()
    assert [item.least_epoch for item in fences.unswept()] == [3]


def test_a_session_that_was_left_is_not_left_again_when_the_life_of_its_broker_is_over(rig: Rig) -> None:
    """It has no deadlines in its row, as one that is connected. Its client has said good-bye."""
    connect(rig, properties=SessionProperties(NEVER_S, b"", WILL))
    leave(rig, will_discard=True)
    left = owner(rig)
    fence(rig)
    rig.advance(60_000)
    lose(rig, "a")
    assert (owner(rig), due(rig)) == (left, [])
    rig.advance(60_000)
    assert present(connect(rig, broker="other"))
    assert wills(rig) == []


@pytest.mark.parametrize("at_ms", [0, 10**15])
def test_nobody_is_away_since_a_time_that_has_not_come_or_since_none(rig: Rig, at_ms: int) -> None:
    """The time of a fence is that of another log."""
    connect(rig, properties=SessionProperties(60))
    rig.write(methods.GROUP_FENCE, c.GroupFence([c.FenceItem("b", 2, at_ms)]))
    rig.advance(1_000)
    lose(rig, "a")
    assert owner(rig) == m.SessionOwner(False, "b", 1, rig.now_ms, 0, rig.now_ms + 60_000)


def test_a_session_that_the_next_life_has_taken_over_is_not_lost(rig: Rig) -> None:
    connect(rig, properties=SessionProperties(60))
    fence(rig)
    rig.write(methods.SESSION_TAKEOVER, m.SessionTakeover("b", 2, [SessionTakeoverItem("t", "a")]))
    lose(rig, "a")
    assert (owner(rig), due(rig)) == (m.SessionOwner(True, "b", 2, 0), [])


def test_no_fence_is_swept_while_slots_are_sealed(rig: Rig) -> None:
    """They may come back, with sessions that no pass has seen."""
    fence(rig)
    rig.settle()
    seal = c.GroupCommand("seal", 1, 1, slots=c.slot_bits([5]), other=1)
    rig.write(methods.GROUP_COMMAND, seal)
    lose(rig, swept=True)
    rig.settle()
    assert len(rig.group.machine.parts[Fences].unswept()) == 1


def test_a_row_of_the_index_that_is_nobodys_goes(rig: Rig) -> None:
    connect(rig, properties=SessionProperties(600))
    leave(rig)
    rig.settle()
    stale = due_key(rig.group.prefix, rig.now_ms + 1, DueKind.EXPIRY, keys.text2("t", "a"))
    for engine in (rig.group.engine, rig.group.follower_engine):
        engine.write({stale: b""})
    assert len(due(rig)) == 2
    assert sweep(rig, c.SessionDue("t", "a", rig.now_ms + 1, DueKind.EXPIRY)) == (0, 0, 0)
    assert due(rig) == [(rig.now_ms + 600_000, DueKind.EXPIRY, "a")]


def test_one_command_ends_parts_of_so_many_bytes_and_no_more(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_end, "ENDED_BYTES_MAX", 700)
    for name in "ab":
        connect(rig, name, SessionProperties(600))
        items = [subscription.Subscription("t", name, letter * 200) for letter in "xy"]
        assert rig.write(methods.SUBSCRIPTION_ADD, subscription.SubscriptionAdd("b", 1, items)).errors == []
    with pytest.raises(TooLargeError):
        rig.write(
            methods.SESSION_DELETE, m.SessionDelete([m.SessionDeleteItem("t", "a"), m.SessionDeleteItem("t", "b")])
        )
    assert delete(rig, "a").errors == delete(rig, "b").errors == []
