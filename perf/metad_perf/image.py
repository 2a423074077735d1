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
from functools import partial
from typing import Any

import msgspec

from metad_client import Client, KvKey, Options

from .commands import Image
from .experiment.nodes import cpu_s, quiet, sampled
from .experiment.stage import Stage, conduct
from .load.prepare import prepare
from .load.workload import Settings, kv_keys
from .report import output
from .report.conclusion import conclude
from .target import open_client

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


def run(options: Image) -> int:
    """Returns the exit code: 1 if the image was wrong, or a node was not well."""
    made = conduct(options, partial(_play, options))
    code = conclude("image", made, options, "wrong")
    output.say(
        f"{made['records']:,} records in {made['seconds']:g} s; the nodes grew by {made['server_rss_growth_mib']:g} MiB"
        f" together."
    )
    return code


async def _play(options: Image, stage: Stage) -> dict[str, Any]:
    members = stage.members
    settings = Settings(verb="kv.get", batch=1_000, keys=options.records, value_bytes=options.value_bytes, epoch=1)
    with output.progress(f"write {options.records:,} records", options.records) as progress:
        await prepare(await stage.client(), settings, progress)
    for member in members.all:  # what the writes have taken and given back would serve the reads unseen
        await asyncio.to_thread(member.stop)
        await asyncio.to_thread(member.start)
        await stage.health.settle()
    await quiet(members.all)
    builder = stage.actor(open_builder, members.target)
    before = cpu_s(members.all)
    with sampled(members.all) as peak:
        built: Built = await builder.ask(Build(options.records, options.value_bytes))
    return {
        "seconds": built.seconds,
        "records_per_s": output.ratio(built.records, built.seconds),
        "server_rss_growth_mib": peak.growth_mib,
        "server_rss_growth_mib_each": peak.growth_mib_each,
        "records": built.records,
        "wrong": built.wrong,
        "client_cpu_s": built.cpu_s,
        "server_cpu_s": {name: after - before[name] for name, after in cpu_s(members.all).items()},
    }
