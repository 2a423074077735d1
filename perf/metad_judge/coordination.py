"""What the log of a group may say of leases, wills and lives of brokers: every committed entry is looked at, in order.

Like :mod:`.written`, this believes nothing but the bytes of the entries. It keeps the rows that it needs, as each
group's log has written them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import msgspec

from metad.state.core.entry import Entry
from metad.state.core.part import Origin
from metad.storage.keys import GROUP_PREFIX_BYTES
from metad_wire.key import split_text, text
from metad_wire.messages import Kv, SessionOwner
from metad_wire.tables.cluster import GROUP
from metad_wire.tables.kv import KV
from metad_wire.tables.lease import LEASE, Lease
from metad_wire.tables.session import SESSION
from metad_wire.tables.will import WILL, WillClaimant, WillDue, WillKey

from .invariants import Violation

_LEASE: Final = LEASE.rows["lease"]
_LEASE_KEY: Final = LEASE.rows["key"]
_RECORD: Final = KV.rows["record"]
_WILL: Final = WILL.rows["due"]
_CLAIM: Final = WILL.rows["claim"]
_FENCE: Final = GROUP.rows["fence"]
_OWNER: Final = SESSION.rows["owner"]
_KEPT: Final = frozenset((_LEASE, _LEASE_KEY, _RECORD, _WILL, _CLAIM, _FENCE))
_decode_owner = msgspec.msgpack.Decoder(SessionOwner).decode
_decode_record = msgspec.msgpack.Decoder(Kv).decode
_decode_lease = msgspec.msgpack.Decoder(Lease).decode
_decode_claim = msgspec.msgpack.Decoder(WillClaimant).decode
_decode_will = msgspec.msgpack.Decoder(WillDue).decode

Life = tuple[str, int]
"""Of a broker: its name and epoch."""


class Ended(NamedTuple):
    """A lease that an entry has ended."""

    namespace: str
    lease: str
    expired: bool
    """By time, and not by its holder."""
    moment_s: float


class Hears:
    """Who is told what entries do. Does nothing by itself."""

    def lease_ended(self, ended: Ended) -> None:
        """A lease is no more."""

    def will_due(self, key: WillKey, will: WillDue) -> None:
        """A will has become due."""

    def will_gone(self, key: WillKey, claimant: WillClaimant) -> None:
        """A will that this life had claimed last is no longer due."""


class _At(NamedTuple):
    """Where a change is looked at: the entry, what it changes, and the group's rows behind it."""

    where: str
    rows: dict[bytes, bytes]
    changed: dict[bytes, tuple[bytes | None, bytes | None]]
    entry: Entry
    moment_s: float


