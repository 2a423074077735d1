"""metad-perf failover: which sessions there are, the account of what comes of them, and of the other work."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from metad_perf.errors import UsageError
from metad_perf.failover.foreground import WINDOW_S, Sample, Window, compared, curve, parts
from metad_perf.failover.ledger import Firing, Ledger, Left, Verdict
from metad_perf.failover.plan import END, FIRE, LONG_S, TENANT, Kind, Plan, topic_of

PLAN = Plan(brokers=3, sessions=60, kill=1, expiry_s=5, delay_s=2)
FENCED_MS = 1_000_000
ENDS_MS = FENCED_MS + 5_000
BACK = "failover-0002"


def clients(plan: Plan = PLAN) -> Iterator[tuple[int, str]]:
    for n in range(plan.brokers):
        for number in range(plan.each):
            yield n * plan.each + number, plan.client(n, number)


def fire(ledger: Ledger, client: str) -> None:
    ledger.fired(Firing(TENANT, client, topic_of(client), client.encode()))


class Run:
    """A run in which all is as it must be, but for what a test changes."""

    def __init__(self) -> None:
        self.ledger = Ledger(PLAN)
        self.left: dict[str, Left] = {}
        for place, client in clients():
            dies, kind = PLAN.dies(place), PLAN.kind(place)
            back = dies and kind is Kind.RETURNS
            if back:
                self.ledger.returned(client, present=True)
            if dies and kind in FIRE:
                fire(self.ledger, client)
            if dies and kind in END:
                self.ledger.ended(client, ENDS_MS)
            else:
                self.left[client] = Left(client, not dies or back, BACK)

    def of(self, kind: Kind, *, dead: bool = True) -> str:
        """A client of this kind."""
        return next(name for place, name in clients() if PLAN.kind(place) is kind and PLAN.dies(place) is dead)

    def judge(self) -> Verdict:
        return self.ledger.judge(self.left.values(), {PLAN.broker(0): FENCED_MS})


def faults(verdict: Verdict) -> dict[str, int]:
    """Those that there are."""
    kinds = ("wills_twice", "wills_lost", "wills_not_due", "expired_wrongly", "not_expired", "connected_wrongly")
    found = {kind: getattr(verdict, kind) for kind in kinds if getattr(verdict, kind)}
    assert verdict.broken == sum(found.values()) == len(verdict.examples)
    return found


# --- the plan --------------------------------------------------------------------------------------------


def test_every_broker_has_sessions_of_every_kind_and_a_client_is_found_by_its_name() -> None:
    for n in range(PLAN.brokers):
        places = [PLAN.place(PLAN.client(n, number)) for number in range(PLAN.each)]
        assert places == [*range(n * PLAN.each, (n + 1) * PLAN.each)]
        assert {PLAN.kind(place) for place in places if place is not None} == {*Kind}
    assert [PLAN.dies(n * PLAN.each) for n in range(PLAN.brokers)] == [True, False, False]
    assert [PLAN.place(name) for name in ("", "x-1", "0003-00000000", "0000-00000020", "0000")] == [None] * 5


def test_a_session_has_the_interval_and_the_will_of_its_kind() -> None:
    seen = {}
    for number in range(10):
        properties = PLAN.item(0, number).properties
        assert properties is not None
        will = properties.will
        seen[PLAN.kind(number)] = (properties.expiry_interval_s, None if will is None else will.delay_s)
    assert seen == {
        Kind.ENDS: (5, None),
        Kind.ENDS_WITH_WILL: (5, LONG_S),
        Kind.WILL: (LONG_S, 0),
        Kind.DELAYED_WILL: (LONG_S, 2),
        Kind.STAYS: (LONG_S, None),
        Kind.RETURNS: (5, LONG_S),
    }
    assert (PLAN.count(END), PLAN.count(FIRE), len(PLAN.returning(0))) == (12, 6, 2)


@pytest.mark.parametrize(
    "wrong", [{"kill": 0}, {"kill": 3}, {"sessions": 29}, {"delay_s": 6}, {"delay_s": 0}, {"expiry_s": LONG_S}]
)
def test_a_plan_that_cannot_be_is_refused(wrong: dict[str, int]) -> None:
    assert PLAN.checked() is PLAN
    with pytest.raises(UsageError, match="--"):
        msgspec.structs.replace(PLAN, **wrong).checked()


# --- the account -----------------------------------------------------------------------------------------


def test_a_run_without_a_fault() -> None:
    verdict = Run().judge()
    assert faults(verdict) == {}
    assert (verdict.sessions_fenced, verdict.expired, verdict.returned) == (20, 12, 2)
    assert (verdict.wills_due, verdict.wills_fired) == (6, 6)


def test_a_will_that_is_published_again_counts_each_time() -> None:
    run = Run()
    for _ in range(2):
        fire(run.ledger, run.of(Kind.WILL))
    verdict = run.judge()
    assert faults(verdict) == {"wills_twice": 2}
    assert (verdict.wills_due, verdict.wills_fired) == (6, 6)


def test_a_will_that_nobody_publishes_is_lost() -> None:
    verdict = Ledger(PLAN).judge(Run().left.values(), {PLAN.broker(0): FENCED_MS})
    assert (verdict.wills_lost, verdict.wills_fired, verdict.wills_due) == (6, 0, 6)


@pytest.mark.parametrize("kind", [Kind.ENDS, Kind.STAYS, Kind.RETURNS])
def test_a_will_that_is_not_due(kind: Kind) -> None:
    run = Run()
    fire(run.ledger, run.of(kind))
    assert faults(run.judge()) == {"wills_not_due": 1}


def test_a_will_of_a_client_whose_broker_lives_is_not_due() -> None:
    run = Run()
    fire(run.ledger, run.of(Kind.WILL, dead=False))
    assert faults(run.judge()) == {"wills_not_due": 1}


def test_a_will_must_be_the_one_that_its_client_has_left() -> None:
    run = Run()
    client = run.of(Kind.WILL)
    run.ledger.fired(Firing(TENANT, client, "elsewhere", client.encode()))
    run.ledger.fired(Firing("another", client, topic_of(client), client.encode()))
    assert faults(run.judge()) == {"wills_not_due": 2}


def test_a_session_that_goes_before_its_time() -> None:
    run = Run()
    early = Ledger(PLAN)
    early.ended(run.of(Kind.ENDS), ENDS_MS - 1)
    assert early.judge(run.left.values(), {PLAN.broker(0): FENCED_MS}).expired_wrongly == 1


@pytest.mark.parametrize("kind", [Kind.WILL, Kind.DELAYED_WILL, Kind.STAYS, Kind.RETURNS])
def test_a_session_that_goes_and_was_to_stay(kind: Kind) -> None:
    run = Run()
    del run.left[run.of(kind)]
    assert faults(run.judge()) == {"expired_wrongly": 1}


def test_a_session_that_goes_although_its_broker_lives() -> None:
    run = Run()
    del run.left[run.of(Kind.ENDS, dead=False)]
    assert faults(run.judge()) == {"expired_wrongly": 1}


def test_a_session_that_does_not_go() -> None:
    run = Run()
    client = run.of(Kind.ENDS)
    run.left[client] = Left(client, False, PLAN.broker(0))
    verdict = run.judge()
    assert faults(verdict) == {"not_expired": 1}
    assert verdict.expired == 11


def test_a_session_that_looks_connected_at_a_dead_broker_or_disconnected_at_a_living_one() -> None:
    run = Run()
    dead, living = run.of(Kind.STAYS), run.of(Kind.STAYS, dead=False)
    run.left[dead] = Left(dead, True, PLAN.broker(0))
    run.left[living] = Left(living, False, BACK)
    assert faults(run.judge()) == {"connected_wrongly": 2}


def test_the_will_of_a_client_that_came_back_too_late_is_due() -> None:
    run = Run()
    late = Ledger(PLAN)
    for client in PLAN.returning(0):
        late.returned(client, present=False)
        late.ended(client, ENDS_MS)
    assert late.wills_due == 8
    fire(late, PLAN.returning(0)[0])
    verdict = late.judge(run.left.values(), {PLAN.broker(0): FENCED_MS})
    assert (verdict.wills_due, verdict.wills_fired, verdict.wills_lost) == (8, 1, 7)
    assert (verdict.returned, verdict.expired_wrongly, verdict.connected_wrongly) == (0, 0, 0)


# --- the other work --------------------------------------------------------------------------------------


def test_the_other_work_is_compared_by_when_it_was_due() -> None:
    ms, window = 1_000_000, round(WINDOW_S * 1e9)
    took_ms = [2, 6, 90, 40, 6, 6, 6]  # windows: before; during, with a leader down in the third, and a stall
    samples = [Sample(at * window + n, took * ms) for at, took in enumerate(took_ms) for n in range(100)]
    before, during, down = Window(0, window), Window(window, 7 * window), Window(2 * window + 5, 2 * window + 6)
    (row,) = compared({"kv.put": samples}, before, during, [down]).values()
    assert row == {"p99_ms_before": 2, "p99_ms_during": 6, "p99_ratio": 3, "p99_ms_with_leader_kill": 90}


def test_a_span_has_whole_windows_or_is_one() -> None:
    second = 1_000_000_000
    assert parts(Window(5, 5 + 5 * second), 2) == [
        Window(5, 5 + 2 * second),
        Window(5 + 2 * second, 5 + 4 * second),
    ]
    assert parts(Window(5, 7), 2) == [Window(5, 7)]


def test_the_curve_has_a_row_for_each_second() -> None:
    second = 1_000_000_000
    samples = {"kv.put": [Sample(at * second, (at + 1) * 1_000_000) for at in range(4)], "kv.get": []}
    rows = curve(samples, Window(second, 3 * second + 1))
    assert rows == [{"kv.put": ms, "kv.get": 0.0} for ms in (2, 3, 4)]


def test_without_samples_there_is_no_ratio() -> None:
    (row,) = compared({"kv.put": []}, Window(0, 1), Window(1, 2), []).values()
    assert set(row.values()) == {0}
