"""The rules of sessions: who may take, keep, change and drop one, and that a listing shows each exactly once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from state_rig import MIB, Rig, item_errors

from metad.state.core import verb as tables
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import InvalidRequestError, TooLargeError
from metad_wire.messages import SessionDisconnectItem as Gone
from metad_wire.messages import SessionKey as Key
from metad_wire.messages import SessionProperties as Properties
from metad_wire.messages import SessionTakeoverItem as Take
from metad_wire.messages import SessionUpdateItem as Update

LAGS = (0, 3)  # applied at once, or only after three more entries: the overlay must not show


@pytest.fixture(params=LAGS, ids=lambda lag: f"lag{lag}")
def rig(request: pytest.FixtureRequest) -> Rig:
    return Rig(lag=request.param)


def takeover(rig: Rig, broker: str, epoch: int, *items: Take, restore: bool = False) -> m.SessionTakeoverReply:
    reply: m.SessionTakeoverReply = rig.write(
        methods.SESSION_TAKEOVER, m.SessionTakeover(broker, epoch, list(items), restore)
    )
    return reply


def update(rig: Rig, broker: str, epoch: int, *items: Update) -> m.WriteReply:
    reply: m.WriteReply = rig.write(methods.SESSION_UPDATE, m.SessionUpdate(broker, epoch, list(items)))
    return reply


def disconnect(rig: Rig, broker: str, epoch: int, *keys: Key | Gone) -> m.WriteReply:
    items = [key if isinstance(key, Gone) else Gone(key.tenant, key.client_id) for key in keys]
    reply: m.WriteReply = rig.write(methods.SESSION_DISCONNECT, m.SessionDisconnect(broker, epoch, items))
    return reply


def delete(rig: Rig, *keys: Key, broker: str = "", epoch: int = 0) -> m.WriteReply:
    items = [m.SessionDeleteItem(key.tenant, key.client_id) for key in keys]
    reply: m.WriteReply = rig.write(methods.SESSION_DELETE, m.SessionDelete(items, broker, epoch))
    return reply


def get(rig: Rig, *keys: Key) -> list[m.Session | None]:
    rig.settle()
    sessions: list[m.Session | None] = rig.read(methods.SESSION_GET, methods.SESSION_GET.body(list(keys))).found
    return sessions


def previous(reply: m.SessionTakeoverReply) -> list[tuple[str, int] | None]:
    return [
        None if number < 0 else (reply.owners[number].broker, reply.owners[number].broker_epoch)
        for number in reply.previous
    ]


A, B = Key("acme", "a"), Key("acme", "b")


def test_a_takeover_creates_what_is_not_there(rig: Rig) -> None:
    reply = takeover(rig, "b1", 7, Take("acme", "a", properties=Properties(60, b"p")), Take("acme", "b"), restore=True)
    assert previous(reply) == [None, None]
    assert reply.properties == [None, None]
    assert reply.errors == []
    assert get(rig, A, B, Key("acme", "c")) == [
        m.Session("acme", "a", True, "b1", 7, 0, Properties(60, b"p")),
        m.Session("acme", "b", True, "b1", 7, 0, Properties()),
        None,
    ]


def test_a_takeover_wins_and_tells_whom_from(rig: Rig) -> None:
    takeover(rig, "b1", 7, Take("acme", "a", properties=Properties(60, b"p")))
    reply = takeover(rig, "b2", 1, Take("acme", "a"), Take("acme", "b"), restore=True)
    assert previous(reply) == [("b1", 7), None]
    assert reply.properties == [Properties(60, b"p"), None]
    (session,) = get(rig, A)
    assert session is not None
    assert (session.broker, session.broker_epoch, session.connected) == ("b2", 1, True)
    assert session.properties == Properties(60, b"p")  # kept where none were given


def test_properties_of_a_takeover_replace_the_stored_ones_after_they_were_restored(rig: Rig) -> None:
    takeover(rig, "b1", 1, Take("acme", "a", properties=Properties(1, b"old")))
    reply = takeover(rig, "b1", 1, Take("acme", "a", properties=Properties(2, b"new")), restore=True)
    assert reply.properties == [Properties(1, b"old")]
    assert get(rig, A)[0].properties == Properties(2, b"new")  # type: ignore[union-attr]


@pytest.mark.parametrize("properties", [None, Properties(9, b"n")])
def test_a_clean_start_drops_what_was_stored_and_restores_nothing(rig: Rig, properties: Properties | None) -> None:
    takeover(rig, "b1", 1, Take("acme", "a", properties=Properties(1, b"old")))
    reply = takeover(rig, "b2", 1, Take("acme", "a", clean_start=True, properties=properties), restore=True)
    assert previous(reply) == [("b1", 1)]  # whom to tell, not what to restore
    assert reply.properties == [None]
    assert get(rig, A)[0].properties == (properties or Properties())  # type: ignore[union-attr]


def test_without_restore_no_properties_are_sent(rig: Rig) -> None:
    takeover(rig, "b1", 1, Take("acme", "a", properties=Properties(1, b"old")))
    assert takeover(rig, "b2", 1, Take("acme", "a")).properties == []


def test_a_past_life_of_a_broker_is_fenced_item_by_item(rig: Rig) -> None:
    takeover(rig, "b1", 5, Take("acme", "a"))
    takeover(rig, "b2", 1, Take("acme", "b"))
    reply = takeover(rig, "b1", 4, Take("acme", "a", properties=Properties(1, b"x")), Take("acme", "b"), restore=True)
    assert item_errors(reply) == {0: "fenced"}
    assert previous(reply) == [None, ("b2", 1)]
    a, b = get(rig, A, B)
    assert a is not None
    assert b is not None
    assert (a.broker, a.broker_epoch, a.properties) == ("b1", 5, Properties())
    assert (b.broker, b.broker_epoch) == ("b1", 4)


def test_an_epoch_fences_only_its_own_broker(rig: Rig) -> None:
    takeover(rig, "b1", 5, Take("acme", "a"))
    assert item_errors(takeover(rig, "b2", 1, Take("acme", "a"))) == {}
    assert item_errors(takeover(rig, "b1", 5, Take("acme", "a"))) == {}  # the same life again
    assert item_errors(takeover(rig, "b1", 6, Take("acme", "a"))) == {}
    assert item_errors(takeover(rig, "b1", 5, Take("acme", "a"))) == {0: "fenced"}


def test_the_same_client_twice_in_a_batch_is_taken_in_order(rig: Rig) -> None:
    first, second = Take("acme", "a", properties=Properties(1, b"1")), Take("acme", "a", properties=Properties(2, b"2"))
    reply = takeover(rig, "b1", 3, first, Take("acme", "b"), second, Take("acme", "a", clean_start=True), restore=True)
    assert previous(reply) == [None, None, ("b1", 3), ("b1", 3)]
    assert reply.properties == [None, None, Properties(1, b"1"), None]
    assert get(rig, A)[0].properties == Properties()  # type: ignore[union-attr]


def test_only_the_owner_may_update(rig: Rig) -> None:
    takeover(rig, "b1", 5, Take("acme", "a"), Take("acme", "b"))
    new = Properties(5, b"new")
    assert item_errors(update(rig, "b1", 5, Update("acme", "a", new))) == {}
    reply = update(rig, "b2", 5, Update("acme", "a", Properties()), Update("acme", "no", new), Update("acme", "b", new))
    assert item_errors(reply) == {0: "not_owner", 1: "not_found", 2: "not_owner"}
    assert item_errors(update(rig, "b1", 4, Update("acme", "a", Properties()))) == {0: "fenced"}
    assert item_errors(update(rig, "b1", 6, Update("acme", "a", Properties()))) == {0: "fenced"}
    a, b = get(rig, A, B)
    assert a is not None
    assert b is not None
    assert (a.properties, b.properties) == (new, Properties())


def test_the_owner_may_update_after_the_disconnect(rig: Rig) -> None:
    takeover(rig, "b1", 5, Take("acme", "a", properties=Properties(60)))
    disconnect(rig, "b1", 5, A)
    assert item_errors(update(rig, "b1", 5, Update("acme", "a", Properties(1, b"late")))) == {}
    (session,) = get(rig, A)
    assert session is not None
    assert (session.connected, session.properties) == (False, Properties(1, b"late"))


def test_a_disconnect_counts_from_the_first(rig: Rig) -> None:
    takeover(rig, "b1", 5, Take("acme", "a", properties=Properties(60)))
    rig.advance(10)
    assert item_errors(disconnect(rig, "b1", 5, A, A)) == {}
    first_ms = rig.now_ms
    rig.advance(10)
    assert item_errors(disconnect(rig, "b1", 5, A)) == {}
    (session,) = get(rig, A)
    assert session is not None
    assert (session.connected, session.disconnected_ms, session.broker) == (False, first_ms, "b1")


def test_only_the_owner_may_disconnect(rig: Rig) -> None:
    takeover(rig, "b1", 5, Take("acme", "a"), Take("acme", "b"))
    assert item_errors(disconnect(rig, "b2", 5, A, Key("acme", "no"))) == {0: "not_owner", 1: "not_found"}
    assert item_errors(disconnect(rig, "b1", 4, A)) == {0: "fenced"}
    assert get(rig, A)[0].connected  # type: ignore[union-attr]


def test_a_disconnected_session_is_taken_over_with_its_last_owner_named(rig: Rig) -> None:
    takeover(rig, "b1", 5, Take("acme", "a", properties=Properties(1, b"p")))
    disconnect(rig, "b1", 5, A)
    reply = takeover(rig, "b2", 1, Take("acme", "a"), restore=True)
    assert previous(reply) == [("b1", 5)]
    assert reply.properties == [Properties(1, b"p")]
    # The old owner's late messages find it gone.
    assert item_errors(disconnect(rig, "b1", 5, A)) == {0: "not_owner"}
    assert get(rig, A)[0].connected  # type: ignore[union-attr]


def test_a_past_life_is_fenced_from_a_disconnected_session_too(rig: Rig) -> None:
    takeover(rig, "b1", 5, Take("acme", "a", properties=Properties(60)))
    disconnect(rig, "b1", 5, A)
    assert item_errors(takeover(rig, "b1", 4, Take("acme", "a"))) == {0: "fenced"}


def test_anybody_may_delete_without_naming_a_broker(rig: Rig) -> None:
    takeover(rig, "b1", 5, Take("acme", "a", properties=Properties(1, b"p")))
    assert item_errors(delete(rig, A, Key("acme", "no"), A)) == {1: "not_found", 2: "not_found"}
    assert get(rig, A) == [None]
    reply = takeover(rig, "b1", 4, Take("acme", "a"), restore=True)  # nothing of it is left, the fence included
    assert previous(reply) == [None]
    assert reply.properties == [None]
    assert get(rig, A)[0].properties == Properties()  # type: ignore[union-attr]


def test_with_a_broker_only_the_owner_deletes(rig: Rig) -> None:
    takeover(rig, "b1", 5, Take("acme", "a"), Take("acme", "b"))
    assert item_errors(delete(rig, A, broker="b2", epoch=5)) == {0: "not_owner"}
    assert item_errors(delete(rig, A, broker="b1", epoch=4)) == {0: "fenced"}
    assert item_errors(delete(rig, A, broker="b1", epoch=5)) == {}
    assert [session is None for session in get(rig, A, B)] == [True, False]


def test_tenants_do_not_meet(rig: Rig) -> None:
    takeover(rig, "b1", 1, Take("a", "bc"), Take("ab", "c"), Take("a\0", "b"), Take("a", "\0b"))
    delete(rig, Key("a", "bc"), Key("a\0", "b"))
    found = get(rig, Key("a", "bc"), Key("ab", "c"), Key("a\0", "b"), Key("a", "\0b"))
    assert [None if session is None else (session.tenant, session.client_id) for session in found] == [
        None, ("ab", "c"), None, ("a", "\0b"),
    ]  # fmt: skip


def test_results_come_back_in_the_order_of_the_request(rig: Rig) -> None:
    names = [f"c{i}" for i in range(60)]
    for i, name in enumerate(names):
        if i % 3:
            takeover(rig, f"b{i}", i, Take("acme", name, properties=Properties(i, b"")))
    rig.settle()
    reply = takeover(rig, "last", 1, *(Take("acme", name) for name in names), restore=True)
    assert previous(reply) == [(f"b{i}", i) if i % 3 else None for i in range(60)]
    assert reply.properties == [Properties(i, b"") if i % 3 else None for i in range(60)]
    assert len(reply.owners) == 40


# --- bounds ----------------------------------------------------------------------------------------------


def test_a_key_that_is_too_long_refuses_its_item(rig: Rig) -> None:
    reply = takeover(rig, "b1", 1, Take("acme", "x" * 4096), Take("acme", "a"), Take("acme", "b"))
    assert item_errors(reply) == {0: "invalid_item"}
    reply = takeover(rig, "b2", 1, Take("acme", "a"), Take("acme", "x" * 4096), Take("acme", "n"), restore=True)
    assert item_errors(reply) == {1: "invalid_item"}
    assert reply.previous == [0, -1, -1]
    assert reply.properties == [Properties(), None, None]
    reply = update(rig, "b1", 1, Update("\0" * 2100, "a", Properties()), Update("acme", "b", Properties(5)))
    assert item_errors(reply) == {0: "invalid_item"}
    assert "4096 are allowed" in reply.errors[0].message
    assert [session and session.broker for session in get(rig, A, B)] == ["b2", "b1"]


def test_a_broker_with_a_long_name_is_refused(rig: Rig) -> None:
    # Every session carries its owner's name: a long one times a batch would be one entry of gigabytes.
    with pytest.raises(InvalidRequestError, match="broker's name takes 258 bytes"):
        takeover(rig, "é" * 129, 1, Take("acme", "a"))
    assert takeover(rig, "é" * 128, 1, Take("acme", "a")).errors == []


def test_a_restore_of_more_than_a_reply_holds_does_nothing() -> None:
    rig = Rig()
    names = [f"c{i}" for i in range(12)]
    for name in names:
        takeover(rig, "b1", 1, Take("acme", name, properties=Properties(1, bytes(MIB - 100))))
    with pytest.raises(TooLargeError, match="ask for fewer"):
        takeover(rig, "b2", 1, *(Take("acme", name) for name in names), restore=True)
    assert {s.broker for s in get(rig, *(Key("acme", name) for name in names[:3])) if s is not None} == {"b1"}
    with pytest.raises(TooLargeError, match="ask for fewer"):
        rig.read(methods.SESSION_GET, methods.SESSION_GET.body([Key("acme", name) for name in names]))
    assert takeover(rig, "b2", 1, *(Take("acme", name) for name in names)).errors == []


# --- listings --------------------------------------------------------------------------------------------


def pages(rig: Rig, limit: int, **filters: Any) -> list[list[m.Session]]:
    found: list[list[m.Session]] = []
    cursor = b""
    for _ in range(10_000):
        body = m.SessionList(**filters, page=m.Page(limit, cursor))
        reply: m.ListReply[m.Session] = rig.read(methods.SESSION_LIST, body)
        assert len(reply.found) <= limit
        found.append(reply.found)
        cursor = reply.cursor
        if not cursor:
            return found
    raise AssertionError("a listing without end")


def names(found: list[list[m.Session]]) -> list[tuple[str, str]]:
    return [(session.tenant, session.client_id) for page in found for session in page]


def populated() -> tuple[Rig, list[tuple[str, str, str]]]:
    rig = Rig()
    everyone = [
        (tenant, client, f"b{number % 3}")
        for tenant in ("", "acme", "acme\0", "acme2", "z")
        for number, client in enumerate(
            ("", "\0", "a", "a\0b", "ab", "ab1", "b", "dev-1", "dev-10", "dev-2", "ü", "ü\0")
        )
    ]
    for broker in ("b0", "b1", "b2"):
        takeover(
            rig, broker, 1, *(Take(t, c, properties=Properties(1, c.encode())) for t, c, b in everyone if b == broker)
        )
    rig.settle()
    return rig, sorted(everyone, key=lambda row: (row[0].encode(), row[1].encode()))


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 60, 1000])
def test_a_listing_shows_every_session_once_and_in_order(limit: int) -> None:
    rig, everyone = populated()
    found = pages(rig, limit)
    assert names(found) == [(tenant, client) for tenant, client, _ in everyone]
    assert all(session.properties.payload == session.client_id.encode() for page in found for session in page)


@pytest.mark.parametrize("limit", [1, 2, 1000])
@pytest.mark.parametrize("tenant", ["", "acme", "acme\0", "nobody"])
def test_a_listing_of_a_tenant_is_exact(limit: int, tenant: str) -> None:
    rig, everyone = populated()
    assert names(pages(rig, limit, tenant=tenant)) == [(t, c) for t, c, _ in everyone if t == tenant]


@pytest.mark.parametrize("limit", [1, 3, 1000])
@pytest.mark.parametrize("prefix", ["a", "a\0", "dev-1", "ü", "\0", "none"])
def test_a_listing_by_prefix(limit: int, prefix: str) -> None:
    rig, everyone = populated()
    expected = [(t, c) for t, c, _ in everyone if t == "acme" and c.startswith(prefix)]
    assert names(pages(rig, limit, tenant="acme", client_id_prefix=prefix)) == expected


@pytest.mark.parametrize("limit", [1, 2, 1000])
def test_a_listing_by_broker(limit: int) -> None:
    rig, everyone = populated()
    disconnect(rig, "b1", 1, Key("acme", "a\0b"))  # who owns it does not change
    assert names(pages(rig, limit, broker="b1")) == [(t, c) for t, c, b in everyone if b == "b1"]
    assert names(pages(rig, limit, broker="b")) == []
    assert names(pages(rig, limit, broker="b1", tenant="acme", client_id_prefix="a")) == [
        (t, c) for t, c, b in everyone if (t, b) == ("acme", "b1") and c.startswith("a")
    ]


def test_a_prefix_needs_a_tenant() -> None:
    rig, _ = populated()
    with pytest.raises(InvalidRequestError, match="needs a tenant"):
        pages(rig, 10, client_id_prefix="a")


@pytest.mark.parametrize("cursor", [b"\0", b"garbage", b"\xff" * 40, b"acme\0\x01a", b"x" * 10_000])
def test_any_cursor_is_a_place_in_the_order(cursor: bytes) -> None:
    rig, everyone = populated()
    reply = rig.read(methods.SESSION_LIST, m.SessionList(page=m.Page(1000, cursor)))
    listed = [(session.tenant, session.client_id) for session in reply.found]
    assert listed == [(t, c) for t, c, _ in everyone][len(everyone) - len(listed) :]
    # A cursor of one listing says nothing to another: it cannot lead out of its range.
    reply = rig.read(methods.SESSION_LIST, m.SessionList("acme", page=m.Page(1000, cursor)))
    assert {session.tenant for session in reply.found} <= {"acme"}


def test_a_filter_that_matches_little_pages_on_without_looking_at_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A group looks at a bounded number of rows per page, so a page may be empty and still have a cursor.
    monkeypatch.setattr(tables, "SCAN_ROWS_MAX", 7)
    rig = Rig()
    takeover(rig, "common", 1, *(Take("acme", f"c{i:03}") for i in range(200)))
    takeover(rig, "rare", 1, Take("acme", "c050"), Take("acme", "c150"), Take("acme", "c199"))
    rig.settle()
    found = pages(rig, 100, broker="rare")
    assert names(found) == [("acme", "c050"), ("acme", "c150"), ("acme", "c199")]
    assert any(not page for page in found)


def test_pages_of_large_sessions_are_short() -> None:
    rig = Rig()
    for i in range(30):
        takeover(rig, "b", 1, Take("acme", f"c{i:02}", properties=Properties(1, bytes(700_000))))
    rig.settle()
    found = pages(rig, 1000)
    assert names(found) == [("acme", f"c{i:02}") for i in range(30)]
    assert max(len(msgspec.msgpack.encode(page)) for page in found) < 4 * MIB


def test_a_listing_by_broker_with_long_keys_ends_where_the_range_does() -> None:
    # The bound on bytes cuts a chunk short; that must not be taken for the end of the range.
    rig = Rig()
    for start in range(0, 1200, 200):
        takeover(rig, "b", 1, *(Take("t" * 3000, f"{i:05}") for i in range(start, start + 200)))
    takeover(rig, "last", 1, Take("t" * 3000, "01199"))
    rig.settle()
    assert names(pages(rig, 1000, broker="last")) == [("t" * 3000, "01199")]
