"""The storm of the clients that a cluster really has: a scenario with what ``metad-spark census --json`` found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from metad_wire.messages import NEVER_S
from metad_wire.policy.slots import even_slots
from metad_wire.tables.broker import LIVE

from .band import Uneven, unevenness
from .errors import ScenarioError, UsageError
from .scenario import REGIONS_MAX, Expiry, LeaderChange, Region, Scenario, Tenants

FORMAT = 1
ENDLESS_S = float(NEVER_S)
"""The expiry of sessions that stay until they are deleted."""
OTHERS = "others"
"""The region of the clients of all regions that are too small to be one of :data:`REGIONS_MAX`."""


class Kind(msgspec.Struct, frozen=True):
    """The clients of a tenant in a region. Lists are quantiles in equal steps, from the least to the greatest; None: no
    session has that."""

    tenant: str
    region: str
    sessions: int
    connected: int
    endless: int
    subscriptions: float
    expiry_s: list[float] | None
    ends: int
    """Sessions of clients that are away and that end by themselves."""
    ends_in_s: list[float] | None
    """When they do."""


class Lives(msgspec.Struct, frozen=True):
    """How many brokers of a region are in a state."""

    region: str
    state: str
    brokers: int


class Slots(msgspec.Struct, frozen=True):
    """By slot."""

    sessions: list[int]
    connected: list[int]


class Held(msgspec.Struct, frozen=True):
    """What the cluster has: ``ordinals`` of the groups and, by slot, the group, per kind of group."""

    nodes: int
    ordinals: dict[str, list[int]]
    slots: dict[str, list[int]]


class Census(msgspec.Struct, frozen=True):
    """What a census says, as far as a storm needs it."""

    format: int
    source: str
    sessions: int
    connected: int
    population: list[Kind]
    brokers: list[Lives]
    slots: Slots
    groups: Held


def load_census(path: Path) -> Census:
    """Raises UsageError."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Census)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"--population {path}: {error}") from None
    if found.format != FORMAT:
        raise UsageError(f"--population {path}: it is of format {found.format}, and this version knows {FORMAT}")
    if not found.connected:
        raise UsageError(f"--population {path}: no client is connected, so none can come back")
    return found


def of_census(scenario: Scenario, census: Census) -> Scenario:
    """The scenario with the census's clients instead of its own: all that are connected lose their connections and
    come back. Their number, regions, expiries and subscriptions, the cluster's nodes and groups, how many of the
    clients each group has, and the number of brokers are the census's; network, SDKs, transports and costs stay the
    scenario's. Regions that it does not know (:func:`strange_regions`) have the mean network of those that it knows.
    Raises ScenarioError."""
    groups = census.groups.ordinals["data"]
    of_group = dict.fromkeys(groups, 0)
    for slot, group in enumerate(census.groups.slots["data"]):
        of_group[group] += census.slots.connected[slot]
    brokers = sum(one.brokers for one in census.brokers if one.state in LIVE)
    nodes = min(census.groups.nodes, len(groups))
    cluster: dict[str, Any] = {"nodes": nodes, "groups": len(groups), "clients": tuple(of_group.values())}
    mean = sum(kind.subscriptions * kind.connected for kind in census.population) / census.connected
    expiries = tuple(Expiry(share=min(1.0, share), expiry_s=expiry_s) for expiry_s, share in _expiries(census).items())
    try:
        return msgspec.structs.replace(
            scenario,
            name=f"{scenario.name}, clients of {census.source}",
            clients=census.connected,
            regions=_regions(scenario, census),
            sessions=msgspec.structs.replace(scenario.sessions, expiries=expiries, subscriptions=mean),
            tenants=Tenants(),
            brokers=_with(scenario.brokers, {"count": brokers} if brokers else {}),
            cluster=_with(scenario.cluster, cluster),
            leader_changes=_survived(scenario, nodes),
        )
    except ValueError as error:
        raise ScenarioError(f"the census of {census.source} makes no scenario: {error}") from None


