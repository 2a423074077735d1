"""The storm to predict: what each client does, where it goes, and the cluster. Pure.

It comes from the report of a storm that happened (``metad-perf storm --json``): its settings say all that is known
before the storm begins, and nothing of what became of it is read; its accounts say what the machine was meanwhile, how
fast its cores were and what else they did. Which client is of which kind, and which broker it
comes back to, is drawn as the harness draws it; ``tests/unit/spark/test_requests.py`` compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from metad_wire.policy import Backoff, RetryBudget
from metad_wire.policy.draw import MASK
from metad_wire.policy.vector import uniforms

from ..errors import ScenarioError

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
CLIENTS_MAX: Final = 12_000_000
"""Of one storm, or one slice of it: a gigabyte."""
IDLE_CORES: Final = 0.1
"""What other programs may use of a machine that is idle beside a storm."""
_KIND_DRAW, _BROKER_DRAW = 1, 2
_SLOTS = 1024
_SLOT_DRAW = 17
_FAMILIES: Final = {
    "equal-jitter": "equal",
    "full-jitter": "full",
    "decorrelated-jitter": "decorrelated",
    "proportional-jitter": "proportional",
}
TRIGGERS: Final = ("all", "rolling", "region", "leader-kill")
"""Those that the model knows. What expires beside a storm costs sweeps, which it does not."""


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """Clients that are alike, as in the population of a storm."""

    name: str
    share: float
    tenant: str = "storm"
    region: str = "eu"
    rtt_ms: float = 40.0
    backoff: Backoff = Backoff(base_s=1.0, cap_s=60.0, family="full")
    subscriptions: int = 1
    inflight: int = 0


class Population(msgspec.Struct, frozen=True, kw_only=True):
    """Who the clients are, and how long they wait for an answer."""

    kinds: tuple[Kind, ...]
    timeout_s: float = 20.0


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the report of a storm says of its settings: names, types and defaults of ``metad_perf.storm.plan.Storm``,
    but for ``replay``: whether it was replayed."""

    population: Population
    sessions: int
    brokers: int
    processes: int
    trigger: str = "all"
    policy: str = "full-jitter"
    sdk_retries: bool = False
    ignore_slots: float = 0.0
    region: str = ""
    rolling_s: float = 10.0
    kill_at: float = 0.25
    batch: int = 1_000
    linger_ms: float = 20.0
    limit_s: float = 60.0
    background: float = 1_000.0
    seed: int = 1
    replay: bool = False


class Handover(msgspec.Struct, frozen=True):
    """The groups of a node have no leader from ``at_s`` on, and another one ``outage_s`` later, with ``slowdown`` times
    the costs."""

    at_s: float
    node: int
    outage_s: float
    slowdown: float


_QUEUE_MS = 10_000  # the server's default


class Storm(msgspec.Struct, frozen=True, kw_only=True):
    """Columns are by client; their times are nanoseconds after the trigger."""

    settings: Settings
    kinds: Ints
    brokers: Ints
    groups: Ints
    returns: Bools
    begin_ns: Ints
    nodes: int
    data_groups: int
    fsync: bool = True
    beside: float = 0.0
    """Other programs that wanted a core meanwhile: a condition of the measurement."""
    core_us: float = 0.0
    """How fast the cores were meanwhile (:attr:`.costs.Costs.core_us`): the same. 0: as for the costs."""
    queue_s: float = _QUEUE_MS / 1_000
    """How long a request may wait in front of its group: the server's setting."""
    lane_calls: int = 0
    """Calls in flight of one broker for one group: further clients wait at the broker, and share the next call. 0: any
    number, as the harness."""
    broker_share: float = 1.0
    """Of a slice: the part of each broker's core that is for its clients. The others of the broker's are elsewhere."""
    losses: tuple[tuple[float, ...], ...] = ()
    """Of each kind, the shares of attempts that lose one packet, two, three in a row
    (:func:`..models.population.loss_shares`). Empty: none is lost."""
    doors: int = 0
    """Doors of all brokers, each of which lets one client through after the other; 0: nobody waits at one."""
    door_ns: int = 0
    """From one client to the next."""
    budget: RetryBudget | None = None
    """The retry budget of each client."""
    leader_changes: tuple[Handover, ...] = ()

    @property
    def keeps(self) -> bool:
        """Whether anything keeps clients on their way to a broker."""
        return self.doors > 0 or bool(self.losses)

    @property
    def returning(self) -> int:
        """Clients that are to come back."""
        return int(self.returns.sum())

    @property
    def backoffs(self) -> list[Backoff]:
        """How each kind waits, whatever the server says."""
        policy, kinds = self.settings.policy, self.settings.population.kinds
        if policy in ("return-slot", "population"):
            return [kind.backoff for kind in kinds]
        family: Any = _FAMILIES.get(policy, policy)
        return [msgspec.structs.replace(kind.backoff, family=family) for kind in kinds]

    def ignores(self, broker: int) -> bool:
        """Whether this broker ignores what servers say of the time to come back."""
        chosen = self.settings
        return chosen.policy == "return-slot" and broker < round(chosen.ignore_slots * chosen.brokers)

    def obeys(self, broker: int) -> bool:
        """Whether its devices come back when the server says."""
        return self.settings.policy == "return-slot" and not self.ignores(broker)

    def restarts_ns(self) -> list[int]:
        """When each broker is restarted; none if they are not."""
        chosen = self.settings
        if chosen.trigger != "rolling":
            return []
        step_ns = round(chosen.rolling_s * 1e9 / chosen.brokers)
        return [at * step_ns for at in range(chosen.brokers)]


