"""metad itself as a peer: three nodes, and the SDK.

The items of a request are made before the clock starts; the SDK encodes, splits by group and checks in the measured
time. A batch is one call of the SDK, which becomes a request for each group. A call of one item is the SDK's single
verb, which joins simultaneous calls. A session is a session, and a takeover is the verb of that name, with restoring.
A lapsing session begins with a takeover and ends when its broker says that its client has gone.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path

from metad_client import Client as Sdk
from metad_client import Options
from metad_client.results import WriteResult
from metad_wire import messages as m
from metad_wire.errors import MetadError

from ..load.measure import account_of, epoch_now
from ..load.workload import ABSENT, EXPIRY_INTERVAL_S, TENANT, failures
from ..spawn import Server, Shape, temporary_server
from ..target import open_client
from .peer import CALL_TIMEOUT_S, LAPSING_S, Answer, Call, Lifeless, Record

_BATCH_ITEMS = 1_000
_WAITING_MAX = 10_000
_LAPSING_BROKER = "broker-lapsing"


class MetadNodes:
    """Nodes of our own; ``config`` and ``shape`` as for every command."""

    def __init__(self, shape: Shape, config: Path | None = None) -> None:
        self._shape = shape
        self._temporary: AbstractContextManager[Server] = temporary_server(config=config, shape=shape)
        self._server: Server | None = None

    def start(self) -> None:
        """Start them in a temporary directory of their own."""
        self._server = self._temporary.__enter__()
        self._server.start()

    def endpoints(self) -> str:
        """All nodes; the SDK finds each group's leader."""
        return self._running().target

    def settings(self) -> dict[str, object]:
        """As the nodes report them."""
        account = account_of(self.endpoints())
        return {
            "nodes": account.nodes,
            "processes": account.processes,
            "groups": account.groups,
            "replicas": account.replicas,
            "fsync": account.fsync,
            "leaders": account.leaders,
            "transport": "metad's protocol over TCP, no TLS, to each group's leader",
        }

    def cpu_us(self) -> int:
        """By the nodes' own accounts."""
        return account_of(self.endpoints()).cpu_us

    def rss_bytes(self) -> int:
        """Resident memory of the nodes."""
        return self._running().rss_bytes()

    def kill_leader(self) -> None:
        """The node that leads most groups; its supervisor restarts it."""
        leaders = account_of(self.endpoints()).leaders
        most = max(leaders, key=lambda node: leaders[node])
        os.kill(self._running().pids[most], signal.SIGKILL)

    def stop(self) -> None:
        """Drain, and in any case remove what is left."""
        server, self._server = self._server, None
        if server is None:
            return
        try:
            server.stop()
        finally:
            self._temporary.__exit__(None, None, None)

    def _running(self) -> Server:
        assert self._server is not None, "not started"
        return self._server


