"""``metad-spark skew``: how evenly groups are filled, and what would even it out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from metad_wire.cluster import SLOTS

from .asking import opened, rows
from .output import say, table, write_json
from .queries import skew as q
from .wording import percent, short

_SHOWN = 12


def run(
    *,
    source: str,
    options: dict[str, str],
    within: float,
    steps: int,
    weight: str,
    count: int,
    master: str | None,
    connect: bool,
    json: Path | None,
) -> int:
    """Print it. Returns the exit code."""
    with opened(source, options, master=master, connect=connect) as tables:
        groups = tables.groups()
        names = q.TABLES_READ if not options.get("tenant") and not options.get("prefix") else q.OF_TENANTS
        keys = q.keys([(name, tables.read(name)) for name in names]).cache()
        by_table = rows(q.by_table(keys))
        by_slot = rows(q.by_slot(keys))
        heavy = rows(q.heaviest(keys, weight, count))
        keys.unpersist()
    slots: dict[str, dict[str, list[int]]] = {
        kind: {name: [0] * SLOTS for name in q.WEIGHTS} for kind in ("data", "offset")
    }
    for row in by_slot:
        for name in q.WEIGHTS:
            slots[row["kind"]][name][row["slot"]] = row[name]
    proposals = [
        q.propose(kind, weight, slots[kind][weight], groups.slots[kind], groups.ordinals[kind], within, steps)
        for kind in slots
    ]
    told: dict[str, Any] = {
        "source": source,
        "now_ms": tables.now_ms,
        "tables": by_table,
        "groups": q.by_group(slots, groups.slots, groups.ordinals),
        "heaviest": heavy,
        "slots": slots,
        "proposals": [msgspec.to_builtins(proposal) for proposal in proposals],
    }
    write_json(json, told)
    _print(told, weight)
    return 0


def _print(told: dict[str, Any], weight: str) -> None:
    table(
        "What is stored",
        ["table", "groups of kind", "keys", "rows", "bytes"],
        [[r["table"], r["kind"], f"{r['keys']:,}", f"{r['rows']:,}", short(r["bytes"])] for r in told["tables"]],
    )
    ordered = sorted(told["groups"], key=lambda row: (row["kind"], -row[weight]))
    table(
        "Groups, the heaviest first",
        ["group", "slots", "rows", "bytes", "of its kind", "times the mean"],
        [
            [*_group(r), *_sizes(r), percent(r[f"{weight}_share"]), f"{r[f'{weight}_times']:.3g}"]
            for r in ordered[:_SHOWN]
        ],
    )
    table(
        f"The heaviest keys by {weight}",
        ["key", "slot", "rows", "bytes", "times the mean key"],
        [
            [r["key"], f"{r['kind']} {r['slot']}", *_sizes(r), "" if r["times"] is None else f"{r['times']:.3g}"]
            for r in told["heaviest"]
        ],
    )
    for proposal in told["proposals"]:
        _proposed(proposal)


def _group(row: dict[str, Any]) -> list[str]:
    return [f"{row['kind']}-{row['ordinal']}", str(row["slots"])]


def _sizes(row: dict[str, Any]) -> list[str]:
    return [f"{row['rows']:,}", short(row["bytes"])]


def _proposed(p: dict[str, Any]) -> None:
    kind, weight = p["kind"], p["weight"]
    say(
        f"{kind}: the heaviest group has {p['before']:.3g} times the {weight} of the mean one (asked: {p['within']:g})."
    )
    if p["before"] <= p["within"]:
        return
    say(
        "  `metadctl groups rebalance --even-slots`, which evens the number of slots, moves "
        f"{p['rebalance_slots']:,} of them, and then that is {p['rebalance']:.3g}."
    )
    if p["added"]:
        say(f"  After `metadctl groups add --kind {kind}` {p['added']} times, it brings every group within that.")
    elif p["added"] is None:
        say(f"  Nor do up to {q.ADDED_MAX} more groups bring every group within that.")
    moved = sum(len(move["slots"]) for move in p["moves"])
    if moved:
        say(f"  {moved} moves of single slots would make it {p['after']:.3g}:")
        for move in p["moves"]:
            slots = ", ".join(map(str, move["slots"]))
            say(f"    {kind}-{move['source']} -> {kind}-{move['target']}: {slots}")
    if p["heaviest_slot"] is not None:
        say(f"  Slot {p['heaviest_slot']} alone is heavier than a group may be: only lighter keys help against that.")
    elif not p["met"]:
        say("  So many steps do not reach what was asked.")
