"""Which clients there are, and what each of them has stored. Pure.

Everything about a client follows from its number and the seed, so no process has to be told, and whoever reads a record
back knows what must be in it.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from metad_wire.messages import InflightState, SessionProperties, Subscribed, SubscriptionOptions, Will
from metad_wire.policy import Backoff
from metad_wire.policy.draw import MASK
from metad_wire.policy.vector import uniforms

from ..errors import UsageError

Ints = npt.NDArray[np.int64]
Stored: TypeAlias = tuple[SessionProperties | None, list[Subscribed] | None, list[InflightState] | None]
"""What belongs to a session."""
POOL_BYTES = 1 << 20
PAYLOAD_BYTES_MAX = 1 << 16
_KIND_DRAW, _BROKER_DRAW, _STAYS_AWAY_DRAW = 1, 2, 3
_NUMBER_BYTES = 8


class Kind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Clients that are alike. Raises ValueError where a value makes no sense."""

    name: str
    share: float
    """Of all clients, relative to the shares of the other kinds."""
    tenant: str = "storm"
    region: str = "eu"
    rtt_ms: float = 40.0
    """Between the client and its broker: an attempt reaches the broker so much after it begins."""
    keepalive_s: int = 300
    """Of its connection. metad does not see it; the report says it."""
    backoff: Backoff = Backoff(base_s=1.0, cap_s=60.0, family="full")
    """How the device waits before it tries again, with the policy ``population``. Other policies take its scale, and
    replace the family."""
    expiry_s: int = 86_400
    """The session's expiry interval."""
    subscriptions: int = 1
    inflight: int = 0
    """Messages that wait for it."""
    payload_bytes: int = 120
    """Of the session's properties."""
    will: bool = False
    will_delay_s: int = 3_600

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.share <= 0 or self.rtt_ms < 0 or self.expiry_s < 1:
            raise ValueError("share must be over 0, rtt_ms from 0 on, and expiry_s at least 1")
        if not _NUMBER_BYTES <= self.payload_bytes <= PAYLOAD_BYTES_MAX:
            raise ValueError(f"payload_bytes must be {_NUMBER_BYTES} to {PAYLOAD_BYTES_MAX}, not {self.payload_bytes}")
        if not 0 <= self.subscriptions <= 100 or not 0 <= self.inflight <= 100:
            raise ValueError("subscriptions and inflight must be 0 to 100")


class Population(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All clients. ``timeout_s``: a device gives an attempt up after so long, and then tries again."""

    kinds: tuple[Kind, ...] = (
        Kind(name="meter", share=0.6, rtt_ms=30.0),
        Kind(
            name="car", share=0.25, region="us", rtt_ms=80.0, keepalive_s=60, payload_bytes=200, inflight=1, will=True
        ),
        Kind(name="phone", share=0.15, region="ap", rtt_ms=150.0, keepalive_s=60, payload_bytes=200, subscriptions=2),
    )
    timeout_s: float = 20.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not self.kinds or self.timeout_s <= 0:
            raise ValueError("a population has at least one kind of clients, and a timeout_s over 0")

    @property
    def regions(self) -> list[str]:
        """Each once, in order."""
        return list(dict.fromkeys(kind.region for kind in self.kinds))

    @property
    def tenants(self) -> list[str]:
        """Each once, in order."""
        return list(dict.fromkeys(kind.tenant for kind in self.kinds))


def read(path: Path | None) -> Population:
    """The population of a TOML file (``[[kinds]]``); without one, the default. Raises UsageError."""
    if path is None:
        return Population()
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Population)
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        raise UsageError(f"--population {path}: {error}") from None


class Clients:
    """What follows from the numbers of clients."""

    def __init__(self, population: Population, seed: int) -> None:
        self.population = population
        shares = np.array([kind.share for kind in population.kinds])
        self._ends = np.cumsum(shares / shares.sum())
        self._seed = (seed * 0x9E3779B97F4A7C15 + 1) & MASK
        self._pool = random.Random(seed).randbytes(POOL_BYTES + PAYLOAD_BYTES_MAX)

    def kinds(self, numbers: Ints) -> Ints:
        """Index of each client's kind."""
        found = np.searchsorted(self._ends, uniforms(self._seed, numbers, _KIND_DRAW), side="right")
        kinds: Ints = np.minimum(found, len(self._ends) - 1).astype(np.int64)
        return kinds

    def another_broker(self, numbers: Ints, brokers: int) -> Ints:
        """For each client a broker that is not the one at ``number % brokers``, if there is another."""
        steps = (uniforms(self._seed, numbers, _BROKER_DRAW) * (brokers - 1)).astype(np.int64) + 1
        found: Ints = (numbers + steps) % brokers
        return found

    def stays_away(self, numbers: Ints, share: float) -> npt.NDArray[np.bool_]:
        """Which clients are of the share that does not come back."""
        found: npt.NDArray[np.bool_] = uniforms(self._seed, numbers, _STAYS_AWAY_DRAW) < share
        return found

    def payload(self, number: int, kind: Kind) -> bytes:
        """The payload of the session: the number, and random bytes that no other client has in this order."""
        begin = number * 2_654_435_761 % POOL_BYTES
        return number.to_bytes(_NUMBER_BYTES, "little") + self._pool[begin : begin + kind.payload_bytes - _NUMBER_BYTES]

    def properties(self, number: int, kind: Kind) -> SessionProperties:
        """What is stored of the session."""
        will = Will(f"wills/{number}", b"gone", 1, False, kind.will_delay_s) if kind.will else None
        return SessionProperties(kind.expiry_s, self.payload(number, kind), will)

    def stored(self, number: int, kind: Kind) -> Stored:
        """All that belongs to its session."""
        return self.properties(number, kind), self.subscriptions(number, kind), self.inflight(number, kind)

    @staticmethod
    def subscriptions(number: int, kind: Kind) -> list[Subscribed]:
        """Its filters, in their order."""
        return [Subscribed(f"{kind.name}/{number}/{n:02}/#", _OPTIONS) for n in range(kind.subscriptions)]

    @staticmethod
    def inflight(number: int, kind: Kind) -> list[InflightState]:
        """What waits for it, in order."""
        return [InflightState(f"{n:02}", b"message %d of %d" % (n, number)) for n in range(kind.inflight)]


_OPTIONS = SubscriptionOptions(1)


def client_id(number: int) -> str:
    """The name of a client."""
    return f"client-{number:08}"
