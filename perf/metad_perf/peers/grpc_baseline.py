"""``metad-perf grpc``: metad's protocol against grpc.aio, over the same node core, load, disk and machine.

Both servers run at once and only one is loaded at a time; each case runs on both in turn, several times, and the order
changes from pair to pair. The report gives the median over the pairs of each pair's ratio, because a slowdown of the
machine for some seconds slows both runs of a pair. Both clients are one process with one connection.

Two verbs are compared. ``session.get`` is the headline, because a read shows the cost of a call: it needs next to no
evaluation and disk. A write costs an fsync and two RocksDB writes on both sides, which no protocol can make cheaper;
``session.update`` is reported beside it under ``writes``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from metad_wire.program.running import run_async

from ..commands import Grpc
from ..errors import UsageError
from ..load.fleet import run_fleet
from ..load.measure import Load, account_of, create, epoch_now, plans
from ..load.worker import OpenSource, open_metad
from ..report import output
from ..spawn import Server, temporary_server

READ, WRITE = "session.get", "session.update"
VALUE_BYTES = 200


class Case(msgspec.Struct, frozen=True):
    """One load: ``batch`` items a call, ``in_flight`` calls at a time."""

    name: str
    batch: int
    in_flight: int


CASES = (Case("unary_1", 1, 1), Case("unary_16", 1, 16), Case("unary_256", 1, 256), Case("batch_1000", 1_000, 4))


class _Side(NamedTuple):
    """One of the two servers, and the source of its load."""

    name: str
    endpoint: str
    open_source: OpenSource
    cpu_us: Callable[[], int]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of one side in one run."""

    verb: str
    case: str
    side: str
    items: int
    failed: int
    items_per_s: float
    server_cpu_us_per_item: float
    client_cpu_us_per_item: float
    p50_ms: float
    p99_ms: float
    errors: dict[str, int]


def run(options: Grpc) -> int:
    """Returns the exit code: 1 if items failed. Raises UsageError."""
    if options.pairs < 1 or options.seconds <= 0 or options.keys < CASES[-1].batch:
        raise UsageError(f"--pairs and --seconds must be over 0, --keys at least {CASES[-1].batch}")
    grpc_server = [sys.executable, "-m", "metad_perf.peers.grpc_server"]
    config = options.server_config
    with (
        temporary_server(config=config, shape=options.shape) as metad,
        temporary_server(command=grpc_server, config=config) as grpc,
    ):
        metad.start()
        grpc.start()
        compared = _compare(metad, grpc, options.pairs, options.seconds, options.keys)
        metad.stop()
        grpc.stop()
    output.write_json(options.json, compared)
    _show(compared)
    return 1 if any(one["failed"] for one in compared["runs"]) else 0


def _compare(metad: Server, grpc: Server, pairs: int, seconds: float, keys: int) -> dict[str, Any]:
    from . import grpc_client

    epoch = epoch_now()
    load = Load(verb=READ, keys=keys, value_bytes=VALUE_BYTES, items=keys)
    create(metad.target, load, epoch)
    with output.progress("prepare gRPC", keys) as progress:
        run_async(grpc_client.fill(grpc.endpoint, epoch, keys, VALUE_BYTES, progress))
    sides = {
        "metad": _Side("metad", metad.target, open_metad, lambda: account_of(metad.target).cpu_us),
        "grpc": _Side("grpc", grpc.endpoint, grpc_client.open_grpc, lambda: grpc_client.cpu_us(grpc.endpoint)),
    }
    runs: list[Run] = []
    with output.progress("runs", 2 * len(CASES) * pairs * 2) as progress:
        for verb in (READ, WRITE):
            for case in CASES:
                for pair in range(pairs):
                    for side in ("metad", "grpc") if pair % 2 == 0 else ("grpc", "metad"):
                        one = msgspec.structs.replace(load, verb=verb, batch=case.batch, in_flight=case.in_flight)
                        runs.append(_run(case, sides[side], one, epoch, seconds))
                        progress(1)
    account = account_of(metad.target)
    return {
        **_verdict(READ, runs),
        "writes": _verdict(WRITE, runs),
        "pairs": pairs,
        "seconds": seconds,
        "keys": keys,
        "value_bytes": VALUE_BYTES,
        "fsync": account.fsync,
        "replicas": account.replicas,
        "groups": account.groups,
        "runs": output.rounded([msgspec.to_builtins(one) for one in runs]),
        "setting": output.machine(),
        "versions": output.versions(),
    }


def _verdict(verb: str, runs: list[Run]) -> dict[str, Any]:
    of_verb = [one for one in runs if one.verb == verb]
    return {
        "ratio_items_per_s": ratios(of_verb, lambda metad, grpc: (metad.items_per_s, grpc.items_per_s)),
        "ratio_server_cpu": ratios(
            of_verb, lambda metad, grpc: (grpc.server_cpu_us_per_item, metad.server_cpu_us_per_item)
        ),
        "verb": verb,
    }


def _run(case: Case, side: _Side, load: Load, epoch: int, seconds: float) -> Run:
    cpu: list[int] = []
    result = run_fleet(
        plans(side.endpoint, load, epoch, seconds=seconds, open_source=side.open_source),
        on_begin=lambda: cpu.append(side.cpu_us()),
        on_end=lambda: cpu.append(side.cpu_us()),
        progress=lambda _: None,
    )
    return Run(
        verb=load.verb,
        case=case.name,
        side=side.name,
        items=result.items,
        failed=result.failed,
        items_per_s=result.items_per_s(),
        server_cpu_us_per_item=output.ratio(cpu[1] - cpu[0], result.items),
        client_cpu_us_per_item=output.ratio(result.client_cpu_s * 1e6, result.items),
        p50_ms=result.latencies.percentile_ms(50),
        p99_ms=result.latencies.percentile_ms(99),
        errors=result.errors,
    )


def ratios(runs: list[Run], parts: Callable[[Run, Run], tuple[float, float]]) -> dict[str, float]:
    """Per case, the median over pairs of the ratio that ``parts(metad's run, gRPC's run)`` returns. The n-th runs of
    the two sides are a pair."""
    by_case: dict[str, float] = {}
    for case in dict.fromkeys(one.case for one in runs):
        metad = [one for one in runs if one.case == case and one.side == "metad"]
        grpc = [one for one in runs if one.case == case and one.side == "grpc"]
        by_case[case] = output.rounded(output.median_ratio(map(parts, metad, grpc)))
    return by_case


def _show(compared: dict[str, Any]) -> None:
    columns = [
        "verb",
        "case",
        "side",
        "items/s",
        "server CPU µs/item",
        "client CPU µs/item",
        "p50 ms",
        "p99 ms",
        "failed",
    ]
    keys = (
        *("verb", "case", "side", "items_per_s", "server_cpu_us_per_item", "client_cpu_us_per_item"),
        *("p50_ms", "p99_ms", "failed"),
    )
    output.table("metad and grpc.aio", columns, [[one[key] for key in keys] for one in compared["runs"]])
    output.table(
        "median of the pairs",
        ["verb", "case", "items/s: metad ÷ gRPC", "server CPU: gRPC ÷ metad"],
        [
            [verdict["verb"], case, value, verdict["ratio_server_cpu"][case]]
            for verdict in (compared, compared["writes"])
            for case, value in verdict["ratio_items_per_s"].items()
        ],
    )
