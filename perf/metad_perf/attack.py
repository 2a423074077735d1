"""``metad-perf attack``: strangers and insiders do their worst, one after the other, while a good client works.

A node with TLS and QUIC on loopback. Before and after each attack the good client is measured in peace, over the
transport that is attacked, and during it as well; the node's memory is sampled all the while. Node and client run at a
higher priority than what else the machine does, where that is allowed, and the attacker behind it, on one processor.
What his being there costs a good client without touching the node is measured first, by a bystander: where that is
much, the machine is measured and not the node, and another processor may be better for him (not the one that serves
the disk's interrupts: on it fsyncs wait for whoever computes).

An attack is refused where the server let nobody in who may not, answered no demand that breaks the rules, and hung up
on who kept it waiting. The node has its default limits; where these take longer than the good client is measured, the
attacker waits for them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from metad.testing import certificates
from metad_client import Options, connect

from . import report
from .attack_kinds import BYSTANDER, KINDS, Attacker
from .attack_peer import LARGE_KEYS, Target
from .attack_quic import REPLAYED
from .errors import UsageError
from .histogram import Latencies
from .load import epoch_now
from .running import run_async
from .spawn import Server, disk_directory, metad_serve
from .wan_client import Answer, Order, WanClient, options_for
from .workload import Settings

MIB = 1024 * 1024
GROWTH_MIB_MAX = 64.0
P99_RATIO_MAX = 2.0
_BATCH, _PER_S, _IN_FLIGHT = 10, 200, 16  # of the good client: 2,000 items/s, an open loop
_KEYS = 10_000
_NICE = -10
_SAMPLE_S = 0.05
_SETTLE_S = 2.0  # after an attack: what was held is let go


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Which attacks, and how long each and each time of peace."""

    names: Sequence[str] = tuple(KINDS)
    seconds: float = 6.0
    quiet_s: float = 3.0
    processor: int | None = None
    """The attacker's; None: the first."""

    def checked(self) -> Plan:
        """Itself. Raises UsageError."""
        for name in self.names:
            if name not in KINDS:
                raise UsageError(f"--attacks: there is no attack {name!r}, but {', '.join(KINDS)}")
        if self.seconds <= 0 or self.quiet_s <= 0:
            raise UsageError("--seconds must be over 0")
        processors = sorted(os.sched_getaffinity(0))
        if self.processor is None:
            return msgspec.structs.replace(self, processor=processors[0])
        if self.processor not in processors:
            raise UsageError(f"--attacker-cpu: there is {', '.join(map(str, processors))}")
        return self


def run(plan: Plan, *, json: Path | None) -> int:
    """The exit code: 1 where an attack was not refused, took memory, or slowed the good client down."""
    plan = plan.checked()
    directory = Path(tempfile.mkdtemp(prefix="metad-perf-", dir=disk_directory()))
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)  # what is started from here on inherits it
    try:
        attacks, bystander = _Siege(plan, directory).run()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    made: dict[str, Any] = report.rounded(
        {
            "attacks": attacks,
            "attacker_cpu": plan.processor,
            "bystander": bystander,
            "bars": {"server_rss_growth_mib": GROWTH_MIB_MAX, "good_client_p99_ratio": P99_RATIO_MAX},
            "good_client": f"{_PER_S} puts of {_BATCH} items a second, open loop, over the transport under attack",
            "seconds": plan.seconds,
            "setting": report.machine(),
            "versions": report.versions(),
        }
    )
    report.write_json(json, made)
    for transport, one in bystander.items():
        report.say(
            f"{transport}: a bystander as busy as an attacker makes the good client's p99 {one['p99_ms']:.1f} ms, "
            f"{one['good_client_p99_ratio']:.2g} times that in peace"
        )
    return _show(made["attacks"])


