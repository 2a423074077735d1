"""A certificate authority for a private fleet: ``metadctl certs`` and ``metad cluster --regions`` issue from it.

Needs the ``cryptography`` package, which comes with the extra ``quic``. A fleet that already has an authority does not
need this module: wire/PROTOCOL.md, "Certificates and tokens", says what a certificate must hold.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ..program.extras import install
from ..transport.credentials import Principal, Role, TlsFiles

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

CA_DAYS: Final = 3_650
LEAF_DAYS: Final = 365
_DAYS_MAX: Final = 3_650
_BACKDATE: Final = datetime.timedelta(minutes=5)  # for peers whose clocks are a little behind ours
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class AuthorityError(Exception):
    """The authority cannot do what it was asked to; the message says why."""


class Issued(NamedTuple):
    """A certificate and its key, both PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """A certificate authority that can sign. Make it with :meth:`create` or :meth:`load`."""

    def __init__(self, certificate: x509.Certificate, key: EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def create(cls, name: str = "metad") -> Authority:
        """Make an authority with a new key (P-256)."""
        _need_cryptography()
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject(f"{name} authority")
        builder = _builder(subject, subject, key.public_key(), key.public_key(), None, None, CA_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
        return cls(_sign(builder, key), key)

    @classmethod
    def load(cls, certificate: bytes, key: bytes) -> Authority:
        """Load a saved authority. Raises AuthorityError."""
        _need_cryptography()
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        try:
            loaded = serialization.load_pem_private_key(key, None)
            read = x509.load_pem_x509_certificate(certificate)
        except (ValueError, TypeError) as error:
            raise AuthorityError(f"this is not an authority made by metad: {error}") from None
        if not isinstance(loaded, ec.EllipticCurvePrivateKey) or loaded.public_key() != read.public_key():
            raise AuthorityError("the authority's key is not its certificate's")
        return cls(read, loaded)

    def own(self) -> Issued:
        """The authority's own certificate and key."""
        return _pem(self._certificate, self._key)

    def issue(
        self,
        principal: Principal,
        hosts: Sequence[str] = (),
        *,
        not_before: datetime.datetime | None = None,
        not_after: datetime.datetime | None = None,
        purposes: Sequence[str] | None = None,
        roles: bool = True,
    ) -> Issued:
        """Issue a certificate with a new key for a node or a broker (which serve, and dial others) or a client (which
        only dials). ``hosts`` are names and addresses of a node for clients that check them; metad itself checks the
        role. Dates default to now and a year from now. ``purposes`` (of ``client``, ``server``, ``code-signing``) and
        ``roles`` make certificates that metad refuses, for tests of that."""
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID as Usage

        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(
            _subject(f"{principal.role.value} {principal.name}"),
            self._certificate.subject,
            key.public_key(),
            self._key.public_key(),
            not_before,
            not_after,
            LEAF_DAYS,
        )
        known = {"client": Usage.CLIENT_AUTH, "server": Usage.SERVER_AUTH, "code-signing": Usage.CODE_SIGNING}
        used = purposes if purposes is not None else ("client", "server") if principal.serves else ("client",)
        holder = principal.uri if roles else f"urn:name:{principal.name}"
        names = [x509.UniformResourceIdentifier(holder), *map(_host, hosts)]
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
        if used:
            builder = builder.add_extension(x509.ExtendedKeyUsage([known[purpose] for purpose in used]), critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return _pem(_sign(builder, self._key), key)


def issue_fleet(
    directory: Path,
    nodes: Sequence[str],
    clients: Sequence[str],
    hosts: Sequence[str] = (),
    *,
    admins: Sequence[str] = (),
    brokers: Sequence[str] = (),
    days: int = LEAF_DAYS,
) -> dict[str, TlsFiles]:
    """Write the certificates and keys of a whole fleet to ``directory``: ``ca.pem`` and ``ca-key.pem`` (made if there
    are none yet), ``node-NAME.pem``, ``client-NAME.pem``, ``admin-NAME.pem`` and ``broker-NAME.pem`` with their
    ``-key.pem``, which only the owner may read. They end after ``days``. Each file appears whole or not at all, so
    processes that use them may run meanwhile. Returns the files by ``node-NAME`` and so on. Raises AuthorityError."""
    _need_cryptography()
    wanted = {Role.NODE: nodes, Role.CLIENT: clients, Role.ADMIN: admins, Role.BROKER: brokers}
    principals = [Principal(role, name) for role, names in wanted.items() for name in names]
    for principal in principals:
        if not _NAME.fullmatch(principal.name):
            raise AuthorityError(f"{principal.name!r} is not a name: use letters, digits, '.', '_' and '-', at most 64")
    for host in hosts:
        _host(host)
    if not 1 <= days <= _DAYS_MAX:
        raise AuthorityError(f"a certificate lasts from 1 to {_DAYS_MAX} days, not {days}")
    ca, ca_key = directory / "ca.pem", directory / "ca-key.pem"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if ca.exists() or ca_key.exists():
            _need_both(ca, ca_key)
            authority = Authority.load(ca.read_bytes(), ca_key.read_bytes())
        else:
            authority = Authority.create()
            _write(ca, ca_key, authority.own())
        made: dict[str, TlsFiles] = {}
        for principal in principals:
            name = f"{principal.role.value}-{principal.name}"
            certificate, key = directory / f"{name}.pem", directory / f"{name}-key.pem"
            end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
            _write(certificate, key, authority.issue(principal, hosts if principal.serves else (), not_after=end))
            made[name] = TlsFiles(certificate=str(certificate), key=str(key), ca=str(ca))
    except OSError as error:
        raise AuthorityError(f"cannot write to {directory}: {error.strerror}") from None
    return made


def _need_both(ca: Path, ca_key: Path) -> None:
    for path, what in ((ca, "certificate"), (ca_key, "key")):
        if not path.exists():
            raise AuthorityError(
                f"{path} is missing: put the {what} of this authority there, or name an empty directory for a new one"
            )


def ends_at(path: str) -> datetime.datetime | None:
    """When the first certificate in this PEM file expires. None if the file is unreadable or cryptography not
    installed."""
    try:
        from cryptography import x509

        ends = [one.not_valid_after_utc for one in x509.load_pem_x509_certificates(_read(path))]
    except (ImportError, OSError, ValueError):
        return None
    return min(ends, default=None)


def _read(path: str) -> bytes:
    return Path(path).read_bytes()


def _write(certificate: Path, key: Path, issued: Issued) -> None:
    for path, content, mode in ((key, issued.key, 0o600), (certificate, issued.certificate, 0o644)):
        temporary = path.with_name(path.name + ".tmp")
        temporary.unlink(missing_ok=True)
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
        os.replace(temporary, path)


def _need_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise AuthorityError(f"issuing certificates needs the cryptography package: {install('quic')}") from None


def _subject(name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])  # 64: the attribute's own limit


def _host(text: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        pass
    try:
        return x509.DNSName(text)
    except ValueError:
        raise AuthorityError(f"{text!r} is neither an address nor a host name") from None


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: object,
    issuer_key: object,
    not_before: datetime.datetime | None,
    not_after: datetime.datetime | None,
    days: int,
) -> x509.CertificateBuilder:
    from cryptography import x509

    begin = not_before or datetime.datetime.now(datetime.UTC) - _BACKDATE
    end = not_after or begin + datetime.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)  # type: ignore[arg-type]
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)  # type: ignore[arg-type]
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key),  # type: ignore[arg-type]
            critical=False,
        )
    )


def _sign(builder: x509.CertificateBuilder, key: EllipticCurvePrivateKey) -> x509.Certificate:
    from cryptography.hazmat.primitives import hashes

    return builder.sign(key, hashes.SHA256())


def _pem(certificate: x509.Certificate, key: EllipticCurvePrivateKey) -> Issued:
    from cryptography.hazmat.primitives import serialization as s

    private = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
    return Issued(certificate.public_bytes(s.Encoding.PEM), private)
