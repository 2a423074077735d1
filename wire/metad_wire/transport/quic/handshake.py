"""TLS inside QUIC with both ends' certificates verified.

aioquic asks a client for its certificate only with a private switch, and then accepts any, or none. Here a verifying
context replaces aioquic's on both ends. A server ends the handshake of a client whose certificate is missing (if one is
required), untrusted, out of date or for another purpose; a client ends the handshake of a server that is not a node.
The handshake of such a peer never completes, so none of its frames is read.

A client that resumes a session is not asked for a certificate. So the ticket carries the identity of its holder, and is
not honoured once that certificate has expired or the authorities have changed (tickets.py).
"""

from __future__ import annotations

from typing import Any, Final

from aioquic import tls
from aioquic._buffer import Buffer
from aioquic.tls import AlertBadCertificate, AlertDecodeError, Context, Group, State
from cryptography import x509

from ..credentials import CertificateError, node_behind
from . import certificates
from .certificates import AlertCertificateRequired, Material

MESSAGES_BYTES_MAX: Final = 64 * 1024
"""Limit of incomplete TLS messages: a chain of certificates is the longest message that anybody sends."""


class VerifyingContext(Context):
    """The TLS engine of one connection. ``peer_certificate``: the peer's certificate, once verified; for a resumed
    session, that of its first handshake."""

    def __init__(self, of: Context, material: Material, *, certificate_required: bool) -> None:
        """Takes over from ``of``, which has not begun its handshake."""
        self.__dict__.update(of.__dict__)
        del self.__dict__["_request_client_certificate"]
        self._material = material
        self._certificate_required = certificate_required
        self._supported_groups = [Group.X25519, Group.SECP256R1]  # a client makes a key for each
        self.peer_certificate: x509.Certificate | None = None

    # Read twice in a server's handshake, both times after the ticket was accepted or refused.
    @property
    def _request_client_certificate(self) -> bool:  # type: ignore[override]
        return not self._is_client and not self._session_resumed

    def handle_message(self, input_data: bytes, output_buf: Any) -> None:
        """Limits what aioquic does not: it collects as many bytes as a message's head says, up to 16 MiB."""
        if len(self._receive_buffer) + len(input_data) > MESSAGES_BYTES_MAX:
            raise AlertDecodeError("a handshake message is too long")
        super().handle_message(input_data, output_buf)

    def _server_handle_certificate(self, input_buf: Buffer) -> None:
        super()._server_handle_certificate(input_buf)
        if self._peer_certificate is not None:
            self._verify(self._peer_certificate, of_client=True)
        elif self._certificate_required:
            raise AlertCertificateRequired("a certificate is required")

    def _server_handle_finished(self, input_buf: Buffer, output_buf: Any) -> None:
        # Known before the ticket is made, which happens in here; proven by the signature after the certificate.
        if not self._session_resumed:
            self.peer_certificate = self._peer_certificate
        super()._server_handle_finished(input_buf, output_buf)

    def _client_handle_certificate_verify(self, input_buf: Buffer) -> None:
        super()._client_handle_certificate_verify(input_buf)
        certificate = self._peer_certificate
        assert certificate is not None
        self._verify(certificate, of_client=False)
        try:
            node_behind(certificates.peercert(certificate))
        except CertificateError as error:
            raise AlertBadCertificate(str(error)) from None
        self.peer_certificate = certificate

    def _verify(self, certificate: x509.Certificate, *, of_client: bool) -> None:
        certificates.verify(certificate, self._peer_certificate_chain, self._material.authorities, of_client=of_client)

    @property
    def completed(self) -> bool:
        """Whether the handshake is over for both ends."""
        return self.state in (State.SERVER_POST_HANDSHAKE, State.CLIENT_POST_HANDSHAKE)


def alert_of(error_code: int) -> tls.AlertDescription | None:
    """The TLS alert that a QUIC error code stands for."""
    try:
        return tls.AlertDescription(error_code - 0x100) if 0x100 <= error_code < 0x200 else None
    except ValueError:
        return None
