"""The results of a WAN run: the rows, the winner of a cell, the share in which ``metad+auto://`` chose the winner.
Pure.

The rule: the lower p99 wins the cell, because a broker waits for its slowest requests. A cell whose two p99s are closer
than :data:`EVEN` still has a winner, and is marked as even: another run may well say the opposite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

TCP, QUIC = "tcp", "quic"
EVEN = 1.1
RULE = (
    "The lower p99 wins the cell, over TCP with this kernel's default congestion control. "
    f"Within {100 * (EVEN - 1):.0f} % the cell is even: the winner is named, but another run may say the opposite."
)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one way in one cell. ``connect_ms``: time to the first answer."""

    p50_ms: float
    p99_ms: float
    items_per_s: float
    connect_ms: float
    requests: int
    failed: int


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One RTT, one loss, one verb. ``others``: TCP with other congestion controls than the kernel's default, by name;
    ``auto``: the SDK's final choice, empty if it was not measured; ``chosen``: its figures from the start."""

    rtt_ms: float
    loss_pct: float
    verb: str
    tcp: Figures
    quic: Figures
    others: Mapping[str, Figures] = {}
    auto: str = ""
    chosen: Figures | None = None

    @property
    def winner(self) -> str:
        """``tcp`` or ``quic``, by :data:`RULE`."""
        return QUIC if self.quic.p99_ms < self.tcp.p99_ms else TCP

    @property
    def p99_ratio(self) -> float:
        """TCP's p99 ÷ QUIC's: over 1 QUIC wins."""
        return self.tcp.p99_ms / self.quic.p99_ms if self.quic.p99_ms else 0.0

    @property
    def even(self) -> bool:
        """Whether the two are too close to call."""
        return 1 / EVEN < self.p99_ratio < EVEN

    def row(self) -> dict[str, Any]:
        """The row of the report."""
        made: dict[str, Any] = {"rtt_ms": self.rtt_ms, "loss_pct": self.loss_pct, "verb": self.verb}
        measured = {TCP: self.tcp, QUIC: self.quic, **{f"{TCP}_{name}": one for name, one in self.others.items()}}
        if self.chosen is not None:
            measured["auto"] = self.chosen
        for name, figures in measured.items():
            made |= {f"{name}_{key}": value for key, value in msgspec.to_builtins(figures).items()}
        made |= {"p99_ratio": self.p99_ratio, "even": self.even, "winner": self.winner}
        if self.auto:
            made |= {"auto": self.auto, "auto_right": self.auto == self.winner}
        return made


def auto_share(cells: Sequence[Cell]) -> float | None:
    """The share of the cells in which ``auto`` chose the winner, even ones included; None if it was not measured."""
    asked = [cell for cell in cells if cell.auto]
    return sum(cell.auto == cell.winner for cell in asked) / len(asked) if asked else None
