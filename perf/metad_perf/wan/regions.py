"""``metad-perf wan --regions 80,120,200``: a cluster whose nodes are in three regions, far from each other.

Each node is in a place of its own; nodes reach each other only over the relay, by QUIC, as across regions. Clients
reach all of them without delay, so the time of a write is the time its group's leader needs for a quorum. First commit
latency is measured in peace, for each group by the region of its leader. Then regions are cut off from the others and
healed while clients write, and everything is judged as in ``metad-perf crash --nodes 3``.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from metad_client import Client
from metad_judge import linearizability
from metad_wire.messages import StatusReply
from metad_wire.program.running import run_async

from ..commands import Wan
from ..errors import ServerError, UsageError
from ..faults.availability import names_in
from ..faults.cluster import STEPS_MAX, Ordeal, show
from ..faults.members import Member, Members
from ..report import output
from ..report.conclusion import reported
from ..report.histogram import Latencies
from ..spawn import disk_directory, issued, metad_serve
from . import relay
from .relay import Places
from .relay_line import Path as LinePath

NAMES = ("a", "b", "c")
OVER_QUORUM_MS_MAX = 10.0
_CLIENT_PORT, _PEER_PORT = 7420, 7500  # each node has a place of its own
_GROUPS = {"data": 3, "offset": 1}
_RAFT = {"election_timeout_ms": 2_000, "heartbeat_ms": 250}
"""Timeouts of these nodes: ten round trips of the longest path, as for any cluster across regions."""
_COMMITS = 100  # per group, one after the other
_WARM_UP = 10
_TRIES = 5
_FORMED_S = 60.0
_POLL_S = 0.2


def run(options: Wan) -> int:
    """Returns the exit code: 1 if a commit takes longer than allowed, or the judges of the fault run find anything.
    Raises UsageError and ServerError."""
    rtts_ms, loss_pct, seed = options.regions or (), options.one_loss, options.seed
    if len(rtts_ms) != 3 or min(rtts_ms) <= 0:
        raise UsageError("--regions takes three round-trip times in ms: a to b, a to c, b to c")
    if lacking := relay.missing():
        raise ServerError(lacking)
    rtt_ms = dict(zip([(0, 1), (0, 2), (1, 2)], rtts_ms, strict=True))
    with relay.places(3, seed) as places:
        for (a, b), value in rtt_ms.items():
            places.shape(a, b, LinePath(delay_ms=value / 2, loss_pct=loss_pct))
        with members_of(places, _GROUPS) as members:
            ordeal = _Regions(members, ["partition"], options.cuts_s, seed, rtt_ms)
            made = run_async(ordeal.run())
        account = places.account()
    searched = linearizability.check(ordeal.history.operations, STEPS_MAX)
    over_ms = max((one["over_quorum_ms"] for one in made["commit"]), default=0.0)
    made = reported(
        options,
        {
            "rtt_ms": {f"{NAMES[a]}-{NAMES[b]}": value for (a, b), value in rtt_ms.items()},
            "loss_pct": loss_pct,
            "over_quorum_ms_max": over_ms,
        }
        | made
        | {
            "linearizable": searched.linearizable,
            "linearizability": str(searched),
            "raft": _RAFT,
            "relay_packets": account.delivered,
            "relay_late_us_mean": account.late_us_mean,
        },
    )
    code = show(made, options)
    output.table(
        "commit across regions, ms",
        ["group", "leader in", "nearest quorum's RTT", "p50", "p99", "p50 over it"],
        [list(one.values()) for one in made["commit"]],
    )
    output.say(f"nodes reach each other by {', '.join(made['transports'])}.")
    return 1 if code or over_ms > OVER_QUORUM_MS_MAX or not made["commit"] else 0


class _Regions(Ordeal):
    """The fault run's ordeal, with a measurement of commit latency before it."""

    def __init__(
        self, members: Members, names: list[str], seconds: float, seed: int, rtt_ms: dict[tuple[int, int], float]
    ) -> None:
        super().__init__(members, names, seconds, seed)
        self._rtt_ms = rtt_ms

    async def prelude(self, watcher: Client) -> dict[str, Any]:
        """Commit latency of every data group, and the transports between nodes."""
        cluster = (await watcher.cluster.map()).map
        if cluster is None:
            raise ServerError("the cluster has no map")
        statuses, leaders = await self._formed(watcher)
        names = {group: name for group, name in names_in(cluster).items() if group.startswith("data")}
        for _ in range(_TRIES):
            timed = await asyncio.gather(*[_commits(watcher, name) for name in names.values()])
            before = leaders
            statuses, leaders = await self._formed(watcher)
            if leaders == before:  # if leaders moved to where the map wants them, the times belong to no leader
                break
        else:
            raise ServerError("leaders of the cluster across regions do not stay where they are")
        rows = [self._row(group, leaders[group], latencies) for group, latencies in zip(names, timed, strict=True)]
        return {
            "commit": sorted(rows, key=lambda row: str(row["region"])),
            "transports": sorted({link.transport for one in statuses.values() for link in one.links if link.up}),
        }

    async def _formed(self, watcher: Client) -> tuple[dict[str, StatusReply], dict[str, str]]:
        """Every node's status, and the leader of each group, once all groups have a voter in every region."""
        until = time.monotonic() + _FORMED_S
        while True:
            found = await watcher.cluster.statuses()
            statuses = {node: one for node, one in found.items() if isinstance(one, StatusReply)}
            led = {g.name: (node, g) for node, one in statuses.items() for g in one.groups if g.role == "leader"}
            all_groups = {g.name for one in statuses.values() for g in one.groups}
            if led.keys() == all_groups and all(len(g.voters) == len(NAMES) for _, g in led.values()):
                return statuses, {name: node for name, (node, _) in led.items()}
            if time.monotonic() > until:
                raise ServerError("the cluster across regions did not form: some group lacks a voter or a leader")
            await asyncio.sleep(_POLL_S)

    def _row(self, group: str, leader: str, latencies: Latencies) -> dict[str, Any]:
        at = NAMES.index(leader)
        nearest_ms = min(value for pair, value in self._rtt_ms.items() if at in pair)
        p50_ms = latencies.percentile_ms(50)
        return {
            "group": group,
            "region": NAMES[at],
            "quorum_rtt_ms": nearest_ms,
            "p50_ms": p50_ms,
            "p99_ms": latencies.percentile_ms(99),
            "over_quorum_ms": p50_ms - nearest_ms,
        }


