"""What a cluster map may hold, looked at where something is to be put into it.

Everybody keeps the map, follows it and dials what it says: so it must always fit a reply, and an address in it must
not be one that only means something to whoever reads it.
"""

from __future__ import annotations

from typing import Final

from metad_wire.cluster import SLOTS, ClusterMap, NodeRecord
from metad_wire.errors import InvalidRequestError
from metad_wire.methods import encode

from ...config import REGION_BYTES_MAX, dialable_problem

MAP_BYTES_MAX: Final = 2 * 1024 * 1024
"""Half of the smallest ``limits.frame_bytes_max``: who leads what comes with the map."""
GROUPS_MAX: Final = SLOTS
"""Of one kind: a group without a slot is good for nothing."""
ORDINALS_MAX: Final = 0xFFFF
"""Of one kind: they are a u16 on disk and in the map, and none is used twice."""
NODE_ID_BYTES_MAX: Final = 256
STORE_ID_BYTES_MAX: Final = 64


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
    """Raises InvalidRequestError if it is not HOST:PORT, or if its host can never be the address of one node."""
    if problem := dialable_problem(endpoint):
        raise InvalidRequestError(f"the {what} {endpoint[:300]!r} {problem}")


def check_size(changed: ClusterMap) -> None:
    """Raises InvalidRequestError if a map is so large that it could not be fetched any more."""
    size = len(encode(changed))
    if size > MAP_BYTES_MAX:
        raise InvalidRequestError(f"the cluster map would take {size} bytes, and {MAP_BYTES_MAX} are the most")
