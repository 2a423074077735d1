"""What a change of the map means, in words for people. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from metad_wire.cluster import GroupRecord

_NAMED = 8  # groups that a text names; there may be two thousand


def replicas_text(before: Sequence[GroupRecord], after: Sequence[GroupRecord]) -> Iterator[str]:
    """The replicas that change, a text for each group, such as ``data-1: n4 replaces n3``."""
    changes = [(now, then) for now, then in zip(before, after, strict=True) if {*now.replicas} != {*then.replicas}]
    for now, then in changes[:_NAMED]:
        new = [node for node in then.replicas if node not in now.replicas]
        gone = [node for node in now.replicas if node not in then.replicas]
        parts = [f"{new.pop(0)} replaces {gone.pop(0)}" for _ in range(min(len(new), len(gone)))]
        parts += [f"{node} is added" for node in new]
        parts += [f"{node} goes" for node in gone]
        yield f"{then.group_id.name}: {', '.join(parts)}"
    if len(changes) > _NAMED:
        yield f"{len(changes) - _NAMED} more groups get other replicas"
