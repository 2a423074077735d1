"""How evenly the groups of a cluster are filled, what is heavy, and which moves of slots would even it out.

metad counts no accesses, so a key is heavy by what is stored under it. Bytes are those of the texts and values of
records; what storage adds to each is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructType

from metad_wire.policy.slots import even_moves
from metad_wire.tables import TABLES

from ..source.shapes import CHANGE, REVISION, ROW, SLOT, TIME_MS

TABLES_READ: Final = (
    "session",
    "subscription",
    "inflight",
    "will",
    "retained",
    "kv",
    "lease",
    "sequence",
    "offset",
    "consumer",
)
"""Those whose records are in slots."""
OF_TENANTS: Final = tuple(name for name in TABLES_READ if TABLES[name].key[0] == "tenant")
"""Those whose records belong to tenants."""
_NOT_STORED: Final = (SLOT, REVISION, CHANGE, ROW, TIME_MS)
"""Columns that every table of the source has: they say where a row is from."""
WEIGHTS: Final = ("rows", "bytes")
ADDED_MAX: Final = 8
"""Groups that a proposal adds, at most."""


def keys(frames: Sequence[tuple[str, DataFrame]]) -> DataFrame:
    """From tables by their names, a row for everything of a ``table`` that has to stay together: ``kind`` (of the
    groups that hold it), ``slot``, ``key`` (the routing fields, with ``/`` between them), ``rows`` and ``bytes``."""
    return reduce(DataFrame.union, [_keys(name, frame) for name, frame in frames])


def _keys(name: str, frame: DataFrame) -> DataFrame:
    table = TABLES[name.partition(".")[0]]
    texts = [
        _octets(f"`{field.name}`", field.dataType) for field in frame.schema.fields if field.name not in _NOT_STORED
    ]
    known = [text for text in texts if text]
    row_bytes = F.expr(" + ".join(known)) if known else F.lit(0)
    by = [field for field in table.routing if field in frame.columns]
    return (
        frame.groupBy(SLOT, F.concat_ws("/", *by).alias("key"))
        .agg(F.count("*").alias("rows"), F.sum(row_bytes).alias("bytes"))
        .select(F.lit(table.kind).alias("kind"), F.lit(name).alias("table"), SLOT, "key", "rows", "bytes")
    )


def _octets(column: str, kind: DataType) -> str:
    """How many bytes a column's texts and values have, in Spark's SQL; empty: it has none."""
    if isinstance(kind, StringType | BinaryType):
        return f"coalesce(octet_length({column}), 0)"
    if isinstance(kind, StructType):
        inner = [_octets(f"{column}.`{field.name}`", field.dataType) for field in kind.fields]
        found = [text for text in inner if text]
        return f"({' + '.join(found)})" if found else ""
    if isinstance(kind, ArrayType) and isinstance(kind.elementType, StringType | BinaryType):
        return f"coalesce(aggregate({column}, 0, (sum, one) -> sum + octet_length(one)), 0)"
    if isinstance(kind, MapType):
        return f"coalesce(octet_length(to_json({column})), 0)"
    return ""


def by_slot(found: DataFrame) -> DataFrame:
    """From :func:`keys`: ``rows`` and ``bytes`` of each ``slot`` of each ``kind`` that has any."""
    return found.groupBy("kind", "slot").agg(F.sum("rows").alias("rows"), F.sum("bytes").alias("bytes"))


def by_group(
    slots: dict[str, dict[str, list[int]]], owners: dict[str, list[int]], groups: dict[str, list[int]]
) -> list[dict[str, Any]]:
    """Each group of each kind: ``kind``, ``ordinal``, how many ``slots`` it has, and of each of :data:`WEIGHTS` the
    sum, its share of the kind's (``rows_share``), and how many times as much it has as the mean group (``rows_times``).
    ``slots``: per kind and weight, by slot."""
    found = []
    for kind, weights in slots.items():
        for ordinal in groups[kind]:
            mine = [slot for slot, owner in enumerate(owners[kind]) if owner == ordinal]
            row: dict[str, Any] = {"kind": kind, "ordinal": ordinal, "slots": len(mine)}
            for name, by_slot in weights.items():
                row[name], whole = sum(by_slot[slot] for slot in mine), sum(by_slot)
                row[f"{name}_share"] = row[name] / whole if whole else 0.0
                row[f"{name}_times"] = row[f"{name}_share"] * len(groups[kind])
            found.append(row)
    return found


def by_table(found: DataFrame) -> DataFrame:
    """From :func:`keys`: ``keys``, ``rows`` and ``bytes`` of each table."""
    return (
        found.groupBy("kind", "table")
        .agg(F.count("*").alias("keys"), F.sum("rows").alias("rows"), F.sum("bytes").alias("bytes"))
        .orderBy("kind", F.desc("bytes"))
    )


def heaviest(found: DataFrame, weight: str, count: int = 10) -> DataFrame:
    """From :func:`keys`: the keys with the most ``rows`` or ``bytes`` over all tables that are routed by the same
    fields (``kind``, ``slot``, ``key``), and how many times as much they have as the mean key of their kind."""
    whole = found.groupBy("kind", "slot", "key").agg(F.sum("rows").alias("rows"), F.sum("bytes").alias("bytes"))
    mean = whole.groupBy("kind").agg(F.avg(weight).alias("_mean"))
    return (
        whole.join(F.broadcast(mean), "kind")
        .withColumn("times", F.when(F.col("_mean") > 0, F.col(weight) / F.col("_mean")))
        .drop("_mean")
        .orderBy(F.desc(weight), "kind", "key")
        .limit(count)
    )


class Move(msgspec.Struct, frozen=True):
    """Slots that go from one group to another."""

    source: int
    target: int
    slots: list[int]


class Proposal(msgspec.Struct, frozen=True):
    """How to fill the groups of one kind more evenly. Of shares 1 is the mean group's."""

    kind: str
    weight: str
    within: float
    """What no group's share is to exceed."""
    before: float
    """The greatest share of a group."""
    rebalance: float
    """The same after ``metadctl groups rebalance --even-slots``, which evens the number of slots and does not know what
    is in them."""
    rebalance_slots: int
    """Slots that it moves."""
    added: int | None
    """How many groups ``metadctl groups add`` has to add before it, so that no group has more than ``within`` times
    what the mean group has today; None: up to :data:`ADDED_MAX` do not do it."""
    moves: list[Move]
    """The fewest moves that were found."""
    after: float
    """The greatest share after them."""
    met: bool
    """Whether that is within what was asked."""
    heaviest_slot: int | None
    """A slot that has more than a group may have by itself: no move of slots helps against it, and it can only be made
    lighter."""


