"""metad-perf overload against real nodes, in small; its judge sees what must not happen."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from e2e_perf import METAD_PERF, metad_perf, usage_error

from metad_client import SessionDeleteItem
from metad_judge.undisturbed import Verdict, judge
from metad_perf.commands import Overload as Settings
from metad_perf.overload.guard import Attach, Look, broker_name, left, names_of, open_guard
from metad_perf.overload.plan import GUARD_TENANT
from metad_perf.spawn import temporary_server
from metad_perf.target import open_client
from metad_wire.messages import StatusReply

SMALL = Settings(brokers=2, sessions=40, lease_s=60.0)
DUE = len(names_of(SMALL, 0)[0])
"""Clients of a broker whose wills are due when it dies."""


def test_a_cluster_is_overloaded_and_judged(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    size = ("--factor", 3, "--seconds", 4, "--window-s", 1, "--gap-s", 1, "--step-s", 0.3, "--batch", 50)
    few = ("--brokers", 2, "--sessions", 40, "--lease-s", 60, "--groups", "data=2,offset=1")
    done = metad_perf("overload", *size, *few, "--json", path)
    assert "Traceback" not in done.stderr
    report: dict[str, Any] = json.loads(path.read_text())
    keys = {"elections", "brokers_fenced", "expired_wrongly", "heartbeat_p99_ms", "goodput_ratio_after", "rss_max_mib"}
    assert keys <= report.keys()
    # However slow the machine: the nodes are as slow to each other as to themselves, and leases are far longer.
    ends = ("elections", "leaders_changed", "brokers_fenced", "expired_wrongly", "wills_fired_wrongly")
    assert {name: report[name] for name in ends} == dict.fromkeys(ends, 0), report["examples"]
    assert (report["fsync"], report["nodes"], report["seed"]) == (True, 3, 1)
    assert report["capacity_per_s"] == max(step["goodput_per_s"] for step in report["ramp"]) > 0
    assert report["rss_max_mib"] > 10
    for phase in report["phases"].values():
        assert phase["offered_per_s"] >= phase["sent_per_s"] * 0.999
        assert phase["sent_per_s"] >= phase["answered_per_s"] * 0.999
        parts = ("goodput_per_s", "late_per_s", "refused_per_s", "unanswered_per_s", "unsent_per_s")
        assert sum(phase[part] for part in parts) == pytest.approx(phase["offered_per_s"], rel=0.01)
    unreached = [line for line in report["problems"] if "times the capacity" in line]
    assert bool(unreached) == (report["factor_reached"] < 0.95 * 3)
    assert done.returncode == (1 if report["problems"] else 0)


async def _judged(endpoint: str) -> tuple[Verdict, Verdict]:
    """The verdict while all is well, and after a broker was fenced and a session deleted behind the judge's back."""
    async with open_guard(endpoint, SMALL) as guard, open_client(endpoint) as client:
        await guard.carry_out(Attach())
        began = await guard.carry_out(Look())
        before = [one for one in (await client.cluster.statuses()).values() if isinstance(one, StatusReply)]

        async def verdict() -> Verdict:
            return judge(
                left(SMALL),
                before=before,
                after=before,
                lives=began.lives,
                lost_lives=0,
                brokers=await client.brokers.get_many([broker_name(n) for n in range(SMALL.brokers)]),
                sessions=[one async for one in client.sessions.list(GUARD_TENANT)],
                waiting_wills=[one.client_id async for one in client.wills.list(GUARD_TENANT)],
            )

        well = await verdict()
        gone = names_of(SMALL, 1)[1][0]
        (await client.sessions.delete_many([SessionDeleteItem(GUARD_TENANT, gone)])).raise_for_error()
        await client.brokers.fence(broker_name(0))
        for _ in range(1_200):
            harmed = await verdict()
            if harmed.wills_fired_wrongly >= DUE and harmed.expired_wrongly >= DUE + 1:
                break
            await asyncio.sleep(0.05)
        return well, harmed


def test_the_judge_sees_a_fenced_broker_a_session_that_is_gone_and_wills() -> None:
    with temporary_server() as server:
        server.start()
        well, harmed = asyncio.run(_judged(server.endpoint))
        server.stop()
    assert (well.brokers_fenced, well.expired_wrongly, well.wills_fired_wrongly, well.examples) == (0, 0, 0, [])
    # Its clients look disconnected, and have the wills that are due at once; one of another broker is gone.
    assert (harmed.brokers_fenced, harmed.expired_wrongly, harmed.wills_fired_wrongly) == (1, DUE + 1, DUE)


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("--endpoint", "127.0.0.1:7420"), "--endpoint"),
        (("--nodes", 1), "--nodes"),
        (("--factor", 0.5), "--factor"),
        (("--seconds", 0), "--seconds"),
    ],
)
def test_overload_names_what_it_cannot_do(flags: tuple[object, ...], word: str) -> None:
    usage_error(word, "overload", *flags)


def test_sigterm_leaves_nothing_behind() -> None:
    command = [str(METAD_PERF), "overload", "--seconds", "1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "closed loop" in line:
                break
        children = psutil.Process(process.pid).children(recursive=True)
        commands = [command for one in children if "--data-dir" in (command := one.cmdline())]
        assert len(commands) == 3
        where = {Path(one[one.index("--data-dir") + 1]).parents[1] for one in commands}
        process.terminate()
        assert process.wait(120) == 143
    _, alive = psutil.wait_procs(children, 30)
    assert alive == []
    assert not any(one.exists() for one in where)
