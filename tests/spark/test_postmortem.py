"""metad-spark postmortem: what it says of storms whose every attempt is known, and of a real one."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

import metad.embedded
from metad_perf.storm.command import restored_by_s
from metad_perf.storm.trace import Outcome, Trace, describe
from metad_spark.cli import main
from metad_spark.pipeline.context import Context
from metad_spark.queries import postmortem as p

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MS = 1_000_000
WORDS = {"kind": ["meter", "car"], "region": ["eu", "us"], "policy": ["return-slot", "full-jitter"]}
FACTS = {
    "format": 1,
    "sessions": 500,
    "returning": 500,
    "brokers": 5,
    "processes": 1,
    "trigger": "all",
    "policy": "return-slot",
    "sdk_retries": False,
    "ignore_slots": 0.4,
    "limit_s": 30.0,
    "seed": 1,
}


class Attempt(NamedTuple):
    """A row of a trace. Clients with odd numbers are cars; brokers from 3 on leave their clients to their backoff."""

    client: int
    attempt: int
    scheduled_ms: int
    sent_ms: int
    answered_ms: int
    outcome: Outcome = Outcome.RESTORED
    slot_ms: int = -1
    jitter_ms: int = 0

    @property
    def told(self) -> dict[str, Any]:
        """What clients are told apart by."""
        broker, car = self.client % 5, self.client % 2
        words = {name: WORDS[name][number] for name, number in (("kind", car), ("region", car))}
        policy = WORDS["policy"][broker >= 3]
        return {"broker": broker, "group": self.client % 3, **words, "policy": policy}


def written(folder: Path, attempts: list[Attempt], **facts: Any) -> Path:
    """A trace of these attempts."""
    folder.mkdir()
    describe(folder, FACTS | facts)
    trace = Trace(str(folder / "attempts-00.parquet"), words=WORDS)
    for one in sorted(attempts, key=lambda each: each.answered_ms):
        told = one.told
        words = {name: np.array([WORDS[name].index(told[name])]) for name in ("kind", "region", "policy")}
        trace.note(
            np.array([one.client]),
            told["broker"],
            np.array([one.attempt]),
            np.array([one.scheduled_ms * MS]),
            one.sent_ms * MS,
            one.answered_ms * MS,
            one.outcome,
            one.slot_ms,
            one.jitter_ms,
            group=np.array([told["group"]]),
            **words,
        )
    trace.close()
    return folder


def storm(seed: int) -> list[Attempt]:
    """500 clients, of whom some are not back by the end, and of some of whom nothing is heard."""
    rng = random.Random(seed)
    found: list[Attempt] = []
    for client in range(490):
        at, attempt = rng.randrange(2_000) if rng.random() < 0.5 else 0, 1
        while True:
            sent = at + rng.randrange(50)
            outcome = rng.choices(list(Outcome), [5, 6, 2, 1])[0]
            answered = sent + rng.randrange(1, 3_000 if outcome == Outcome.TIMEOUT else 300)
            if answered > 30_000:
                break
            slot = rng.choice([-1, 500, 2_000]) if outcome == Outcome.REFUSED else -1
            found.append(Attempt(client, attempt, at, sent, answered, outcome, slot, 100 if slot > 0 else 0))
            if outcome == Outcome.RESTORED:
                break
            near = slot + rng.randrange(-98, 98)
            wait = near if slot > 0 and client % 5 < 3 and rng.random() < 0.9 else rng.randrange(10, 9_000)
            at, attempt = answered + wait, attempt + 1
    return found


_READ: dict[str, DataFrame] = {}


def read(spark: SparkSession, folder: Path, attempts: list[Attempt], **facts: Any) -> DataFrame:
    """The trace of these attempts; the same for the same ones."""
    named = f"{attempts} {facts}"
    if named not in _READ:
        _READ[named] = p.attempts_of(spark, written(folder, attempts, **facts)).coalesce(1).cache()
    return _READ[named]


@pytest.fixture(scope="module")
def spark(context: Context) -> SparkSession:
    return context.session


@pytest.fixture(scope="module")
def random_storm() -> list[Attempt]:
    return storm(7)


@pytest.fixture(scope="module")
def traced(random_storm: list[Attempt], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("storm") / "trace", random_storm)


@pytest.fixture(scope="module")
def attempts(spark: SparkSession, traced: Path) -> Iterator[DataFrame]:
    frame = p.attempts_of(spark, traced).coalesce(1).cache()
    yield frame
    frame.unpersist()


@pytest.fixture(scope="module")
def clients(attempts: DataFrame) -> Iterator[DataFrame]:
    frame = p.clients(attempts, 30.0).cache()
    yield frame
    frame.unpersist()


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


def by_client(attempts: list[Attempt]) -> dict[int, list[Attempt]]:
    found: dict[int, list[Attempt]] = {}
    for one in sorted(attempts, key=lambda each: (each.client, each.attempt)):
        found.setdefault(one.client, []).append(one)
    return found


def waited_ns(way: list[Attempt]) -> int:
    back = way[-1].outcome == Outcome.RESTORED
    return (way[-1].answered_ms - way[0].scheduled_ms) * MS if back else -1


def test_a_clients_time_goes_somewhere_and_all_of_it(clients: DataFrame, random_storm: list[Attempt]) -> None:
    ways = by_client(random_storm)
    found = {row["client"]: row for row in rows(clients)}
    assert found.keys() == ways.keys()
    for number, way in ways.items():
        row = found[number]
        end = way[-1].answered_ms if waited_ns(way) >= 0 else 30_000
        assert sum(row[f"{part}_ns"] for part in p.PARTS) == (end - way[0].scheduled_ms) * MS
        assert (row["attempts"], row["waited_ns"]) == (len(way), waited_ns(way) if waited_ns(way) >= 0 else None)
        assert row["to_broker_ns"] == sum(one.sent_ms - one.scheduled_ms for one in way) * MS
        turned_away = [one for one in way if one.outcome == Outcome.REFUSED]
        assert row["refused_ns"] == sum(one.answered_ms - one.sent_ms for one in turned_away) * MS
        lost = [one for one in way if one.outcome in (Outcome.TIMEOUT, Outcome.FAILED)]
        assert row["unanswered_ns"] == sum(one.answered_ms - one.sent_ms for one in lost) * MS
        told = [
            after.scheduled_ms - one.answered_ms
            for one, after in itertools.pairwise(way)
            if one.slot_ms > 0 and after.scheduled_ms - one.answered_ms >= one.slot_ms - 101
        ]
        assert row["slot_ns"] == sum(told) * MS


def test_percentiles_are_those_that_the_storm_itself_would_say(clients: DataFrame, random_storm: list[Attempt]) -> None:
    found = {(row["by"], row["value"]): row for row in rows(p.percentiles(clients, 500))}
    cuts: dict[tuple[str, str], list[list[Attempt]]] = {("all", ""): []}
    for way in by_client(random_storm).values():
        cuts["all", ""].append(way)
        for name, value in way[0].told.items():
            cuts.setdefault((name, str(value)), []).append(way)
    assert found.keys() == cuts.keys()
    for cut, ways in cuts.items():
        row, missing = found[cut], 500 - len(ways) if cut == ("all", "") else 0
        waited = np.array([waited_ns(way) for way in ways] + [-1] * missing)
        assert row["clients"] == len(waited)
        assert row["restored"] == (waited >= 0).sum()
        assert row["attempts"] == sum(map(len, ways))
        assert row["refused"] == sum(one.outcome == Outcome.REFUSED for way in ways for one in way)
        for percent in p.PERCENTS:
            assert row[p.name_of(percent)] == restored_by_s(waited, percent), (cut, percent)
    assert found["all", ""]["t50_s"] is not None
    assert found["all", ""]["t100_s"] is None, "ten clients never said anything"


def test_the_curve_counts_each_attempt_once_in_each_role(attempts: DataFrame, random_storm: list[Attempt]) -> None:
    found = rows(p.curve(attempts, 500, step_s=0.25))
    assert [row["from_s"] for row in found] == sorted({row["from_s"] for row in found})
    for row in found:
        begin, end = row["from_s"] * 1000, row["until_s"] * 1000
        assert end == begin + 250
        assert row["begun"] == sum(begin <= one.scheduled_ms < end for one in random_storm)
        assert row["sent"] == sum(begin <= one.sent_ms < end for one in random_storm)
        for outcome in Outcome:
            ended = sum(begin <= one.answered_ms < end and one.outcome == outcome for one in random_storm)
            assert row[outcome.name.lower()] == ended
        back = sum(one.answered_ms < end for one in random_storm if one.outcome == Outcome.RESTORED)
        assert row["share"] == pytest.approx(back / 500)


def test_tries(clients: DataFrame, random_storm: list[Attempt]) -> None:
    ways = by_client(random_storm).values()
    for row in rows(p.tries(clients)):
        mine = [way for way in ways if len(way) == row["attempts"]]
        assert (row["clients"], row["restored"]) == (len(mine), sum(waited_ns(way) >= 0 for way in mine))


REFUSED = Outcome.REFUSED
SLOTS = [
    # Client 0 (broker 0): comes at its time, give or take the jitter; then too early, and is refused again.
    *(Attempt(0, 1, 0, 0, 100, REFUSED, 1_000, 50), Attempt(0, 2, 1_149, 1_150, 1_200, REFUSED, 2_000, 50)),
    *(Attempt(0, 3, 2_000, 2_000, 2_010, REFUSED, 500, 0), Attempt(0, 4, 9_000, 9_000, 9_100)),
    # Client 3 (broker 3): is told no time; then has one, and no later attempt ends.
    *(Attempt(3, 1, 0, 0, 100, REFUSED), Attempt(3, 2, 200, 200, 300, REFUSED, 1_000, 50)),
]


def test_slots_are_heeded_or_not(spark: SparkSession, tmp_path: Path) -> None:
    frame = read(spark, tmp_path / "trace", SLOTS)
    assert [
        (row["policy"], row["slot"], row["refusals"], row["then_restored"], row["then_refused"], row["off_s"])
        for row in rows(p.slots(frame))
    ] == [
        ("full-jitter", "none", 1, 0, 1, None),
        ("full-jitter", "open", 1, 0, 0, None),
        ("return-slot", "early", 1, 0, 1, pytest.approx(-1.2)),
        ("return-slot", "heeded", 1, 0, 1, pytest.approx(0.049)),
        ("return-slot", "late", 1, 1, 0, pytest.approx(6.49)),
    ]


STALLS = [
    # Group 0: one is back at once, nobody of it waits until 5 s, and the next one waits for 2 s, in vain at first.
    Attempt(0, 1, 0, 0, 100),
    *(Attempt(3, 1, 5_000, 5_000, 6_000, Outcome.TIMEOUT), Attempt(3, 2, 6_500, 6_500, 7_000)),
    # Group 1: waits from the begin, and comes back before 0.4 s; another one is refused for ever.
    *(
        Attempt(1, 1, 0, 0, 390),
        Attempt(4, 1, 0, 0, 10, REFUSED, 9_000, 0),
        Attempt(4, 2, 9_010, 9_010, 9_020, REFUSED),
    ),
]


def test_a_stall_needs_somebody_who_waits(spark: SparkSession, tmp_path: Path) -> None:
    frame = read(spark, tmp_path / "trace", STALLS)
    found = [
        (row["by"], row["value"], row["from_s"], row["to_s"], row["waiting"], row["ended"])
        for row in rows(p.stalls(frame, limit_s=12.0))
    ]
    assert found == [
        ("all", "", 0.39, 7.0, 1, True),
        ("all", "", 7.0, 12.0, 1, False),
        ("group", "1", 0.39, 12.0, 1, False),
        ("group", "0", 5.0, 7.0, 1, True),
    ]
    (first, *_, last) = rows(p.stalls(frame, limit_s=12.0))
    assert (first["sent"], first["timeout"], first["refused"]) == (2, 1, 0)
    assert (last["sent"], last["timeout"], last["refused"], last["failed"]) == (1, 1, 0, 0)


def test_the_last_ones_and_what_they_have_in_common(spark: SparkSession, tmp_path: Path) -> None:
    # Of 200 clients those of broker 4 wait in their own backoff: twelve for 20 s, and one of them for ever.
    made = [Attempt(number, 1, 0, 10, 200 + number) for number in range(200) if number % 5 < 4 or number > 60]
    for number in range(4, 60, 5):
        made += [Attempt(number, 1, 0, 10, 100, REFUSED, 500, 0)]
        made += [Attempt(number, 2, 20_000, 20_001, 20_005)] if number != 9 else []
    frame = p.clients(read(spark, tmp_path / "trace", made, returning=200), 30.0)
    first, second = rows(p.last(frame, 2))
    assert (first["client"], first["why"], first["open_s"], first["back_ns"]) == (9, "open", 29.9, None)
    assert (second["client"], second["why"], second["slot_s"], second["waited_ns"]) == (4, "slot", 19.9, 20_005 * MS)
    who = {row["who"]: row for row in rows(p.reasons(frame, share=0.05))}
    assert (who["all"]["clients"], who["last"]["clients"]) == (200, 12), "as many wait as long as the tenth of the last"
    assert who["last"]["slot_s"] == pytest.approx(11 * 19.9 / 12)
    assert who["last"]["attempts"] == pytest.approx(23 / 12)
    common = {(row["by"], row["value"]): row for row in rows(p.in_common(frame, share=0.05))}
    assert next(iter(common)) in {("broker", "4")}
    row = common["broker", "4"]
    assert (row["clients"], row["last"], row["times"]) == (40, 12, pytest.approx(5.0))
    assert common["broker", "0"]["last"] == 0


def test_the_command_says_the_same(
    spark: SparkSession, traced: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "found.json"
    assert main(["postmortem", "--source", str(traced), "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert (found["returning"], found["unseen"]) == (500, 10)
    assert found["restored"] == found["percentiles"][0]["restored"]
    assert found["attempts"] == found["percentiles"][0]["attempts"]
    assert sum(row["refusals"] for row in found["slots"]) == found["refused"]
    said = capsys.readouterr().out
    assert f"{found['restored']:,} of 500 clients came back" in said
    assert "Of 10 clients no attempt has ended" in said
    for title in ("Who was back when", "What the last 1 % had in common", "Stalls", "The last ones"):
        assert title in said


def test_a_real_storm(spark: SparkSession, tmp_path: Path) -> None:
    with metad.embedded.cluster(nodes=1) as nodes:
        command = [
            *(sys.executable, "-m", "metad_perf.cli", "storm", "--endpoint", nodes.url, "--sessions", "600"),
            *("--brokers", "4", "--processes", "2", "--lease-s", "60", "--steady-s", "0.2", "--background", "10"),
            *("--trace", str(tmp_path / "trace"), "--json", str(tmp_path / "storm.json")),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
    said = json.loads((tmp_path / "storm.json").read_text())
    known = p.storm_of(tmp_path / "trace")
    attempts = p.attempts_of(spark, tmp_path / "trace").coalesce(1)
    whole = rows(p.percentiles(p.clients(attempts, known.limit_s), known.returning))[0]
    assert (whole["clients"], whole["restored"]) == (said["returning"], said["restored"]) == (600, 600)
    assert whole["attempts"] == said["device_attempts"]
    for name in ("t50_s", "t99_s", "t999_s"):
        assert whole[name] == pytest.approx(said[name], rel=1e-4)
