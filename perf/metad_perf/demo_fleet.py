"""The fleet of the demo: simulated brokers, real SDK clients, and the expected final state of each session.

A broker's *life* is one epoch with one connection; a restart ends the life and begins the next one. A client that comes
back is one ``takeover`` call of its broker's life, which requests the stored properties and checks them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from metad_client import Client, Options
from metad_client.errors import ClosedError, MetadError
from metad_wire.messages import SessionKey, SessionProperties, SessionTakeoverItem

from .load.prepare import PREPARE_BATCH, pour
from .load.timing import SYSTEM
from .report.histogram import Latencies
from .target import open_client

TENANT = "demo"
DEADLINE_S = 60.0  # a client waits through a restart of the server
_EXPIRY_INTERVAL_S = 3_600
_TURN_CLIENTS = 250  # begun by one broker in one turn of the event loop


class Life:
    """One epoch of a broker, with its own connection."""

    def __init__(self, broker: str, epoch: int, client: Client) -> None:
        self.broker = broker
        self.epoch = epoch
        self.client = client

    async def store(self, payloads: dict[str, bytes], stored: Callable[[int], None]) -> None:
        """These clients connect for the first time, with payloads to store."""
        items = [
            SessionTakeoverItem(TENANT, client_id, True, SessionProperties(_EXPIRY_INTERVAL_S, payload))
            for client_id, payload in payloads.items()
        ]

        async def send(batch: Sequence[SessionTakeoverItem]) -> None:
            (await self.client.sessions.takeover_many(self.broker, self.epoch, batch)).raise_for_error()
            stored(len(batch))

        await pour(iter([items[at : at + PREPARE_BATCH] for at in range(0, len(items), PREPARE_BATCH)]), send)


class Broker:
    """A broker through its lives. ``clients`` are the client ids that it serves."""

    def __init__(self, endpoint: str, name: str, clients: Sequence[str]) -> None:
        self._endpoint = endpoint
        self.name = name
        self.clients = list(clients)
        self.epoch = 0
        self.life: Life | None = None
        self.retries = 0
        self.reconnects = 0

    async def begin(self) -> Life:
        """Begin the next life."""
        self.epoch += 1
        options = Options(deadline_s=DEADLINE_S, connect_timeout_s=DEADLINE_S, client_name=self.name)
        client = open_client(self._endpoint, options)
        self.life = Life(self.name, self.epoch, await client.open())
        return self.life

    async def end(self) -> None:
        """End the life at once: its requests in flight never get an answer."""
        life, self.life = self.life, None
        if life is not None:
            statistics = life.client.statistics()
            self.retries += statistics.retries
            self.reconnects += statistics.reconnects
            await life.client.close()


class Storm:
    """Clients coming back. ``latencies`` run from the begin of the storm, when every client wants back at once, to its
    answer.

    ``on_return`` is called after each return with the number of clients that are back.
    """

    def __init__(self, stored: dict[str, bytes], on_return: Callable[[int], None]) -> None:
        self._stored = stored
        self._on_return = on_return
        self.begin_ns = SYSTEM.now_ns()
        self.latencies = Latencies()
        self.returned = 0
        self.returned_to: Counter[str] = Counter()
        """The number of returns by broker."""
        self.damaged = 0
        self.errors: Counter[str] = Counter()

    async def come_back(self, life: Life, clients: Sequence[str]) -> None:
        """Bring back all clients as fast as possible, without waiting for any; ends when each is back, or the life is
        over."""
        async with asyncio.TaskGroup() as tasks:
            for at, client_id in enumerate(clients, 1):
                tasks.create_task(self._one(life, client_id))
                if at % _TURN_CLIENTS == 0:
                    await asyncio.sleep(0)  # lets the loop read answers while others still call

    async def _one(self, life: Life, client_id: str) -> None:
        try:
            taken = await life.client.sessions.takeover(life.broker, life.epoch, TENANT, client_id, restore=True)
        except ClosedError:
            return  # the broker died under its clients: its next life brings them back
        except MetadError as error:
            self.errors[error.name] += 1
            return
        self.latencies.note(SYSTEM.now_ns() - self.begin_ns)
        if taken.properties is None or taken.properties.payload != self._stored[client_id]:
            self.damaged += 1
        self.returned += 1
        self.returned_to[life.broker] += 1
        self._on_return(self.returned)


async def verify(
    endpoint: str, brokers: Sequence[Broker], stored: dict[str, bytes], read: Callable[[int], None]
) -> list[str]:
    """Read every session through a fresh connection; returns a line for each that is wrong. ``read`` is called with the
    number of sessions that were read."""
    wrong: list[str] = []
    async with open_client(endpoint, Options(deadline_s=DEADLINE_S)) as reader:
        for broker in brokers:
            found = await reader.sessions.get_many([SessionKey(TENANT, client_id) for client_id in broker.clients])
            found.raise_for_error()
            read(len(found))
            for client_id, session in zip(broker.clients, found, strict=True):
                if session is None:
                    wrong.append(f"{client_id} is gone")
                elif (session.broker, session.broker_epoch) != (broker.name, broker.epoch):
                    wrong.append(
                        f"{client_id} belongs to {session.broker} epoch {session.broker_epoch}, "
                        f"not {broker.name} epoch {broker.epoch}"
                    )
                elif not session.connected:
                    wrong.append(f"{client_id} is not connected")
                elif session.properties.payload != stored[client_id]:
                    wrong.append(f"{client_id} has lost its payload")
    return wrong
