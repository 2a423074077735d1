"""The load sources of the comparison with etcd: puts and transactions over grpc.aio, encoded before the clock starts.

etcd's client costs as little as Python allows: messages are made ahead (a pool that is sent round and round), replies
are only checked for success, and calls are spread over several connections.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import grpc

from ..load.draw import Values
from ..load.loop import Source
from ..load.worker import Plan
from ..load.workload import DIFFERENT, Settings, kv_keys
from .etcd_wire import PUT, STATUS, TXN, MemberStatus, put_request, txn_of_puts, txn_succeeded

CONNECTIONS_MAX = 4  # of each process; at most its requests in flight
POOL_BYTES = 48 * 1024 * 1024  # of requests made ahead, per process
CALL_TIMEOUT_S = 30.0
_CHANNEL_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own for each channel
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)


class EtcdPuts:
    """``batch`` 1: Put; more: one transaction of so many puts."""

    def __init__(self, channels: Sequence[grpc.aio.Channel], settings: Settings) -> None:
        self._count = settings.batch
        self._singles = settings.batch == 1
        self._pool = itertools.cycle(requests(settings))
        # No serializers: requests and replies are bytes.
        self._calls = itertools.cycle([one.unary_unary(PUT if self._singles else TXN) for one in channels])

    def batch(self) -> bytes:
        """The next request of the pool."""
        return next(self._pool)

    async def send(self, batch: bytes) -> Sequence[str]:
        try:
            reply = await next(self._calls)(batch, timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            return [f"grpc {error.code().name}"] * self._count
        if self._singles:
            return () if reply else (DIFFERENT,)  # a PutResponse has a header
        return () if txn_succeeded(reply) else [DIFFERENT] * self._count


def requests(settings: Settings) -> list[bytes]:
    """Enough requests that no cache can hold their values; random keys, none twice in a request."""
    rng = random.Random(f"{settings.seed}/{settings.share}")
    keys = [f"{namespace}/{key}".encode() for namespace, key in kv_keys(settings.keys)]
    values = Values(rng, settings.value_bytes)
    count = max(8, POOL_BYTES // (settings.batch * (settings.value_bytes + 64)))
    if settings.batch == 1:
        return [put_request(rng.choice(keys), values.one()) for _ in range(count)]
    return [
        txn_of_puts(zip(rng.sample(keys, settings.batch), values.pick(settings.batch), strict=True))
        for _ in range(count)
    ]


@asynccontextmanager
async def open_etcd(plan: Plan) -> AsyncIterator[Source]:
    """Load on etcd, over several connections; for :mod:`metad_perf.load.worker`."""
    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(plan.endpoint, options=_CHANNEL_OPTIONS))
            for _ in range(min(CONNECTIONS_MAX, plan.in_flight))
        ]
        for channel in channels:
            await channel.channel_ready()
        yield EtcdPuts(channels, plan.settings)


async def member_status(endpoint: str, timeout_s: float) -> MemberStatus | None:
    """A member's status; None if it does not answer."""
    async with grpc.aio.insecure_channel(endpoint) as channel:
        ask: Callable[..., grpc.aio.UnaryUnaryCall] = channel.unary_unary(STATUS)
        try:
            return MemberStatus(await ask(b"", timeout=timeout_s))
        except grpc.aio.AioRpcError:
            return None
