"""Identities: certificate files, the roles that certificates name, and the errors of both.

Every transport that encrypts uses this module. A certificate names its role and its holder in one URI of its subject
alternative names: ``metad://node/n1``, ``metad://client/app``, ``metad://admin/ops``,
``metad://broker/b1``. If the peer of a stream showed a
certificate, it is trusted and has the right dates and purpose; ``get_extra_info("peercert")`` then returns the
dictionary that Python's ssl module makes of it, and :func:`principal_of` reads the holder from that.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import msgspec

PEERCERT: Final = "peercert"
"""Name of the extra info that holds the peer's certificate; None if the peer showed none."""


UNFIT: Final = "unfit"
"""Name of the extra info that says why a peer's certificate is refused after the handshake; None if it is not."""
WORN: Final = "worn"
"""Name of the extra info that is true once a stream's keys have sealed as much as they should: its driver then moves to
a new stream, at a time of its choice."""


_SPIFFE: Final = "spiffe://"


class Role(enum.Enum):
    """What the holder of a certificate is allowed to be."""

    NODE = "node"
    """A server, a peer of servers, and also a client."""
    CLIENT = "client"
    """Only a client: it can neither pose as a node nor speak to nodes as one."""
    ADMIN = "admin"
    """A client that may also change the cluster."""
    BROKER = "broker"
    """A client that serves other brokers, and its own clients. To nodes it is a client like any other."""


class Principal(NamedTuple):
    """The holder of a certificate."""

    role: Role
    name: str

    def __str__(self) -> str:
        return f"{self.role.value} {self.name!r}"

    @property
    def uri(self) -> str:
        """The URI that names this holder in a certificate."""
        if self.name.startswith(_SPIFFE):
            return self.name
        return f"metad://{self.role.value}/{quote(self.name, safe='')}"

    @property
    def is_node(self) -> bool:
        """Whether the holder may serve, and speak Raft."""
        return self.role is Role.NODE

    @property
    def serves(self) -> bool:
        """Whether anybody may dial the holder."""
        return self.role in (Role.NODE, Role.BROKER)

    def may_be(self, node_id: str) -> bool:
        """Whether the holder is this node, or the machine of this worker (``machine/number``)."""
        return self.is_node and self.name in (node_id, node_id.partition("/")[0])


def may_administer(principal: Principal, names: Collection[str]) -> bool:
    """Whether a holder may change the cluster. ``names``: of clients that may."""
    if principal.role is Role.CLIENT:
        return principal.name in names
    return principal.role in (Role.ADMIN, Role.NODE)


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Paths of PEM files. ``certificate`` (leaf first, then intermediates) and ``key`` are empty for a client that has
    a token instead; ``ca`` holds the only authorities whose certificates are trusted."""

    certificate: str = ""
    key: str = ""
    ca: str
    node: str = ""
    """For a node: its id, which its certificate must name. Files with another name are refused, now and later."""


def client_files(directory: str, name: str = "", *, administers: bool = False) -> TlsFiles:
    """The files of a client in a directory filled by ``metadctl certs``; ``name`` may be left out if it has one client
    only. ``administers``: prefer an administrator's certificate. Raises ValueError if there is none, or several
    match."""
    roles = (Role.ADMIN, Role.CLIENT, Role.BROKER) if administers else (Role.CLIENT, Role.ADMIN, Role.BROKER)
    certificates = [path for path in sorted(Path(directory).glob("*.pem")) if not path.stem.endswith("-key")]
    for role in roles:
        found = [path for path in certificates if path.stem.startswith(f"{role.value}-")]
        if name:
            found = [path for path in found if path.stem == f"{role.value}-{name}"]
        if found:
            break
    if len(found) != 1:
        names = ", ".join(path.stem.partition("-")[2] for path in found)
        raise ValueError(f"{directory} has {f'clients {names}: say which' if found else f'no client {name}'.rstrip()}")
    certificate = found[0]
    key = certificate.with_name(f"{certificate.stem}-key.pem")
    return TlsFiles(certificate=str(certificate), key=str(key), ca=str(certificate.with_name("ca.pem")))


def broker_files(directory: str, name: str) -> TlsFiles:
    """The files of this broker in a directory filled by ``metadctl certs``."""
    at = Path(directory)
    certificate, key = at / f"{Role.BROKER.value}-{name}.pem", at / f"{Role.BROKER.value}-{name}-key.pem"
    return TlsFiles(certificate=str(certificate), key=str(key), ca=str(at / "ca.pem"))


class PathSample(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream knows of the path to its peer: ``get_extra_info("path")``, None if it knows nothing. Counters start
    with the connection and count only what this end sent."""

    rtt_s: float
    """Round-trip time: the smallest seen lately if that is known, else a smoothed one; 0 if unknown."""
    sent: int
    """Packets that carried data, repeats included."""
    lost: int
    """Of these, the packets believed lost."""


class TlsError(ConnectionError):
    """No secure connection could be made; the message says why."""


class CertificateError(TlsError):
    """One end refuses the other's certificate, or a file of our own cannot be used. Retry after a file has changed."""


def principal_of(peercert: Mapping[str, Any] | None, *, spiffe: bool = False) -> Principal | None:
    """The holder that a certificate names; None if there is no certificate or it does not name exactly one holder.
    ``spiffe``: a SPIFFE id names a client, too."""
    if not peercert:
        return None
    uris = [value for kind, value in peercert.get("subjectAltName", ()) if kind == "URI"]
    found = [
        principal
        for uri in uris
        if (spiffe or not uri.startswith(_SPIFFE)) and (principal := principal_named(uri)) is not None
    ]
    return found[0] if len(found) == 1 else None


def principal_named(uri: str) -> Principal | None:
    """The holder of this URI; None if it is none."""
    try:
        parts = urlsplit(uri)
        if uri.startswith(_SPIFFE):
            return Principal(Role.CLIENT, uri) if parts.netloc else None
        role = Role(parts.netloc)
    except ValueError:
        return None
    name = unquote(parts.path.removeprefix("/"))
    is_name = bool(name) and not name.startswith(_SPIFFE)
    return Principal(role, name) if parts.scheme == "metad" and is_name else None


def node_behind(peercert: Mapping[str, Any] | None) -> Principal:
    """The node that was dialled. Raises CertificateError if the certificate is not a node's: a client of the same
    authority must not be able to pose as a server."""
    principal = principal_of(peercert)
    if principal is None or not principal.is_node:
        raise CertificateError(f"the server's certificate is not a node's but {principal or 'without a role'}")
    return principal
