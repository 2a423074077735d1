"""The blocking client: how a program opens, uses and closes it."""

from __future__ import annotations

import random
from types import TracebackType
from typing import Self, TypeVar

from metad_wire.messages import Message
from metad_wire.table import Table
from metad_wire.transport import Transport

from .. import client
from ..errors import ClosedError
from ..observer import Observer
from ..options import Options
from .namespaces import Cluster, KeyValue, Offsets, Records, Sessions
from .portal import Portal
from .verbs import Call, Twin

Record = TypeVar("Record", bound=Message)


class BlockingClient(Twin):
    """An opened client; :meth:`close` or leaving ``with`` closes it."""

    status = Call(client.Client.status)

    def __init__(self, portal: Portal, opened: client.Client) -> None:
        super().__init__(portal, opened)
        self._client = opened
        self.cluster = Cluster(portal, opened.cluster)
        self.sessions = Sessions(portal, opened.sessions)
        self.offsets = Offsets(portal, opened.offsets)
        self.kv = KeyValue(portal, opened.kv)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End what is pending with ClosedError and hang up. Safe to call again."""
        try:
            self._portal.run(self._client.close())
        except ClosedError:
            return
        finally:
            self._portal.stop()

    def reconnect(self) -> None:
        """Close all connections and open new ones, for example to use replaced certificates at once. Calls in flight
        are tried again."""
        self._portal.call(self._client.reconnect)

    def statistics(self) -> client.Statistics:
        """Counters and gauges of this client."""
        return self._portal.call(self._client.statistics)

    def table(self, table: Table[Record]) -> Records[Record]:
        """The records of a plain table. Raises ValueError if the table has rules of its own."""
        return Records(self._portal, self._client.table(table))


def connect(
    url: str,
    options: Options | None = None,
    *,
    observer: Observer | None = None,
    transport: Transport | None = None,
    rng: random.Random | None = None,
) -> BlockingClient:
    """Open a client; arguments and errors are those of :func:`metad_client.connect`, but it is opened at once. The
    ``observer`` is called in the client's own thread."""

    async def opened() -> client.Client:
        return await client.connect(url, options, observer=observer, transport=transport, rng=rng).open()

    portal = Portal()
    portal.start()
    try:
        return BlockingClient(portal, portal.run(opened()))
    except BaseException:
        portal.stop()
        raise
