"""One row counts what a session has of several tables: a change of one leaves what is said of the others."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from part_counts import COPIED, check_counts
from state_rig import Rig

from metad.state import counts
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.tables import TABLES
from metad_wire.tables import inflight as i
from metad_wire.tables import subscription as s
from metad_wire.tables.session import SESSION

STEPS = st.lists(
    st.tuples(st.sampled_from(counts.COUNTED), st.booleans(), st.lists(st.sampled_from("abc"), min_size=1, max_size=3)),
    max_size=12,
)


def step(rig: Rig, table: str, *, adds: bool, names: list[str]) -> None:
    """Write or delete these rows of the client ``c``."""
    if table == s.SUBSCRIPTION.name and adds:
        rig.write(methods.SUBSCRIPTION_ADD, s.SubscriptionAdd("b", 1, [s.Subscription("t", "c", n) for n in names]))
    elif table == s.SUBSCRIPTION.name:
        gone = [s.SubscriptionKey("t", "c", name) for name in names]
        rig.write(methods.SUBSCRIPTION_REMOVE, s.SubscriptionRemove("b", 1, gone))
    elif adds:
        rig.write(methods.INFLIGHT_PUT, i.InflightPut("b", 1, [i.Inflight("t", "c", n, b"value") for n in names]))
    else:
        rig.write(methods.INFLIGHT_DELETE, i.InflightDelete("b", 1, [i.InflightKey("t", "c", n) for n in names]))


@settings(max_examples=100)
@given(steps=STEPS, lag=st.sampled_from((0, 3)), copied=st.sampled_from(COPIED))
def test_a_change_of_one_table_leaves_the_counts_of_the_other(
    steps: list[tuple[str, bool, list[str]]], lag: int, copied: int
) -> None:
    rig = Rig(lag=lag)
    there: dict[str, set[str]] = {name: set() for name in counts.COUNTED}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counts, "COPY_BYTES_MAX", copied)
        taken = m.SessionTakeover("b", 1, [m.SessionTakeoverItem("t", "c")])
        assert rig.write(methods.SESSION_TAKEOVER, taken).errors == []
        for table, adds, names in steps:
            step(rig, table, adds=adds, names=names)
            there[table] = there[table] | {*names} if adds else there[table] - {*names}
        back = m.SessionTakeover("b", 2, [m.SessionTakeoverItem("t", "c")], restore_parts=True)
        reply = rig.write(methods.SESSION_TAKEOVER, back)
        assert {filter_.filter for filter_ in reply.subscriptions[0]} == there[s.SUBSCRIPTION.name]
        assert {state.name for state in reply.inflight[0]} == there[i.INFLIGHT.name]
        check_counts(rig, s.SUBSCRIPTION, "filter")
        check_counts(rig, i.INFLIGHT, "state")


def test_all_that_belongs_to_a_session_by_name_is_counted() -> None:
    assert {table.name for table in TABLES.values() if table.part_of == SESSION.name} == {*counts.COUNTED}
