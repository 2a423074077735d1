"""What is in flight for clients: who writes it, how much there may be, and what is left after any writes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from part_counts import COPIED, check_counts
from state_rig import Rig, command_of, item_errors

from metad.state.core import counts
from metad.state.core.entry import decode_entry
from metad.state.core.limits import REPLY_BYTES_MAX
from metad.state.session import inflight, session_parts
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import TooLargeError
from metad_wire.messages import CHANGE_BYTES_MAX, SessionKey
from metad_wire.tables.inflight import (
    INFLIGHT,
    INFLIGHT_BYTES_MAX,
    INFLIGHT_GET,
    INFLIGHT_MAX,
    INFLIGHT_VALUE_BYTES_MAX,
    Inflight,
    InflightDelete,
    InflightKey,
    InflightPut,
    InflightState,
)

LAGS = (0, 3)  # applied at once, or only after three more entries: the overlay must not show


@pytest.fixture(params=LAGS, ids=lambda lag: f"lag{lag}")
def rig(request: pytest.FixtureRequest) -> Rig:
    rig = Rig(lag=request.param)
    take(rig, "b1", 5, "a", "b")
    return rig


def take(rig: Rig, broker: str, epoch: int, *clients: str) -> None:
    items = [m.SessionTakeoverItem("acme", client) for client in clients]
    assert rig.write(methods.SESSION_TAKEOVER, m.SessionTakeover(broker, epoch, items)).errors == []


def put(
    rig: Rig, *items: tuple[str, str, bytes], broker: str = "b1", epoch: int = 5, any_owner: bool = False
) -> dict[int, str]:
    body = InflightPut(broker, epoch, [Inflight("acme", *item) for item in items], any_owner)
    return item_errors(rig.write(methods.INFLIGHT_PUT, body))


def delete(rig: Rig, *items: tuple[str, str], broker: str = "b1", epoch: int = 5) -> dict[int, str]:
    body = InflightDelete(broker, epoch, [InflightKey("acme", *item) for item in items])
    return item_errors(rig.write(methods.INFLIGHT_DELETE, body))


def of(rig: Rig, *clients: str) -> list[dict[str, bytes]]:
    rig.settle()
    body = INFLIGHT_GET.body([SessionKey("acme", client) for client in clients])
    found: list[list[InflightState]] = rig.read(methods.INFLIGHT_GET, body).found
    return [{each.name: each.value for each in one} for one in found]


def test_states_are_put_changed_and_deleted(rig: Rig) -> None:
    assert put(rig, ("a", "out/1", b"publish"), ("a", "in/1", b""), ("b", "out/1", b"p")) == {}
    assert put(rig, ("a", "out/1", b"release"), ("a", "\0", b"\0")) == {}
    assert of(rig, "a", "b", "nobody") == [{"\0": b"\0", "in/1": b"", "out/1": b"release"}, {"out/1": b"p"}, {}]
    assert delete(rig, ("a", "out/1"), ("b", "none"), ("a", "out/1")) == {1: "not_found", 2: "not_found"}
    assert of(rig, "a", "b") == [{"\0": b"\0", "in/1": b""}, {"out/1": b"p"}]
    check_counts(rig, INFLIGHT, "state")


def test_only_the_owner_writes_and_the_next_owner_finds_them(rig: Rig) -> None:
    put(rig, ("a", "1", b"x"))
    assert put(rig, ("a", "2", b""), ("nobody", "2", b""), broker="b2", epoch=1) == {0: "not_owner", 1: "not_found"}
    assert put(rig, ("a", "2", b""), epoch=4) == {0: "fenced"}
    assert delete(rig, ("a", "1"), epoch=6) == {0: "fenced"}
    take(rig, "b2", 1, "a")
    assert put(rig, ("a", "2", b""), ("b", "2", b"")) == {0: "not_owner"}
    assert of(rig, "a", "b") == [{"1": b"x"}, {"2": b""}]
    assert delete(rig, ("a", "1"), broker="b2", epoch=1) == {}
    assert of(rig, "a") == [{}]


def test_another_broker_leaves_something_and_the_owner_stays_as_it_is(rig: Rig) -> None:
    away = m.SessionDisconnect("b1", 5, [m.SessionDisconnectItem("acme", "b", 100)])
    rig.write(methods.SESSION_DISCONNECT, away)
    rig.settle()
    before = rig.read(
        methods.SESSION_GET, methods.SESSION_GET.body([SessionKey("acme", name) for name in ("a", "b")])
    ).found
    left = [("a", "w/1", b"x"), ("nobody", "w/1", b"x"), ("b", "w/1", b"y")]
    assert put(rig, *left, broker="b2", epoch=1, any_owner=True) == {1: "not_found"}
    assert of(rig, "a", "b", "nobody") == [{"w/1": b"x"}, {"w/1": b"y"}, {}]
    after = rig.read(
        methods.SESSION_GET, methods.SESSION_GET.body([SessionKey("acme", name) for name in ("a", "b")])
    ).found
    assert after == before
    assert delete(rig, ("a", "w/1"), broker="b2", epoch=1) == {0: "not_owner"}, "only the owner takes it away"
    take(rig, "b3", 1, "b")
    assert delete(rig, ("b", "w/1"), broker="b3", epoch=1) == {}
    assert put(rig, ("a", "w/2", b""), broker="b2", epoch=1) == {0: "not_owner"}
    check_counts(rig, INFLIGHT, "state")


def test_what_others_leave_is_bounded_and_ends_with_the_session(rig: Rig) -> None:
    big = bytes(INFLIGHT_VALUE_BYTES_MAX)
    found = [put(rig, ("a", f"{n}", big), broker="b2", epoch=1, any_owner=True) for n in range(8)]
    assert found == [{}] * 7 + [{0: "quota_exceeded"}]
    rig.write(methods.SESSION_DELETE, m.SessionDelete([m.SessionDeleteItem("acme", "a")]))
    assert of(rig, "a") == [{}]
    assert put(rig, ("a", "1", b""), broker="b2", epoch=1, any_owner=True) == {0: "not_found"}
    check_counts(rig, INFLIGHT, "state")


def test_the_same_value_again_writes_nothing(rig: Rig) -> None:
    put(rig, ("a", "1", b"x"))
    put(rig, ("a", "1", b"x"))
    assert len(decode_entry("data-0", rig.group.last, rig.group.log[-1])) == 0
    put(rig, ("a", "1", b"y"))  # what counts them has a copy
    assert len(decode_entry("data-0", rig.group.last, rig.group.log[-1])) == 2
    put(rig, ("a", "1", b"longer"))
    assert len(decode_entry("data-0", rig.group.last, rig.group.log[-1])) == 2


def test_a_value_that_is_too_long_refuses_its_item(rig: Rig) -> None:
    long = bytes(INFLIGHT_VALUE_BYTES_MAX)
    body = InflightPut("b1", 5, [Inflight("acme", "a", "1", long + b"x"), Inflight("acme", "a", "2", long)])
    command = command_of(methods.INFLIGHT_PUT, body, size=3 * len(long))
    (outcome,) = rig.group.propose([(command, None)], rig.now_ms)
    assert item_errors(methods.INFLIGHT_PUT.decode_reply(outcome)) == {0: "invalid_item"}
    assert of(rig, "a") == [{"2": long}]


def test_a_session_has_a_limited_number_of_bytes(rig: Rig) -> None:
    big = bytes(INFLIGHT_VALUE_BYTES_MAX)
    assert [put(rig, ("a", f"{n}", big)) for n in range(8)] == [{}] * 7 + [{0: "quota_exceeded"}]
    assert put(rig, ("b", "1", big), ("a", "0", b""), ("a", "8", big)) == {}  # what is shorter makes room
    assert put(rig, ("a", "9", big), ("a", "1", b"short")) == {0: "quota_exceeded"}
    check_counts(rig, INFLIGHT, "state")


def test_what_one_session_may_have_fits_an_entry_and_a_reply() -> None:
    # A deletion is the key with the group's prefix, a row of a reply its name and value.
    assert INFLIGHT_BYTES_MAX + 16 * INFLIGHT_MAX < CHANGE_BYTES_MAX / 2
    assert INFLIGHT_BYTES_MAX + 16 * INFLIGHT_MAX < REPLY_BYTES_MAX


def test_more_than_a_reply_holds_is_to_be_asked_for_in_parts() -> None:
    rig = Rig()
    clients = [f"c{n}" for n in range(12)]
    take(rig, "b1", 5, *clients)
    for client in clients:
        for n in range(6):
            assert put(rig, (client, f"{n}", bytes(INFLIGHT_VALUE_BYTES_MAX))) == {}
    with pytest.raises(TooLargeError, match="ask for fewer"):
        of(rig, *clients)
    assert [len(one) for one in of(rig, *clients[:6])] == [6] * 6


CLIENTS, NAMES = ("a", "a\0", "b"), ("1", "1\0", "2", "10")
steps = st.lists(
    st.tuples(
        st.booleans(),
        st.lists(st.tuples(st.sampled_from(CLIENTS), st.sampled_from(NAMES), st.binary(max_size=40)), max_size=6),
    ),
    max_size=12,
)


@settings(max_examples=100)
@given(steps=steps, lag=st.sampled_from(LAGS), copied=st.sampled_from(COPIED))
def test_any_writes_leave_what_a_dictionary_would(
    steps: list[tuple[bool, list[tuple[str, str, bytes]]]], lag: int, copied: int
) -> None:
    """A session may have three here, and 100 bytes; what counts them must agree with the rows."""
    few = session_parts.SessionParts(INFLIGHT, "state", rows_max=3, bytes_max=100)

    def size(client: str, name: str, value: bytes) -> int:
        return len(INFLIGHT.key_of(("acme", client, name))) + len(methods.encode(value))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inflight, "PARTS", few)
        patch.setattr(counts, "COPY_BYTES_MAX", copied)
        rig = Rig(lag=lag)
        take(rig, "b1", 5, *CLIENTS)
        model: dict[str, dict[str, bytes]] = {client: {} for client in CLIENTS}
        for puts, items in steps:
            expected: dict[int, str] = {}
            for at, (client, name, value) in enumerate(items):
                has = model[client]
                if puts:
                    after = {**has, name: value}
                    total = sum(size(client, *each) for each in after.items())
                    before = sum(size(client, *each) for each in has.items())
                    grows = len(after) > len(has) or total > before
                    if grows and (len(after) > 3 or total > 100):
                        expected[at] = "quota_exceeded"
                    else:
                        has[name] = value
                elif has.pop(name, None) is None:
                    expected[at] = "not_found"
            if puts:
                assert put(rig, *items) == expected
            else:
                assert delete(rig, *((client, name) for client, name, _ in items)) == expected
        assert of(rig, *CLIENTS) == [model[client] for client in CLIENTS]
        check_counts(rig, INFLIGHT, "state")
