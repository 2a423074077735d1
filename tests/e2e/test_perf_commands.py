"""metad-perf against a real server, in small: each command works, and its JSON has the keys of its contract."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from e2e_perf import METAD_PERF, end_with_all, metad_perf, report_of, usage_error

from metad_client import connect
from metad_perf.lamps.alerts import missing
from metad_perf.load.workload import VERBS
from metad_perf.spawn import temporary_server
from waiting import wait_until

LOAD_KEYS = {
    "verb",
    "items",
    "items_per_s",
    "entries_per_s",
    "p50_ms",
    "p99_ms",
    "p999_ms",
    "errors",
    "batch",
    "in_flight",
    "fsync",
    "nodes",
    "replicas",
    "server_cpu_us_per_item",
}


def test_load_measures_every_verb(tmp_path: Path) -> None:
    with temporary_server() as server:
        server.start()
        for verb in VERBS:
            size = ("--batch", 50, "--in-flight", 4, "--items", 2_000)
            report = report_of(tmp_path, "load", "--endpoint", server.endpoint, "--verb", verb, *size)
            assert report.keys() >= LOAD_KEYS
            assert (report["verb"], report["items"], report["batch"], report["in_flight"]) == (verb, 2_000, 50, 4)
            assert report["errors"] == 0
            assert report["fsync"] is True
            assert report["replicas"] == 1
            assert report["items_per_s"] > 0
            assert 0 < report["p50_ms"] <= report["p99_ms"] <= report["p999_ms"]
            assert report["server_cpu_us_per_item"] > 0
            assert (report["entries_per_s"] > 0) == (not verb.endswith(".get"))
        server.stop()


def test_load_spawns_its_own_server_and_paces_several_processes(tmp_path: Path) -> None:
    flags = ("--spawn", "--verb", "kv.put", "--batch", 1, "--in-flight", 8, "--processes", 2)
    report = report_of(tmp_path, "load", *flags, "--items", 500, "--rate", 1_000, "--value-bytes", 10)
    assert (report["items"], report["errors"], report["processes"], report["loop"]) == (500, 0, 2, "open")
    assert report["seconds"] > 0.4, "500 items at 1,000 per second"


def test_load_takes_the_servers_configuration(tmp_path: Path) -> None:
    config = tmp_path / "metad.toml"
    config.write_text("fsync = false\n[groups]\ndata = 1\noffset = 1\n")
    flags = ("--spawn", "--server-config", config, "--verb", "session.takeover", "--restore")
    report = report_of(tmp_path, "load", *flags, "--batch", 10, "--in-flight", 2, "--items", 200)
    assert report["errors"] == 0
    assert report["fsync"] is False
    assert report["groups"] == 3  # and metadata-0


def test_load_of_a_cluster_of_its_own_counts_every_node(tmp_path: Path) -> None:
    flags = ("--spawn", "--nodes", 3, "--verb", "kv.put", "--batch", 100, "--in-flight", 4, "--items", 5_000)
    report = report_of(tmp_path, "load", *flags, "--groups", "data=3,offset=1")
    assert (report["errors"], report["nodes"], report["server_processes"], report["replicas"]) == (0, 3, 3, 3)
    assert report["groups"] == 5
    assert sorted(report["leaders"]) == ["n1", "n2", "n3"]
    assert sum(report["leaders"].values()) == 5


def test_load_without_a_server_says_so_in_one_line() -> None:
    done = metad_perf("load", "--endpoint", "127.0.0.1:1", "--verb", "kv.get", "--items", "10")
    assert done.returncode == 1
    assert done.stderr.startswith("metad-perf: connection_lost: ")
    assert done.stderr.count("\n") == 1


def test_a_server_that_cannot_start_is_one_line_too(tmp_path: Path) -> None:
    config = tmp_path / "metad.toml"
    config.write_text("no_such_key = 1\n")
    done = metad_perf("load", "--spawn", "--server-config", config, "--verb", "kv.put", "--items", "10")
    assert done.returncode == 1
    assert done.stderr.startswith("metad-perf: server: ")
    assert "no_such_key" in done.stderr
    assert done.stderr.count("\n") == 1


def test_grpc_compares_every_case(tmp_path: Path) -> None:
    report = report_of(tmp_path, "grpc", "--pairs", 1, "--seconds", 0.2, "--keys", 1_000)
    cases = {"unary_1", "unary_16", "unary_256", "batch_1000"}
    for verdict, verb in ((report, "session.get"), (report["writes"], "session.update")):
        assert verdict["verb"] == verb
        for key in ("ratio_items_per_s", "ratio_server_cpu"):
            assert verdict[key].keys() == cases
            assert min(verdict[key].values()) > 0
    assert len(report["runs"]) == 16
    assert all(run["failed"] == 0 and run["items"] > 0 for run in report["runs"])


def test_crash_finds_nothing(tmp_path: Path) -> None:
    report = report_of(tmp_path, "crash", "--rounds", 3, "--writers", 3, "--seed", 1)
    assert report.keys() >= {"rounds", "acknowledged", "lost", "duplicated", "seed", "unknown", "restart_ms_max"}
    assert (report["rounds"], report["lost"], report["duplicated"], report["seed"]) == (3, 0, 0, 1)
    assert report["kills"] >= 3
    assert report["acknowledged"] > 100


def test_crash_of_a_cluster_finds_nothing(tmp_path: Path) -> None:
    report = report_of(tmp_path, "crash", "--nodes", 3, "--faults", "kill,pause,term", "--seconds", 12, "--seed", 1)
    assert report.keys() >= {"acknowledged", "lost", "duplicated", "linearizable", "operations", "elections"}
    assert (report["lost"], report["duplicated"], report["linearizable"], report["problems"]) == (0, 0, True, [])
    assert report["acknowledged"] > 100
    assert report["operations"] > 100
    assert report["elections"] >= 0
    assert report["unavailable_ms_max"] > 0
    assert min(report["faults"][name] for name in ("kill", "pause", "term")) >= 1
    assert report["failed_calls"] >= 0
    assert report["longest_write_ms"] > 0


@pytest.mark.skipif(shutil.which("etcd") is not None, reason="etcd is installed")
def test_compare_without_etcd_says_how_to_get_it() -> None:
    done = metad_perf("compare", "--peers", "etcd")
    assert done.returncode == 2
    assert "make peers" in done.stderr


@pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed: make peers")
def test_compare_with_etcd(tmp_path: Path) -> None:
    html = tmp_path / "compare.html"
    flags = ("--peers", "etcd", "--pairs", 1, "--storm", "--sessions", 4_000)
    flags += ("--loads", "-", "--processes", 1, "--report", html)
    report = report_of(tmp_path, "compare", *flags)
    assert report["etcd"].keys() == {"restore_ratio"}
    assert "<svg" in html.read_text()
    assert min(one["low"] for one in report["etcd"].values()) > 0
    assert {one["nodes"] for one in report["systems"].values()} == {3}
    assert {one["fsync"] for one in report["systems"].values()} == {True}
    restored = [one for one in report["runs"] if one["load"] == "storm"]
    assert {one["items"] for one in restored} == {4_000}


def test_hold_reports_memory_restart_and_cost(tmp_path: Path) -> None:
    report = report_of(tmp_path, "hold", "--sessions", "5e3", "--updates", 1_000)
    assert report.keys() >= {"sessions", "rss_mib", "rss_max_mib", "restart_s", "write_cost_ratio", "fill_items_per_s"}
    assert report["sessions"] == 5_000
    assert report["errors"] == 0
    assert 0 < report["rss_mib"] <= report["rss_max_mib"]
    assert report["restart_s"] > 0
    assert report["restart_killed_s"] > 0
    assert report["disk_mib"] > 1
    for name in ("session.update", "session.takeover", "session.expire"):
        assert report["server_cpu_us_per_item"]["5000"][name] > 0
        assert report["cost_ratio_by_name"][name] > 0
    assert report["list_ms"]["5000"].keys() == {"page", "prefix"}
    assert report["list_ratio_by_name"].keys() == {"page", "prefix"}


def test_cost_is_of_each_load_batch_stage_and_role(tmp_path: Path) -> None:
    size = ("--seconds", 0.6, "--keys", 2_000, "--only", "create,commit", "--batches", "1000,joined", "--no-groups")
    report = report_of(tmp_path, "cost", *size)
    assert report["core_us"] > 0
    for name in ("create", "commit"):
        for batch in ("1000", "joined"):
            assert report[name][batch] > 0
            assert report["client"][name][batch] > 0
            stages = report["stages"][name][batch]
            assert sum(one["leader"] for one in stages.values()) > 0
            assert sum(one["follower"] for one in stages.values()) > 0
        assert report["one_node"][name] > 0
    assert report["against"] == {}


def test_sessions_that_begin_and_end_one_by_one_are_all_ended(tmp_path: Path) -> None:
    report = report_of(
        tmp_path, "sessions", "--mode", "create-close", "--rates", "50,100", "--seconds", 1, "--nodes", 1
    )
    assert (report["wrong"], report["errors"], report["problems"]) == (0, 0, [])
    assert [row["pairs"] for row in report["rates"]] == [50, 100]
    assert {"sustained_per_s", "p99_ms", "mode", "fsync", "nodes"} <= report.keys()


def test_sessions_that_end_at_once_are_all_ended_and_no_others(tmp_path: Path) -> None:
    flags = ("--mode", "expiry-storm", "--sessions", 1_000, "--shares", "0.5", "--seconds", 0.2, "--windows", 1)
    report = report_of(tmp_path, "sessions", *flags, "--nodes", 1)
    assert (report["wrong"], report["problems"]) == (0, [])
    (row,) = report["shares"]
    assert (row["ended"], row["ended_wrongly"], row["ended_early"]) == (500, 0, False)
    assert row["curve"][-1][1] == 500
    assert min(row["foreground_p99_ms_during"], row["paced_p99_ms_during"]) > 0


def test_sessions_that_are_held_are_compared_with_nodes_that_hold_none(tmp_path: Path) -> None:
    flags = ("--mode", "live", "--sessions", 2_000, "--pairs", 1, "--seconds", 0.5, "--nodes", 1)
    report = report_of(tmp_path, "sessions", *flags)
    assert (report["wrong"], report["connected"], report["problems"]) == (0, 2_000, [])
    assert len(report["pairs_before"]) == len(report["pairs_with"]) == 1
    assert min(report["pairs_before"] + report["pairs_with"]) > 0
    assert {"foreground_loss", "foreground_p99_ratio", "server_bytes_per_session"} <= report.keys()


TOPICS_KEYS = [
    "created_per_s",
    "image_seconds",
    "image_rss_mib",
    "change_cost_ratio_1e6_to_1e3",
    "list_index_ms_p99",
    "watch_lag_ms_p99",
    "groups_ratio_4_to_1",
]


def test_topics_in_a_declared_table_are_all_there_as_often_as_they_were_written(tmp_path: Path) -> None:
    flags = ("--changes", 500, "--pairs", 1, "--lists", 50, "--rate", 50, "--seconds", 1, "--nodes", 1)
    report = report_of(tmp_path, "topics", "--topics", 20_000, *flags)
    assert list(report)[: len(TOPICS_KEYS)] == TOPICS_KEYS
    assert min(report[key] for key in TOPICS_KEYS) > 0
    assert (report["topics"], report["lost"], report["wrong"], report["problems"]) == (20_000, 0, 0, [])
    assert (report["nodes"], report["fsync"], report["batch"], report["groups"]) == (1, True, 1_000, "metadata=1")


def test_partitions_are_led_again_when_brokers_and_a_leader_die(tmp_path: Path) -> None:
    flags = ("--brokers", 7, "--partitions", 40, "--kill", 2, "--moves", 20, "--skip-many")
    report = report_of(tmp_path, "assignment", *flags, "--sessions", 1_000, "--seconds", 1)
    promises = ("double_leaders", "double_serving", "acknowledged_lost", "moves_left", "moves_begun_in_pause")
    assert {key: report[key] for key in promises} == dict.fromkeys(promises, 0)
    assert report["moves_throttled_ok"] is True
    assert 0 < report["moves_max"] <= 20 < report["moves_begun"]
    assert 0 < report["writes_per_death"] <= 1.5
    assert min(report[key] for key in ("created_per_s", "led_again", "detected_ms", "acknowledged", "uses")) > 0
    assert (report["problems"], report["fsync"], report["nodes"], report["kill_leader"]) == ([], True, 3, True)


def test_a_command_that_hangs_leaves_nothing_behind() -> None:
    """It heeds no SIGTERM, and what it has started is in a session of its own, as the servers are."""
    sleeps = "subprocess.Popen(['sleep', '1000'], start_new_session=True)"
    code = f"import signal, subprocess, time; signal.signal(15, signal.SIG_IGN); {sleeps}; print(1, flush=True)"
    command = [sys.executable, "-c", f"{code}; time.sleep(1000)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (started,) = psutil.Process(process.pid).children()
        end_with_all(process, ending_s=0.1)
    assert process.returncode == -signal.SIGKILL
    assert not started.is_running()


def test_a_terminated_command_takes_its_server_along(tmp_path: Path) -> None:
    command = [str(METAD_PERF), "load", "--spawn", "--verb", "kv.put", "--items", "1e9"]
    with subprocess.Popen(command, env=os.environ | {"TMPDIR": str(tmp_path)}) as process:
        wait_until(lambda: process.poll() is not None or [*tmp_path.glob("metad-perf-*/ready.json")], "its server")
        assert process.poll() is None
        servers = [one for one in psutil.Process(process.pid).children() if "serve" in one.cmdline()]
        process.terminate()
        assert process.wait(120) == 143
    assert not servers[0].is_running()
    assert not list(tmp_path.glob("metad-perf-*"))


STORM_KEYS = [
    "sessions",
    "restored",
    "t50_s",
    "t99_s",
    "t999_s",
    "attempts_per_session",
    "rejected",
    "elections",
    "brokers_fenced",
    "sessions_expired_wrongly",
    "wills_fired_wrongly",
    "goodput_before",
    "goodput_after",
    "rss_max_mib",
    "lost",
]


def test_a_storm_loses_nothing_while_the_leader_dies(tmp_path: Path) -> None:
    # A long lease: on a machine that others load, no broker is to be fenced because it was not heard of.
    flags = ("--sessions", 3_000, "--brokers", 4, "--trigger", "leader-kill", "--lease-s", 60, "--seconds-limit", 200)
    trace = ("--trace", tmp_path / "trace") if find_spec("pyarrow") else ()
    report = report_of(tmp_path, "storm", *flags, "--steady-s", 1, *trace)
    assert list(report)[: len(STORM_KEYS)] == STORM_KEYS
    assert (report["sessions"], report["restored"], report["lost"]) == (3_000, 3_000, 0)
    assert (report["sessions_expired_wrongly"], report["wills_fired_wrongly"], report["brokers_fenced"]) == (0, 0, 0)
    assert 0 < report["t50_s"] <= report["t99_s"] <= report["t999_s"] < 200
    assert report["attempts_per_session"] >= 1
    assert report["elections"] > 0, "the leader was killed"
    assert report["goodput_before"] > 0
    assert report["rss_max_mib"] > 10
    assert {len(look) for looks in report["nodes_curve"].values() for look in looks} == {4}
    if Path("/proc/self/schedstat").exists():
        assert sum(waiting for looks in report["nodes_curve"].values() for *_, waiting in looks) > 0
    assert sorted(report["slots_curve"]) == sorted(report["nodes_curve"])
    assert [text for _, text in report["marks"] if text.startswith("kill -9 of")], report["marks"]
    assert (report["nodes"], report["fsync"], report["own_cluster"], report["problems"]) == (3, True, True, [])
    assert len(list((tmp_path / "trace").glob("attempts-*.parquet"))) == (2 if trace else 0)


def test_a_storm_on_a_running_server_leaves_nothing_behind(tmp_path: Path) -> None:
    with temporary_server() as server:
        server.start()
        flags = ("--sessions", 500, "--brokers", 3, "--trigger", "expiry", "--expiring", 0.2, "--lease-s", 60)
        report = report_of(
            tmp_path,
            "storm",
            "--endpoint",
            server.endpoint,
            *flags,
            "--steady-s",
            1,
            "--seconds-limit",
            100,
        )
        assert (report["lost"], report["own_cluster"], report["nodes"]) == (0, False, 1)
        assert report["restored"] == report["returning"] == 500 - report["ending"]
        assert report["rss_max_mib"] > 10
        assert server.rss_bytes() > 0, "it was not stopped"
        assert asyncio.run(_sessions(server.endpoint)) == []


async def _sessions(endpoint: str) -> list[str]:
    async with connect(f"metad://{endpoint}") as client:
        return [one.client_id async for one in client.sessions.list("storm")]


def test_a_storm_of_brokers_that_restart_over_quic(tmp_path: Path) -> None:
    flags = ("--sessions", 600, "--brokers", 3, "--trigger", "rolling", "--rolling-s", 1, "--lease-s", 60)
    more = ("--transport", "quic", "--steady-s", 1, "--seconds-limit", 200)
    report = report_of(tmp_path, "storm", *flags, *more)
    assert (report["restored"], report["lost"], report["scheme"], report["problems"]) == (600, 0, "metadq", [])
    assert (report["wills_fired_wrongly"], report["brokers_fenced"]) == (0, 0)


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("load --endpoint 127.0.0.1:1 --nodes 3 --verb kv.get", "--spawn"),
        ("crash --nodes 3 --faults flood", "usage: --faults"),
        ("storm --endpoint 127.0.0.1:1 --trigger leader-kill", "kills only what it has started"),
        ("storm --trigger noon", "noon"),
        ("storm --policy hope", "hope"),
        ("storm --population /nowhere.toml", "--population"),
        ("quic --pairs 0", "--pairs"),
        ("move --sessions 10", "--sessions must be at least"),
        ("tenant-move --rows 10", "--rows must be at least"),
        ("watch --faults kill,flood", "flood"),
        ("watch --only steady,quick", "quick"),
        ("watch --skip quick", "quick"),
        ("watch --watchers 2 --fan-out 3", "--fan-out"),
        ("watch --rate 0", "--rate"),
        ("watch --skip steady,faults,idle,slow", "nothing"),
        ("sessions --shares 2 --mode expiry-storm", "--shares must be over 0, and 1 at most"),
        ("failover --kill 50", "--kill must be over 0 and less than --brokers"),
    ],
)
def test_a_wrong_command_line_is_told_in_one_line(line: str, word: str) -> None:
    usage_error(word, *line.split())


@pytest.mark.alone
def test_quic_compares_with_aioquics_own_server(tmp_path: Path) -> None:
    report = report_of(tmp_path, "quic", "--pairs", 1, "--seconds", 0.5, "--megabytes", 8)
    assert report["server_cpu_ratio_256_in_flight"] > 1
    assert report["bulk_ratio_1200"] > 1
    assert [(one["work"], one["side"]) for one in report["runs"]] == [
        ("put", "ours"),
        ("put", "stock"),
        ("bulk", "ours"),
        ("bulk", "stock"),
    ]


def test_move_moves_slots_under_writes_and_reads_everything_back(tmp_path: Path) -> None:
    flags = ("--nodes", 1, "--groups", "metadata=1,offset=1,data=1", "--sessions", 2_000, "--writers", 2)
    report = report_of(tmp_path, "move", *flags, "--batch", 20)
    assert report["slots"] == 512
    assert (report["lost"], report["missing"], report["refused"]) == (0, 0, 0)
    assert report["writes"] > 0
    assert report["longest_write_ms"] >= report["p99_write_ms"] > 0


def test_a_tenant_moves_beside_its_writer(tmp_path: Path) -> None:
    """For how long nobody serves it is the machine's, so it decides nothing here but the exit code."""
    path = tmp_path / "moved.json"
    done = metad_perf("tenant-move", "--nodes", 1, "--to-nodes", 1, "--rows", 2_000, "--json", path)
    assert "Traceback" not in done.stderr
    report = json.loads(path.read_text())
    assert (report["lost"], report["repeated"]) == (0, 0)
    assert report["rows"] >= 2_000
    assert report["acknowledged"] > 100
    assert done.returncode == int(report["stopped_ms"] > 2_000)


