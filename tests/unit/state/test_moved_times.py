"""What crosses from one log to another is an age or a duration. No row that moves keeps a time of the log it was in, no
message between nodes has one, and nothing that is decided by a log's time looks at a calendar."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from state_rig import Rig

import metad
from metad.state.cluster.declarations import Declarations
from metad.state.core.due import DUE
from metad.state.core.plain import DeclaredRecords
from metad.state.moving.slot_migration import TIMES, translated
from metad.storage import keys
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import FenceItem, GroupFence, slot_bits
from metad_wire.declaration import Declaration, DeclaredField, DeclaredIndex, Record
from metad_wire.method import By, For
from metad_wire.methods import METHODS, encode
from metad_wire.tables import inflight as i
from metad_wire.tables import lease as le
from metad_wire.tables import moving_rows
from metad_wire.tables import retained as r
from metad_wire.tables import sequence as s
from metad_wire.tables import subscription as u
from metad_wire.tables import will as w
from metad_wire.tables.consumer import ConsumerJoin, JoinItem
from metad_wire.tables.declaration import DeclaredTable
from metad_wire.tables.session import SESSION
from metad_wire.tables.table import PlainTable, TableIndexStep
from metad_wire.text.fields import U63

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def data() -> Rig:
    """With every row of its kind."""
    rig = Rig()
    rig.write(methods.GROUP_FENCE, GroupFence([FenceItem("b", 1, 1)]))
    properties = m.SessionProperties(600, b"", m.Will("gone", delay_s=60))
    at_once = m.SessionProperties(600, b"", m.Will("gone"))
    takes = [m.SessionTakeoverItem("t", name, properties=at_once if name == "z" else properties) for name in "xyz"]
    rig.write(methods.SESSION_TAKEOVER, m.SessionTakeover("b", 1, takes))
    rig.write(methods.SUBSCRIPTION_ADD, u.SubscriptionAdd("b", 1, [u.Subscription("t", "x", "f")]))
    rig.write(methods.INFLIGHT_PUT, i.InflightPut("b", 1, [i.Inflight("t", "x", "1", b"")]))
    rig.advance(1_000)
    gone = [m.SessionDisconnectItem("t", name) for name in "yz"]
    rig.write(methods.SESSION_DISCONNECT, m.SessionDisconnect("b", 1, gone))
    rig.write(methods.WILL_CLAIM, w.WillClaim("b", 1, 30_000))
    rig.write(methods.RETAINED_PUT, r.RetainedPut([r.RetainedPutItem("t", "a", b".", expiry_interval_s=600)]))
    rig.write(methods.RETAINED_PUT, r.RetainedPut([r.RetainedPutItem("t", "for ever", b".")]))
    rig.write(methods.LEASE_GRANT, le.LeaseGrant([le.LeaseGrantItem("n", 60_000, "l")]))
    rig.write(methods.KV_PUT, m.KvPut([m.KvPutItem("n", "k", b"")], "l"))
    rig.write(methods.SEQUENCE_ADD, s.SequenceAdd([s.SequenceAddItem("n", "s")]))
    put_declared(rig)
    return rig


class Ordered(Record, frozen=True):
    """As a program declares it."""

    tenant: str
    topic: str
    storage: str = ""
    ends_ms: U63 = 0


def put_declared(rig: Rig) -> None:
    """A record of a declared table."""
    indexes = {"by_storage": ("tenant", "storage")}
    table = PlainTable(
        "ordered", number=7, kind="data", record=Ordered, key=("tenant", "topic"), indexes=indexes, expires="ends_ms"
    )
    verb = DeclaredRecords(table).verbs[methods.TABLE_PUT.code]
    fields = [DeclaredField("tenant", "str")]
    grown = Declaration("grown", rig.group.group_id.kind, fields, ["tenant"], 1, "", [DeclaredIndex("one", ["tenant"])])
    rig.group.machine.parts[Declarations].known.add(DeclaredTable("grown", 1_024, grown, 2, 1, 2, 0))
    rig.write(methods.TABLE_INDEX, TableIndexStep(1_024, 1, [], slot_bits(range(4))))
    record = Ordered("t", "a", ends_ms=rig.now_ms + 10 * DAY_MS)  # of the program's calendar, so it stays as it is
    rig.group.propose([(verb.command(verb.method.body(table.number, 4, [m.TablePutItem(record)])), None)], rig.now_ms)


def offset() -> Rig:
    """With every row of its kind."""
    rig = Rig("offset")
    rig.write(methods.CONSUMER_JOIN, ConsumerJoin([JoinItem("t", "g", 60_000, member="one")]))
    rig.write(methods.OFFSET_COMMIT, m.OffsetCommit([m.OffsetCommitItem("t", "h", "topic", 0, 1, 3)]))
    put_declared(rig)
    return rig


def moving(rig: Rig) -> dict[bytes, bytes | None]:
    rig.settle()
    prefix = rig.group.prefix
    found = rig.group.engine.scan(prefix, keys.after_prefix(prefix), 1_000)
    return {key[len(prefix) :]: value for key, value in found if keys.slot_of_key(key[len(prefix) :]) is not None}


class Ahead:
    """Puts whatever may be a time of a rig's log ahead, wherever it stands."""

    def __init__(self, rig: Rig) -> None:
        self.begin_ms = rig.now_ms - DAY_MS
        self.found = 0

    def time(self, number: int) -> int:
        if not self.begin_ms <= number <= self.begin_ms + 2 * DAY_MS:
            return number
        self.found += 1
        return number + HOUR_MS

    def raw(self, value: bytes) -> bytes:
        for at in range(len(value) - 7):
            number = int.from_bytes(value[at : at + 8], "big")
            if self.time(number) != number:
                return value[:at] + keys.u64(number + HOUR_MS) + value[at + 8 :]
        return value

    def any(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.any(each) for each in value]
        if isinstance(value, dict):
            return {self.any(key): self.any(each) for key, each in value.items()}
        if isinstance(value, bytes):
            return self.raw(value)
        return self.time(value) if isinstance(value, int) and not isinstance(value, bool) else value

    def stored(self, value: bytes) -> bytes:
        try:
            return encode(self.any(msgspec.msgpack.decode(value)))
        except msgspec.DecodeError:
            return self.raw(value)


