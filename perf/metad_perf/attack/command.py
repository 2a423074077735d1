"""``metad-perf attack``: strangers and insiders attack a node one after the other while a good client works.

The target is a node with TLS and QUIC on loopback; for some attacks one that accepts tokens too, or three nodes. Each
attack runs several times. The good client is measured before, between and after the attacks in peace, and during each,
over the transport under attack. A window's ratio compares its p99 to that of the peace around it, and the median ratio
counts, so that one stall of the machine does not decide. The nodes' memory is sampled throughout. Nodes and client run
at a higher priority than the rest of the machine, if that is allowed; the attacker runs at a lower one, on one
processor. An attacker that only computes would slow the good client too, which is the machine's doing and not the
node's. So in peace a bystander computes as much and touches no node. Its effect is measured first and reported; if it
is large, another processor may suit the attacker better (not the one that serves the disk's interrupts: there fsyncs
wait for the attacker).

The good client's longest stand is the longest that one of its requests took, in any window. It counts unless it stood
as long in peace, which is the machine's doing, too.

An attack is refused if it achieved nothing by its own measure (see each attack), and if afterwards every node lives,
every group is led in the same term as before, the log was not flooded, and an honest tenant has all that it had. Limits
are the defaults; an attacker waits for limits that take longer than the good client's measurement. A node that was
harmed is replaced by a new one.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Generator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from metad.logs import DISTINCT_MAX

from ..commands import Attack
from ..errors import PerfError, UsageError
from ..load.measure import epoch_now
from ..load.workload import Settings
from ..report import output
from ..report.conclusion import reported
from ..report.histogram import Latencies
from ..wan.client import Answer, Order, WanClient, options_for
from .kinds import ALONE, BYSTANDER, INSIDER, KINDS, SMALL, STRANGER, TENANTS, Attacker
from .peer import Outcome
from .sites import Site, site

MIB = 1024 * 1024
GROWTH_MIB_MAX = 64.0
P99_RATIO_MAX = 2.0
SLOW_ONE_IN = 10
"""One of so many attacks may exceed the ratio."""
LONGEST_STAND_MS_MAX = 250.0
LOG_LINES_PER_S_MAX = 50.0
"""Allowed log lines: ten a second of each kind, and the rare ones of the attack."""
LOG_LINES_AT_ONCE = 2 * DISTINCT_MAX
"""And so many more: a node tells of so many brokers at once that they are registered, and that they are over. That may
be those of the attack before."""
_BATCH, _PER_S, _IN_FLIGHT = 10, 200, 16  # of the good client: 2,000 items/s, an open loop
_DEADLINE_S = 10.0  # of its requests
_KEYS = 10_000
_NICE = -10
_SAMPLE_S = 0.05
_OVERLAP_S = 0.2
_SETTLE_S = 0.5  # after an attack, so that memory is released
_GROUPS = {
    "strangers": [name for name, kind in KINDS.items() if kind.who == STRANGER],
    "insiders": [name for name, kind in KINDS.items() if kind.who == INSIDER],
    "tenants": [name for name, kind in KINDS.items() if kind.site in (TENANTS, SMALL)],
}


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The attacks, how often they run, and how long each attack and each time of peace lasts."""

    names: Sequence[str] = tuple(KINDS)
    windows: int = 3
    seconds: float = 2.0
    quiet_s: float = 1.0
    processor: int | None = None
    """The attacker's processor; None: the first."""
    measured: bool = True
    """Whether the good client is compared with peace: the attacker yields to it then."""

    def checked(self) -> Plan:
        """This plan with the names of single attacks. Raises UsageError."""
        chosen: set[str] = set()
        for name in self.names:
            if name in _GROUPS:
                chosen.update(_GROUPS[name])
            elif name in KINDS:
                chosen.add(name)
            else:
                raise UsageError(f"--only: there is no attack {name!r}, but {', '.join([*_GROUPS, *KINDS])}")
        if self.seconds <= 0 or self.quiet_s <= 0 or self.windows < 1:
            raise UsageError("--seconds and --windows must be over 0")
        may_mount = os.geteuid() == 0
        if not may_mount and any(KINDS[name].site == SMALL for name in chosen):
            output.say("attacks on a small disk need root, to mount one: they are left out")
        processors = sorted(os.sched_getaffinity(0))
        if self.processor is not None and self.processor not in processors:
            raise UsageError(f"--attacker-cpu: there is {', '.join(map(str, processors))}")
        return msgspec.structs.replace(
            self,
            names=[name for name in KINDS if name in chosen and (may_mount or KINDS[name].site != SMALL)],
            processor=processors[0] if self.processor is None else self.processor,
        )