WATCH_KEYS = {
    "events",
    "missed",
    "repeated",
    "out_of_order",
    "phantom",
    "gaps",
    "p50_delivery_ms",
    "p99_delivery_ms",
    "server_bytes_per_watcher",
    "write_ratio_idle_watchers",
    "writer_p99_ratio_slow_watcher",
}


def test_watch_misses_nothing_through_a_kill_and_a_move(tmp_path: Path) -> None:
    load = ("--nodes", 3, "--watchers", 24, "--fan-out", 3, "--rate", 300, "--seconds", 4, "--processes", 2)
    flags = ("--faults", "kill,move,compact", "--only", "faults", "--records", 16, "--batch", 20, "--seed", 5)
    report = report_of(tmp_path, "watch", *load, *flags)
    assert report.keys() >= WATCH_KEYS
    assert (report["missed"], report["repeated"], report["out_of_order"], report["phantom"]) == (0, 0, 0, 0)
    assert (report["wrong"], report["split"], report["problems"]) == (0, 0, [])
    assert report["delivered"] > report["events"] > 100
    strikes = report["phases"]["faults"]["strikes"]
    assert strikes.keys() == {"kill", "move"}
    assert report["phases"]["faults"]["slots_moved"] > 0
    assert report["p99_delivery_ms"] is None  # its phase was left out


