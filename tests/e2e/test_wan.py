"""``metad-perf wan`` in small: real kernels, the relay between them, both transports, the JSON and the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from e2e_perf import metad_perf, usage_error

from metad_perf.faults import netns
from metad_perf.wan import relay as network

COLUMNS = {
    "rtt_ms", "loss_pct", "verb", "tcp_p50_ms", "tcp_p99_ms", "tcp_items_per_s", "quic_p50_ms", "quic_p99_ms",
    "quic_items_per_s", "winner",
}  # fmt: skip


@pytest.mark.skipif(bool(network.missing()), reason=network.missing())
def test_a_row_per_cell_and_a_page(tmp_path: Path) -> None:
    report, page = tmp_path / "wan.json", tmp_path / "wan.html"
    done = metad_perf("wan", "--rtt-ms", "40", "--loss", "1", "--seconds", "0.4", "--json", report, "--report", page)
    assert done.returncode == 0, done.stderr + done.stdout
    made = json.loads(report.read_text())
    assert [(row["rtt_ms"], row["loss_pct"], row["verb"]) for row in made["rows"]] == [
        (40.0, 1.0, "put"),
        (40.0, 1.0, "batch"),
    ]
    for row in made["rows"]:
        assert row.keys() >= COLUMNS
        assert row["winner"] == ("quic" if row["quic_p99_ms"] < row["tcp_p99_ms"] else "tcp")
        assert min(row["tcp_p50_ms"], row["quic_p50_ms"]) > row["rtt_ms"], "nothing is faster than the path"
        assert row["tcp_failed"] == row["quic_failed"] == 0
        assert row["auto"] in ("tcp", "quic")
    assert 0 <= made["auto_share"] <= 1
    text = page.read_text()
    assert text.count('<g id="square-') == 2
    assert "<script" not in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", ""), "nothing to load"
    # Its own: others on the machine may come and go meanwhile.
    assert not list(Path("/run/netns").glob(f"metad-perf-{done.pid % 100_000}-*")), "no namespace is left behind"


@pytest.mark.skipif(bool(network.missing()), reason=network.missing())
def test_reads_near_are_far_from_the_leader_and_no_older_than_they_say(tmp_path: Path) -> None:
    """How fast they are at p99 is for a machine that does nothing else to say."""
    report = tmp_path / "near.json"
    done = metad_perf("near", "--rtt-ms", "60", "--seconds", "2", "--no-trouble", "--json", report)
    assert "Traceback" not in done.stderr
    made = json.loads(report.read_text())
    assert made["staler_than_said"] == made["unanswered"] == 0, made["examples"]
    assert made["near_ms_p50"] < 20 < 60 < made["leader_ms_p50"], "the near ones do not cross the path"
    assert made["reads"] > 100
    assert made["refused"] >= 1, "the first read finds no proof"
    assert made["near_ms_p50"] <= made["near_ms_p99"]


@pytest.mark.skipif(bool(network.missing()), reason=network.missing())
def test_three_regions_commit_survive_a_cut_and_lose_nothing(tmp_path: Path) -> None:
    """How close commits are to their quorum's round trip is for a machine that does nothing else to say."""
    report = tmp_path / "regions.json"
    done = metad_perf("wan", "--regions", "20,30,50", "--cuts-s", "2", "--json", report)
    assert "Traceback" not in done.stderr
    made = json.loads(report.read_text())
    assert (made["lost"], made["duplicated"], made["linearizable"], made["problems"]) == (0, 0, True, [])
    assert made["acknowledged"] > 100
    assert made["faults"]["partition"] >= 1
    assert made["transports"] == ["quic"]
    assert len(made["commit"]) == 3
    for one in made["commit"]:
        assert one["quorum_rtt_ms"] == {"a": 20.0, "b": 20.0, "c": 30.0}[one["region"]]
        assert one["p50_ms"] > one["quorum_rtt_ms"], "no quorum is nearer than the nearest"


@pytest.mark.skipif(bool(network.missing()), reason=network.missing())
def test_who_comes_back_with_a_ticket_reads_in_one_round_trip(tmp_path: Path) -> None:
    """Round trips are counted by time, on a path so long that the machine's own does not matter beside it."""
    report = tmp_path / "reconnect.json"
    done = metad_perf("wan", "--reconnect", "--rtt-ms", "160", "--json", report)
    assert "Traceback" not in done.stderr
    (row,) = json.loads(report.read_text())["rows"]
    trips = {name: int(value / row["rtt_ms"]) for name, value in row.items()}
    assert trips["quic_back_read_ms"] == 1
    assert trips["quic_back_write_ms"] == 2, "refused in 0-RTT data, and sent again behind the handshake"
    assert trips["tls_back_read_ms"] >= 4, "TCP, TLS, the greeting, the read"


@pytest.mark.parametrize(
    "args", [("--regions", "20,30"), ("--verbs", "get"), ("--loss", "120"), ("--rtt-ms", "1,x"), ("--seconds", "0")]
)
def test_a_wrong_command_line_is_told_in_one_line(args: tuple[str, str]) -> None:
    usage_error(args[0].lstrip("-"), "wan", *args)


def test_who_is_not_root_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert network.missing() == netns.missing(cuts=False) == "network namespaces need root"
