"""A condition that fails says what it met, for programs and not for people only: PROTOCOL.md, "Failed conditions"."""

from __future__ import annotations

import re
from typing import Any

import pytest
from state_rig import Rig
from wire_document import PROTOCOL, tables

from metad_wire import messages as m
from metad_wire.cluster import FenceItem, GroupFence
from metad_wire.errors import ERRORS
from metad_wire.methods import METHODS_BY_NAME
from metad_wire.tables import inflight as i
from metad_wire.tables import subscription as s
from metad_wire.tables.consumer import AssignItem, ConsumerAssign, ConsumerJoin, JoinItem
from metad_wire.tables.lease import LeaseKey
from metad_wire.tables.retained import (
    RetainedDelete,
    RetainedDeleteItem,
    RetainedPut,
    RetainedPutItem,
)
from metad_wire.tables.sequence import SequenceAdd, SequenceAddItem

PUT = m.KvPutItem("n", "k", b"v")
PARTITION = ("t", "g", "topic", 0)
COMMIT = m.OffsetCommitItem(*PARTITION, 7, 5)
SESSION = m.SessionKey("t", "c")
CASES: list[tuple[str, Any, list[tuple[str, int | None]]]] = [
    ("kv.put", m.KvPut([m.KvPutItem("n", "k", b"v", 9)]), [("conflict", 1)]),
    ("kv.put", m.KvPut([m.KvPutItem("n", "absent", b"v", 9)]), [("conflict", 0)]),
    ("kv.delete", m.KvDelete([m.KvDeleteItem("n", "k", 9)]), [("conflict", 1)]),
    ("kv.delete", m.KvDelete([m.KvDeleteItem("n", "absent", 9)]), [("not_found", None)]),
    ("offset.commit", m.OffsetCommit([m.OffsetCommitItem(*PARTITION, 8, 4)]), [("fenced", 5)]),
    ("offset.commit", m.OffsetCommit([m.OffsetCommitItem(*PARTITION, 8, 5, 6)]), [("conflict", 7)]),
    ("offset.commit", m.OffsetCommit([m.OffsetCommitItem("t", "g", "topic", 1, 8, 5, 6)]), [("conflict", -1)]),
    ("offset.commit", m.OffsetCommit([m.OffsetCommitItem(*PARTITION, 6, 5)], True), [("offset_regression", 7)]),
    ("offset.delete", m.Items([m.OffsetKey("t", "g", "topic", 1)]), [("not_found", None)]),
    (
        "offset.reset_generations",
        m.OffsetResetGenerations([m.GenerationReset("t", "g", 4), m.GenerationReset("t", "none", 4)]),
        [("conflict", 5), ("conflict", 0)],
    ),
    ("consumer.join", ConsumerJoin([JoinItem("t", "last", 1_000)]), [("conflict", m.GENERATION_MAX)]),
    ("consumer.assign", ConsumerAssign([AssignItem("t", "joined", "m", 4, [])]), [("fenced", 1)]),
    ("consumer.assign", ConsumerAssign([AssignItem("t", "joined", "other", 1, [])]), [("not_owner", None)]),
    ("offset.commit", m.OffsetCommit([COMMIT], member="nobody"), [("fenced", None)]),
    (
        "offset.reset_generations",
        m.OffsetResetGenerations([m.GenerationReset("t", "joined", 1)]),
        [("conflict", None)],
    ),
    ("session.takeover", m.SessionTakeover("b", 2, [m.SessionTakeoverItem("t", "c")]), [("fenced", 3)]),
    ("session.disconnect", m.SessionDisconnect("b", 2, [SESSION]), [("fenced", 3)]),
    (
        "session.update",
        m.SessionUpdate("b", 2, [m.SessionUpdateItem("t", "c", m.SessionProperties())]),
        [("fenced", 3)],
    ),
    (
        "session.update",
        m.SessionUpdate("x", 2, [m.SessionUpdateItem("t", "c", m.SessionProperties())]),
        [("not_owner", None)],
    ),
    ("session.delete", m.SessionDelete([SESSION], "b", 2), [("fenced", 3)]),
    (
        "session.disconnect",
        m.SessionDisconnect("r", 1, [m.SessionDisconnectItem("t", "r", attachment=1)]),
        [("conflict", 4)],
    ),
    (
        "session.update",
        m.SessionUpdate("r", 1, [m.SessionUpdateItem("t", "r", m.SessionProperties(), attachment=1)]),
        [("conflict", 4)],
    ),
    (
        "session.delete",
        m.SessionDelete([m.SessionDeleteItem("t", "r", attachment=1)], "r", 1),
        [("conflict", 4)],
    ),
    (
        "retained.delete",
        RetainedDelete([RetainedDeleteItem("t", "topic", 9), RetainedDeleteItem("t", "absent", 9)]),
        [("conflict", 5), ("not_found", None)],
    ),
    ("inflight.put", i.InflightPut("b", 2, [i.Inflight("t", "c", "n", b"v")]), [("fenced", 3)]),
    ("inflight.delete", i.InflightDelete("b", 2, [i.InflightKey("t", "c", "n")]), [("fenced", 3)]),
    ("subscription.add", s.SubscriptionAdd("b", 2, [s.Subscription("t", "c", "f")]), [("fenced", 3)]),
    ("subscription.remove", s.SubscriptionRemove("b", 4, [s.SubscriptionKey("t", "c", "f")]), [("fenced", 3)]),
    ("subscription.remove", s.SubscriptionRemove("b", 3, [s.SubscriptionKey("t", "c", "f")]), [("not_found", None)]),
    ("session.delete", m.SessionDelete([m.SessionDeleteItem("t", "absent")]), [("not_found", None)]),
    ("sequence.add", SequenceAdd([SequenceAddItem("n", "s", 5), SequenceAddItem("n", "s", -9)]), [("conflict", 5)]),
    ("lease.revoke", m.Items([LeaseKey("n", "absent")]), [("not_found", None)]),
    ("kv.put", m.KvPut([PUT], "absent"), [("not_found", None)]),
]