class Coordination:
    """The judge of all groups of a cluster."""

    def __init__(self) -> None:
        self.hears: list[Hears] = []
        self._groups: dict[str, dict[bytes, bytes]] = {}

    def enter(self, group: str, index: int, entry: Entry, moment_s: float) -> None:
        """A replica applies an entry of a group, as the first one that does."""
        rows = self._groups.setdefault(group, {})
        changed: dict[bytes, tuple[bytes | None, bytes | None]] = {}
        for writes in entry:
            for stored, value in writes.items():
                key = stored[GROUP_PREFIX_BYTES:]
                if key[0] in _KEPT:
                    changed[key] = rows.get(key), value
                elif key[0] == _OWNER and value is not None and entry.origin == Origin.CLIENT:
                    owner = _decode_owner(value)
                    _check_life(f"{group}/{index}", rows, (owner.broker, owner.broker_epoch))
        for key, (_, value) in changed.items():
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = value
        if entry.origin == Origin.MIGRATION:
            return  # what was imported was looked at where it was written
        at = _At(f"{group}/{index}", rows, changed, entry, moment_s)
        for key, (before, after) in changed.items():
            if (look := _LOOKS.get(key[0])) is not None:
                look(self, at, key, before, after)

    # --- leases ------------------------------------------------------------------------------------------

    def _lease(self, at: _At, key: bytes, before: bytes | None, after: bytes | None) -> None:
        """A lease has as many keys as its row says, and takes all of them with it."""
        names = [*_under(at.rows, bytes((_LEASE_KEY,)) + key[1:])]
        if after is not None:
            lease = _decode_lease(after)
            if lease.keys != len(names):
                raise Violation("leases", f"{at.where}: {lease} has the keys {names}")
            return
        namespace, behind = split_text(key, 1)
        lease_name = split_text(key, behind)[0]
        left = [
            record.key
            for name in _under(at.rows, bytes((_RECORD,)) + text(namespace))
            if (record := _decode_record(at.rows[name])).lease == lease_name
        ]
        if names or left:
            raise Violation("leases", f"{at.where}: {lease_name} has ended, its keys have not: {names} {left}")
        if before is not None:
            ended = Ended(namespace, lease_name, at.entry.origin == Origin.EXPIRY, at.moment_s)
            for each in self.hears:
                each.lease_ended(ended)

    def _record(self, at: _At, key: bytes, before: bytes | None, after: bytes | None) -> None:
        """A key is attached to a lease that there is, and is one of its keys."""
        for value in (before, after):
            if value is None or not (record := _decode_record(value)).lease:
                continue
            lease = text(record.namespace) + text(record.lease)
            row = bytes((_LEASE_KEY,)) + lease + text(record.key)
            attached = after is not None and _decode_record(after).lease == record.lease
            if (row in at.rows) != attached:
                raise Violation("leases", f"{at.where}: {record.key} {record.lease} is attached: {not attached}")
            if attached and bytes((_LEASE,)) + lease not in at.rows:
                raise Violation("leases", f"{at.where}: {record.key} is attached to {record.lease}, which is no more")

    # --- wills -------------------------------------------------------------------------------------------

    def _due(self, at: _At, key: bytes, before: bytes | None, after: bytes | None) -> None:
        """A will goes once somebody has claimed it, and is never another one."""
        named = _will_key(key)
        if after is not None:
            if before is not None:
                raise Violation("wills", f"{at.where}: {named} is due twice")
            will = _decode_will(after)
            for each in self.hears:
                each.will_due(named, will)
            return
        claimed = at.changed.get(bytes((_CLAIM,)) + key[1:], (None, None))[0]
        if before is None or claimed is None:
            raise Violation("wills", f"{at.where}: {named} is gone, and nobody has claimed it")
        claim = _decode_claim(claimed)
        _check_life(at.where, at.rows, (claim.broker, claim.broker_epoch))
        for each in self.hears:
            each.will_gone(named, claim)

    def _claim(self, at: _At, key: bytes, before: bytes | None, after: bytes | None) -> None:
        """A claim counts on, is made by a life that lives, and takes nothing from one that holds."""
        if after is None:
            if bytes((_WILL,)) + key[1:] in at.rows:
                raise Violation("wills", f"{at.where}: the claim of {_will_key(key)} is forgotten")
            return
        last, claim = None if before is None else _decode_claim(before), _decode_claim(after)
        _check_life(at.where, at.rows, (claim.broker, claim.broker_epoch))
        if last is not None and claim.claims == last.claims:
            if claim != msgspec.structs.replace(last, until_ms=0):
                raise Violation("wills", f"{at.where}: {last} became {claim}")
            return
        if claim.claims != (0 if last is None else last.claims) + 1:
            raise Violation("wills", f"{at.where}: {claim} follows {last}")
        if last is not None and at.entry.now_ms < last.until_ms:
            is_next = last.broker == claim.broker and last.broker_epoch < claim.broker_epoch
            if not is_next and _allows(at.rows, (last.broker, last.broker_epoch)):
                raise Violation("wills", f"{at.where}: {claim} takes what {last} holds at {at.entry.now_ms}")


_Look = Callable[[Coordination, _At, bytes, "bytes | None", "bytes | None"], None]
_LOOKS: Final[dict[int, _Look]] = {
    _LEASE: Coordination._lease,
    _RECORD: Coordination._record,
    _WILL: Coordination._due,
    _CLAIM: Coordination._claim,
}


def _under(rows: Iterable[bytes], prefix: bytes) -> Iterable[bytes]:
    return (key for key in rows if key.startswith(prefix))


def _will_key(key: bytes) -> WillKey:
    return WillKey(*WILL.fields_of(key[1:], 3))


def _allows(rows: dict[bytes, bytes], life: Life) -> bool:
    fence: Any = rows.get(bytes((_FENCE,)) + text(life[0]))
    return fence is None or life[1] >= msgspec.msgpack.decode(fence)[0]


def _check_life(where: str, rows: dict[bytes, bytes], life: Life) -> None:
    """A life that is over writes nothing."""
    if not _allows(rows, life):
        raise Violation("fences", f"{where} is by epoch {life[1]} of {life[0]}, which is over")