def run(options: Attack) -> int:
    """Returns the exit code: 1 if an attack was not refused, took memory, caused an election or let the good client
    stand, or if too many slowed the good client down."""
    plan = Plan(
        names=tuple(KINDS) if options.only is None else options.only,
        windows=1 if options.quick else options.windows,
        seconds=1.0 if options.quick else options.seconds,
        quiet_s=0.3 if options.quick else 1.0,
        processor=options.attacker_cpu,
        measured=not options.quick,
    ).checked()
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)  # processes started from here on inherit it
    attacks: dict[str, dict[str, Any]] = {}
    bystander: dict[str, dict[str, Any]] = {}
    with output.progress("attacks", len(plan.names)) as progress:
        for place, names in groupby(plan.names, key=lambda name: KINDS[name].site):
            with contextlib.closing(_Siege(plan, place)) as siege:
                if place == ALONE and plan.measured:
                    bystander = {transport: siege.attack(BYSTANDER, transport) for transport in ("tls", "quic")}
                for name in names:
                    attacks[name] = siege.attack(name, KINDS[name].transport)
                    progress(1)
    made = reported(
        options,
        {
            "attacks": attacks,
            "attacker_cpu": plan.processor,
            "bystander": bystander,
            "bars": {
                "server_rss_growth_mib": GROWTH_MIB_MAX,
                "good_client_p99_ratio": P99_RATIO_MAX,
                "longest_stand_ms": LONGEST_STAND_MS_MAX,
                "elections": 0,
                "leaked": 0,
                "share_within_ratio": 1 - 1 / SLOW_ONE_IN,
            },
            "good_client": f"{_PER_S} puts of {_BATCH} items a second, open loop, over the transport under attack",
            "windows": plan.windows,
            "seconds": plan.seconds,
        },
    )
    output.write_json(options.json, made)
    for transport, one in bystander.items():
        output.say(
            f"{transport}: a bystander as busy as an attacker makes the good client's p99 {one['p99_ms']:.1f} ms, "
            f"{one['good_client_p99_ratio']:.2g} times that in peace"
        )
    return _show(made["attacks"])


