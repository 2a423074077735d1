"""``m.backups``: what copies the state of nodes while they serve, and puts a copy into a new cluster, or a tenant into
another. For programs that do so in their own way; ``metadctl backup``, ``restore`` and ``tenants move`` do it whole."""

from __future__ import annotations

from metad_wire import methods
from metad_wire.cluster import Done
from metad_wire.operator import backup as bak
from metad_wire.operator.moving import (
    TenantCopied,
    TenantCopy,
    TenantPut,
    TenantPutReply,
    TenantStep,
    TenantStepped,
)

from ..namespaces import Facade


class Backups(Facade):
    """Checkpoints of nodes, the logs behind them, restores, and tenants that move. ``deadline_s`` counts from now, and
    None means the client's default."""

    async def checkpoint(
        self, node: str, id: str, *, stale: bool = False, deadline_s: float | None = None
    ) -> bak.BackupBegun:
        """Have a node keep its files as they are now, under an id of yours, until :meth:`drop`. ``stale``: also if a
        group has no leader that says how far it is. Raises ConflictError, NoRoomError, UnsupportedError."""
        return await self._requests.one(methods.BACKUP_BEGIN, bak.BackupBegin(id, stale), deadline_s, node=node)

    async def read(
        self, node: str, id: str, name: str, offset: int, size: int, *, deadline_s: float | None = None
    ) -> bytes:
        """A piece of a file that a node keeps, of 1 MiB at most. Raises NotFoundError."""
        body = bak.BackupRead(id, name, offset, size)
        return (await self._requests.one(methods.BACKUP_READ, body, deadline_s, node=node)).data

    async def drop(self, node: str, id: str, *, backup: str = "", deadline_s: float | None = None) -> Done:
        """Have a node drop what it keeps under an id. ``backup``: the name of the backup that is complete with it,
        which the audit trail then has, and ``metadctl status`` shows."""
        return await self._requests.one(methods.BACKUP_END, bak.BackupEnd(id, backup), deadline_s, node=node)

    async def log(
        self, node: str, group: str, after: int, size: int, *, deadline_s: float | None = None
    ) -> bak.BackupEntries:
        """The entries of a group's log behind one index, as a node has applied them: so many bytes, 1 MiB at most.
        Raises LogCutError, NotReplicaError."""
        body = bak.BackupLog(group, after, size)
        return await self._requests.one(methods.BACKUP_LOG, body, deadline_s, node=node)

    async def restore(self, group: str, step: bak.Restore, *, deadline_s: float | None = None) -> bak.Restored:
        """Take a step of putting a backup into a group of a new cluster. Raises ConflictError."""
        return await self._requests.one(methods.GROUP_RESTORE, step, deadline_s, group=group)

    async def move_step(self, group: str, step: TenantStep, *, deadline_s: float | None = None) -> TenantStepped:
        """Take a step of moving a tenant to another cluster, in a group; ``metadctl tenants move`` takes all. Raises
        ConflictError."""
        return await self._requests.one(methods.GROUP_MOVE_TENANT, step, deadline_s, group=group)

    async def move_rows(self, group: str, rows: TenantPut, *, deadline_s: float | None = None) -> TenantPutReply:
        """Put rows of a tenant that comes into a group. Raises ConflictError, StaleRouteError."""
        return await self._requests.one(methods.GROUP_PUT_TENANT, rows, deadline_s, group=group)

    async def copy_rows(self, group: str, page: TenantCopy, *, deadline_s: float | None = None) -> TenantCopied:
        """Read a page of the rows of a tenant that leaves, in a group. Raises ConflictError."""
        return await self._requests.one(methods.GROUP_COPY_TENANT, page, deadline_s, group=group)
