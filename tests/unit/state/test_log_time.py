"""The time of a log goes forward only, and about as fast as time does. After whatever may have kept others away,
nothing has passed for a while."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from state_rig import Rig

from metad.state.machine import CATCH_UP, LogTime
from metad.storage import keys
from metad_wire import messages as m
from metad_wire.methods import KV_PUT

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
AMNESTY_S = 10.0


def log_time(newest_ms: int = NOW_MS) -> LogTime:
    return LogTime(newest_ms, 100.0, AMNESTY_S)


def test_a_new_log_begins_with_the_calendar() -> None:
    assert log_time(0).next(NOW_MS, 100.0) == NOW_MS


def test_it_is_the_calendar_that_agrees_with_the_clock() -> None:
    time = log_time()
    for passed_ms in (1, 2, 1_000, 500_000):
        assert time.next(NOW_MS + passed_ms, 100.0 + passed_ms / 1000) == NOW_MS + passed_ms


def test_it_goes_more_slowly_while_the_calendar_is_behind() -> None:
    """Else nothing would end for an hour after somebody has set a calendar back by one."""
    time = log_time()
    assert time.next(NOW_MS - HOUR_MS, 100.0) == NOW_MS
    assert time.next(NOW_MS - HOUR_MS + 10_000, 110.0) == NOW_MS + 9_900
    # 50 ms too much: after five seconds it is right, and goes on as the calendar does.
    assert time.next(NOW_MS + 9_850 + 3_000, 113.0) == NOW_MS + 12_870
    assert time.next(NOW_MS + 9_850 + 5_000, 115.0) == NOW_MS + 14_850
    assert time.next(NOW_MS + 9_850 + 6_000, 116.0) == NOW_MS + 15_850


def test_many_entries_in_a_millisecond_do_not_hold_it_up() -> None:
    time = log_time()
    for number in range(100_000):
        time.next(NOW_MS - HOUR_MS, 100.0 + number / 10_000)
    assert abs(time.next(NOW_MS - HOUR_MS, 110.0) - NOW_MS - 9_900) <= 20


def test_it_catches_up_slowly_with_a_calendar_that_is_ahead() -> None:
    time = log_time()
    assert time.next(NOW_MS + HOUR_MS, 100.0) == NOW_MS
    assert time.next(NOW_MS + HOUR_MS + 10_000, 110.0) == NOW_MS + 10_100
    # 60 ms are left at 1 % a second: after six seconds it is there, and goes on as the calendar does.
    assert time.next(NOW_MS + 10_160 + 5_000, 115.0) == NOW_MS + 15_150
    assert time.next(NOW_MS + 10_160 + 7_000, 117.0) == NOW_MS + 17_160
    assert time.next(NOW_MS + 10_160 + 8_000, 118.0) == NOW_MS + 18_160


def test_who_has_seen_the_newest_entry_arrive_catches_up_at_once() -> None:
    """A group without writes for an hour: this node knows by its own clock that an hour has gone by."""
    time = log_time(NOW_MS - HOUR_MS)
    time.learn(NOW_MS, 100.0)
    time.learn(NOW_MS - 1, 2_000.0)
    assert time.next(NOW_MS + HOUR_MS, 100.0 + HOUR_MS / 1000) == NOW_MS + HOUR_MS


@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.integers(-2 * HOUR_MS, 2 * HOUR_MS), st.booleans(), st.booleans()),
        max_size=20,
    )
)
def test_it_never_goes_back_nor_jumps(steps: list[tuple[float, int, bool, bool]]) -> None:
    """Leaders change, restart, and their calendars are set."""
    leaders = [log_time(), log_time()]
    now_s = begin_s = 100.0
    newest_ms, newest_s = NOW_MS, now_s
    for passed_s, error_ms, second, restarts in steps:
        now_s += passed_s
        if restarts:
            leaders[second] = LogTime(newest_ms, now_s, AMNESTY_S)
        made_ms = leaders[second].next(NOW_MS + error_ms, now_s)
        assert newest_ms <= made_ms <= NOW_MS + (1 + CATCH_UP) * 1000 * (now_s - begin_s)
        if not restarts:  # who has just started does not know how old the newest entry is
            assert made_ms >= newest_ms + (1 - CATCH_UP) * 1000 * (now_s - newest_s) - 1
        newest_ms, newest_s = made_ms, now_s
        leaders[not second].learn(newest_ms, now_s)


def test_what_it_made_and_has_not_applied_may_never_come_to_be() -> None:
    """The calendar of the first leader is hours ahead, and nobody else gets its entry."""
    time = LogTime(0, 100.0, AMNESTY_S)
    assert time.next(NOW_MS + 10 * HOUR_MS, 100.0) == NOW_MS + 10 * HOUR_MS
    time.forget()
    time.learn(NOW_MS, 102.0)
    assert time.next(NOW_MS + 10 * HOUR_MS, 103.0) <= NOW_MS + 1_000 * (1 + CATCH_UP)


# --- amnesty ---------------------------------------------------------------------------------------------


def led() -> LogTime:
    """A leader whose amnesty is over, at 200 s."""
    time = log_time()
    time.next(NOW_MS + 100_000, 200.0)
    time.next(NOW_MS + 120_000, 220.0)
    assert time.past_ms(220.0) == NOW_MS + 120_000
    return time


def test_nothing_has_passed_when_a_leader_begins() -> None:
    time = log_time()
    time.next(NOW_MS + 100_000, 200.0)
    assert time.past_ms(200.0) == time.past_ms(209.9) == 0
    time.next(NOW_MS + 110_000, 210.0)
    assert time.past_ms(210.0) == NOW_MS + 110_000


def test_nothing_has_passed_when_a_leader_begins_again() -> None:
    time = led()
    time.forget()
    time.next(NOW_MS + 130_000, 230.0)
    assert time.past_ms(230.0) == 0


def test_nothing_has_passed_when_the_calendar_was_set() -> None:
    for step_ms in (-HOUR_MS, -2_000, 2_000, HOUR_MS):
        time = led()
        time.next(NOW_MS + 121_000 + step_ms, 221.0)
        assert time.past_ms(221.0) == 0
    time = led()
    time.next(NOW_MS + 121_000 + 900, 221.0)
    assert time.past_ms(221.0) == NOW_MS + 121_000 + 10  # some milliseconds are no step


def test_nothing_has_passed_after_the_node_did_not_keep_up() -> None:
    time = led()
    time.amnesty(220.0)
    assert time.past_ms(229.9) == 0
    assert time.past_ms(230.0) == NOW_MS + 120_000


# --- in a group ------------------------------------------------------------------------------------------


def put(rig: Rig) -> None:
    rig.write(KV_PUT, m.KvPut([m.KvPutItem("n", "k", b"")]))


def test_the_time_is_in_the_state_and_survives_a_restart() -> None:
    rig = Rig()
    put(rig)
    rig.advance(5_000)
    put(rig)
    rig.settle()
    assert rig.group.engine.get(keys.log_time(rig.group.prefix)) == keys.u64(rig.now_ms)
    rig.group.restart()
    first_ms = rig.now_ms
    rig.now_ms -= HOUR_MS
    put(rig)
    assert rig.group.machine.time.newest_ms == first_ms
    assert rig.group.follower.time.newest_ms == first_ms
