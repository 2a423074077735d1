"""By what transports a node is reached and reaches the others: made once from the configuration, at the root."""

from __future__ import annotations

import ipaddress
import logging
from dataclasses import dataclass

from metad_wire.transport import Transport, split_endpoint
from metad_wire.transport.credentials import CertificateError, TlsFiles
from metad_wire.transport.tcp import TcpTransport
from metad_wire.transport.tls import TlsTransport

from ..config import Config, SecurityConfig
from ..errors import ConfigError
from ..logs import event


@dataclass(frozen=True)
class Network:
    """The transports of one node. ``quic`` and ``far`` are None where there is none."""

    tcp: Transport
    """For clients on ``listen``."""
    quic: Transport | None
    """For clients on ``quic``."""
    near: Transport
    """For nodes of the same region, and for all where there are no regions."""
    far: Transport | None
    """For nodes of other regions."""
    encrypted: bool
    """Whether the transports tell who the peer is, so that it can be held to it."""

    @classmethod
    def only(cls, transport: Transport) -> Network:
        """One for everything, which asks nobody who he is: for tests and simulations."""
        return cls(transport, None, transport, None, encrypted=False)

    @classmethod
    def of(cls, config: Config) -> Network:
        """As configured. Raises ConfigError where the files cannot be used, or where clear text would leave the machine
        without having been asked for."""
        security = config.security
        if not security.encrypted:
            _in_clear(config)
            return cls.only(TcpTransport())
        files = TlsFiles(certificate=security.certificate, key=security.key, ca=security.ca, node=config.node_id)
        handshake_s = config.limits.handshake_timeout_ms / 1000
        required = _clients_need_certificates(security)
        try:
            return cls(
                tcp=TlsTransport(TcpTransport(), files, certificate_required=required, handshake_timeout_s=handshake_s),
                quic=_quic(files, config, required=required) if config.quic else None,
                near=TlsTransport(TcpTransport(), files, handshake_timeout_s=handshake_s),
                far=_quic(files, config, required=True) if config.cluster.region else None,
                encrypted=True,
            )
        except CertificateError as error:
            raise ConfigError(f"security: {error}") from None


def _clients_need_certificates(security: SecurityConfig) -> bool:
    """Where there are no tokens there is no other way in."""
    return security.require_client_certificate or not security.tokens_file


def _quic(files: TlsFiles, config: Config, *, required: bool) -> Transport:
    try:
        from metad_wire.transport.quic import QuicTransport
    except ImportError:
        raise ConfigError("QUIC needs the aioquic package: install metad-service[quic]") from None
    return QuicTransport(files, certificate_required=required)


def _in_clear(config: Config) -> None:
    """Look where a node without certificates would listen."""
    cluster = config.cluster
    where = {"listen": config.listen}
    if cluster.seeds or cluster.join:
        where["cluster.listen"] = cluster.seeds.get(config.node_id, cluster.listen)
    for field, endpoint in where.items():
        try:
            host, _ = split_endpoint(endpoint)
        except ValueError as error:
            raise ConfigError(f"{field}: {error}") from None
        if _is_loopback(host):
            continue
        if not config.security.plaintext:
            raise ConfigError(
                f"{field}: {endpoint} is not a loopback address, and without certificates everything on it would be in "
                "clear text and open to all. Give certificates (--tls-cert, --tls-key, --tls-ca; `metadctl certs` "
                "makes them), or say that it is meant: plaintext = true under [security]"
            )
        event(
            "IN CLEAR TEXT: anybody on the way can read and change what is here, and nobody is asked who he is",
            logging.WARNING,
            field=field,
            endpoint=endpoint,
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
