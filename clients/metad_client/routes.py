"""Routes: the records of one resource as this process knows them, so that nobody has to ask metad for each message.

A client finds the broker to ask by such a copy, which may be old. So it says with its request by which revision of a
record it has chosen, and who is asked compares that with its own copy: with an older one the request is refused as
``stale_route``, and the client reads the resource again, in one call. With a newer one it is the broker whose copy is
old. So the two find each other without a watch, however many clients there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Generic, TypeVar

from metad_wire.messages import Message, TableRecord

from .errors import InvalidRequestError, NotFoundError, StaleRouteError, TooLargeError
from .namespaces.tables import Records

Record = TypeVar("Record", bound=Message)
Rest = tuple[str | int, ...]

RECORDS_MAX: Final = 100_000
"""Of one resource."""
OWN_READ_S: Final = 0.1
"""How often requests of clients make a copy read anew, at most: they may name revisions that there never were."""


class Route(Generic[Record]):
    """The records of a table whose keys begin with the same fields: a topic, or all segments of a shard::

        route = await m.routes(SEGMENTS, "acme", "orders")
        while True:
            found = route[number]  # a client; kept until a broker refuses it
            try:
                await send(found.record.leader, found.mod_revision, message)
                break
            except StaleRouteError:
                await route.refresh()

        found = await route.check(revision, number)  # the broker that is asked; raises StaleRouteError
        serves = found.record.leader == me

    It is a copy: who serves by it needs a lease or a fence as well. Of partitions that metad assigns,
    :meth:`metad_client.Assignments.route` makes one that chooses and asks by itself.
    """

    def __init__(self, records: Records[Record], table: str, key: Rest, names: Sequence[str]) -> None:
        """``names``: the fields behind ``key`` in the keys of the records."""
        self._source, self._table, self._names = records, table, names
        self.key = key
        """The fields that all records have in common."""
        self._records: dict[Rest, TableRecord[Record]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._begun = 0  # readings
        self._waits = False  # whether the one that is under way has not begun yet
        self._begun_s = float("-inf")
        self._now_s = asyncio.get_running_loop().time

    def __repr__(self) -> str:
        return f"<route of {self._table} {'/'.join(map(str, self.key))}: {len(self._records)} records>"

    @property
    def records(self) -> Mapping[Rest, TableRecord[Record]]:
        """The records by the rest of their key, an empty one if the resource is one record. A refresh makes another
        mapping, so this one stays as it is."""
        return MappingProxyType(self._records)

    def get(self, *rest: str | int) -> TableRecord[Record] | None:
        """The record with this rest of its key, as it was when it was read last; None if there was none. Its
        ``mod_revision`` is what a request names: a later write has a greater one, also where the record was deleted
        and made again, or its slot has moved."""
        return self._records.get(rest)

    def __getitem__(self, rest: str | int | Rest) -> TableRecord[Record]:
        """As :meth:`get`. Raises NotFoundError."""
        found = self._records.get(rest if isinstance(rest, tuple) else (rest,))
        if found is None:
            raise NotFoundError(f"there is no {self._table} {'/'.join(map(str, self.key))}: {rest}")
        return found

    async def refresh(self, *, deadline_s: float | None = None) -> None:
        """Read the resource again, as it is at some moment after this call. Those who call meanwhile share a reading.
        Raises what a listing does, and TooLargeError if there are over 100,000 records; the copy stays as it was."""
        wanted = self._begun + 1  # what is under way may have read before the write that the caller has heard of
        while True:
            if self._reading is None or self._reading.done():  # whose callback has not run yet
                self._waits = True
                self._reading = asyncio.create_task(self._read(deadline_s), name=f"reading {self!r}")
                self._reading.add_done_callback(self._was_read)
            mine = self._begun + self._waits >= wanted
            try:
                await asyncio.shield(self._reading)
            except Exception:
                if mine:
                    raise
            if mine:
                return

    def _was_read(self, reading: asyncio.Task[None]) -> None:
        if self._reading is reading:
            self._reading = None
        if not reading.cancelled():
            reading.exception()  # nobody may be left who waits for it

    async def _read(self, deadline_s: float | None) -> None:
        self._begun, self._begun_s, self._waits = self._begun + 1, self._now_s(), False
        self._records = await self._listed(deadline_s)

    async def _listed(self, deadline_s: float | None) -> dict[Rest, TableRecord[Record]]:
        found: dict[Rest, TableRecord[Record]] = {}
        async for one in self._source.list(*self.key, deadline_s=deadline_s):
            found[tuple(getattr(one.record, name) for name in self._names)] = one
            if len(found) > RECORDS_MAX:
                raise TooLargeError(f"{self._table} {'/'.join(map(str, self.key))} has over {RECORDS_MAX} records")
        return found

    async def check(self, revision: int, *rest: str | int, deadline_s: float | None = None) -> TableRecord[Record]:
        """For who is asked: the record by which a client has chosen, if it is the one that is known here. A revision
        that is not known yet makes this copy read itself anew, ten times a second at most. Raises StaleRouteError, with
        the ``current`` revision, or 0 if there is no such record."""
        if not isinstance(revision, int) or revision < 0:
            raise InvalidRequestError(f"revision: expected a number from 0 on, got {revision!r}")
        found = self._records.get(rest)
        if found is None or found.mod_revision < revision:
            if self._reading is not None or self._now_s() - self._begun_s >= OWN_READ_S:
                await self.refresh(deadline_s=deadline_s)
            found = self._records.get(rest)
        if found is None or found.mod_revision != revision:
            current = 0 if found is None else found.mod_revision
            raise StaleRouteError(
                f"{self._table} {'/'.join(map(str, (*self.key, *rest)))}: revision {revision} is not the one that is "
                f"known here, {current}: refresh the route",
                current=current,
            )
        return found
