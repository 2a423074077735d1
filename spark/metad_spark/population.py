"""A node's clients, made where they are needed and never sent: who each is and when it first tries.

Everything about a client follows from the case, the seed and its number.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from metad_wire.policy import uniform
from metad_wire.policy.draw import stream
from metad_wire.policy.vector import uniforms

from .cases import NodeCase

Ints = npt.NDArray[np.int64]

FIRST, BACKOFF, LOSS, JITTER, SERVICE = range(5)
"""What is drawn for; each is a stream of its own."""
LOST_MAX = 3
"""A packet that is lost three times in a row gets through the fourth time: bounds the delay."""
_RETRANSMIT_US = 1_000_000
"""The first retransmission timeout where no round trip is known yet, of TCP (RFC 6298) as of QUIC (RFC 9002)."""


def kind_bounds(case: NodeCase) -> list[int]:
    """Number of the first client after each kind."""
    bounds: list[int] = []
    for kind in case.kinds:
        bounds.append((bounds[-1] if bounds else 0) + kind.clients)
    return bounds


def broker_bases(case: NodeCase) -> list[int]:
    """The number of each region's first broker, and how many there are in all."""
    bases = [0]
    for count in case.brokers:
        bases.append(bases[-1] + count)
    return bases


def loss_shares(case: NodeCase, region: int, transport: int) -> tuple[float, ...]:
    """The shares of attempts with at least one, two, ... packets lost in a row: any packet of the handshake may be the
    first, and is then lost again like any other."""
    loss = case.loss[region]
    any_lost = 1.0 - (1.0 - loss) ** (2 * case.round_trips[transport])
    return tuple(any_lost * loss**more for more in range(LOST_MAX))


def loss_us(lost: int) -> int:
    """What that many losses in a row cost: timeouts that double."""
    return _RETRANSMIT_US * ((1 << lost) - 1)


def first_us(case: NodeCase, seed: int, client: int) -> int:
    """When a client (its number in the node) first tries."""
    start, name = stream(seed, FIRST), case.first_client + client
    when = uniform(start, name, 0)
    if not uniform(start, name, 1) < case.silent_share:
        return int(when * case.spread_us)
    which, share = uniform(start, name, 2), 0.0
    for keepalive in case.keepalives:
        share += keepalive.share
        if which < share:
            break
    return int(when * round(keepalive.keepalive_s * 1e6))


def firsts_us(case: NodeCase, seed: int) -> Ints:
    """:func:`first_us` of all clients of the node."""
    start = stream(seed, FIRST)
    names = np.arange(case.first_client, case.first_client + case.clients, dtype=np.int64)
    width: float | npt.NDArray[np.float64] = float(case.spread_us)
    if case.silent_share:
        shares = np.cumsum([keepalive.share for keepalive in case.keepalives])
        widths = np.array([float(round(keepalive.keepalive_s * 1e6)) for keepalive in case.keepalives])
        which = np.searchsorted(shares, uniforms(start, names, 2), side="right")
        silent = uniforms(start, names, 1) < case.silent_share
        width = np.where(silent, widths[np.minimum(which, len(widths) - 1)], width)
    firsts: Ints = (uniforms(start, names, 0) * width).astype(np.int64)
    return firsts


def kinds_of(case: NodeCase) -> npt.NDArray[np.uint16]:
    """The kind of each client, an index into ``case.kinds``."""
    return np.repeat(np.arange(len(case.kinds), dtype=np.uint16), [kind.clients for kind in case.kinds])
