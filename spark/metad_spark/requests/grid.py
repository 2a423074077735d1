"""The runs of ``metad-perf calibration-grid`` as rows: what each process did in a run, and the CPU time that it took.
They are kept as Parquet, so that a fit can be made again from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from ..errors import CalibrationError
from .costs import REPLICAS, growth, memtables, working_set

SENT: Final = 0.6
"""What an item of a call costs a process of brokers, beside one of an answer: by a profile of the harness. Nearly every
item that is sent is restored, so a fit cannot tell the two apart."""
_META: Final = b"metad.calibration_grid"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One process in one run. Of a node: requests and items that it did as a leader, what they restored, what it turned
    away, and the entries and items of others that it followed; ``grown_items``: those that it led, times how many
    sessions more than few it leads (:func:`.costs.growth`), ``memtable_items`` times the memtables that the storm had
    filled before. Of a process of brokers: calls, attempts, clients that came back, their parts, ``grown_items``: the
    same for the clients that it has, and ``refusals``: its calls that were turned away, by its part of their
    clients."""

    run: str
    kind: str
    """load or storm."""
    seen: bool
    """Whether it may be used for a fit."""
    part: str
    """node or brokers."""
    seconds: float
    others_cores: float
    """That programs used which do not belong to the run."""
    cpu_s: float
    core_us: float = 0.0
    """How fast the cores were meanwhile (:attr:`.costs.Costs.core_us`); 0 in a row of before it was measured."""
    storm_s: float = 0.0
    """Of those seconds, how long a storm lasted for all but a thousandth of its clients; 0 if not so many came back."""
    requests: float = 0.0
    items: float = 0.0
    restored: float = 0.0
    parts: float = 0.0
    refusals: float = 0.0
    refused_items: float = 0.0
    entries: float = 0.0
    follower_entries: float = 0.0
    follower_items: float = 0.0
    grown_items: float = 0.0
    memtable_items: float = 0.0
    calls: float = 0.0
    attempts: float = 0.0
    back: float = 0.0

    @property
    def handled(self) -> float:
        """Items of answers, and those of calls at what they cost beside one of an answer."""
        return SENT * self.attempts + self.back


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of so many items that a node turned away while it did nothing else, and the CPU time of one."""

    items: int
    cpu_s: float
    core_us: float


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """All rows, and what belongs to the machine."""

    rows: list[Row]
    fsync_s: list[float]
    refused: list[Refused] = []
    cpus: int
    setting: str


def read(paths: Sequence[Path]) -> Grid:
    """Folders of ``metad-perf calibration-grid``, or Parquet files that were kept, joined. Raises CalibrationError."""
    if not paths:
        raise CalibrationError("no runs were given")
    grids = [_kept(path) if path.suffix == ".parquet" else _folder(path) for path in paths]
    first = grids[0]
    if any(one.cpus != first.cpus for one in grids):
        raise CalibrationError("the runs are of machines with different numbers of cores")
    return msgspec.structs.replace(
        first,
        rows=[row for one in grids for row in one.rows],
        fsync_s=sorted(time_s for one in grids for time_s in one.fsync_s),
        refused=[row for one in grids for row in one.refused],
        setting="; ".join(dict.fromkeys(one.setting for one in grids)),
    )


def keep(grid: Grid, path: Path) -> None:
    """Write it as a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    apart = {key: getattr(grid, key) for key in ("fsync_s", "refused", "cpus", "setting")}
    meta = msgspec.json.encode(apart)
    table = pa.Table.from_pylist([msgspec.to_builtins(row) for row in grid.rows])
    pq.write_table(table.replace_schema_metadata({_META: meta}), path, compression="zstd")


def _kept(path: Path) -> Grid:
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
        meta = msgspec.json.decode((table.schema.metadata or {})[_META])
        return msgspec.convert({"rows": table.to_pylist(), **meta}, Grid)
    except (OSError, ValueError, KeyError, TypeError) as why:
        raise CalibrationError(f"{path}: no grid that was kept: {str(why).partition(chr(10))[0]}") from None


