"""What a log has promised, and whether it has kept it. Pure.

An acknowledged record is at its offset in the end, once, and before those that its producer sent later; so is what a
consumer has read. Records that were not acknowledged may be there or not.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

_EXAMPLES = 5


class Ack(NamedTuple):
    """Appended, as the leader has said."""

    offset: int
    leader_epoch: int
    payload: bytes
    at_s: float
    """By our monotonic clock."""


def sent(producer: int, number: int) -> bytes:
    """The payload of a producer's record."""
    return b"%d-%d" % (producer, number)


class Ledger:
    """Takes what happens, and judges in the end."""

    def __init__(self) -> None:
        self.acks: dict[int, list[Ack]] = defaultdict(list)
        self.read: dict[int, Counter[tuple[int, bytes]]] = defaultdict(Counter)
        """By partition: how often the group's consumers were given an offset with a payload."""
        self.unknown = 0
        """Appends of which nobody knows what came."""

    @property
    def acknowledged(self) -> int:
        """How many records were."""
        return sum(map(len, self.acks.values()))

    def longest_s(self, begin_s: float, end_s: float) -> float:
        """For how long a partition acknowledged nothing at most, in a time that began and ended between these."""
        longest = 0.0
        for acks in self.acks.values():
            for before, after in pairwise(ack.at_s for ack in acks):
                if after > begin_s and before < end_s:
                    longest = max(longest, after - before)
        return longest

    def judge(self, logs: Mapping[int, Sequence[bytes]]) -> dict[str, Any]:
        """Sum up. ``logs``: by partition, the payloads that are acknowledged in the end, by offset."""
        found: Counter[str] = Counter()
        examples: list[str] = []

        def fault(what: str, about: str) -> None:
            found[what] += 1
            if found[what] <= _EXAMPLES:
                examples.append(f"{what}: {about}")

        for partition, log in sorted(logs.items()):
            acks = self.acks[partition]
            times = Counter(log)
            epochs: dict[int, int] = {}
            for ack in acks:
                there = log[ack.offset] if ack.offset < len(log) else None
                if there != ack.payload:
                    fault("lost", f"{partition}/{ack.offset} under {ack.leader_epoch}: {ack.payload!r}, not {there!r}")
                if epochs.setdefault(ack.offset, ack.leader_epoch) != ack.leader_epoch:
                    fault("double_leaders", f"{partition}/{ack.offset}: {epochs[ack.offset]} and {ack.leader_epoch}")
            for payload, count in times.items():
                if count > 1:
                    fault("twice", f"{partition}: {payload!r} is there {count} times")
            newest: dict[bytes, int] = {}
            for payload in log:
                producer, _, number = payload.partition(b"-")
                if int(number) <= newest.get(producer, -1):
                    fault("out_of_order", f"{partition}: {payload!r} after {newest[producer]}")
                newest[producer] = int(number)
            for offset, payload in self.read[partition]:
                if offset >= len(log) or log[offset] != payload:
                    fault("read_and_lost", f"{partition}/{offset}: {payload!r} was read")
            for offset in {ack.offset for ack in acks} - {offset for offset, _ in self.read[partition]}:
                fault("not_delivered", f"{partition}/{offset}")
        return {
            "acknowledged": self.acknowledged,
            "unknown": self.unknown,
            **{fault: found[fault] for fault in FAULTS},
            "delivered_twice": sum(count - 1 for read in self.read.values() for count in read.values()),
            "examples": examples,
        }


FAULTS = ("lost", "twice", "out_of_order", "double_leaders", "read_and_lost", "not_delivered")
"""None of these may be more than 0."""
