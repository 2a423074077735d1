"""``metadctl features``: what the cluster switches on once all its nodes know it, and what is held back."""

from __future__ import annotations

from metad_wire.cluster import ClusterMap
from metad_wire.tables.feature import FEATURES, FeatureRecord

from ...client import Client
from ..grammar import Arguments, Commands
from ..printing import Printer
from .bounded import Bounded, Row, show


def add(commands: Commands) -> None:
    """Add the commands."""
    _, verbs = commands.family("features", "what is switched on once all nodes know it; or hold it back", _features)
    for name, help, command in (
        ("hold", "switch it not on, until it is allowed: nodes may go back to the version before", _hold),
        ("allow", "switch it on as soon as all nodes know it; that is for ever", _allow),
    ):
        verbs.add(name, help, command).add_argument("feature", metavar="FEATURE")


async def _features(m: Client, a: Arguments, printer: Printer) -> None:
    known = (await m.cluster.map()).map
    records = {record.feature: record async for record in m.features.list()}
    rows = [_row(name, records.get(name), known) for name in sorted({*FEATURES, *records})]
    show(printer, "features", Bounded(rows, False), lambda row: row, 0)


def _row(name: str, record: FeatureRecord | None, known: ClusterMap | None) -> Row:
    feature = FEATURES.get(name)
    nodes = [] if known is None else known.nodes
    knowing = [node.node_id for node in nodes if name in node.features]
    lacking = [node.node_id for node in nodes if name not in node.features]
    return {
        "feature": name,
        "state": "off" if record is None else record.state,
        "since": feature.since if feature is not None else record.since if record is not None else "",
        "known by": knowing,
        "unknown to": lacking,
        "about": feature.about if feature is not None else None,
    }


async def _hold(m: Client, a: Arguments, printer: Printer) -> None:
    await m.features.hold(a.feature)
    printer.one({"held": True})


async def _allow(m: Client, a: Arguments, printer: Printer) -> None:
    await m.features.allow(a.feature)
    printer.one({"allowed": True})
