"""The log broker of the examples: its log on disk, and ``metad-perf log-broker``, which kills brokers and judges each
acknowledged record."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from e2e_perf import report_of

from metad_perf.log_broker.command import EXAMPLES
from metad_perf.log_broker.judge import FAULTS, Ack, Ledger, sent

sys.path.append(str(EXAMPLES))

from log_broker.log import Fenced, Log
from log_broker.protocol import Record


def records(leader_epoch: int, first: int, count: int) -> list[Record]:
    return [Record(leader_epoch, at, b"%d" % at) for at in range(first, first + count)]


def test_a_log_keeps_what_counts_and_nothing_half_written(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    log = Log(path)
    assert log.append(1, records(1, 0, 3)) == 3
    assert log.append(4, records(4, 3, 2)) == 5
    log.close()
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    log = Log(path)
    assert (log.end, log.epochs, log.last_epoch) == (5, [(1, 0), (4, 3)], 4)
    assert path.read_bytes() == whole
    assert log.read(1, 4) == [*records(1, 1, 2), *records(4, 3, 1)]
    assert log.read(5, 9) == []
    log.truncate(4, 2)
    assert (log.end, log.epochs) == (2, [(1, 0)])
    log.close()
    path.write_bytes(whole[:-1])
    assert Log(path).end == 4


def test_a_log_says_where_an_epoch_ends(tmp_path: Path) -> None:
    log = Log(tmp_path / "0.log")
    assert log.end_of(7) == (0, 0)
    log.append(2, records(2, 0, 3))
    log.append(5, records(5, 3, 2))
    assert [log.end_of(epoch) for epoch in (1, 2, 4, 5, 9)] == [(0, 0), (2, 3), (2, 3), (5, 5), (5, 5)]


def test_what_a_broker_was_before_writes_nothing(tmp_path: Path) -> None:
    log = Log(tmp_path / "0.log")
    log.append(1, records(1, 0, 1))
    assert log.take(3) == 1
    with pytest.raises(Fenced):
        log.append(2, records(2, 1, 1))
    with pytest.raises(Fenced):
        log.truncate(1, 0)
    assert log.append(3, records(3, 1, 1)) == 2


def test_a_large_log_is_read_in_parts(tmp_path: Path) -> None:
    log = Log(tmp_path / "0.log")
    log.append(1, [Record(1, at, bytes(300_000)) for at in range(8)])
    log.append(1, [Record(1, 8, bytes(3_000_000))])
    parts, at = [], 0
    while at < log.end:
        found = log.read(at, log.end)
        parts.append(len(found))
        at += len(found)
    assert parts == [3, 3, 2, 1]


@pytest.mark.parametrize(
    ("log", "fault"),
    [
        ([sent(0, 0), sent(0, 1), sent(0, 2)], None),
        ([sent(0, 0), sent(0, 1), sent(0, 2), sent(0, 3)], None),  # it was not acknowledged, and is there
        ([sent(0, 0), sent(0, 1)], "lost"),
        ([sent(0, 0), sent(0, 2), sent(0, 1)], "lost"),
        ([sent(0, 0), sent(0, 1), sent(0, 2), sent(0, 1)], "twice"),
        ([sent(0, 0), sent(0, 1), sent(0, 2), sent(1, 5), sent(1, 4)], "out_of_order"),
    ],
)
def test_the_judge_sees_each_broken_promise(log: list[bytes], fault: str | None) -> None:
    ledger = Ledger()
    for offset in range(3):
        ledger.acks[0].append(Ack(offset, 1, sent(0, offset), float(offset)))
    ledger.read[0].update((offset, sent(0, offset)) for offset in range(3))
    verdict = ledger.judge({0: log})
    assert {name for name in FAULTS if verdict[name]} >= ({fault} if fault else set())
    assert bool(fault) == any(verdict[name] for name in FAULTS)
    assert bool(verdict["examples"]) == bool(fault)


def test_the_judge_sees_double_leaders_and_what_consumers_saw() -> None:
    ledger = Ledger()
    ledger.acks[0] += [Ack(0, 1, sent(0, 0), 0.0), Ack(0, 2, sent(0, 1), 4.0), Ack(1, 2, sent(0, 2), 4.5)]
    ledger.read[0].update([(0, sent(0, 0)), (0, sent(0, 0))])
    verdict = ledger.judge({0: [sent(0, 1), sent(0, 2)]})
    found = {name: verdict[name] for name in FAULTS if verdict[name]}
    assert found == {"lost": 1, "double_leaders": 1, "read_and_lost": 1, "not_delivered": 1}
    assert verdict["delivered_twice"] == 1
    assert ledger.longest_s(0.0, 4.2) == 4.0
    assert ledger.longest_s(4.1, 4.2) == 0.5


def test_a_broker_is_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    small = ("--brokers", 4, "--partitions", 3, "--consumers", 1, "--seconds", 1, "--lease-s", 5)
    report = report_of(tmp_path, "log-broker", *small, "--only", "broker-kill", "--seed", 1)
    assert {name: report[name] for name in FAULTS} == dict.fromkeys(FAULTS, 0)
    assert (report["problems"], report["nodes"], report["fsync"]) == ([], 3, True)
    assert report["acknowledged"] > 100
    assert [one["fault"] for one in report["struck"]] == ["broker-kill"]
