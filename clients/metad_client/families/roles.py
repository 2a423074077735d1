"""``m.roles``: what those may do to whom roles are given."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from metad_wire.tables.access import ROLE_LIST, Grant, Role

from ..namespaces.declared import _ROLE_PUT, _RoleDeclared
from ..requests.listing import Listing
from ..requests.wrong import sequence


class Roles(_RoleDeclared):
    """Roles by name. Only administrators change them. A ``*_many`` method reports errors per item in its result."""

    async def put(
        self, role: str, grants: Sequence[Grant], *, about: str = "", deadline_s: float | None = None
    ) -> None:
        """Make one role, or replace it. Raises ConflictError, InvalidItemError, QuotaExceededError."""
        await _ROLE_PUT.one(self._requests, Role(role, sequence("grants", grants, "Grant"), about), deadline_s)

    def list(self, prefix: str = "", *, page_size: int = 1000, deadline_s: float | None = None) -> AsyncIterator[Role]:
        """Roles whose names start with ``prefix``, in order, without those that are built in."""
        return _ROLES.of_group(self._requests, page_size, deadline_s, (), prefix=prefix)


_ROLES: Listing[Role] = Listing(ROLE_LIST)
