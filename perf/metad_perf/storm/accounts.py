"""What a storm took, as counters: of each node, of each process of brokers, and of other programs. Costs are fitted to
them (``metad-spark calibrate``)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import psutil

from metad_wire.messages import StatusReply
from metad_wire.methods import Lane

from .orders import Result

_DATA: Final = "data-"
_LOOK_S: Final = 0.5
_RECORDS: Final = Lane.RECORDS.name.lower()


class NodeAccount(msgspec.Struct, frozen=True, kw_only=True):
    """Of one node. ``leads``: data groups. ``admitted`` and ``refused``: requests of clients for records."""

    leads: int
    cpu_s: float
    entries: int
    admitted: int
    refused: int

    def since(self, before: NodeAccount) -> NodeAccount:
        """What was added."""
        return NodeAccount(
            leads=self.leads,
            cpu_s=self.cpu_s - before.cpu_s,
            entries=self.entries - before.entries,
            admitted=self.admitted - before.admitted,
            refused=self.refused - before.refused,
        )


class CrewAccount(msgspec.Struct, frozen=True, kw_only=True):
    """Of one process of brokers. ``calls`` of its SDK; ``attempts``, ``refused`` and ``restored`` are clients."""

    cpu_s: float
    calls: int
    attempts: int
    refused: int
    restored: int


def of_nodes(statuses: Sequence[StatusReply]) -> dict[str, NodeAccount]:
    """By node, since its start."""
    found: dict[str, NodeAccount] = {}
    for one in statuses:
        lane = next((lane for lane in one.lanes if lane.lane == _RECORDS), None)
        found[one.node_id] = NodeAccount(
            leads=sum(group.role == "leader" and group.name.startswith(_DATA) for group in one.groups),
            cpu_s=one.cpu_us / 1e6,
            entries=one.entries,
            admitted=0 if lane is None else lane.admitted,
            refused=0 if lane is None else lane.refused,
        )
    return found


def since(before: Mapping[str, NodeAccount], after: Mapping[str, NodeAccount]) -> dict[str, NodeAccount]:
    """What each node did between two looks. A node that was started again in between is left out."""
    return {
        name: account.since(before[name])
        for name, account in after.items()
        if name in before and account.cpu_s >= before[name].cpu_s and account.entries >= before[name].entries
    }


def of_crews(results: Sequence[Result]) -> list[CrewAccount]:
    """By process."""
    return [
        CrewAccount(
            cpu_s=one.cpu_s,
            calls=one.requests,
            attempts=one.attempts,
            refused=one.refused,
            restored=int((one.waited_ns >= 0).sum()),
        )
        for one in results
    ]


class Others:
    """How many cores programs used that are not of this process and its children. On a machine that others use, a
    measurement says something of them as well."""

    def __init__(self) -> None:
        self._busy_s, self._ours_s = _busy_s(), _ours_s()
        self._looks: list[int] = []
        self._looked_s = float("-inf")

    def look(self) -> None:
        """Count the threads that run or want to, at most twice a second: to find our own among all processes takes
        milliseconds. Without Linux's figures it counts none."""
        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        try:
            lines = Path("/proc/stat").read_text().splitlines()
            running = next(int(line.split()[1]) for line in lines if line.startswith("procs_running"))
        except (OSError, StopIteration, ValueError):
            return
        me = psutil.Process()
        ours = sum(_runs(process) for process in (me, *me.children(recursive=True)))
        self._looks.append(max(0, running - ours))

    def running(self) -> float:
        """How many threads of others ran or wanted to, in the mean of all looks."""
        return sum(self._looks) / len(self._looks) if self._looks else 0.0

    def cores(self, seconds: float) -> float:
        """Since this was made, so many seconds ago."""
        others_s = (_busy_s() - self._busy_s) - (_ours_s() - self._ours_s)
        return max(0.0, others_s / seconds) if seconds > 0 else 0.0


def _runs(process: psutil.Process) -> int:
    """How many of its threads run or want to."""
    found = 0
    for stat in Path(f"/proc/{process.pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError, IndexError):
            found += stat.read_text().rpartition(")")[2].split()[0] == "R"
    return found


def _busy_s() -> float:
    times = psutil.cpu_times()
    # What guests use is in the time of users already.
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)


def _ours_s() -> float:
    used_s = 0.0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            used_s += times.user + times.system
    ended = me.cpu_times()
    return float(used_s + ended.children_user + ended.children_system)
