"""Programs that take numbers from sequences. The rule: no number is given to two, whatever was asked again, and the
value is the sum of what was added."""

from __future__ import annotations

import random

from metad_client import Client
from metad_judge.invariants import Violation

from ..cluster import Cluster, SimClient
from .actor import Actor

_NAMESPACE = "sequences"


class NumberJudge:
    """Who was given which numbers of one sequence."""

    def __init__(self) -> None:
        self._given: list[tuple[int, int, str]] = []  # first, last, whose
        self._done = 0  # the sum of what was certainly added
        self._unknown = 0
        self._newest = 0  # the greatest value that was answered

    @property
    def count(self) -> int:
        """How often numbers were given."""
        return len(self._given)

    @property
    def newest(self) -> int:
        """The greatest value that was answered so far."""
        return self._newest

    def given(self, who: str, delta: int, value: int, least: int) -> None:
        """Somebody was given the numbers up to ``value``, who asked when ``least`` had been answered."""
        first = value - delta + 1
        if first <= least:
            raise Violation("sequences", f"{who} was given {first} to {value}, and {least} was given before")
        for begin, end, whose in self._given:
            if begin <= value and first <= end:
                raise Violation("sequences", f"{who} was given {first} to {value}, {whose} {begin} to {end}")
        self._given.append((first, value, who))
        self._done += delta
        self._newest = max(value, self._newest)

    def lost(self, delta: int) -> None:
        """Nobody knows whether this was added."""
        self._unknown += delta

    def check(self, value: int) -> None:
        """The value at the end."""
        if not self._done <= value <= self._done + self._unknown:
            raise Violation("sequences", f"{self._done} was added and perhaps {self._unknown}, the value is {value}")


class Counter(Actor):
    """One such program, all of which share two sequences."""

    def __init__(self, cluster: Cluster, name: str, rng: random.Random, judges: dict[str, NumberJudge]) -> None:
        super().__init__(cluster, name, rng)
        self._judges = judges

    async def live(self, sim: SimClient, client: Client) -> None:
        """See Actor."""
        while not self.quiet:
            sequence = self._rng.choice([*self._judges])
            judge, delta = self._judges[sequence], self._rng.choice([1, 1, 7, 100])
            least = judge.newest
            judge.lost(delta)  # it may be killed before it hears
            outcome, value = await self.ask(
                f"{delta} numbers of {sequence}", client.sequences.add(_NAMESPACE, sequence, delta)
            )
            if outcome in ("done", "refused", "never"):
                judge.lost(-delta)
            if outcome == "done":
                judge.given(sim.name, delta, value, least)
            await self.pause(0.01, 0.1, 0.4)

    def settle(self) -> None:
        """See Actor."""
        sim = self.client()

        async def look() -> None:
            client = await sim.open()
            for sequence, judge in self._judges.items():
                record = await client.sequences.get(_NAMESPACE, sequence, deadline_s=10.0)
                judge.check(0 if record is None else record.value)

        self._cluster.do(sim, look())
