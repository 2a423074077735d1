"""Audit: who has administered what, and who was refused; the newest first."""

from __future__ import annotations

import time
import typing

from metad_client.cli.tables.audit import audit_row
from metad_wire.tables.access import AuditEntry, AuditKind
from metad_wire.transport.credentials import principal_named

from ..forms import Field, filters
from ..frame import frame, label
from ..listings import READ_S, Listed
from ..pager import ROWS_MAX

KINDS: typing.Final = typing.get_args(AuditKind)


def page(who: str = "", kind: str = "", method: str = "") -> None:
    """Build it. ``who``: URI of a principal; ``method``: how the methods begin."""
    kind = kind if kind in KINDS else ""
    with frame("/audit", "Audit", "Who has administered what, and who was refused. The newest first.") as session:
        fields = [
            Field("who", "Principal", who, hint="metad://client/NAME"),
            Field("kind", "Kind", kind, ("", *KINDS)),
            Field("method", "Method begins with", method, hint="role."),
        ]
        filters("/audit", fields)
        if who and principal_named(who) is None:
            label("A principal is written as in metad://client/NAME or metad://broker/NAME.", "notice")
            return
        Listed[AuditEntry](
            session,
            "the audit trail",
            lambda m: m.audit.list(
                who=who,
                kind=kind,
                method_prefix=method,
                newest_first=True,
                page_size=ROWS_MAX + 1,
                deadline_s=READ_S,
            ),
            lambda line: audit_row(line, int(time.time() * 1_000)),
        )
