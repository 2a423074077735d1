"""Certificates of the links between brokers, as ``metadctl certs --brokers`` issues them: both ends show one."""

from __future__ import annotations

import asyncio
import ssl
from contextvars import ContextVar
from typing import Final

from metad_client import TlsFiles
from metad_wire.transport.credentials import PEERCERT, CertificateError, Role, principal_of
from metad_wire.transport.der import CLIENT_AUTH, SERVER_AUTH
from metad_wire.transport.reload import Reloaded
from metad_wire.transport.tls_context import check_purpose, client_context, explain, server_context

HANDSHAKE_S: Final = 5.0


class _Steps(ssl.SSLObject):
    """Counts the steps of a handshake. The first waits for the caller; others follow what the caller has sent."""

    _counted: list[None] | None = None

    def do_handshake(self) -> None:
        if self._counted is None:
            self._counted = _steps.get()  # the later steps run in the context of the connection
        self._counted.append(None)
        super().do_handshake()


_steps: ContextVar[list[None]] = ContextVar("steps")


class SilentError(ConnectionError):
    """The caller has gone without a byte."""


def _accepting(files: TlsFiles) -> ssl.SSLContext:
    context = server_context(files, certificate_required=True)
    context.sslobject_class = _Steps
    return context


class LinkTls:
    """The files of one broker; changed ones are used by the next connection. Raises CertificateError if they cannot be
    used."""

    def __init__(self, files: TlsFiles) -> None:
        self._dialling = Reloaded(files, client_context)
        self._accepting = Reloaded(files, _accepting)

    async def dial(self, host: str, port: int, broker: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to this broker, and to no other. Raises OSError."""
        try:
            reader, writer = await asyncio.open_connection(
                host, port, ssl=self._dialling.current(), ssl_handshake_timeout=HANDSHAKE_S
            )
        except ssl.SSLError as error:
            raise explain(error) from None
        try:
            name = _broker_behind(writer, SERVER_AUTH)
            if name != broker:
                raise CertificateError(f"the certificate is that of broker {name!r}, not of {broker!r}")
        except CertificateError:
            writer.close()
            raise
        return reader, writer

    async def accept(self, writer: asyncio.StreamWriter) -> str:
        """The handshake with a caller; its name. It must be the first thing that is awaited about the connection.
        Raises OSError unless the caller is a broker: SilentError if it said nothing."""
        steps: list[None] = []
        _steps.set(steps)
        try:
            await writer.start_tls(self._accepting.current(), ssl_handshake_timeout=HANDSHAKE_S)
        except ssl.SSLError as error:
            raise explain(error) from None
        except ConnectionResetError:
            if len(steps) < 2:
                raise SilentError from None
            # asyncio sends no alert where it refuses a certificate: this end only sees the caller go.
            raise ConnectionResetError(
                "it hung up in the handshake: perhaps it does not trust our certificate"
            ) from None
        return _broker_behind(writer, CLIENT_AUTH)


def _broker_behind(writer: asyncio.StreamWriter, purpose: bytes) -> str:
    """The name of the broker at the other end. Raises CertificateError."""
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    if shown is None:
        raise CertificateError("the peer's certificate is refused: it showed none")
    check_purpose(shown, purpose)
    principal = principal_of(writer.get_extra_info(PEERCERT))
    if principal is None or principal.role is not Role.BROKER:
        raise CertificateError(f"the certificate is not a broker's but {principal or 'without a role'}")
    return principal.name