def test_watch_measures_delivery_and_what_watches_cost(tmp_path: Path) -> None:
    load = (
        "--nodes",
        1,
        "--watchers",
        6,
        "--fan-out",
        2,
        "--rate",
        200,
        "--seconds",
        1,
        "--processes",
        1,
        "--records",
        8,
    )
    small = ("--idle-watchers", 30, "--behind", 2_000, "--pairs", 1, "--window-s", 0.5, "--faults", "none")
    report = report_of(tmp_path, "watch", *load, *small)
    assert report.keys() >= WATCH_KEYS
    assert report["phases"].keys() == {"steady", "idle", "slow"}
    assert report["missed"] == report["repeated"] == report["out_of_order"] == report["phantom"] == 0
    assert report["events"] > 100
    assert report["fsync"] is True
    assert 0 < report["p50_delivery_ms"] <= report["p99_delivery_ms"]
    assert report["write_ratio_idle_watchers"] > 0
    assert report["writer_p99_ratio_slow_watcher"] > 0
    slow = report["phases"]["slow"]
    assert slow["gaps"] == 0
    assert slow["caught_up_events_per_s"][0] > 0


def test_the_trie_of_topics_finds_what_paho_finds(tmp_path: Path) -> None:
    report = report_of(tmp_path, "topics", "--filters", 20_000, "--topics", 20_000)
    assert (report["filters"], report["topics"], report["wrong"]) == (20_000, 20_000, 0)
    assert report["found_per_topic"] > 2  # three filters match everything or all alarms
    assert min(report["matches_per_s"], report["paho_matches_per_s"], report["ratio"], report["filter_bytes"]) > 0


