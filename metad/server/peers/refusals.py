"""Whether a node has to end because every other node refuses it. Pure: time is an argument.

A node that has lost its data directory, or that is a second one of its name, is refused for as long as it is started as
what it is. It would only fill the logs. But a node must not end because one node in a partition with it is wrong, nor
because of a mistake that ends by itself, such as certificates that are being replaced. So the refusals must be of the
kind that stays, come from a majority of the cluster, and last; and no node that was reached may say anything else.

An answer counts until the next one. On a busy machine dials overlap and some are in vain, so not to be reached for a
moment takes nothing back of what was said.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

LASTS_S: Final = 30.0
"""For so long all must refuse: a directory that is mounted too late is noticed within that time, and so is an operator
who starts the right node again."""
COUNTS_S: Final = 15.0
"""An answer counts for so long without another one: time for two dials in vain, with the waits between them."""


class Answer(Enum):
    """What a peer last said to a node that dialled it."""

    NONE = "none"
    """It was not reached, or has not answered yet."""
    TAKES = "takes"
    """It is connected."""
    REFUSES = "refuses"
    """It refuses, for a reason that may end by itself."""
    BANS = "bans"
    """It refuses the node for what it is."""


def majority_of(others: int) -> int:
    """How many nodes are most of a cluster of these others and this node."""
    return (others + 1) // 2 + 1


class Refusals:
    """Since when all peers have refused this node."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[Answer, float]] = {}  # peer -> its last answer, and when that was heard
        self._since_s: float | None = None

    def final(self, answers: Mapping[str, Answer], now_s: float, enough: int) -> list[str]:
        """The peers because of which the node has to end; empty if it need not. ``answers`` are those of all other
        nodes that are known; at least ``enough`` of them must refuse this one."""
        for peer, answer in answers.items():
            if answer is not Answer.NONE:
                self._said[peer] = (answer, now_s)
        said = {peer: answer for peer, (answer, when_s) in self._said.items() if now_s - when_s <= COUNTS_S}
        counted = [peer for peer in answers if peer in said]
        if len(counted) < enough or any(said[peer] is not Answer.BANS for peer in counted):
            self._since_s = None
            return []
        if self._since_s is None:
            self._since_s = now_s
        return sorted(counted) if now_s - self._since_s >= LASTS_S else []
