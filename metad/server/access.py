"""Admits clients and nodes: by a certificate, which the transport has already verified, or by a token, which may be a
JWT."""

from __future__ import annotations

import ssl
from math import inf
from typing import Any, NamedTuple

from metad_wire.errors import UnauthenticatedError
from metad_wire.operator.tokens import TokenFileError, Tokens
from metad_wire.program.extras import advice
from metad_wire.transport import Stream
from metad_wire.transport.credentials import PEERCERT, UNFIT, Principal, Role, may_administer, principal_of
from metad_wire.transport.reload import Watched

from ..config import SecurityConfig
from ..errors import ConfigError
from .jwt_keys import Jwt, JwtKeys, JwtKeysError


class Admitted(NamedTuple):
    """Who has come in."""

    principal: Principal | None
    """None: nobody is checked."""
    jwt: Jwt | None = None
    """What it has shown, if it was a JWT."""


Name = tuple[Any, ...]
"""Of a subject or an issuer, as Python's ssl module has it."""


class Authorities:
    """Those whose certificates are trusted: their names, by their certificates."""

    def __init__(self, names: dict[bytes, Name]) -> None:
        self._names = names

    @classmethod
    def read(cls, path: str) -> Authorities:
        """Read a PEM file. Raises OSError, of which an SSLError is one."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_verify_locations(path)
        names: list[Any] = [one.get("subject", ()) for one in context.get_ca_certs()]
        return cls(dict(zip(context.get_ca_certs(binary_form=True), names, strict=True)))

    def trust(self, issuer: Name, before: Authorities) -> bool:
        """Whether a certificate of this issuer that was trusted ``before`` is so for sure. It is not where an authority
        is gone that has the issuer's name, or that may stand behind an intermediate one."""
        gone = {name for one, name in before._names.items() if one not in self._names}
        kept = {name for one, name in before._names.items() if one in self._names}
        return not gone or (issuer in kept and issuer not in gone)


class Trust:
    """Why a connection is trusted that has shown a certificate."""

    def __init__(self) -> None:
        self.issuer: Name = ()
        """Of the certificate."""
        self.authorities: Authorities | None = None
        """That were trusted when it was admitted; None: it has shown no certificate."""
        self.admitted_s = inf
        """Unix time at which that was."""
        self.renews_s = inf
        """Unix time from which on the client should have another connection."""


class Access:
    """The rules of one node. ``encrypted``: its transports identify the peer; otherwise nobody is checked. Raises
    ConfigError if the file of tokens, or that of keys, cannot be used. Later a broken file does not replace a good one;
    if the file is deleted, no token of it is accepted any more."""

    def __init__(self, security: SecurityConfig, *, encrypted: bool) -> None:
        self.encrypted = encrypted
        self._certificate_required = security.require_client_certificate
        self._administrators = frozenset(security.administrators)
        self._security = security
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
        self._keys = _watched_keys(security.jwt_keys_file) if security.jwt_keys_file else None
        self._authorities: Watched[Authorities] | None = None

    def admit(self, stream: Stream, credentials: bytes, now_s: float) -> Admitted:
        """The identity of this client at this Unix time. Raises UnauthenticatedError: then nothing more of the client
        may be read."""
        if not self.encrypted:
            return Admitted(None)
        certificate = _certificate(stream)
        principal = principal_of(certificate, spiffe=self._security.authorization)
        if certificate and principal is None:
            raise UnauthenticatedError("the certificate names no role, or more than one")
        shown = Admitted(None)
        if credentials and (self._tokens is not None or self._keys is not None):
            shown = self._holder(credentials, now_s)
        if principal is None and not self._certificate_required:
            principal = shown.principal
        if principal is None:
            raise UnauthenticatedError("a certificate or a token is needed")
        return Admitted(principal, shown.jwt)

    def _holder(self, credentials: bytes, now_s: float) -> Admitted:
        """Who holds a token. One that is in no list may be a JWT."""
        tokens, keys = self.accepted
        if tokens is not None and (name := tokens.holder(credentials)) is not None:
            return Admitted(Principal(Role.CLIENT, name))
        if keys is None:
            raise UnauthenticatedError("the token is not known here")
        jwt = keys.verified(credentials, self._security, now_s)
        return Admitted(jwt.principal, jwt)

    @property
    def accepted(self) -> tuple[Tokens | None, JwtKeys | None]:
        """The tokens that are accepted now, and the keys of JWTs; other objects once they have changed. None where
        there are none at all."""
        tokens, keys = self._tokens, self._keys
        return None if tokens is None else tokens.current(), None if keys is None else keys.current()

    @property
    def authorities(self) -> Authorities | None:
        """Those that are trusted now; another object once the file has changed. None: nobody is checked."""
        ca = self._security.ca
        if not self.encrypted or not ca:
            return None
        if self._authorities is None:  # the transports have read the file before
            self._authorities = Watched([ca], lambda: Authorities.read(ca), error=OSError, what="authorities")
        return self._authorities.current()

    def is_withdrawn(self, credentials: bytes, jwt: Jwt | None) -> bool:
        """Whether what an admitted client has shown is accepted no more: the list has lost the token, or the file the
        key of the JWT. The end of a JWT is another matter: :attr:`.Jwt.ends_s`."""
        tokens, keys = self.accepted
        if jwt is not None:
            return keys is None or jwt.key not in keys
        return bool(credentials) and tokens is not None and tokens.holder(credentials) is None

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


def _watched_keys(path: str) -> Watched[JwtKeys]:
    """Raises ConfigError."""
    try:
        return Watched(
            [path], lambda: JwtKeys.read(path), error=JwtKeysError, what="keys of JWTs", gone=lambda: JwtKeys([])
        )
    except JwtKeysError as error:
        raise ConfigError(f"security.jwt_keys_file: {error}") from None
    except ModuleNotFoundError as error:
        raise ConfigError(f"security.jwt_keys_file: {advice(error, 'jwt')}") from None


def _certificate(stream: Stream) -> Any:
    """The peer's certificate, None if it showed none. Raises UnauthenticatedError."""
    unfit = stream.get_extra_info(UNFIT)
    if unfit:
        raise UnauthenticatedError(unfit)
    return stream.get_extra_info(PEERCERT)
