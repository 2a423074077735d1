"""A storm from outside: rates come of differences, and neither a node that was started again nor one that is away makes
them wrong."""

from __future__ import annotations

from metad_client.errors import ConnectionLostError
from metad_console.samples import SAMPLES_MAX, Meter
from metad_wire.messages import GroupStatus, LaneStatus, StatusReply, TurnedAway


def status(admitted: int, refused: int = 0, *, pid: int = 1, uptime_ms: int = 1_000, term: int = 1) -> StatusReply:
    group = GroupStatus("data-0", "data", 1024, 0, 0, 0, 0, "leader", term=term, waiting_items=7, served_per_s=5_000)
    return StatusReply(
        *("n1", "c", "0", pid, uptime_ms, 0, 0, True, 3, 4, 0, 0, 0, [group]),
        lanes=[LaneStatus("records", admitted, 0), LaneStatus("control", 10, 0)],
        turned_away=TurnedAway(refused, 0, 300, 250),
    )


def test_rates_are_those_between_two_samples() -> None:
    meter = Meter()
    first = meter.note({"n1": status(100), "n2": status(0)}, 10.0)
    assert (first.admitted_per_s, first.refused_per_s, first.elections) == (0, 0, 0)
    second = meter.note({"n1": status(400, 50, uptime_ms=3_000), "n2": status(100, uptime_ms=3_000)}, 12.0)
    assert (second.admitted_per_s, second.refused_per_s) == (200, 25)
    assert (second.waiting_items, second.capacity_per_s) == (14, 10_000)
    assert (second.returns_per_s, second.ahead_ms, second.connections) == (600, 250, 8)


def test_a_node_that_was_started_again_adds_nothing_at_first() -> None:
    meter = Meter()
    meter.note({"n1": status(1_000_000, 500, uptime_ms=9_000)}, 10.0)
    again = meter.note({"n1": status(20, 3, pid=2, uptime_ms=100)}, 11.0)
    assert (again.admitted_per_s, again.refused_per_s) == (0, 0)
    assert meter.note({"n1": status(50, 4, pid=2, uptime_ms=1_100)}, 12.0).admitted_per_s == 30
    assert meter.note({"n1": status(90, 9, pid=3, uptime_ms=60_000)}, 90.0).admitted_per_s == 0, "unseen for long"


def test_a_node_that_is_away_adds_nothing_and_counts_on_when_it_is_back() -> None:
    meter = Meter()
    meter.note({"n1": status(100)}, 10.0)
    assert meter.note({"n1": ConnectionLostError("gone")}, 11.0).admitted_per_s == 0
    assert meter.note({"n1": status(900, uptime_ms=3_000)}, 12.0).admitted_per_s == 0
    assert meter.note({"n1": status(910, uptime_ms=4_000)}, 13.0).admitted_per_s == 10


def test_elections_are_the_terms_that_began_also_while_nobody_was_seen() -> None:
    meter = Meter()
    meter.note({"n1": status(0, term=4)}, 10.0)
    meter.note({}, 11.0)
    assert meter.note({"n1": status(0, term=6)}, 12.0).elections == 2
    assert meter.note({"n1": status(0, term=5)}, 13.0).elections == 0
    assert meter.note({"n1": status(0, term=6)}, 14.0).elections == 0
    assert SAMPLES_MAX == 600, "ten minutes, one a second"
