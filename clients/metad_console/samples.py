"""What a storm looks like from outside: numbers of each second, of all nodes together, from their statuses. Pure.

A node counts since its start. One that was started again, or did not answer, adds nothing for that second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from metad_client.cli.lamps.sampling import Rates, admitted
from metad_client.cli.view import Statuses
from metad_wire.messages import StatusReply

SAMPLES_MAX: Final = 600
"""Ten minutes, a sample each second: some 100 KB for a session."""


class Sample(NamedTuple):
    """One second of the cluster."""

    at_s: float
    """Unix time."""
    admitted_per_s: float
    """Writes that were let in: requests, of which one may have a thousand items."""
    refused_per_s: float
    """Requests that were turned away."""
    waiting_items: int
    """In front of all groups."""
    capacity_per_s: int
    """Items that all groups began per second when many waited last; before that an assumption."""
    returns_per_s: int
    """Items that may come back per second, of what was turned away."""
    ahead_ms: int
    """For how long all return slots are taken, at the node where that is longest."""
    elections: int
    """Terms that began since the sample before."""
    connections: int
    """Of clients, with all nodes."""


class Meter:
    """Makes samples of statuses that follow each other."""

    def __init__(self) -> None:
        self._before: dict[str, StatusReply] = {}
        self._terms: dict[str, int] = {}

    def note(self, statuses: Statuses, at_s: float) -> Sample:
        """The sample of now. Rates are 0 in the first one."""
        now = {node: one for node, one in statuses.items() if isinstance(one, StatusReply)}
        rates = [Rates(self._before.get(node), status) for node, status in now.items()]
        terms = _terms(now)
        elections = sum(max(0, term - self._terms.get(group, term)) for group, term in terms.items())
        self._terms |= {group: max(term, self._terms.get(group, 0)) for group, term in terms.items()}
        self._before = now
        led = [group for status in now.values() for group in status.groups if group.role == "leader"]
        return Sample(
            at_s=at_s,
            admitted_per_s=sum(one.of(admitted) or 0.0 for one in rates),
            refused_per_s=sum(one.of(_turned_away) or 0.0 for one in rates),
            waiting_items=sum(group.waiting_items for group in led),
            capacity_per_s=sum(group.served_per_s for group in led),
            returns_per_s=sum(status.turned_away.per_s for status in now.values()),
            ahead_ms=max((status.turned_away.ahead_ms for status in now.values()), default=0),
            elections=elections,
            connections=sum(status.connections for status in now.values()),
        )


def _turned_away(status: StatusReply) -> float:
    return status.turned_away.requests


def _terms(statuses: Mapping[str, StatusReply]) -> dict[str, int]:
    """The highest term of each group that any node knows."""
    terms: dict[str, int] = {}
    for status in statuses.values():
        for group in status.groups:
            terms[group.name] = max(terms.get(group.name, 0), group.term)
    return terms
