"""Certificates of one fleet, made once per process: a node's, a client's, and every wrong kind. For attacks and
tests."""

from __future__ import annotations

import atexit
import datetime
import functools
import shutil
import tempfile
from pathlib import Path
from typing import Final

from metad_wire.operator.authority import Authority, Issued, issue_fleet
from metad_wire.transport.credentials import Principal, Role, TlsFiles

WRONG: Final = ("untrusted", "expired", "not-yet-valid", "wrong-purpose", "no-purpose", "no-role")
"""Kinds of certificates that every node refuses."""


def node(name: str = "n1") -> TlsFiles:
    """A node's certificate."""
    return _fleet("node", name)


def client(name: str = "app") -> TlsFiles:
    """A client's certificate."""
    return _fleet("client", name)


def admin(name: str = "ops") -> TlsFiles:
    """An administrator's certificate."""
    return _fleet("admin", name)


def broker(name: str) -> TlsFiles:
    """A broker's certificate."""
    return _fleet("broker", name)


def anonymous() -> TlsFiles:
    """Files that trust the fleet and hold no certificate."""
    return TlsFiles(ca=node().ca)


def ending(name: str, days: float) -> TlsFiles:
    """A node's certificate that ends soon."""
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    return _kept(f"ending-{name}", _authority().issue(Principal(Role.NODE, name), not_after=end))


@functools.cache
def wrong(kind: str, role: Role = Role.CLIENT, name: str = "n1") -> TlsFiles:
    """A certificate of a kind in :data:`WRONG`; its files still trust the right authority."""
    authority = _authority()
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    principal = Principal(role, name)
    if kind == "untrusted":
        issued = Authority.create().issue(principal)
    elif kind == "expired":
        issued = authority.issue(principal, not_before=now - 2 * day, not_after=now - day)
    elif kind == "not-yet-valid":
        issued = authority.issue(principal, not_before=now + day, not_after=now + 2 * day)
    elif kind == "wrong-purpose":
        issued = authority.issue(principal, purposes=("code-signing",))
    elif kind == "no-purpose":
        issued = authority.issue(principal, purposes=())
    elif kind == "no-role":
        issued = authority.issue(principal, roles=False)
    else:
        raise ValueError(f"no kind {kind!r}; there are {', '.join(WRONG)}")
    return _kept(f"wrong-{kind}-{role.value}-{name}", issued)


def _authority() -> Authority:
    ca = Path(node().ca)
    return Authority.load(ca.read_bytes(), (ca.parent / "ca-key.pem").read_bytes())


def _kept(name: str, issued: Issued) -> TlsFiles:
    certificate, key = directory() / f"{name}.pem", directory() / f"{name}.key"
    certificate.write_bytes(issued.certificate)
    key.write_bytes(issued.key)
    return TlsFiles(certificate=str(certificate), key=str(key), ca=node().ca)


@functools.cache
def _fleet(role: str, name: str) -> TlsFiles:
    nodes, clients, admins, brokers = ([name] if role == one else [] for one in ("node", "client", "admin", "broker"))
    made = issue_fleet(directory(), nodes, clients, admins=admins, brokers=brokers)
    return made[f"{role}-{name}"]


@functools.cache
def directory() -> Path:
    """The directory of the files, until the process ends."""
    made = Path(tempfile.mkdtemp(prefix="metad-certificates-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made
