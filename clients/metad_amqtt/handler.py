"""The packets of one connection, as amqtt handles them, with metad behind what MQTT promises of QoS 2."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from amqtt.errors import AMQTTError, ProtocolHandlerError
from amqtt.mqtt.connack import SERVER_UNAVAILABLE, ConnackPacket
from amqtt.mqtt.protocol.broker_handler import BrokerProtocolHandler
from amqtt.mqtt.pubcomp import PubcompPacket
from amqtt.mqtt.pubrec import PubrecPacket
from amqtt.mqtt.pubrel import PubrelPacket
from amqtt.session import ApplicationMessage, IncomingApplicationMessage, OutgoingApplicationMessage, Session

from .envelope import Envelope
from .handshakes import Handshakes
from .kept import Taken
from .packets import ClientWriter

ARRIVING_MAX: Final = 1_000
"""Messages of one client that are not handled yet. Then no more of its packets are read."""
ARRIVING_BYTES_MAX: Final = 8 * 1024 * 1024
"""The same, in bytes; and of messages of QoS 2 that it has begun to publish and does not release: one more ends the
connection."""
UNSENT_MAX: Final = 100
"""Packets that a client does not take. Then no more of its packets are read."""
UNREAD_FILTERS_MAX: Final = 20
"""Packets with filters that are not stored yet. Then no more are read."""
_COST: Final = 1_000  # of a message in memory, beside its payload


class Handler(BrokerProtocolHandler):
    """The packets of one connection."""

    def __init__(self, plugins_manager: Any, session: Session | None = None, loop: Any = None) -> None:
        super().__init__(plugins_manager, session, loop)
        self._refusal: int | None = None
        self._unsent = 0
        self._holding = 0
        self._unreleased: dict[int, int] = {}  # packet identifiers of QoS 2, and bytes
        self._freed = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None
        self._handshakes: Handshakes | None = None
        self._waited: dict[int, Sequence[str]] = {}  # the rows of messages of QoS 2 that have waited, by identifier
        self._noting: dict[int, asyncio.Task[bool]] = {}  # whether metad has heard of a PUBREC, by identifier
        self._owed: set[int] = set()  # identifiers with PUBREC, and without PUBCOMP
        self._held: dict[int, Envelope] = {}
        self._over = False  # also before the first packet is read, when amqtt would forget it

    def refuse(self, code: int = SERVER_UNAVAILABLE) -> None:
        """CONNACK will have this code: metad cannot be had, so the client should come back later; or another."""
        self._refusal = code

    async def room(self) -> None:
        """Wait until so little is unfinished that one more packet of the client may be read."""
        while self._has_much_to_do() or self._unsent > UNSENT_MAX:
            self._freed.clear()
            await self._freed.wait()

    def freed(self) -> None:
        """There may be room."""
        self._freed.set()

    def _has_much_to_do(self) -> bool:
        arriving = self.session.delivered_message_queue if self.session is not None else None
        filters = self._pending_subscriptions.qsize() + self._pending_unsubscriptions.qsize()
        return filters + self._holding > UNREAD_FILTERS_MAX or (
            isinstance(arriving, Arriving) and (arriving.count > ARRIVING_MAX or arriving.size > ARRIVING_BYTES_MAX)
        )

    def restore(self, session: Session, taken: Taken, handshakes: Handshakes) -> None:
        """The handshakes of QoS 2 that another broker has begun, and where their next steps are stored. amqtt sends
        PUBREL for those in its session when it starts."""
        self._held, self._handshakes = taken.held, handshakes
        for packet_id, waited in taken.owed.items():
            message = OutgoingApplicationMessage(packet_id, "", 2, b"", False)
            message.pubrel_packet = PubrelPacket.build(packet_id)
            session.inflight_out[packet_id] = message
            self._waited[packet_id] = waited
            self._owed.add(packet_id)

    async def start(self) -> None:
        await super().start()
        if self._reader_stopped.is_set() or self._over:  # meanwhile, and nobody has heard of it
            await self.handle_connection_closed()

    async def _retry_deliveries(self) -> None:
        if not self._over:
            await super()._retry_deliveries()

    async def stop(self) -> None:
        if self._reader_task is not None:  # amqtt waits for ever for one that is cancelled before it has begun
            self._reader_task.add_done_callback(self._reader_has_ended)
        await super().stop()

    def _reader_has_ended(self, _: asyncio.Task[None]) -> None:
        for event in (self._reader_ready, self._reader_stopped):
            if event is not None:
                event.set()

    async def handle_connection_closed(self) -> None:
        self._over = True
        await super().handle_connection_closed()

    def hurry(self) -> None:
        """The connection is closed without waiting until the client has taken what it was sent."""
        if isinstance(self.writer, ClientWriter):
            self.writer.hurry()

    async def deliver(self, message: Envelope, waited: Sequence[str]) -> None:
        """Send a message, which has these rows if it has waited, and return once the client has it. Raises if it may
        not have it."""
        if self.session is None:
            raise AMQTTError("there is no connection")
        packet_id = self.session.next_packet_id if message.qos else None
        if message.qos == 2 and packet_id is not None:
            self._waited[packet_id] = waited
        outgoing = OutgoingApplicationMessage(packet_id, message.topic, message.qos, message.payload, message.retained)
        await self._handle_message_flow(outgoing)

    async def mqtt_connack_authorize(self, authorize: bool) -> None:
        if self._over:  # the client has connected again meanwhile
            raise asyncio.CancelledError
        if self._refusal is not None:
            await self._send_packet(ConnackPacket.build(0, self._refusal))
        else:
            await super().mqtt_connack_authorize(authorize)

    def handle_read_timeout(self) -> None:
        """The client has been silent for too long, unless it was this broker that did not read."""
        if not self._has_much_to_do():
            self._closing = asyncio.create_task(self.handle_connection_closed())

    async def get_next_pending_subscription(self) -> Any:
        wanted = await super().get_next_pending_subscription()
        self.freed()
        return wanted

    async def get_next_pending_unsubscription(self) -> Any:
        unwanted = await super().get_next_pending_unsubscription()
        self.freed()
        return unwanted

    async def _send_packet(self, packet: Any) -> None:
        """Whatever is wrong with the connection, amqtt's tasks end without an exception that nobody takes."""
        self._unsent += 1
        try:
            await super()._send_packet(packet)
        except ProtocolHandlerError:  # amqtt's word for it
            raise asyncio.CancelledError from None
        except (OSError, RuntimeError):
            await self.handle_connection_closed()
            raise asyncio.CancelledError from None
        finally:
            self._unsent -= 1
            self.freed()

    async def _handle_qos2_message_flow(
        self, app_message: OutgoingApplicationMessage | IncomingApplicationMessage
    ) -> None:
        packet_id = app_message.packet_id or 0
        if not isinstance(app_message, IncomingApplicationMessage):
            await self._send_qos2(app_message, packet_id)
            return
        self._unreleased[packet_id] = len(app_message.data) + _COST
        try:
            if sum(self._unreleased.values()) <= ARRIVING_BYTES_MAX and await self._is_held(app_message):
                await super()._handle_qos2_message_flow(app_message)
            else:
                await self.handle_connection_closed()
        except KeyError:  # the client has used the identifier again before PUBCOMP
            await self.handle_connection_closed()
        finally:
            self._unreleased.pop(packet_id, None)

    async def _send_qos2(self, message: ApplicationMessage, packet_id: int) -> None:
        """Once the client has sent PUBREC it has the message, whatever happens then."""
        try:
            await super()._handle_qos2_message_flow(message)  # type: ignore[arg-type]
        except (Exception, asyncio.CancelledError):
            if packet_id not in self._owed and not await self._is_noted(packet_id):
                raise
            await self.handle_connection_closed()  # the handshake goes on when the client is back
        else:
            if packet_id in self._owed and self._handshakes is not None:
                # If the connection ends meanwhile, the client may get PUBREL again. It has the message all the same.
                with contextlib.suppress(asyncio.CancelledError):
                    await self._handshakes.completed(packet_id, self._waited.get(packet_id, ()))
        finally:
            self._noting.pop(packet_id, None)
            self._owed.discard(packet_id)
            self._waited.pop(packet_id, None)

    async def _is_noted(self, packet_id: int) -> bool:
        """Whether metad has a PUBREC that it was being told of when the connection ended: the next broker then goes on
        with PUBREL, and nobody may send the message again."""
        noting = self._noting.get(packet_id)
        if noting is None:
            return False
        await asyncio.wait((noting,))  # cancelling that does not cancel the task
        return not noting.cancelled() and noting.exception() is None and noting.result()

    async def handle_pubrec(self, pubrec: PubrecPacket) -> None:
        """PUBREL follows."""
        packet_id = pubrec.packet_id
        if self._handshakes is not None and packet_id in self._pubrec_waiters:
            if packet_id in self._noting:  # the client has said it twice
                return
            received = self._handshakes.received(packet_id, self._waited.get(packet_id, ()))
            noting = self._noting[packet_id] = asyncio.create_task(received)
            if not await asyncio.shield(noting):
                await self.handle_connection_closed()
                return
            if packet_id in self._pubrec_waiters:  # still
                self._owed.add(packet_id)
        await super().handle_pubrec(pubrec)

    async def _is_held(self, message: IncomingApplicationMessage) -> bool:
        """Whether it is stored, if it is to be."""
        if self._handshakes is None:
            return True
        self._held.pop(message.packet_id or 0, None)
        self._holding += 1
        try:
            return await self._handshakes.held(message)
        finally:
            self._holding -= 1
            self.freed()

    async def handle_pubrel(self, pubrel: PubrelPacket) -> None:
        """Another broker may have had the message, or have delivered it already."""
        packet_id = pubrel.packet_id
        if packet_id in self._pubrel_waiters:
            await super().handle_pubrel(pubrel)
            return
        held = self._held.pop(packet_id, None)
        if held is not None and self.session is not None:
            message = IncomingApplicationMessage(packet_id, held.topic, held.qos, held.payload, held.retained)
            await self.session.delivered_message_queue.put(message)
        await self._send_packet(PubcompPacket.build(packet_id))


class Arriving(asyncio.Queue[ApplicationMessage]):
    """Messages of a client. amqtt acknowledges one once it is put: :meth:`put` returns when the message is delivered or
    stored, and never if it could not be. ``freed`` is called when there are fewer."""

    def __init__(self, freed: Callable[[], None]) -> None:
        super().__init__()
        self._freed = freed
        self._done: dict[int, asyncio.Future[None]] = {}
        self._sizes: dict[int, int] = {}
        self.size = 0
        """Bytes of those that are not handled."""

    @property
    def count(self) -> int:
        """How many are not handled."""
        return len(self._sizes)

    def put_nowait(self, item: ApplicationMessage) -> None:
        size = self._sizes[id(item)] = len(item.data) + _COST
        self.size += size
        super().put_nowait(item)

    async def put(self, item: ApplicationMessage) -> None:
        done = self._done[id(item)] = asyncio.get_running_loop().create_future()
        try:
            await super().put(item)
            await done
        finally:
            self._done.pop(id(item), None)

    def handled(self, item: ApplicationMessage) -> None:
        """The message may be acknowledged."""
        self.size -= self._sizes.pop(id(item), 0)
        self._freed()
        done = self._done.get(id(item))
        if done is not None and not done.done():
            done.set_result(None)