def filled(kind: str) -> Rig:
    rig = Rig(kind)
    if kind == "data":
        rig.write(METHODS_BY_NAME["kv.put"], m.KvPut([PUT]))
        rig.write(METHODS_BY_NAME["session.takeover"], m.SessionTakeover("b", 3, [m.SessionTakeoverItem("t", "c")]))
        rig.write(METHODS_BY_NAME["group.fence"], GroupFence([FenceItem("r", 1)]))
        rig.write(METHODS_BY_NAME["session.takeover"], m.SessionTakeover("r", 1, [m.SessionTakeoverItem("t", "r")]))
        rig.write(METHODS_BY_NAME["retained.put"], RetainedPut([RetainedPutItem("t", "topic", b"v")]))
    else:
        last = m.OffsetCommitItem("t", "last", "topic", 0, 1, m.GENERATION_MAX)
        rig.write(METHODS_BY_NAME["offset.commit"], m.OffsetCommit([COMMIT, last]))
        rig.write(METHODS_BY_NAME["consumer.join"], ConsumerJoin([JoinItem("t", "joined", 1_000, member="m")]))
    return rig


@pytest.mark.parametrize(("method", "body", "expected"), CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)])
def test_an_item_error_says_what_there_is(method: str, body: Any, expected: list[tuple[str, int | None]]) -> None:
    rig = filled("offset" if method.startswith(("offset", "consumer")) else "data")
    reply = rig.write(METHODS_BY_NAME[method], body)
    assert [(ERRORS[error.code].name, error.current) for error in reply.errors] == expected
    for error in reply.errors:
        assert error.current is None or f" is {error.current}" in error.message, "as people are told"
        says_why = ", and the request says " in error.message or ": " in error.message or "may speak" in error.message
        assert error.current is None or says_why, "and why that is an error"


def test_it_is_as_of_the_items_turn() -> None:
    rig = filled("data")
    stale = m.KvPutItem("n", "k", b"v", 9)
    reply = rig.write(METHODS_BY_NAME["kv.put"], m.KvPut([stale, PUT, stale, PUT, stale]))
    assert [error.current for error in reply.errors] == [1, 2, 3]


def test_the_document_lists_what_says_so() -> None:
    listed = {
        (method, code)
        for methods, codes, _ in tables(PROTOCOL.read_text(encoding="utf-8"))["Failed conditions"]
        for method in re.findall(r"[a-z._]+", methods)
        for code in re.findall(r"[a-z_]+", codes)
    }
    shown = {(method, code) for method, _, errors in CASES for code, current in errors if current is not None}
    assert listed == shown
