"""Subscriptions: who may add and remove them, what a filter is, how many there may be, and what a listing shows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from part_counts import COPIED, check_counts
from state_rig import Rig, command_of, contents, item_errors

from metad.state.core import counts
from metad.state.core import verb as tables
from metad.state.core.counts import COPY_BYTES_MAX
from metad.state.core.entry import decode_entry
from metad.state.core.limits import SCANNED_ROW_BYTES
from metad.state.session import session_parts, subscriptions
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import InvalidRequestError, TooLargeError
from metad_wire.messages import SessionKey
from metad_wire.tables.session import SESSION
from metad_wire.tables.subscription import (
    SUBSCRIPTION,
    SUBSCRIPTION_GET,
    Subscribed,
    Subscription,
    SubscriptionAdd,
    SubscriptionAddReply,
    SubscriptionKey,
    SubscriptionList,
    SubscriptionOptions,
    SubscriptionRemove,
)

LAGS = (0, 3)  # applied at once, or only after three more entries: the overlay must not show
QOS_1 = SubscriptionOptions(qos=1)


@pytest.fixture(params=LAGS, ids=lambda lag: f"lag{lag}")
def rig(request: pytest.FixtureRequest) -> Rig:
    return Rig(lag=request.param)


def take(rig: Rig, broker: str, epoch: int, *clients: str) -> None:
    items = [m.SessionTakeoverItem("acme", client) for client in clients]
    assert rig.write(methods.SESSION_TAKEOVER, m.SessionTakeover(broker, epoch, items)).errors == []


def add(rig: Rig, *items: Subscription, broker: str = "b1", epoch: int = 5) -> SubscriptionAddReply:
    reply: SubscriptionAddReply = rig.write(methods.SUBSCRIPTION_ADD, SubscriptionAdd(broker, epoch, list(items)))
    return reply


def remove(rig: Rig, *items: SubscriptionKey, broker: str = "b1", epoch: int = 5) -> dict[int, str]:
    return item_errors(rig.write(methods.SUBSCRIPTION_REMOVE, SubscriptionRemove(broker, epoch, list(items))))


def of(rig: Rig, *clients: str) -> list[dict[str, SubscriptionOptions]]:
    rig.settle()
    body = SUBSCRIPTION_GET.body([SessionKey("acme", client) for client in clients])
    found: list[list[Subscribed]] = rig.read(methods.SUBSCRIPTION_GET, body).found
    return [{each.filter: each.options for each in one} for one in found]


def sub(client: str, filter_: str, qos: int = 0) -> Subscription:
    return Subscription("acme", client, filter_, SubscriptionOptions(qos))


def key(client: str, filter_: str) -> SubscriptionKey:
    return SubscriptionKey("acme", client, filter_)


def rows_left(rig: Rig) -> int:
    """Rows of the table, the counts included."""
    rig.settle()
    rows = {*SUBSCRIPTION.rows.values(), SESSION.rows["parts"]}
    return sum(row[3] in rows for row, _ in contents(rig.group.engine))


def test_a_filter_is_added_once_and_then_changed(rig: Rig) -> None:
    take(rig, "b1", 5, "a", "b")
    reply = add(rig, sub("a", "x/#"), sub("b", "x/#"), sub("a", "$share/g/y"))
    assert (reply.errors, reply.created) == ([], [True, True, True])
    reply = add(rig, sub("a", "x/#", 2), sub("a", "z"))
    assert (reply.errors, reply.created) == ([], [False, True])
    assert of(rig, "a", "b", "nobody") == [
        {"$share/g/y": SubscriptionOptions(), "x/#": SubscriptionOptions(2), "z": SubscriptionOptions()},
        {"x/#": SubscriptionOptions()},
        {},
    ]


def test_the_same_filter_again_with_the_same_options_writes_nothing(rig: Rig) -> None:
    take(rig, "b1", 5, "a")
    add(rig, sub("a", "x", 1))
    assert len(decode_entry("data-0", rig.group.last, rig.group.log[-1])) == 2  # the filter, and the count
    assert add(rig, sub("a", "x", 1)).created == [False]
    assert len(decode_entry("data-0", rig.group.last, rig.group.log[-1])) == 0
    assert add(rig, sub("a", "x", 2)).created == [False]
    assert len(decode_entry("data-0", rig.group.last, rig.group.log[-1])) == 2
    add(rig, sub("a", "x", 1))
    assert of(rig, "a") == [{"x": QOS_1}]


def test_one_batch_may_name_a_filter_twice(rig: Rig) -> None:
    take(rig, "b1", 5, "a")
    reply = add(rig, sub("a", "x"), sub("a", "y"), sub("a", "x", 2))
    assert (reply.errors, reply.created) == ([], [True, True, False])
    assert of(rig, "a") == [{"x": SubscriptionOptions(2), "y": SubscriptionOptions()}]
    assert remove(rig, key("a", "x"), key("a", "x"), key("a", "y")) == {1: "not_found"}
    assert rows_left(rig) == 0


def test_only_the_owner_adds_and_removes(rig: Rig) -> None:
    take(rig, "b1", 5, "a")
    take(rig, "b2", 1, "b")
    reply = add(rig, sub("a", "x"), sub("b", "x"), sub("nobody", "x"), sub("a", "y"))
    assert item_errors(reply) == {1: "not_owner", 2: "not_found"}
    assert reply.created == [True, False, False, True]
    assert item_errors(add(rig, sub("a", "z"), epoch=4)) == {0: "fenced"}
    assert add(rig, sub("a", "z"), epoch=6).errors[0].current == 5
    assert remove(rig, key("a", "x"), key("b", "x"), broker="b2", epoch=1) == {0: "not_owner", 1: "not_found"}
    assert remove(rig, key("a", "x"), epoch=4) == {0: "fenced"}
    assert of(rig, "a", "b") == [{"x": SubscriptionOptions(), "y": SubscriptionOptions()}, {}]


def test_they_stay_for_the_next_owner_and_while_the_client_is_away(rig: Rig) -> None:
    take(rig, "b1", 5, "a")
    add(rig, sub("a", "x"))
    rig.write(methods.SESSION_DISCONNECT, m.SessionDisconnect("b1", 5, [m.SessionDisconnectItem("acme", "a", 60)]))
    assert add(rig, sub("a", "late")).errors == []
    take(rig, "b2", 1, "a")
    assert item_errors(add(rig, sub("a", "y"))) == {0: "not_owner"}
    assert remove(rig, key("a", "x"), broker="b2", epoch=1) == {}
    assert of(rig, "a") == [{"late": SubscriptionOptions()}]


@pytest.mark.parametrize(
    "filter_",
    ["", "a#", "a/#/b", "#/a", "a+", "+a/b", "a/b+/c", "$share/g", "$share//x", "$share/g/", "$share/g+/x", "a\0b"],
)
def test_what_is_no_filter_refuses_its_item(rig: Rig, filter_: str) -> None:
    take(rig, "b1", 5, "a")
    reply = add(rig, sub("a", "ok"), sub("a", filter_), sub("a", "+/ok/#"))
    assert item_errors(reply) == {1: "invalid_item"}
    assert reply.created == [True, False, True]
    assert of(rig, "a") == [{"+/ok/#": SubscriptionOptions(), "ok": SubscriptionOptions()}]


@pytest.mark.parametrize("filter_", ["#", "+", "/", "a//b", "+/+/#", "$SYS/#", "$share/g/#", "$share/g//", "é/+", " "])
def test_what_is_a_filter_is_stored(rig: Rig, filter_: str) -> None:
    take(rig, "b1", 5, "a")
    assert add(rig, sub("a", filter_)).errors == []
    assert list(of(rig, "a")[0]) == [filter_]


def test_a_key_that_is_too_long_and_options_that_are_none_refuse_their_items(rig: Rig) -> None:
    take(rig, "b1", 5, "a")
    good, wrong = sub("a", "x"), Subscription("acme", "a", "y", SubscriptionOptions(3))
    reply = add(rig, sub("a", "y" * 4096), good, wrong)
    assert item_errors(reply) == {0: "invalid_item", 2: "invalid_item"}
    assert reply.created == [False, True, False]
    assert of(rig, "a") == [{"x": SubscriptionOptions()}]


# --- how many there may be -------------------------------------------------------------------------------


@pytest.fixture
def _three(monkeypatch: pytest.MonkeyPatch) -> None:
    few = session_parts.SessionParts(SUBSCRIPTION, "filter", rows_max=3, bytes_max=1_000)
    monkeypatch.setattr(subscriptions, "PARTS", few)


@pytest.mark.usefixtures("_three")
def test_a_session_has_a_limited_number(rig: Rig) -> None:
    take(rig, "b1", 5, "a", "b")
    add(rig, sub("a", "1"), sub("a", "2"))
    reply = add(rig, sub("a", "2", 1), sub("a", "3"), sub("a", "4"), sub("b", "4"), sub("a", "1", 1), sub("a", "5"))
    assert item_errors(reply) == {2: "quota_exceeded", 5: "quota_exceeded"}
    assert "3 of them" in reply.errors[0].message
    assert reply.created == [False, True, False, True, False, False]
    assert of(rig, "a", "b") == [
        {"1": QOS_1, "2": QOS_1, "3": SubscriptionOptions()}, {"4": SubscriptionOptions()},
    ]  # fmt: skip
    assert item_errors(add(rig, sub("a", "4"))) == {0: "quota_exceeded"}
    assert remove(rig, key("a", "2")) == {}
    assert add(rig, sub("a", "4")).errors == []  # there is room for one again
    assert item_errors(add(rig, sub("a", "5"))) == {0: "quota_exceeded"}


@pytest.mark.usefixtures("_three")
def test_a_session_has_a_limited_number_of_bytes(rig: Rig) -> None:
    take(rig, "b1", 5, "a")
    add(rig, sub("a", "x" * 600))
    assert item_errors(add(rig, sub("a", "y" * 600))) == {0: "quota_exceeded"}
    assert remove(rig, key("a", "x" * 600)) == {}
    assert add(rig, sub("a", "y" * 600)).errors == []


def test_what_one_session_may_have_fits_an_entry_and_a_reply() -> None:
    from metad.state.core.limits import REPLY_BYTES_MAX
    from metad_wire.messages import CHANGE_BYTES_MAX
    from metad_wire.tables.subscription import SUBSCRIPTION_BYTES_MAX, SUBSCRIPTIONS_MAX

    # A deletion is the key with the group's prefix, a row of a reply its filter and options.
    assert SUBSCRIPTION_BYTES_MAX + 16 * SUBSCRIPTIONS_MAX < CHANGE_BYTES_MAX / 2
    assert SUBSCRIPTION_BYTES_MAX + 16 * SUBSCRIPTIONS_MAX < REPLY_BYTES_MAX


CLIENTS, FILTERS = ("a", "a\0", "b"), ("x", "x/+", "y", "\x01")
OPTIONS = (SubscriptionOptions(), QOS_1, SubscriptionOptions(subscription_id=200), SubscriptionOptions(0, True))
steps = st.lists(
    st.tuples(
        st.booleans(),
        st.lists(st.tuples(st.sampled_from(CLIENTS), st.sampled_from(FILTERS), st.sampled_from(OPTIONS)), max_size=6),
    ),
    max_size=12,
)


@settings(max_examples=100)
@given(steps=steps, lag=st.sampled_from(LAGS), copied=st.sampled_from(COPIED))
def test_any_adds_and_removes_leave_what_a_dictionary_would(
    steps: list[tuple[bool, list[tuple[str, str, SubscriptionOptions]]]], lag: int, copied: int
) -> None:
    """A session may have three here; what counts them must agree with the rows, or it would fill up or overflow."""
    few = session_parts.SessionParts(SUBSCRIPTION, "filter", rows_max=3, bytes_max=1_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subscriptions, "PARTS", few)
        patch.setattr(counts, "COPY_BYTES_MAX", copied)
        rig = Rig(lag=lag)
        take(rig, "b1", 5, *CLIENTS)
        model: dict[str, dict[str, SubscriptionOptions]] = {client: {} for client in CLIENTS}
        for adds, items in steps:
            expected: dict[int, str] = {}
            created: list[bool] = []
            for at, (client, filter_, options) in enumerate(items):
                has = model[client]
                if adds:
                    created.append(filter_ not in has and len(has) < 3)
                    if filter_ not in has and len(has) >= 3:
                        expected[at] = "quota_exceeded"
                    else:
                        has[filter_] = options
                elif has.pop(filter_, None) is None:
                    expected[at] = "not_found"
            if adds:
                reply = add(rig, *(Subscription("acme", *item) for item in items))
                assert (item_errors(reply), reply.created) == (expected, created)
            else:
                assert remove(rig, *(key(client, filter_) for client, filter_, _ in items)) == expected
        assert of(rig, *CLIENTS) == [model[client] for client in CLIENTS]
        check_counts(rig, SUBSCRIPTION, "filter")


# --- listings --------------------------------------------------------------------------------------------


def pages(rig: Rig, limit: int, **filters: Any) -> list[list[Subscription]]:
    found: list[list[Subscription]] = []
    cursor = b""
    for _ in range(10_000):
        reply = rig.read(methods.SUBSCRIPTION_LIST, SubscriptionList(**filters, page=m.Page(limit, cursor)))
        assert len(reply.found) <= limit
        found.append(reply.found)
        cursor = reply.cursor
        if not cursor:
            return found
    raise AssertionError("a listing without end")


def populated() -> tuple[Rig, list[Subscription]]:
    rig = Rig()
    everything = [
        Subscription(tenant, client, filter_, SubscriptionOptions(len(filter_) % 3))
        for tenant in ("", "acme", "acme\0", "acme2")
        for client in ("", "\0", "a", "a\0b", "ab", "b", "ü")
        for filter_ in ("#", "+", "a/b", "ü/\x01")
    ]
    sessions = {(each.tenant, each.client_id) for each in everything}
    rig.write(
        methods.SESSION_TAKEOVER, m.SessionTakeover("b1", 5, [m.SessionTakeoverItem(*one) for one in sorted(sessions)])
    )
    assert add(rig, *everything).errors == []
    rig.settle()
    return rig, sorted(everything, key=lambda s: (s.tenant.encode(), s.client_id.encode(), s.filter.encode()))


@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_a_listing_shows_every_subscription_once_and_in_order(limit: int) -> None:
    rig, everything = populated()
    assert [each for page in pages(rig, limit) for each in page] == everything


@pytest.mark.parametrize("limit", [1, 1000])
@pytest.mark.parametrize(("tenant", "prefix"), [("", ""), ("acme", ""), ("acme", "a"), ("acme", "a\0"), ("x", "")])
def test_a_listing_of_a_tenant_or_a_prefix_is_exact(limit: int, tenant: str, prefix: str) -> None:
    rig, everything = populated()
    expected = [each for each in everything if each.tenant == tenant and each.client_id.startswith(prefix)]
    assert [each for page in pages(rig, limit, tenant=tenant, client_id_prefix=prefix) for each in page] == expected


def test_a_prefix_needs_a_tenant() -> None:
    rig, _ = populated()
    with pytest.raises(InvalidRequestError, match="needs a tenant"):
        pages(rig, 10, client_id_prefix="a")


def test_a_page_looks_at_a_limited_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "SCAN_ROWS_MAX", 5)
    rig, everything = populated()
    found = pages(rig, 1000)
    assert max(map(len, found)) == 5
    assert [each for page in found for each in page] == everything


def test_reads_are_encoded_as_the_messages_are() -> None:
    """The server puts rows together without decoding them."""
    rig, everything = populated()
    (page,) = pages(rig, 1000, tenant="acme", client_id_prefix="ab")
    expected = [each for each in everything if (each.tenant, each.client_id) == ("acme", "ab")]
    assert msgspec.msgpack.encode(page) == msgspec.msgpack.encode(expected)
    assert of(rig, "ab") == [{each.filter: each.options for each in expected}]


def test_one_request_reads_so_many_rows_and_no_more(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards other clients: short filters fit a reply by the hundred thousand, and nobody is served meanwhile."""
    monkeypatch.setattr(session_parts, "READ_ROWS_MAX", 5)
    take(rig, "b1", 5, "c0", "c1")
    for client in ("c0", "c1"):
        assert add(rig, *(Subscription("acme", client, f"f{n}") for n in range(3))).errors == []
    assert len(of(rig, "c0")[0]) == len(of(rig, "c1")[0]) == 3
    with pytest.raises(TooLargeError):
        of(rig, "c0", "c1")
    for count, is_too_much in ((1, False), (2, True)):
        items = [m.SessionTakeoverItem("acme", f"c{n}") for n in range(count)]
        body = m.SessionTakeover("b1", 5, items, restore_parts=True)
        if is_too_much:
            with pytest.raises(TooLargeError):
                rig.write(methods.SESSION_TAKEOVER, body)
        else:
            assert len(rig.write(methods.SESSION_TAKEOVER, body).subscriptions[0]) == 3


def test_an_entry_takes_nothing_behind_a_command_that_has_looked_at_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards other clients: what is restored counted for nothing, so an entry had as much of it as was asked for."""
    monkeypatch.setattr("metad.state.machine._ENTRY_LOOKED_AT_BYTES", 3 * SCANNED_ROW_BYTES)
    rig = Rig()
    take(rig, "b1", 5, "c0", "c1")
    add(rig, *(Subscription("acme", "c0", f"f{n}/{'x' * COPY_BYTES_MAX}") for n in range(3)))
    restores, puts = (
        command_of(methods.SESSION_TAKEOVER, m.SessionTakeover("b1", 5, [m.SessionTakeoverItem("acme", client)], **how))
        for client, how in (("c0", {"restore_parts": True}), ("c1", {}))
    )
    machine = rig.group.machine
    proposal = machine.evaluate([(puts, None), (restores, None), (puts, None)], rig.group.last + 1, rig.now_ms)
    assert (len(proposal.outcomes), proposal.heavy) == (2, True)
