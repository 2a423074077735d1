"""Where to dial: ``metad://host[:port][,host[:port]...]`` -> a list of (host, port). Pure.

A host that begins with an underscore is a service, which is looked up in the DNS: its port is 0.

The scheme names the transport: ``metad`` TCP in clear text, ``metads`` TCP with TLS, ``metadq`` QUIC, ``metad+auto``
one of the last two, as suits the path. Ports of TCP and UDP are the same number unless the cluster says otherwise.
"""

from __future__ import annotations

from metad_wire.transport import join_endpoint, split_endpoint
from metad_wire.transport.services import is_service, service_problem

PORT_DEFAULT = 7420
SCHEMES = ("metad", "metads", "metadq", "metad+auto")

Endpoint = tuple[str, int]


def as_url(text: str, *, encrypted: bool = False) -> str:
    """A URL as it is; ``host:port`` without a scheme means ``metads://`` if certificates are given, and ``metad://``
    otherwise."""
    return text if "://" in text else f"{'metads' if encrypted else 'metad'}://{text}"


def scheme_of(url: str) -> str:
    """The scheme of a URL. Raises ValueError if there is none, or one that is not known."""
    scheme, separator, _ = url.partition("://")
    if not separator:
        raise ValueError(f"not a metad URL: {url!r}; write metad://HOST:PORT[,HOST:PORT...]")
    if scheme not in SCHEMES:
        known = ", ".join(f"{known}://" for known in SCHEMES)
        raise ValueError(f"no transport for {scheme}://; there is {known}")
    return scheme


def parse_url(url: str) -> list[Endpoint]:
    """The endpoints of a URL, in its order. Raises ValueError with what is wrong and what would be right."""
    rest = url[len(scheme_of(url)) + len("://") :]
    rest = rest.removesuffix("/")
    if any(mark in rest for mark in "/?#@"):
        raise ValueError(f"a metad URL is only a scheme and endpoints: {url!r}")
    return [_endpoint(text.strip(), url) for text in rest.split(",")]


def _endpoint(text: str, url: str) -> Endpoint:
    if not text:
        raise ValueError(f"an endpoint is missing in {url!r}")
    if is_service(text):
        if problem := service_problem(text):
            raise ValueError(f"{text!r} {problem}, in {url!r}")
        return text, 0
    if text.startswith("[") != ("]" in text):
        raise ValueError(f"an IPv6 address is written [ADDRESS], not {text!r} in {url!r}")
    has_port = ":" in text.rpartition("]")[2] if text.startswith("[") else ":" in text
    endpoint = split_endpoint(text if has_port else f"{text}:{PORT_DEFAULT}")
    if not endpoint[1]:
        raise ValueError(f"nobody can be reached at port 0: {text!r} in {url!r}")
    return endpoint


def name_of(endpoint: Endpoint) -> str:
    """``host:port`` as people write it, or the name of a service."""
    return endpoint[0] if is_service(endpoint[0]) else join_endpoint(*endpoint)