def storm_of(report: Mapping[str, Any], begin_ns: Ints | None = None) -> Storm:
    """The storm that a report is of. ``begin_ns``: when each client begins, for one that was replayed. Raises
    ScenarioError if it is no report, or of a storm that the model does not know."""
    try:
        settings = msgspec.convert(report["settings"], Settings, strict=False)
        nodes, groups = int(report["nodes"]), _data_groups(report)
        fsync = bool(report["fsync"])
        account = report.get("accounts", {})
        # Threads that wanted a core, and had none of it, were of the storm's own processes.
        disturbed = float(account.get("others_cores", 0.0)) > IDLE_CORES
        beside = float(account.get("others_running", 0.0)) if disturbed else 0.0
        core_us = float(account.get("core_us", 0.0))
        queue_s = float(report.get("queue_ms", _QUEUE_MS)) / 1_000
    except (KeyError, TypeError, ValueError) as why:
        raise ScenarioError(f"not a report of metad-perf storm: {type(why).__name__}: {why}") from None
    if settings.replay and begin_ns is None:
        raise ScenarioError("the storm was replayed from a schedule: the model needs that schedule")
    storm = storm_from(settings, nodes=nodes, data_groups=groups, fsync=fsync, beside=beside, begin_ns=begin_ns)
    return msgspec.structs.replace(storm, core_us=core_us, queue_s=queue_s)


def storm_from(
    settings: Settings,
    *,
    nodes: int,
    data_groups: int,
    fsync: bool = True,
    beside: float = 0.0,
    begin_ns: Ints | None = None,
    slots: Sequence[int] | None = None,
) -> Storm:
    """The storm of some settings. ``slots``: how many each group of sessions has; None: all, evenly. Raises
    ScenarioError."""
    if settings.trigger not in TRIGGERS:
        raise ScenarioError(f"trigger {settings.trigger}: the model of requests knows {', '.join(TRIGGERS)}")
    if not 1 <= settings.sessions <= CLIENTS_MAX or settings.brokers < 2 or nodes < 1 or data_groups < 1:
        raise ScenarioError(f"the model of requests is for 1 to {CLIENTS_MAX:,} clients and 2 brokers or more")
    numbers = np.arange(settings.sessions, dtype=np.int64)
    seed = (settings.seed * 0x9E3779B97F4A7C15 + 1) & MASK
    kinds = _kinds(settings.population.kinds, uniforms(seed, numbers, _KIND_DRAW))
    before = numbers % settings.brokers
    steps = (uniforms(seed, numbers, _BROKER_DRAW) * (settings.brokers - 1)).astype(np.int64) + 1
    after = before if settings.trigger == "rolling" else (before + steps) % settings.brokers
    returns = np.ones(len(numbers), dtype=np.bool_)
    if settings.trigger == "region":
        region = settings.region or settings.population.kinds[0].region
        returns = np.array([kind.region == region for kind in settings.population.kinds])[kinds]
    ends = np.cumsum(slots_of_groups(data_groups) if slots is None else slots)
    places = (uniforms(seed, numbers, _SLOT_DRAW) * int(ends[-1])).astype(np.int64)
    storm = Storm(
        settings=settings,
        kinds=kinds,
        brokers=np.where(returns, after, before),
        groups=np.searchsorted(ends, places, side="right").astype(np.int64),
        returns=returns,
        begin_ns=np.zeros(len(numbers), dtype=np.int64) if begin_ns is None else begin_ns,
        nodes=nodes,
        data_groups=data_groups,
        fsync=fsync,
        beside=beside,
    )
    if len(storm.begin_ns) != settings.sessions:
        raise ScenarioError(f"the schedule has {len(storm.begin_ns):,} clients, the storm {settings.sessions:,}")
    if begin_ns is None and (restarts := storm.restarts_ns()):
        return msgspec.structs.replace(storm, begin_ns=np.array(restarts, dtype=np.int64)[before])
    return storm


def slots_of_groups(data_groups: int) -> list[int]:
    """How many slots each group has when a cluster is formed."""
    found: list[int] = np.bincount(np.arange(_SLOTS) * data_groups // _SLOTS, minlength=data_groups).tolist()
    return found


def _kinds(kinds: Sequence[Kind], u: npt.NDArray[np.float64]) -> Ints:
    shares = np.array([kind.share for kind in kinds])
    ends = np.cumsum(shares / shares.sum())
    found: Ints = np.minimum(np.searchsorted(ends, u, side="right"), len(ends) - 1).astype(np.int64)
    return found


def _data_groups(report: Mapping[str, Any]) -> int:
    """Groups that sessions are in: as counted, or, in older reports, from a shape such as ``data=3,offset=1``."""
    if "data_groups" in report:
        return int(report["data_groups"])
    for part in str(report["groups"]).split(","):
        kind, equals, count = part.partition("=")
        if kind == "data" and equals:
            return int(count)
    return 2  # the server's default
