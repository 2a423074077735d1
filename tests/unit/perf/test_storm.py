"""metad-perf storm: who the clients are, when they are due, what becomes of their attempts, and the judge."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import pictures
from metad_judge.sessions import Found, Sessions, Verdict
from metad_perf.errors import UsageError
from metad_perf.storm.background import Sample, Work
from metad_perf.storm.command import KEYS, restored_by_s, summary
from metad_perf.storm.orders import Result
from metad_perf.storm.page import page
from metad_perf.storm.plan import WAYS, Storm, ignores_slots, places, ways
from metad_perf.storm.population import Clients, Kind, Population, read
from metad_perf.storm.trace import COLUMNS, Outcome, Series, Tally, Trace
from metad_perf.storm.wave import Wheel
from metad_wire.messages import Owner
from metad_wire.policy import Backoff

STORM = Storm(sessions=2_000, brokers=5, processes=2)
CLIENTS = Clients(STORM.population, seed=1)
MS = 1_000_000


def numbers(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


# --- the population ---


def test_kinds_have_their_shares_and_follow_from_the_number() -> None:
    everyone = np.arange(100_000)
    kinds = CLIENTS.kinds(everyone)
    shares = np.bincount(kinds) / len(kinds)
    assert shares == pytest.approx([kind.share for kind in STORM.population.kinds], abs=0.01)
    assert (CLIENTS.kinds(everyone[77:78]) == kinds[77]).all()
    assert (Clients(STORM.population, seed=2).kinds(everyone) != kinds).any()


def test_no_two_clients_store_the_same() -> None:
    kind = Kind(name="one", share=1, payload_bytes=64, subscriptions=2, inflight=2)
    payloads = {CLIENTS.payload(number, kind) for number in range(3_000)}
    assert len(payloads) == 3_000
    assert {len(payload) for payload in payloads} == {64}
    assert Clients.subscriptions(1, kind) != Clients.subscriptions(2, kind)
    assert Clients.inflight(1, kind) != Clients.inflight(2, kind)


def test_a_population_is_read_from_toml_and_says_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "population.toml"
    path.write_text(
        'timeout_s = 5.0\n[[kinds]]\nname = "tag"\nshare = 1.0\nrtt_ms = 3.0\nwill = true\n'
        '[kinds.backoff]\nfamily = "equal"\nbase_s = 2.0\ncap_s = 9.0\n'
    )
    (kind,) = read(path).kinds
    assert (kind.name, kind.rtt_ms, kind.will, kind.backoff.family, kind.backoff.cap_s) == (
        "tag",
        3.0,
        True,
        "equal",
        9,
    )
    assert read(None) == Population()
    for text in (
        "kinds = []",
        '[[kinds]]\nname = "tag"\nshare = 0.0',
        "colour = 1",
        '[[kinds]]\nname = "x"\nshare = "a"',
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match="population"):
            read(path)


# --- places ---


def test_every_client_comes_back_to_another_broker_at_once() -> None:
    everyone = places(STORM, CLIENTS)
    assert (everyone.before != everyone.after).all()
    assert set(everyone.after.tolist()) == set(range(5))
    assert everyone.returns.all()
    assert not everyone.ends.any()
    assert not everyone.begin_ns.any(), "there is no ramp"


def test_rolling_brokers_keep_their_clients_and_take_turns() -> None:
    everyone = places(msgspec.structs.replace(STORM, trigger="rolling", rolling_s=10.0), CLIENTS)
    assert (everyone.before == everyone.after).all()
    assert sorted(set(everyone.begin_ns.tolist())) == [n * 2_000 * MS for n in range(5)]


def test_only_a_region_or_those_whose_sessions_stay_come_back() -> None:
    region = places(msgspec.structs.replace(STORM, trigger="region", region="us"), CLIENTS)
    regions = [STORM.population.kinds[kind].region for kind in region.kinds]
    assert [one == "us" for one in regions] == region.returns.tolist()
    assert (region.before == region.after)[~region.returns].all()
    expiry = places(msgspec.structs.replace(STORM, trigger="expiry", expiring=0.25), CLIENTS)
    assert (expiry.ends == ~expiry.returns).all()
    assert expiry.ends.mean() == pytest.approx(0.25, abs=0.05)


def test_a_share_of_the_brokers_ignores_slots() -> None:
    storm = msgspec.structs.replace(STORM, policy="return-slot", ignore_slots=0.4)
    assert [ignores_slots(storm, n) for n in range(5)] == [True, True, False, False, False]


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("trigger", "noon", "noon"),
        ("policy", "hope", "hope"),
        ("brokers", 1, "--brokers"),
        ("processes", 9, "--processes"),
        ("limit_s", 0.0, "--seconds-limit"),
        ("limit_s", 10_000_000.0, "expiry_s"),
        ("limit_s", 3_600.0, "will_delay_s"),
        ("region", "mars", "mars"),
        ("ignore_slots", 2.0, "--ignore-slots"),
    ],
)
def test_settings_that_make_no_sense_are_named(field: str, value: object, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        msgspec.structs.replace(STORM, **{field: value}).checked()


# --- the wheel ---


def test_nobody_comes_out_of_the_wheel_before_the_time() -> None:
    wheel = Wheel(5 * MS)
    due = np.random.default_rng(1).integers(0, 1_000 * MS, 500)
    wheel.push(np.arange(500), due)
    wheel.push(numbers(500), numbers(3 * MS))
    due = np.append(due, 3 * MS)
    out: list[int] = []
    for now in range(0, 1_010 * MS, 7 * MS):
        popped = wheel.pop(now)
        assert (due[popped] <= now).all()
        assert (due[popped] > now - 12 * MS).all(), "nor more than a tick and a look late"
        out += popped.tolist()
    assert sorted(out) == list(range(501))
    assert (wheel.waiting, wheel.next_ns) == (0, None)


# --- percentiles and series ---


def test_percentiles_count_who_is_still_away() -> None:
    waited = np.arange(1, 1_001) * MS
    assert restored_by_s(waited, 50.0) == 0.5
    assert restored_by_s(waited, 99.9) == pytest.approx(0.999)
    assert restored_by_s(waited, 100.0) == 1.0
    waited[-1] = -1
    assert restored_by_s(waited, 100.0) is None
    assert restored_by_s(waited, 99.9) == pytest.approx(0.999)
    assert restored_by_s(numbers(), 50.0) is None


WORDS = {"kind": ["tag", "car"], "region": ["eu", "us"], "policy": WAYS}


def note(trace: Trace) -> None:
    def of(*clients: int) -> dict[str, Any]:
        second = [int(client == 9) for client in clients]
        return {"group": numbers(*(client % 4 for client in clients))} | {
            name: numbers(*second) for name in ("kind", "region", "policy")
        }

    refused = (150 * MS, Outcome.REFUSED, 50, 20)
    trace.note(numbers(7, 9), 3, numbers(1, 1), numbers(0, 0), 10 * MS, *refused, **of(7, 9))
    trace.note(numbers(7), 3, numbers(2), numbers(230 * MS), 240 * MS, 250 * MS, Outcome.RESTORED, **of(7))
    trace.note(numbers(9), 3, numbers(2), numbers(230 * MS), 240 * MS, 9_000 * MS, Outcome.TIMEOUT, **of(9))


def test_a_series_counts_attempts_where_they_happen() -> None:
    tally = Tally(0.1, 20)
    tally.note(numbers(0, 0), 10 * MS, 150 * MS, Outcome.REFUSED)
    tally.note(numbers(230 * MS), 240 * MS, 250 * MS, Outcome.RESTORED)
    tally.note(numbers(230 * MS), 240 * MS, 9_000 * MS, Outcome.TIMEOUT)
    found = tally.series(4)
    assert found == Series(0.1, [2, 0, 2, 0], [2, 0, 2, 0], [0, 0, 1, 0], [0, 2, 0, 0], [0, 0, 0, 1])
    assert found.plus(found).refused == [0, 4, 0, 0]


@pytest.mark.parametrize("rows_max", [1, 3, 100])
def test_a_trace_has_a_row_for_each_attempt(tmp_path: Path, rows_max: int) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    trace = Trace(str(tmp_path / "attempts.parquet"), rows_max, WORDS)
    note(trace)
    trace.close()
    table = pq.read_table(tmp_path / "attempts.parquet")
    assert table.column_names == [name for name, _ in COLUMNS]
    rows = [tuple(row.values()) for row in table.to_pylist()]
    assert rows == [
        (7, 3, 1, 0, 10 * MS, 150 * MS, "refused", 50, 20, 3, "tag", "eu", "return-slot"),
        (9, 3, 1, 0, 10 * MS, 150 * MS, "refused", 50, 20, 1, "car", "us", "none"),
        (7, 3, 2, 230 * MS, 240 * MS, 250 * MS, "restored", -1, 0, 3, "tag", "eu", "return-slot"),
        (9, 3, 2, 230 * MS, 240 * MS, 9_000 * MS, "timeout", -1, 0, 1, "car", "us", "none"),
    ]


def test_how_a_client_waits_is_a_matter_of_its_kind_its_broker_and_the_policy() -> None:
    kinds = (
        Kind(name="tag", share=1.0, backoff=Backoff(base_s=1.0, cap_s=2.0, family="decorrelated")),
        Kind(name="car", share=1.0, backoff=Backoff(base_s=1.0, cap_s=2.0, family="equal")),
    )

    def told(**changes: Any) -> list[str]:
        storm = Storm(population=Population(kinds=kinds), brokers=4, **changes)
        return [WAYS[way] for way in ways(storm, numbers(0, 1, 0), numbers(0, 1, 3))]

    own = ["decorrelated-jitter", "equal-jitter", "decorrelated-jitter"]
    assert told(policy="population") == own
    assert told(policy="full-jitter") == ["full-jitter"] * 3
    assert told(policy="return-slot") == ["return-slot"] * 3
    assert told(policy="return-slot", ignore_slots=0.5) == [*own[:2], "return-slot"]


def test_a_trace_without_attempts_is_an_empty_file_and_without_a_path_none(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    Trace(str(tmp_path / "attempts.parquet")).close()
    assert pq.read_table(tmp_path / "attempts.parquet").num_rows == 0
    nowhere = Trace()
    note(nowhere)
    nowhere.close()


def test_a_schedule_is_replayed_by_client(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    pa = pytest.importorskip("pyarrow")
    from metad_perf.storm.trace import read_schedule

    (tmp_path / "first_attempts").mkdir()
    for part, clients, times in ((0, [5, 1], [10, 30]), (1, [9], [20])):
        table = pa.table({"t_ns": times, "client_id": clients, "region": ["eu"] * len(times)})
        pq.write_table(table, tmp_path / "first_attempts" / f"part-{part:05}.parquet")
    assert read_schedule(tmp_path).tolist() == [30, 10, 20], "in order of client_id"
    (tmp_path / "empty" / "first_attempts").mkdir(parents=True)
    for wrong in (tmp_path / "nowhere", tmp_path / "empty"):
        with pytest.raises(UsageError, match="no schedule of metad-spark"):
            read_schedule(wrong)
    np.save(tmp_path / "begins.npy", np.arange(STORM.sessions))
    everyone = places(msgspec.structs.replace(STORM, replay=str(tmp_path / "begins.npy")), CLIENTS)
    assert everyone.begin_ns.tolist() == list(range(STORM.sessions))


# --- the page ---


def recorded() -> dict[str, Any]:
    """A report as the command makes it, of 3 clients in half a second; one of them is still away."""
    waited = [one * MS for one in (100, 200)]
    verdict = Verdict(gone=1, examples=["client 3 at the end: its session is gone"])
    one = msgspec.structs.replace(
        result({}, [*waited, -1], 4),
        series=Series(0.1, [3, 0, 1, 0], [3, 0, 1, 0], [1, 1, 0, 0], [0, 1, 0, 0], [0] * 4),
    )
    return {
        **summary([one], verdict),
        "sessions": 3,
        "elections": 1,
        "brokers_fenced": 0,
        "wills_fired_wrongly": 0,
        "goodput_before": 100.0,
        "goodput_after": 99.0,
        "rss_max_mib": 70.0,
        "storm_s": 0.5,
        "harness_cpu_s": 0.1,
        "goodput_curve": [100.0, 0.0, 50.0, 100.0],
        "other_ms": {part: {"50": 2.0, "99": ms} for part, ms in (("before", 3.0), ("during", 41.0), ("after", 4.0))},
        "curves": msgspec.to_builtins(one.series),
        "nodes_curve": {"n1": [(0.1, 0.5, 60.0, 0.1), (0.2, 0.7, 70.0, 0.0)], "n2": []},
        "marks": [(0.15, "kill -9 of n1"), (0.3, "metadata-0: term 2")],
        "settings": msgspec.to_builtins(STORM),
        "setting": {"cpus": 2},
        "versions": {},
        "nodes": 3,
        "groups": 5,
        "fsync": True,
        "scheme": "metad",
        "problems": ["n3 <ended>"],
        "ok": False,
    }


def test_a_page_says_what_happened_and_loads_nothing() -> None:
    text = page(recorded(), made_by=["metad-perf storm"])
    assert "1 were still away after 0.5 s. 1 sessions were lost." in text
    assert 'class="verdict bad"' in text
    assert "n3 &lt;ended&gt;" in text
    assert "its session is gone" in text
    assert text.count("<svg") == 6
    assert text.count("kill -9 of n1</text>") == 6, "in each picture"
    assert pictures.faults(text) == []
    assert "never" in text, "99 % were never back"
    assert "took at most 3 ms before, 41 ms during and 4 ms after" in text
    assert not re.search(r"<script|src=|href=\"[^#]|@import", text)
    good = recorded() | {"restored": 3, "lost": 0, "ok": True, "examples": [], "problems": []}
    assert "No session was lost, no broker fenced, no will published." in page(good, made_by=[])


# --- the judge ---

BEFORE, AFTER, OTHER = Owner("storm-001", 4), Owner("storm-002", 7), Owner("storm-002", 6)


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        (Found(AFTER, ["a"]), None),
        (Found(BEFORE, ["a"]), None),
        (Found(None, None), "gone"),
        (Found(AFTER, None), "gone"),
        (Found(AFTER, ["b"]), "damaged"),
        (Found(OTHER, ["a"]), "wrong_owner"),
    ],
)
def test_the_judge_sees_what_is_wrong_and_nothing_else(found: Found, fault: str | None) -> None:
    judge = Sessions()
    judge.see(1, [AFTER], ["x"], Found(AFTER, ["x"]), "now")
    judge.see(2, [BEFORE, AFTER], ["a"], found, "now")
    assert judge.verdict.counts == ({fault: 1} if fault else {})
    assert len(judge.verdict.examples) == (1 if fault else 0)


def test_a_client_is_wrong_once_and_a_session_that_stays_too_long_is_seen() -> None:
    judge = Sessions()
    for _ in range(2):
        judge.see(1, [AFTER], ["a"], Found(None, None), "now")
    judge.not_ended(2)
    assert judge.verdict.counts == {"gone": 1, "not_ended": 1}


def result(faults: dict[str, int], waited: list[int], attempts: int, retried: int = 0) -> Result:
    none = Series(0.1, [0], [0], [0], [0], [0])
    verdict = Verdict(**faults)
    reasons = {"overloaded": retried} if retried else {}
    repeated = {"overloaded": 10 * retried} if retried else {}
    return Result(numbers(*waited), attempts, len(waited), 1, {}, none, verdict, reasons, repeated, 10, 0, 0.1)


def test_what_is_lost_is_counted_whether_it_is_seen_when_a_client_comes_back_or_at_the_end() -> None:
    fine = result({}, [MS, 2 * MS], 2)
    assert summary([fine], Verdict())["lost"] == 0
    assert summary([result({"gone": 1}, [MS, MS], 2)], Verdict())["lost"] == 1
    assert summary([fine], Verdict(gone=1, damaged=2, not_ended=5))["lost"] == 3
    assert summary([fine], Verdict(gone=1, damaged=2))["sessions_expired_wrongly"] == 1
    missing = summary([fine, result({}, [-1, MS], 5)], Verdict())
    assert (missing["restored"], missing["returning"], missing["t999_s"]) == (3, 4, None)
    assert missing["attempts_per_session"] == 7 / 4
    assert missing["t50_s"] == 0.001


def test_what_the_sdk_repeats_is_an_attempt_too() -> None:
    again = summary([result({}, [MS] * 100, 100, retried=5)], Verdict())
    assert (again["attempts_per_session"], again["rejected"]) == (1.5, 51), "5 requests of 10 clients each"


def test_the_keys_of_the_contract_are_exactly_these() -> None:
    assert KEYS[:3] == ("sessions", "restored", "t50_s")
    assert len(KEYS) == 15


def test_other_work_is_judged_by_when_it_was_due() -> None:
    work = Work([Sample(at * MS, (at + took) * MS, 20, 20) for at, took in ((0, 2), (5, 90), (9, 4), (10, 700))])
    assert work.waits_ms(0, 10 * MS) == {"50": 4.0, "99": 90.0}
    assert work.waits_ms(10 * MS, 20 * MS) == {"50": 700.0, "99": 700.0}
    assert work.waits_ms(20 * MS, 30 * MS) == {"50": 0.0, "99": 0.0}
