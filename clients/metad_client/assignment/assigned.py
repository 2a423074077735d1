"""``m.assignments.connectors`` and the like: the resources of one kind, with what is usual for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from metad_wire.families.assignment import RESOURCES
from metad_wire.messages import Message, TableRecord
from metad_wire.tables.assignment import (
    Count,
    Election,
    Resource,
    ResourceCreate,
    ResourceKey,
    ResourceResize,
    Spread,
)

from ..errors import ConflictError, InvalidItemError, NotFoundError
from ..namespaces import Facade
from ..namespaces.declared import _ASSIGNMENT_CREATE, _ASSIGNMENT_DELETE, _ASSIGNMENT_RESIZE
from ..namespaces.tables import Records
from ..requests.requests import Requests
from ..requests.wrong import argument, sequence
from .kinds import Kind, check_resize, check_same, check_trim, repeated, resource_of, settings_key, settled, unfit

ATTEMPTS_MAX: Final = 10
"""Of what others are faster with each time."""


class Assigned(Facade):
    """Resources of one kind, by (tenant, resource). What does not fit the kind raises InvalidItemError: :mod:`.kinds`
    has what is usual, and what may be.

    Where the kind has settings (the tables ``connector``, ``topic``, ``shard``, ``queue``), the record of the same name
    belongs to the resource: :meth:`create` writes both, numbers that both have are kept alike, and :meth:`delete`
    deletes both. A call that has failed half-way may be repeated: it completes what is missing. All else is done with
    :class:`.assignments.Assignments`, by the name of the kind. ``deadline_s`` is that of each request, and None means
    the client's default.
    """

    def __init__(self, requests: Requests, kind: Kind) -> None:
        super().__init__(requests)
        self.kind = kind
        """What is declared of it."""
        self._resources: Records[Resource] = Records(requests, RESOURCES)
        self._settings: Records[Any] | None = None if kind.settings is None else Records(requests, kind.settings)

    def __repr__(self) -> str:
        return f"<resources of kind {self.kind.kind}>"

    async def create(
        self,
        tenant: str,
        resource: str,
        partitions: int | None = None,
        *,
        settings: Message | None = None,
        replication: int | None = None,
        election: Election | None = None,
        min_isr: int | None = None,
        copies: int | None = None,
        force_after_ms: int | None = None,
        repair_after_ms: int | None = None,
        spread: Spread | None = None,
        labels: Mapping[str, str] | None = None,
        attributes: Mapping[str, str] | None = None,
        replicas: Sequence[Sequence[str]] | None = None,
        deadline_s: float | None = None,
    ) -> None:
        """Make a resource with its partitions, and before it the record of its settings. What is there already, as it
        should be, stays: so the call may be repeated.

        ``settings``: None leaves the record that is there, if any. A number is the one that is named here; else the one
        of the settings, if that is not their default; else the usual one of the kind. ``replicas``: partition ``p`` is
        at ``replicas[p % len(replicas)]``. The rest means what it does in
        :meth:`.assignments.Assignments.create`. Raises InvalidItemError; ConflictError if the settings say something
        else already, or the resource has another election, replication or number of partitions, or is being deleted;
        NoPlaceError if too few brokers live."""
        known = "no settings" if self.kind.settings is None else f"a {self.kind.settings.record.__name__}"
        if settings is not None and (self.kind.settings is None or type(settings) is not self.kind.settings.record):
            raise InvalidItemError(f"settings: a {self.kind.kind} has {known}, not {type(settings).__name__}")

        def wanted(said: Message | None) -> ResourceCreate:
            return resource_of(
                self.kind,
                tenant,
                resource,
                settings=said,
                partitions=partitions,
                replication=replication,
                election=election,
                min_isr=min_isr,
                copies=copies,
                force_after_ms=force_after_ms,
                repair_after_ms=repair_after_ms,
                spread=spread,
                labels=labels,
                attributes=attributes,
                replicas=places_of(replicas),
            )

        wanted(settings)  # before anything is asked for
        await self._repeated(lambda: self._created(wanted, settings, deadline_s), tenant, resource)

    async def resize(
        self,
        tenant: str,
        resource: str,
        partitions: int | None = None,
        *,
        write_partitions: int | None = None,
        replicas: Sequence[Sequence[str]] | None = None,
        deadline_s: float | None = None,
    ) -> None:
        """Give a resource more partitions, or fewer as its kind allows; None: as many as it has. The queues of
        ``message_queues`` shrink in two calls: first ``write_partitions``, then, once the others are read to their end,
        ``partitions``. ``replicas``: new partition ``p`` is at ``replicas[p % len(replicas)]``. Raises NotFoundError,
        InvalidItemError, ShrinkError, ConflictError, NoPlaceError."""
        argument("partitions", partitions, Count | None)
        argument("write_partitions", write_partitions, Count | None)
        if partitions is None and write_partitions is None:
            raise InvalidItemError("partitions: say how many, or write_partitions")
        places = places_of(replicas)
        now = await self._found(tenant, resource, deadline_s)
        count = now.partitions if partitions is None else partitions
        check_resize(self.kind, now, count, write_partitions, places)
        item = ResourceResize(tenant, resource, self.kind.kind, count, write_partitions)
        if count > now.partitions and places:
            item = msgspec.structs.replace(item, replicas=repeated(places, range(now.partitions, count)))
        if self.kind.resizes == "shrinks" and count < now.partitions:
            first = msgspec.structs.replace(item, partitions=now.partitions, write_partitions=count)
            await _ASSIGNMENT_RESIZE.one(self._requests, first, deadline_s)
        await _ASSIGNMENT_RESIZE.one(self._requests, item, deadline_s)
        await self._repeated(lambda: self._follows(item, deadline_s), tenant, resource)

    async def trim(self, tenant: str, resource: str, first: int, *, deadline_s: float | None = None) -> None:
        """Delete the partitions before ``first``, in two phases: a segment is there until each broker that has it says
        that it has deleted it. Those before it may be gone already. Raises NotFoundError, InvalidItemError."""
        argument("first", first, Count)

        async def trimmed() -> bool:
            now = await self._found(tenant, resource, deadline_s)
            check_trim(self.kind, now, first)
            if first <= now.first_partition:
                return True
            names = (tenant, resource, self.kind.kind)
            item = ResourceResize(*names, now.partitions, now.write_partitions, first)
            return await _unless_others(_ASSIGNMENT_RESIZE.one(self._requests, item, deadline_s))

        await self._repeated(trimmed, tenant, resource)

    async def delete(self, tenant: str, resource: str, *, deadline_s: float | None = None) -> None:
        """Delete a resource in two phases, and the record of its settings at once. It is there until each broker that
        has some of it says that it has deleted that. Raises NotFoundError if neither is there."""
        argument("resource", resource, str)
        item = ResourceKey(tenant, resource, self.kind.kind)
        there = await self._record(item, deadline_s)
        try:
            await _ASSIGNMENT_DELETE.one(self._requests, item, deadline_s)
        except NotFoundError:
            if there is None:
                raise
        if self._settings is not None and there is not None and unfit(self.kind, there.record) is None:
            with suppress(NotFoundError):
                await self._settings.delete(*settings_key(self.kind, tenant, resource), deadline_s=deadline_s)

    # --- the two together -------------------------------------------------------------------------------------

    async def _created(
        self, wanted: Callable[[Message | None], ResourceCreate], settings: Message | None, deadline_s: float | None
    ) -> bool:
        """Make what is missing; whether nobody else was faster."""
        item = wanted(settings)
        there = await self._record(item, deadline_s)
        said = settings if settings is not None or there is None else there.record
        item = wanted(said)
        made = await self._resources.get(item.tenant, item.resource, item.kind, deadline_s=deadline_s)
        if made is not None:
            check_same(self.kind, made.record, item)
        numbers = item if made is None else made.record  # which may have been altered since
        if said is not None and not await self._written(said, numbers, there, deadline_s):
            return False
        return made is not None or await _unless_others(_ASSIGNMENT_CREATE.one(self._requests, item, deadline_s))

    async def _follows(self, item: ResourceResize, deadline_s: float | None) -> bool:
        """Let the settings have the new numbers; whether nobody else was faster."""
        there = await self._record(item, deadline_s)
        if there is None:
            return True
        now = await self._found(item.tenant, item.resource, deadline_s)
        return await self._written(there.record, now, there, deadline_s)

    async def _record(
        self, item: ResourceCreate | ResourceResize | ResourceKey, deadline_s: float | None
    ) -> TableRecord[Any] | None:
        if self._settings is None:
            return None
        key = settings_key(self.kind, item.tenant, item.resource)
        return await self._settings.get(*key, deadline_s=deadline_s)

    async def _written(
        self, said: Any, numbers: ResourceCreate | Resource, there: TableRecord[Any] | None, deadline_s: float | None
    ) -> bool:
        """Write the record of settings with the numbers of the resource, if it is not there; whether nobody else was
        faster. Raises InvalidItemError, ConflictError."""
        assert self._settings is not None
        assert self.kind.settings is not None
        if (why := unfit(self.kind, said)) is not None:
            raise InvalidItemError(why)
        name = f"{self.kind.settings.name} {numbers.tenant}/{numbers.resource}"
        record = settled(self.kind, said, numbers)
        key = tuple(getattr(record, field) for field in self.kind.settings.key)
        if key != settings_key(self.kind, numbers.tenant, numbers.resource):
            raise InvalidItemError(f"settings: those of {'/'.join(map(str, key))}, not of {name}")
        if there is not None and settled(self.kind, there.record, numbers) != record:
            fields = msgspec.structs.asdict(record)
            other = ", ".join(field for field, value in fields.items() if getattr(there.record, field) != value)
            raise ConflictError(f"{name}: there are settings already, with another {other}", current=there.version)
        if there is not None and there.record == record:
            return True
        version = 0 if there is None else there.version
        return await _unless_others(self._settings.put(record, expected_version=version, deadline_s=deadline_s))

    async def _found(self, tenant: str, resource: str, deadline_s: float | None) -> Resource:
        found = await self._resources.get(tenant, resource, self.kind.kind, deadline_s=deadline_s)
        if found is None:
            raise NotFoundError(f"there is no {self.kind.kind} {tenant}/{resource}")
        return found.record

    async def _repeated(self, attempt: Callable[[], Awaitable[bool]], tenant: str, resource: str) -> None:
        """Do something until nobody else was faster."""
        for _ in range(ATTEMPTS_MAX):
            if await attempt():
                return
        name = f"{self.kind.kind} {tenant}/{resource}"
        raise ConflictError(f"{name} was changed by others {ATTEMPTS_MAX} times meanwhile")


def places_of(replicas: Sequence[Sequence[str]] | None) -> list[list[str]] | None:
    """Replicas as they are sent. Raises InvalidRequestError."""
    if replicas is None:
        return None
    return [sequence("replicas", each, "str") for each in sequence("replicas", replicas, "sequences of str")]


async def _unless_others(write: Awaitable[object]) -> bool:
    """Whether a write was made, and not refused because of another one."""
    try:
        await write
    except ConflictError:
        return False
    return True
