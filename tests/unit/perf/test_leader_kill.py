"""metad-perf leader-kill: the judge of what must be there, the account of a kill, and the picture."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

import pictures
from metad_judge.acknowledged import Seen, Verdict, fresh, handed_on, settled
from metad_perf.commands import LeaderKill
from metad_perf.errors import UsageError
from metad_perf.leader_kill.command import said
from metad_perf.leader_kill.page import page
from metad_perf.leader_kill.plan import (
    COMMIT,
    MIX,
    PUT,
    READ,
    TAKEOVER,
    TENANT,
    UPDATE,
    VERBS,
    Draw,
    Ledger,
    Lot,
    Namer,
    groups_of,
    number_of,
    numbered,
)
from metad_perf.leader_kill.rounds import Kill, Sample, curve, percentile, row, served_ms, summary
from metad_perf.leader_kill.work import What, code, decoded
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import SLOTS, ClusterMap, GroupRecord, NodeRecord, pack_slots, unpack_slots
from metad_wire.routing import ROUTES, SLOT_MASK

MS = 1_000_000
DATA = ["data-0", "data-1", "data-2"]


def cluster() -> ClusterMap:
    def slots(groups: int) -> bytes:
        return pack_slots([slot % groups for slot in range(SLOTS)])

    nodes = [NodeRecord("n1", "", "")]
    groups = [GroupRecord("data", n, ["n1"], ["n1"], "n1") for n in range(3)]
    groups += [GroupRecord("offset", n, ["n1"], ["n1"], "n1") for n in range(2)]
    return ClusterMap(1, nodes, groups, {"data": slots(3), "offset": slots(2)})


# --- the plan ---


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ({"rate": 0.0}, "--rate"),
        ({"rounds": 0}, "--rounds"),
        ({"batch": 0}, "--batch"),
        ({"batch": m.BATCH_ITEMS_MAX + 1}, "--batch"),
        ({"processes": 0}, "--processes"),
        ({"clients": 0}, "--clients"),
        ({"quiet_s": 0.0}, "--quiet-s"),
        ({"deadline_s": -1.0}, "--deadline-s"),
        ({"value_bytes": 7}, "--value-bytes"),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        LeaderKill(**setting).checked()


def test_the_mix_is_whole() -> None:
    assert sum(MIX.values()) == pytest.approx(1.0)
    assert {PUT, UPDATE, TAKEOVER, COMMIT, READ} == set(VERBS)


def test_verbs_are_drawn_by_their_shares_and_groups_in_turn() -> None:
    draw = Draw(random.Random(1), cluster())
    drawn = [draw.next() for _ in range(10_000)]
    verbs = Counter(verb for verb, _ in drawn)
    for verb, share in MIX.items():
        assert verbs[verb] == pytest.approx(10_000 * share, rel=0.1)
        groups = Counter(group for one, group in drawn if one == verb)
        assert set(groups) == set(DATA if verb != COMMIT else ["offset-0", "offset-1"])
        assert max(groups.values()) - min(groups.values()) <= 1


def test_names_are_new_and_of_their_group() -> None:
    made, known = cluster(), set()
    namer = Namer(made, "p0")
    for _ in range(20):
        for verb in (PUT, UPDATE, TAKEOVER, COMMIT):
            kind = "offset" if verb == COMMIT else "data"
            for group in groups_of(made, kind):
                place, names = namer.names(verb, group, 7)
                for name in names:
                    assert (verb, place, name) not in known
                    known.add((verb, place, name))
                    if verb == COMMIT:
                        method, item = methods.OFFSET_FETCH, m.OffsetKey(TENANT, place, "orders", int(name))
                    elif verb == PUT:
                        method, item = methods.KV_GET, m.KvKey(place, name)
                    else:
                        method, item = methods.SESSION_GET, m.SessionKey(place, name)
                    (crc,) = ROUTES[method.code].crcs([item])
                    assert f"{kind}-{unpack_slots(made.slots[kind])[crc & SLOT_MASK]}" == group


def test_a_value_says_its_number() -> None:
    assert number_of(numbered(12_345, b"filling")) == 12_345


# --- the judge ---


def lot(verb: str = PUT, acknowledged: int = 3, in_doubt: int = 0) -> Lot:
    return Lot(
        verb=verb, group="data-0", place="p", names=["a", "b"], home=0, acknowledged=acknowledged, in_doubt=in_doubt
    )


def judged(one: Lot, *seen: Seen | None) -> Verdict:
    verdict = Verdict()
    for name, each in zip(one.names, seen, strict=True):
        settled(verdict, one.label(name), each, one.acknowledged, one.in_doubt)
    return verdict


def found(verdict: Verdict) -> dict[str, int]:
    return {name: getattr(verdict, name) for name in ("lost", "duplicated", "invented") if getattr(verdict, name)}


def test_all_is_there() -> None:
    verdict = judged(lot(), Seen(3, 3), Seen(3, 3))
    assert (found(verdict), verdict.read, verdict.examples) == ({}, 2, [])


@pytest.mark.parametrize(
    ("seen", "fault"),
    [
        (None, "lost"),
        (Seen(2, 2), "lost"),
        (Seen(3, 2), "lost"),  # a later put is there, an earlier one is not
        (Seen(3, 4), "duplicated"),
        (Seen(4, 4), "invented"),
    ],
)
def test_what_is_not_as_acknowledged_is_seen(seen: Seen | None, fault: str) -> None:
    verdict = judged(lot(), Seen(3, 3), seen)
    assert found(verdict) == {fault: 1}
    assert "p/b" in verdict.examples[0]


def test_a_write_in_doubt_may_be_there_or_not() -> None:
    assert found(judged(lot(in_doubt=4), Seen(3, 3), Seen(4, 4))) == {}
    assert found(judged(lot(acknowledged=0, in_doubt=1), None, Seen(1, 1))) == {}
    assert found(judged(lot(in_doubt=4), Seen(2, 2), Seen(5, 5))) == {"lost": 1, "invented": 1}


def test_a_takeover_names_its_predecessor() -> None:
    verdict = Verdict()
    handed_on(verdict, "a", "broker-1", "broker-1")
    assert found(verdict) == {}
    handed_on(verdict, "a", "broker-0", "broker-1")
    handed_on(verdict, "b", None, "broker-1")
    assert found(verdict) == {"lost": 2}


def test_a_read_that_is_behind_counts() -> None:
    verdict = Verdict()
    fresh(verdict, "a", Seen(2), 3)
    fresh(verdict, "b", None, 1)
    assert found(verdict) == {"lost": 2}


def test_a_read_of_what_was_never_acknowledged_may_find_nothing() -> None:
    """A lot whose first write was turned away is free again."""
    ledger = Ledger()
    first = ledger.take("kv.put", "data-0", lambda: lot(acknowledged=0))
    ledger.failed(first, known=True)
    verdict = Verdict()
    fresh(verdict, "a", None, first.acknowledged)
    fresh(verdict, "b", Seen(1), 1)
    assert found(verdict) == {}


def test_a_lot_is_written_by_one_at_a_time_and_never_again_once_in_doubt() -> None:
    ledger, made = Ledger(), []

    def make() -> Lot:
        made.append(lot(acknowledged=0))
        return made[-1]

    taken = [ledger.take(PUT, "data-0", make) for _ in range(100)]
    assert taken == made == ledger.lots
    for one in taken[:90]:
        ledger.acknowledged(one)
    ledger.failed(taken[90], known=True)
    ledger.failed(taken[91], known=False)
    assert taken[91].in_doubt == 1
    assert ledger.any(PUT, "data-0") is taken[90]
    assert ledger.any(PUT, "data-1") is None
    again = ledger.take(PUT, "data-0", make)
    assert again is taken[0]
    assert again.next == 2
    rest = {id(ledger.take(PUT, "data-0", make)) for _ in range(200)}
    assert not rest & {id(one) for one in (again, *taken[91:])}


# --- the rounds ---

KILL = Kill(
    number=1,
    node="n1",
    led=["data-0", "offset-0", "metadata-0"],
    begin_ns=0,
    killed_ns=2_000 * MS,
    dead_ns=2_010 * MS,
    end_ns=9_000 * MS,
)


def sample(due_ms: float, took_ms: float, verb: str = PUT, group: str = "data-0", *, ok: bool = True) -> Sample:
    return Sample(round(due_ms * MS), round(took_ms * MS), VERBS.index(verb), group, ok)


SAMPLES = [
    sample(1_000, 10),
    sample(1_990, 15),  # the answer of the dead
    sample(2_005, 3),  # of one that was dying
    sample(2_100, 100, READ),  # no write
    sample(2_200, 300, ok=False),
    sample(2_300, 500),
    sample(2_500, 250),
    sample(2_400, 700, COMMIT, "offset-0"),
    sample(2_020, 1, PUT, "data-1"),  # another leads it
    sample(9_500, 9_999),  # of the next round
]


def test_a_group_is_served_again_by_its_first_acknowledged_write_that_was_made_after_the_death() -> None:
    assert served_ms(KILL, SAMPLES) == {"data-0": 750.0, "offset-0": 1_100.0}


def test_a_round_is_told() -> None:
    kill = msgspec.structs.replace(KILL, first={"failed": 3, "refused": 2, "unknown": 1, "by not_leader": 2})
    kill.errors = {"deadline_exceeded": 10}
    kill.led_ms, kill.detected_ms = {"data-0": 700.0, "offset-0": 900.0}, 40.0
    told = row(kill, SAMPLES, 10)
    assert told["led_again_ms"] == {"data-0": 750.0, "offset-0": 1_100.0}
    assert (told["operations"], told["failed_operations"], told["failed_without_retries"]) == (90, 10, 30)
    assert (told["refused"], told["unknown"], told["first_failures_by_name"]) == (20, 10, {"not_leader": 20})
    assert (told["worst_ms"], told["worst_of"]) == (700.0, "offset.commit of offset-0")
    assert told["p99_ms_before"] == 10.0
    made = summary([told, told | {"failed_operations": 4, "worst_ms": 900.0, "led_again_ms": {"data-0": 300.0}}])
    assert (made["failed_operations_max"], made["worst_ms"], made["failed_operations"]) == (10, 900.0, 14)
    assert (made["led_again_ms_p50"], made["led_again_ms_p95"], made["elections_measured"]) == (750.0, 1_100.0, 3)
    assert (made["leads_ms_p95"], made["detected_ms_p50"], made["detected_to_leads_ms_p95"]) == (900.0, 40.0, 860.0)


def test_percentiles() -> None:
    assert percentile([], 95) == 0.0
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile(list(map(float, range(1, 101))), 95) == 95.0
    assert percentile([1.0, 9.0], 95) == 9.0


def test_what_a_request_was_fits_into_a_number() -> None:
    for what in (What(0, 0, True), What(3, 7, False), What(len(VERBS) - 1, 11, True)):
        assert decoded(code(what)) == what


def test_a_curve_has_the_worst_by_when_it_was_due_and_what_was_done_by_when_it_ended() -> None:
    made = curve(KILL, SAMPLES, 10, before_ms=1_000, after_ms=2_000, step_ms=500)
    assert made.at_ms == [-1_000, -500, 0, 500, 1_000, 1_500]
    assert made.worst_ms == [10.0, 15.0, 700.0, 250.0, 0.0, 0.0]
    assert made.done_per_s == [20.0, 0.0, 80.0, 40.0, 20.0, 0.0]


# --- the logs and the page ---


def line(at_s: float, event: str, **fields: object) -> str:
    moment = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return msgspec.json.encode({"ts": moment, "event": event, **fields}).decode()


def test_the_nodes_say_when_they_lead() -> None:
    at = 1_700_000_000.0
    lines = [
        line(at - 5, "leader_gained", group="data-0"),
        line(at + 0.03, "peer_lost", peer="n1"),
        line(at + 0.02, "peer_lost", peer="n3"),
        line(at + 0.8, "leader_gained", group="data-0"),
        line(at + 1.2, "leader_gained", group="data-0"),
        line(at + 0.9, "leader_gained", group="data-1"),
        "Traceback (most recent call last):",
        '{"ts":"2026',
        line(at + 20, "leader_gained", group="offset-0"),
    ]
    heard = said(lines, node="n1", groups=["data-0", "offset-0"], killed_unix_s=at, end_unix_s=at + 10)
    assert heard.detected_ms == pytest.approx(30, abs=1)
    assert heard.led_ms == {"data-0": pytest.approx(800, abs=1)}
    assert said([], node="n1", groups=["data-0"], killed_unix_s=at, end_unix_s=at + 10) == (None, {})


def test_the_page_shows_every_round() -> None:
    told = row(KILL, SAMPLES, 10)
    curves = [
        curve(msgspec.structs.replace(KILL, number=n), SAMPLES, 10, before_ms=1_000, after_ms=2_000, step_ms=50)
        for n in (1, 2)
    ]
    made = summary([told, told]) | {"rounds": 2, "rate": 100.0, "nodes": 3, "by_round": [told, told]}
    made |= {"lost": 0, "duplicated": 0, "invented": 0, "examples": [], "problems": []}
    shown = page(made | {"group": "<odd>"}, curves)
    assert shown.count("stroke-opacity: 0.35") == 4  # two rounds, two pictures
    assert shown.count("stroke-width: 3;") == 2  # their medians
    assert pictures.faults(shown) == []
    assert "led again, p95: 1,100 ms" in shown
    assert "<odd>" not in shown
    nothing = page(made | {"by_round": []}, [])
    assert "kill -9" in nothing
    assert pictures.faults(nothing) == []
