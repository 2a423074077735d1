"""The blocking client: how a program opens, uses and closes it."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from metad_wire.cluster import SLOTS, GroupId
from metad_wire.messages import Message, SessionProperties, SessionTakeoverItem
from metad_wire.table import PlainTable
from metad_wire.transport import Transport

from .. import client
from ..dispatch.states import ClientState
from ..errors import ClosedError
from ..holding.membership import Assign
from ..observer import Observer
from ..options import Options
from ..watch.event import Several
from ..watch.filters import Named, Wanted
from ..watch.image import PROGRESS_S
from ..watch.snapshot import IDLE_TIMEOUT_S
from ..watch.streams import Start
from ..watch.typed import AnyTable, TableName
from ..watch.watch import BUFFER_BYTES
from .holding import HeldLease, Membership, Owned, OwnedResult
from .namespaces import (
    Brokers,
    Cluster,
    Consumers,
    InflightStates,
    KeyValue,
    Leases,
    Offsets,
    Records,
    RetainedMessages,
    Sequences,
    Sessions,
    Subscriptions,
    Wills,
)
from .portal import Portal
from .verbs import Call, Twin
from .watching import Closing, Image, Snapshot, Watch

Record = TypeVar("Record", bound=Message)


class BlockingClient(Twin, Closing):
    """An opened client; :meth:`close` or leaving ``with`` closes it."""

    status = Call(client.Client.status)

    def __init__(self, portal: Portal, opened: client.Client) -> None:
        super().__init__(portal, opened)
        self._client = opened
        self.cluster = Cluster(portal, opened.cluster)
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

    def watch(
        self,
        tables: Wanted[Named] | Several[Wanted[Named]] | Several[Wanted[TableName]] = (),
        *,
        tenant: str | None = None,
        prefix: str = "",
        keys: Sequence[Message] | None = None,
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
        alone. ``keys``: these records only (:class:`KvKey`, :class:`SessionKey`, …).

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
        return Snapshot(
            self._portal,
            self._portal.call(
                self._client.snapshot,
                group,
                tables,
                slots=slots,
                position=position,
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
        keys: Sequence[Message] | None = None,
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
        held = self._portal.call(self._client.hold, namespace, ttl_s=ttl_s, holder=holder, attributes=attributes)
        return HeldLease(self._portal, held)

    def owned(
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
        owned = self._portal.run(
            self._client.owned(
                broker,
                broker_epoch,
                tenant,
                client_id,
                clean_start=clean_start,
                properties=properties,
                restore=restore,
                restore_parts=restore_parts,
                deadline_s=deadline_s,
            )
        )
        return Owned(self._portal, owned)

    def owned_many(
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
        owned = self._portal.run(
            self._client.owned_many(
                broker, broker_epoch, items, restore=restore, restore_parts=restore_parts, deadline_s=deadline_s
            )
        )
        return OwnedResult(self._portal, owned)

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
        member = self._portal.call(
            self._client.consume,
            tenant,
            group,
            assign=assign,
            session_s=session_s,
            rebalance_s=rebalance_s,
            protocols=protocols,
            metadata=metadata,
            instance=instance,
            holder=holder,
        )
        return Membership(self._portal, member)

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

    def on_state(self, listener: Callable[[ClientState], None]) -> Callable[[], None]:
        """Call ``listener`` with each new :attr:`state`, in the client's own thread. Returns what ends that."""
        forget = self._portal.call(self._client.on_state, listener)
        return functools.partial(self._forget, forget)

    def _forget(self, forget: Callable[[], None]) -> None:
        with contextlib.suppress(ClosedError):
            self._portal.call(forget)

    def table(self, table: PlainTable[Record]) -> Records[Record]:
        """The records of a plain table. Raises ValueError if the table has rules of its own."""
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