@pytest.mark.parametrize("filled", [data, offset])
def test_every_time_of_the_log_is_that_of_the_targets(filled: Callable[[], Rig]) -> None:
    rig = filled()
    rows = moving(rig)
    here = {key[0] for key in rows}
    assert here == set(moving_rows(rig.group.group_id.kind)), "a row that moves is missing here: have it written above"
    moved = translated(rows, HOUR_MS)
    ahead = Ahead(rig)
    timed = set()
    for key, value in rows.items():
        before = ahead.found
        assert value is not None
        assert moved.pop(ahead.raw(key)) == ahead.stored(value), f"{key!r} has a time that stays as it is"
        if ahead.found > before:
            timed.add(key[0])
    assert not moved
    assert timed == {*TIMES, DUE} & here, "what is in the list of times has one in these rows"


def test_a_deletion_meets_the_row_that_was_sent() -> None:
    rows = moving(data())
    dues = {key: None for key in rows if key[0] == DUE}
    assert dues
    assert translated(dues, -HOUR_MS).keys() == translated({key: rows[key] for key in dues}, -HOUR_MS).keys()


def test_there_and_back_is_what_it_was() -> None:
    rows = moving(data())
    assert translated(translated(rows, HOUR_MS), -HOUR_MS) == rows
    assert translated(rows, 0) == rows


def test_what_is_connected_or_lasts_for_ever_has_no_time_there_either() -> None:
    key = bytes((SESSION.rows["owner"],)) + keys.text2("t", "x")
    row = encode(m.SessionOwner(True, "b", 1, 0))
    assert translated({key: row}, HOUR_MS) == {key: row}
    short = encode((False, "b", 1, 5_000))  # of an older version, and of a log that began long before
    assert translated({key: short}, -HOUR_MS) == {key: encode((False, "b", 1, 1))}


def test_fields_of_a_newer_version_stay() -> None:
    key = bytes((SESSION.rows["owner"],)) + keys.text2("t", "x")
    row = encode((False, "b", 1, 5, 6, 7, 0, 0, "new", [5]))
    assert translated({key: row}, 10) == {key: encode((False, "b", 1, 15, 6, 17, 0, 0, "new", [5]))}


# --- fences ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, 0, HOUR_MS])
def test_a_fence_is_as_old_in_every_group(ahead_ms: int) -> None:
    """The log that tells it is behind, or ahead."""
    rig = data()
    told = FenceItem("b", 2, rig.now_ms + ahead_ms - 5_000, age_ms=5_000)
    rig.write(methods.GROUP_FENCE, GroupFence([told]))
    rig.settle()
    (session,) = rig.read(methods.SESSION_GET, methods.SESSION_GET.body([m.SessionKey("t", "x")])).found
    assert (session.connected, session.disconnected_ms) == (False, rig.now_ms - 5_000)


# --- the class -------------------------------------------------------------------------------------------

_KNOWN = {
    ("GroupCommand", "sealed_ms"): "of an older source, which does not put its rows ahead",
    ("FenceItem", "at_ms"): "for older nodes; age_ms counts",
    ("FenceItem", "age_ms"): "an age",
    ("Due", "at_ms"): "of the very log that is asked",
    ("ResourceDone", "at_ms"): "of the very log that is asked",
    ("TenantEnd", "at_ms"): "put ahead by the mover",
    ("TenantEnd", "begins_ms"): "put ahead by the mover",
    ("TenantMove", "at_ms"): "of the very log whose entry it was",
    ("GroupReply", "now_ms"): "by which the mover knows how far the target is ahead",
    ("SessionDue", "at_ms"): "of the very log that is asked",
    ("OffsetExpireGroups", "before_ms"): "of the very log that is asked",
    ("WillExpire", "keep_ms"): "a duration",
}


def _times_in(kind: Any, seen: set[Any]) -> set[tuple[str, str]]:
    """Fields of a message, and of those in it, that are called a time."""
    found: set[tuple[str, str]] = set()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if kind in seen:
            return found
        seen.add(kind)
        for field in msgspec.structs.fields(kind):
            if field.name.endswith("_ms"):
                found.add((kind.__name__, field.name))
            found |= _times_in(field.type, seen)
        return found
    for inner in getattr(kind, "__args__", ()):
        found |= _times_in(inner, seen)
    return found


def test_no_message_to_a_group_has_a_time_that_nobody_has_thought_of() -> None:
    """Of those that nodes send each other. A new one is an age or a duration, or translated, or of one log only."""
    kinds = [
        kind
        for method in METHODS.values()
        if method.whose is For.NODES and method.by is By.GROUP
        for kind in (method.body, method.reply)
    ]
    assert set().union(*(_times_in(kind, set()) for kind in kinds)) == {*_KNOWN}


def test_nothing_but_the_log_time_looks_at_a_calendar() -> None:
    """A node's calendar says something about the next entry's time, and about nothing that is stored."""
    root = Path(metad.__file__).parent
    places = {
        path.relative_to(root).as_posix()
        for part in ("state", "control", "raft", "watch")
        for path in (root / part).rglob("*.py")
        if re.search(r"wall_ms|time\.time\(|datetime", path.read_text())
    }
    assert places == {"state/machine.py"}