class _Siege:
    """Runs attacks on one site, one after the other."""

    def __init__(self, plan: Plan, place: str) -> None:
        self._plan = plan
        self._place = place
        self._client = WanClient()
        self._sites = self._each()
        self._site: Site = next(self._sites)
        self._processor = plan.processor if plan.measured else None
        # The bystander touches no target, so any will do. It computes a moment longer than the client is measured.
        seconds = plan.quiet_s + _OVERLAP_S
        self._bystander = Attacker(BYSTANDER, self._site.target("tls"), seconds, self._processor)

    def _each(self) -> Generator[Site]:
        """Yields the site, and a new one after it was replaced."""
        while True:
            with site(self._place) as made:
                for transport in ("tls", "quic") if self._place == ALONE else ("tls",):
                    # Everything is touched once before memory is measured.
                    self._measure(made, transport, self._plan.quiet_s)
                yield made

    def close(self) -> None:
        """End its nodes, and the good client."""
        self._bystander.stop()
        self._sites.close()
        self._client.stop()

    def attack(self, name: str, transport: str) -> dict[str, Any]:
        """Run an attack; returns its report."""
        where = self._site
        windows: list[_Window] = []
        problems: list[str] = []
        health = where.health()
        lines, before = where.log_lines(), where.rss_bytes()
        later, peak = health, list(before)
        attacker = Attacker(name, where.target(transport), self._plan.seconds, self._processor)
        begun_s = time.monotonic()
        try:
            peace = self._peace(where, transport, name)
            for _ in range(self._plan.windows):
                self._begin(where, transport, self._plan.seconds)
                attacker.begin()
                while not attacker.done():
                    peak = list(map(max, peak, where.rss_bytes()))
                    time.sleep(_SAMPLE_S)
                outcome = attacker.outcome()
                if outcome.problem:
                    problems.append(outcome.problem)
                good = self._client.end()
                time.sleep(_SETTLE_S)
                after = self._peace(where, transport, name)
                windows.append(_Window(outcome, good, [peace, after]))
                peace = after
        except PerfError as error:
            problems.append(where.ended() or f"the good client could not work: {error}")
            self._client.stop()
            self._client = WanClient()
        finally:
            attacker.stop()
        seconds = time.monotonic() - begun_s
        if not (ended := where.ended()):
            later = where.health()
        harm = "" if ended else where.harm()
        problems += [ended or health.problem(later), harm]
        if name == "quic_early_replays" and where.replayed():
            problems.append("the replay is there")
        if not any(window.outcome.tried for window in windows):
            problems.append("nothing was tried")
        lines = where.log_lines() - lines
        if lines > LOG_LINES_PER_S_MAX * seconds + LOG_LINES_AT_ONCE:
            problems.append(f"{lines} lines were logged")
        found = list(dict.fromkeys(problem for problem in problems if problem))
        if found:
            self._site = next(self._sites)
        return {
            "refused": not found,
            "server_rss_growth_mib": max(after - now for now, after in zip(before, peak, strict=True)) / MIB,
            **_summed(windows),
            "leaked": sum(window.outcome.leaked for window in windows) + bool(harm),
            "elections": health.elections(later),
            "transport": transport,
            "who": KINDS[name].who if name in KINDS else BYSTANDER,
            "site": self._place,
            "problem": "; ".join(found),
            "log_lines": lines,
        }

    def _peace(self, where: Site, transport: str, name: str) -> Answer:
        """Measure the good client beside the bystander; alone if the bystander itself is measured."""
        if name == BYSTANDER:
            return self._measure(where, transport, self._plan.quiet_s)
        self._bystander.begin()
        answer = self._measure(where, transport, self._plan.quiet_s)
        self._bystander.outcome()
        return answer

    def _measure(self, where: Site, transport: str, seconds: float) -> Answer:
        self._begin(where, transport, seconds)
        return self._client.end()

    def _begin(self, where: Site, transport: str, seconds: float) -> None:
        settings = Settings(verb="kv.put", batch=_BATCH, keys=_KEYS, value_bytes=200, epoch=epoch_now())
        options = options_for(where.options, settings, _IN_FLIGHT)
        self._client.begin(
            Order(
                url=where.url(transport),
                options=msgspec.structs.replace(options, deadline_s=_DEADLINE_S),
                settings=settings,
                in_flight=_IN_FLIGHT,
                seconds=seconds,
                interval_ns=1e9 / _PER_S,
            )
        )


class _Window(msgspec.Struct, frozen=True):
    """One measurement under attack, and those of the peace around it."""

    outcome: Outcome
    good: Answer
    peace: list[Answer]

    @property
    def throughput_ratio(self) -> float:
        """What the good client got done in a second, by that in peace."""
        rates = [(one.items - one.failed) / max(one.seconds, 1e-9) for one in (self.good, *self.peace)]
        return output.ratio(rates[0], statistics.mean(rates[1:]))

    @property
    def longest_ms(self) -> float:
        """How long the good client stood at most, for one request."""
        return Latencies.merged([self.good.latencies]).max_ms()

    @property
    def quiet_longest_ms(self) -> float:
        """The same in peace."""
        return Latencies.merged([one.latencies for one in self.peace]).max_ms()

    def ms(self, percentile: float) -> tuple[float, float]:
        """The good client's latencies under attack and in peace."""
        quiet = Latencies.merged([one.latencies for one in self.peace])
        return Latencies.merged([self.good.latencies]).percentile_ms(percentile), quiet.percentile_ms(percentile)


