"""The transports of a node, for clients and for other nodes: made once from the configuration, at the root.

A broker is dialled to learn whether its process lives. Nothing is sent: whether the host accepts is the answer.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from metad_wire.program.extras import install
from metad_wire.program.open_files import peer_files, raise_files_limit
from metad_wire.transport import Stream, Transport, split_endpoint
from metad_wire.transport.credentials import CertificateError, TlsFiles
from metad_wire.transport.pace import Pace, greeting_max
from metad_wire.transport.tcp import TcpTransport
from metad_wire.transport.tls import TlsTransport

from ..config import UNIX, Config, SecurityConfig, bound_for_nodes, is_loopback
from ..control.brokers.evidence import Answer
from ..errors import ConfigError

TIMEOUT_S = 1.0


class _Silent:
    """Closes the connection at once."""

    def connection_made(self, stream: Stream) -> None:
        stream.abort()

    def data_received(self, data: bytes) -> None:
        """What the broker says is of no interest."""

    def eof_received(self) -> bool | None:
        return None

    def pause_writing(self) -> None:
        """Nothing is written."""

    def resume_writing(self) -> None:
        """Nothing is written."""

    def connection_lost(self, exc: Exception | None) -> None:
        """It was to end."""


class Probe:
    """A :class:`metad.node.environment.Dial` over a transport without encryption."""

    def __init__(self, transport: Transport, timeout_s: float = TIMEOUT_S) -> None:
        self._transport = transport
        self._timeout_s = timeout_s
        self._dials: set[asyncio.Task[Answer]] = set()

    def __call__(self, host: str, port: int, done: Callable[[Answer], None], /) -> None:
        task = asyncio.get_running_loop().create_task(self.dial(host, port))
        self._dials.add(task)
        task.add_done_callback(partial(self._ended, done))

    def stop(self) -> None:
        """End all dials. Nobody is told."""
        for task in self._dials:
            task.cancel()

    async def dial(self, host: str, port: int) -> Answer:
        """Only a refusal says that nobody listens."""
        try:
            await self._transport.dial(host, port, _Silent, self._timeout_s)
        except ConnectionRefusedError:
            return Answer.REFUSED
        except OSError:
            return Answer.UNKNOWN
        return Answer.ACCEPTED

    def _ended(self, done: Callable[[Answer], None], task: asyncio.Task[Answer]) -> None:
        self._dials.discard(task)
        if not task.cancelled():
            done(Answer.UNKNOWN if task.exception() is not None else task.result())


@dataclass(frozen=True)
class Network:
    """The transports of one node. ``quic`` and ``far`` are None if the node has none."""

    tcp: Transport
    """For clients on ``listen``."""
    quic: Transport | None
    """For clients on ``quic``."""
    near: Transport
    """For nodes of the same region, and for all nodes if there are no regions."""
    far: Transport | None
    """For nodes of other regions."""
    plain: Transport
    """For dials that say nothing."""
    encrypted: bool
    """Whether the transports identify the peer, so that its name can be checked."""
    pace: Pace = dataclasses.field(default_factory=Pace)
    """At which connections of clients are taken."""

    @classmethod
    def only(cls, transport: Transport) -> Network:
        """One transport for everything, which checks no identity: for tests and simulations."""
        return cls(transport, None, transport, None, transport, encrypted=False)

    @classmethod
    def of(cls, config: Config) -> Network:
        """The configured transports. Raises ConfigError if the files cannot be used, or if clear text would leave the
        machine without ``security.plaintext``."""
        security = config.security
        per_s = config.limits.accepts_per_s
        greeting, served = greeting_max(config.limits.connections_max), config.limits.connections_max
        pace = Pace(per_s, max(1, per_s // 4), served + 2 * greeting)
        for_nodes = Pace(open_max=peer_files(raise_files_limit()) // 2)  # as many as it dials
        if not security.encrypted:
            _refuse_clear_text(config)
            near = TcpTransport(for_nodes)
            return cls(TcpTransport(pace), None, near, None, TcpTransport(), encrypted=False, pace=pace)
        files = files_of(config)
        handshake_s = config.limits.handshake_timeout_ms / 1000
        required = clients_need_certificates(security)
        try:
            return cls(
                tcp=TlsTransport(
                    TcpTransport(pace),
                    files,
                    certificate_required=required,
                    handshake_timeout_s=handshake_s,
                    handshakes_max=greeting,
                ),
                quic=_quic(files, config, required=required, pace=pace) if config.quic else None,
                near=TlsTransport(TcpTransport(for_nodes), files, handshake_timeout_s=handshake_s),
                far=_quic(files, config, required=True) if config.cluster.region else None,
                plain=TcpTransport(),
                encrypted=True,
                pace=pace,
            )
        except CertificateError as error:
            raise ConfigError(f"security: {error}") from None


def files_of(config: Config) -> TlsFiles:
    """The files of a node that has certificates."""
    security = config.security
    return TlsFiles(certificate=security.certificate, key=security.key, ca=security.ca, node=config.node_id)


def clients_need_certificates(security: SecurityConfig) -> bool:
    """Without tokens a certificate is the only credential."""
    return security.require_client_certificate or not (security.tokens_file or security.jwt_keys_file)


def _quic(files: TlsFiles, config: Config, *, required: bool, pace: Pace | None = None) -> Transport:
    try:
        from metad_wire.transport.quic import QuicTransport
    except ImportError:
        raise ConfigError(f"QUIC needs the aioquic package: {install('quic')}") from None
    return QuicTransport(files, certificate_required=required, pace=pace)


def in_clear(config: Config) -> dict[str, str]:
    """The addresses beyond this machine, by key, on which a node without certificates listens. Raises ConfigError."""
    if config.security.encrypted:
        return {}
    where, found = {"listen": config.listen}, {}
    if config.http and not config.http.startswith(UNIX):
        where["http"] = config.http
    if nodes := bound_for_nodes(config):
        where["cluster.listen"] = nodes
    for field, endpoint in where.items():
        try:
            host, _ = split_endpoint(endpoint)
        except ValueError as error:
            raise ConfigError(f"{field}: {error}") from None
        if not is_loopback(host):
            found[field] = endpoint
    return found


def _refuse_clear_text(config: Config) -> None:
    """Raise ConfigError for clear text beyond this machine that nobody has confirmed."""
    for field, endpoint in in_clear(config).items():
        if not config.security.plaintext:
            raise ConfigError(
                f"{field}: {endpoint} is not a loopback address, and without certificates everything on it would be in "
                "clear text and open to all. Give certificates (--tls-cert, --tls-key, --tls-ca; `metadctl certs` "
                "makes them), or confirm that this is intended: plaintext = true under [security]"
            )
