"""``m.principals``: who has which roles."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from metad_wire.methods import ACCESS_MAY
from metad_wire.tables.access import PRINCIPAL_LIST, BindingChange, Given, May, MayReply, PrincipalRoles, Wish

from ..namespaces.declared import _PRINCIPAL_CHANGE, _PRINCIPAL_PUT, _PrincipalDeclared
from ..requests.listing import Listing
from ..requests.wrong import sequence


class Principals(_PrincipalDeclared):
    """What principals may do, by the URIs of their certificates. Only administrators change it. A ``*_many`` method
    reports errors per item in its result."""

    async def put(
        self,
        principal: str,
        roles: Sequence[Given] = (),
        *,
        denied: bool = False,
        deadline_s: float | None = None,
    ) -> None:
        """Say what one principal may do, instead of what was said before. Raises NotFoundError, InvalidItemError,
        QuotaExceededError."""
        item = PrincipalRoles(principal, sequence("roles", roles, "Given"), denied)
        await _PRINCIPAL_PUT.one(self._requests, item, deadline_s)

    async def change(
        self,
        principal: str,
        give: Sequence[Given] = (),
        *,
        take: Sequence[Given] | None = (),
        denied: bool | None = None,
        deadline_s: float | None = None,
    ) -> None:
        """Give one principal roles, take some from it (None: all), and deny it everything or end that (None: as
        before). What is not named stays as it is, whoever changes it at the same time. Raises NotFoundError,
        InvalidItemError, QuotaExceededError."""
        taken = None if take is None else sequence("take", take, "Given")
        item = BindingChange(principal, sequence("give", give, "Given"), taken, denied)
        await _PRINCIPAL_CHANGE.one(self._requests, item, deadline_s)

    def list(
        self, prefix: str = "", *, page_size: int = 1000, deadline_s: float | None = None
    ) -> AsyncIterator[PrincipalRoles]:
        """What is said of principals that start with ``prefix``, in order."""
        return _PRINCIPALS.of_group(self._requests, page_size, deadline_s, (), prefix=prefix)

    async def may(
        self, wishes: Sequence[Wish] = (), *, principal: str = "", node: str = "", deadline_s: float | None = None
    ) -> MayReply:
        """Ask a node, by its name or any, what a principal may do, or this client. Raises PermissionDeniedError,
        InvalidRequestError."""
        return await self._requests.one(
            ACCESS_MAY, May(principal, sequence("wishes", wishes, "Wish")), deadline_s, node=node
        )


_PRINCIPALS: Listing[PrincipalRoles] = Listing(PRINCIPAL_LIST)