async def _commits(client: Client, namespace: str) -> Latencies:
    """Latencies of puts, one after the other."""
    latencies = Latencies()
    for number in range(_WARM_UP + _COMMITS):
        begin_ns = time.monotonic_ns()
        await client.kv.put(namespace, "commit", b"%d" % number)
        if number >= _WARM_UP:
            latencies.note(time.monotonic_ns() - begin_ns)
    return latencies


class _RelayCuts:
    """Keeps nodes apart on the relay, which carries all their traffic."""

    def __init__(self, places: Places) -> None:
        self._places = places

    def cut(self, source: int, target: int) -> None:
        self._places.cut(source, target)

    def cut_off(self, n: int) -> None:
        self._places.cut_off(n)

    def heal(self) -> None:
        self._places.heal()


@contextlib.contextmanager
def members_of(places: Places, groups: Mapping[str, int], *, near: bool = True) -> Iterator[Members]:
    """A node in each place, not started. ``near``: clients in this process reach all of them without delay; otherwise
    clients are in places, too, and reach the others over the relay."""
    directory = Path(tempfile.mkdtemp(prefix="metad-perf-", dir=disk_directory()))
    certs = directory / "certificates"
    members: list[Member] = []
    try:
        fleet = issued(certs, list(NAMES))
        seeds = ", ".join(f'{name} = "{places.address(n)}:{_PEER_PORT}"' for n, name in enumerate(NAMES))
        for n, name in enumerate(NAMES):
            home = directory / name
            home.mkdir()
            files = fleet[f"node-{name}"]
            lines = [f'node_id = "{name}"', "[cluster]", f"seeds = {{ {seeds} }}", f'region = "{name}"']
            lines += ["[groups]", *(f"{kind} = {count}" for kind, count in groups.items())]
            lines += ["[raft]", *(f"{key} = {value}" for key, value in _RAFT.items())]
            config = home / "metad.toml"
            config.write_text("\n".join([*lines, ""]))
            here = f"{places.network.address(n) if near else places.address(n)}:{_CLIENT_PORT}"
            command = [*places.network.prefix(n), *metad_serve(), "--quic", here]
            command += ["--tls-cert", files.certificate, "--tls-key", files.key, "--tls-ca", files.ca]
            members.append(Member(name, home, command, config, here, None))
        yield Members(members, _RelayCuts(places), "metads", certs)
    finally:
        for member in members:
            member.kill()
        shutil.rmtree(directory, ignore_errors=True)
