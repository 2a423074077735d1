"""What ``metadctl top`` shows: rates between two looks at the cluster, and rows that can be sorted. Pure: it knows
neither a clock nor a screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from metad_wire.messages import GroupStatus, StatusReply

from .. import overview, people
from ..printing import cell
from ..verdict import Problem, lines, problems, verdict
from ..view import ClusterView, GroupView, NodeView

PROBLEMS_SHOWN: Final = 2
"""Lines of problems: a screen of 24 lines has room for the tables, too. ``metadctl status`` has all of them."""


class Cell(NamedTuple):
    """What a column of a row has. What is not known is the least."""

    order: tuple[bool, float | str]
    """By which rows are sorted."""
    text: str


Cells = dict[str, Cell]


@dataclass(frozen=True, slots=True)
class Shown:
    """What is on the screen."""

    head: list[str]
    """The verdict, the problems and the sums of all nodes."""
    nodes: dict[str, Cells]
    """By node: the columns of its row."""
    groups: dict[str, Cells]


def words(text: str | None) -> Cell:
    """Make a cell of a text."""
    return Cell((bool(text), text or ""), cell(text))


def number(value: float | None, said: Callable[[float], str] = lambda value: f"{value:,.0f}") -> Cell:
    """A number; ``said``: as people read it."""
    return Cell((False, 0.0), "-") if value is None else Cell((True, value), said(value))


def shown(before: ClusterView | None, now: ClusterView) -> Shown:
    """What the screen shows of two looks at a cluster, one after the other; rates are unknown without the first."""
    old = {} if before is None else {node.node: node.status for node in before.nodes}
    found = problems(now)
    rates = {node.node: Rates(old.get(node.node), node.status) for node in now.nodes}
    led = Counter(group.leader for group in now.groups)
    known = {} if before is None else {group.name: group for group in before.groups}
    return Shown(
        [*_verdict(now, found), *_sums(list(rates.values()), now)],
        {node.node: _node(node, rates[node.node], led[node.node]) for node in now.nodes},
        {group.name: _group(group, known.get(group.name), rates.get(group.leader)) for group in now.groups},
    )


class Rates:
    """How fast the counters of one node grow. They begin anew with its process, and then nothing is known yet."""

    def __init__(self, before: StatusReply | None, now: StatusReply | None) -> None:
        self.now, self._before = now, before
        ran_ms = now.uptime_ms - before.uptime_ms if now is not None and before is not None else 0
        same = now is not None and before is not None and now.pid == before.pid and ran_ms > 0
        self.seconds = ran_ms / 1_000 if same else 0.0

    def of(self, count: Callable[[StatusReply], float]) -> float | None:
        """Per second; None if it is unknown."""
        if self.now is None or self._before is None or not self.seconds:
            return None
        return max(0.0, count(self.now) - count(self._before)) / self.seconds

    @property
    def cores(self) -> float | None:
        """How many cores the process keeps busy."""
        return self.of(lambda status: status.cpu_us / 1_000_000)

    def lane(self, name: str) -> tuple[float | None, float | None]:
        """Writes of a lane that were let in, and requests that were turned away, per second."""

        def admitted(status: StatusReply) -> float:
            return sum(lane.admitted for lane in status.lanes if lane.lane == name)

        def refused(status: StatusReply) -> float:
            return sum(lane.refused for lane in status.lanes if lane.lane == name)

        return self.of(admitted), self.of(refused)


def admitted(status: StatusReply) -> float:
    """Writes that were let in, since its start."""
    return sum(lane.admitted for lane in status.lanes)


def _refused(status: StatusReply) -> float:
    return sum(lane.refused for lane in status.lanes)


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _verdict(now: ClusterView, found: Sequence[Problem]) -> list[str]:
    row = overview.status(now, {}, verdict(now, found), found)
    if not now.answers:
        return ["UNKNOWN: no node answers"]
    said = lines(found)
    left = [f"and {len(said) - PROBLEMS_SHOWN} more: metadctl status"] if len(said) > PROBLEMS_SHOWN else []
    return [overview.headline(row), *said[:PROBLEMS_SHOWN], *left]


def _sums(rates: Sequence[Rates], now: ClusterView) -> list[str]:
    """Of all nodes that answer."""
    statuses = [one.now for one in rates if one.now is not None]
    writes = number(_sum([one.of(admitted) for one in rates])).text
    entries = number(_sum([one.of(lambda status: status.entries) for one in rates])).text
    syncs = number(_sum([one.of(lambda status: status.syncs) for one in rates])).text
    clients, watches = sum(one.connections for one in statuses), sum(one.watch_streams for one in statuses)
    lanes = []
    for name in dict.fromkeys(lane.lane for status in statuses for lane in status.lanes):
        each = [one.lane(name) for one in rates]
        refused = _sum([turned_away for _, turned_away in each])
        lanes.append(
            f"{name} {number(_sum([admitted for admitted, _ in each])).text}"
            + (f" (refused {refused:,.0f})" if refused else "")
        )
    moving = f", {now.moves} slot moves" if now.moves else ""
    held = f"clients {clients:,}, watches {watches:,}{moving}"
    return [
        f"write requests {writes}/s, entries {entries}/s, fsyncs {syncs}/s, {held}",
        f"by lane: {', '.join(lanes) or '-'}",
    ]


def _node(node: NodeView, rates: Rates, led: int) -> Cells:
    status = node.status
    return {
        "node": words(node.node),
        "state": words(node.state),
        "CPU": number(rates.cores, lambda cores: f"{100 * cores:.0f}%"),
        "memory": number(None if status is None else status.rss_bytes, lambda count: people.size(int(count))),
        "disk free": number(_free(status), lambda count: people.size(int(count))),
        "clients": number(None if status is None else status.connections),
        "watches": number(None if status is None else status.watch_streams),
        "writes/s": number(rates.of(admitted)),
        # Behind the edge of a screen of 80 columns: the arrow keys show them.
        "refused/s": number(rates.of(_refused)),
        "entries/s": number(rates.of(lambda status: status.entries)),
        "fsyncs/s": number(rates.of(lambda status: status.syncs)),
        "in flight": number(None if status is None else status.in_flight_bytes, lambda count: people.size(int(count))),
        "leads": number(led),
    }


def _free(status: StatusReply | None) -> int | None:
    return status.disk.free_bytes if status is not None and status.disk.total_bytes else None


def _group(group: GroupView, before: GroupView | None, rates: Rates | None) -> Cells:
    status, old = group.status, before.status if before is not None and before.leader == group.leader else None
    lag = max((group.lag_entries(one) for one in group.followers), default=None)
    return {
        "group": words(group.name),
        "leader": words(group.leader),
        "replicas": Cell((True, len(group.available)), f"{len(group.available)} of {len(group.voters)}"),
        "entries/s": number(_grown(old, status, rates)),
        "lag": number(lag),
        "waiting": number(None if status is None else status.waiting_items),
        "wait": number(None if status is None else status.wait_ms, lambda ms: people.duration(int(ms))),
        "slots": number(None if status is None else status.slots),
        "term": number(None if status is None else status.term),
    }


def _grown(before: GroupStatus | None, now: GroupStatus | None, rates: Rates | None) -> float | None:
    """Entries that a leader has committed per second."""
    if before is None or now is None or rates is None or not rates.seconds:
        return None
    return max(0, now.commit - before.commit) / rates.seconds
