"""The worlds that are explored. They have 3,826,438 states: 2,208,082 with in-sync replicas, of which ``isr2`` has
1,059,503; 897,578 with one owner, 651,442 by position, and 69,336 by the replicas themselves. That takes
some ten minutes of one core; random walks through larger worlds take a minute for 10,000 seeds."""

from __future__ import annotations

from collections.abc import Callable

from . import external, in_sync, owner, position
from .exploring import World
from .external import External
from .in_sync import InSync
from .owner import Owner
from .position import Position

IN_SYNC: dict[str, in_sync.Config] = {
    "ack": in_sync.Config(2, (0, 1), 1, records=2, losses=1, fences=1),
    "elr": in_sync.Config(2, (0, 1), stops=3, losses=1),
    "false": in_sync.Config(2, (0, 1), 1, fences=1, elections=1, doubts=1),
    "isr": in_sync.Config(losses=1),
    "isr2": in_sync.Config(stops=2, losses=1),
    "stale": in_sync.Config(2, (0, 1), 1, losses=1, fences=1, late=True),
    "move": in_sync.Config(2, (0, 1), 1, losses=1, groups=2, moves=1),
    "back": in_sync.Config(2, (0, 1), 1, losses=1, groups=2, moves=2, late=True),
    "lower": in_sync.Config(2, (0, 1), 2, min_isr_then=1, stops=2, losses=1),
    "raise": in_sync.Config(2, (0, 1), 1, min_isr_then=2, stops=2, losses=1),
    "plan": in_sync.Config(3, (0, 1), 1, wanted=(1, 2)),
    "plan2": in_sync.Config(3, (0, 1), 2, losses=1, wanted=(1, 2)),
    "planmv": in_sync.Config(2, (0,), 1, groups=2, moves=1, wanted=(1,)),
    "repair": in_sync.Config(3, (0, 1), 1, repairs=1),
    "life": in_sync.Config(2, (0, 1), 1, written=1, records=0, losses=1, fences=1, elections=1, doubts=1),
    "elected": in_sync.Config(2, (0, 1), 1, elections=1, doubts=1),
    "handed on": in_sync.Config(2, (0,), 1, records=0, groups=2, moves=1, wanted=(1,)),
    "added": in_sync.Config(2, (0,), 1, records=0, wanted=(0, 1)),
    "begun": in_sync.Config(2, (0, 1), 1, written=2, records=0, stops=2, losses=1, elections=1),
}
"""With in-sync replicas."""
OWNER: dict[str, owner.Config] = {
    "owner": owner.Config(),
    "clocks stop": owner.Config(clocks=False, fences=0, cancels=0, writes=True, everywhere=True),
    "back and forth": owner.Config(replicas=(0,), wanted=(1,), lives=0, fences=0, hands=2, cancels=2),
    "chosen": owner.Config(lives=0, fences=0, hands=2),
    "swapped": owner.Config(3, (0, 1), wanted=(1, 2), lives=0),
    "outside": owner.Config(replicas=(0,), outside=True, hands=0, cancels=0),
}
"""With one owner."""
POSITION: dict[str, position.Config] = {
    "one copy": position.Config(copies=1),
    "two copies": position.Config(copies=2),
    "three copies": position.Config(copies=3),
    "twice": position.Config(copies=2, records=2, fences=2, stops=0),
    "one copy, forced": position.Config(copies=1, forces=1),
    "two copies, forced": position.Config(copies=2, forces=1),
    "lost": position.Config(copies=2, losses=1, stops=2, fences=0),
    "lost, and whole again": position.Config(copies=2, losses=1, stops=2, fences=0, claims=1),
    "fewer copies": position.Config(copies=2, copies_then=1),
    "more copies": position.Config(copies=1, copies_then=2),
    "handed over": position.Config(copies=2, records=2, stops=0, claims=1, hands=1),
    "handed over, and lost": position.Config(copies=2, losses=1, fences=0, claims=1, hands=1),
    "moved away": position.Config(3, (0, 1), copies=2, wanted=(1, 2), claims=2, fences=0),
    "moved": position.Config(3, (0, 1), copies=2, wanted=(0, 2), claims=1, stops=0, fences=1),
}
"""By position."""
EXTERNAL: dict[str, external.Config] = {
    "claimed": external.Config(3, terms=2),
    "sealed": external.Config(2, terms=2, seals=2),
    "deleted": external.Config(2, terms=1, stops=1, fences=1, deletes=1),
}
"""By the replicas themselves."""

WORLDS: dict[str, Callable[[], World]] = {
    **{name: lambda config=config: InSync(config) for name, config in IN_SYNC.items()},  # type: ignore[misc]
    **{name: lambda config=config: Owner(config) for name, config in OWNER.items()},  # type: ignore[misc]
    **{name: lambda config=config: Position(config) for name, config in POSITION.items()},  # type: ignore[misc]
    **{name: lambda config=config: External(config) for name, config in EXTERNAL.items()},  # type: ignore[misc]
}
"""All of them."""
QUICK = ("elected", "added", "handed on", "back and forth", "chosen", "two copies", "deleted")
"""Those that ``make test`` explores."""
