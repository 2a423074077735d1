"""Audit: who has administered what, who was refused, and whose life was ended by another. It is kept in ``metadata-0``.

The node that has answered a request notes it a moment later, and the answer does not wait for that. A node that dies
at once has not noted it; its log has the same (``audited``, ``client_denied``). What ends a life that was alive is
noted by the entry that ends it.

| kind | what | kept |
|---|---|---|
| ``admin`` | a request that needs the right ``admin``, whatever came of it | 8,000 |
| ``life`` | a registration that ended another life, which was alive; an administrator's fence | 2,000 |
| ``refused`` | a request that roles do not allow | 2,000 |

No kind takes the room of another. Where a kind is full, the oldest line goes of the principal that has most of them, so
none pushes out those of the others; where nobody is identified, that is the host. A node writes one line a second for
all that it refuses a principal: the line is about the first of these requests, and ``times`` says how many they are.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from .. import messages as m
from ..method import By, For, Lane
from ..table import Table
from ..text.fields import U32, U63

AuditKind = Literal["admin", "life", "refused"]
KEPT: Final[dict[AuditKind, int]] = {"admin": 8_000, "life": 2_000, "refused": 2_000}
"""Lines that are kept of each kind."""
NOTED_MAX = 100
"""Lines in one ``audit.note``."""
AUDIT_TEXT_BYTES_MAX = 1_024
"""Of ``names`` and of other texts of a line, as UTF-8: they are cut."""


class AuditEntry(m.Message, frozen=True):
    """A line of the audit trail."""

    id: str
    """Orders the lines as they were written: 16 hexadecimal digits. Empty in ``audit.note``."""
    when_ms: U63
    """When it was written, by the time of the log of ``metadata-0``, in Unix milliseconds."""
    kind: AuditKind
    node: str
    """Which node has answered."""
    who: str
    """The URI of a principal; empty where nobody is identified."""
    host: str
    """Its address, without the port."""
    method: str
    names: str = ""
    """What it is about: the first names, or what was not allowed."""
    items: U32 = 0
    failed: U32 = 0
    """Of the items."""
    outcome: str = "done"
    """Or the name of the error."""
    times: U32 = 1
    """How many requests the line is about."""
    late_ms: U63 = 0
    """For how long the node had it before it was written."""
    dropped: U32 = 0
    """Requests that this node has not noted since its line before, because it had no room for more."""


class AuditNote(m.Message, frozen=True):
    """From a node to the leader of ``metadata-0``: writes lines, in this order."""

    lines: Annotated[list[AuditEntry], Meta(max_length=NOTED_MAX)]


class AuditList(m.Message, frozen=True):
    """Lists lines."""

    since_ms: U63 = 0
    """Only lines that were written then or later, in Unix milliseconds."""
    until_ms: U63 = 0
    """Only lines that were written before that; 0: all."""
    who: str = ""
    """Only of this principal; empty: of all."""
    kind: str = ""
    """Only of this kind; empty: of all."""
    method_prefix: str = ""
    """Only of methods whose names start so."""
    newest_first: bool = False
    page: m.Page = m.Page()
    min_revisions: m.Revisions = []  # noqa: RUF012


AUDIT = Table("audit", kind="metadata", rows={"line": 0x0A}, record=AuditEntry, key=("id",), routing=())
AUDIT_NOTE = AUDIT.writes(
    0x0731, "note", AuditNote, m.WriteReply, Lane.SCANS, by=By.METADATA, whose=For.NODES, routed=False
)
AUDIT_LIST = AUDIT.lists(
    0x0732,
    "list",
    AuditList,
    AuditEntry,
    "What was administered, refused and ended, in the order in which it was written, or the newest first.",
    by=By.METADATA,
)
