"""Random numbers as a function of the drawing client and the draw's number, so that the order of events cannot change
them.

The same (seed, client, turn, purpose) gives the same 64 bits in any process, in any order, here and in
:mod:`metad_wire.policy.vector`. Two rounds of the finaliser of SplitMix64 (Steele, Lea, Flood, "Fast Splittable
Pseudorandom Number Generators", OOPSLA 2014) mix them.
"""

from __future__ import annotations

MASK = (1 << 64) - 1
CLIENT_STEP = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio, made odd: its multiples are spread evenly over 64 bits."""
TURN_STEP = 0xD1B54A32D192ED03
"""Another odd number without small multiples that meet those of the first."""
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
UNIT = 2.0**-53


def mix(value: int) -> int:
    """The finaliser of SplitMix64: a bijection on 64 bits in which every input bit moves half of the output bits."""
    value &= MASK
    value = ((value ^ (value >> 30)) * MIX_1) & MASK
    value = ((value ^ (value >> 27)) * MIX_2) & MASK
    return value ^ (value >> 31)


def stream(seed: int, purpose: int) -> int:
    """64 bits that stand for a seed and a purpose; every draw starts from them."""
    return mix(mix(seed) + CLIENT_STEP * (purpose + 1))


def draw(start: int, client: int, turn: int) -> int:
    """64 random bits for the ``turn``-th draw of ``client`` in the stream that begins at ``start``."""
    return mix(start + CLIENT_STEP * (client + 1) + TURN_STEP * turn)


def uniform(start: int, client: int, turn: int) -> float:
    """A uniform number in [0, 1) with 53 random bits, drawn as :func:`draw` says."""
    return (draw(start, client, turn) >> 11) * UNIT
