"""The client: how a program opens, uses and closes it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import Self

import msgspec

from metad_wire import methods
from metad_wire.cluster import SLOTS, GroupId
from metad_wire.messages import Message, SessionProperties, SessionTakeoverItem, Status, StatusReply
from metad_wire.tables.table import PlainTable
from metad_wire.transport import Transport

from .assignment.assignments import Assignments
from .assignment.plans import Plans
from .assignment.serving import Author, OnElect, OnFollow, OnLead, OnRelease, Serving
from .broker_life import counting_clock
from .connections.manager import ConnectionManager
from .connections.transport_choice import TransportChoice, credentials_of, transports_of
from .dispatch.calls.call import Meter
from .dispatch.dispatcher import Dispatcher
from .dispatch.states import ClientState
from .endpoint import name_of, parse_url, scheme_of
from .errors import ClosedError, ConnectionLostError, InternalError, InvalidRequestError, MetadError, another
from .families.audit import Audit
from .families.backups import Backups
from .families.config import Config
from .families.features import Features
from .families.principals import Principals
from .families.quotas import Quotas
from .families.roles import Roles
from .families.schemas import Schemas
from .families.tenants import Tenants
from .families.topics import Topics
from .families.users import Users
from .holding.lease import HeldLease
from .holding.membership import Assign, Membership
from .holding.owned import Owned, OwnedResult, Ownership
from .namespaces.brokers import Brokers
from .namespaces.cluster import Cluster
from .namespaces.consumers import Consumers
from .namespaces.inflight import InflightStates
from .namespaces.kv import KeyValue
from .namespaces.leases import Leases
from .namespaces.offsets import Offsets
from .namespaces.retained import RetainedMessages
from .namespaces.sequences import Sequences
from .namespaces.sessions import Sessions
from .namespaces.subscriptions import Subscriptions
from .namespaces.tables import Record, Records, Tables
from .namespaces.wills import Wills
from .observer import Observer
from .options import Options
from .requests.requests import Requests
from .routes import Route
from .watch.event import Several
from .watch.filters import Named, Wanted, Watched
from .watch.image import PROGRESS_S, Image, open_image
from .watch.snapshot import IDLE_TIMEOUT_S, Snapshot, open_snapshot
from .watch.streams import Start
from .watch.typed import AnyTable, TableName
from .watch.watch import BUFFER_BYTES, Watch, open_watch

# After close, what is buffered has this long to leave.
CLOSE_GRACE_S = 1.0


class VerbStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of the requests of one verb since the client was opened. A request counts once it has ended. Single
    calls that share one count as one, and a long ``*_many`` call as several."""

    outcomes: dict[str, int]
    """``ok``, the name of the error (``deadline_exceeded`` is a deadline that was missed), or ``abandoned`` if the
    caller was cancelled -> requests. ``stale_route``: slots have moved, and the items were sent as new requests."""
    buckets: list[int]
    """Requests by how long they took, from the call until its end, with all waits and attempts: at most
    ``BOUNDS_S[i]`` and more than the bound before; the last ones took longer than all bounds."""
    seconds: float
    """That all of them took together."""
    items: int
    """Of the requests that were batches."""
    refused: int
    """Of these, the items that a request with the outcome ``ok`` did not do; their callers got an error for each."""
    retries: dict[str, int]
    """The name of the error that was the reason -> further attempts, each after a wait."""
    redirects: int
    """Further attempts that were made at once, by another node: the first did not lead, or did not answer."""


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since the client was opened, and gauges of now."""

    requests: int
    """Requests accepted from callers; a batch of singles is one."""
    answers: int
    """Answers received, errors included."""
    retries: int
    """Attempts beyond each request's first."""
    batches: int
    """Requests that were made of singles."""
    connects: int
    """Handshakes that succeeded."""
    reconnects: int
    """Those after the first to each node."""
    nodes: int
    """Nodes connected to now."""
    in_flight: int
    """Requests sent and unanswered now."""
    waiting: int
    """Requests that wait for room or for their next attempt now."""
    turned_away: int
    """Answers that said that a node has no room. A request may be turned away more than once."""
    returning: int
    """Those of the waiting requests that were told when to come back, and wait for that time."""
    endpoint: str
    """host:port of a node connected to now, empty while there is none."""
    via: dict[str, str]
    """Node id -> the transport of its connection: ``tcp``, ``tls`` or ``quic``."""
    changes: int
    """Connections replaced by one over another transport, because the path changed."""
    disconnects: int
    """Connections that were lost; those that ended in order are not among them."""
    unreachable: int
    """Attempts to connect that failed."""
    state: str
    """``connected``, ``suspended`` or ``lost``, as ``m.state``."""
    kinds: dict[str, str]
    """The same for each kind of groups, as ``m.states``."""
    alone_s: float
    """For how many seconds no node has taken requests; 0 while one does."""
    verbs: dict[str, VerbStatistics]
    """By verb, for example ``kv.put``: those that there was a request of."""
    watches: int
    """Watches, images and snapshots that are open now."""
    watch_batches: dict[str, int]
    """Kind of batch (``changes``, ``snapshot``, ``gap``, ``progress``) -> batches that watches and images were given.
    A ``gap``: changes were lost, and a snapshot follows."""
    watch_resumes: int
    """Streams of groups that went on after an interruption, at the same replica or another."""
    watch_age_s: float | None
    """For how long what was delivered may have lacked something, of the watch or image that is behind most; None if
    none has ``progress_s``, or one of them does not know yet."""


