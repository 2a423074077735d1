"""Whether a node has to end because every other node refuses it. Pure: time is an argument.

A node that has lost its data directory, or that is a second one of its name, is refused for as long as it is started as
what it is. It would only fill the logs. But a node must not end because one node in a partition with it is wrong, nor
because of a mistake that ends by itself, such as certificates that are being replaced. So the refusals must be of the
kind that stays, come from a majority of the cluster, and last; and no node that was reached may say anything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

LASTS_S: Final = 30.0
"""For so long all must refuse: a directory that is mounted too late is noticed within that time, and so is an operator
who starts the right node again."""


class Answer(Enum):
    """What a peer last said to a node that dialled it."""

    NONE = "none"
    """It was not reached."""
    TAKES = "takes"
    """It is connected."""
    REFUSES = "refuses"
    """It refuses, for a reason that may end by itself."""
    BANS = "bans"
    """It refuses the node for what it is."""


class Refusals:
    """Since when all peers have refused this node."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def are_final(self, answers: Mapping[str, Answer], now_s: float) -> bool:
        """Whether the node has to end. ``answers`` are those of all other nodes of the cluster, as far as known."""
        reached = [answer for answer in answers.values() if answer is not Answer.NONE]
        majority = (len(answers) + 1) // 2 + 1  # of the cluster, this node included
        if len(reached) < majority or any(answer is not Answer.BANS for answer in reached):
            self._since_s = None
            return False
        if self._since_s is None:
            self._since_s = now_s
        return now_s - self._since_s >= LASTS_S
