"""Which actors a seed has, and their judges."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from ..cluster import Cluster
from .actor import Actor
from .claimants import Claimant, Goer, LastClaimant, WillJudge
from .counters import Counter, NumberJudge
from .holders import Holder, LeaseJudge
from .lockers import Locker, LockJudge
from .log_brokers import Director, LastReader, LogBroker, LogJudge
from .members import LastMember, MemberActor, MemberJudge
from .near_readers import FreshnessJudge, NearReader, NearWriter
from .publishers import Publisher
from .subscribers import Subscriber

SHARE: Final = 0.3
"""How many of the kinds a seed has."""


class Cast:
    """The actors of one seed, each kind of them with a chance of ``share``."""

    def __init__(self, cluster: Cluster, rng: random.Random, share: float = SHARE) -> None:
        self._cluster = cluster
        self._rng = rng
        self.actors: list[Actor] = []
        self.leases: LeaseJudge | None = None
        self.locks: LockJudge | None = None
        self.wills: WillJudge | None = None
        self.members: MemberJudge | None = None
        self.logs: LogJudge | None = None
        self.fresh: FreshnessJudge | None = None
        self.numbers: dict[str, NumberJudge] = {}
        kinds: list[Callable[[], list[Actor]]] = [
            self._holders,
            self._lockers,
            self._counters,
            self._claimants,
            self._publishers,
            self._subscribers,
            self._members,
            self._log_brokers,
            self._near_readers,
        ]
        for kind in kinds:
            if rng.random() < share:
                self.actors += kind()
        for actor in self.actors:
            actor.begin()

    def _drawn(self) -> random.Random:
        return random.Random(self._rng.getrandbits(64))

    def _holders(self) -> list[Actor]:
        judge = self.leases = LeaseJudge(self._cluster)
        return [Holder(self._cluster, f"holder{n}", self._drawn(), judge) for n in range(1, 3)]

    def _lockers(self) -> list[Actor]:
        judge = self.locks = LockJudge(self._cluster)
        return [Locker(self._cluster, f"locker{n}", self._drawn(), judge) for n in range(1, 4)]

    def _counters(self) -> list[Actor]:
        self.numbers = {"one": NumberJudge(), "other": NumberJudge()}
        return [Counter(self._cluster, f"counter{n}", self._drawn(), self.numbers) for n in range(1, 3)]

    def _claimants(self) -> list[Actor]:
        judge = self.wills = WillJudge(self._cluster)
        return [
            Goer(self._cluster, "goer", self._drawn(), judge),
            *(Claimant(self._cluster, f"claimant{n}", self._drawn(), judge) for n in range(1, 3)),
            LastClaimant(self._cluster, "last claimant", self._drawn(), judge),
        ]

    def _members(self) -> list[Actor]:
        judge = self.members = MemberJudge(self._cluster)
        return [
            *(MemberActor(self._cluster, f"member{n}", self._drawn(), judge) for n in range(1, 4)),
            LastMember(self._cluster, "last member", self._drawn(), judge),
        ]

    def _log_brokers(self) -> list[Actor]:
        judge = self.logs = LogJudge(self._cluster)
        return [
            *(LogBroker(self._cluster, f"log{n}", self._drawn(), judge) for n in range(1, 5)),
            Director(self._cluster, "director", self._drawn(), judge),
            LastReader(self._cluster, "last reader", self._drawn(), judge),
        ]

    def _publishers(self) -> list[Actor]:
        return [Publisher(self._cluster, f"publisher{n}", self._drawn()) for n in range(1, 3)]

    def _subscribers(self) -> list[Actor]:
        return [Subscriber(self._cluster, f"subscriber{n}", self._drawn()) for n in range(1, 3)]

    def _near_readers(self) -> list[Actor]:
        judge = self.fresh = FreshnessJudge(self._cluster)
        return [
            NearWriter(self._cluster, "near writer", self._drawn(), judge),
            *(NearReader(self._cluster, f"near reader{n}", self._drawn(), judge) for n in range(1, 3)),
        ]

    def settle(self) -> None:
        """All faults are over, and everything has come to rest: let each judge."""
        for actor in self.actors:
            actor.settle()
