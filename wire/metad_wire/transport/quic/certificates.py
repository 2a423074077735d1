"""Certificate files in aioquic's form, and the checks that OpenSSL does in the TLS transport and aioquic does not: the
purpose of a peer's certificate, and whether a client shows one at all."""

from __future__ import annotations

import hashlib
import ipaddress
from typing import Any, Final, NamedTuple

from aioquic.tls import (
    Alert,
    AlertBadCertificate,
    AlertDescription,
    AlertUnsupportedCertificate,
    load_pem_private_key,
    load_pem_x509_certificates,
    verify_certificate,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ..credentials import CertificateError, TlsFiles
from ..tls_context import FOREIGN, client_context, server_context

_CHAIN_MAX: Final = 8  # certificates that a peer may show

# The names that Python's ssl module uses in peercert dictionaries.
_NAMES: Final = {
    NameOID.COMMON_NAME: "commonName",
    NameOID.ORGANIZATION_NAME: "organizationName",
    NameOID.ORGANIZATIONAL_UNIT_NAME: "organizationalUnitName",
    NameOID.COUNTRY_NAME: "countryName",
    NameOID.LOCALITY_NAME: "localityName",
    NameOID.STATE_OR_PROVINCE_NAME: "stateOrProvinceName",
}


class AlertCertificateRequired(Alert):
    """The client has shown no certificate."""

    description = AlertDescription.certificate_required


class AlertUnknownAuthority(Alert):
    """The peer's certificate was issued by none of our authorities."""

    description = AlertDescription.unknown_ca


class Material(NamedTuple):
    """The contents of the files."""

    certificate: x509.Certificate | None
    chain: list[x509.Certificate]
    key: Any
    authorities: bytes
    """PEM."""
    generation: bytes
    """Changes with the authorities: a peer that other authorities admitted must show its certificate again."""
    secret: bytes
    """Known only to the key's holder and the same after each restart: tokens and reset tokens are derived from it."""


def load(files: TlsFiles) -> Material:
    """Load the files. Raises CertificateError if one is missing, invalid, or does not fit the others."""
    # OpenSSL checks them first, so that both transports refuse the same files with the same words.
    if files.certificate or files.key:
        server_context(files, certificate_required=False)
    else:
        client_context(files)
    try:
        with open(files.ca, "rb") as file:
            authorities = file.read()
        load_pem_x509_certificates(authorities)
        if not files.certificate:
            return Material(None, [], None, authorities, _digest(authorities), b"")
        with open(files.certificate, "rb") as file:
            certificates = load_pem_x509_certificates(file.read())
        with open(files.key, "rb") as file:
            key = load_pem_private_key(file.read())
    except (OSError, ValueError, TypeError) as error:
        raise CertificateError(f"cannot use the certificate files: {error}") from None
    material = key.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    secret = HKDF(hashes.SHA256(), 32, None, b"metad quic tokens").derive(material)
    return Material(certificates[0], certificates[1:], key, authorities, _digest(authorities), secret)


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def verify(
    certificate: x509.Certificate, chain: list[x509.Certificate], authorities: bytes, *, of_client: bool
) -> None:
    """Check that it is trusted, within its dates, for this purpose, and not an authority's. Raises an Alert."""
    if len(chain) >= _CHAIN_MAX:
        raise AlertBadCertificate("the chain is too long")
    try:
        verify_certificate(certificate, chain=chain, cadata=authorities)
    except AlertBadCertificate as alert:
        if str(alert) in FOREIGN:
            raise AlertUnknownAuthority(str(alert)) from None
        raise
    try:
        extensions = certificate.extensions
    except ValueError:
        raise AlertBadCertificate("extensions could not be parsed") from None
    purpose = ExtendedKeyUsageOID.CLIENT_AUTH if of_client else ExtendedKeyUsageOID.SERVER_AUTH
    usages = [extension.value for extension in extensions if isinstance(extension.value, x509.ExtendedKeyUsage)]
    if not any(purpose in usage for usage in usages):
        raise AlertUnsupportedCertificate("it is for another purpose")
    for extension in extensions:
        value = extension.value
        if isinstance(value, x509.KeyUsage) and not value.digital_signature:
            raise AlertUnsupportedCertificate("it is not for signatures")
        if isinstance(value, x509.BasicConstraints) and value.ca:
            raise AlertUnsupportedCertificate("it is an authority's")


def peercert(certificate: x509.Certificate) -> dict[str, Any]:
    """The dictionary that Python's ssl module makes of a certificate: subject, issuer, subjectAltName, dates."""
    return {
        "subject": _name(certificate.subject),
        "issuer": _name(certificate.issuer),
        "serialNumber": f"{certificate.serial_number:X}",
        "notBefore": certificate.not_valid_before_utc.strftime("%b %e %H:%M:%S %Y GMT"),
        "notAfter": certificate.not_valid_after_utc.strftime("%b %e %H:%M:%S %Y GMT"),
        "subjectAltName": _alternatives(certificate),
    }


def _name(name: x509.Name) -> tuple[tuple[tuple[str, str], ...], ...]:
    return tuple(
        tuple((_NAMES.get(part.oid, part.oid.dotted_string), str(part.value)) for part in relative)
        for relative in name.rdns
    )


def _alternatives(certificate: x509.Certificate) -> tuple[tuple[str, str], ...]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    found: list[tuple[str, str]] = []
    for name in names:
        if isinstance(name, x509.DNSName):
            found.append(("DNS", name.value))
        elif isinstance(name, x509.UniformResourceIdentifier):
            found.append(("URI", name.value))
        elif isinstance(name, x509.IPAddress) and isinstance(name.value, ipaddress.IPv4Address | ipaddress.IPv6Address):
            found.append(("IP Address", str(name.value)))
    return tuple(found)