def test_filters_find_the_retained_messages_of_a_fleet(tmp_path: Path) -> None:
    report = report_of(tmp_path, "retained", "--nodes", 1, "--topics", 20_000, "--matches", 5)
    assert (report["topics"], report["wrong"], report["nodes"], report["fsync"]) == (20_000, 0, 1, True)
    assert len(report["ways"]) == 4
    assert report["p99_ms"] == max(way["p99"] for way in report["ways"].values()) > 0


def test_auth_judges_random_requests_and_says_what_roles_cost(tmp_path: Path) -> None:
    small = ("--nodes", 1, "--groups", "data=1,offset=1", "--pairs", 1, "--seconds", 0.3, "--keys", 2_000)
    report = report_of(tmp_path, "auth", "--requests", 1_000, "--changes", 2, *small)
    assert (report["requests"], report["leaks"], report["wrong_refusals"], report["unanswered"]) == (1_000, 0, 0, {})
    assert sum(report["requests_by_path"].values()) == 1_000
    assert len(report["requests_by_path"]) == report["paths"] > 100
    assert report["allowed"] > 0
    assert report["throughput_ratio"] == min(report["throughput_ratios"].values()) > 0
    assert 0 <= report["revoke_ms_p50"] <= report["revoke_ms_p99"] <= report["revoke_ms_max"]
    assert report["greedy_refused"] > 0
    assert report["quota_throughput_ratio"] > 0
    assert report["quota_p99_ratio"] > 0


