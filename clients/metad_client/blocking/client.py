"""The blocking client: how a program opens, uses and closes it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from metad_wire.messages import Message
from metad_wire.tables.table import PlainTable
from metad_wire.transport import Transport

from .. import client
from ..dispatch.states import ClientState
from ..errors import ClosedError
from ..observer import Observer
from ..options import Options
from ..watch.event import Several
from ..watch.filters import Named, Wanted
from ..watch.image import PROGRESS_S
from ..watch.streams import Start
from ..watch.typed import TableName
from ..watch.watch import BUFFER_BYTES
from .holding import HeldLease, Membership, Owned, OwnedResult, Route
from .namespaces import (
    Assignments,
    Audit,
    Backups,
    Brokers,
    Cluster,
    Config,
    Consumers,
    Features,
    InflightStates,
    KeyValue,
    Leases,
    Offsets,
    Plans,
    Principals,
    Quotas,
    Records,
    RetainedMessages,
    Roles,
    Schemas,
    Sequences,
    Sessions,
    Subscriptions,
    Tables,
    Tenants,
    Topics,
    Users,
    Wills,
)
from .portal import Portal
from .verbs import Call, Twin, forgetting
from .watching import Closing, Image, Snapshot, Watch

Record = TypeVar("Record", bound=Message)


class BlockingClient(Twin, Closing):
    """An opened client; :meth:`close` or leaving ``with`` closes it."""

    status = Call(client.Client.status)
    reconnect = Call(client.Client.reconnect)
    snapshot = Call(client.Client.snapshot, Snapshot)
    hold = Call(client.Client.hold, HeldLease)
    owned = Call(client.Client.owned, Owned)
    owned_many = Call(client.Client.owned_many, OwnedResult)
    consume = Call(client.Client.consume, Membership)
    routes = Call(client.Client.routes, Route)
    on_state = Call(client.Client.on_state, forgetting)

    def __init__(self, portal: Portal, opened: client.Client) -> None:
        super().__init__(portal, opened)
        self._client = opened
        self.cluster = Cluster(portal, opened.cluster)
        self.backups = Backups(portal, opened.backups)
        self.brokers = Brokers(portal, opened.brokers)
        self.sessions = Sessions(portal, opened.sessions)
        self.subscriptions = Subscriptions(portal, opened.subscriptions)
        self.inflight = InflightStates(portal, opened.inflight)
        self.wills = Wills(portal, opened.wills)
        self.offsets = Offsets(portal, opened.offsets)
        self.consumers = Consumers(portal, opened.consumers)
        self.kv = KeyValue(portal, opened.kv)
        self.leases = Leases(portal, opened.leases)
        self.sequences = Sequences(portal, opened.sequences)
        self.retained = RetainedMessages(portal, opened.retained)
        self.tables = Tables(portal, opened.tables)
        self.tenants = Tenants(portal, opened.tenants)
        self.assignments = Assignments(portal, opened.assignments)
        self.plans = Plans(portal, opened.plans)
        self.roles = Roles(portal, opened.roles)
        self.principals = Principals(portal, opened.principals)
        self.quotas = Quotas(portal, opened.quotas)
        self.features = Features(portal, opened.features)
        self.audit = Audit(portal, opened.audit)
        self.topics = Topics(portal, opened.topics)
        self.schemas = Schemas(portal, opened.schemas)
        self.users = Users(portal, opened.users)
        self.config = Config(portal, opened.config)

    def close(self) -> None:
        """End what is pending with ClosedError and hang up. Safe to call again."""
        try:
            self._portal.run(self._client.close())
        except ClosedError:
            return
        finally:
            self._portal.stop()

    def watch(
        self,
        tables: Wanted[Named] | Several[Wanted[Named]] | Several[Wanted[TableName]] = (),
        *,
        tenant: str | None = None,
        prefix: str = "",
        keys: Sequence[Message | tuple[str | int, ...]] | None = None,
        broker: str = "",
        token: str | None = None,
        until: str | None = None,
        start: Start = "now",
        previous: bool = False,
        keys_only: bool = False,
        coalesce: bool = False,
        progress_s: float | None = None,
        idle_timeout_s: float | None = None,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> Watch[Named]:
        """The changes of records, as they are made (without ``async`` in a blocking client)::

            async for batch in m.watch("kv", tenant="config", token=stored):
                for event in batch.events:
                    print(event.kind.name, event.key, event.record)
                stored = batch.token

        ``tables``: names of tables, declarations of plain ones, or :class:`Watched` for what is wanted of one.
        ``tenant``, ``prefix`` and ``broker`` are those of :class:`Watched`, and hold for all tables that are named
        alone. ``keys``: these records only (:class:`KvKey`, …; of a declared table the fields).

        It begins behind ``token``, which an earlier watch of the same kinds of tables gave; else now, or with
        ``start="snapshot"`` with the records as they are, followed by all changes. Freshness: what was acknowledged
        before the watch was opened is in the snapshot, and does not follow where it begins now. ``previous``: events
        have the record before, too. ``keys_only``: no records. ``coalesce``: of several changes of a key that are ready
        at once, only the newest. ``progress_s``: how often, without events, a batch says how far the watch is.
        ``until``: a later token, at which the watch ends: with both, it delivers exactly what happened in between,
        however often.

        ``idle_timeout_s``: end with DeadlineExceededError if a group has had no stream for so long; without it the
        watch tries for ever, and :attr:`state` says how the client is. ``buffer_bytes``: what may come before the
        program takes it, about.

        Raises InvalidRequestError if the arguments make no sense. The iteration raises what a node refuses for good.
        """
        return Watch(
            self._portal,
            self._portal.call(
                self._client.watch,
                tables,
                tenant=tenant,
                prefix=prefix,
                keys=keys,
                broker=broker,
                token=token,
                until=until,
                start=start,
                previous=previous,
                keys_only=keys_only,
                coalesce=coalesce,
                progress_s=progress_s,
                idle_timeout_s=idle_timeout_s,
                buffer_bytes=buffer_bytes,
            ),
        )

    def image(
        self,
        tables: Wanted[Named] | Several[Wanted[Named]] | Several[Wanted[TableName]] = (),
        *,
        tenant: str | None = None,
        prefix: str = "",
        keys: Sequence[Message | tuple[str | int, ...]] | None = None,
        broker: str = "",
        progress_s: float = PROGRESS_S,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> Image[Named]:
        """Tables as they are, in this process, kept current by a watch (without ``await`` in a blocking client)::

            image = m.image(["kv", "session"], tenant="acme")
            await image.caught_up()
            session = image["session"].get(SessionKey("acme", "device-1"))

        The arguments are those of :meth:`watch`; ``progress_s``: how often the servers say how current it is. Raises
        InvalidRequestError if they make no sense.
        """
        return Image(
            self._portal,
            self._portal.call(
                self._client.image,
                tables,
                tenant=tenant,
                prefix=prefix,
                keys=keys,
                broker=broker,
                progress_s=progress_s,
                buffer_bytes=buffer_bytes,
            ),
        )

    def statistics(self) -> client.Statistics:
        """Counters and gauges of this client. May be called in any thread, and after the client is closed."""
        return self._client.statistics()

    @property
    def state(self) -> ClientState:
        """Whether the client reaches the cluster, and every group has a leader that answers."""
        self._portal.check()
        return self._client.state

    @property
    def states(self) -> dict[str, ClientState]:
        """:attr:`state` for each kind of groups: ``metadata`` (brokers, the map), ``data`` (sessions, key-value, leases
        and more), ``offset``. SUSPENDED: one of them has had no leader that answers for a second, so no quorum. Empty
        before the map is known."""
        self._portal.check()
        return self._client.states

    @property
    def alone_s(self) -> float:
        """For how many seconds no node has taken requests; 0 while one does. A broker whose life is SUSPENDED meanwhile
        may be the only one that is cut off."""
        self._portal.check()
        return self._client.alone_s

    def table(self, table: PlainTable[Record]) -> Records[Record]:
        """The records of a table that :meth:`Tables.declare` or :meth:`Tables.open` has returned. Raises
        InvalidRequestError if it is none."""
        return Records(self._portal, self._client.table(table))


def connect(
    url: str,
    options: Options | None = None,
    *,
    observer: Observer | None = None,
    transport: Transport | None = None,
    rng: random.Random | None = None,
    clock: Callable[[], float] | None = None,
) -> BlockingClient:
    """Open a client; arguments and errors are those of :func:`metad_client.connect`, but it is opened at once. The
    ``observer`` is called in the client's own thread."""

    async def opened() -> client.Client:
        return await client.connect(url, options, observer=observer, transport=transport, rng=rng, clock=clock).open()

    portal = Portal()
    portal.start()
    try:
        return BlockingClient(portal, portal.run(opened()))
    except BaseException:
        portal.stop()
        raise
