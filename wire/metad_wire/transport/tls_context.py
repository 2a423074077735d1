"""TLS 1.3 as metad uses it: the options of OpenSSL's contexts, and the meaning of its errors."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from .credentials import CertificateError, TlsError, TlsFiles, principal_of
from .der import CLIENT_AUTH, SERVER_AUTH, uses_of

_END: Final = "-----END CERTIFICATE-----"

# What a peer's alert says of our certificate, by OpenSSL's name for the alert.
_ALERTS: Final = {
    "CERTIFICATE_REQUIRED": "it requires a certificate, and we showed none",
    "UNKNOWN_CA": "it does not trust the authority of our certificate",
    "CERTIFICATE_EXPIRED": "our certificate has expired, or is not valid yet",
    "CERTIFICATE_REVOKED": "our certificate is revoked",
    "UNSUPPORTED_CERTIFICATE": "our certificate is for another purpose",
    "BAD_CERTIFICATE": "our certificate is not valid",
    "CERTIFICATE_UNKNOWN": "our certificate is not acceptable",
    "ACCESS_DENIED": "access denied",
}

FOREIGN: Final = frozenset(
    {
        "self-signed certificate",
        "self-signed certificate in certificate chain",
        "unable to get issuer certificate",
        "unable to get local issuer certificate",
        "unable to verify the first certificate",
    }
)
"""OpenSSL's words for a certificate of an authority that is not ours."""


def refusal(words: str) -> CertificateError:
    """The typed error for a peer's certificate that was not accepted. ``words`` are OpenSSL's."""
    why = "another authority than ours issued it" if words in FOREIGN else words
    return CertificateError(f"the peer's certificate is refused: {why}")


def server_context(files: TlsFiles, *, certificate_required: bool) -> ssl.SSLContext:
    """The context of an accepting end. A client's certificate, if it shows one or must, is verified: trusted, within
    its dates, for clients. Raises CertificateError."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, files)
    context.verify_mode = ssl.CERT_REQUIRED if certificate_required else ssl.CERT_OPTIONAL
    # No tickets: a client that resumes a session is not asked for its certificate again, which may have expired since.
    context.num_tickets = 0
    return context


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """The context of a dialling end. The server's certificate must be trusted, within its dates and for servers. That
    it is a node's is checked after the handshake, by its role and not by a host name, because nodes move and are
    dialled by address. Raises CertificateError."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, files)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def check_purpose(certificate: bytes, purpose: bytes) -> None:
    """Check what OpenSSL accepts and metad does not: a certificate (as DER) without the required purpose. Raises
    CertificateError."""
    try:
        uses = uses_of(certificate)
    except ValueError as error:
        raise CertificateError(f"the peer's certificate is refused: {error}") from None
    if purpose not in uses.purposes:
        raise CertificateError("the peer's certificate is refused: it is for another purpose")


def _check_own(files: TlsFiles) -> None:
    """A node that starts with another node's certificate would be refused by all, or pose as that node. Raises
    CertificateError."""
    try:
        text = Path(files.certificate).read_text()
        begin = text.index("-----BEGIN CERTIFICATE-----")
        uses = uses_of(ssl.PEM_cert_to_DER_cert(text[begin : text.index(_END, begin) + len(_END)]))
    except (OSError, ValueError) as error:
        raise CertificateError(f"cannot use the certificate {files.certificate!r}: {error}") from None
    holder = principal_of({"subjectAltName": tuple(("URI", uri) for uri in uses.uris)})
    if holder is None or not holder.may_be(files.node):
        raise CertificateError(
            f"the certificate {files.certificate!r} names {holder or 'no holder'}, but this is node {files.node!r}"
        )
    if not {SERVER_AUTH, CLIENT_AUTH} <= uses.purposes:
        raise CertificateError(
            f"the certificate {files.certificate!r} is not for servers and for clients, as a node's is"
        )


def _context(protocol: int, files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if bool(files.certificate) != bool(files.key):
        raise CertificateError("a certificate needs its key, and a key its certificate")
    if protocol == ssl.PROTOCOL_TLS_SERVER and not files.certificate:
        raise CertificateError("a server needs a certificate")
    try:
        context.load_verify_locations(files.ca)
    except (OSError, ssl.SSLError) as error:
        raise CertificateError(f"cannot use the authorities in {files.ca!r}: {_reason(error)}") from None
    if files.node:
        _check_own(files)
    if files.certificate:
        try:
            context.load_cert_chain(files.certificate, files.key, password=_no_password)
        except (OSError, ssl.SSLError, ValueError) as error:
            raise CertificateError(
                f"cannot use the certificate {files.certificate!r} with the key {files.key!r}: {_reason(error)}"
            ) from None
    return context


def _no_password() -> str:
    """Refuse an encrypted key: OpenSSL would otherwise ask for a password on the terminal."""
    raise ValueError("the key is encrypted; store it without a password, readable by its owner only")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return {
            "KEY_VALUES_MISMATCH": "the key is not the certificate's",
            "NO_START_LINE": "there is no PEM block in it",
        }.get(error.reason or "", (error.reason or str(error)).replace("_", " ").lower())
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def explain(error: ssl.SSLError) -> TlsError:
    """The typed error for a handshake or connection that failed in OpenSSL."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return refusal(error.verify_message)
    reason = error.reason or str(error)
    if "ALERT_" in reason:
        alert = reason.rpartition("ALERT_")[2]
        if alert in _ALERTS:
            return CertificateError(f"the peer refuses us: {_ALERTS[alert]}")
        return TlsError(f"the peer ended the handshake: {alert.replace('_', ' ').lower()}")
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return CertificateError("the peer's certificate is refused: it showed none")
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNEXPECTED_MESSAGE", "RECORD_LAYER_FAILURE"):
        return TlsError("the peer does not speak TLS")
    return TlsError(f"TLS failed: {reason.replace('_', ' ').lower()}")