def test_lamps_say_what_it_costs_to_look(tmp_path: Path) -> None:
    small = ("--nodes", 1, "--sessions", 3_000, "--pairs", 1, "--seconds", 0.5, "--keys", 2_000, "--no-alerts")
    report = report_of(tmp_path, "lamps", *small)
    assert report["throughput_ratio"] == min(report["throughput_ratios"].values()) > 0
    assert min(report["metrics_ms_1e3"], report["metrics_ms_1e6"], report["livez_ms_p99_under_overload"]) > 0
    assert 300 < report["series_1e3"] < 2_000
    assert abs(report["series_1e6"] - report["series_1e3"]) < 30, "a node may have met a method that it had not before"


@pytest.mark.skipif(bool(missing()), reason=missing() or "all is there")
@pytest.mark.parametrize(
    "names",
    ["MetadNodeDown,MetadCertificateEnds", pytest.param("MetadDiskLow,MetadBrokerSilent", marks=pytest.mark.long)],
)
def test_alerts_fire_and_end_when_what_their_page_says_is_done(tmp_path: Path, names: str) -> None:
    report = report_of(tmp_path, "lamps", "--only", names)
    assert (report["alerts"], report["alerts_fired"], report["alerts_ended"]) == (2, 2, 2), report["alerts_by_name"]


def test_brokers_die_and_each_session_gets_what_it_is_due(tmp_path: Path) -> None:
    done = ("--brokers", 5, "--sessions", 2_000, "--kill", 2, "--lease-s", 2, "--seconds", 1, "--rate", 20)
    report = report_of(tmp_path, "failover", *done)
    keys = {"detect_ms", "writes_per_broker_death", "other_verbs_p99_ratio", "wills_twice", "wills_lost"}
    assert keys <= report.keys()
    assert (report["broken"], report["problems"], report["fsync"], report["nodes"]) == (0, [], True, 3)
    assert (report["sessions_fenced"], report["expired"]) == (800, 480)
    assert report["wills_fired"] == report["wills_due"] == 240 + 80 - report["returned"]
    assert 0 < report["writes_per_broker_death"] <= 1
    assert report["leader_restart_s"] > 0
    assert report["detect_ms"] > 0


def test_image_is_whole(tmp_path: Path) -> None:
    report = report_of(tmp_path, "image", "--records", 5_000)
    assert report.keys() >= {"seconds", "records_per_s", "server_rss_growth_mib"}
    assert (report["records"], report["wrong"], report["nodes"], report["fsync"]) == (5_000, 0, 3, True)
    assert report["records_per_s"] > 0
