"""A node's clients, generated where they are needed and never sent: the kind of each and the time of its first attempt.

All properties of a client follow from the node's input, the seed and its number.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from metad_wire.policy import uniform
from metad_wire.policy.draw import stream
from metad_wire.policy.vector import uniforms

from .node_input import NodeInput

Ints = npt.NDArray[np.int64]

FIRST, BACKOFF, LOSS, JITTER, SERVICE = range(5)
"""The purposes of random draws; each is a stream of its own."""
LOST_MAX = 3
"""A packet that is lost three times in a row gets through the fourth time: bounds the delay."""
_RETRANSMIT_US = 1_000_000
"""The first retransmission timeout before a round trip is known, for TCP (RFC 6298) and QUIC (RFC 9002)."""


def kind_bounds(node_input: NodeInput) -> list[int]:
    """Number of the first client after each kind."""
    bounds: list[int] = []
    for kind in node_input.kinds:
        bounds.append((bounds[-1] if bounds else 0) + kind.clients)
    return bounds


def broker_bases(node_input: NodeInput) -> list[int]:
    """The number of each region's first broker, and the total number of brokers."""
    bases = [0]
    for count in node_input.brokers:
        bases.append(bases[-1] + count)
    return bases


def loss_shares(loss: float, round_trips: int) -> tuple[float, ...]:
    """The shares of attempts with at least one, two, ... packets lost in a row: any packet of the handshake may be the
    first lost, and is then lost again like any other. ``loss``: of packets; ``round_trips``: of the handshake."""
    any_lost = 1.0 - (1.0 - loss) ** (2 * round_trips)
    return tuple(any_lost * loss**more for more in range(LOST_MAX))


def loss_us(lost: int) -> int:
    """The time that so many losses in a row cost: timeouts that double."""
    return _RETRANSMIT_US * ((1 << lost) - 1)


def first_us(node_input: NodeInput, seed: int, client: int) -> int:
    """When a client (its number in the node) makes its first attempt."""
    start, name = stream(seed, FIRST), node_input.first_client + client
    when = uniform(start, name, 0)
    if not uniform(start, name, 1) < node_input.silent_share:
        return int(when * node_input.spread_us)
    which, share = uniform(start, name, 2), 0.0
    for keepalive in node_input.keepalives:
        share += keepalive.share
        if which < share:
            break
    return int(when * round(keepalive.keepalive_s * 1e6))


def firsts_us(node_input: NodeInput, seed: int) -> Ints:
    """:func:`first_us` for all clients of the node."""
    start = stream(seed, FIRST)
    names = np.arange(node_input.first_client, node_input.first_client + node_input.clients, dtype=np.int64)
    width: float | npt.NDArray[np.float64] = float(node_input.spread_us)
    if node_input.silent_share:
        shares = np.cumsum([keepalive.share for keepalive in node_input.keepalives])
        widths = np.array([float(round(keepalive.keepalive_s * 1e6)) for keepalive in node_input.keepalives])
        which = np.searchsorted(shares, uniforms(start, names, 2), side="right")
        silent = uniforms(start, names, 1) < node_input.silent_share
        width = np.where(silent, widths[np.minimum(which, len(widths) - 1)], width)
    firsts: Ints = (uniforms(start, names, 0) * width).astype(np.int64)
    return firsts


def kinds_of(node_input: NodeInput) -> npt.NDArray[np.uint16]:
    """The kind of each client, an index into ``node_input.kinds``."""
    return np.repeat(np.arange(len(node_input.kinds), dtype=np.uint16), [kind.clients for kind in node_input.kinds])
