"""``metad-perf load``: one verb, one setting, one measured run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from metad_client import Options
from metad_wire.errors import MetadError
from metad_wire.messages import StatusReply
from metad_wire.program.running import run_async

from .. import commands
from ..errors import UsageError
from ..report import output
from ..spawn import temporary_server
from ..target import open_client, target_of
from .fleet import Result, run_fleet
from .prepare import prepare, records_needed
from .worker import OpenSource, Plan, open_metad
from .workload import TENANT, VERBS, Settings

KEYS_DEFAULT_MAX = 100_000
CONNECT_TIMEOUT_S = 3.0  # a measured server is up; a longer wait would only hide a wrong address
MIB = 1024 * 1024


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """One load. ``items`` are counted over all processes, as are ``in_flight`` requests and ``rate`` items/s."""

    verb: str
    batch: int = 1_000
    in_flight: int = 8
    items: int = 1_000_000
    value_bytes: int = 200
    processes: int = 1
    rate: float = 0.0
    keys: int = 0
    restore: bool = False
    singles: bool = False
    seed: int = 1
    tenant: str = TENANT

    def checked(self) -> Load:
        """This load with the number of ``keys`` filled in. Raises UsageError."""
        if self.verb not in VERBS:
            raise UsageError(f"no verb {self.verb}; there are {', '.join(VERBS)}")
        for field in ("batch", "in_flight", "items", "value_bytes", "processes"):
            if getattr(self, field) < 1:
                raise UsageError(f"--{field.replace('_', '-')} must be at least 1")
        if self.rate < 0 or self.keys < 0:
            raise UsageError("--rate and --keys must not be negative")
        if self.restore and self.verb != "session.takeover":
            raise UsageError("--restore is for session.takeover")
        if self.singles and self.batch != 1:
            raise UsageError("single calls are of one item: --batch 1")
        batch = min(self.batch, self.items)
        processes = min(self.processes, self.in_flight, self.items // batch)
        keys = self.keys or max(min(self.items, KEYS_DEFAULT_MAX), batch * processes)
        return msgspec.structs.replace(self, batch=batch, keys=keys, processes=processes)


def run(options: commands.Load) -> int:
    """Measure against an endpoint, which may name several nodes separated by commas, or against a server of our own.
    Returns the exit code: 1 if items failed."""
    load = Load(
        **{name: getattr(options, name) for name in Load.__struct_fields__ if name not in ("singles", "tenant")},
        singles=options.batch == 1 and not options.request_each,
    ).checked()
    if options.endpoint is not None:
        how = {"certs": options.certs, "name": options.name, "token_file": options.token_file}
        measured = prepare_and_measure(target_of(options.endpoint, **how), load)
    else:
        with temporary_server(config=options.server_config, shape=options.shape) as server:
            server.start()
            measured = prepare_and_measure(server.target, load)
            server.stop()
    output.write_json(options.json, measured)
    show(measured)
    return 1 if measured["errors"] else 0


def prepare_and_measure(endpoint: str, load: Load) -> dict[str, Any]:
    """Create the records that the verb needs, then measure."""
    epoch = epoch_now()
    create(endpoint, load, epoch)
    return measure(endpoint, load, epoch)


def create(endpoint: str, load: Load, epoch: int) -> None:
    """Create the records that the verb needs."""
    if records_needed(load.verb):
        with output.progress("prepare", load.keys) as progress:
            run_async(_prepare(endpoint, _settings(load, epoch), progress))


def epoch_now() -> int:
    """An epoch for the brokers of this run, higher than those of earlier runs."""
    return time.time_ns() // 1_000_000


def measure(endpoint: str, load: Load, epoch: int) -> dict[str, Any]:
    """Run the load on existing records and report it; ``load`` must be checked."""
    status: list[Account] = []
    with output.progress(load.verb, load.items) as progress:
        result = run_fleet(
            plans(endpoint, load, epoch),
            on_begin=lambda: status.append(account_of(endpoint)),
            on_end=lambda: status.append(account_of(endpoint)),
            progress=progress,
        )
    before, after = status
    return _report(load, result, before, after)


def plans(
    endpoint: str, load: Load, epoch: int, *, seconds: float | None = None, open_source: OpenSource = open_metad
) -> list[Plan]:
    """One plan per process; ``seconds``, if given, replaces ``items``."""
    requests, rest = divmod(load.items // load.batch, load.processes)
    in_flight, spare = divmod(load.in_flight, load.processes)
    return [
        Plan(
            endpoint=endpoint,
            settings=_settings(load, epoch, share),
            in_flight=in_flight + (share < spare),
            requests=None if seconds is not None else requests + (share < rest),
            seconds=seconds,
            interval_ns=1e9 * load.batch * load.processes / load.rate if load.rate else 0,
            open_source=open_source,
        )
        for share in range(load.processes)
    ]


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes' own figures, summed: every replica's work counts."""

    nodes: int
    processes: int
    replicas: int
    groups: int
    fsync: bool
    cpu_us: int
    rss_bytes: int
    entries: int
    syncs: int
    sessions_ended: int
    """Whose time had come."""
    leaders: dict[str, int]
    """By node id, the number of groups that the process leads."""