def _folder(path: Path) -> Grid:
    rows: list[Row] = []
    fsync_s: list[float] = []
    refused: list[Refused] = []
    try:
        manifest = msgspec.json.decode((path / "grid.json").read_bytes())
        machine, versions = manifest["machine"], manifest["versions"]
        for file in sorted(path.glob("*.json")):
            made = msgspec.json.decode(file.read_bytes())
            kind = made.get("kind")
            if kind == "fsync":
                fsync_s += made["seconds"]
            elif kind == "refused":
                refused += [
                    Refused(items=made["items"], cpu_s=one["cpu_s"] / one["refused"], core_us=made["core_us"])
                    for one in made["rounds"]
                ]
            elif kind == "load":
                rows += _of_load(made)
            elif kind == "storm" and made["report"]["settings"]["trigger"] != "leader-kill":
                rows += _of_storm(made)
    except (OSError, msgspec.DecodeError, KeyError, TypeError, ZeroDivisionError) as why:
        raise CalibrationError(f"{path}: no runs of metad-perf calibration-grid: {type(why).__name__}: {why}") from None
    others = sum(row.others_cores for row in rows) / max(1, len(rows))
    beside = f"; other programs used {others:.2f} cores" if rows else ", what it takes to turn a request away"
    setting = (
        f"metad-perf calibration-grid --scale {manifest['scale']:g}, {manifest['begun']}, {machine['cpus']} CPUs"
        f" ({machine['cpu']}), Python {versions['python']}, metad {versions['metad-service']}{beside}"
    )
    return Grid(rows=rows, fsync_s=fsync_s, refused=refused, cpus=int(machine["cpus"]), setting=setting)


def _of_load(made: Mapping[str, Any]) -> list[Row]:
    nodes, run = made["nodes"], made["run"]
    groups = sum(node["leads"] for node in nodes.values())
    return [
        Row(
            run=made["name"],
            kind="load",
            seen=True,
            part="node",
            seconds=made["seconds"],
            others_cores=made["others_cores"],
            core_us=made["core_us"],
            cpu_s=node["cpu_s"],
            **_led(node, share, made["requests"], made["items"], made["items"] * run["restore"], 0.0, len(nodes)),
        )
        for node in nodes.values()
        for share in [node["leads"] / groups]
    ]


def _of_storm(made: Mapping[str, Any]) -> list[Row]:
    report = made["report"]
    account = report["accounts"]
    nodes, crews = account["nodes"], account["crews"]
    common: dict[str, Any] = {
        "run": made["name"],
        "kind": "storm",
        "seen": bool(made["seen"]),
        "seconds": account["seconds"],
        "storm_s": report["t999_s"] or 0.0,
        "others_cores": account["others_cores"],
        "core_us": account["core_us"],
    }
    refusals = sum(node["refused"] for node in nodes.values())
    retried = sum(report["sdk_retries_by_reason"].values())
    done = sum(crew["calls"] for crew in crews) + retried - refusals
    items = sum(crew["restored"] for crew in crews)
    kinds = report["settings"]["population"]["kinds"]
    share = sum(kind["share"] for kind in kinds)
    parts = sum(kind["share"] / share * (kind["subscriptions"] + kind["inflight"]) for kind in kinds)
    groups = report["data_groups"]
    rows = [
        Row(
            **common,
            part="node",
            cpu_s=node["cpu_s"],
            refusals=node["refused"],
            refused_items=report["rejected"] * node["refused"] / refusals if refusals else 0.0,
            grown_items=items
            * share
            * growth(working_set(report["settings"]["sessions"], report["returning"]) * share),
            memtable_items=items * share * memtables(items, len(nodes)) / 2,
            **_led(node, share, max(0.0, done), items, items, items * parts, len(nodes)),
        )
        for node in nodes.values()
        for share in [node["leads"] / groups]
    ]
    return rows + [
        Row(
            **common,
            part="brokers",
            cpu_s=crew["cpu_s"],
            calls=crew["calls"],
            refusals=refusals * crew["refused"] / max(1, report["rejected"]),
            attempts=crew["attempts"],
            back=crew["restored"],
            parts=crew["restored"] * parts,
            grown_items=crew["restored"] * growth(report["settings"]["sessions"] / len(crews)),
        )
        for crew in crews
    ]


def _led(
    node: Mapping[str, Any],
    share: float,
    requests: float,
    items: float,
    restored: float,
    parts: float,
    members: int,
) -> dict[str, Any]:
    """The part of a node in the work of all: it leads that share of the groups, and of the others it follows as many as
    each of the members does. Its log has the entries of both."""
    followed = (1 - share) * min(1.0, (REPLICAS - 1) / (members - 1)) if members > 1 else 0.0
    led = share / (share + followed) if share else 0.0
    return {
        "requests": requests * share,
        "items": items * share,
        "restored": restored * share,
        "parts": parts * share,
        "entries": node["entries"] * led,
        "follower_entries": node["entries"] * (1 - led),
        "follower_items": items * followed,
    }
