"""amqtt's broker, with metad at its seams.

What a client has an answer for is in metad: its session before CONNACK, its subscriptions before SUBACK, a retained
message before PUBACK. PUBACK also says that each subscriber has acknowledged the message, or that it waits in metad for
those that are away. amqtt has connections and packets.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

from amqtt.adapters import ReaderAdapter, WebSocketsWriter, WriterAdapter
from amqtt.broker import Broker
from amqtt.contexts import Action, BrokerConfig, ListenerConfig, ListenerType
from amqtt.errors import AMQTTError, BrokerError
from amqtt.events import BrokerEvents
from amqtt.mqtt.connack import IDENTIFIER_REJECTED
from amqtt.mqtt.disconnect import DisconnectPacket
from amqtt.mqtt.protocol.broker_handler import BrokerProtocolHandler
from amqtt.session import ApplicationMessage, Session
from amqtt.utils import gen_client_id
from websockets.asyncio.server import ServerConnection

from metad_client import (
    AnyEvent,
    BrokerLife,
    Client,
    FencedError,
    Image,
    LifeState,
    MetadError,
    Owned,
    SessionKey,
    SessionOwner,
    SubscriptionKey,
    SubscriptionOptions,
    TlsFiles,
    Watched,
    Will,
)
from metad_wire.text.topics import filter_fault

from .arrivals import Arrivals
from .envelope import Envelope
from .handler import Arriving, Handler
from .handshakes import Handshakes
from .kept import NEVER_S, Store, ends_with_connection
from .links.link_proof import LinkKey, Peer
from .links.link_tls import LinkTls
from .links.links import HOPS_MAX, MESSAGE_BYTES_MAX, TARGETS_MAX, Delivery, Link, Listener, Unreachable
from .links.routes import LifeKey, Owner, Routes, Target
from .listening import ClientReader, ClientReaderAdapter, ClientWebSocket, for_clients, listen, listen_for_websockets
from .outbox import Outbox
from .packets import ClientWriter, Packets, Unfinished
from .seldom import Seldom
from .waiting import Found, WaitingMessages, found_in

PASSED_ON_MAX: Final = 100
"""Messages of one client that are on their way to their subscribers. The next one waits."""
CLOSE_S: Final = 5.0
"""A connection that cannot be closed for so long is left to itself."""
_AGAIN_S: Final = 1.0
ALONE_S: Final = 300.0
"""For how long a broker keeps its clients, unless it is told otherwise, while it reaches no node of metad: it may be
the only one that is cut off."""
REFUSED: Final = 0x80
"""The return code of SUBACK for a filter that was not stored."""
PACKET_BYTES_MAX: Final = 1024 * 1024
"""Of a client, unless the broker is told otherwise."""
CLIENT_ID_BYTES_MAX: Final = 1_024
"""With it and a filter a key of metad is long enough."""
CONNECT_S: Final = 10.0
"""A client that has not sent CONNECT by then is none."""
FILTERS_WAITING_MAX: Final = 10_000
"""Filters of one connection whose retained messages are not sent yet. One more ends it."""

log = logging.getLogger("metad_client.amqtt")


class Connection:
    """A client that is connected here."""

    def __init__(self, session: Session, owned: Owned, handler: Handler, outbox: Outbox) -> None:
        self.session = session
        self.owned = owned
        """The takeover that connects it."""
        self.handler = handler
        self.is_clean = bool(session.clean_session)
        """The session ends with the connection."""
        self.outbox = outbox
        self.sending: asyncio.Task[None] | None = None
        self.shown: set[str] = set()
        """Filters that were shown to the routes by answers, and not by the image."""
        self.subscribed: deque[tuple[str, int]] = deque()
        """Filters whose retained messages are not sent yet, with their QoS."""
        self.retaining = asyncio.Lock()
        self.passing_on = asyncio.Semaphore(PASSED_ON_MAX)
        self.moved = False
        """Its session is at another broker."""
        self.orderly = False
        """The client has said goodbye, or this broker ends in good order: no will is due."""
        self.closed = asyncio.Event()
        """Nothing is sent any more."""
        self.gone = asyncio.Event()
        """metad knows that the client has gone."""


class MetadBroker(Broker):
    """An MQTT 3.1.1 broker. Any number of them share the clients of a tenant; names differ.

    ``config`` is amqtt's. ``links``: HOST:PORT that the other brokers call; ``links_advertised`` if they reach it at
    another address. ``links_tls``: a broker's certificate (``metadctl certs --brokers``), the same for all brokers or
    for none; without it messages between brokers are in clear text, which belongs on a private network. ``expiry_s``:
    how long the session of a client that is away is kept. ``lease_s``: a broker that metad has not heard of for so
    long, although others were heard, is over, and the wills of its clients are published. ``alone_s``: how long
    clients are kept while no node of metad can be reached. ``packet_bytes_max``: of a client's packets. ``metad`` is
    this broker's own client.
    """

    def __init__(
        self,
        metad: Client,
        name: str,
        config: BrokerConfig | dict[str, Any] | None = None,
        *,
        tenant: str = "mqtt",
        links: str = "127.0.0.1:0",
        links_advertised: str = "",
        links_tls: TlsFiles | None = None,
        expiry_s: int = NEVER_S,
        lease_s: float = 10.0,
        alone_s: float = ALONE_S,
        packet_bytes_max: int = PACKET_BYTES_MAX,
    ) -> None:
        if not 0 < packet_bytes_max <= MESSAGE_BYTES_MAX:
            raise ValueError(f"packet_bytes_max: 1 to {MESSAGE_BYTES_MAX}")
        super().__init__(config)
        self._packet_bytes_max = packet_bytes_max
        self._refused = Seldom(log)
        self._unstored = Seldom(log)
        self._unfinished = Unfinished()
        self._open = for_clients()
        self._arrivals = Arrivals()
        self._metad = metad
        self._store = Store(metad, name, tenant, expiry_s)
        self._waiting = WaitingMessages(metad, self._store)
        self._lease_s, self._alone_s = lease_s, alone_s
        self._links_at, self._links_advertised = links, links_advertised
        self._links_tls = LinkTls(links_tls) if links_tls is not None else None
        self._link_key = LinkKey()
        self._listener = Listener(self._received, self._store.key_of, self._link_key, self._links_tls)
        self._links: dict[LifeKey, Link] = {}
        self._routes = Routes()
        self._connections: dict[str, Connection] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._image: Image | None = None
        self._owners: Mapping[SessionKey, SessionOwner] = {}
        self._filters: Mapping[SubscriptionKey, SubscriptionOptions] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending = False
        self._begun = asyncio.Event()
        self._changes = asyncio.Event()
        """Set when the state of the life has changed."""
        self.fenced = asyncio.Event()
        """This life is over: a newer one has begun, or metad has ended it. It serves no client any more."""

    # --- its life ---

    @property
    def epoch(self) -> int:
        """The number of this life."""
        return self._store.epoch

    def bound(self, listener: str = "default") -> str:
        """HOST:PORT on which it listens for clients."""
        host, port = next(iter(self._servers[listener].instance.sockets)).getsockname()[:2]
        return f"{host}:{port}"

    async def start(self) -> None:
        """Serve. The addresses come first: the life that begins ends an earlier one, which may serve there. Raises
        BrokerError."""
        try:
            await super()._start_listeners()
            await super().start()
        except BaseException as error:
            for server in self._servers.values():
                if server.instance is not None:
                    server.instance.close()
            if isinstance(error, OSError):
                raise BrokerError(f"cannot listen: {error.strerror}") from error
            raise

    async def _start_listeners(self) -> None:
        """Begin a life, and learn who has subscribed to what, before the first client is served."""
        host, _, port = self._links_at.rpartition(":")
        bound = await self._listener.listen(host, int(port))
        listens = int(bound.rpartition(":")[2])
        life = await self._store.begin(self._links_advertised or bound, self._link_key.public, self._lease_s, listens)
        self._link_key.life = self._life
        tenant = self._store.tenant
        self._image = image = self._metad.image(
            [Watched("session", tenant=tenant, rows=("owner",)), Watched("subscription", tenant=tenant)]
        )
        self._owners, self._filters = image["session/owner"], image["subscription"]
        image.on_change(self._changed)
        await image.caught_up()
        life.on_state(self._state_changed)
        self._spawn(self._fence_when_lost(life))
        self._spawn(self._part_when_alone())
        self._spawn(self._publish_wills())
        self._begun.set()

    async def shutdown(self) -> None:
        """Close all connections, and hand the sessions to whichever brokers their clients come to next."""
        self._ending = True
        connections = list(self._connections.values())
        await asyncio.gather(*(self._close(one) for one in connections))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                for connection in connections:
                    await connection.gone.wait()
        await super().shutdown()
        await self._listener.close()
        if self._image is not None:
            await self._image.close()
        for link in list(self._links.values()):
            await link.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._store.life is not None:
            with contextlib.suppress(MetadError):
                await self._store.life.end()

    def _spawn(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- what others change ---

    def _changed(self, event: AnyEvent) -> None:
        if event.table == "session":
            self._owner_changed(event.key.client_id)
        elif event.table == "subscription":
            qos = event.record.qos if event.record is not None else None
            self._routes.show_filter(event.key.client_id, event.key.filter, qos)

    def _owner_changed(self, client_id: str) -> None:
        owner = self._owners.get(SessionKey(self._store.tenant, client_id))
        if client_id in self._connections:  # of a client that is here, its takeover knows more
            return
        if owner is None:
            self._routes.show_owner(client_id, None)
        else:
            self._routes.show_owner(client_id, Owner((owner.broker, owner.broker_epoch), owner.connected))

    def _show_filters_of_the_image(self, connection: Connection) -> None:
        """While a client was here, the image may have heard of its next broker's changes before this one's answers."""
        client_id = connection.session.client_id or ""
        for filter_ in connection.shown:
            options = self._filters.get(SubscriptionKey(self._store.tenant, client_id, filter_))
            self._routes.show_filter(client_id, filter_, None if options is None else options.qos)

    def _lost(self, connection: Connection, why: MetadError) -> None:
        """The session is another connection's."""
        log.info("a connection is closed: %s", why)
        connection.moved = True
        self._spawn(connection.handler.handle_connection_closed())

    async def _fence_when_lost(self, life: BrokerLife) -> None:
        log.info("%s: %s", self._store.name, await life.lost())
        self._fence()

    def _state_changed(self, state: LifeState) -> None:
        log.warning("this life of %s is %s", self._store.name, state.value)
        self._changes.set()
        self._changes = asyncio.Event()

    async def _served(self) -> None:
        """Wait until this life may serve. While it is suspended, others may have its clients by now, or metad is away:
        nothing is served from memory, and what clients send waits. Raises FencedError once the life is over."""
        life = self._store.life
        assert life is not None
        while life.state is LifeState.SUSPENDED:
            await self._changes.wait()
        life.check()

    async def _part_when_alone(self) -> None:
        """Clients may find another broker that is not cut off."""
        while not self.fenced.is_set():
            await asyncio.sleep(_AGAIN_S)
            if self._metad.alone_s >= self._alone_s and self._connections:
                log.error("no node of metad was reached for %g s: all connections are closed", self._alone_s)
                for connection in list(self._connections.values()):
                    await connection.handler.handle_connection_closed()

    def _fence(self) -> None:
        if not self.fenced.is_set():
            log.error("this life of %s is over: it closes all connections", self._store.name)
            self.fenced.set()
            for connection in self._connections.values():
                connection.moved = True
                self._spawn(connection.handler.handle_connection_closed())

    # --- CONNECT ---

    async def _create_server_instance(
        self,
        listener_name: str,
        listener_type: ListenerType,
        address: str | None,
        port: int,
        ssl_context: ssl.SSLContext | None,
    ) -> Any:
        if listener_type is ListenerType.TCP:
            connected = partial(self.stream_connected, listener_name=listener_name)
            return await listen(address, port, connected, self._open, ssl_context)
        opened = partial(self.ws_connected, listener_name=listener_name)
        return await listen_for_websockets(address, port, opened, self._open, ssl_context)

    async def stream_connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, listener_name: str
    ) -> None:
        assert isinstance(reader, ClientReader)
        await self._client_connected(listener_name, ClientReaderAdapter(reader), ClientWriter(writer))

    async def ws_connected(self, websocket: ServerConnection, listener_name: str) -> None:
        await self._client_connected(listener_name, ClientWebSocket(websocket), WebSocketsWriter(websocket))

    async def _client_connected(self, listener_name: str, reader: ReaderAdapter, writer: WriterAdapter) -> None:
        assert isinstance(reader, ClientReaderAdapter | ClientWebSocket)
        await self._begun.wait()
        host, port = writer.get_peer_info() or ("?", "?")

        def refused(why: str) -> None:
            self._refused.warn("the connection from %s:%s is closed, for it sends %s", host, port, why)

        packets = Packets(reader, self._packet_bytes_max, refused, self._unfinished)
        await super()._client_connected(listener_name, packets, writer)

    async def _initialize_client_session(
        self, reader: ReaderAdapter, writer: WriterAdapter, remote_address: str, remote_port: int
    ) -> tuple[BrokerProtocolHandler, Session]:
        """The session is metad's: this one is new for each connection."""
        assert isinstance(reader, Packets)
        try:
            async with asyncio.timeout(CONNECT_S):
                handler, session = await Handler.init_from_connect(reader, writer, self.plugins_manager)
        except TimeoutError:
            await writer.close()
            raise AMQTTError(f"no CONNECT within {CONNECT_S:g} s") from None
        except Exception:
            await writer.close()
            raise
        assert isinstance(handler, Handler)
        reader.wait_for(handler.room)
        session.client_id = session.client_id or gen_client_id()
        session.keep_alive += session.keep_alive // 2  # MQTT wants one and a half times what the client says
        session.delivered_message_queue = Arriving(handler.freed)
        return handler, session

    async def _handle_client_session(
        self,
        reader: ReaderAdapter,
        writer: WriterAdapter,
        client_session: Session,
        handler: BrokerProtocolHandler,
        server: Any,
        listener_name: str,
    ) -> None:
        client_session.attributes["metad.handler"] = handler
        client_session.attributes["metad.connection"] = reader, writer
        try:
            await super()._handle_client_session(reader, writer, client_session, handler, server, listener_name)
        finally:
            closing = asyncio.create_task(writer.close())
            await self._gone(client_session, handler)
            await closing

    async def _authenticate(self, session: Session, listener: ListenerConfig) -> bool:
        """Awaited before CONNACK."""
        handler: Handler = session.attributes["metad.handler"]
        if self._ending or self.fenced.is_set():
            handler.refuse()
            return False
        if not await super()._authenticate(session, listener):
            return False
        client_id = session.client_id or ""
        if len(client_id.encode()) > CLIENT_ID_BYTES_MAX:
            handler.refuse(IDENTIFIER_REJECTED)
            return False
        reader, writer = session.attributes.pop("metad.connection")
        async with self._arrivals.one(client_id, reader, writer) as takes_over:
            try:
                async with asyncio.timeout(CONNECT_S):
                    await self._served()
            except (TimeoutError, FencedError):
                handler.refuse()
                return False
            async with self._turn(client_id):
                takes_over()
                return await self._take_over(session, handler, client_id)

    async def _take_over(self, session: Session, handler: Handler, client_id: str) -> bool:
        """False if the client is to be refused. It is this client's turn."""
        clean = bool(session.clean_session)
        older = self._connections.get(client_id)
        if older is not None:
            older.moved = not older.is_clean  # the session goes on, and so no will is due
            await self._close(older)
        try:
            taken = await self._store.take(client_id, clean=clean, will=_will_of(session))
        except MetadError as error:
            self._failed(error)
            handler.refuse()
            if older is not None:  # nobody is connected now
                with contextlib.suppress(MetadError):
                    await older.owned.disconnect()
            return False
        session.parent = int(taken.present)
        if not clean:
            handler.restore(session, taken, Handshakes(self._store, client_id, self._failed))
        delivered = {name for waited in taken.owed.values() for name in waited}
        outbox = self._outbox_of(client_id, handler, found_in(taken.inflight, delivered))
        connection = self._connections[client_id] = Connection(session, taken.owned, handler, outbox)
        self._routes.show_owner(client_id, Owner(self._life, connected=True))
        self._show_filters(connection, taken.filters)
        taken.owned.on_lost(partial(self._lost, connection))
        return True

    def _outbox_of(self, client_id: str, handler: Handler, restored: Found) -> Outbox:
        def failed() -> None:
            self._spawn(handler.handle_connection_closed())

        async def deliver(message: Envelope, waited: Sequence[str]) -> None:
            await self._served()
            await handler.deliver(message, waited)

        return Outbox(client_id, deliver, self._waiting, failed, restored)

    async def _publish_session_retained_messages(self, session: Session) -> None:
        """The connection has begun: send what waited for the client, then what comes."""
        connection = self._connection_of(session)
        if connection is not None:
            connection.sending = asyncio.create_task(connection.outbox.run())

    def _connection_of(self, session: Session) -> Connection | None:
        connection = self._connections.get(session.client_id or "")
        return connection if connection is not None and connection.session is session else None

    def _turn(self, client_id: str) -> asyncio.Lock:
        """What is done about one client is done one after the other."""
        return self._turns.setdefault(client_id, asyncio.Lock())

    def _failed(self, error: MetadError) -> None:
        log.warning("metad: %s", error)
        if isinstance(error, FencedError):
            self._spawn(self._fence_if_over())

    async def _fence_if_over(self) -> None:
        """metad also says "fenced" of one session that somebody has taken over in the name of a later life of this
        broker. If metad cannot be had, heartbeats find out."""
        with contextlib.suppress(MetadError):
            if await self._store.is_over():
                self._fence()

    # --- the end of a connection ---

    async def _close(self, connection: Connection) -> None:
        """Close a connection, and wait until no more is sent on it. What the client does not take is dropped."""
        connection.handler.hurry()
        await connection.handler.handle_connection_closed()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await connection.handler.stop()
                await connection.closed.wait()

    async def _handle_disconnect(
        self, client_session: Session, handler: BrokerProtocolHandler, disconnect_waiter: asyncio.Future[Any]
    ) -> None:
        connection = self._connection_of(client_session)
        if connection is not None:
            connection.orderly = self._ending or isinstance(disconnect_waiter.result(), DisconnectPacket)
            await self._stop_sending(connection)
        await self._stop_handler(handler)
        client_session.transitions.disconnect()
        await self.plugins_manager.fire_event(
            BrokerEvents.CLIENT_DISCONNECTED, client_id=client_session.client_id, client_session=client_session
        )

    async def _stop_sending(self, connection: Connection) -> None:
        """What the client has not acknowledged is stored by whoever waits for that. Safe to call again."""
        if connection.sending is not None:
            connection.sending.cancel()
            await asyncio.gather(connection.sending, return_exceptions=True)
        connection.outbox.end()

    async def _publish_wills(self) -> None:
        """Wills that are due, of clients of any broker: of those that are dead, too. One broker claims each."""
        while not self.fenced.is_set():
            try:
                async for taken in self._store.wills():
                    will = taken.will
                    if will.retain:
                        await self.retain_message(None, will.topic, will.payload, will.qos)
                    await self._publish(Envelope(will.topic, will.payload, will.qos))
            except MetadError as error:  # the will is claimed again, here or elsewhere
                self._failed(error)
                await asyncio.sleep(_AGAIN_S)

    async def _gone(self, session: Session, handler: BrokerProtocolHandler) -> None:
        """However the connection has ended."""
        client_id = session.client_id or ""
        if self._sessions.get(client_id, (None, None))[1] is handler:
            del self._sessions[client_id]
        connection = self._connection_of(session)
        if connection is None:
            return
        await self._stop_sending(connection)
        connection.closed.set()
        async with self._turn(client_id):
            if self._connections.get(client_id) is connection:  # the client has no newer one here
                del self._connections[client_id]
                try:
                    if not connection.moved:
                        await connection.owned.disconnect(will_discard=connection.orderly)
                except MetadError as error:
                    self._failed(error)
                self._owner_changed(client_id)
                self._show_filters_of_the_image(connection)
        connection.gone.set()

    # --- SUBSCRIBE and UNSUBSCRIBE ---

    async def _handle_subscription(
        self, client_session: Session, handler: BrokerProtocolHandler, subscribe_waiter: asyncio.Future[Any]
    ) -> None:
        wanted = subscribe_waiter.result()
        client_id = client_session.client_id or ""
        codes = [await self._granted(client_session, filter_, qos) for filter_, qos in wanted.topics]
        granted = {filter_: code for (filter_, _), code in zip(wanted.topics, codes, strict=True) if code != REFUSED}
        granted = await self._subscribe(client_id, granted)
        codes = [granted.get(filter_, REFUSED) for filter_, _ in wanted.topics]
        await handler.mqtt_acknowledge_subscription(wanted.packet_id, codes)
        for filter_, qos in granted.items():
            await self.plugins_manager.fire_event(
                BrokerEvents.CLIENT_SUBSCRIBED, client_id=client_id, topic=filter_, qos=qos
            )
            self._send_what_is_retained(client_session, filter_, qos)

    async def _granted(self, session: Session, filter_: str, qos: int) -> int:
        if filter_fault(filter_) is not None or not await self._topic_filtering(session, filter_, Action.SUBSCRIBE):
            return REFUSED
        return min(qos, int(self.config.get("max-qos", qos)))

    async def _subscribe(self, client_id: str, filters: dict[str, int]) -> dict[str, int]:
        """Returns those that are stored."""
        try:
            refused = await self._store.subscribe(client_id, filters)
        except MetadError as error:
            self._failed(error)
            return {}
        for filter_, reason in refused.items():
            self._unstored.warn("%s cannot subscribe to %r: %s", client_id, filter_[:100], reason)
        stored = {filter_: qos for filter_, qos in filters.items() if filter_ not in refused}
        self._show_filters(self._connections.get(client_id), stored)
        return stored

    def _show_filters(self, connection: Connection | None, filters: dict[str, int]) -> None:
        """The client has these, by the answer to this broker."""
        if connection is not None:
            connection.shown |= filters.keys()
            for filter_, qos in filters.items():
                self._routes.show_filter(connection.session.client_id or "", filter_, qos)

    async def _handle_unsubscription(
        self, client_session: Session, handler: BrokerProtocolHandler, unsubscribe_waiter: asyncio.Future[Any]
    ) -> None:
        unwanted = unsubscribe_waiter.result()
        client_id = client_session.client_id or ""
        try:
            await self._store.unsubscribe(client_id, unwanted.topics)
        except MetadError as error:
            self._failed(error)
            await handler.handle_connection_closed()  # the client cannot be told that it failed
            return
        for filter_ in unwanted.topics:
            self._routes.show_filter(client_id, filter_, None)
            await self.plugins_manager.fire_event(BrokerEvents.CLIENT_UNSUBSCRIBED, client_id=client_id, topic=filter_)
        await handler.mqtt_acknowledge_unsubscription(unwanted.packet_id)

    def _send_what_is_retained(self, session: Session, filter_: str, qos: int) -> None:
        connection = self._connection_of(session)
        if connection is None or filter_.startswith("$share/"):
            return
        for topic, message in self._retained_messages.items():  # about this broker
            if self._matches(topic, filter_):
                connection.outbox.put(Envelope(topic, bytes(message.data), message.qos or 0, retained=True).at(qos))
        connection.subscribed.append((filter_, qos))
        if len(connection.subscribed) == 1:
            self._spawn(self._send_retained(connection))
        elif len(connection.subscribed) > FILTERS_WAITING_MAX:
            self._refused.warn("%s is disconnected: it subscribes faster than it is served", session.client_id)
            self._spawn(connection.handler.handle_connection_closed())

    async def _send_retained(self, connection: Connection) -> None:
        try:
            while connection.subscribed:
                filter_, qos = connection.subscribed[0]
                async for found in self._metad.retained.match(self._store.tenant, filter_):
                    if not await connection.outbox.room():
                        return
                    connection.outbox.put(Envelope(found.topic, found.payload, found.qos, retained=True).at(qos))
                connection.subscribed.popleft()
        except MetadError as error:
            self._failed(error)
        finally:
            connection.subscribed.clear()

    # --- PUBLISH ---

    async def _handle_message_delivery(
        self, client_session: Session, handler: BrokerProtocolHandler, wait_deliver: asyncio.Future[Any]
    ) -> bool:
        message: ApplicationMessage | None = wait_deliver.result()
        if message is None:  # the connection is ending
            return True
        client_id, topic = client_session.client_id, message.topic or ""
        await self.plugins_manager.fire_event(BrokerEvents.MESSAGE_RECEIVED, client_id=client_id, message=message)
        if not await self._topic_filtering(client_session, topic=topic, action=Action.PUBLISH):
            _handled(client_session, message)
            return True
        await self.plugins_manager.fire_event(BrokerEvents.MESSAGE_BROADCAST, client_id=client_id, message=message)
        connection = self._connection_of(client_session)
        if connection is not None:
            await connection.passing_on.acquire()
            self._spawn(self._pass_on(connection, message))
        return True

    async def _pass_on(self, connection: Connection, message: ApplicationMessage) -> None:
        """Messages of one client begin in order, and each ends when its subscribers have it."""
        sent = Envelope(message.topic, bytes(message.data), message.qos or 0)
        try:
            await self._served()
            targets = self._targets(sent.topic)
            if message.retain:
                async with connection.retaining:  # the last one stays
                    await self.retain_message(connection.session, sent.topic, sent.payload, sent.qos)
            await self._deliver(sent, targets, 0)
            if sent.qos == 2 and not connection.is_clean:
                await self._store.release(connection.session.client_id or "", message.packet_id or 0)
        except MetadError as error:
            self._failed(error)
            await connection.handler.handle_connection_closed()  # unacknowledged: the client sends it again
        else:
            _handled(connection.session, message)
        finally:
            connection.passing_on.release()

    async def _broadcast_message(
        self, session: Session | None, topic: str | None, data: bytes | bytearray | None, force_qos: int | None = None
    ) -> None:
        """A will, or a message of amqtt itself."""
        try:
            await self._publish(Envelope(topic or "", bytes(data or b""), force_qos or 0))
        except MetadError as error:
            self._failed(error)

    async def retain_message(
        self,
        source_session: Session | None,
        topic_name: str | None,
        data: bytes | bytearray | None,
        qos: int | None = None,
    ) -> None:
        topic = topic_name or ""
        if topic.startswith("$"):  # about this broker
            await super().retain_message(source_session, topic_name, data, qos)
        else:  # an empty one removes what is there
            await self._metad.retained.put(self._store.tenant, topic, bytes(data or b""), qos=qos or 0)

    async def _publish(self, message: Envelope) -> None:
        """Returns once each subscriber has the message, or metad for those that are away. Raises MetadError."""
        await self._served()
        await self._deliver(message, self._targets(message.topic), 0)

    def _targets(self, topic: str) -> list[Target]:
        targets = self._routes.targets(topic)
        if topic.startswith("$"):  # about this broker
            return [target for target in targets if target.client_id in self._connections]
        return targets

    async def _deliver(self, message: Envelope | None, targets: Sequence[Target], hops: int) -> None:
        elsewhere: dict[LifeKey, list[Target]] = {}
        away: list[Target] = []
        here: list[tuple[Target, Connection, asyncio.Future[bool]]] = []
        for target in targets:
            connection = self._connections.get(target.client_id)
            if connection is not None and not connection.moved:
                if message is None:
                    connection.outbox.look()
                else:
                    here.append((target, connection, connection.outbox.put(message.at(target.qos))))
                continue
            owner = self._routes.owner(target.client_id)
            if owner is None or not owner.connected or owner.life == self._life or hops >= HOPS_MAX:
                away.append(target)
            else:
                elsewhere.setdefault(owner.life, []).append(target)
        waits = [self._await_acknowledgement(message, *one, hops) for one in here]
        sends = [self._send(life, message, part, hops) for life, part in elsewhere.items()]
        keeps = [self._deliver_away(message, target, hops) for target in away]
        await asyncio.gather(*sends, *keeps, *waits)

    async def _await_acknowledgement(
        self, message: Envelope | None, target: Target, connection: Connection, done: asyncio.Future[bool], hops: int
    ) -> None:
        """What a connection acknowledges whose session is another's by then does not count. metad sees to QoS 2."""
        if not await done or (connection.moved and target.qos < 2):
            await self._deliver_away(message, target, hops)

    @property
    def _life(self) -> LifeKey:
        return self._store.name, self._store.epoch

    async def _send(self, life: LifeKey, message: Envelope | None, targets: list[Target], hops: int) -> None:
        try:
            link = await self._link(life)
            parts = [targets[begin : begin + TARGETS_MAX] for begin in range(0, len(targets), TARGETS_MAX)]
            await asyncio.gather(*(link.send(message, part, hops + 1) for part in parts))
        except Unreachable as error:
            log.info("%s life %d: %s", *life, error)
            await asyncio.gather(*(self._deliver_away(message, target, hops, gone=life) for target in targets))

    async def _link(self, life: LifeKey) -> Link:
        """To that life of another broker. Raises Unreachable."""
        link = self._links.get(life)
        if link is None:
            at = await self._store.address_of(*life)
            if at is None:
                raise Unreachable("this life is over")
            link = self._links.setdefault(life, Link(at[0], Peer(life, at[1]), self._link_key, self._links_tls))
            for over in [one for one in self._links if one[0] == life[0] and one[1] < life[1]]:
                self._spawn(self._links.pop(over).close())
        return link

    async def _deliver_away(
        self, message: Envelope | None, target: Target, hops: int, gone: LifeKey | None = None
    ) -> None:
        """The client is not where the image has it. ``gone``: a broker that cannot be reached."""
        if message is None or not message.at(target.qos).qos:
            return
        session = await self._store.find(target.client_id)
        if session is None:
            return
        owner = (session.broker, session.broker_epoch)
        if session.connected and owner not in (gone, self._life) and hops < HOPS_MAX:
            await self._send(owner, message, [target], hops)
        elif not ends_with_connection(session):
            await self._keep(target.client_id, message.at(target.qos))

    async def _keep(self, client_id: str, message: Envelope) -> None:
        """Store a message for a client that is away, and tell its broker if it has come back meanwhile."""
        if not await self._waiting.append(client_id, message):
            return
        session = await self._store.find(client_id)
        if session is not None and session.connected:
            connection = self._connections.get(client_id)
            if connection is not None:
                connection.outbox.look()
            elif not self._store.is_mine(session):
                with contextlib.suppress(Unreachable):
                    link = await self._link((session.broker, session.broker_epoch))
                    await link.send(None, [Target(client_id, 0)])

    async def _received(self, delivery: Delivery) -> None:
        """From another broker."""
        await self._served()
        await self._deliver(delivery.message, delivery.targets, delivery.hops)


def _handled(session: Session, message: ApplicationMessage) -> None:
    arriving = session.delivered_message_queue
    if isinstance(arriving, Arriving):
        arriving.handled(message)


def _will_of(session: Session) -> Will | None:
    if not session.will_flag or not session.will_topic:
        return None
    payload = bytes(session.will_message or b"")
    return Will(session.will_topic, payload, session.will_qos or 0, bool(session.will_retain))
