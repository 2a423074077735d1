"""A listening server: accepts connections, closes idle or stuck ones, drains on request.

It says when the certificates of this node end: long before, at the moment itself, and as long as they are over.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from math import inf
from pathlib import Path
from typing import Final

from metad_wire.errors import DrainingError, FrameError, OverloadedError, SlowReaderError, UnauthenticatedError
from metad_wire.messages import CertificateStatus
from metad_wire.operator.authority import ends_at
from metad_wire.policy.fair_room import FairRoom, Place
from metad_wire.transport import Listener, Transport, split_endpoint
from metad_wire.transport.pace import greeting_max
from metad_wire.transport.reload import signature

from .. import log_events
from ..config import Config
from ..config.files import NOWHERE, Origins
from ..errors import ConfigError, ServerError
from ..logs import event
from ..node.disk.checkpoints import DiskRoom
from ..node.disk.stores import Stores, no_stores
from ..node.environment import AsyncEnvironment, Environment
from ..node.node import Node
from .access import Access, Authorities
from .budgets import ReceiveBudget, SendBudget
from .connection import Connection
from .lamps.http_port import HttpPort
from .network import Network, Probe
from .peers.peers import Peers

LOOK_S: Final = 5.0
"""How often the files and the clock are looked at: soon after a file was replaced, and soon after an end."""
SAY_S: Final = 3_600.0
"""How often the same is said again."""
_SOON_DAYS: Final = 30
_DAY_S: Final = 86_400


class Certificates:
    """The files of one node. Those of a fleet often end together, and then no peer is admitted any more."""

    def __init__(self, paths: dict[str, str]) -> None:
        """``paths``: by the key of the configuration."""
        self._named = {key: path for key, path in paths.items() if path}
        self._paths = [*self._named.values()]
        self._seen: list[tuple[int, int, int] | None] = []
        self._ends: dict[str, datetime] = {}
        self._over: set[str] = set()
        self._said_s = float("-inf")

    def statuses(self) -> list[CertificateStatus]:
        """When the certificates end."""
        ends_ms = {
            key: round(1_000 * self._ends[path].timestamp()) for key, path in self._named.items() if path in self._ends
        }
        now_ms = time.time_ns() // 1_000_000
        return [CertificateStatus(key, end_ms, max(0, end_ms - now_ms)) for key, end_ms in ends_ms.items()]

    def look(self, now_s: float) -> None:
        """Look at this time of the calendar. What is new is said at once."""
        seen = signature(self._paths)
        changed = seen != self._seen
        if changed:
            self._seen = seen
            found = {path: ends_at(path) for path in self._paths}
            self._ends = {path: ends for path, ends in found.items() if ends is not None}
        over = {path for path, ends in self._ends.items() if ends.timestamp() <= now_s}
        if not changed and over == self._over and 0 <= now_s - self._said_s < SAY_S:
            return
        self._over, self._said_s = over, now_s
        for path, ends in self._ends.items():
            days = (ends.timestamp() - now_s) / _DAY_S
            if path in over:
                event(log_events.CERTIFICATES_ENDED, path=path, ended=ends.isoformat())
            elif days < _SOON_DAYS:
                event(log_events.CERTIFICATES_END_SOON, path=path, days=round(days, 1), ends=ends.isoformat())


GREETING_MAX = 512
"""Connections not welcomed yet, in addition to the welcomed ones: one more ends the oldest, if possible one without a
certificate. Honest clients greet at once, and a stranger takes no place from an admitted client."""
_SWEEP_S = 0.5
TOKENS_LOOK_S = 0.5
"""How often it is looked at who is not let in any more: the connections of a token that was withdrawn or has ended end
then."""
_COME_AGAIN_S = 3.0
"""After this time a client is to open a new connection whose certificate may be of an authority that is trusted no
more: by then all listeners know that. After twice that time the old one ends."""
_LISTENERS_S = 10.0
"""After this time every listener has read the file of authorities anew, however slow the machine is."""
_AT_ONCE = 256  # connections that are looked at in a turn
Where = dict[str, tuple[str, Transport]]
"""By the key of the configuration."""


class Server:
    """A node and its listeners. ``await Server.start(...)``, ``await server.run()``, ``await server.stop()``."""

    def __init__(self, config: Config, node: Node, network: Network, access: Access, probe: Probe) -> None:
        self.config = config
        self._probe = probe
        self.node = node
        self.access = access
        self.endpoint = ""
        """host:port that clients reach over TCP."""
        self.quic_endpoint = ""
        """host:port that clients reach over QUIC; empty if there is none."""
        self.http: HttpPort | None = None
        self.peers = Peers(config, node, network, access)
        security = config.security
        self._certificates = Certificates({"certificate": security.certificate, "ca": security.ca})
        self._pace = network.pace
        self._listeners: list[Listener] = []
        self._connections: set[Connection] = set()
        self._greeting: dict[Connection, None] = {}  # not welcomed yet, the oldest first
        self._served = FairRoom("connections", config.limits.connections_max, ends="the end of the connection")
        self._places: dict[Connection, Place] = {}  # of those that are welcomed
        node.permissions.quotas.connections = self._served.held_by
        node.certificates = self._certificates.statuses
        self._intake = ReceiveBudget(config.limits.unfinished_bytes_max, asyncio.get_running_loop().call_later)
        self._unbegun = FairRoom(
            "bytes of requests that are not begun", config.limits.unbegun_bytes_max, ends="the turn of its connection"
        )
        self._unsent = SendBudget(config.limits.unsent_bytes_max)
        node.settings.listeners.append(self._heed)

    def _heed(self, config: Config) -> None:
        """Have whoever has copied a setting take what counts now."""
        limits = config.limits
        self.config = config
        self._intake.bytes_max = limits.unfinished_bytes_max
        self._unbegun.size_max = limits.unbegun_bytes_max
        self._unsent.bytes_max = limits.unsent_bytes_max
        for connection in self._connections:
            connection.limits = limits

    @classmethod
    async def start(
        cls,
        config: Config,
        network: Network,
        *,
        stores: Stores | None = None,
        environment: Environment | None = None,
        locked: Callable[[], None] | None = None,
        origins: Origins = NOWHERE,
    ) -> Server:
        """Open the node, recover, listen. ``locked`` is called once this process has locked the stores, before
        recovery. ``origins``: where the settings are from. ``stores`` and ``environment`` replace the real ones. Raises
        :class:`ServerError`."""
        access = Access(config.security, encrypted=network.encrypted)
        where = _where(config, network)
        probe = Probe(network.plain)
        node = await Node.open(
            config, stores=stores, environment=environment, locked=locked, dial=probe, origins=origins
        )
        server = cls(node.config, node, network, access, probe)
        await server._listen_for_clients(where)
        node.presence.serves(server.endpoint, server.quic_endpoint)
        try:
            await server.peers.start()
        except ServerError:
            await server.stop()
            raise
        event(
            log_events.LISTENING,
            endpoint=server.endpoint,
            quic=server.quic_endpoint or None,
            encrypted=network.encrypted,
            http=server.http.endpoint if server.http is not None else None,
            fsync=config.fsync,
        )
        return server

    @classmethod
    async def tell(cls, config: Config, network: Network, why: ServerError) -> Server:
        """Listen for clients that ask for the status of a node which cannot be opened now. Raises
        :class:`ServerError`."""
        node = Node(config, no_stores(config), AsyncEnvironment())
        node.disk_room = DiskRoom(Path(config.data_dir), (), node.config.storage, node.environment, node.checkpoints)
        node.disk_room.start()
        node.health.end(why)
        server = cls(config, node, network, Access(config.security, encrypted=network.encrypted), Probe(network.plain))
        await server._listen_for_clients(_where(config, network))
        return server

    async def _listen_for_clients(self, where: Where) -> None:
        try:
            self.endpoint = await self._listen("listen", *where["listen"])
            if "quic" in where:
                self.quic_endpoint = await self._listen("quic", *where["quic"])
            if self.config.http:
                self.http = HttpPort.of(self.config, self.node, self.access)
        except ConfigError:
            for listener in self._listeners:
                await listener.close()
            await self.node.close()
            raise

    async def _listen(self, field: str, endpoint: str, transport: Transport) -> str:
        host, port = _split(field, endpoint)
        try:
            listener = await transport.listen(host, port, self._accept)
        except (OSError, ValueError) as error:  # ValueError: a host that cannot be encoded
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise ConfigError(f"cannot listen on {endpoint}: {reason}") from None
        self._listeners.append(listener)
        return listener.endpoint

    async def run(self) -> None:
        """Work until cancelled, or until the node fails; raises its error."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.node.run())
                tasks.create_task(self._sweep())
                if self.access.encrypted:
                    tasks.create_task(self._watch_certificates())
                    tasks.create_task(self._watch_principals())
        except* ServerError as group:
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            raise error from None

    async def stop(self) -> bool:
        """Hand over, drain and close. True if every request taken was answered in time."""
        for listener in self._listeners:
            await listener.close()
        loop, timeout_s = asyncio.get_running_loop(), self.config.drain_timeout_ms / 1000
        deadline_s = loop.time() + timeout_s
        # First, so that clients that are sent away find a leader elsewhere. A transfer is given up after two election
        # timeouts at most.
        hand_over_s = min(timeout_s, 2 * self.config.raft.election_timeout_ms / 1000)
        await self.node.hand_over(hand_over_s)
        for connection in list(self._connections):
            connection.goaway("the node is shutting down")
        drained = await self.node.drain(max(0.0, deadline_s - loop.time()))
        # Groups that came meanwhile, handed over while there still are peers.
        await self.node.hand_over(min(hand_over_s, max(0.0, deadline_s - loop.time())))
        # One turn of the loop lets the last answers reach their streams.
        await asyncio.sleep(0)
        for connection in list(self._connections):
            connection.close(DrainingError("the node has shut down"))
        if self.http is not None:
            await self.http.close()
        await self.peers.stop()
        self._probe.stop()
        await self.node.close()
        event(log_events.STOPPED, drained=drained)
        return drained

    def _accept(self) -> Connection:
        return Connection(
            self.node,
            self._intake,
            self._unbegun,
            self._unsent,
            self.access,
            opened=self._opened,
            welcomed=self._welcomed,
            closed=self._closed,
        )

    def _opened(self, connection: Connection) -> None:
        self._connections.add(connection)
        self._greeting[connection] = None
        self.node.serves(len(self._connections), self._pace.delayed)
        if len(self._greeting) > min(GREETING_MAX, greeting_max(self.config.limits.connections_max)):
            # A flooding peer has no certificate, or its certificate identifies it.
            strangers = (one for one in self._greeting if not one.certified)
            oldest = next(strangers, next(iter(self._greeting)))
            del self._greeting[oldest]
            oldest.close(OverloadedError("too many connections that have not sent HELLO", retry_after_ms=1_000))

    def _welcomed(self, connection: Connection) -> bool:
        self._greeting.pop(connection, None)
        place = self._served.take(connection.holder, 1, partial(self._take_back, connection))
        if place is None:
            return False
        self._places[connection] = place
        return True

    def _take_back(self, connection: Connection) -> None:
        """Others, who have fewer, need a connection."""
        self._served.give(self._places.pop(connection))
        connection.close(OverloadedError("others need the room of this connection", retry_after_ms=1_000))

    def _closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._served.forget(self._places.pop(connection, None))
        self._greeting.pop(connection, None)
        self.node.serves(len(self._connections), self._pace.delayed)

    async def _watch_certificates(self) -> None:
        while True:
            self._certificates.look(self.node.environment.wall_ms() / 1000)
            await asyncio.sleep(LOOK_S)

    async def _watch_principals(self) -> None:
        """End the connections of those who are not let in any more: their token is withdrawn, their JWT or certificate
        has ended, its authority is trusted no more, or they are denied everything."""
        known, changes = self.access.accepted, -1
        trusted = lost = self.access.authorities
        lost_s = inf
        while True:
            await asyncio.sleep(TOKENS_LOOK_S)
            now_s = self.node.environment.wall_ms() / 1000
            accepted, access = self.access.accepted, self.node.permissions.known
            withdrawn, denied = accepted != known, access.changes != changes
            known, changes = accepted, access.changes
            before, trusted = trusted, self.access.authorities
            replaced = trusted is not before
            if replaced:
                lost, lost_s = before, now_s
            elif now_s >= lost_s + _LISTENERS_S:  # those that came meanwhile may have met a listener that did not know
                for one in self._connections:
                    if one.trust.authorities is not None and one.trust.admitted_s >= lost_s - LOOK_S:
                        one.trust.authorities = lost
                replaced, lost_s = True, inf
            sure_s = now_s - _LISTENERS_S if trusted is not before else inf
            ended = any(_ended(one, now_s) or _is_to_renew(one, now_s) for one in self._connections)
            if not (withdrawn or denied or ended or replaced):
                continue
            for number, connection in enumerate(list(self._connections)):
                why = ""
                if withdrawn and self.access.is_withdrawn(connection.credentials, connection.jwt):
                    why = "the token is not known here any more"
                elif what := _ended(connection, now_s):
                    why = f"the {what} has ended"
                elif denied and self.node.permissions.denies(connection.principal):
                    why = f"{connection.principal} is denied everything"
                if why:
                    connection.close(UnauthenticatedError(why))
                elif replaced and not _is_trusted(connection, trusted, sure_s):
                    # Whoever has another certificate by now, or is trusted all the same, comes back at once.
                    connection.trust.authorities, connection.trust.renews_s = trusted, now_s + _COME_AGAIN_S
                    connection.certificate_ends_s = min(connection.certificate_ends_s, now_s + 2 * _COME_AGAIN_S)
                elif _is_to_renew(connection, now_s):
                    connection.goaway("what let you in ends: open a new connection, with what is good by then")
                if number % _AT_ONCE == 0:
                    await asyncio.sleep(0)

    async def _sweep(self) -> None:
        limits = self.config.limits
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_S)
            now_s = loop.time()
            self._unsent.review(now_s)
            for holder in self._intake.stuck(now_s):
                holder.refuse_intake()
            for connection in list(self._connections):
                stalled_s, closing_s = connection.paused_since_s, connection.closing_since_s
                if closing_s is not None:
                    # The peer may never read the last message: it cannot keep its connection that way.
                    if now_s - closing_s > limits.write_stall_timeout_ms / 1000:
                        connection.abort("the connection was closed and its last replies were not read")
                elif stalled_s is not None and now_s - stalled_s > limits.write_stall_timeout_ms / 1000:
                    connection.abort(f"no reply was read for {limits.write_stall_timeout_ms} ms")
                elif not connection.handshaken and now_s - connection.opened_s > limits.handshake_timeout_ms / 1000:
                    connection.close(FrameError(f"no handshake within {limits.handshake_timeout_ms} ms"))
                elif connection.worn:
                    connection.goaway("the keys of this connection are used up; open a new connection")
                elif stalled_s is None and now_s - connection.last_heard_s > limits.idle_timeout_ms / 1000:
                    event(log_events.CLIENT_IDLE, peer=connection.peer)
                    connection.close(SlowReaderError(f"the client was silent for {limits.idle_timeout_ms} ms"))