class MetadClient(Lifeless):
    """See :class:`~metad_perf.peers.peer.Client`. Keys are ``NAMESPACE/KEY``."""

    def __init__(self, sdk: Sdk) -> None:
        self._sdk = sdk
        self._epoch = epoch_now()
        self._begun: set[str] = set()

    def insert(self, records: Sequence[Record]) -> Call:
        """As put."""
        return self.put(records)

    def put(self, records: Sequence[Record]) -> Call:
        """kv.put."""
        kv, items = self._sdk.kv, [m.KvPutItem(*_key(key), value) for key, value in records]
        if len(items) == 1:
            (one,) = items

            async def single() -> Answer:
                return Answer() if await kv.put(one.namespace, one.key, one.value) else Answer((ABSENT,))

            return _call(single, 1)

        async def many() -> Answer:
            return _written(await kv.put_many(items))

        return _call(many, len(items))

    def get(self, keys: Sequence[str]) -> Call:
        """kv.get."""
        kv, items = self._sdk.kv, [m.KvKey(*_key(key)) for key in keys]
        if len(items) == 1:
            (one,) = items

            async def single() -> Answer:
                record = await kv.get(one.namespace, one.key)
                return Answer(values=(None if record is None else record.value,))

            return _call(single, 1)

        async def many() -> Answer:
            records = await kv.get_many(items)
            records.raise_for_error()
            return Answer(values=[None if one is None else one.value for one in records])

        return _call(many, len(items))

    def delete(self, keys: Sequence[str]) -> Call:
        """kv.delete."""
        items = [m.KvDeleteItem(*_key(key)) for key in keys]

        async def call() -> Answer:
            return _written(await self._sdk.kv.delete_many(items))

        return _call(call, len(items))

    def create(self, sessions: Sequence[Record], owner: str) -> Call:
        """session.takeover with a clean start."""
        return self._begin(sessions, owner, EXPIRY_INTERVAL_S)

    def take_over(self, sessions: Sequence[str], owner: str) -> Call:
        """session.takeover with restoring."""
        items = [m.SessionTakeoverItem(TENANT, name) for name in sessions]

        async def call() -> Answer:
            result = await self._sdk.sessions.takeover_many(owner, self._epoch, items, restore=True)
            values = [None if one is None else one.payload for one in result.restored]
            before = [None if one is None else one.broker.encode() for one in map(result.previous, range(len(items)))]
            return Answer(failures(result) or [ABSENT] * values.count(None), values, before)

        return _call(call, len(items))

    def owners(self, sessions: Sequence[str]) -> Call:
        """session.get."""
        return self._read(sessions, lambda session: session.broker.encode())

    def begin(self, sessions: Sequence[Record]) -> Call:
        """session.takeover with a clean start."""
        begin = self._begin(sessions, _LAPSING_BROKER, LAPSING_S)
        names = [name for name, _ in sessions]

        async def call() -> Answer:
            self._begun.update(names)
            return await begin()

        return call

    def alive(self, sessions: Sequence[str]) -> Call:
        """session.get."""
        return self._read(sessions, lambda session: session.properties.payload)

    def end(self, sessions: Sequence[str]) -> Call:
        """session.disconnect, with an expiry interval of 0."""
        items = [m.SessionDisconnectItem(TENANT, name, expiry_interval_s=0) for name in sessions]
        one = items[0] if len(items) == 1 else None

        async def call() -> Answer:
            self._begun.difference_update(sessions)
            if one is not None:
                namespace = self._sdk.sessions
                await namespace.disconnect(_LAPSING_BROKER, self._epoch, TENANT, one.client_id, expiry_interval_s=0)
                return Answer()
            return _written(await self._sdk.sessions.disconnect_many(_LAPSING_BROKER, self._epoch, items))

        return _call(call, len(items))

    async def abandon(self) -> None:
        """The broker says that the clients have gone; their time runs."""
        items = [m.SessionDisconnectItem(TENANT, name) for name in sorted(self._begun)]
        if items:
            (await self._sdk.sessions.disconnect_many(_LAPSING_BROKER, self._epoch, items)).raise_for_error()

    def _begin(self, sessions: Sequence[Record], owner: str, expiry_interval_s: int) -> Call:
        items = [
            m.SessionTakeoverItem(TENANT, name, True, m.SessionProperties(expiry_interval_s, value))
            for name, value in sessions
        ]
        if len(items) == 1:
            (one,) = items

            async def single() -> Answer:
                namespace = self._sdk.sessions
                await namespace.takeover(
                    owner, self._epoch, TENANT, one.client_id, clean_start=True, properties=one.properties
                )
                return Answer()

            return _call(single, 1)

        async def many() -> Answer:
            return _written(await self._sdk.sessions.takeover_many(owner, self._epoch, items))

        return _call(many, len(items))

    def _read(self, sessions: Sequence[str], value_of: Callable[[m.Session], bytes]) -> Call:
        keys = [m.SessionKey(TENANT, name) for name in sessions]

        async def call() -> Answer:
            found = await self._sdk.sessions.get_many(keys)
            found.raise_for_error()
            return Answer(values=[None if one is None else value_of(one) for one in found])

        return _call(call, len(keys))


@asynccontextmanager
async def open_metad_client(endpoints: str, in_flight: int) -> AsyncIterator[MetadClient]:
    """The SDK with its defaults, and room for all that is in flight."""
    options = Options(
        deadline_s=CALL_TIMEOUT_S,
        batch_items=_BATCH_ITEMS,
        waiting_max=max(_WAITING_MAX, 4 * in_flight),
        client_name="metad-perf",
    )
    async with open_client(endpoints, options) as sdk:
        yield MetadClient(sdk)


def _call(work: Callable[[], Awaitable[Answer]], count: int) -> Call:
    async def call() -> Answer:
        try:
            return await work()
        except MetadError as error:
            return Answer([error.name] * count)

    return call


def _written(result: WriteResult) -> Answer:
    return Answer(failures(result))


def _key(key: str) -> tuple[str, str]:
    namespace, _, name = key.partition("/")
    return namespace, name