def to_size(scenario: Scenario, census: Census) -> Scenario:
    """:func:`of_census` for a search of a cluster: its nodes and groups are where the search begins. All groups have
    equally many clients, because other clusters hold other slots (:func:`fullest` says how uneven they are), and all of
    the scenario's nodes that die do so. Raises ScenarioError."""
    made = of_census(scenario, census)
    dying = sum(change.nodes for change in scenario.leader_changes)
    nodes = max(made.cluster.nodes, dying)
    groups = -(-made.cluster.groups * nodes // made.cluster.nodes)
    return msgspec.structs.replace(
        made,
        cluster=_with(made.cluster, {"nodes": nodes, "groups": groups, "clients": ()}),
        leader_changes=scenario.leader_changes,
    )


def fullest(census: Census) -> Uneven:
    """How many clients the fullest of so many groups has, over the mean: what the census counted, dealt out by slots as
    metad does it, or what the number of slots alone makes of it, if that is more."""
    connected = census.slots.connected

    def found(groups: int) -> float:
        loads = [0] * groups
        for slot, group in enumerate(even_slots(groups)):
            loads[group] += connected[slot]
        return max(unevenness(groups), max(loads) * groups / sum(connected))

    return found


def strange_regions(scenario: Scenario, census: Census) -> list[str]:
    """Regions of connected clients whose network the scenario does not know."""
    known = {region.name for region in scenario.regions}
    return sorted({kind.region for kind in census.population if kind.connected} - known)


def told(scenario: Scenario, census: Census) -> dict[str, Any]:
    """What a result says of its clients; ``scenario`` is the one without them. ``away``: sessions whose clients were
    away; they do not come back in the storm, and ``away_ending`` of them end within its horizon. What it costs to end
    them is not simulated."""
    tenants: dict[str, int] = {}
    for kind in census.population:
        tenants[kind.tenant] = tenants.get(kind.tenant, 0) + kind.connected
    ending = sum(_ending(kind, scenario.horizon_s) for kind in census.population)
    return {
        "source": census.source,
        "sessions": census.sessions,
        "connected": census.connected,
        "away": census.sessions - census.connected,
        "away_ending": round(ending),
        "tenants": len([count for count in tenants.values() if count]),
        "largest_tenant": max(tenants.values()) / census.connected,
        "regions_assumed": strange_regions(scenario, census),
    }


def _survived(scenario: Scenario, nodes: int) -> tuple[LeaderChange, ...]:
    """The scenario's deaths, as long as a node is left."""
    found: list[LeaderChange] = []
    for change in scenario.leader_changes:
        if sum(one.nodes for one in found) + change.nodes < nodes:
            found.append(change)
    return tuple(found)


def _with(part: Any, changes: dict[str, Any]) -> Any:
    return msgspec.structs.replace(part, **changes)


def _regions(scenario: Scenario, census: Census) -> tuple[Region, ...]:
    known = {region.name: region for region in scenario.regions}
    strange = Region(
        name=OTHERS,
        share=0.0,
        rtt_ms=sum(region.share * region.rtt_ms for region in scenario.regions),
        loss=sum(region.share * region.loss for region in scenario.regions),
    )
    counts: dict[str, int] = {}
    for kind in census.population:
        counts[kind.region] = counts.get(kind.region, 0) + kind.connected
    ordered = sorted(((count, name) for name, count in counts.items() if count), reverse=True)
    kept = ordered if len(ordered) <= REGIONS_MAX else ordered[: REGIONS_MAX - 1]
    rest = sum(count for count, _ in ordered[len(kept) :])
    found = [_with(known.get(name, strange), {"name": name, "share": count / census.connected}) for count, name in kept]
    return (*found, *([_with(strange, {"share": rest / census.connected})] if rest else []))


def _expiries(census: Census) -> dict[float, float]:
    """Expiry -> share of the clients that have it. Of each step between two quantiles the lower one counts: sessions
    end sooner rather than later."""
    found: dict[float, float] = {}
    for kind in census.population:
        if not kind.connected:
            continue
        weight = kind.connected / census.connected
        endless = kind.endless / kind.sessions
        if endless:
            found[ENDLESS_S] = found.get(ENDLESS_S, 0.0) + weight * endless
        steps = (kind.expiry_s or [])[:-1]
        for expiry_s in steps:
            found[expiry_s] = found.get(expiry_s, 0.0) + weight * (1 - endless) / len(steps)
    return dict(sorted(found.items()))


def _ending(kind: Kind, within_s: float) -> float:
    """Of the clients that are away, how many sessions end by then: those of the steps whose upper quantile is before
    it."""
    if kind.ends_in_s is None:
        return 0.0
    steps = kind.ends_in_s[1:]
    return kind.ends * sum(end <= within_s for end in steps) / len(steps)


def in_words(said: dict[str, Any]) -> str:
    """What :func:`told` returns, for people."""
    text = (
        f"The clients are those of {said['source']}: {said['connected']:,} that were connected, of"
        f" {said['tenants']:,} tenants. {said['away']:,} were away and do not come back; {said['away_ending']:,} of"
        " their sessions end within the horizon, and that costs nothing here."
    )
    if said["regions_assumed"]:
        names = ", ".join(repr(name) for name in said["regions_assumed"])
        text += f" The scenario does not know the network of {names}: it is taken to be the mean one."
    return text