def _ended(connection: Connection, now_s: float) -> str:
    """What of that by which a client was admitted has ended; empty: nothing."""
    if connection.certificate_ends_s <= now_s:
        return "certificate"
    return "token" if connection.jwt is not None and connection.jwt.ends_s <= now_s else ""


def _is_trusted(connection: Connection, authorities: Authorities | None, sure_s: float) -> bool:
    """Whether a certificate by which a client was admitted is of an authority that is trusted still. Who came after
    ``sure_s`` may have met a listener that had read another file than we."""
    trust = connection.trust
    if trust.authorities is None or authorities is None:
        return True
    if trust.admitted_s >= sure_s:
        return False
    return trust.authorities is authorities or authorities.trust(trust.issuer, trust.authorities)


def _is_to_renew(connection: Connection, now_s: float) -> bool:
    return connection.trust.renews_s <= now_s or (connection.jwt is not None and connection.jwt.renewed_s <= now_s)


def _where(config: Config, network: Network) -> Where:
    """Where to listen for clients. Raises ConfigError if that is nowhere."""
    where = {"listen": (config.listen, network.tcp)}
    if network.quic is not None:
        where["quic"] = (config.quic, network.quic)
    for field, (endpoint, _) in where.items():
        _split(field, endpoint)  # checked before anything is opened
    return where


def _split(field: str, endpoint: str) -> tuple[str, int]:
    try:
        return split_endpoint(endpoint)
    except ValueError as error:
        raise ConfigError(f"{field}: {error}") from None
