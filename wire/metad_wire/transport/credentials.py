"""Who is at the other end: certificate files, the roles that certificates name, and what is wrong with one.

The same for every transport that encrypts. A certificate names its role and its holder in one URI of its subject
alternative names: ``metad://node/n1``, ``metad://client/app``, ``metad://admin/ops``. A stream whose peer showed a
certificate (trusted by then, and of the right dates and purpose) answers ``get_extra_info("peercert")`` with the
dictionary that Python's ssl module makes of one; :func:`principal_of` reads the holder from it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import msgspec

PEERCERT: Final = "peercert"
"""Name of the extra info of a stream that holds the peer's certificate; None where it showed none."""


UNFIT: Final = "unfit"
"""Name of the extra info that says why a peer's certificate is not to be accepted although the handshake is over; None
where nothing is wrong with it."""
WORN: Final = "worn"
"""Name of the extra info that is true once a stream's keys have sealed as much as they should: its driver moves on to a
new one, in its own time."""


class Role(enum.Enum):
    """What the holder of a certificate may be."""

    NODE = "node"
    """A server, a peer of servers, and a client too."""
    CLIENT = "client"
    """A client and nothing else: it can neither pose as a node nor speak to nodes as one."""
    ADMIN = "admin"
    """A client that may change the cluster too."""


class Principal(NamedTuple):
    """The holder of a certificate."""

    role: Role
    name: str

    def __str__(self) -> str:
        return f"{self.role.value} {self.name!r}"

    @property
    def uri(self) -> str:
        """How a certificate says it."""
        return f"metad://{self.role.value}/{quote(self.name, safe='')}"

    @property
    def is_node(self) -> bool:
        """Whether it may serve, and speak Raft."""
        return self.role is Role.NODE

    def may_be(self, node_id: str) -> bool:
        """Whether the holder is this node, or the machine that this worker (``machine/number``) runs on."""
        return self.is_node and self.name in (node_id, node_id.partition("/")[0])


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Paths of PEM files. ``certificate`` (leaf first, then intermediates) and ``key`` are empty for a client that has
    a token instead; ``ca`` holds the authorities whose certificates are believed, and nobody else's are."""

    certificate: str = ""
    key: str = ""
    ca: str
    node: str = ""
    """Of a node: its id, which the certificate must name. Files of anybody else are refused, also those that take
    their place later."""


def client_files(directory: str, name: str = "", *, administers: bool = False) -> TlsFiles:
    """The files of a client in a directory that ``metadctl certs`` has filled; ``name`` is not needed where there is
    one client only. ``administers``: an administrator's rather than a plain client's, where there is one. Raises
    ValueError where there is none, or no telling which."""
    roles = (Role.ADMIN, Role.CLIENT) if administers else (Role.CLIENT, Role.ADMIN)
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


class PathSample(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream knows of the path to its peer: ``get_extra_info("path")``, None where it knows nothing. Counters
    are since the connection began and only of what this end sent."""

    rtt_s: float
    """Round-trip time: the smallest seen lately where that is known, else a smoothed one; 0 where none is."""
    sent: int
    """Packets that carried data, repeats included."""
    lost: int
    """Of these, how many were believed lost."""


class TlsError(ConnectionError):
    """No secure connection came about; the message says why."""


class CertificateError(TlsError):
    """One end does not accept the other's certificate, or a file of our own cannot be used. Trying again does not
    help until a file has changed."""


def principal_of(peercert: Mapping[str, Any] | None) -> Principal | None:
    """The holder that a certificate names; None where there is no certificate or it names none, or more than one."""
    if not peercert:
        return None
    uris = [value for kind, value in peercert.get("subjectAltName", ()) if kind == "URI"]
    found = [principal for uri in uris if (principal := _parse(uri)) is not None]
    return found[0] if len(found) == 1 else None


def _parse(uri: str) -> Principal | None:
    try:
        parts = urlsplit(uri)
        role = Role(parts.netloc)
    except ValueError:
        return None
    name = unquote(parts.path.removeprefix("/"))
    return Principal(role, name) if parts.scheme == "metad" and name else None


def node_behind(peercert: Mapping[str, Any] | None) -> Principal:
    """The node that was dialled. Raises CertificateError where a certificate is not a node's: a client of the same
    authority must not be able to pose as a server."""
    principal = principal_of(peercert)
    if principal is None or not principal.is_node:
        raise CertificateError(f"the server's certificate is not a node's but {principal or 'without a role'}")
    return principal
