"""One row counts what a session has of several tables, and copies its properties: a change of one leaves what is said
of the others."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from part_counts import COPIED, check_counts
from state_rig import Rig

from metad.state.core import counts
from metad.storage.memory import MemoryEngine
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.tables import TABLES
from metad_wire.tables import inflight as i
from metad_wire.tables import subscription as s
from metad_wire.tables.session import SESSION

NAMES = st.lists(st.sampled_from("abc"), min_size=1, max_size=3)
STEPS = st.lists(
    st.tuples(st.sampled_from([*counts.COUNTED, *("update", "takeover", "clean start", "end")]), st.booleans(), NAMES),
    max_size=12,
)
PROPERTIES = m.SessionProperties(60, b"first")


def step(rig: Rig, table: str, *, adds: bool, names: list[str]) -> None:
    """Write or delete these rows of the client ``c``."""
    if table == s.SUBSCRIPTION.name and adds:
        rig.write(methods.SUBSCRIPTION_ADD, s.SubscriptionAdd("b", 1, [s.Subscription("t", "c", n) for n in names]))
    elif table == s.SUBSCRIPTION.name:
        gone = [s.SubscriptionKey("t", "c", name) for name in names]
        rig.write(methods.SUBSCRIPTION_REMOVE, s.SubscriptionRemove("b", 1, gone))
    elif adds:
        rig.write(methods.INFLIGHT_PUT, i.InflightPut("b", 1, [i.Inflight("t", "c", n, b"value") for n in names]))
    elif table == i.INFLIGHT.name:
        rig.write(methods.INFLIGHT_DELETE, i.InflightDelete("b", 1, [i.InflightKey("t", "c", n) for n in names]))


def begin(rig: Rig, step: str, properties: m.SessionProperties) -> m.SessionProperties:
    """Give the client ``c`` these properties by one of the ways there are. Returns those it has."""
    if step == "update":
        rig.write(methods.SESSION_UPDATE, m.SessionUpdate("b", 1, [m.SessionUpdateItem("t", "c", properties)]))
        return properties
    if step == "end":
        rig.write(methods.SESSION_DELETE, m.SessionDelete([m.SessionDeleteItem("t", "c")]))
    given = None if step == "clean start" and properties.payload else properties
    item = m.SessionTakeoverItem("t", "c", step == "clean start", given)
    rig.write(methods.SESSION_TAKEOVER, m.SessionTakeover("b", 1, [item]))
    return given or m.SessionProperties()


@settings(max_examples=100)
@given(steps=STEPS, lag=st.sampled_from((0, 3)), copied=st.sampled_from(COPIED))
def test_a_change_of_one_leaves_what_is_said_of_the_others(
    steps: list[tuple[str, bool, list[str]]], lag: int, copied: int
) -> None:
    rig = Rig(lag=lag)
    there: dict[str, set[str]] = {name: set() for name in counts.COUNTED}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counts, "COPY_BYTES_MAX", copied)
        properties = begin(rig, "takeover", PROPERTIES)
        for what, adds, names in steps:
            if what in there:
                step(rig, what, adds=adds, names=names)
                there[what] = there[what] | {*names} if adds else there[what] - {*names}
                continue
            payload = "".join(names).encode() * (counts.COPY_BYTES_MAX if adds else 1)
            properties = begin(rig, what, m.SessionProperties(len(names), payload))
            if what in ("clean start", "end"):
                there = {name: set() for name in counts.COUNTED}
        check_counts(rig, s.SUBSCRIPTION, "filter")
        check_counts(rig, i.INFLIGHT, "state")
        back = m.SessionTakeover("b", 2, [m.SessionTakeoverItem("t", "c")], restore=True, restore_parts=True)
        reply = rig.write(methods.SESSION_TAKEOVER, back)
        assert reply.properties == [properties]
        assert {filter_.filter for filter_ in reply.subscriptions[0]} == there[s.SUBSCRIPTION.name]
        assert {state.name for state in reply.inflight[0]} == there[i.INFLIGHT.name]


def test_properties_that_a_batch_gives_twice_are_copied_as_the_last_left_them() -> None:
    rig = Rig()
    begin(rig, "takeover", PROPERTIES)
    step(rig, s.SUBSCRIPTION.name, adds=True, names=["a"])
    given = [m.SessionTakeoverItem("t", "c", properties=m.SessionProperties(1, value)) for value in (b"1", b"2")]
    rig.write(methods.SESSION_TAKEOVER, m.SessionTakeover("b", 1, given))
    check_counts(rig, s.SUBSCRIPTION, "filter")
    updated = [m.SessionUpdateItem("t", "c", m.SessionProperties(1, value)) for value in (b"3", b"4")]
    rig.write(methods.SESSION_UPDATE, m.SessionUpdate("b", 1, updated))
    check_counts(rig, s.SUBSCRIPTION, "filter")
    back = m.SessionTakeover("b", 2, [m.SessionTakeoverItem("t", "c")], restore=True, restore_parts=True)
    assert rig.write(methods.SESSION_TAKEOVER, back).properties == [m.SessionProperties(1, b"4")]


def test_a_storm_looks_up_one_row_of_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the cost of a storm: a second look-up is an eighth of it."""
    rig = Rig()
    begin(rig, "takeover", PROPERTIES)
    step(rig, s.SUBSCRIPTION.name, adds=True, names=["a"])
    rig.settle()
    looked_up: list[int] = []
    plain = MemoryEngine.get_many

    def get_many(engine: MemoryEngine, keys: Sequence[bytes]) -> list[bytes | None]:
        looked_up.extend(key[3] for key in keys)
        return plain(engine, keys)

    monkeypatch.setattr(MemoryEngine, "get_many", get_many)
    back = m.SessionTakeover("b", 2, [m.SessionTakeoverItem("t", "c")], restore=True, restore_parts=True)
    assert rig.write(methods.SESSION_TAKEOVER, back).properties == [PROPERTIES]
    assert looked_up == [SESSION.rows["parts"]]


def test_all_that_belongs_to_a_session_by_name_is_counted() -> None:
    assert {table.name for table in TABLES.values() if table.part_of == SESSION.name} == {*counts.COUNTED}
    assert counts.Counts.__struct_fields__ == (*counts.COUNTED, "properties")
