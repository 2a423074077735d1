"""The judge of what lasts for a time, which counts by the time of the run: it objects to what ends early and to what
never ends, whatever the entries say of their times."""

from __future__ import annotations

from typing import Any

import pytest

from metad.state.core.entry import ENTRY_FORMAT, Entry
from metad.state.core.part import Origin
from metad.storage import keys
from metad_judge.durations import Durations
from metad_judge.invariants import Violation
from metad_wire.cluster import GroupId
from metad_wire.messages import NEVER_S, SessionOwner, SessionProperties
from metad_wire.methods import encode
from metad_wire.tables.cluster import GROUP
from metad_wire.tables.retained import RETAINED, Retained
from metad_wire.tables.session import SESSION

PREFIX = keys.group_prefix(GroupId("data", 0))
NOW_MS = 1_700_000_000_000
X = keys.text2("t", "x")


class Log:
    """The judge, and what it is told."""

    def __init__(self) -> None:
        self.judge = Durations(10.0)

    def enter(self, moment_s: float, row: int, key: bytes, value: Any, origin: Origin = Origin.CLIENT) -> None:
        stored = {keys.table_prefix(PREFIX, row) + key: None if value is None else encode(value)}
        self.judge.enter("data-0/1", Entry(ENTRY_FORMAT, origin, NOW_MS, stored, {}), moment_s)

    def owner(self, moment_s: float, owner: SessionOwner | None, origin: Origin = Origin.CLIENT) -> None:
        self.enter(moment_s, SESSION.rows["owner"], X, owner, origin)


def away(lasts_s: int, *, ahead_ms: int = 0, will_s: int = 0) -> SessionOwner:
    since_ms = NOW_MS + ahead_ms
    will_ms = since_ms + 1_000 * will_s if will_s else 0
    return SessionOwner(False, "b", 1, since_ms, expires_ms=since_ms + 1_000 * lasts_s, will_ms=will_ms)


HERE = SessionOwner(True, "b", 1, 0)


def test_a_session_that_ends_early_is_found_wherever_it_has_moved() -> None:
    log = Log()
    log.owner(0.0, HERE)
    log.owner(10.0, away(600))
    log.owner(20.0, away(600, ahead_ms=3_600_000), Origin.MIGRATION)
    with pytest.raises(Violation, match="durations"):
        log.owner(30.0, None, Origin.EXPIRY)
    log.owner(10.0, away(600))
    log.owner(610.0, None, Origin.EXPIRY)
    log.owner(700.0, away(600))
    log.owner(701.0, None)  # its client has ended it
    assert log.judge.ended == 2


def test_a_will_that_is_due_early_is_found() -> None:
    log = Log()
    log.owner(10.0, away(600, will_s=300))
    with pytest.raises(Violation, match="durations"):
        log.owner(30.0, away(600), Origin.EXPIRY)


def test_a_dead_brokers_session_counts_from_the_end_of_its_life() -> None:
    log = Log()
    log.owner(0.0, HERE)
    log.enter(100.0, GROUP.rows["fence"], keys.text("b"), (2, NOW_MS - 3_600_000), Origin.CONTROLLER)
    log.owner(150.0, away(600, ahead_ms=-3_600_000), Origin.EXPIRY)
    with pytest.raises(Violation, match="durations"):
        log.owner(160.0, None, Origin.EXPIRY)
    log.owner(0.0, HERE)
    log.owner(650.0, away(600), Origin.EXPIRY)
    log.owner(690.0, None, Origin.EXPIRY)


def test_a_retained_message_that_ends_early_is_found() -> None:
    log, row = Log(), RETAINED.rows["message"]
    message = Retained("t", "x", b".", expires_ms=NOW_MS + 600_000)
    log.enter(0.0, row, X, message)
    with pytest.raises(Violation, match="durations"):
        log.enter(100.0, row, X, None, Origin.EXPIRY)
    log.enter(0.0, row, X, message)
    log.enter(599.0, row, X, None, Origin.EXPIRY)


def test_what_never_ends_is_found() -> None:
    log = Log()
    log.enter(0.0, SESSION.rows["properties"], X, SessionProperties(5))
    log.owner(0.0, HERE)
    assert log.judge.overdue(1_000.0) == []
    log.enter(1_000.0, GROUP.rows["fence"], keys.text("b"), (2, NOW_MS), Origin.CONTROLLER)
    assert log.judge.overdue(1_010.0) == []
    assert log.judge.overdue(1_100.0) == [X]
    log.owner(1_100.0, away(200))
    assert log.judge.overdue(1_290.0) == []
    assert log.judge.overdue(1_400.0) == [X]
    log.owner(1_400.0, HERE)
    log.enter(1_400.0, SESSION.rows["properties"], X, SessionProperties(NEVER_S))
    assert log.judge.overdue(9_999.0) == []
