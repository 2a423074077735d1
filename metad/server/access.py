"""Admits clients and nodes: by a certificate, which the transport has already verified, or by a token."""

from __future__ import annotations

from typing import Any

from metad_wire.errors import UnauthenticatedError
from metad_wire.operator.tokens import TokenFileError, Tokens
from metad_wire.transport import Stream
from metad_wire.transport.credentials import PEERCERT, UNFIT, Principal, Role, may_administer, principal_of
from metad_wire.transport.reload import Watched

from ..config import SecurityConfig
from ..errors import ConfigError


class Access:
    """The rules of one node. ``encrypted``: its transports identify the peer; otherwise nobody is checked. Raises
    ConfigError if the file of tokens cannot be used. Later a broken file does not replace a good one; if the file is
    deleted, no token is accepted any more."""

    def __init__(self, security: SecurityConfig, *, encrypted: bool) -> None:
        self.encrypted = encrypted
        self._certificate_required = security.require_client_certificate
        self._administrators = frozenset(security.administrators)
        self._spiffe = security.authorization
        self._tokens: Watched[Tokens] | None = None
        if security.tokens_file:
            path = security.tokens_file
            try:
                self._tokens = Watched(
                    [path],
                    lambda: Tokens.read(path),
                    error=TokenFileError,
                    what="tokens",
                    gone=lambda: Tokens({}),  # an operator who deletes the file means to lock its tokens out
                )
            except TokenFileError as error:
                raise ConfigError(f"security.tokens_file: {error}") from None

    def admit(self, stream: Stream, credentials: bytes) -> Principal | None:
        """The identity of this client; None if nobody is checked. Raises UnauthenticatedError: then nothing more of the
        client may be read."""
        if not self.encrypted:
            return None
        certificate = _certificate(stream)
        principal = principal_of(certificate, spiffe=self._spiffe)
        if certificate and principal is None:
            raise UnauthenticatedError("the certificate names no role, or more than one")
        if (tokens := self.tokens) is not None and credentials:
            holder = tokens.holder(credentials)
            if holder is None:
                raise UnauthenticatedError("the token is not known here")
            if principal is None and not self._certificate_required:
                return Principal(Role.CLIENT, holder)
        if principal is None:
            raise UnauthenticatedError("a certificate or a token is needed")
        return principal

    @property
    def tokens(self) -> Tokens | None:
        """Those that are accepted now; another object once they have changed. None if there are none at all."""
        return None if self._tokens is None else self._tokens.current()

    def may_administer(self, principal: Principal | None) -> bool:
        """Whether the admitted holder may change the cluster."""
        if principal is None:
            return not self.encrypted
        return may_administer(principal, self._administrators)

    def admit_node(self, stream: Stream) -> Principal | None:
        """The identity of this node; None if nobody is checked. Raises UnauthenticatedError if it is not a node: a
        client's certificate is for clients."""
        if not self.encrypted:
            return None
        principal = principal_of(_certificate(stream))
        if principal is None or not principal.is_node:
            raise UnauthenticatedError(f"this port is for nodes only; the peer is {principal or 'unknown'}")
        return principal

    def check_node(self, stream: Stream, node_id: str) -> None:
        """Check the name that a peer gave itself. Raises UnauthenticatedError."""
        principal = self.admit_node(stream)
        if principal is not None and not principal.may_be(node_id):
            raise UnauthenticatedError(f"the certificate belongs to {principal}, not to {node_id!r}")


def _certificate(stream: Stream) -> Any:
    """The peer's certificate, None if it showed none. Raises UnauthenticatedError."""
    unfit = stream.get_extra_info(UNFIT)
    if unfit:
        raise UnauthenticatedError(unfit)
    return stream.get_extra_info(PEERCERT)