class _Siege:
    def __init__(self, plan: Plan, directory: Path) -> None:
        self._plan = plan
        node = certificates.node("node-1")
        command = [*metad_serve(), "--quic", "127.0.0.1:0"]
        command += ["--tls-cert", node.certificate, "--tls-key", node.key, "--tls-ca", node.ca]
        self._server = Server(directory, command=command)
        self._options = Options(tls=certificates.client("perf"))
        self._urls: dict[str, str] = {}

    def run(self) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
        """Every attack's report, and a bystander's over every transport."""
        client: WanClient | None = None
        try:
            self._server.start()
            self._urls = {"tls": f"metads://{self._server.endpoint}", "quic": f"metadq://{self._server.quic_endpoint}"}
            run_async(self._prepare())
            client = WanClient()
            for transport in self._urls:  # everything has been touched once before memory is looked at
                self._measure(client, transport, self._plan.quiet_s)
            bystander = {transport: self._attack(client, BYSTANDER, transport) for transport in self._urls}
            made = {}
            with report.progress("attacks", len(self._plan.names)) as progress:
                for name in self._plan.names:
                    made[name] = self._attack(client, name, KINDS[name][0])
                    progress(1)
            if "quic_early_replays" in made and run_async(self._replayed()):
                made["quic_early_replays"]["refused"] = False
            self._server.stop()
            return made, bystander
        finally:
            if client is not None:
                client.stop()
            self._server.kill()

    def _attack(self, client: WanClient, name: str, transport: str) -> dict[str, Any]:
        assert self._plan.processor is not None
        peace = [self._measure(client, transport, self._plan.quiet_s).latencies]
        before = self._server.rss_bytes()
        attacker = Attacker(name, self._target(transport), self._plan.seconds, self._plan.processor)
        try:
            self._begin(client, transport, self._plan.seconds)
            attacker.begin()
            peak = before
            while not attacker.done():
                peak = max(peak, self._server.rss_bytes())
                time.sleep(_SAMPLE_S)
            outcome = attacker.outcome()
        finally:
            attacker.stop()
        good = client.end()
        time.sleep(_SETTLE_S)
        peace.append(self._measure(client, transport, self._plan.quiet_s).latencies)
        quiet, attacked = Latencies.merged(peace), Latencies.merged([good.latencies])
        quiet_ms, p99_ms = quiet.percentile_ms(99), attacked.percentile_ms(99)
        return {
            "refused": outcome.refused,
            "server_rss_growth_mib": (peak - before) / MIB,
            "good_client_p99_ratio": report.ratio(p99_ms, quiet_ms),
            "transport": transport,
            "tried": outcome.tried,
            "p99_ms": p99_ms,
            "quiet_p99_ms": quiet_ms,
            "p50_ms": attacked.percentile_ms(50),
            "quiet_p50_ms": quiet.percentile_ms(50),
            "good_client_failed": good.failed,
        }

    def _measure(self, client: WanClient, transport: str, seconds: float) -> Answer:
        self._begin(client, transport, seconds)
        return client.end()

    def _begin(self, client: WanClient, transport: str, seconds: float) -> None:
        settings = Settings(verb="kv.put", batch=_BATCH, keys=_KEYS, value_bytes=200, epoch=epoch_now())
        client.begin(
            Order(
                url=self._urls[transport],
                options=options_for(self._options, settings, _IN_FLIGHT),
                settings=settings,
                in_flight=_IN_FLIGHT,
                seconds=seconds,
                interval_ns=1e9 / _PER_S,
            )
        )

    def _target(self, transport: str) -> Target:
        _, _, at = self._urls[transport].partition("://")
        host, _, port = at.rpartition(":")
        return Target(
            host=host,
            port=int(port),
            good=certificates.client("app"),
            none=certificates.anonymous(),
            wrong={kind: certificates.wrong(kind) for kind in certificates.WRONG},
        )

    async def _prepare(self) -> None:
        async with connect(self._urls["tls"], self._options) as client:
            for n in range(LARGE_KEYS):
                await client.kv.put("large", f"k{n}", bytes(MIB - 100))

    async def _replayed(self) -> bool:
        async with connect(self._urls["tls"], self._options) as client:
            return await client.kv.get(*REPLAYED) is not None


def _show(attacks: dict[str, dict[str, Any]]) -> int:
    report.table(
        "attacks",
        ["attack", "refused", "tried", "RSS growth MiB", "good client's p99 ms", "in peace", "ratio", "failed"],
        [
            [
                name,
                "yes" if one["refused"] else "NO",
                one["tried"],
                one["server_rss_growth_mib"],
                one["p99_ms"],
                one["quiet_p99_ms"],
                one["good_client_p99_ratio"],
                one["good_client_failed"],
            ]
            for name, one in attacks.items()
        ],
    )
    bad = {
        name: one
        for name, one in attacks.items()
        if not one["refused"]
        or one["server_rss_growth_mib"] > GROWTH_MIB_MAX
        or one["good_client_p99_ratio"] > P99_RATIO_MAX
        or one["good_client_failed"]
    }
    ratios = [one["good_client_p99_ratio"] for one in attacks.values()]
    report.say(
        f"{len(attacks) - len(bad)} of {len(attacks)} attacks were refused within {GROWTH_MIB_MAX:g} MiB and "
        f"{P99_RATIO_MAX:g} times the good client's p99 (median ratio {statistics.median(ratios):.2g})."
    )
    for name in bad:
        report.say(f"not within bounds: {name}")
    return 1 if bad else 0
