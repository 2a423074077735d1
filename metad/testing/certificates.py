"""Certificates of one fleet for tests, made once per process: a node's, a client's, and every wrong kind."""

from __future__ import annotations

import atexit
import datetime
import functools
import shutil
import tempfile
from pathlib import Path
from typing import Final

from metad_wire.authority import Authority, issue_fleet
from metad_wire.transport.credentials import Principal, Role, TlsFiles

WRONG: Final = ("untrusted", "expired", "not-yet-valid", "wrong-purpose", "no-role")
"""Kinds of certificates that nobody may get in with."""


def node(name: str = "n1") -> TlsFiles:
    """A node's."""
    return _fleet("node", name)


def client(name: str = "app") -> TlsFiles:
    """A client's."""
    return _fleet("client", name)


def anonymous() -> TlsFiles:
    """Trusts the fleet, and shows no certificate of its own."""
    return TlsFiles(ca=node().ca)


@functools.cache
def wrong(kind: str, role: Role = Role.CLIENT, name: str = "n1") -> TlsFiles:
    """One of :data:`WRONG`, which trusts the right authority all the same."""
    files = node()
    ca = Path(files.ca)
    authority = Authority.load(ca.read_bytes(), (ca.parent / "ca-key.pem").read_bytes())
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
    elif kind == "no-role":
        issued = authority.issue(principal, roles=False)
    else:
        raise ValueError(f"no kind {kind!r}; there are {', '.join(WRONG)}")
    stem = ca.parent / f"wrong-{kind}-{role.value}-{name}"
    certificate, key = stem.with_suffix(".pem"), stem.with_suffix(".key")
    certificate.write_bytes(issued.certificate)
    key.write_bytes(issued.key)
    return TlsFiles(certificate=str(certificate), key=str(key), ca=files.ca)


@functools.cache
def _fleet(role: str, name: str) -> TlsFiles:
    made = issue_fleet(directory(), [name] if role == "node" else [], [name] if role == "client" else [])
    return made[f"{role}-{name}"]


@functools.cache
def directory() -> Path:
    """Where they are, until the process ends."""
    made = Path(tempfile.mkdtemp(prefix="metad-certificates-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made
