"""Where to dial: ``metad://host[:port][,host[:port]...]`` -> a list of (host, port). Pure."""

from __future__ import annotations

from metad_wire.transport import join_endpoint, split_endpoint

PORT_DEFAULT = 7420
SCHEMES = ("metad",)


def parse_url(url: str) -> list[tuple[str, int]]:
    """The endpoints of a URL, in its order. Raises ValueError with what is wrong and what would be right."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise ValueError(f"not a metad URL: {url!r}; write metad://HOST:PORT[,HOST:PORT...]")
    if scheme not in SCHEMES:
        known = ", ".join(f"{known}://" for known in SCHEMES)
        raise ValueError(f"no transport for {scheme}://; there is {known}")
    rest = rest.removesuffix("/")
    if any(mark in rest for mark in "/?#@"):
        raise ValueError(f"a metad URL is only a scheme and endpoints: {url!r}")
    return [_endpoint(part.strip(), url) for part in rest.split(",")]


def _endpoint(part: str, url: str) -> tuple[str, int]:
    if not part:
        raise ValueError(f"an endpoint is missing in {url!r}")
    has_port = ":" in part.rpartition("]")[2] if part.startswith("[") else ":" in part
    return split_endpoint(part if has_port else f"{part}:{PORT_DEFAULT}")


def name_of(endpoint: tuple[str, int]) -> str:
    """``host:port`` as people write it."""
    return join_endpoint(*endpoint)
