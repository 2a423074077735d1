"""metad-perf leader-kill against real nodes, in small; its judge sees an acknowledged write that is gone."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from e2e_perf import METAD_PERF, metad_perf, usage_error

from metad_client import KvDeleteItem, OffsetKey, SessionDeleteItem
from metad_perf.commands import LeaderKill
from metad_perf.leader_kill.plan import COMMIT, PUT, TAKEOVER, TENANT, TOPIC, UPDATE
from metad_perf.leader_kill.work import Begin, End, Judge, Take, open_work
from metad_perf.spawn import temporary_server
from metad_perf.target import open_client

DIRECTORY = "metad-perf-"


def test_leaders_die_and_nothing_is_lost(tmp_path: Path) -> None:
    path, page = tmp_path / "report.json", tmp_path / "report.html"
    size = ("--rounds", 2, "--rate", 300, "--batch", 5, "--processes", 2, "--clients", 2, "--quiet-s", 0.5)
    patient = ("--limit-s", 90, "--deadline-s", 60, "--groups", "data=2,offset=1")
    done = metad_perf("leader-kill", *size, *patient, "--json", path, "--report", page)
    assert done.returncode == 0, done.stderr + done.stdout
    report: dict[str, Any] = json.loads(path.read_text())
    keys = {"failed_operations_max", "worst_ms", "led_again_ms_p50", "led_again_ms_p95", "lost", "seed", "setting"}
    assert keys <= report.keys()
    assert (report["lost"], report["duplicated"], report["invented"], report["problems"]) == (0, 0, 0, [])
    assert (report["failed_operations_max"], report["fsync"], report["nodes"], report["rounds"]) == (0, True, 3, 2)
    assert 0 < report["led_again_ms_p50"] <= report["led_again_ms_p95"] <= report["led_again_ms_max"]
    assert report["records_read"] > 100
    for one in report["by_round"]:
        served = set(one["led"]) - {"metadata-0"}
        assert served
        assert one["led_again_ms"].keys() == served
        assert one["leads_ms"].keys() == set(one["led"])  # what the nodes say, of every group
        for group, ms in one["led_again_ms"].items():
            assert ms > one["leads_ms"][group] - 2  # nobody serves who does not lead; logs have whole milliseconds
        assert one["worst_ms"] >= max(one["led_again_ms"].values()) / 2
    assert page.read_text().count("stroke-opacity: 0.35") == 4


async def _worked(endpoint: str) -> dict[str, int]:
    """Work a while, take one record of each verb away behind the judge's back, and let it judge."""
    measurement = LeaderKill(rate=400.0, batch=4, processes=1, clients=2)
    async with open_work(endpoint, measurement, 0) as work, open_client(endpoint) as client:
        await work.carry_out(Begin())
        for _ in range(1_000):
            await asyncio.sleep(0.05)
            await work.carry_out(Take())
            verbs = {lot.verb for lot in work.ledger.lots if lot.acknowledged > 0}
            if len(verbs) == 4 and any(lot.acknowledged > 1 for lot in work.ledger.lots):
                break
        await work.carry_out(End())
        assert work.verdict.lost == 0
        for verb in (PUT, UPDATE, TAKEOVER, COMMIT):
            lot = next(one for one in work.ledger.lots if one.verb == verb and one.acknowledged > 0)
            if verb == PUT:
                (await client.kv.delete_many([KvDeleteItem(lot.place, lot.names[0])])).raise_for_error()
            elif verb == COMMIT:
                key = OffsetKey(TENANT, lot.place, TOPIC, int(lot.names[0]))
                (await client.offsets.delete_many([key])).raise_for_error()
            else:
                (await client.sessions.delete_many([SessionDeleteItem(TENANT, lot.names[0])])).raise_for_error()
        verdict = await work.carry_out(Judge())
    return {"lost": verdict.lost, "duplicated": verdict.duplicated, "invented": verdict.invented}


def test_the_judge_sees_what_is_gone() -> None:
    with temporary_server() as server:
        server.start()
        assert asyncio.run(_worked(server.endpoint)) == {"lost": 4, "duplicated": 0, "invented": 0}
        server.stop()


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("--endpoint", "127.0.0.1:7420"), "--endpoint"),
        (("--nodes", 2), "--nodes"),
        (("--rate", 0), "--rate"),
        (("--rounds", 0), "--rounds"),
        (("--scheme", "metad", "--value-bytes", 1), "--value-bytes"),
    ],
)
def test_leader_kill_names_what_it_cannot_do(flags: tuple[object, ...], word: str) -> None:
    usage_error(word, "leader-kill", *flags)


def test_sigterm_leaves_nothing_behind() -> None:
    command = [str(METAD_PERF), "leader-kill", "--rate", "100", "--rounds", "1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "round 1 of" in line:
                break
        children = psutil.Process(process.pid).children(recursive=True)
        commands = [command for one in children if "--data-dir" in (command := one.cmdline())]
        assert len(commands) == 3
        where = {Path(one[one.index("--data-dir") + 1]).parents[1] for one in commands}
        process.terminate()
        assert process.wait(120) == 143
    _, alive = psutil.wait_procs(children, 30)
    assert alive == []
    assert all(one.name.startswith(DIRECTORY) and not one.exists() for one in where)
