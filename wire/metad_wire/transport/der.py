"""The two extensions of an X.509 certificate that Python's ssl module does not show: the purposes of its key and, for
our own certificate, its holder. Reads only as much DER as that needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

SERVER_AUTH: Final = bytes.fromhex("2b06010505070301")  # 1.3.6.1.5.5.7.3.1
CLIENT_AUTH: Final = bytes.fromhex("2b06010505070302")
_EXTENDED_KEY_USAGE: Final = bytes.fromhex("551d25")  # 2.5.29.37
_SUBJECT_ALT_NAME: Final = bytes.fromhex("551d11")
_SEQUENCE, _OBJECT_ID, _OCTETS, _EXTENSIONS, _URI = 0x30, 0x06, 0x04, 0xA3, 0x86


class Uses(NamedTuple):
    """The content of those extensions."""

    purposes: frozenset[bytes]
    """Extended key usage, as contents of object identifiers; empty if the extension is missing."""
    uris: tuple[str, ...]
    """The URIs of its subject alternative names."""


def uses_of(certificate: bytes) -> Uses:
    """Read the extensions. Raises ValueError if this is not a certificate."""
    (outer,) = _read(certificate)
    body, *_ = _read(_is(_SEQUENCE, outer))
    purposes: set[bytes] = set()
    uris: list[str] = []
    for tag, content in _read(_is(_SEQUENCE, body)):
        if tag != _EXTENSIONS:
            continue
        (extensions,) = _read(content)
        for extension in _read(_is(_SEQUENCE, extensions)):
            identifier, *rest = _read(_is(_SEQUENCE, extension))  # then perhaps whether it is critical; then its value
            what = _is(_OBJECT_ID, identifier)
            if what not in (_EXTENDED_KEY_USAGE, _SUBJECT_ALT_NAME):
                continue
            *_, octets = rest
            (value,) = _read(_is(_OCTETS, octets))
            for kind, item in _read(_is(_SEQUENCE, value)):
                if what == _EXTENDED_KEY_USAGE and kind == _OBJECT_ID:
                    purposes.add(item)
                elif what == _SUBJECT_ALT_NAME and kind == _URI:
                    uris.append(item.decode("ascii"))
    return Uses(frozenset(purposes), tuple(uris))


def _is(wanted: int, element: tuple[int, bytes]) -> bytes:
    tag, content = element
    if tag != wanted:
        raise ValueError(f"a certificate with {tag:#04x} where {wanted:#04x} should be")
    return content


def _read(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The consecutive elements of ``data``: their tags and contents."""
    at = 0
    while at < len(data):
        if at + 2 > len(data):
            raise ValueError("a certificate that ends too early")
        tag, size, at = data[at], data[at + 1], at + 2
        if size & 0x80:
            count = size & 0x7F
            if not 1 <= count <= 4:
                raise ValueError("a certificate with a length that is none")
            size, at = int.from_bytes(data[at : at + count], "big"), at + count
        if at + size > len(data):
            raise ValueError("a certificate that ends too early")
        yield tag, data[at : at + size]
        at += size
