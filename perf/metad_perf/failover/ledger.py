"""The account of a run: what was due of each client, and what has come of it. Pure.

Everything is booked by client. A will is due if the client's kind says so and its broker was killed, and it has to be
published once. A session may be gone only if it was to end, and not before: the fence's time plus its interval, both by
the clock that the cluster counts with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from .plan import END, FIRE, TENANT, Kind, Plan, topic_of

_EXAMPLES_MAX = 20


class Firing(NamedTuple):
    """A broker has published a will."""

    tenant: str
    client: str
    topic: str
    payload: bytes


class Left(NamedTuple):
    """A session that is there at the end."""

    client: str
    connected: bool
    broker: str


class Verdict(msgspec.Struct, kw_only=True):
    """What came of the sessions of the killed brokers, and whether the others were left alone. ``examples``: the first
    faults, in words."""

    sessions_fenced: int = 0
    returned: int = 0
    """That came back in time."""
    wills_due: int = 0
    wills_fired: int = 0
    wills_twice: int = 0
    wills_lost: int = 0
    wills_not_due: int = 0
    """That were published although nobody was to hear of them, or that are not what the client has left."""
    expired: int = 0
    expired_wrongly: int = 0
    """That are gone and were to stay, or went before their time."""
    not_expired: int = 0
    """That were to end and are there."""
    connected_wrongly: int = 0
    """That look as if a dead broker served them, or as if a living one did not."""
    examples: list[str] = msgspec.field(default_factory=list)

    @property
    def broken(self) -> int:
        """How often a promise was broken."""
        return (
            self.wills_twice
            + self.wills_lost
            + self.wills_not_due
            + self.expired_wrongly
            + self.not_expired
            + self.connected_wrongly
        )

    def fault(self, kind: str, why: str) -> None:
        """Count one more fault of a kind."""
        setattr(self, kind, getattr(self, kind) + 1)
        if len(self.examples) < _EXAMPLES_MAX:
            self.examples.append(f"{kind}: {why}")


class Ledger:
    """Takes what happens, and judges in the end."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._fired: dict[int, int] = {}
        self._ended_ms: dict[int, int] = {}
        self._returned: set[int] = set()
        self._came_late: set[int] = set()
        self._strange: list[str] = []

    def fired(self, firing: Firing) -> None:
        """A will was published."""
        place = self._plan.place(firing.client) if firing.tenant == TENANT else None
        if place is None or (firing.topic, firing.payload) != (topic_of(firing.client), firing.client.encode()):
            self._strange.append(f"{firing.tenant}/{firing.client} with topic {firing.topic!r}")
        else:
            self._fired[place] = self._fired.get(place, 0) + 1

    def ended(self, client: str, time_ms: int) -> None:
        """A watch says that a session is gone since then."""
        place = self._plan.place(client)
        if place is not None:
            self._ended_ms.setdefault(place, time_ms)

    def returned(self, client: str, *, present: bool) -> None:
        """A client came back and found its session, or came too late."""
        place = self._plan.place(client)
        if place is not None:
            (self._returned if present else self._came_late).add(place)

    @property
    def wills(self) -> int:
        """Of how many clients a will was published so far."""
        return len(self._fired)

    @property
    def wills_due(self) -> int:
        """How many wills are due, as far as it is known by now."""
        return self._plan.count(FIRE) + len(self._came_late)

    def judge(self, left: Iterable[Left], fenced_ms: Mapping[str, int]) -> Verdict:
        """Sum up. ``fenced_ms``: since when each killed broker's life is over, by name."""
        plan, verdict = self._plan, Verdict()
        there = self._there(left, verdict)
        for strange in self._strange:
            verdict.fault("wills_not_due", strange)
        for place in range(plan.brokers * plan.each):
            n, number = divmod(place, plan.each)
            client = plan.client(n, number)
            fired = self._fired.get(place, 0)
            if not plan.dies(place):
                if fired:
                    verdict.fault("wills_not_due", f"{client}, whose broker lives")
                if not there[place]:
                    verdict.fault("expired_wrongly", f"{client}, whose broker lives")
                continue
            verdict.sessions_fenced += 1
            verdict.returned += place in self._returned
            self._judge_will(verdict, place, client, fired)
            self._judge_end(verdict, place, client, bool(there[place]), fenced_ms[plan.broker(n)])
        return verdict

    def _there(self, left: Iterable[Left], verdict: Verdict) -> bytearray:
        """Which sessions are there. Those that must not look as they do are faults."""
        plan = self._plan
        there = bytearray(plan.brokers * plan.each)
        for one in left:
            place = plan.place(one.client)
            if place is None:
                continue
            there[place] = 1
            back = place in self._returned or place in self._came_late
            if one.connected != (back or not plan.dies(place)):
                state = "connected" if one.connected else "disconnected"
                verdict.fault("connected_wrongly", f"{one.client} is {state} at {one.broker}")
        return there

    def _judge_will(self, verdict: Verdict, place: int, client: str, fired: int) -> None:
        kind = self._plan.kind(place)
        if kind not in FIRE and place not in self._came_late:
            if fired:
                verdict.fault("wills_not_due", f"{client}, which {kind.value}")
            return
        verdict.wills_due += 1
        if not fired:
            verdict.fault("wills_lost", f"{client}, which is of kind {kind.value!r}")
            return
        verdict.wills_fired += 1
        for _ in range(fired - 1):
            verdict.fault("wills_twice", client)

    def _judge_end(self, verdict: Verdict, place: int, client: str, there: bool, fenced_ms: int) -> None:
        kind, ended_ms = self._plan.kind(place), self._ended_ms.get(place)
        early = ended_ms is not None and ended_ms < fenced_ms + self._plan.expiry_s * 1000
        if kind is Kind.RETURNS:
            if not there:
                verdict.fault("expired_wrongly", f"{client}, which came back")
            elif early:
                verdict.fault("expired_wrongly", f"{client}, which then came back, before its time")
        elif kind not in END:
            if not there or ended_ms is not None:
                verdict.fault("expired_wrongly", f"{client}, which was to stay")
        elif there:
            verdict.fault("not_expired", client)
        else:
            verdict.expired += 1
            if early:
                verdict.fault("expired_wrongly", f"{client}, before its time")
