"""The addresses of a node: those that it binds, those that it tells others, and whether others can dial them.

A node binds an address of its machine. It tells nodes and clients an address that they can dial, which is another one
behind NAT, in a container, and if the node binds every address (``0.0.0.0``).
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Iterator
from typing import Final

from metad_wire.transport import split_endpoint
from metad_wire.transport.services import is_service, service_problem

from .declarations import Config

HOST_BYTES_MAX: Final = 253
"""Of a name in the DNS."""
_UNIX_BYTES_MAX: Final = 107
"""Of the path of a socket, as Linux has it."""
_HOST: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_NUMBER: Final = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")  # what inet_aton() takes for a part of an address
UNIX: Final = "unix:"
"""Before the path of a socket, in place of HOST:PORT."""
_ALONE: Final = "127.0.0.1:0"
"""A node that joins binds this if ``cluster.listen`` says nothing. Nodes of the same machine reach it."""


def bound_for_nodes(config: Config) -> str:
    """HOST:PORT of the listener for other nodes. Empty: the node is a cluster of its own and has no such listener."""
    cluster = config.cluster
    if not cluster.seeds and not cluster.join:
        return ""
    return cluster.listen or cluster.seeds.get(config.node_id, _ALONE)


def told_to_nodes(config: Config, bound: str) -> str:
    """HOST:PORT that other nodes dial. ``bound`` is the address that the listener got."""
    return config.cluster.advertise or config.cluster.seeds.get(config.node_id, bound)


def dialable_problem(endpoint: str) -> str:
    """Why nobody else can dial this, as the end of a sentence that begins with it. Empty: it may be dialled. Names are
    not resolved."""
    try:
        host, port = split_endpoint(endpoint)
    except ValueError:
        return "is not HOST:PORT"
    if not port:
        return "has no port"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if len(host) > HOST_BYTES_MAX or not _HOST.fullmatch(host) or _NUMBER.fullmatch(host.rpartition(".")[2]):
            return "has no valid host"
        return ""
    address = getattr(address, "ipv4_mapped", None) or address
    broadcast = address.version == 4 and address.is_reserved
    if address.is_unspecified or address.is_multicast or address.is_link_local or broadcast:
        return "is not the address of one node"
    return ""


def is_every_address(host: str) -> bool:
    """Whether binding this host binds every address of the machine."""
    address = _address(host)
    return address is not None and address.is_unspecified


def is_loopback(host: str) -> bool:
    """Whether this host is reached from its own machine only. A name other than ``localhost`` is not resolved and
    counts as reached from others."""
    address = _address(host)
    return address.is_loopback if address is not None else host.lower() == "localhost"


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host)
        return getattr(address, "ipv4_mapped", None) or address
    except ValueError:
        pass
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))  # "0" and "127.1", which connect() and bind() take
    except (OSError, ValueError):
        return None


def problems(config: Config) -> Iterator[str]:
    """The addresses that cannot work, as ``key: text``."""
    wrong = [*_not_bound(config), *_not_dialled(config)]
    yield from wrong
    if not wrong:
        yield from _bound_twice(config)
        yield from _not_reached(config)


def _not_bound(config: Config) -> Iterator[str]:
    """Addresses to bind that are no addresses."""
    bound = {
        "listen": config.listen,
        "quic": config.quic,
        "http": config.http,
        "cluster.listen": config.cluster.listen,
    }
    for key, endpoint in bound.items():
        if key == "http" and endpoint.startswith(UNIX):
            if len(os.fsencode(endpoint)) > len(UNIX) + _UNIX_BYTES_MAX or endpoint == UNIX:
                yield f"http: the path of a socket has 1 to {_UNIX_BYTES_MAX} bytes"
        elif endpoint or key == "listen":
            try:
                split_endpoint(endpoint)
            except ValueError as error:
                yield f"{key}: {error}"


def collide(one: str, other: str) -> bool:
    """Whether only one of two addresses can be bound. Empty ones are not bound."""
    if not one or not other or one.startswith(UNIX):
        return False
    (host, port), (other_host, other_port) = split_endpoint(one), split_endpoint(other)
    return port == other_port != 0 and (host == other_host or is_every_address(host) or is_every_address(other_host))


def _bound_twice(config: Config) -> Iterator[str]:
    """Addresses for clients that are the one for nodes. A node binds both, for TCP and for QUIC."""
    for key, endpoint in {"listen": config.listen, "quic": config.quic}.items():
        if collide(endpoint, bound_for_nodes(config)):
            nodes_key = _key_for_nodes(config)
            yield f"{key}: {endpoint} is the address for other nodes ({nodes_key}); clients need another port"
    for key, other in (("listen", config.listen), (_key_for_nodes(config), bound_for_nodes(config))):
        if collide(config.http, other):
            yield f"http: {config.http} is the address of {key}; HTTP needs another port"


def _key_for_nodes(config: Config) -> str:
    """The key that says where the listener for nodes is."""
    cluster = config.cluster
    return "cluster.listen" if cluster.listen or cluster.join else f"cluster.seeds.{config.node_id}"


def _not_dialled(config: Config) -> Iterator[str]:
    """Addresses for others to dial that nobody can dial."""
    cluster = config.cluster
    dialled = {f"cluster.seeds.{node}": endpoint for node, endpoint in cluster.seeds.items()}
    for at, endpoint in enumerate(cluster.join):
        key = f"cluster.join[{at}]"
        if not is_service(endpoint):
            dialled[key] = endpoint
        elif problem := service_problem(endpoint):
            yield f"{key}: {endpoint!r} {problem}"
    for field in ("advertise", "advertise_clients", "advertise_quic"):
        if endpoint := getattr(cluster, field):
            dialled[f"cluster.{field}"] = endpoint
    for key, endpoint in dialled.items():
        if problem := dialable_problem(endpoint):
            yield f"{key}: {endpoint!r} {problem}"


def _not_reached(config: Config) -> Iterator[str]:
    """Listeners that nobody would find at the address that the node tells."""
    cluster = config.cluster
    told = [
        ("listen", config.listen, "advertise_clients", cluster.advertise_clients or config.listen),
        ("quic", config.quic, "advertise_quic", cluster.advertise_quic or config.quic),
    ]
    nodes = bound_for_nodes(config)
    if nodes:
        told.insert(0, (_key_for_nodes(config), nodes, "advertise", told_to_nodes(config, nodes)))
    others = [*(at for node, at in cluster.seeds.items() if node != config.node_id), *cluster.join]
    far = next((at for at in others if not is_service(at) and not is_loopback(split_endpoint(at)[0])), None)
    for key, bound, field, endpoint in told:
        if not endpoint:
            continue
        host, _ = split_endpoint(endpoint)
        if is_every_address(host):
            yield f"{key}: {bound} is every address; set cluster.{field} to the HOST:PORT that others dial"
        elif far is not None and is_loopback(host):
            yield (
                f"{key}: {endpoint} is reached from this machine only, but the cluster is on other machines too "
                f"({far}). Set {key} to an address of this machine, or cluster.{field} to the HOST:PORT that others "
                "dial"
            )
