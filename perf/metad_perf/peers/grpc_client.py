"""The baseline's load sources: metad's own workloads as protobuf messages over one grpc.aio channel."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc

from metad_wire.errors import ERRORS
from metad_wire.program.running import run_async

from ..errors import PreparationError
from ..load.draw import Values
from ..load.loop import Source
from ..load.prepare import PREPARE_BATCH, pour
from ..load.worker import Plan
from ..load.workload import ABSENT, BROKER, DIFFERENT, EXPIRY_INTERVAL_S, TENANT, Settings, session_names
from .baseline import CHANNEL_OPTIONS, pb, stubs


class GrpcSessionUpdate:
    """Like :class:`metad_perf.load.workload.SessionUpdate`: same keys and values, other messages."""

    def __init__(self, stub: Any, settings: Settings) -> None:
        rng = random.Random(f"{settings.seed}/{settings.share}")
        self._rng, self._stub, self._settings = rng, stub, settings
        self._names = session_names(settings.keys)
        self._values = Values(rng, settings.value_bytes)

    def batch(self) -> Any:
        """Uniformly random sessions."""
        count = self._settings.batch
        return pb.UpdateRequest(
            broker=BROKER,
            broker_epoch=self._settings.epoch,
            items=[
                pb.UpdateItem(
                    tenant=TENANT,
                    client_id=name,
                    properties=pb.Properties(expiry_interval_s=EXPIRY_INTERVAL_S, payload=value),
                )
                for name, value in zip(self._names.pick(self._rng, count), self._values.pick(count), strict=True)
            ],
        )

    async def send(self, batch: Any) -> Sequence[str]:
        try:
            reply = await self._stub.Update(batch)
        except grpc.aio.AioRpcError as error:
            return [f"grpc {error.code().name}"] * self._settings.batch
        return [ERRORS[one.code].name for one in reply.errors] if reply.errors else ()


class GrpcSessionGet:
    """Like :class:`metad_perf.load.workload.SessionGet`: same keys, other messages, the same check of the answer."""

    def __init__(self, stub: Any, settings: Settings) -> None:
        self._rng, self._stub, self._settings = random.Random(f"{settings.seed}/{settings.share}"), stub, settings
        self._names = session_names(settings.keys)

    def batch(self) -> Any:
        """Uniformly random sessions."""
        names = self._names.pick(self._rng, self._settings.batch)
        return pb.GetRequest(items=[pb.Key(tenant=TENANT, client_id=name) for name in names])

    async def send(self, batch: Any) -> Sequence[str]:
        try:
            reply = await self._stub.Get(batch)
        except grpc.aio.AioRpcError as error:
            return [f"grpc {error.code().name}"] * self._settings.batch
        size = self._settings.value_bytes
        return [
            DIFFERENT if one.client_id else ABSENT
            for asked, one in zip(batch.items, reply.sessions, strict=True)
            if one.client_id != asked.client_id or len(one.properties.payload) != size
        ]


SOURCES: dict[str, Callable[[Any, Settings], Source]] = {
    "session.get": GrpcSessionGet,
    "session.update": GrpcSessionUpdate,
}


@asynccontextmanager
async def _stub(endpoint: str) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(endpoint, options=CHANNEL_OPTIONS) as channel:
        await channel.channel_ready()
        yield stubs.SessionsStub(channel)


@asynccontextmanager
async def open_grpc(plan: Plan) -> AsyncIterator[Source]:
    """Load on the baseline; for :mod:`metad_perf.load.worker`."""
    async with _stub(plan.endpoint) as stub:
        yield SOURCES[plan.settings.verb](stub, plan.settings)


def cpu_us(endpoint: str) -> int:
    """CPU time of the server process so far."""

    async def ask() -> int:
        async with _stub(endpoint) as stub:
            return int((await stub.Status(pb.StatusRequest())).cpu_us)

    return run_async(ask())


async def fill(endpoint: str, epoch: int, count: int, value_bytes: int, progress: Callable[[int], None]) -> None:
    """Like :func:`metad_perf.load.prepare.fill_sessions`."""
    names = session_names(count)
    values = Values(random.Random(0), value_bytes)
    async with _stub(endpoint) as stub:

        async def send(chunk: Sequence[str]) -> None:
            items = [
                pb.TakeoverItem(
                    tenant=TENANT,
                    client_id=name,
                    clean_start=True,
                    properties=pb.Properties(expiry_interval_s=EXPIRY_INTERVAL_S, payload=value),
                )
                for name, value in zip(chunk, values.pick(len(chunk)), strict=True)
            ]
            reply = await stub.Takeover(pb.TakeoverRequest(broker=BROKER, broker_epoch=epoch, items=items))
            if reply.errors:
                raise PreparationError(f"{len(reply.errors)} sessions of a batch could not be created")
            progress(len(chunk))

        await pour((names[at : at + PREPARE_BATCH] for at in range(0, count, PREPARE_BATCH)), send)
