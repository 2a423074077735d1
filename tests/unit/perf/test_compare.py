"""The verdict of the comparison: which runs make which ratio."""

from __future__ import annotations

from metad_perf.peers.compare import AT_LOAD, BARS, METAD, PUTS, SINGLES, TAKEOVER, Run, Way, verdict


def _run(system: str, load: str, pair: int, rate: float, p99_ms: float = 1.0) -> Run:
    return Run(
        system=system,
        load=load,
        pair=pair,
        way=Way(1_000, 8, 1),
        rate=0.0,
        items=1,
        failed=0,
        items_per_s=rate,
        server_cpu_us_per_item=1.0,
        client_cpu_us_per_item=1.0,
        p50_ms=1.0,
        p99_ms=p99_ms,
        p999_ms=1.0,
        errors={},
    )


def test_ratios_are_medians_of_the_pairs_own() -> None:
    runs = [_run(METAD, PUTS, -1, 10_000_000.0), _run("etcd", PUTS, -1, 1.0)]  # of the sweep: of no pair
    for pair, factor in enumerate((1.0, 10.0, 2.0)):
        theirs = [_run("etcd", PUTS, pair, 100.0 * factor), _run("etcd", SINGLES, pair, 10.0 * factor, 50.0)]
        ours = [
            _run(METAD, PUTS, pair, 400.0 * factor),
            _run(METAD, TAKEOVER, pair, 300.0 * factor),
            _run(METAD, SINGLES, pair, (20.0, 500.0, 80.0)[pair]),
            _run(METAD, AT_LOAD, pair, 1.0, (25.0, 100.0, 5.0)[pair]),
        ]
        runs += theirs + ours if pair % 2 == 0 else ours + theirs
    found = verdict(runs)
    assert found == {
        "batched_put_ratio": 4.0,
        "batched_takeover_ratio": 3.0,
        "single_put_ratio": 4.0,
        "p99_ratio_at_equal_load": 0.5,
    }
    assert found.keys() == BARS.keys()
