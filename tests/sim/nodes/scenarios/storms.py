"""Storms on whole nodes: ten seconds' work arrives at once. Whoever is turned away comes back at the time that it was
told, or does not heed it and gains nothing.

Nothing costs time in a simulation but the disk, so small entries and a slow fsync make a node slow: some 60 writes a
second. Its budget of bytes holds two thirds of the work, or a sixth where the values are large.
"""

from __future__ import annotations

from typing import Any

from metad.config import MIB, CommitConfig, LimitsConfig
from metad_client import Backoff, Client, KvPutItem, Options

from ..cluster import SimClient
from ..host import Pace
from .scene import Scene, scenario

_PER_S = 30  # half of what the node can do: slots are where there would be room before
_BYTES = 10_200  # of a value: with its item's weight, 600 fit the node's budget, and 200 are left free of it
_LARGE_BYTES = 41_000  # 150 do; of two that share room, each leaves as much free as it holds
_CALLS = 290  # of each of two clients
_DEADLINE_S = 120.0
_IGNORES = Backoff(family="exponential", base_s=0.2, cap_s=0.2, retry_after="ignore")


class _Storm(Scene):
    """Two brokers that come at once, the first perhaps one that ignores return slots."""

    def __init__(self, first: Backoff | None = None, size: int = _BYTES) -> None:
        limits = LimitsConfig(
            in_flight_bytes_max=6 * MIB,
            connection_window_bytes=4 * MIB,
            frame_bytes_max=4 * MIB,
            unfinished_bytes_max=8 * MIB,
            returning_per_s=_PER_S,
        )
        commit = CommitConfig(entry_items_max=5, pipeline_entries_max=1)
        super().__init__(1, limits=limits, commit=commit, pace=Pace(fsync=(0.07, 0.07)))
        self._first = first
        self._value = bytes(size)
        self.took: dict[str, list[float]] = {}

    def rage(self, seconds: float) -> list[Any]:
        """Let the storm begin, and run for a while."""
        brokers = [self.client(Options(backoff=self._first or Backoff())), self.client(Options())]
        tasks = []
        for broker in brokers:
            self.ask(broker, lambda client: client.cluster.map())
            self.took[broker.name] = []
        for number, broker in enumerate(brokers):
            tasks += [self.begin(broker, self._call(broker, f"{number}/{call}")) for call in range(_CALLS)]
        self.brokers = brokers
        self.run(seconds)
        return tasks

    def _call(self, broker: SimClient, key: str) -> Any:
        begun = self.loop.now

        async def put(client: Client) -> None:
            (await client.kv.put_many([KvPutItem("space", key, self._value)], deadline_s=_DEADLINE_S)).raise_for_error()
            self.took[broker.name].append(self.loop.now - begun)

        return put

    def over(self, tasks: list[Any]) -> None:
        """Wait until everybody is served."""
        assert self.run_until(lambda: all(task.done() for task in tasks), _DEADLINE_S), "somebody is not served"
        for task in tasks:
            task.result()

    def attempts(self, broker: SimClient) -> float:
        """Of each of its calls."""
        assert broker.client is not None
        return 1 + broker.client.statistics().retries / _CALLS

    def mean(self, broker: SimClient) -> float:
        """The seconds that its calls took."""
        took = self.took[broker.name]
        return sum(took) / len(took)


@scenario
def who_heeds_its_slot_comes_one_and_a_half_times() -> None:
    with _Storm() as storm:
        tasks = storm.rage(5.0)
        leader = storm.lead().node
        assert leader is not None
        turned_away = leader.status().turned_away
        assert turned_away.requests > 100, "that is no storm"
        assert turned_away.granted, "the node's part of the budget is not renewed"
        assert turned_away.per_s == _PER_S
        storm.over(tasks)
        attempts = sum(map(storm.attempts, storm.brokers)) / 2
        assert attempts <= 1.5, f"{attempts:.2f} attempts of each call"


@scenario
def who_ignores_its_slot_gains_nothing() -> None:
    with _Storm(size=_LARGE_BYTES) as storm:
        storm.over(storm.rage(0.0))
        heeding_s = storm.mean(storm.brokers[0])
    with _Storm(_IGNORES, _LARGE_BYTES) as storm:
        storm.over(storm.rage(0.0))
        ignores, heeds = storm.brokers
        assert storm.attempts(ignores) > 3, "it heeds its slots"
        assert storm.attempts(heeds) <= 2.0, f"{storm.attempts(heeds):.2f} attempts of each call"
        ignoring_s = storm.mean(ignores)
        assert ignoring_s > 0.95 * heeding_s, f"who waits takes {heeding_s:.2f} s, who does not {ignoring_s:.2f} s"