def propose(
    kind: str,
    weight: str,
    weights: Sequence[int],
    owners: Sequence[int],
    groups: Sequence[int],
    within: float,
    steps: int,
) -> Proposal:
    """Even out the groups of a kind. ``weights`` and ``owners`` are by slot. At most ``steps`` slots are moved: each
    time the one from the heaviest group to the lightest that brings both nearest to each other, for as long as a group
    is too heavy."""
    loads = dict.fromkeys(groups, 0)
    held: dict[int, list[int]] = {group: [] for group in groups}
    for slot, group in enumerate(owners):
        loads[group] += weights[slot]
        held[group].append(slot)
    mean = sum(loads.values()) / len(groups)
    before = _greatest(loads, mean)
    target: dict[int, int] = {}
    for _ in range(steps):
        heavy = max(loads, key=lambda group: (loads[group], -group))
        light = min(loads, key=lambda group: (loads[group], group))
        gap = loads[heavy] - loads[light]
        movable = [slot for slot in held[heavy] if 0 < weights[slot] < gap]
        if loads[heavy] <= within * mean or not movable:
            break
        slot = min(movable, key=lambda one: (abs(gap - 2 * weights[one]), one))
        held[heavy].remove(slot)
        held[light].append(slot)
        loads[heavy] -= weights[slot]
        loads[light] += weights[slot]
        target[slot] = light
    pairs: dict[tuple[int, int], list[int]] = {}
    for slot, group in sorted(target.items()):
        if group != owners[slot]:
            pairs.setdefault((owners[slot], group), []).append(slot)
    after = _greatest(loads, mean)
    evened = even_moves(owners, groups)
    worst = max(range(len(weights)), key=weights.__getitem__)
    return Proposal(
        kind=kind,
        weight=weight,
        within=within,
        before=before,
        rebalance=_greatest(_moved(weights, owners, groups, evened), mean),
        rebalance_slots=sum(map(len, evened.values())),
        added=_added(weights, owners, groups, within * mean),
        moves=[Move(source, to, slots) for (source, to), slots in sorted(pairs.items())],
        after=after,
        met=after <= within,
        heaviest_slot=worst if weights[worst] > within * mean else None,
    )


def _added(weights: Sequence[int], owners: Sequence[int], groups: Sequence[int], most: float) -> int | None:
    for count in range(ADDED_MAX + 1):
        all_of_them = [*groups, *(max(groups) + 1 + number for number in range(count))]
        loads = _moved(weights, owners, all_of_them, even_moves(owners, all_of_them))
        if max(loads.values()) <= most:
            return count
    return None


def _moved(
    weights: Sequence[int], owners: Sequence[int], groups: Sequence[int], moves: dict[tuple[int, int], list[int]]
) -> dict[int, int]:
    """Group -> weight, after moves."""
    loads = dict.fromkeys(groups, 0)
    for slot, group in enumerate(owners):
        loads[group] += weights[slot]
    for (source, target), slots in moves.items():
        for slot in slots:
            loads[source] -= weights[slot]
            loads[target] += weights[slot]
    return loads


def _greatest(loads: dict[int, int], mean: float) -> float:
    return max(loads.values()) / mean if mean else 1.0