def _summed(windows: Sequence[_Window]) -> dict[str, Any]:
    """Medians over windows. None if the good client could not work at all."""
    p99 = [window.ms(99) for window in windows] or [(1e3 * _DEADLINE_S, 1.0)]
    p50 = [window.ms(50) for window in windows] or [(1e3 * _DEADLINE_S, 1.0)]
    ratios = [output.ratio(attacked, quiet) for attacked, quiet in p99]
    return {
        "good_client_p99_ratio": statistics.median(ratios),
        "windows": len(windows),
        "ratios": ratios,
        "tried": sum(window.outcome.tried for window in windows),
        "denied": sum(window.outcome.denied for window in windows),
        "good_client_throughput_ratio": statistics.median([window.throughput_ratio for window in windows] or [0.0]),
        "p99_ms": statistics.median(attacked for attacked, _ in p99),
        "quiet_p99_ms": statistics.median(quiet for _, quiet in p99),
        "p50_ms": statistics.median(attacked for attacked, _ in p50),
        "quiet_p50_ms": statistics.median(quiet for _, quiet in p50),
        "longest_stand_ms": max((window.longest_ms for window in windows), default=1e3 * _DEADLINE_S),
        "quiet_longest_stand_ms": max((window.quiet_longest_ms for window in windows), default=0.0),
        "good_client_failed": sum(window.good.failed for window in windows) + (not windows),
    }


def _show(attacks: dict[str, dict[str, Any]]) -> int:
    output.table(
        "attacks",
        ["attack", "refused", "tried", "MiB more", "p99 ms", "in peace", "ratio", "stood ms", "elections", "failed"],
        [
            [
                name,
                "yes" if one["refused"] else "NO",
                one["tried"],
                one["server_rss_growth_mib"],
                one["p99_ms"],
                one["quiet_p99_ms"],
                one["good_client_p99_ratio"],
                one["longest_stand_ms"],
                one["elections"],
                one["good_client_failed"],
            ]
            for name, one in attacks.items()
        ],
    )
    ratios = [one["good_client_p99_ratio"] for one in attacks.values()]
    slow = [name for name, one in attacks.items() if one["good_client_p99_ratio"] > P99_RATIO_MAX]
    bad = {name: why for name, one in attacks.items() if (why := _broken(one))}
    output.say(
        f"{len(attacks) - len(bad)} of {len(attacks)} attacks were refused within {GROWTH_MIB_MAX:g} MiB with nothing "
        f"failed; {len(attacks) - len(slow)} kept the good client's p99 within {P99_RATIO_MAX:g} times that in peace "
        f"(all but one in {SLOW_ONE_IN} have to; median ratio {statistics.median(ratios):.2g})."
    )
    for name, why in bad.items():
        output.say(f"not within bounds: {name}: {why}")
    if slow:
        output.say(f"over {P99_RATIO_MAX:g} times: {', '.join(slow)}")
    return 1 if bad or len(slow) * SLOW_ONE_IN > len(attacks) else 0


def _broken(one: dict[str, Any]) -> str:
    """The limits that an attack has broken, except the ratio."""
    found = []
    if one["leaked"]:
        found.append(f"{one['leaked']} leaked")
    if not one["refused"]:
        found.append(one["problem"] or "not refused")
    if one["server_rss_growth_mib"] > GROWTH_MIB_MAX:
        found.append(f"{one['server_rss_growth_mib']:.0f} MiB")
    if one["elections"]:
        found.append(f"{one['elections']} elections")
    if one["longest_stand_ms"] > max(LONGEST_STAND_MS_MAX, one["quiet_longest_stand_ms"]):
        found.append(f"the good client stood {one['longest_stand_ms']:.0f} ms")
    if one["good_client_failed"]:
        found.append(f"{one['good_client_failed']} items of the good client failed")
    return "; ".join(found)
