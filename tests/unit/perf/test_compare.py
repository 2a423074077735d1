"""The verdict of the comparison, which runs make which ratio; and that the list of peers is the same everywhere."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec
import pytest

from metad_perf.cli import main
from metad_perf.errors import UsageError
from metad_perf.peers import catalog
from metad_perf.peers.catalog import KINDS, METAD, PEERS, parse, with_pids
from metad_perf.peers.loads import PACED, PUTS, RESTORE, SINGLES, TAKEOVERS
from metad_perf.peers.peer import Endpoints
from metad_perf.peers.verdict import BARS, P99, RATES, TO_PUT, Run, Way, best_of, ratios

ROOT = Path(__file__).parents[3]


def _run(system: str, load: str, pair: int, rate: float, p99_ms: float = 1.0, peer: str = "etcd") -> Run:
    return Run(
        system=system,
        peer=peer,
        load=load,
        pair=pair,
        way=Way(1_000, 8, 1),
        rate=0.0,
        items=1,
        failed=0,
        seconds=1.0,
        items_per_s=rate,
        items_per_server_cpu_s=1.0,
        items_per_client_cpu_s=1.0,
        server_rss_mib=1.0,
        p50_ms=1.0,
        p99_ms=p99_ms,
        p999_ms=1.0,
        max_ms=1.0,
        errors={},
    )


def test_the_best_way_is_one_in_which_nothing_fails_if_there_is_any() -> None:
    slow, fast, failing = (_run("etcd", SINGLES, -1, rate) for rate in (1.0, 2.0, 3.0))
    failing = msgspec.structs.replace(failing, failed=1)
    assert best_of([failing, slow, fast]) is fast
    assert best_of([failing]) is failing


def test_ratios_are_medians_of_the_pairs_own_with_their_spread() -> None:
    runs = [_run(METAD, PUTS, -1, 10_000_000.0), _run("etcd", PUTS, -1, 1.0)]  # of the sweep: of no pair
    # of another peer
    runs += [_run(system, PUTS, 0, rate, peer="zookeeper") for system, rate in ((METAD, 7.0), ("zookeeper", 1.0))]
    for pair, factor in enumerate((1.0, 10.0, 2.0)):
        theirs = [
            _run("etcd", PUTS, pair, 100.0 * factor),
            _run("etcd", TAKEOVERS, pair, 50.0 * factor),
            _run("etcd", SINGLES, pair, 10.0 * factor),
            _run("etcd", PACED, pair, 1.0, 50.0),
            _run("etcd", RESTORE, pair, 25.0 * factor),
        ]
        ours = [
            _run(METAD, PUTS, pair, 400.0 * factor),
            _run(METAD, TAKEOVERS, pair, 300.0 * factor),
            _run(METAD, SINGLES, pair, (20.0, 500.0, 80.0)[pair]),
            _run(METAD, PACED, pair, 1.0, (25.0, 100.0, 5.0)[pair]),
            _run(METAD, RESTORE, pair, 75.0 * factor),
        ]
        runs += theirs + ours if pair % 2 == 0 else ours + theirs
    found = ratios(runs, "etcd")
    assert {name: (one.low, one.median, one.high, one.met) for name, one in found.items()} == {
        "batched_put_ratio": (4.0, 4.0, 4.0, True),
        "batched_takeover_ratio": (6.0, 6.0, 6.0, True),
        TO_PUT: (3.0, 3.0, 3.0, False),
        "single_put_ratio": (2.0, 4.0, 5.0, False),
        P99: (0.1, 0.5, 2.0, True),
        "restore_ratio": (3.0, 3.0, 3.0, False),
    }
    assert BARS["etcd"].keys() == found.keys()
    assert ratios(runs, "zookeeper")["batched_put_ratio"].median == 7.0


def test_every_bar_is_of_a_peer_and_of_a_ratio() -> None:
    assert BARS.keys() <= set(PEERS)
    for bars in BARS.values():
        assert bars.keys() <= {*RATES, P99}


def test_the_list_of_peers_is_the_same_in_the_makefile_the_help_and_the_readme(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (installed,) = re.findall(r"^PEERS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert installed.split() == [package for kind in KINDS.values() for package in kind.packages]
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    help_ = " ".join(capsys.readouterr().out.split())
    assert f"of {', '.join(PEERS)};" in help_
    assert {METAD, *PEERS} == set(KINDS)
    for name, kind in KINDS.items():
        said = f"{name}: {kind.title} a session: {kind.session} a takeover: {kind.takeover} a batch: {kind.batch}"
        assert f"{said} when a write is answered: {kind.label or 'as metad'} " in help_


def test_peers_are_named_once_or_as_endpoints() -> None:
    chosen = parse("etcd,oxia=127.0.0.1:1,127.0.0.1:2,grpc")
    assert [(one.name, one.endpoints) for one in chosen] == [
        ("etcd", ""),
        ("oxia", "127.0.0.1:1,127.0.0.1:2"),
        ("grpc", ""),
    ]


def test_processes_are_of_systems_that_run_already() -> None:
    here = os.getpid()
    one = parse("etcd,oxia=127.0.0.1:1")
    assert [each.pids for each in with_pids(one, "")] == [(), ()]
    assert [each.pids for each in with_pids(one, f"{here},{here}")] == [(), (here, here)]
    assert [each.pids for each in with_pids(one, f"oxia={here}")] == [(), (here,)]
    for wrong in (f"etcd={here}", "oxia=none", "1,", f"oxia={2**22 + 1}"):
        with pytest.raises(UsageError, match="--pids"):
            with_pids(one, wrong)
    two = parse("etcd=127.0.0.1:1,oxia=127.0.0.1:2")
    assert [each.pids for each in with_pids(two, f"oxia={here},{here},etcd={os.getppid()}")] == [
        (os.getppid(),),
        (here, here),
    ]
    with pytest.raises(UsageError, match="--pids"):
        with_pids(two, str(here))


def test_the_cpu_and_memory_of_processes_that_run_count() -> None:
    known = Endpoints("127.0.0.1:1", [os.getpid(), 2**22 + 1])
    assert known.cpu_us() > 0
    assert known.rss_bytes() > 1_000_000
    unknown = Endpoints("127.0.0.1:1")
    assert (unknown.cpu_us(), unknown.rss_bytes()) == (0, 0)


@pytest.mark.parametrize("text", ["", "metad", "consul", "etcd,etcd", "etcd=", "127.0.0.1:1", "etcd,127.0.0.1:1"])
def test_other_words_are_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="--peers"):
        parse(text)


def test_a_peer_that_is_not_installed_says_which_package_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    monkeypatch.setattr("metad_perf.peers.zookeeper.JAR", tmp_path / "zookeeper.jar")
    for name, kind in KINDS.items():
        if kind.packages:
            with pytest.raises(UsageError, match=rf"--peers {name}: .*`make peers`.*{kind.packages[0]}"):
                catalog.Chosen(name).make(tmp_path)
