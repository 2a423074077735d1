"""The account of a run: what was due of each client, and what has come of it. Pure: :mod:`metad_judge.sessions` judges.

Everything is booked by client. A will is due if the client's kind says so and its broker was killed, and it has to be
published once. A session may be gone only if it was to end, and not before: the fence's time plus its interval, both by
the clock that the cluster counts with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from metad_judge.sessions import Came, Due, DueVerdict, Fate

from .plan import END, FIRE, TENANT, Kind, Plan, topic_of


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


class Verdict(DueVerdict, kw_only=True):
    """And what came of the sessions of the killed brokers. ``returned``: in time."""

    sessions_fenced: int = 0
    returned: int = 0


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
        connected = {plan.place(one.client): one.connected for one in left}
        for strange in self._strange:
            verdict.fault("wills_not_due", strange)
        for place in range(plan.brokers * plan.each):
            verdict.sessions_fenced += plan.dies(place)
            verdict.returned += place in self._returned
            came = Came(self._fired.get(place, 0), self._ended_ms.get(place), connected.get(place))
            verdict.see(self._due(place, fenced_ms), came)
        return verdict

    def _due(self, place: int, fenced_ms: Mapping[str, int]) -> Due:
        plan = self._plan
        n, number = divmod(place, plan.each)
        client, kind = plan.client(n, number), plan.kind(place)
        if not plan.dies(place):
            return Due(f"{client}, whose broker lives", Fate.STAYS, connected=True)
        fate = Fate.RETURNS if kind is Kind.RETURNS else Fate.ENDS if kind in END else Fate.STAYS
        return Due(
            f"{client}, which {kind.value}",
            fate,
            will=kind in FIRE or place in self._came_late,
            connected=place in self._returned or place in self._came_late,
            earliest_ms=fenced_ms[plan.broker(n)] + plan.expiry_s * 1000,
        )