class Client:
    """Connections to metad that keep themselves up. Use :func:`connect`, or :meth:`open` and :meth:`close`.

    Belongs to the event loop it was made in: a call in another one, for example in another thread or after that loop
    was closed, raises ForeignCallError (see :mod:`metad_client.blocking`), and one in a fork ForkedError.
    """

    def __init__(
        self,
        endpoints: Sequence[tuple[str, int]],
        options: Options,
        *,
        transports: TransportChoice,
        rng: random.Random,
        observer: Observer | None = None,
        clock: Callable[[], float] = counting_clock,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._endpoints = list(endpoints)
        self._options = options
        self._rng = rng
        self._clock = clock
        self._dispatcher = Dispatcher(options, rng, observer, by_quic=transports.by_quic)
        self._manager = ConnectionManager(endpoints, transports, self._dispatcher, options, rng)
        self._requests = Requests(self._dispatcher, options)
        self._first: asyncio.Future[None] = self._loop.create_future()  # there is a connection, and perhaps a map
        self._runner: asyncio.Task[None] | None = None
        self.cluster = Cluster(self._requests, self._dispatcher)
        self.backups = Backups(self._requests)
        self.brokers = Brokers(self._requests, self._dispatcher, clock)
        self.sessions = Sessions(self._requests)
        self.subscriptions = Subscriptions(self._requests)
        self.inflight = InflightStates(self._requests)
        self.wills = Wills(self._requests)
        self.offsets = Offsets(self._requests)
        self.consumers = Consumers(self._requests)
        self.kv = KeyValue(self._requests)
        self.leases = Leases(self._requests)
        self.sequences = Sequences(self._requests)
        self.retained = RetainedMessages(self._requests)
        self.tables = Tables(self._requests)
        self.tenants = Tenants(self._requests)
        self.assignments = Assignments(self._requests, self.brokers, options, rng)
        self.plans = Plans(self._requests)
        self.roles = Roles(self._requests)
        self.principals = Principals(self._requests)
        self.quotas = Quotas(self._requests)
        self.features = Features(self._requests)
        self.audit = Audit(self._requests)
        self.topics = Topics(self._requests)
        self.schemas = Schemas(self._requests)
        self.users = Users(self._requests)
        self.config = Config(self._requests)
        self._ownership = Ownership(
            self.sessions,
            lambda broker: self.watch(Watched("session", broker=broker, rows=("owner",))),
            options.deadline_s,
        )

    async def open(self) -> Self:
        """Connect to a node, and ask it for the others. Raises the last endpoint's error if none is reached within
        ``connect_timeout_s``, ClosedError if the client is closed, also meanwhile."""
        self._dispatcher.home.check()
        self._dispatcher.open()
        if self._runner is not None:
            raise RuntimeError("a client is opened once")
        # With a child for each node, the client's only task; everything else is callbacks. close() awaits it.
        self._runner = asyncio.create_task(self.run(), name="metad-client")
        try:
            async with asyncio.timeout(self._options.connect_timeout_s or None):
                await asyncio.shield(self._first)
        except TimeoutError:
            await self.close()
            names = ", ".join(name_of(endpoint) for endpoint in self._manager.asked)
            lost = ConnectionLostError(f"no answer from {names} within {self._options.connect_timeout_s:.3g} s")
            raise another(self._manager.obstacle or lost, outcome_known=True) from None
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """End what is pending with ClosedError and hang up. Safe to call again."""
        self._dispatcher.home.check()
        if self.brokers.life is not None:
            self.brokers.life.closed()
        connections = self._dispatcher.close()
        runner = self._runner
        if runner is not None and not runner.done():
            runner.cancel()
            await asyncio.wait([runner])
        if runner is not None and not runner.cancelled() and (bug := runner.exception()) is not None:
            raise bug
        self._never_up(ClosedError("the client was closed before it was open"))
        closed = [connection.closed for connection in connections]
        if closed:
            _, stuck = await asyncio.wait(closed, timeout=CLOSE_GRACE_S)
            if stuck:
                for connection in connections:
                    connection.abort()
                await asyncio.wait(stuck)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def reconnect(self) -> None:
        """Close all connections and open new ones, for example to use replaced certificates at once. Calls in flight
        are tried again."""
        self._dispatcher.home.check()
        self._dispatcher.hang_up()

    async def status(self, node: str = "", *, deadline_s: float | None = None) -> StatusReply:
        """The status of a node: its groups, log, memory and connections. Without ``node``, any node answers."""
        return await self._requests.one(methods.STATUS, Status(), deadline_s, node=node)

    def table(self, table: PlainTable[Record]) -> Records[Record]:
        """The records of a table that :meth:`Tables.declare` or :meth:`Tables.open` has returned. Raises
        InvalidRequestError if it is none."""
        return Records(self._requests, table)

    async def routes(
        self, table: PlainTable[Record] | str, *key: str | int, deadline_s: float | None = None
    ) -> Route[Record]:
        """The records of one resource, read now and by need: those of a table, or of the table of a name, whose keys
        begin with ``key``, which has all fields that route. Raises InvalidRequestError, and NotFoundError if there is
        no such table."""
        known = await self.tables.open(table, deadline_s=deadline_s) if isinstance(table, str) else table
        records = self.table(known)
        if not len(known.routing) <= len(key) <= len(known.key):
            raise InvalidRequestError(
                f"a resource of {known.name} is named by {', '.join(known.key[: len(known.routing)])}"
                f"{' and more of its key' if len(known.key) > len(known.routing) else ''}, and not by {len(key)} fields"
            )
        route = Route(records, known.name, key, known.key[len(key) :])
        await route.refresh(deadline_s=deadline_s)
        return route

    def serve(
        self,
        *kinds: str,
        on_lead: OnLead,
        on_release: OnRelease,
        on_follow: OnFollow | None = None,
        on_elect: OnElect | None = None,
    ) -> Serving:
        """The partitions that this broker leads and follows, as metad assigns them: see :mod:`.assignment.serving`.

        ``kinds``: of resources; none: all. ``on_lead``: it leads, or owns, a partition from now on. ``on_follow``:
        another broker does, or nobody; not needed for resources with one owner. ``on_release``: it has nothing to do
        with the partition any more, and stops; of one that is deleted it deletes what it has. ``on_elect``: for
        elections by position. The functions of one partition are called one after the other. Raises
        InvalidRequestError if no life was registered, FencedError if it is over."""
        life = self.brokers.life
        if life is None:
            raise InvalidRequestError("a broker serves in its life: register one first")
        return Serving(
            self.assignments,
            self.watch,
            life,
            kinds,
            Author(on_lead, on_release, on_follow, on_elect),
            self._clock,
        )

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
        return open_watch(
            self._dispatcher,
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
        )

    def snapshot(
        self,
        group: GroupId,
        tables: Wanted[AnyTable] | Several[Wanted[AnyTable]],
        *,
        slots: Collection[int] = range(SLOTS),
        position: int | None = None,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> Snapshot:
        """The rows of tables that one group has, all of one moment (without ``async`` in a blocking client)::

            async for part in m.snapshot(GroupId("data", 0), "session"):
                if part.first:
                    rows.clear()
                rows += part.rows

        It is read from a replica that is near and does not lead, if there is one, and is begun anew at another one if
        that is lost. Freshness: it has everything that was acknowledged before it was opened. ``slots``: only these
        hash buckets; :attr:`Snapshot.slots` says which of them the group held. ``position``: an index of the group's
        log; the moment is not before it, and what has happened in between comes before the rows. It ends with
        DeadlineExceededError if nothing comes for ``idle_timeout_s``. ``buffer_bytes`` are those of :meth:`watch`.
        Raises InvalidRequestError if the arguments make no sense.
        """
        return open_snapshot(
            self._dispatcher,
            group,
            tables,
            slots=slots,
            position=position,
            idle_timeout_s=idle_timeout_s,
            buffer_bytes=buffer_bytes,
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
        return open_image(
            self._dispatcher,
            tables,
            tenant=tenant,
            prefix=prefix,
            keys=keys,
            broker=broker,
            progress_s=progress_s,
            buffer_bytes=buffer_bytes,
        )

    def hold(self, namespace: str, *, ttl_s: float = 10.0, holder: str = "", attributes: bytes = b"") -> HeldLease:
        """A lease of a namespace that is kept alive by itself (without ``async`` in a blocking client)::

            async with m.hold("jobs", ttl_s=10, holder="worker-7") as lease:
                await m.kv.put("jobs", "worker/7", b"here", lease=lease.name)
                async with await lease.lock("nightly") as lock:
                    print(lock.token)

        It is granted when it is entered, or by :meth:`HeldLease.opened`. Its keys and locks are gone once it is closed,
        or once nothing was heard of the program for ``ttl_s``. ``holder`` and ``attributes`` are for those who list
        leases. Raises InvalidRequestError if the arguments make no sense.
        """
        return HeldLease(
            self.leases,
            self.kv,
            lambda key: self.watch("kv", keys=[key], start="snapshot"),
            namespace,
            ttl_s=ttl_s,
            holder=holder,
            attributes=attributes,
            now=self._clock,
        )

    async def owned(
        self,
        broker: str,
        broker_epoch: int,
        tenant: str,
        client_id: str,
        *,
        clean_start: bool = False,
        properties: SessionProperties | None = None,
        restore: bool = False,
        restore_parts: bool = False,
        deadline_s: float | None = None,
    ) -> Owned:
        """Take over the session of a client that has connected, as ``m.sessions.takeover`` does, and hear of its loss
        (without ``await`` in a blocking client)::

            owned = await m.owned(life.broker, life.epoch, "acme", "device-1", restore=True)
            owned.on_lost(lambda why: connection.close())

        Of several connections of a client, wherever they are and however close to each other, exactly one stays: each
        other one raises here, or is lost once this client's watch says so. The watch is one of all sessions of the
        broker, opened with the first. A call that is cancelled connects no client.

        Raises the errors of a takeover, and those of :class:`Owned` if the session is lost by the time of the answer.
        """
        item = SessionTakeoverItem(tenant, client_id, clean_start, properties)
        return await self._ownership.one(
            broker, broker_epoch, item, restore=restore, restore_parts=restore_parts, deadline_s=deadline_s
        )

    async def owned_many(
        self,
        broker: str,
        broker_epoch: int,
        items: Sequence[SessionTakeoverItem],
        *,
        restore: bool = False,
        restore_parts: bool = False,
        deadline_s: float | None = None,
    ) -> OwnedResult:
        """:meth:`owned` of many clients, as ``m.sessions.takeover_many`` does it: by position the session, or an item
        error. Of a client that is named twice the last one stays."""
        return await self._ownership.many(
            broker, broker_epoch, items, restore=restore, restore_parts=restore_parts, deadline_s=deadline_s
        )

    def consume(
        self,
        tenant: str,
        group: str,
        *,
        assign: Assign,
        session_s: float = 10.0,
        rebalance_s: float = 60.0,
        protocols: Sequence[str] = (),
        metadata: bytes = b"",
        instance: str = "",
        holder: str = "",
    ) -> Membership:
        """A member of a consumer group that lives by itself (without ``async`` in a blocking client)::

            def share_out(protocol, members):
                return {member.member: b"%d" % part for part, member in enumerate(members)}

            async with m.consume("acme", "billing", assign=share_out) as member:
                async for generation in member:
                    while generation.is_current:
                        await work(generation.assignment)
                        await generation.commit("orders", int(generation.assignment), offset)

        One member of each generation, its leader, is asked by ``assign`` who gets what; in a blocking client in the
        client's own thread. It joins when it is entered, or by :meth:`Membership.opened`, and leaves when it is closed,
        or once nothing was heard of it for ``session_s``. The others wait for it up to ``rebalance_s`` when the group
        rebalances. ``protocols``: the ways to assign that it knows, the best first. ``metadata`` is for the leader.
        ``instance`` names its place, which it has again if it comes back within ``session_s``. ``holder`` is for those
        who list members. Raises InvalidRequestError if the arguments make no sense.
        """
        return Membership(
            self.consumers,
            self.offsets,
            tenant,
            group,
            assign=assign,
            session_s=session_s,
            rebalance_s=rebalance_s,
            protocols=protocols,
            metadata=metadata,
            instance=instance,
            holder=holder,
            now=self._clock,
        )

    @property
    def state(self) -> ClientState:
        """Whether the client reaches the cluster, and every group has a leader that answers."""
        return self._dispatcher.states.state

    @property
    def states(self) -> dict[str, ClientState]:
        """:attr:`state` for each kind of groups: ``metadata`` (brokers, the map), ``data`` (sessions, key-value, leases
        and more), ``offset``. SUSPENDED: one of them has had no leader that answers for a second, so no quorum. Empty
        before the map is known."""
        return dict(self._dispatcher.states.kinds)

    @property
    def alone_s(self) -> float:
        """For how many seconds no node has taken requests; 0 while one does. A broker whose life is SUSPENDED meanwhile
        may be the only one that is cut off."""
        return self._dispatcher.states.alone_s

    def on_state(self, listener: Callable[[ClientState], None]) -> Callable[[], None]:
        """Call ``listener`` with each new :attr:`state`, in the client's own thread. Returns what ends that."""
        return self._dispatcher.states.listen(listener)

    def statistics(self) -> Statistics:
        """Counters and gauges of this client. May be called in any thread, and after the client is closed."""
        dispatcher, connects = self._dispatcher, self._manager.connects
        dispatcher.home.check_process()
        reports, states, watches = dispatcher.reports, dispatcher.states, list(dispatcher.followers)
        levels = [watch.level_at for watch in watches if watch.progress_ms]
        known = [level for level in levels if level is not None]
        up = {queue.node: connection for queue, connection in dispatcher.nodes.up()}
        return Statistics(
            requests=dispatcher.requests,
            answers=dispatcher.answers,
            retries=dispatcher.sender.retries,
            batches=self._requests.batches,
            connects=connects,
            reconnects=connects - dispatcher.nodes.reached,
            nodes=len(up),
            in_flight=dispatcher.in_flight,
            waiting=dispatcher.backlog.calls,
            turned_away=dispatcher.turned_away,
            returning=dispatcher.returning,
            endpoint=next((connection.endpoint for connection in up.values()), ""),
            via={node: connection.via for node, connection in up.items()},
            changes=self._manager.changes,
            disconnects=reports.disconnects,
            unreachable=reports.unreachable,
            state=states.state.value,
            kinds={kind: state.value for kind, state in states.kinds.copy().items()},
            alone_s=states.alone_s,
            verbs={verb: _verb(meter) for verb, meter in dispatcher.meters.copy().items()},
            watches=len(watches),
            watch_batches=dict(dispatcher.batches),
            watch_resumes=dispatcher.resumes,
            watch_age_s=max(0.0, self._loop.time() - min(known)) if known and len(known) == len(levels) else None,
        )

    async def run(self) -> None:
        """Keep the connections up until cancelled."""
        self._dispatcher.asked.add_done_callback(self._up)
        try:
            await self._manager.run()
        except MetadError as error:  # nobody was reached, and waiting would not help
            self._never_up(error)
        except Exception as error:
            while isinstance(error, ExceptionGroup):  # of the tasks that keep the connections
                error = error.exceptions[0]
            self._dispatcher.close()
            self._never_up(InternalError(f"the client failed: {error!r}"))
            raise error from None

    def _up(self, _: asyncio.Future[None]) -> None:
        if not self._first.done():
            self._first.set_result(None)

    def _never_up(self, error: MetadError) -> None:
        if not self._first.done():
            self._first.set_exception(another(error, outcome_known=True))
            self._first.exception()  # open() may have given up already: then nobody else looks at it


def _verb(meter: Meter) -> VerbStatistics:
    """What a meter says now."""
    return VerbStatistics(
        outcomes=dict(meter.outcomes),
        buckets=meter.buckets.copy(),
        seconds=meter.seconds,
        items=meter.items,
        refused=meter.refused,
        retries=dict(meter.retries),
        redirects=meter.redirects,
    )


def connect(
    url: str,
    options: Options | None = None,
    *,
    observer: Observer | None = None,
    transport: Transport | None = None,
    rng: random.Random | None = None,
    clock: Callable[[], float] | None = None,
) -> Client:
    """A client of ``metad://host[:port][,host[:port]...]`` (default port 7420; :mod:`metad_client.endpoint` has the
    other schemes), not yet opened::

        async with connect("metad://127.0.0.1:7420") as m:
            version = await m.kv.put("config", "greeting", b"hello")

    Call it in the event loop that will use it. Raises InvalidRequestError if the URL makes no sense, if the observer is
    none, or if options are missing or of no use for its scheme. Entering raises ConnectionLostError if no endpoint is
    reached within ``options.connect_timeout_s``, UnauthenticatedError if none accepts the client. ``observer`` is told
    about connections, retries and how each request ended; the logger ``metad_client`` logs the same. ``transport``,
    ``rng`` and ``clock`` replace the scheme's transport, the system's randomness, and the clock of what is kept alive,
    for tests and for other networks.
    """
    options = options if options is not None else Options()
    if not isinstance(url, str):
        raise InvalidRequestError(f"url: expected str, got {type(url).__name__}")
    if not isinstance(options, Options):
        raise InvalidRequestError(f"options: expected Options, got {type(options).__name__}")
    if observer is not None and not isinstance(observer, Observer):
        raise InvalidRequestError(f"observer: expected Observer, got {type(observer).__name__}")
    try:
        endpoints = parse_url(url)
        credentials_of(options)
        transports = (
            transports_of(scheme_of(url), options)
            if transport is None
            else TransportChoice({"given": transport}, options.path_rule)
        )
    except ValueError as error:
        raise InvalidRequestError(str(error)) from None
    return Client(
        endpoints,
        options,
        transports=transports,
        rng=rng if rng is not None else random.Random(),
        observer=observer,
        clock=clock if clock is not None else counting_clock,
    )
