"""What a cluster map may hold, looked at where something is to be put into it.

Everybody keeps the map, follows it and dials what it says: so it must always fit a reply, and an address in it must
not be one that only means something to whoever reads it.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from metad_wire.cluster import SLOTS, ClusterMap, NodeRecord
from metad_wire.errors import InvalidRequestError
from metad_wire.methods import encode
from metad_wire.transport import split_endpoint

from ..config import REGION_BYTES_MAX

MAP_BYTES_MAX: Final = 2 * 1024 * 1024
"""Half of the smallest ``limits.frame_bytes_max``: who leads what comes with the map."""
GROUPS_MAX: Final = SLOTS
"""Of one kind: a group without a slot is good for nothing."""
NODE_ID_BYTES_MAX: Final = 256
STORE_ID_BYTES_MAX: Final = 64
HOST_BYTES_MAX: Final = 253  # of a name in the DNS
_HOST: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_NUMBER: Final = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")  # what inet_aton() takes for a part of an address


def check_node(node: NodeRecord) -> None:
    """Raises InvalidRequestError where a node cannot be called so, or is said to be where no node can be."""
    _check_text("node id", node.node_id, NODE_ID_BYTES_MAX)
    for what, text, most in (
        ("region", node.region, REGION_BYTES_MAX),
        ("store id", node.store_id, STORE_ID_BYTES_MAX),
    ):
        if text:
            _check_text(what, text, most)
    check_endpoint("peer endpoint", node.peer_endpoint)
    for what, endpoint in (("endpoint", node.endpoint), ("QUIC endpoint", node.quic_endpoint)):
        if endpoint:
            check_endpoint(what, endpoint)


def _check_text(what: str, text: str, bytes_max: int) -> None:
    if not text or len(text.encode()) > bytes_max:
        raise InvalidRequestError(f"the {what} must take 1 to {bytes_max} bytes")
    if not text.isprintable() or text != text.strip():
        raise InvalidRequestError(f"the {what} {text!r} has characters that cannot be seen")


def check_endpoint(what: str, endpoint: str) -> None:
    """Raises InvalidRequestError where it is not HOST:PORT, or its host is an address that is no single node's
    everywhere. What a name stands for is not looked at."""
    try:
        host, port = split_endpoint(endpoint)
    except ValueError:
        raise InvalidRequestError(f"the {what} {endpoint[:300]!r} is not HOST:PORT") from None
    if not port:
        raise InvalidRequestError(f"the {what} {endpoint!r} has no port")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if len(host) > HOST_BYTES_MAX or not _HOST.fullmatch(host) or _NUMBER.fullmatch(host.rpartition(".")[2]):
            raise InvalidRequestError(f"the {what} {endpoint[:300]!r} has no valid host") from None
        return
    address = getattr(address, "ipv4_mapped", None) or address
    broadcast = address.version == 4 and address.is_reserved
    if address.is_unspecified or address.is_multicast or address.is_link_local or broadcast:
        raise InvalidRequestError(f"the {what} {endpoint!r} is not the address of one node")


def check_size(changed: ClusterMap) -> None:
    """Raises InvalidRequestError if a map is so large that it could not be fetched any more."""
    size = len(encode(changed))
    if size > MAP_BYTES_MAX:
        raise InvalidRequestError(f"the cluster map would take {size} bytes, and {MAP_BYTES_MAX} are the most")
