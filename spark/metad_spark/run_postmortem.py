"""``metad-spark postmortem``: what a storm's trace says, for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import DataFrame

from .output import say, table, write_json
from .pipeline.session import open_session
from .queries import postmortem as p
from .wording import percent, seconds

_SHOWN = 12
_CURVE_AT = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0)
_WHY = {
    "to_broker": "on the way to its broker",
    "refused": "in refused attempts",
    "unanswered": "in attempts without an answer",
    "slot": "until the time that a server named",
    "backoff": "in its own backoff",
    "restoring": "in the attempt that restored it",
    "open": "from its last answer on",
}


def run(*, source: Path, step_s: float, stall_s: float, master: str | None, connect: bool, json: Path | None) -> int:
    """Print what happened. Returns the exit code: 0, however bad it was."""
    storm = p.storm_of(source)
    with open_session(master=master, connect=connect) as session:
        attempts = p.attempts_of(session, source).cache()
        clients = p.clients(attempts, storm.limit_s).cache()
        found: dict[str, list[dict[str, Any]]] = {
            "percentiles": _rows(p.percentiles(clients, storm.returning)),
            "tries": _rows(p.tries(clients)),
            "slots": _rows(p.slots(attempts)),
            "last": _rows(p.last(clients)),
            "reasons": _rows(p.reasons(clients)),
            "in_common": _rows(p.in_common(clients)),
            "stalls": _rows(p.stalls(attempts, storm.limit_s, stall_s)),
            "curve": _rows(p.curve(attempts, storm.returning, step_s)),
        }
    told: dict[str, Any] = {"trace": str(source), "storm": msgspec.to_builtins(storm)}
    seen = sum(row["clients"] for row in found["tries"])
    told |= {"returning": storm.returning, "unseen": storm.returning - seen}
    told |= {"attempts": sum(row["attempts"] * row["clients"] for row in found["tries"])}
    told |= {name: sum(row[name] for row in found["curve"]) for name in ("restored", "refused", "timeout", "failed")}
    write_json(json, told | found)
    _print(told, found)
    return 0


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


def _print(told: dict[str, Any], found: dict[str, list[dict[str, Any]]]) -> None:
    storm = told["storm"]
    say(
        f"{told['restored']:,} of {told['returning']:,} clients came back (trigger {storm['trigger']}, policy"
        f" {storm['policy']}), with {told['attempts']:,} attempts: {told['refused']:,} refused,"
        f" {told['timeout']:,} without an answer, {told['failed']:,} failed."
    )
    if told["unseen"]:
        say(f"Of {told['unseen']:,} clients no attempt has ended: the trace does not say who they are.")
    if storm["sdk_retries"]:
        say("The brokers' SDK repeated what servers turned away: those repeats are within attempts, not in the trace.")
    if not found["tries"]:
        return
    back = [row for row in found["curve"] if row["restored"]]
    table("Who was back when", ["share", "within"], [[percent(share), _by(back, share)] for share in _CURVE_AT])
    whole, *others = found["percentiles"]
    _table(
        "By what clients are told apart by (the slowest first)",
        ["of", "clients", "back", "tries", "refused", *(f"t{share:g}" for share in p.PERCENTS)],
        [_percentiles(row) for row in [whole, *sorted(others, key=_slowest)]],
    )
    _table(
        "What became of the times to come back that servers named",
        ["policy", "slot", "refusals", "then restored", "then refused", "off its time, mean"],
        [_slot(row) for row in found["slots"]],
    )
    _table(
        "Stalls: nobody came back although clients waited",
        ["of", "from", "for", "waiting", "sent", "refused", "no answer", "until"],
        [_stall(row) for row in found["stalls"]],
    )
    who = {row["who"]: row for row in found["reasons"]}
    parts = [[_WHY[part], *(seconds(who[name][f"{part}_s"]) for name in ("all", "last"))] for part in p.PARTS]
    table(
        f"Where a client's time went, in the mean ({who['last']['clients']:,} were last)",
        ["part", "all", "the last 1 %"],
        parts,
    )
    _table(
        "What the last 1 % had in common",
        ["of", "clients", "last", "times as often as the mean"],
        [
            [_of(row), f"{row['clients']:,}", f"{row['last']:,}", f"{row['times']:.3g}"]
            for row in found["in_common"]
            if row["last"]
        ],
    )
    _table(
        "The last ones",
        ["client", "broker", "group", "kind", "policy", "tries", "back after", "most of it"],
        [_last(row) for row in found["last"]],
    )


def _percentiles(row: dict[str, Any]) -> list[str]:
    times = [_time(row[p.name_of(share)]) for share in p.PERCENTS]
    counts = [f"{row['clients']:,}", f"{row['restored']:,}", f"{row['attempts'] / row['clients']:.3g}"]
    return [_of(row), *counts, f"{row['refused']:,}", *times]


def _slot(row: dict[str, Any]) -> list[str]:
    counts = [f"{row[name]:,}" for name in ("refusals", "then_restored", "then_refused")]
    return [row["policy"], row["slot"], *counts, "" if row["off_s"] is None else f"{row['off_s']:+.3g} s"]


def _stall(row: dict[str, Any]) -> list[str]:
    counts = [row["waiting"], row["sent"], row["refused"], row["timeout"] + row["failed"]]
    until = "somebody came back" if row["ended"] else "the end"
    return [_of(row), seconds(row["from_s"]), seconds(row["to_s"] - row["from_s"]), *map("{:,}".format, counts), until]


def _last(row: dict[str, Any]) -> list[str]:
    names = [str(row[name]) for name in ("client", "broker", "group", "kind", "policy", "attempts")]
    waited_s = None if row["waited_ns"] is None else row["waited_ns"] / 1e9
    return [*names, _time(waited_s), f"{_WHY[row['why']]}, {seconds(row[row['why'] + '_s'])}"]


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if rows:
        table(title, columns, rows[:_SHOWN])
        if len(rows) > _SHOWN:
            say(f"... and {len(rows) - _SHOWN} more: --json has all of them.")


def _by(back: list[dict[str, Any]], share: float) -> str:
    """The end of the first of the curve's steps by which so many were back."""
    step = next((row for row in back if row["share"] >= share - 1e-12), None)
    return "never" if step is None else seconds(step["until_s"])


def _of(row: dict[str, Any]) -> str:
    return f"{row['by']} {row['value']}".strip()


def _slowest(row: dict[str, Any]) -> tuple[float, ...]:
    return tuple(-1e18 if row[name] is None else -row[name] for name in ("t999_s", "t99_s", "t50_s"))


def _time(value: float | None) -> str:
    return "never" if value is None else seconds(value)
