"""Lines of the audit trail, as the node makes them that answers."""

from __future__ import annotations

from typing import Any

from metad_wire.methods import Method
from metad_wire.tables.access import AuditEntry, AuditKind

from ..state.cluster.audit import bounded
from .host import Source


def line_of(
    kind: AuditKind,
    node: str,
    source: Source,
    method: Method[Any, Any],
    names: str = "",
    *,
    items: int = 0,
    failed: int = 0,
    outcome: str = "done",
) -> AuditEntry:
    """The line about a request of a client. Texts that are too long are cut."""
    who = "" if source.principal is None else bounded(source.principal.uri)
    return AuditEntry("", 0, kind, node, who, bounded(source.host), method.name, bounded(names), items, failed, outcome)
