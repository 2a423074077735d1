"""Both sides are compared row by row, and an import is cut over.

The comparison reads each key of the source with what metad has for it, then the notes of keys that the source has no
longer, then the keys of metad that no note is of. The cut does it while the writers are stopped. It ends the import
only where both sides are equal and the source is the same behind the comparison as before it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec

from metad_client import Client, ConflictError, NotFoundError, QuotaExceededError
from metad_wire.messages import Kv, KvKey, KvPutItem
from metad_wire.tables.lease import LEASE_TTL_MS_MAX, LEASE_TTL_MS_MIN

from .copying import Copy, Progress, Seen, Tell, ahead, beside, is_behind, once
from .source import BATCH_ROWS, Head, ImportFailedError, Row, Source
from .target import Refuse, Target

SHOWN_MAX: Final = 1_000
"""Differences that are kept for the output; all are counted."""
_LEASE: Final = "etcd-"
"""How the names of leases begin that a cut grants."""


class Difference(msgspec.Struct, frozen=True):
    """A key that is not the same on both sides."""

    what: str
    """``missing`` (metad lacks it), ``differs``, ``deleted`` (the source has it no longer) or ``only_in_metad``."""
    key: str
    """Of the source."""
    namespace: str
    name: str
    """Of the key of metad."""
    not_copied: bool
    """The source has changed it since the last copy: `copy` brings it over."""


class Found(msgspec.Struct):
    """What a comparison has found."""

    revision: int
    same: int = 0
    missing: int = 0
    differs: int = 0
    deleted: int = 0
    only_in_metad: int = 0
    not_copied: int = 0
    """Of the differences, those that the next `copy` brings over."""
    refused: int = 0
    leased: int = 0
    """Keys of etcd with a lease: `cut` copies them."""
    differences: list[Difference] = []

    def count(self, others: bool) -> int:
        """How many differences there are. ``others``: keys that only metad has are none."""
        return self.missing + self.differs + self.deleted + (0 if others else self.only_in_metad)


class Verify:
    """Compares."""

    def __init__(self, m: Client, source: Source, target: Target, refuse: Refuse, tell: Tell) -> None:
        self._m = m
        self._source = source
        self._target = target
        self._refuse = refuse
        self._tell = tell
        self._spaces: set[str] = set()
        self._behind = False
        self.head = Head(0, 0, 0)
        """Of the source, when the last comparison began."""

    async def run(self) -> Found:
        """Compare both sides as they are now. Raises SourceError."""
        self.head = head = await self._source.head()
        self._behind = is_behind(self._target.state, head)
        found = Found(head.revision)
        self._spaces = {self._target.names.into}
        done = 0
        async with contextlib.aclosing(ahead(self._source.rows(head, b""))) as batches:
            async for pairs in beside(batches, self._target.notes(b"")):
                await self._rows([row for _, row, _ in pairs if row is not None], found)
                await self._gone([key.decode() for key, row, _ in pairs if row is None], found)
                done += len(pairs)
                self._tell(Progress("rows compared", done, head.keys))
        for space in sorted(self._spaces):
            await self._others(space, found)
        return found

    async def _rows(self, rows: list[Row], found: Found) -> None:
        """Compare rows of the source with their keys of metad."""
        carried: list[Row] = []
        for row in rows:
            if code := self._target.names.fault(row, self._target.ledger):
                self._refuse(row.key, code, {"bytes": row.size, "revision": row.revision})
                found.refused += 1
            elif row.lease:
                found.leased += 1
            else:
                carried.append(row)
        read = [row for row in await self._source.filled(carried) if row is not None]
        keys = [row.key.decode() for row in read]
        for key, row, kv in zip(keys, read, await self._target.there(keys), strict=True):
            self._spaces.add(self._target.names.target(key).namespace)
            if kv is not None and kv.value == row.value:
                found.same += 1
            else:
                not_copied = self._behind and row.revision > self._target.state.revision
                self._differs(found, "missing" if kv is None else "differs", key, not_copied)

    async def _gone(self, keys: list[str], found: Found) -> None:
        """Look whether keys that the source has no longer are still in metad."""
        for key, kv in zip(keys, await self._target.there(keys), strict=True):
            self._spaces.add(self._target.names.target(key).namespace)
            if kv is not None:
                # Nobody knows when it went: since the copy, if anything has changed since then.
                self._differs(found, "deleted", key, self._behind)

    async def _others(self, space: str, found: Found) -> None:
        """Find keys of a namespace that the import did not write."""
        async for some in _batched(self._m.kv.scan(space, self._target.names.shared_prefix)):
            origins = [self._target.names.origin(KvKey(kv.namespace, kv.key)) for kv in some]
            named = [origin for origin in origins if origin is not None]
            noted = dict(zip(named, await self._target.known(named), strict=True))
            for kv, origin in zip(some, origins, strict=True):
                if kv.lease.startswith(_LEASE):
                    continue  # a cut that was cut off has copied it
                if origin is None or noted[origin] is None:
                    self._differs(found, "only_in_metad", origin or kv.key, False, kv)

    def _differs(self, found: Found, what: str, key: str, not_copied: bool, kv: Kv | None = None) -> None:
        setattr(found, what, getattr(found, what) + 1)
        found.not_copied += not_copied
        if len(found.differences) < SHOWN_MAX:
            at = self._target.names.target(key) if kv is None else KvKey(kv.namespace, kv.key)
            found.differences.append(Difference(what, key, at.namespace, at.key, not_copied))


class DiffersError(ImportFailedError):
    """Both sides differ."""

    def __init__(self, message: str, found: Found) -> None:
        super().__init__(message)
        self.found = found


class CutOver(msgspec.Struct):
    """What a cut has done."""

    found: Found
    stopped_ms: int
    """For how long writers had to be stopped: from the last change of the source until the import was done."""
    leased: int
    """Keys that were copied with a lease."""


class Cut:
    """Ends an import. ``say``: is told a line that an operator must see."""

    def __init__(
        self,
        m: Client,
        source: Source,
        target: Target,
        copy: Copy,
        verify: Verify,
        refuse: Refuse,
        say: Callable[[str], None],
    ) -> None:
        self._m = m
        self._source = source
        self._target = target
        self._copy = copy
        self._verify = verify
        self._refuse = refuse
        self._say = say
        self._left: dict[int, int] = {}
        self._granted: set[KvKey] = set()

    async def run(self, *, quiet_s: float, deadline_s: float, others: bool) -> CutOver:
        """Catch up, wait until the source has not changed for ``quiet_s``, compare, and end. ``others``: keys that only
        metad has are no difference. Raises DiffersError, and ImportFailedError if the source goes on changing for
        ``deadline_s``."""
        await self._copy.follow(once(await self._source.head()))
        self._say("metad has all but the newest changes: stop the writers of the source now")
        told_s = time.monotonic()
        while True:
            await self._settle(told_s + deadline_s, quiet_s)
            found = await self._verify.run()
            head, state = await self._source.head(), self._target.state
            if head[:2] != self._verify.head[:2] or is_behind(state, head):
                self._say("the source still changes")
                continue
            if differing := found.count(others):
                raise DiffersError(f"{differing} keys differ: nothing is cut over", found)
            break
        leased = await self._leases(head) if found.leased else 0
        state.phase = "done"
        state.stopped_ms = round(1_000 * (time.monotonic() - max(told_s, self._copy.changed_s)))
        await self._target.keep()
        return CutOver(found, state.stopped_ms, leased)

    async def _settle(self, until_s: float, quiet_s: float) -> None:
        """Follow until the source has not changed for so long."""
        late = False

        def ends(seen: Seen) -> bool:
            nonlocal late
            late = time.monotonic() > until_s
            return late or (seen.caught_up and seen.quiet_s >= quiet_s)

        await self._copy.follow(ends)
        if late:
            raise ImportFailedError("the source goes on changing: stop its writers, and cut again")

    async def _leases(self, head: Head) -> int:
        """Copy the keys that have a lease; how many there were."""
        copied = 0
        async for rows in self._source.rows(head, b""):
            by_lease: dict[KvKey, list[Row]] = {}
            for row in rows:
                if row.lease and not self._target.names.fault(row, self._target.ledger):
                    space = self._target.names.target(row.key.decode()).namespace
                    by_lease.setdefault(KvKey(space, f"{_LEASE}{row.lease:x}"), []).append(row)
            for lease, some in by_lease.items():
                copied += await self._leased(lease, some)
        return copied

    async def _leased(self, lease: KvKey, rows: list[Row]) -> int:
        """Copy keys of one namespace and lease."""
        of = rows[0].lease
        if of not in self._left:
            self._left[of] = await self._source.left_ms(of)
        keys = [row.key.decode() for row in rows]
        kept: list[bytes] = []
        items: list[KvPutItem] = []
        for key, row, kv in zip(keys, rows, await self._target.there(keys), strict=True):
            at = self._target.names.target(key)
            if not self._left[of]:
                self._refuse(row.key, "lease_over", {})
            elif kv is not None and not self._target.overwrite and (kv.value, kv.lease) != (row.value, lease.key):
                self._refuse(row.key, "conflict", {"namespace": at.namespace, "name": at.key})
            else:
                kept.append(row.key)
                items.append(KvPutItem(at.namespace, at.key, row.value or b"", 0 if kv is None else kv.version))
        if items and lease not in self._granted:
            ttl_ms = max(LEASE_TTL_MS_MIN, min(LEASE_TTL_MS_MAX, self._left[of]))
            with contextlib.suppress(ConflictError):  # an earlier cut has granted it
                await self._m.leases.grant(lease.namespace, ttl_ms, lease.key, holder="metadctl import etcd")
            self._granted.add(lease)
        errors = (await self._m.kv.put_many(items, lease=lease.key)).errors if items else {}
        for position, error in errors.items():
            if not isinstance(error, QuotaExceededError | NotFoundError | ConflictError):
                raise error
            code = {QuotaExceededError.code: "lease_full", NotFoundError.code: "lease_over"}.get(error.code, "conflict")
            self._refuse(kept[position], code, {"namespace": lease.namespace})
        return len(items) - len(errors)


async def _batched(kvs: AsyncIterator[Kv]) -> AsyncIterator[list[Kv]]:
    """The same in lists."""
    some: list[Kv] = []
    async for kv in kvs:
        some.append(kv)
        if len(some) == BATCH_ROWS:
            yield some
            some = []
    if some:
        yield some
