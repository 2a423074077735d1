"""A connection that this node dials to another, again and again: what is sent to it, and requests that it answers."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import NamedTuple

from metad_wire.connection import peer as p
from metad_wire.connection.frame import Frame, FrameDecoder, FrameType, encode_frame
from metad_wire.errors import ConnectionLostError, HandshakeError, MetadError, NodeRefusedError, error_of
from metad_wire.messages import PeerLink
from metad_wire.policy import Backoff
from metad_wire.transport import Transport, split_endpoint
from metad_wire.transport.credentials import WORN, TlsError
from metad_wire.transport.path import path_of

from ... import log_events
from ...control.host import Done
from ...logs import event
from ...node.lives import Life
from .peer_connection import Home, PeerConnection
from .refusals import Answer

BACKOFF = Backoff(base_s=0.05, cap_s=1.0)
_DIAL_TIMEOUT_S = 2.0
_FAR_AGAIN_S = 60.0  # QUIC that did not get through is not tried again before; a dial in vain costs seconds,
_FAR_SOON_S = 1.0  # unless it was refused: that costs nothing, and is how a node looks that is about to listen


class Trouble(NamedTuple):
    """Why a link is not up, as far as known."""

    refuses: str = ""
    """Why this node refuses the other, or did when it was last reached: what it was refused for is still so."""
    refused: str = ""
    """Why the other refuses this node."""
    obstacle: str = ""
    """Why nobody could be asked."""


_NO_TROUBLE = Trouble()


class _Probe(PeerConnection):
    """A connection that is only to see whether it comes up."""

    def peer_name(self) -> str:
        return "a probe"

    def handle(self, frame: Frame) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        self.stream = None


class Outbound(PeerConnection):
    """A connection that this node dials, again and again."""

    def __init__(self, home: Home, node_id: str, endpoint: str, *, bulk: bool, far: bool) -> None:
        super().__init__(home)
        self.node_id = node_id
        self.endpoint = endpoint
        self.bulk = bulk
        self.far = far
        self.up = False
        self.cluster_id = ""
        """As the peer said it."""
        self._build = ""
        self.by_quic = False  # the connection that is up, or was last
        self._reached = False  # ever
        self._refused = False  # by the host, since it was reached
        self._trouble = _NO_TROUBLE  # why it is not up
        self._refusal = _NO_TROUBLE  # what was said in the attempt under way, or the last one
        self._banned = False
        self._far_again_s = 0.0
        self._far_wait_s = _FAR_SOON_S  # after the next refusal; longer each time
        self._calls: dict[int, Done] = {}
        self._next_call = 0
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._welcomed: asyncio.Future[None] = self._loop.create_future()

    def peer_name(self) -> str:
        return self.node_id or self.endpoint

    async def keep(self) -> None:
        """Have a connection, until cancelled."""
        attempt, rng = 0, self.home.node.environment.rng
        while True:
            try:
                await self.dial()
                attempt = 0
                await self._watch()
            except (OSError, MetadError) as error:
                event(log_events.PEER_NOT_REACHED, peer=self.node_id, endpoint=self.endpoint, error=str(error))
                obstacle = Trouble(refuses=self._trouble.refuses, obstacle=_said(error))
                self._trouble = self._refusal if any(self._refusal) else obstacle
                attempt += 1
                self._bear_witness(error)
                self.home.judge()
            finally:
                self._down()
            await asyncio.sleep(BACKOFF.delay_s(attempt, rng))

    async def dial(self) -> None:
        """Connect and shake hands. Raises OSError or MetadError."""
        self._refusal, self._banned = _NO_TROUBLE, False
        try:
            host, port = split_endpoint(self.endpoint)
        except ValueError as error:
            raise HandshakeError(str(error)) from None
        await self._connect(host, port)
        if self.stream is None:
            raise ConnectionLostError("the peer closed the connection")
        self.stream.write(self.home.hello(self.node_id, bulk=self.bulk))
        async with asyncio.timeout(_DIAL_TIMEOUT_S):
            await self._welcomed
        self.up, self._reached, self._refused, self._trouble = True, True, False, _NO_TROUBLE
        if self.node_id and not self.bulk:
            event(log_events.PEER_CONNECTED, peer=self.node_id, transport=self.transport_name, build=self._build)
            self.home.node.peer_connected(self.node_id)

    def _bear_witness(self, error: OSError | MetadError) -> None:
        """Say so if the peer was reached before, and its host refuses now: that is evidence that the peer is dead, and
        no proof, because a firewall that rejects looks the same. What rejects always is no evidence, nor is no answer.
        By QUIC a living node may refuse a connection, but then it is dialled by TCP, too."""
        if self._reached and self.node_id and not self.bulk and isinstance(error, ConnectionRefusedError):
            if not self._refused:
                event(log_events.PEER_HOST_REFUSES, peer=self.node_id, endpoint=self.endpoint)
            self._refused = True
            self.home.node.peer_refused(self.node_id)

    async def _connect(self, host: str, port: int) -> None:
        """By QUIC where the path asks for it and it gets through, else by TCP."""
        network = self.home.network
        if self.far and network.far is not None and self._loop.time() >= self._far_again_s:
            try:
                await self._dial_by(network.far, host, port)
                self._far_wait_s = _FAR_SOON_S
            except TlsError:
                raise  # it got through, and was refused
            except OSError as error:
                await self._dial_by(network.near, host, port)
                self._try_far_later(error)
                event(log_events.QUIC_BLOCKED, peer=self.peer_name(), error=str(error))
        else:
            await self._dial_by(network.near, host, port)

    async def _dial_by(self, transport: Transport, host: str, port: int) -> None:
        self._over = self._loop.create_future()
        self._welcomed = self._loop.create_future()
        self.decoder = FrameDecoder(p.PEER_FRAME_BYTES_MAX)
        self.by_quic = transport is self.home.network.far
        await transport.dial(host, port, lambda: self, _DIAL_TIMEOUT_S)

    async def _gets_through(self) -> bool:
        """Whether a link that should go by QUIC, and does not, could by now."""
        far, now_s = self.home.network.far, self._loop.time()
        if not self.far or self.by_quic or far is None or now_s < self._far_again_s:
            return False
        try:
            probe = await far.dial(*split_endpoint(self.endpoint), partial(_Probe, self.home), _DIAL_TIMEOUT_S)
        except OSError as error:
            self._try_far_later(error)
            return False
        probe.close()
        self._far_again_s, self._far_wait_s = 0.0, _FAR_SOON_S
        return True

    def _try_far_later(self, error: OSError) -> None:
        wait_s = _FAR_AGAIN_S
        if isinstance(error, ConnectionRefusedError):
            wait_s, self._far_wait_s = self._far_wait_s, min(2 * self._far_wait_s, _FAR_AGAIN_S)
        self._far_again_s = self._loop.time() + wait_s

    @property
    def answer(self) -> Answer:
        """What the peer last said to this node."""
        if self.up:
            return Answer.TAKES
        if self._banned:
            return Answer.BANS
        return Answer.REFUSES if any(self._refusal) else Answer.NONE

    @property
    def refusal(self) -> str:
        """Why the peer refuses this node; empty if it does not."""
        return self._trouble.refused

    @property
    def transport_name(self) -> str:
        """What the connection that is up, or was last, goes by."""
        return "quic" if self.by_quic else "tls" if self.home.network.encrypted else "tcp"

    def status(self) -> PeerLink:
        """For whoever asks how the node is."""
        path = path_of(self.stream) if self.stream is not None and self.up else None
        rtt_us = round(path.rtt_s * 1e6) if path is not None else 0
        return PeerLink(self.node_id, self.transport_name, self.up, rtt_us, *self._trouble)

    def refuse(self, error: MetadError) -> None:
        if not self.up:
            self._refusal = Trouble(refuses=str(error))
        super().refuse(error)

    async def _watch(self) -> None:
        """Wait until the connection is over, or silent for too long."""
        every_s = self.home.node.replicas.timing.election_s / 3
        patience_s = 6 * every_s
        while not self._over.done():
            self.send(encode_frame(FrameType.PING))
            await asyncio.wait((self._over,), timeout=every_s)
            if self.silent_s() > patience_s:
                event(log_events.PEER_SILENT, peer=self.node_id)
                return
            if self.stream is not None and self.stream.get_extra_info(WORN):
                event(log_events.PEER_CONNECTION_WORN, peer=self.node_id)
                return
            if await self._gets_through():
                event(log_events.QUIC_UNBLOCKED, peer=self.node_id)
                return

    def _down(self) -> None:
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.abort()
        calls, self._calls = self._calls, {}
        for done in calls.values():
            done(ConnectionLostError("the peer was lost before it answered"))
        if self.up:
            self.up = False
            if self.node_id and not self.bulk:
                event(log_events.PEER_LOST, peer=self.node_id)
                self.home.node.peer_lost(self.node_id)

    def close(self) -> None:
        self._down()

    def connection_lost(self, exc: Exception | None) -> None:
        self.stream = None
        if not self._over.done():
            self._over.set_result(None)
        if not self._welcomed.done():
            self._welcomed.set_exception(ConnectionLostError("the peer closed the connection"))
            self._welcomed.exception()  # somebody may wait for it, or nobody

    def handle(self, frame: Frame) -> None:
        if frame.type == FrameType.WELCOME:
            welcome = p.decode_welcome(frame.payload)
            assert self.stream is not None
            if not p.PEER_VERSION_OLDEST <= welcome.version <= p.PEER_VERSION:
                raise HandshakeError(f"the peer answers with version {welcome.version}, which was not offered")
            self.home.access.check_node(self.stream, welcome.node_id)
            life = Life(welcome.store_id, welcome.life, welcome.incarnation)
            self.check(welcome.cluster_id, welcome.node_id, life, welcome)
            self._build = welcome.build
            self.life = life
            self.cluster_id = welcome.cluster_id
            self.home.remember(welcome.node_id, life, partial(_settle, self._welcomed))
        elif frame.type == FrameType.RESPONSE:
            done = self._calls.pop(frame.request_id, None)
            if done is not None:
                done(frame.payload)
        elif frame.type == FrameType.ERROR:
            error = error_of(p.decode_error(frame.payload))
            done = self._calls.pop(frame.request_id, None)
            if done is not None:
                done(error)
            elif not frame.request_id and not self._welcomed.done():
                self._refusal, self._banned = Trouble(refused=str(error)), isinstance(error, NodeRefusedError)
                event(log_events.REFUSED_BY_PEER, peer=self.peer_name(), error=str(error))
                self._welcomed.set_exception(error)
                self._welcomed.exception()

    def call(self, method: int, payload: bytes, done: Done) -> None:
        """Send a request; ``done`` takes the answer."""
        self._next_call += 1
        self._calls[self._next_call] = done
        self.send(encode_frame(FrameType.REQUEST, payload, self._next_call, method))

    async def ask(self, method: int, payload: bytes) -> bytes:
        """The same, to be waited for. Raises MetadError."""
        answer: asyncio.Future[bytes | MetadError] = self._loop.create_future()
        self.call(method, payload, lambda result: None if answer.done() else answer.set_result(result))
        async with asyncio.timeout(_DIAL_TIMEOUT_S):
            result = await answer
        if isinstance(result, MetadError):
            raise result
        return result


def _said(error: BaseException) -> str:
    return str(error) or "it does not answer"


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
