"""``metad-perf image``: how long a fresh client takes for a local image of many records, and what that costs the nodes.

The nodes hold key-value records in many namespaces, and were restarted since these were written, so that their memory
grows by all that the image takes, caches included. The client runs in a process of its own; its time counts from the
call of ``image`` on a client that is connected until the image is caught up. Afterwards the image is counted, and some
of its records are compared with what was written.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from metad_client import Client, KvKey, Options

from .errors import UsageError
from .load.prepare import prepare
from .load.workload import Settings, kv_keys
from .report import output
from .running import run_async
from .spawn import Shape
from .target import open_client
from .watch.actor import Actor
from .watch.nodes import cpu_s, quiet, running, sampled

_WITHIN_S = 600.0
_COMPARED = 1_000


class Build(msgspec.Struct, frozen=True):
    """Order: build an image of all key-values (:class:`Built`)."""

    records: int
    value_bytes: int


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """``wrong``: records that the image lacks, has too many, or has with another value."""

    seconds: float
    cpu_s: float
    records: int
    wrong: int


class Builder:
    """The client's process."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def carry_out(self, order: Build) -> Built:
        """Do it."""
        begin, begin_cpu_s = time.perf_counter(), time.process_time()
        image = self._client.image(["kv"])
        await image.caught_up(_WITHIN_S)
        seconds, used_s = time.perf_counter() - begin, time.process_time() - begin_cpu_s
        records = image["kv"]
        wrong = abs(len(records) - order.records)
        keys = kv_keys(order.records)
        for at in range(0, order.records, max(1, order.records // _COMPARED)):
            namespace, key = keys[at]
            record = records.get(KvKey(namespace, key))
            wrong += record is None or len(record.value) != order.value_bytes
        await image.close()
        return Built(seconds=seconds, cpu_s=used_s, records=len(records), wrong=wrong)


@contextlib.asynccontextmanager
async def open_builder(target: str) -> AsyncIterator[Builder]:
    """The role of the client's process."""
    async with open_client(target, Options(client_name="image")) as client:
        yield Builder(client)


def run(*, records: int, value_bytes: int, shape: Shape, config: Path | None, json: Path | None) -> int:
    """Returns the exit code: 1 if the image was wrong, or a node was not well."""
    if records < 1 or value_bytes < 1:
        raise UsageError("--records and --value-bytes must be at least 1")
    problems: list[str] = []
    found = run_async(_run(records, value_bytes, shape.checked(), config, problems))
    made: dict[str, Any] = output.rounded(
        found
        | {
            "value_bytes": value_bytes,
            "problems": problems,
            "nodes": shape.nodes,
            "groups": shape.groups,
            "scheme": shape.scheme,
            "setting": output.machine(),
            "versions": output.versions(),
        }
    )
    output.write_json(json, made)
    output.table("image", ["", "value"], [row for row in made.items() if not isinstance(row[1], dict | list)])
    output.say(
        f"{made['records']:,} records in {made['seconds']:g} s; the nodes grew by {made['server_rss_growth_mib']:g} MiB"
        f" together."
    )
    for line in problems:
        output.say(line)
    return 1 if made["wrong"] or problems else 0


async def _run(
    records: int, value_bytes: int, shape: Shape, config: Path | None, problems: list[str]
) -> dict[str, Any]:
    async with running(
        shape.nodes, groups=shape.groups, config=config, scheme=shape.scheme, problems=problems
    ) as cluster:
        members = cluster.members
        settings = Settings(verb="kv.get", batch=1_000, keys=records, value_bytes=value_bytes, epoch=1)
        async with open_client(members.target, Options(deadline_s=60.0)) as loader:
            with output.progress(f"write {records:,} records", records) as progress:
                await prepare(loader, settings, progress)
        for member in members.all:  # what the writes have taken and given back would serve the reads unseen
            await asyncio.to_thread(member.stop)
            await asyncio.to_thread(member.start)
            await cluster.health.settle()
        await quiet(members.all)
        builder = Actor(open_builder, members.target)
        try:
            before = cpu_s(members.all)
            with sampled(members.all) as peak:
                built: Built = await builder.ask(Build(records, value_bytes))
            used = {name: after - before[name] for name, after in cpu_s(members.all).items()}
        finally:
            await asyncio.to_thread(builder.stop)
    return {
        "seconds": built.seconds,
        "records_per_s": output.ratio(built.records, built.seconds),
        "server_rss_growth_mib": peak.growth_mib,
        "server_rss_growth_mib_each": peak.growth_mib_each,
        "fsync": cluster.fsync,
        "records": built.records,
        "wrong": built.wrong,
        "client_cpu_s": built.cpu_s,
        "server_cpu_s": used,
    }