def account(statuses: Sequence[StatusReply]) -> Account:
    """The sum over every process's status."""
    return Account(
        nodes=len({one.node_id.partition("/")[0] for one in statuses}),
        processes=len(statuses),
        replicas=max(one.replicas for one in statuses),
        groups=len({group.name for one in statuses for group in one.groups}),
        fsync=all(one.fsync for one in statuses),
        cpu_us=sum(one.cpu_us for one in statuses),
        rss_bytes=sum(one.rss_bytes for one in statuses),
        entries=sum(one.entries for one in statuses),
        syncs=sum(one.syncs for one in statuses),
        sessions_ended=sum(one.sessions_ended for one in statuses),
        leaders={one.node_id: sum(group.role == "leader" for group in one.groups) for one in statuses},
    )


async def ask_account(endpoint: str) -> Account:
    """The account of the node, or of all nodes of the cluster, at ``endpoint``. Raises MetadError if one of them does
    not answer."""
    options = Options(connect_timeout_s=CONNECT_TIMEOUT_S, client_name="metad-perf")
    async with open_client(endpoint, options) as client:
        found = await client.cluster.statuses()
    failed = [one for one in found.values() if isinstance(one, MetadError)]
    if failed:
        raise failed[0]
    return account([one for one in found.values() if isinstance(one, StatusReply)])


def account_of(endpoint: str) -> Account:
    """A blocking :func:`ask_account`."""
    return run_async(ask_account(endpoint))


def show(measured: dict[str, Any]) -> None:
    """Print the result as a table."""
    title = f"{measured['verb']}: batch {measured['batch']:,}, {measured['in_flight']:,} in flight"
    shown = {key: value for key, value in measured.items() if not isinstance(value, dict)}
    output.table(title, ["", "value"], shown.items())
    for name, count in measured["errors_by_name"].items():
        output.say(f"{count:,} items failed with {name}")


async def _prepare(endpoint: str, settings: Settings, progress: Callable[[int], None]) -> None:
    async with open_client(endpoint, Options(deadline_s=60.0, connect_timeout_s=CONNECT_TIMEOUT_S)) as client:
        await prepare(client, settings, progress)


def _settings(load: Load, epoch: int, share: int = 0) -> Settings:
    return Settings(
        verb=load.verb,
        batch=load.batch,
        keys=load.keys,
        value_bytes=load.value_bytes,
        epoch=epoch,
        seed=load.seed,
        share=share,
        shares=load.processes,
        restore=load.restore,
        singles=load.singles,
        tenant=load.tenant,
    )


def _report(load: Load, result: Result, before: Account, after: Account) -> dict[str, Any]:
    latencies, seconds, items = result.latencies, result.seconds, result.items
    return {
        "verb": load.verb,
        "items": items,
        "items_per_s": output.rounded(result.items_per_s()),
        "entries_per_s": output.rounded(output.ratio(after.entries - before.entries, seconds)),
        "syncs_per_s": output.rounded(output.ratio(after.syncs - before.syncs, seconds)),
        "p50_ms": output.rounded(latencies.percentile_ms(50)),
        "p99_ms": output.rounded(latencies.percentile_ms(99)),
        "p999_ms": output.rounded(latencies.percentile_ms(99.9)),
        "max_ms": output.rounded(latencies.max_ms()),
        "errors": result.failed,
        "batch": load.batch,
        "in_flight": load.in_flight,
        "value_bytes": load.value_bytes,
        "processes": load.processes,
        "keys": load.keys,
        "rate": load.rate,
        "loop": "open" if load.rate else "closed",
        "restore": load.restore,
        "singles": load.singles,
        "seconds": output.rounded(seconds),
        "fsync": after.fsync,
        "nodes": after.nodes,
        "server_processes": after.processes,
        "replicas": after.replicas,
        "groups": after.groups,
        "server_cpu_us_per_item": output.rounded(output.ratio(after.cpu_us - before.cpu_us, items)),
        "server_rss_mib": output.rounded(after.rss_bytes / MIB),
        "client_cpu_us_per_item": output.rounded(output.ratio(result.client_cpu_s * 1e6, items)),
        "errors_by_name": result.errors,
        "leaders": after.leaders,
        "setting": output.machine() | {"seed": load.seed, "warm_up": "a tenth of the run, at most 2 s, not counted"},
        "versions": output.versions(),
    }
