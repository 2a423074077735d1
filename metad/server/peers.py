"""Connections to the other nodes: dialled by everyone to everyone, watched, and dialled again.

Nodes of one region speak TCP, nodes of different regions QUIC, on the same port of their peer listener. Where QUIC does
not get through (UDP is filtered on many networks) they speak TCP after all, and try again later. With certificates a
peer is held to the name in its own, at both ends.

A node sends on the links it dialled (:class:`_Link`) and receives on those it accepted (:class:`_Guest`). Per peer
there are two links: one for Raft and requests, one for snapshots, which would otherwise hold up heartbeats. A peer
counts as connected while the first is up; a link on which nothing is heard for two election timeouts is given up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial

import msgspec

from metad_wire import peer as p
from metad_wire.cluster import Join, MapRequest, NodeRecord
from metad_wire.errors import (
    ConnectionLostError,
    ErrorBody,
    FrameError,
    HandshakeError,
    MetadError,
    NotLeaderError,
    error_of,
)
from metad_wire.frame import HANDSHAKE_BYTES_MAX, Frame, FrameDecoder, FrameType, encode_frame
from metad_wire.messages import PeerLink
from metad_wire.methods import CLUSTER_JOIN, CLUSTER_MAP, MALFORMED
from metad_wire.peer import Channel, PeerHello, PeerWelcome
from metad_wire.policy import Backoff
from metad_wire.transport import Listener, Stream, Transport, split_endpoint
from metad_wire.transport.credentials import WORN, TlsError
from metad_wire.transport.path import path_of

from ..config import Config
from ..errors import ConfigError
from ..logs import event
from ..raft.replicas import PeerProtocolError
from .access import Access
from .network import Network
from .node import Node
from .parts import Done

_DIAL_TIMEOUT_S = 2.0
_BACKOFF = Backoff(base_s=0.05, cap_s=1.0)
_FAR_AGAIN_S = 60.0  # QUIC that did not get through is not tried again before; a dial in vain costs seconds
_UNSENT_BYTES_MAX = 64 * 1024 * 1024  # a peer that does not read for that long is cut off
_decode_error = msgspec.msgpack.Decoder(ErrorBody).decode


class Peers:
    """All connections of a node to others."""

    def __init__(self, config: Config, node: Node, network: Network, access: Access) -> None:
        self.config = config
        self.node = node
        self.network = network
        self.access = access
        self._listeners: list[Listener] = []
        self._links: dict[tuple[str, bool], _Link] = {}
        self._guests: set[_Guest] = set()
        self._tasks: dict[tuple[str, bool], asyncio.Task[None]] = {}
        self._joining: asyncio.Task[None] | None = None
        self._introduced: dict[str, str] = {}  # node id -> HOST:PORT, of the cluster that is being joined
        node.groups.transmit = self._transmit
        node.groups.transmit_bulk = self._transmit_bulk
        node.call_peer = self._call
        node.links = self._statuses
        node.groups.on_change.append(self._follow_map)

    async def start(self) -> None:
        """Listen for peers and begin to dial them. Raises :class:`ConfigError`."""
        cluster = self.config.cluster
        if not cluster.seeds and not cluster.join:
            return
        where = cluster.seeds.get(self.config.node_id, cluster.listen)
        try:
            host, port = split_endpoint(where)
            far = self.network.far
            if far is not None and port:  # first: who is let in by TCP is not to find QUIC closed
                await self._listen(far, host, port)
            endpoint = await self._listen(self.network.near, host, port)
            if far is not None and not port:
                await self._listen(far, host, split_endpoint(endpoint)[1])
        except ValueError as error:
            raise ConfigError(f"cluster: {error}") from None
        except OSError as error:
            raise ConfigError(f"cannot listen for peers on {where}: {error.strerror or error}") from None
        self.node.controller.peer_endpoint = cluster.advertise or endpoint
        event("listening for peers", endpoint=endpoint, quic=self.network.far is not None)
        self._follow_map()
        if cluster.join and self.node.map is None:
            self._joining = asyncio.create_task(self._join())

    async def _listen(self, transport: Transport, host: str, port: int) -> str:
        listener = await transport.listen(host, port, partial(_Guest, self))
        self._listeners.append(listener)
        return listener.endpoint

    async def stop(self) -> None:
        """Close every connection."""
        tasks = [*self._tasks.values(), *([self._joining] if self._joining is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for listener in self._listeners:
            await listener.close()
        for guest in list(self._guests):
            guest.close()

    # --- whom to reach -----------------------------------------------------------------------------------

    def _wanted(self) -> dict[str, str]:
        """Node id -> HOST:PORT, without this node."""
        wanted = {**self.config.cluster.seeds, **self._introduced}
        if self.node.map is not None:
            wanted = {record.node_id: record.peer_endpoint for record in self.node.map.nodes}
        wanted.pop(self.config.node_id, None)
        return {node: endpoint for node, endpoint in wanted.items() if endpoint}

    def _is_far(self, node_id: str) -> bool:
        """Whether a node is of another region than this one, as the map says."""
        mine, known = self.config.cluster.region, self.node.map
        if self.network.far is None or known is None:
            return False
        return any(n.node_id == node_id and n.region not in ("", mine) for n in known.nodes)

    def _follow_map(self) -> None:
        if not self._listeners:
            return
        wanted = self._wanted()
        for key, link in list(self._links.items()):
            if wanted.get(key[0]) != link.endpoint or self._is_far(key[0]) != link.far:
                self._tasks.pop(key).cancel()
                del self._links[key]
                link.close()
        for node, endpoint in wanted.items():
            for bulk in (False, True):
                if (node, bulk) not in self._links:
                    link = self._links[node, bulk] = _Link(self, node, endpoint, bulk=bulk, far=self._is_far(node))
                    self._tasks[node, bulk] = asyncio.create_task(link.keep())

    def hello(self, target: str, *, bulk: bool) -> bytes:
        """The first frame of a connection dialled."""
        identity = self.node.identity
        hello = PeerHello(
            p.PEER_MAGIC, p.PEER_VERSION, identity.cluster_id, identity.node_id, identity.store_id, target, bulk
        )
        return encode_frame(FrameType.HELLO, p.encode(hello))

    def check(self, cluster_id: str, node_id: str, store_id: str) -> None:
        """Raise HandshakeError where this is no node to talk to."""
        if cluster_id != self.node.identity.cluster_id:
            raise HandshakeError(f"this is cluster {self.node.identity.cluster_id!r}, not {cluster_id!r}")
        if node_id == self.node.identity.node_id:
            raise HandshakeError(f"there is another node named {node_id!r}")
        known = self.node.map
        record = next((n for n in known.nodes if n.node_id == node_id), None) if known is not None else None
        if record is not None and record.store_id and record.store_id != store_id:
            raise HandshakeError(
                f"{node_id!r} was here with another data directory; let it leave and join under a new name"
            )

    def _statuses(self) -> list[PeerLink]:
        return [link.status() for (_, bulk), link in sorted(self._links.items()) if not bulk]

    # --- what the node sends -----------------------------------------------------------------------------

    def _transmit(self, peer: str, payload: bytes) -> None:
        link = self._links.get((peer, False))
        if link is not None:
            link.send(encode_frame(FrameType.PEER, payload, 0, Channel.RAFT))

    def _transmit_bulk(self, peer: str, payload: bytes) -> None:
        link = self._links.get((peer, True))
        if link is not None:
            link.send(encode_frame(FrameType.PEER, payload, 0, Channel.SNAPSHOT))

    def _call(self, peer: str, method: int, payload: bytes, done: Done) -> None:
        link = self._links.get((peer, False))
        if link is None or not link.up:
            done(NotLeaderError(f"not connected to {peer}"))
        else:
            link.call(method, payload, done)

    # --- joining -----------------------------------------------------------------------------------------

    async def _join(self) -> None:
        """Ask the nodes named in the configuration, and whom they name, until one has taken this node in."""
        attempt = 0
        rng = self.node.environment.rng
        while self.node.map is None:
            endpoints = list(self.config.cluster.join)
            for endpoint in endpoints:
                try:
                    await self._ask_to_join(endpoint, endpoints)
                except (OSError, MetadError) as error:
                    event("cannot join yet", logging.WARNING, through=endpoint, error=str(error))
            await asyncio.sleep(max(0.2, _BACKOFF.delay_s(attempt, rng)))
            attempt += 1

    async def _ask_to_join(self, endpoint: str, endpoints: list[str]) -> None:
        link = _Link(self, "", endpoint, bulk=False, far=False)
        try:
            await link.dial()
            reply = CLUSTER_MAP.decode_reply(await link.ask(CLUSTER_MAP.code, CLUSTER_MAP.encode_request(MapRequest())))
            if reply.map is not None:
                # Whoever is to send this node the map must be able to hear it.
                self._introduced = {n.node_id: n.peer_endpoint for n in reply.map.nodes}
                self._follow_map()
                others = self._wanted().values()
                endpoints += [other for other in others if other not in endpoints]
            if not self.node.controller.endpoint:
                return  # clients could not be told where it is
            identity, controller = self.node.identity, self.node.controller
            record = NodeRecord(
                identity.node_id,
                controller.endpoint,
                controller.peer_endpoint,
                self.config.cluster.region,
                identity.store_id,
                quic_endpoint=controller.quic_endpoint,
            )
            with contextlib.suppress(NotLeaderError):  # the next endpoint may be the leader's
                await link.ask(CLUSTER_JOIN.code, CLUSTER_JOIN.encode_request(Join(record)))
        finally:
            link.close()

    # --- accepted connections ----------------------------------------------------------------------------

    def opened(self, guest: _Guest) -> None:
        """A connection was accepted."""
        self._guests.add(guest)

    def closed(self, guest: _Guest) -> None:
        """It is over."""
        self._guests.discard(guest)


class _Wire:
    """What both ends of a peer connection have in common: frames in, frames out."""

    def __init__(self, peers: Peers) -> None:
        self.peers = peers
        self.stream: Stream | None = None
        self.decoder = FrameDecoder(HANDSHAKE_BYTES_MAX)
        self.heard_s = 0.0
        self._loop = asyncio.get_running_loop()

    def connection_made(self, stream: Stream) -> None:
        self.stream = stream
        self.heard_s = self._loop.time()

    def data_received(self, data: bytes) -> None:
        self.heard_s = self._loop.time()
        self.decoder.feed(data)
        try:
            while self.stream is not None and (frame := self.decoder.next()) is not None:
                self.handle(frame)
        except (MetadError, PeerProtocolError, *MALFORMED) as error:
            self.refuse(error if isinstance(error, MetadError) else FrameError(str(error)))

    def handle(self, frame: Frame) -> None:
        raise NotImplementedError

    def refuse(self, error: MetadError) -> None:
        """Say why, and close."""
        event("peer connection refused", logging.WARNING, peer=self.peer_name(), error=error.name, detail=str(error))
        if self.stream is not None:
            self.stream.write(encode_frame(FrameType.ERROR, p.encode(error.body())))
        self.close()

    def peer_name(self) -> str:
        raise NotImplementedError

    def close(self) -> None:
        if self.stream is not None:
            self.stream.close()

    def eof_received(self) -> bool | None:
        return None

    def pause_writing(self) -> None:
        pass

    def resume_writing(self) -> None:
        pass


class _Guest(_Wire):
    """A connection that another node dialled."""

    def __init__(self, peers: Peers) -> None:
        super().__init__(peers)
        self.node_id = ""
        self._timeout = self._loop.call_later(peers.config.limits.handshake_timeout_ms / 1000, self._late)

    def peer_name(self) -> str:
        return self.node_id or str(self.stream and self.stream.get_extra_info("peername"))

    def connection_made(self, stream: Stream) -> None:
        super().connection_made(stream)
        self.peers.opened(self)
        try:
            self.peers.access.admit_node(stream)
        except MetadError as error:
            self.refuse(error)
            self.stream = None  # whatever it has sent already is not looked at

    def connection_lost(self, exc: Exception | None) -> None:
        self.stream = None
        self._timeout.cancel()
        self.peers.closed(self)

    def _late(self) -> None:
        if not self.node_id:
            self.refuse(HandshakeError("no handshake in time"))

    def handle(self, frame: Frame) -> None:
        node = self.peers.node
        if not self.node_id:
            self._welcome(frame)
        elif frame.type == FrameType.PEER:
            if frame.method == Channel.RAFT:
                node.peer_received(self.node_id, frame.payload)
            elif frame.method == Channel.SNAPSHOT:
                node.snapshot_received(self.node_id, frame.payload)
        elif frame.type == FrameType.PING:
            self._write(encode_frame(FrameType.PONG))
        elif frame.type == FrameType.REQUEST:
            node.requests.submit_peer(frame.method, frame.payload, partial(self._answer, frame.request_id))

    def _welcome(self, frame: Frame) -> None:
        if frame.type != FrameType.HELLO:
            raise HandshakeError("the first frame is no HELLO")
        hello = p.decode_hello(frame.payload)
        identity = self.peers.node.identity
        if hello.magic != p.PEER_MAGIC or hello.version != p.PEER_VERSION:
            raise HandshakeError("this is the peer listener of a metad node; clients have another")
        assert self.stream is not None
        self.peers.access.check_node(self.stream, hello.node_id)
        self.peers.check(hello.cluster_id, hello.node_id, hello.store_id)
        if hello.target not in ("", identity.node_id):
            raise HandshakeError(f"this is {identity.node_id!r}, not {hello.target!r}")
        self.node_id = hello.node_id
        self.decoder.frame_bytes_max = p.PEER_FRAME_BYTES_MAX
        welcome = PeerWelcome(p.PEER_VERSION, identity.cluster_id, identity.node_id, identity.store_id)
        self._write(encode_frame(FrameType.WELCOME, p.encode(welcome)))

    def _answer(self, request_id: int, result: bytes | MetadError) -> None:
        if isinstance(result, MetadError):
            self._write(encode_frame(FrameType.ERROR, p.encode(result.body()), request_id))
        else:
            self._write(encode_frame(FrameType.RESPONSE, result, request_id))

    def _write(self, data: bytes) -> None:
        if self.stream is not None:
            self.stream.write(data)


class _Probe(_Wire):
    """A connection that is only to see whether it comes up."""

    def peer_name(self) -> str:
        return "a probe"

    def handle(self, frame: Frame) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        self.stream = None


class _Link(_Wire):
    """A connection that this node dials, again and again."""

    def __init__(self, peers: Peers, node_id: str, endpoint: str, *, bulk: bool, far: bool) -> None:
        super().__init__(peers)
        self.node_id = node_id
        self.endpoint = endpoint
        self.bulk = bulk
        self.far = far
        self.up = False
        self.by_quic = False  # the connection that is up, or was last
        self._far_again_s = 0.0
        self._calls: dict[int, Done] = {}
        self._next_call = 0
        self._over: asyncio.Future[None] | None = None
        self._welcomed: asyncio.Future[None] | None = None
        self._unsent = 0
        self._paused = False

    def peer_name(self) -> str:
        return self.node_id or self.endpoint

    async def keep(self) -> None:
        """Have a connection, until cancelled."""
        attempt, rng = 0, self.peers.node.environment.rng
        while True:
            try:
                await self.dial()
                attempt = 0
                await self._watch()
            except (OSError, MetadError) as error:
                event("peer not reached", logging.DEBUG, peer=self.node_id, endpoint=self.endpoint, error=str(error))
                attempt += 1
            finally:
                self._down()
            await asyncio.sleep(_BACKOFF.delay_s(attempt, rng))

    async def dial(self) -> None:
        """Connect and shake hands. Raises OSError or MetadError."""
        try:
            host, port = split_endpoint(self.endpoint)
        except ValueError as error:
            raise HandshakeError(str(error)) from None
        self._over = self._loop.create_future()
        self._welcomed = self._loop.create_future()
        self.decoder = FrameDecoder(p.PEER_FRAME_BYTES_MAX)
        await self._connect(host, port)
        if self.stream is None:
            raise ConnectionLostError("the peer closed the connection")
        self.stream.write(self.peers.hello(self.node_id, bulk=self.bulk))
        async with asyncio.timeout(_DIAL_TIMEOUT_S):
            await self._welcomed
        self.up = True
        if self.node_id and not self.bulk:
            event("peer connected", peer=self.node_id, transport=self.transport_name)
            self.peers.node.peer_connected(self.node_id)

    async def _connect(self, host: str, port: int) -> None:
        network, now_s = self.peers.network, self._loop.time()
        self.by_quic = self.far and network.far is not None and now_s >= self._far_again_s
        if self.by_quic:
            assert network.far is not None
            try:
                await network.far.dial(host, port, lambda: self, _DIAL_TIMEOUT_S)
                return
            except TlsError:
                raise  # it got through, and was refused
            except OSError as error:
                self.by_quic = False
                self._over = self._loop.create_future()
                self._welcomed = self._loop.create_future()
                await network.near.dial(host, port, lambda: self, _DIAL_TIMEOUT_S)
                self._far_again_s = self._loop.time() + _FAR_AGAIN_S
                event("QUIC does not get through", logging.WARNING, peer=self.peer_name(), error=str(error))
                return
        await network.near.dial(host, port, lambda: self, _DIAL_TIMEOUT_S)

    async def _gets_through(self) -> bool:
        """Whether a link that should go by QUIC, and does not, could by now."""
        far, now_s = self.peers.network.far, self._loop.time()
        if not self.far or self.by_quic or far is None or now_s < self._far_again_s:
            return False
        self._far_again_s = now_s + _FAR_AGAIN_S
        try:
            probe = await far.dial(*split_endpoint(self.endpoint), partial(_Probe, self.peers), _DIAL_TIMEOUT_S)
        except OSError:
            return False
        probe.close()
        self._far_again_s = 0.0
        return True

    @property
    def transport_name(self) -> str:
        """What the connection that is up, or was last, goes by."""
        return "quic" if self.by_quic else "tls" if self.peers.network.encrypted else "tcp"

    def status(self) -> PeerLink:
        """For whoever asks how the node is."""
        path = path_of(self.stream) if self.stream is not None and self.up else None
        return PeerLink(self.node_id, self.transport_name, self.up, round(path.rtt_s * 1e6) if path is not None else 0)

    async def _watch(self) -> None:
        """Wait until the connection is over, or silent for too long."""
        assert self._over is not None
        every_s = self.peers.node.replicas.timing.election_s / 3
        patience_s = 6 * every_s
        while not self._over.done():
            before_s = self._loop.time()
            self.send(encode_frame(FrameType.PING))
            await asyncio.wait((self._over,), timeout=every_s)
            now_s = self._loop.time()
            if now_s - before_s > 2 * every_s:
                continue  # the loop was late itself: what came meanwhile is yet to be read
            if now_s - self.heard_s > patience_s:
                event("peer silent", logging.WARNING, peer=self.node_id)
                return
            if self.stream is not None and self.stream.get_extra_info(WORN):
                event("peer connection worn", logging.DEBUG, peer=self.node_id)
                return
            if await self._gets_through():
                event("QUIC gets through again", peer=self.node_id)
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
                event("peer lost", peer=self.node_id)
                self.peers.node.peer_lost(self.node_id)

    def close(self) -> None:
        self._down()

    def connection_lost(self, exc: Exception | None) -> None:
        self.stream = None
        if self._over is not None and not self._over.done():
            self._over.set_result(None)
        if self._welcomed is not None and not self._welcomed.done():
            self._welcomed.set_exception(ConnectionLostError("the peer closed the connection"))
            self._welcomed.exception()  # somebody may wait for it, or nobody

    def handle(self, frame: Frame) -> None:
        if frame.type == FrameType.WELCOME:
            welcome = p.decode_welcome(frame.payload)
            assert self.stream is not None
            self.peers.access.check_node(self.stream, welcome.node_id)
            self.peers.check(welcome.cluster_id, welcome.node_id, welcome.store_id)
            if self._welcomed is not None and not self._welcomed.done():
                self._welcomed.set_result(None)
        elif frame.type == FrameType.RESPONSE:
            done = self._calls.pop(frame.request_id, None)
            if done is not None:
                done(frame.payload)
        elif frame.type == FrameType.ERROR:
            error = error_of(_decode_error(frame.payload))
            done = self._calls.pop(frame.request_id, None)
            if done is not None:
                done(error)
            elif not frame.request_id and self._welcomed is not None and not self._welcomed.done():
                event("peer refuses this node", logging.WARNING, peer=self.peer_name(), error=str(error))
                self._welcomed.set_exception(error)
                self._welcomed.exception()

    def send(self, data: bytes) -> None:
        """Write a frame, if the link is up."""
        if self.stream is None:
            return
        if self._paused:
            self._unsent += len(data)
            if self._unsent > _UNSENT_BYTES_MAX:
                event("peer does not read", logging.WARNING, peer=self.node_id)
                self.stream.abort()
                return
        self.stream.write(data)

    def pause_writing(self) -> None:
        self._paused, self._unsent = True, 0

    def resume_writing(self) -> None:
        self._paused, self._unsent = False, 0

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
