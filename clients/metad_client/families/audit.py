"""``m.audit``: what was administered, refused and ended."""

from __future__ import annotations

from collections.abc import AsyncIterator

from metad_wire.tables.access import AUDIT_LIST, AuditEntry

from ..namespaces import Facade
from ..requests.listing import Listing


class Audit(Facade):
    """The lines of the audit trail. It is bounded: the oldest ones go."""

    def list(
        self,
        *,
        since_ms: int = 0,
        until_ms: int = 0,
        who: str = "",
        kind: str = "",
        method_prefix: str = "",
        newest_first: bool = False,
        page_size: int = 1000,
        deadline_s: float | None = None,
    ) -> AsyncIterator[AuditEntry]:
        """Lines in the order in which they were written, or the newest first. Times are Unix milliseconds: of lines
        that were written from ``since_ms`` on and before ``until_ms`` (0: no bound). ``who``: the URI of a principal.
        ``kind``: admin, life or refused. Raises PermissionDeniedError."""
        return _LINES.of_group(
            self._requests,
            page_size,
            deadline_s,
            (),
            since_ms=since_ms,
            until_ms=until_ms,
            who=who,
            kind=kind,
            method_prefix=method_prefix,
            newest_first=newest_first,
        )


_LINES: Listing[AuditEntry] = Listing(AUDIT_LIST)
