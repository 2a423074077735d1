"""Which replica of a group is asked for a stream. Pure."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence


def choose(
    replicas: Sequence[str],
    *,
    leader: str,
    regions: dict[str, str],
    region: str,
    avoid: Collection[str],
    spare_leader: bool,
    rng: random.Random,
) -> str | None:
    """One of the replicas that can be reached, but none to avoid: at best of the client's region; and, of a snapshot,
    one that does not lead, since leaders have the most to do. Watches spread over the others. None if none is left."""
    left = [node for node in replicas if node not in avoid]
    near = [node for node in left if region and regions.get(node) == region] or left
    free = [node for node in near if node != leader] if spare_leader else near
    return rng.choice(free or near) if near else None
