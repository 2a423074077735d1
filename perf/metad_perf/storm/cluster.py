"""The cluster under the storm: its own nodes or those of an endpoint, and what they look like over time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from metad_client import Client, MetadError
from metad_wire.cluster import METADATA
from metad_wire.messages import StatusReply

from ..faults.members import START_S, Member
from ..load.measure import MIB

_SAMPLE_S = 0.2
_STATUS_S = 1.0


class Look(msgspec.Struct, frozen=True):
    """A node at a moment: seconds after the trigger, CPU in cores since the look before, resident memory, and how many
    of its threads were ready to run since then and had no processor, on average."""

    at_s: float
    cores: float
    rss_mib: float
    waiting: float


class Slots(msgspec.Struct, frozen=True):
    """What a node promises those whom it turns away: seconds after the trigger, items per second, and for how long from
    then on all slots are taken."""

    at_s: float
    per_s: int
    ahead_s: float


class Mark(msgspec.Struct, frozen=True):
    """What happened, and when, in seconds after the trigger."""

    at_s: float
    text: str


class Cluster:
    """Looks at the nodes for as long as :meth:`watch` runs. ``members`` are those of our own; empty: they are somebody
    else's, and are asked for everything."""

    def __init__(self, client: Client, members: Sequence[Member]) -> None:
        self._client = client
        self._members = members
        self._t0_ns = time.monotonic_ns()
        self._used: dict[str, tuple[int, float, float]] = {}
        self._terms: dict[str, int] = {}
        self.looks: dict[str, list[Look]] = {}
        self.slots: dict[str, list[Slots]] = {}
        self.rss_max_mib: dict[str, float] = {}
        self.elections = 0
        """Terms that began since :meth:`trigger`."""
        self.marks: list[Mark] = []
        self.leader = ""
        """That of metadata-0."""
        self._counts = False

    def trigger(self, t0_ns: int) -> None:
        """The storm begins at this time of the monotonic clock."""
        self._t0_ns = t0_ns
        self.looks.clear()
        self.slots.clear()
        self.marks.clear()
        self._counts = True

    def mark(self, text: str) -> None:
        """Something happens now."""
        self.marks.append(Mark(self._now_s(), text))

    async def watch(self) -> None:
        """Look until cancelled."""
        asked_s = 0.0
        while True:
            if self._members:
                for member in self._members:
                    self._note(member.name, member.cpu_s(), member.rss_bytes(), member.waited_s())
            if time.monotonic() - asked_s >= (_STATUS_S / 2 if self._members else _SAMPLE_S):
                asked_s = time.monotonic()
                await self.ask()
            await asyncio.sleep(_SAMPLE_S)

    async def ask(self) -> None:
        """Ask every node for its status."""
        found = await self._client.cluster.statuses(deadline_s=_STATUS_S)
        for status in found.values():
            if isinstance(status, StatusReply):
                self._hear(status)

    def _hear(self, status: StatusReply) -> None:
        if not self._members:
            self._note(status.node_id, status.cpu_us / 1e6, status.rss_bytes, 0.0)
        told = status.turned_away
        self.slots.setdefault(status.node_id, []).append(Slots(self._now_s(), told.per_s, told.ahead_ms / 1000))
        for group in status.groups:
            before = self._terms.get(group.name)
            if group.role == "leader" and group.name == METADATA.name:
                self.leader = status.node_id
            if before is None or group.term > before:
                self._terms[group.name] = group.term
                if before is not None and self._counts:
                    self.elections += group.term - before
                    self.mark(f"{group.name}: term {group.term}")

    def _note(self, name: str, cpu_s: float, rss_bytes: int, waited_s: float) -> None:
        now_ns = time.monotonic_ns()
        then_ns, used_s, lacked_s = self._used.get(name, (now_ns, cpu_s, waited_s))
        self._used[name] = (now_ns, cpu_s, waited_s)
        rss_mib = rss_bytes / MIB
        self.rss_max_mib[name] = max(self.rss_max_mib.get(name, 0.0), rss_mib)
        if now_ns > then_ns:
            passed_s = (now_ns - then_ns) / 1e9
            cores, waiting = max(0.0, cpu_s - used_s) / passed_s, max(0.0, waited_s - lacked_s) / passed_s
            self.looks.setdefault(name, []).append(Look(self._now_s(), cores, rss_mib, waiting))

    async def kill_leader(self) -> Member | None:
        """kill -9 of the leader of the metadata. None if it is not known, or not ours."""
        try:
            name = (await self._client.cluster.map(deadline_s=_STATUS_S)).leaders.get(METADATA.name, "")
        except MetadError:
            name = self.leader
        victim = next((member for member in self._members if member.name == name), None)
        if victim is not None:
            victim.kill()
            self.mark(f"kill -9 of {victim.name}")
        return victim

    async def start(self, member: Member) -> None:
        """Start a node that was killed."""
        await asyncio.to_thread(member.start, START_S)
        self.mark(f"{member.name} serves again")

    def told(self) -> dict[str, Any]:
        """For the report."""
        return {
            "rss_max_mib_each": self.rss_max_mib,
            "nodes_curve": {
                name: [msgspec.structs.astuple(look) for look in looks] for name, looks in self.looks.items()
            },
            "slots_curve": {
                name: [msgspec.structs.astuple(slots) for slots in found] for name, found in self.slots.items()
            },
            "marks": [msgspec.structs.astuple(mark) for mark in self.marks],
        }

    def _now_s(self) -> float:
        return (time.monotonic_ns() - self._t0_ns) / 1e9
