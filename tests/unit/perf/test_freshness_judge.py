"""The judge of near reads: it finds those that are older than they say, and no others."""

from __future__ import annotations

from metad_judge.freshness import Read, Writes, judge


def test_a_read_has_all_that_was_acknowledged_so_long_before() -> None:
    writes = {"k": Writes()}
    for number in range(1, 11):
        writes["k"].acknowledged(number, float(number))
    good = [Read("k", 7, 8.9, 1.0), Read("k", 9, 8.0, 0.0), Read("k", 0, 3.0, 2.5), Read("k", 3, 10.0, 6.5)]
    verdict = judge(writes, good)
    assert (verdict.staler_than_said, verdict.reads, verdict.oldest_ms) == (0, 4, 6_000)
    bad = [Read("k", 6, 8.9, 1.0), Read("k", 0, 3.0, 2.0)]
    verdict = judge(writes, good + bad)
    assert verdict.staler_than_said == 2
    assert "found 6, and 7 was acknowledged; it lacked something for 1900 ms" in verdict.examples[0]
