"""Connections to the other nodes: dialled by everyone to everyone, watched, and dialled again.

Nodes of one region speak TCP, nodes of different regions QUIC, on the same port of their peer listener. Where QUIC does
not get through (UDP is filtered on many networks) they speak TCP after all, and try again later. With certificates a
peer is held to the name in its own, at both ends.

A node sends on the links it dialled (:class:`Outbound`) and receives on those it accepted (:class:`Inbound`). Per peer
there are two links: one for Raft and requests, one for snapshots, which would otherwise hold up heartbeats. A peer
counts as connected while the first is up; a link on which nothing is heard for two election timeouts is given up.

Another node that has dialled greets; then its payloads and requests are taken in.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from metad_wire.cluster import METADATA, ClusterMap, ClusterName, Join, MapRequest
from metad_wire.connection import peer as p
from metad_wire.connection.frame import Frame, FrameType, encode_frame
from metad_wire.connection.peer import Channel, PeerHello, PeerWelcome
from metad_wire.errors import (
    ConnectionLostError,
    HandshakeError,
    MetadError,
    NodeRefusedError,
    NotLeaderError,
    OverloadedError,
    SlowReaderError,
    UnexpectedFrameError,
)
from metad_wire.methods import CLUSTER_JOIN, CLUSTER_MAP
from metad_wire.program.build import build
from metad_wire.tables.feature import FEATURES
from metad_wire.transport import Listener, Stream, Transport, join_endpoint, split_endpoint
from metad_wire.transport.services import endpoints_of, is_service

from ... import log_events
from ...config import Config, bound_for_nodes
from ...control.map.decisions import copied_directory, foreign_directory
from ...control.map.seen import Reach
from ...errors import ConfigError, RefusedError, ServerError
from ...logs import event
from ...node.lives import Life
from ...node.node import Node
from ...state.cluster.cluster import logged_map
from ..access import Access
from ..network import Network
from .outbound import BACKOFF, Outbound
from .peer_connection import Home, PeerConnection
from .refusals import Answer, Refusals, majority_of

GREETING_MAX: Final = 64
"""Connections that have not said yet whose they are. Honest peers take milliseconds."""
_PIECE_BYTES: Final = 1 << 20  # of a log that is read
PER_NODE_MAX: Final = 8
"""Of one node: two that it sends on, two that it has given up and we do not know of yet, one to join by."""
_LOOKS: Final = 3


class Inbound(PeerConnection):
    """A connection that another node dialled."""

    def __init__(self, home: Home, guests: dict[Inbound, None]) -> None:
        """``guests`` are those that are up, the oldest first, this one among them while it is."""
        super().__init__(home)
        self._guests = guests
        self.node_id = ""
        self.cluster_id = ""
        self._claimed = ""  # the name that it gave itself
        self._welcomed = False
        limits = home.config.limits
        self._patience_s = max(limits.idle_timeout_ms, 2 * home.config.raft.election_timeout_ms) / 1000
        self._timer = self._loop.call_later(limits.handshake_timeout_ms / 1000, self._late)

    def peer_name(self) -> str:
        if self.node_id or self._claimed:
            return self.node_id or self._claimed
        address = self.stream.get_extra_info("peername") if self.stream is not None else None
        # Without the port, which is another one each time: the log counts the refusals of one peer.
        return str(address[0]) if isinstance(address, tuple) else str(address)

    def connection_made(self, stream: Stream) -> None:
        super().connection_made(stream)
        self._guests[self] = None
        self._make_room("", GREETING_MAX)
        try:
            self.home.access.admit_node(stream)
        except MetadError as error:
            self.refuse(error)

    def _make_room(self, node_id: str, most: int) -> None:
        """Of those of one node, or of those that have not said yet whose they are, the longest silent goes."""
        like_this = [guest for guest in self._guests if guest.node_id == node_id and not guest.refused]
        if len(like_this) > most:
            silent = min(like_this, key=lambda guest: guest.heard_s)
            silent.refuse(OverloadedError("too many connections; this one was silent the longest"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.stream = None
        self._timer.cancel()
        self._guests.pop(self, None)

    def _late(self) -> None:
        if not self.node_id:
            self.refuse(HandshakeError("no handshake in time"))

    def _look(self) -> None:
        """A peer pings three times in each of its election timeouts: one that says nothing is gone, and its connection
        half open."""
        if self.silent_s() > self._patience_s:
            self.refuse(SlowReaderError("nothing was heard for a long time"))
        else:
            self._look_later()

    def _look_later(self) -> None:
        self._timer = self._loop.call_later(self._patience_s / _LOOKS, self._look)

    def handle(self, frame: Frame) -> None:
        node = self.home.node
        if not self.node_id:
            self._greet(frame)
        elif not self._welcomed:
            raise UnexpectedFrameError("a frame before the WELCOME")
        elif frame.type == FrameType.PEER:
            if not self.home.is_one_of_us(self.cluster_id, self.node_id):
                return  # Raft lives with losses, and its membership is being decided
            if frame.method == Channel.RAFT:
                node.peer_received(self.node_id, frame.payload)
            elif frame.method == Channel.SNAPSHOT:
                node.snapshot_received(self.node_id, frame.payload)
        elif frame.type == FrameType.PING:
            self.send(encode_frame(FrameType.PONG))
        elif frame.type == FrameType.REQUEST:
            node.requests.submit_peer(frame.method, frame.payload, partial(self._answer, frame.request_id))

    def _greet(self, frame: Frame) -> None:
        if frame.type != FrameType.HELLO:
            raise HandshakeError("the first frame is no HELLO")
        if p.decode_greeting(frame.payload).magic != p.PEER_MAGIC:  # a client's HELLO is no PeerHello
            raise HandshakeError("this is the port for nodes; clients use another: listen of the node")
        hello = p.decode_hello(frame.payload)
        identity = self.home.node.identity
        version = p.agreed_version(hello.version, hello.newest)
        if version is None:
            raise HandshakeError(
                f"no version between nodes in common: here {p.PEER_VERSION_OLDEST} to {p.PEER_VERSION}, there "
                f"{hello.version} to {max(hello.version, hello.newest)}"
            )
        assert self.stream is not None
        self.home.access.check_node(self.stream, hello.node_id)
        life = Life(hello.store_id, hello.life, hello.incarnation)
        self._claimed = hello.node_id
        if ClusterName.parse(identity.cluster_id).supersedes(ClusterName.parse(hello.cluster_id)):
            self._welcome(version)  # so that it knows that it is of before, and ends
        self.check(hello.cluster_id, hello.node_id, life, hello)
        self.life = life
        if hello.target not in ("", identity.node_id):
            raise HandshakeError(f"this is {identity.node_id!r}, not {hello.target!r}")
        self.node_id, self.cluster_id = hello.node_id, hello.cluster_id
        self._make_room(hello.node_id, PER_NODE_MAX)
        self._timer.cancel()
        self._look_later()
        self.decoder.frame_bytes_max = p.PEER_FRAME_BYTES_MAX
        self.home.remember(hello.node_id, life, partial(self._welcome, version))

    def _welcome(self, version: int) -> None:
        identity = self.home.node.identity
        welcome = PeerWelcome(
            version,
            identity.cluster_id,
            identity.node_id,
            identity.store_id,
            identity.life,
            identity.incarnation,
            build(),
            sorted(FEATURES),
        )
        self._welcomed = True
        self.home.met()
        self.send(encode_frame(FrameType.WELCOME, p.encode(welcome)))

    def _answer(self, request_id: int, result: bytes | MetadError) -> None:
        if isinstance(result, MetadError):
            self.send(encode_frame(FrameType.ERROR, p.encode(result.body()), request_id))
        else:
            self.send(encode_frame(FrameType.RESPONSE, result, request_id))


class Peers:
    """All connections of a node to others."""

    def __init__(self, config: Config, node: Node, network: Network, access: Access) -> None:
        self.config = config
        self.node = node
        self.network = network
        self.access = access
        self._listeners: list[Listener] = []
        self._links: dict[tuple[str, bool], Outbound] = {}
        self._guests: dict[Inbound, None] = {}
        self._tasks: dict[tuple[str, bool], asyncio.Task[None]] = {}
        self._joining: asyncio.Task[None] | None = None
        self._introduced: ClusterMap | None = None  # by another node, whose map was newer than this node's
        self._asking: asyncio.Task[None] | None = None
        self._refusals = Refusals()
        self._why_refused = ""
        node.groups.on_change.append(self._follow_map)

    async def start(self) -> None:
        """Listen for peers and begin to dial them. Raises :class:`ConfigError`."""
        where = bound_for_nodes(self.config)
        if not where:
            return
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
        self.node.presence.meets(endpoint)
        event(log_events.LISTENING_FOR_PEERS, endpoint=endpoint, quic=self.network.far is not None)
        self._introduced = _newest_in_log(self.node)
        self._follow_map()
        if self.config.cluster.join and (self.node.map is None or self.node.controller.departure.unsure):
            self._joining = asyncio.create_task(self._join())

    async def _listen(self, transport: Transport, host: str, port: int) -> str:
        listener = await transport.listen(host, port, partial(Inbound, self, self._guests))
        self._listeners.append(listener)
        return listener.endpoint

    async def stop(self) -> None:
        """Close every connection."""
        tasks = [*self._tasks.values(), *(task for task in (self._joining, self._asking) if task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            await listener.close()
        for guest in list(self._guests):
            guest.close()

    # --- whom to reach -----------------------------------------------------------------------------------

    def _wanted(self) -> dict[str, str]:
        """Node id -> HOST:PORT, without this node."""
        known = self.node.map
        wanted = {**self.config.cluster.seeds} if known is None else {n.node_id: n.peer_endpoint for n in known.nodes}
        if self._introduced is not None and self._introduced.version > (0 if known is None else known.version):
            wanted |= {n.node_id: n.peer_endpoint for n in self._introduced.nodes}
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
                self.node.outbound.remove(key[0], bulk=key[1])
                link.close()
        for node, endpoint in wanted.items():
            for bulk in (False, True):
                if (node, bulk) not in self._links:
                    link = self._links[node, bulk] = Outbound(self, node, endpoint, bulk=bulk, far=self._is_far(node))
                    self.node.outbound.add(node, link, bulk=bulk)
                    self._tasks[node, bulk] = asyncio.create_task(link.keep())

        peers: list[Inbound | Outbound] = [*self._guests, *self._links.values()]
        for peer in peers:
            if peer.life is not None:  # it may have become a member since it greeted
                self.remember(peer.node_id, peer.life, _nothing)

    def hello(self, target: str, *, bulk: bool) -> bytes:
        """The first frame of a connection dialled."""
        identity = self.node.identity
        hello = PeerHello(
            p.PEER_MAGIC,
            p.PEER_VERSION_OLDEST,
            identity.cluster_id,
            identity.node_id,
            identity.store_id,
            target,
            bulk,
            identity.life,
            identity.incarnation,
            p.PEER_VERSION,
            build(),
            sorted(FEATURES),
        )
        return encode_frame(FrameType.HELLO, p.encode(hello))

    def check(self, cluster_id: str, node_id: str, life: Life) -> None:
        """Raise HandshakeError where this is no node to talk to. A founder names no cluster before it has heard that it
        was formed, nor does a node that is to join."""
        ours = self.node.identity.cluster_id
        if ours and cluster_id and ours != cluster_id:
            if self.node.failure is None and ClusterName.parse(cluster_id).supersedes(ClusterName.parse(ours)):
                try:
                    error: ServerError = self.node.stores.supersede(cluster_id)
                except ServerError as failed:
                    error = failed
                self.node.health.fail(error)
            raise HandshakeError(f"this is cluster {ours!r}, not {cluster_id!r}")
        if node_id == self.node.identity.node_id:
            self._check_namesake(node_id, self.node.presence.record.peer_endpoint, self.node.identity.store_id, life)
        if (living := self._living(node_id)) is not None and living.life is not None and living.life != life:
            self._check_namesake(node_id, living.endpoint, living.life.store_id, life)
        known = self._newest_map()
        record = None if known is None else known.node(node_id)
        # The map of a cluster that has just formed does not have it yet. A node of then has promised something already.
        store_id = "" if record is None else record.store_id or self.node.lives.store_of(node_id)
        if record is not None and store_id and store_id != life.store_id:
            # A newer map may say that a node of this name has left, and another one joined since.
            self._ask_soon()
            reach = self.node.controller.reach(node_id)
            raise HandshakeError(foreign_directory(node_id, record.peer_endpoint, reach))
        self.node.lives.check(node_id, life)

    def _check_namesake(self, node_id: str, endpoint: str, store_id: str, life: Life) -> None:
        """Refuse a node while another of its name is alive at this address, with the data directory ``store_id``."""
        if life.store_id != store_id:
            raise HandshakeError(foreign_directory(node_id, endpoint, Reach.ALIVE))
        if life.number:  # 0: a version that does not count lives, so nothing can be told
            raise HandshakeError(copied_directory(node_id, endpoint))

    def _living(self, node_id: str) -> Outbound | None:
        """The link to a node that was heard on it a moment ago. A node that has just been started again is no longer:
        its connections of before are over, or have fallen silent."""
        link = self._links.get((node_id, False))
        if link is None or not link.up:
            return None
        heard_ago_s = asyncio.get_running_loop().time() - link.heard_s
        return link if heard_ago_s < self.node.replicas.timing.election_s else None

    def judge(self) -> None:
        """End the node if every other node refuses it for what it is."""
        links = {node: link for (node, bulk), link in self._links.items() if not bulk}
        answers = {node: link.answer for node, link in links.items()}
        why = next((link.refusal for link in links.values() if link.refusal), "")
        self._judge(answers, why, enough=majority_of(len(answers)))

    def _judge(self, answers: Mapping[str, Answer], why: str, *, enough: int) -> None:
        """``answers`` are those of the other nodes, by node id or address; ``why`` is what one of them said, empty if
        none of them refuses this node at the moment; ``enough`` of them must refuse it."""
        self._why_refused = why or self._why_refused
        names = self._refusals.final(answers, self.node.environment.now(), enough)
        if names:
            verb = "refuses" if len(names) == 1 else "refuse"
            self.node.health.fail(RefusedError(f"{', '.join(names)} {verb} this node: {self._why_refused}"))

    def remember(self, node_id: str, life: Life, then: Callable[[], None]) -> None:
        """Call ``then`` once it is durably known that the node was here in this life."""
        known = self.node.map
        if known is None:  # a node that has just started may be behind its map: nobody is forgotten yet
            members = {*self.config.cluster.seeds, *self.node.lives.names}
        else:
            members = {record.node_id for record in known.nodes}
        self.node.lives.remember(node_id, life, members, then)

    def is_one_of_us(self, cluster_id: str, node_id: str) -> bool:
        """Whether a peer that greeted so may take part in Raft: a founder may, and a member, but not yet one that names
        no cluster and is to be taken in by this one, for it may as well be the founder of another."""
        known = self.node.map
        return bool(cluster_id) or known is None or known.node(node_id) is not None

    # --- joining -----------------------------------------------------------------------------------------

    async def _join(self) -> None:
        """Ask the nodes named in the configuration, and whom they name, until one says that it took this node in."""
        attempt = 0
        rng = self.node.environment.rng
        while self.node.map is None or self.node.controller.departure.unsure:
            endpoints = await self._located()
            answers: dict[str, Answer] = {}
            why = ""
            for endpoint in endpoints:
                answers[endpoint] = Answer.TAKES
                try:
                    await self._ask_to_join(endpoint, endpoints)
                except ServerError as error:
                    self.node.health.fail(error)
                    return
                except (OSError, MetadError) as error:
                    answers[endpoint] = _answer_in(error)
                    if answers[endpoint] is Answer.BANS:
                        why = str(error)
                    event(log_events.CANNOT_JOIN_YET, through=endpoint, error=str(error) or "it does not answer")
            # A node that is no member yet loses nothing by ending: all that it knows are enough.
            if answers:
                self._judge(answers, why, enough=min(len(answers), majority_of(len(answers))))
            await asyncio.sleep(max(0.2, BACKOFF.delay_s(attempt, rng)))
            attempt += 1

    async def _located(self) -> list[str]:
        """The nodes named in the configuration, and those that services there have now."""
        found: list[str] = []
        for endpoint in list(self.config.cluster.join):
            if not is_service(endpoint):
                found.append(endpoint)
                continue
            try:
                found += [join_endpoint(*each) for each in await endpoints_of(endpoint)]
            except OSError as error:
                event(log_events.CANNOT_JOIN_YET, through=endpoint, error=str(error))
        return found

    def _introduce(self, newer: ClusterMap) -> None:
        self._introduced = newer
        self._follow_map()

    # --- members that joined while this node was away ----------------------------------------------------

    def met(self) -> None:
        """A node that is not known here may have joined meanwhile, and may lead the group that keeps the map: it must
        be able to hear this node before this node can get a newer map from it."""
        if self._strangers():
            self._ask_soon()

    def _ask_soon(self) -> None:
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_around())

    def _strangers(self) -> bool:
        wanted = self._wanted()
        return any(guest.node_id and guest.node_id not in wanted for guest in self._guests)

    async def _ask_around(self) -> None:
        """Ask the nodes that are known for their map, and again until nobody unknown is connected."""
        attempt, again = 0, True
        while again:
            for link in [link for (_, bulk), link in self._links.items() if not bulk and link.up]:
                with contextlib.suppress(OSError, MetadError):
                    payload = CLUSTER_MAP.encode_request(MapRequest(self._version()))
                    reply = CLUSTER_MAP.decode_reply(await link.ask(CLUSTER_MAP.code, payload))
                    if reply.map is not None and reply.map.version > self._version():
                        self._introduce(reply.map)
            attempt += 1
            await asyncio.sleep(max(0.2, BACKOFF.delay_s(attempt, self.node.environment.rng)))
            again = self._strangers()

    def _newest_map(self) -> ClusterMap | None:
        """The newest that this node has heard of: its own, or another node's."""
        known, introduced = self.node.map, self._introduced
        if known is None or introduced is None:
            return known
        return introduced if introduced.version > known.version else known

    def _version(self) -> int:
        known = self._newest_map() or self._introduced
        return 0 if known is None else known.version

    async def _ask_to_join(self, endpoint: str, endpoints: list[str]) -> None:
        link = Outbound(self, "", endpoint, bulk=False, far=False)
        try:
            await link.dial()
            reply = CLUSTER_MAP.decode_reply(await link.ask(CLUSTER_MAP.code, CLUSTER_MAP.encode_request(MapRequest())))
            if reply.map is not None:
                self.node.adopt(link.cluster_id)  # before this node becomes a member: of one cluster only
                # Whoever is to send this node the map must be able to hear it.
                self._introduce(reply.map)
                self.node.controller.heard(reply.map)
                others = self._wanted().values()
                endpoints += [other for other in others if other not in endpoints]
            if not self.node.presence.record.endpoint:
                return  # clients could not be told where it is
            with (
                contextlib.suppress(NotLeaderError),
                self.node.controller.departure.joining(),
            ):  # the next may be the leader's
                member_at = self.node.controller.departure.member_at
                asked = CLUSTER_JOIN.encode_request(Join(self.node.presence.record, member_at))
                self.node.controller.departure.heard(await link.ask(CLUSTER_JOIN.code, asked))
        finally:
            link.close()


def _answer_in(error: OSError | MetadError) -> Answer:
    """What a node has said to this one that asked to join."""
    if isinstance(error, NodeRefusedError):
        return Answer.BANS
    return Answer.NONE if isinstance(error, OSError | ConnectionLostError) else Answer.REFUSES


def _nothing() -> None:
    pass


def _newest_in_log(node: Node) -> ClusterMap | None:
    """The newest map in the log of ``metadata-0`` that is not applied yet; None if there is none. A node that starts
    again applies it once a majority is there, and may know only from it whom and where its other voters are."""
    driver = node.drivers[METADATA]
    log, newest = driver.group.log, None
    at = max(driver.machine.applied, log.base_index) + 1
    while at <= log.last_index:
        for record in log.records(at, _PIECE_BYTES):
            newest = logged_map(record, at) or newest
            at += 1
    return newest
