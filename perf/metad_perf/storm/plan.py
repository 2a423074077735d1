"""The settings of a storm, and what follows from them for each client: where it is, whether it loses its connection,
when it begins to come back, and where to. Pure."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from metad_wire.policy.backoff import Family

from ..errors import UsageError
from .population import Clients, Ints, Population

TRIGGERS: Final = ("all", "rolling", "region", "leader-kill", "expiry")
RETURN_SLOT: Final = "return-slot"
POPULATION: Final = "population"
FAMILIES: Final[dict[str, Family]] = {
    "none": "none",
    "exponential": "exponential",
    "equal-jitter": "equal",
    "full-jitter": "full",
    "decorrelated-jitter": "decorrelated",
    "proportional-jitter": "proportional",
}
POLICIES: Final = (RETURN_SLOT, POPULATION, *FAMILIES)
WAYS: Final = (RETURN_SLOT, *FAMILIES)
"""How a client may wait."""


class Storm(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a run. ``ignore_slots``: share of the brokers that do as their clients' backoff says whatever the
    server says. ``expiring``: share of the sessions that end at the moment of the storm, with the trigger ``expiry``.
    ``sdk_retries``: the brokers' SDK repeats what a server has turned away; otherwise the broker is told. ``replay``: a
    file of numpy with each client's begin in nanoseconds. ``trace``: a directory for every attempt; empty: none."""

    population: Population = Population()
    sessions: int = 1_000_000
    brokers: int = 20
    processes: int = 2
    trigger: str = "all"
    policy: str = "full-jitter"
    sdk_retries: bool = False
    ignore_slots: float = 0.0
    region: str = ""
    expiring: float = 0.5
    rolling_s: float = 10.0
    kill_at: float = 0.25
    batch: int = 1_000
    linger_ms: float = 20.0
    lease_s: float = 10.0
    limit_s: float = 60.0
    background: float = 1_000.0
    steady_s: float = 5.0
    seed: int = 1
    replay: str = ""
    trace: str = ""

    def checked(self) -> Storm:
        """These settings, with the region filled in. Raises UsageError."""
        if self.trigger not in TRIGGERS:
            raise UsageError(f"no trigger {self.trigger}; there are {', '.join(TRIGGERS)}")
        if self.policy not in POLICIES:
            raise UsageError(f"no policy {self.policy}; there are {', '.join(POLICIES)}")
        if self.brokers < 2 or self.sessions < 10 * self.brokers:
            raise UsageError("--brokers must be at least 2, and --sessions ten times as many")
        if not 1 <= self.processes <= self.brokers:
            raise UsageError("--processes must be at least 1, and not more than --brokers")
        if min(self.limit_s, self.background, self.steady_s, self.rolling_s, self.linger_ms) <= 0:
            raise UsageError("--seconds-limit, --background, --steady-s, --rolling-s and --linger-ms must be over 0")
        if not 1 <= self.batch <= 1_000 or self.lease_s < 1:
            raise UsageError("--batch must be 1 to 1,000, and --lease-s at least 1")
        if not 0 <= self.ignore_slots <= 1 or not 0 < self.expiring < 1 or not 0 < self.kill_at < 1:
            raise UsageError("--ignore-slots must be 0 to 1, and --expiring and --kill-at between 0 and 1")
        if min(kind.expiry_s for kind in self.population.kinds) <= self.limit_s + 60:
            raise UsageError("the population's sessions could end in the run: expiry_s must be a minute over the limit")
        if min(kind.will_delay_s for kind in self.population.kinds) <= self.limit_s + 60:
            raise UsageError("the population's wills could be due in the run: will_delay_s must be a minute over it")
        region = self.region or self.population.regions[0]
        if region not in self.population.regions:
            raise UsageError(f"no region {region} in the population; there are {', '.join(self.population.regions)}")
        return msgspec.structs.replace(self, region=region)


class Places(msgspec.Struct, frozen=True):
    """Of some clients, by position: number, kind, broker before and after, whether it comes back at all (if not, it
    stays where it is, or its session ends), and when its first attempt begins, in nanoseconds after the trigger."""

    numbers: Ints
    kinds: Ints
    before: Ints
    after: Ints
    returns: npt.NDArray[np.bool_]
    ends: npt.NDArray[np.bool_]
    begin_ns: Ints

    def only(self, mask: npt.NDArray[np.bool_]) -> Places:
        """Some of them."""
        return Places(*(getattr(self, name)[mask] for name in self.__struct_fields__))


def places(storm: Storm, clients: Clients) -> Places:
    """All clients."""
    numbers = np.arange(storm.sessions, dtype=np.int64)
    kinds = clients.kinds(numbers)
    before = numbers % storm.brokers
    returns = np.ones(len(numbers), dtype=np.bool_)
    ends = np.zeros(len(numbers), dtype=np.bool_)
    begin_ns = np.zeros(len(numbers), dtype=np.int64)
    after = before if storm.trigger == "rolling" else clients.another_broker(numbers, storm.brokers)
    if storm.trigger == "rolling":
        begin_ns = rolling_ns(storm)[before]
    elif storm.trigger == "region":
        inside = np.array([kind.region == storm.region for kind in storm.population.kinds])
        returns = inside[kinds]
    elif storm.trigger == "expiry":
        ends = clients.stays_away(numbers, storm.expiring)
        returns = ~ends
    if storm.replay:
        begin_ns = np.load(storm.replay)
    after = np.where(returns, after, before)
    return Places(numbers, kinds, before, after, returns, ends, begin_ns)


def rolling_ns(storm: Storm) -> Ints:
    """When each broker is restarted, in nanoseconds after the trigger."""
    step_ns = round(storm.rolling_s * 1e9 / storm.brokers)
    found: Ints = np.arange(storm.brokers, dtype=np.int64) * step_ns
    return found


def ignores_slots(storm: Storm, broker: int) -> bool:
    """Whether this broker ignores what servers say of the time to come back."""
    return storm.policy == RETURN_SLOT and broker < round(storm.ignore_slots * storm.brokers)


def broker_name(broker: int) -> str:
    """The name of a broker."""
    return f"storm-{broker:03}"


def ways(storm: Storm, kinds: Ints, brokers: Ints) -> Ints:
    """How each client waits after it was turned away, as a place in :data:`WAYS`; where no slot is given, one with
    :data:`RETURN_SLOT` waits as its kind does."""
    of_family = {family: WAYS.index(name) for name, family in FAMILIES.items()}
    own = np.array([of_family[kind.backoff.family] for kind in storm.population.kinds], dtype=np.int64)
    found: Ints = np.full(len(kinds), WAYS.index(storm.policy)) if storm.policy in FAMILIES else own[kinds]
    if storm.policy == RETURN_SLOT:
        found[[not ignores_slots(storm, broker) for broker in brokers.tolist()]] = WAYS.index(RETURN_SLOT)
    return found
