"""Wills that are due: each is claimed by one life of a broker at a time, and acknowledged once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from state_rig import Rig, command_of, contents, item_errors

from metad.state.core import verb as tables
from metad.state.core.part import Origin
from metad.state.core.slot_assignment import SlotAssignment
from metad.state.core.verb import SCAN_ROWS_MAX
from metad.state.registry import VERBS
from metad.state.session import wills
from metad.state.session.will_news import WillNews
from metad.state.session.wills import Waiting, waiting
from metad.storage import keys
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import FenceItem, GroupFence
from metad_wire.errors import FencedError, InvalidRequestError
from metad_wire.messages import Identity, Will
from metad_wire.tables.will import (
    WILL,
    ClaimedWill,
    DueWill,
    WillAcknowledge,
    WillClaim,
    WillClaimant,
    WillClaimReply,
    WillExpire,
    WillKey,
    WillList,
    WillRelease,
    WillWait,
    WillWaitReply,
)

LAGS = (0, 3)  # applied at once, or only after three more entries: the overlay must not show
LEASE_MS = 5_000
AMNESTY_MS = 10_000


def claimable(rig: Rig, broker: str = "b2", epoch: int = 1) -> list[str]:
    """What a look says that a broker could claim."""
    rig.settle()
    found = rig.read(methods.WILL_LIST, WillList(claimable_by=m.Owner(broker, epoch))).found
    return [one.client_id for one in found]


def awaited(rig: Rig, broker: str = "b2", epoch: int = 1, **more: Any) -> list[str]:
    """What one who looks whether it may wait finds, when it goes on behind the cursors."""
    rig.settle()
    found: list[str] = []
    cursor = b""
    while True:
        asked = WillWait(broker, epoch, cursor=cursor, **more)
        reply: WillWaitReply = rig.read(methods.WILL_WAIT, asked)
        if not reply.claimable:
            if not reply.cursor:
                return found
            cursor = reply.cursor
            continue
        first = WillClaim("nobody", 1, LEASE_MS, 1, more.get("tenant"), reply.cursor)
        found.append(behind(rig, first))
        cursor = keys.text2("acme", found[-1]) + keys.text(f"{1:016x}")


def behind(rig: Rig, body: WillClaim) -> str:
    """The client of the first will behind a cursor, whoever has it."""
    prefix = keys.table_prefix(rig.group.prefix, WILL.rows["due"])
    rows = rig.group.engine.scan(prefix + body.cursor + b"\0", keys.after_prefix(prefix), 1)
    return str(WILL.fields_of(rows[0][0][len(prefix) :], 3)[1])


def test_who_looks_whether_to_wait_finds_the_first_will_that_may_be_claimed(rig: Rig) -> None:
    """And a claim behind the cursor that it is told finds it."""
    make_due(rig, "a", "b", "c")
    assert awaited(rig) == claimable(rig) == ["a", "b", "c"]
    claim(rig, "b1", 5, limit=2)
    assert awaited(rig) == ["c"]
    assert awaited(rig, "b1", 6) == ["a", "b", "c"], "its next life"
    assert awaited(rig, tenant="acm") == []
    reply = rig.read(methods.WILL_WAIT, WillWait("b2", 1, tenant="acme"))
    assert reply.others
    assert clients(claim(rig, "b2", 1, cursor=reply.cursor)) == ["c"]
    assert awaited(rig) == []
    assert rig.read(methods.WILL_WAIT, WillWait("b2", 1)).others
    assert not rig.read(methods.WILL_WAIT, WillWait("b2", 1, tenant="acm")).others
    rig.advance(LEASE_MS)
    assert awaited(rig) == ["a", "b", "c"]


def test_a_look_past_many_wills_that_are_claimed_goes_on_behind_a_cursor(rig: Rig) -> None:
    names = [f"c{number:04}" for number in range(2 * SCAN_ROWS_MAX + 10)]
    make_due(rig, *names)
    for _ in range(2):
        claim(rig, "b1", 5, limit=SCAN_ROWS_MAX, cursor=cursor_of(rig))
    rig.settle()
    reply = rig.read(methods.WILL_WAIT, WillWait("b2", 1))
    assert not reply.claimable
    assert reply.cursor
    assert awaited(rig) == names[2 * SCAN_ROWS_MAX :]


def cursor_of(rig: Rig) -> bytes:
    """Where a claim finds something."""
    rig.settle()
    reply = rig.read(methods.WILL_WAIT, WillWait("b2", 1))
    if not reply.claimable:
        reply = rig.read(methods.WILL_WAIT, WillWait("b2", 1, cursor=reply.cursor))
    assert reply.claimable
    return bytes(reply.cursor)


class Ear:
    """Hears what becomes of wills."""

    def __init__(self, rig: Rig) -> None:
        self.heard: list[tuple[Any, ...]] = []
        rig.group.machine.parts[WillNews].hears.append(self)

    def claimable(self, revision: int, tenant: str, key: bytes) -> None:
        self.heard.append((revision, tenant, WILL.fields_of(key, 3)[1]))

    def claimed(self, revision: int, broker: str, count: int, *, more: bool) -> None:
        self.heard.append((revision, broker, count, more))

    def take(self) -> list[tuple[Any, ...]]:
        heard, self.heard = self.heard, []
        return heard


def test_news_tell_what_commands_make_of_wills_and_from_which_revision_on(rig: Rig) -> None:
    rig.settle()
    ear = Ear(rig)
    will = m.SessionProperties(60, b"", Will("gone", delay_s=0))
    taken = [m.SessionTakeoverItem("acme", name, True, will) for name in "ab"]
    rig.write(methods.SESSION_TAKEOVER, m.SessionTakeover("b0", 1, taken))
    assert ear.take() == []
    items = [m.SessionDisconnectItem("acme", name) for name in "ab"]
    revision = rig.write(methods.SESSION_DISCONNECT, m.SessionDisconnect("b0", 1, items)).revisions[0].index
    assert ear.take() == [(revision, "acme", "a"), (revision, "acme", "b")]
    rig.settle()  # who hears of it looks once it is applied
    reply = claim(rig, "b1", 5, limit=1)
    assert ear.take() == [(reply.revisions[0].index, "b1", 1, True)]
    reply = claim(rig, "b1", 5, limit=2)
    assert ear.take() == [(reply.revisions[0].index, "b1", 1, False)]
    assert claim(rig, "b2", 5).claimed == []
    assert [told[1:] for told in ear.take()] == [("b2", 0, False)]
    key = WillKey(reply.claimed[0].tenant, reply.claimed[0].client_id, reply.claimed[0].id)
    revision = rig.write(methods.WILL_RELEASE, WillRelease("b1", 5, [key])).revisions[0].index
    assert ear.take() == [(revision, "acme", "b")]
    rig.write(methods.WILL_ACKNOWLEDGE, WillAcknowledge("b1", 5, [key]))
    assert ear.take() == []


def test_a_look_finds_what_a_claim_would(rig: Rig) -> None:
    make_due(rig, "a", "b", "c")
    assert claimable(rig) == ["a", "b", "c"]
    claim(rig, "b1", 5, limit=2)
    assert claimable(rig) == ["c"]
    assert claimable(rig, "b1", 5) == ["c"]
    assert claimable(rig, "b1", 6) == ["a", "b", "c"], "its next life"
    rig.advance(LEASE_MS - 1)
    assert claimable(rig) == ["c"]
    rig.advance(1)
    assert claimable(rig) == ["a", "b", "c"]
    assert clients(claim(rig, "b2", 1)) == ["a", "b", "c"]
    assert claimable(rig, "b1", 5) == []
    rig.write(methods.GROUP_FENCE, GroupFence([FenceItem("b2", 2, rig.now_ms)]))
    assert claimable(rig, "b1", 5) == ["a", "b", "c"], "the claimant's life is over"
    rig.now_ms -= 10_000_000
    assert claimable(rig, "b1", 5) == ["a", "b", "c"]


def expire(rig: Rig, *names: str, keep_ms: int = 60_000) -> int:
    """How many were dropped."""
    items = [WillKey("acme", name, f"{1:016x}") for name in names]
    reply = rig.write(methods.WILL_EXPIRE, WillExpire(items, keep_ms))
    assert reply.errors == []
    return int(reply.dropped)


def test_wills_that_nobody_publishes_are_dropped_when_they_have_waited_for_long(rig: Rig) -> None:
    make_due(rig, "old", "claimed", "given up", "left")
    rig.advance(59_999)
    claim(rig, "b1", 5, limit=2)
    make_due(rig, "new")
    before = claimable(rig)
    assert expire(rig, "old", "claimed", "given up", "left", "new", "nobody") == 0
    assert claimable(rig) == before, "it is too early"
    rig.advance(1)
    assert expire(rig, "old", "claimed", "given up", "left", "new", "nobody", "old") == 2
    assert (claimable(rig), claimable(rig, "b1", 6)) == (["new"], ["claimed", "given up", "new"])
    rig.advance(LEASE_MS)
    assert expire(rig, "claimed", "given up", "new") == 2, "claims that are over"
    assert expire(rig, "claimed", "given up", "new") == 0
    rig.settle()
    rows = {key[3] for key, _ in contents(rig.group.engine)}
    assert WILL.rows["claim"] not in rows
    assert claimable(rig) == ["new"]
    assert VERBS[methods.WILL_EXPIRE.code].origin is Origin.EXPIRY


def test_wills_are_kept_during_an_amnesty() -> None:
    rig = Rig()
    make_due(rig, "a")
    rig.advance(100_000)
    assert expire(rig, "a") == 0
    rig.advance(AMNESTY_MS)
    assert expire(rig, "a") == 1


class Due:
    """Stands for the view of a command that makes wills due: what it writes is applied at once."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.group = rig.group.prefix
        self.now_ms = rig.now_ms
        self.parts = rig.group.machine.parts
        self.revision = rig.group.machine.revision
        self.writes: dict[bytes, bytes | None] = {}
        self.beside = 0

    def writes_of(self, row: int) -> dict[bytes, bytes | None]:
        return self.writes

    def apply(self) -> None:
        for engine in (self._rig.group.engine, self._rig.group.follower_engine):
            engine.write(self.writes)


def make_due(rig: Rig, *clients: str, tenant: str = "acme", number: int = 1, payload: bytes = b"gone") -> None:
    view: Any = Due(rig)
    for client in clients:
        wills.due_will(view, tenant, client, Will(f"will/{client}", payload), number)
    view.apply()


def judging(lag: int = 0) -> Rig:
    """A group that has led for long enough to judge by its time."""
    rig = Rig(lag=lag)
    claim(rig, "nobody", 1)
    rig.advance(AMNESTY_MS)
    return rig


@pytest.fixture(params=LAGS, ids=lambda lag: f"lag{lag}")
def rig(request: pytest.FixtureRequest) -> Rig:
    return judging(request.param)


def claim(rig: Rig, broker: str = "b1", epoch: int = 5, **more: Any) -> WillClaimReply:
    reply: WillClaimReply = rig.write(methods.WILL_CLAIM, WillClaim(broker, epoch, LEASE_MS, **more))
    assert len(reply.claimed) == len(reply.wills)
    return reply


def clients(reply: WillClaimReply) -> list[str]:
    return [one.client_id for one in reply.claimed]


def key(client: str, number: int = 1, tenant: str = "acme") -> WillKey:
    return WillKey(tenant, client, f"{number:016x}")


def acknowledge(rig: Rig, *names: str, broker: str = "b1", epoch: int = 5) -> dict[int, str]:
    body = WillAcknowledge(broker, epoch, [key(name) for name in names])
    return item_errors(rig.write(methods.WILL_ACKNOWLEDGE, body))


def listed(rig: Rig, **filters: Any) -> list[DueWill]:
    rig.settle()
    found: list[DueWill] = rig.read(methods.WILL_LIST, WillList(**filters)).found
    return found


def fence(rig: Rig, broker: str, least_epoch: int) -> None:
    rig.write(methods.GROUP_FENCE, GroupFence([FenceItem(broker, least_epoch, rig.now_ms)]))


def test_a_will_is_claimed_published_and_acknowledged(rig: Rig) -> None:
    make_due(rig, "a", "b")
    reply = claim(rig)
    assert reply.claimed == [ClaimedWill("acme", "a", key("a").id, 1), ClaimedWill("acme", "b", key("b").id, 1)]
    assert [due is not None and due.will for due in reply.wills] == [Will("will/a", b"gone"), Will("will/b", b"gone")]
    assert reply.cursor == b""
    assert clients(claim(rig, "b2", 1)) == []
    assert clients(claim(rig)) == []  # nor does the claimant get them twice
    assert acknowledge(rig, "a", "nobody", "a") == {1: "not_found", 2: "not_found"}
    assert acknowledge(rig, "a") == {0: "not_found"}
    (left,) = listed(rig)
    assert (left.client_id, left.will, left.due_ms) == ("b", Will("will/b", b"gone"), reply.wills[0].due_ms)  # type: ignore[union-attr]
    assert left.claimant == WillClaimant("b1", 5, left.claimant.until_ms if left.claimant else 0, 1)
    assert acknowledge(rig, "b") == {}
    assert listed(rig) == []
    assert not [row for row, _ in contents(rig.group.engine) if row[3] in WILL.rows.values()]


def test_only_the_claimant_acknowledges(rig: Rig) -> None:
    make_due(rig, "a", "b")
    assert acknowledge(rig, "a") == {0: "conflict"}  # nobody has claimed it
    assert clients(claim(rig, limit=1)) == ["a"]
    assert clients(claim(rig, "b2", 1)) == ["b"]
    assert acknowledge(rig, "a", "b", broker="b2", epoch=1) == {0: "conflict"}
    assert acknowledge(rig, "a", epoch=4) == {0: "conflict"}
    assert acknowledge(rig, "a") == {}
    assert listed(rig) == []


def test_a_claim_ends_with_its_time_and_not_before(rig: Rig) -> None:
    make_due(rig, "a")
    assert clients(claim(rig)) == ["a"]
    rig.advance(LEASE_MS - 1)
    assert clients(claim(rig, "b2", 1)) == []
    rig.advance(1)
    reply = claim(rig, "b2", 1)
    assert reply.claimed == [ClaimedWill("acme", "a", key("a").id, 2)]  # the second who has it
    assert acknowledge(rig, "a") == {0: "conflict"}
    assert acknowledge(rig, "a", broker="b2", epoch=1) == {}


def test_who_is_late_may_still_acknowledge_what_nobody_else_has_claimed(rig: Rig) -> None:
    make_due(rig, "a")
    claim(rig)
    rig.advance(10 * LEASE_MS)
    assert acknowledge(rig, "a") == {}
    assert clients(claim(rig, "b2", 1)) == []


def test_no_claim_is_late_within_an_amnesty(rig: Rig) -> None:
    make_due(rig, "a")
    claim(rig)
    rig.settle()
    rig.group.machine.forget()  # another has led meanwhile
    rig.group.machine.time.forget()
    rig.advance(LEASE_MS)
    assert clients(claim(rig, "b2", 1)) == []
    rig.advance(AMNESTY_MS)
    assert clients(claim(rig, "b2", 1)) == ["a"]


def test_the_claims_of_a_life_that_is_over_are_void_at_once(rig: Rig) -> None:
    make_due(rig, "a", "b")
    claim(rig)
    assert clients(claim(rig, "b1", 6, limit=1)) == ["a"]  # its next life
    assert acknowledge(rig, "a") == {0: "conflict"}
    fence(rig, "b1", 7)
    assert clients(claim(rig, "b2", 1)) == ["a", "b"]
    with pytest.raises(FencedError):
        acknowledge(rig, "a", epoch=6)
    with pytest.raises(FencedError):
        claim(rig, epoch=6)


def test_a_released_will_is_for_whoever_asks(rig: Rig) -> None:
    make_due(rig, "a", "b")
    claim(rig)
    body = WillRelease("b1", 5, [key("a"), key("none")])
    assert item_errors(rig.write(methods.WILL_RELEASE, body)) == {1: "not_found"}
    assert claim(rig, "b2", 1).claimed == [ClaimedWill("acme", "a", key("a").id, 2)]
    assert item_errors(rig.write(methods.WILL_RELEASE, body)) == {0: "conflict", 1: "not_found"}


def test_the_wills_of_a_client_are_several(rig: Rig) -> None:
    make_due(rig, "a", number=255)
    make_due(rig, "a", number=256)
    reply = claim(rig)
    assert [one.id for one in reply.claimed] == [f"{255:016x}", f"{256:016x}"]
    body = WillAcknowledge("b1", 5, [key("a", 256)])
    assert rig.write(methods.WILL_ACKNOWLEDGE, body).errors == []
    assert [one.id for one in listed(rig)] == [f"{255:016x}"]


def test_a_claim_of_a_tenant_leaves_the_others_alone(rig: Rig) -> None:
    make_due(rig, "a", tenant="t")
    make_due(rig, "a", tenant="t\0")
    make_due(rig, "a", tenant="t2")
    assert [one.tenant for one in claim(rig, tenant="t").claimed] == ["t"]
    assert [one.tenant for one in claim(rig).claimed] == ["t\0", "t2"]


def test_a_retry_of_a_claim_has_the_same_wills(rig: Rig) -> None:
    make_due(rig, "a", "b")
    body, identity = WillClaim("b1", 5, LEASE_MS), Identity(1, 1, 1)
    first = rig.write(methods.WILL_CLAIM, body, identity)
    assert acknowledge(rig, "b") == {}
    again = rig.write(methods.WILL_CLAIM, body, Identity(1, 1, 1, 5))
    assert again.claimed == first.claimed
    assert again.wills == [first.wills[0], None]
    rig.settle()
    assert len(rig.group.log[-1]) < 1_000


def test_wills_are_not_in_the_log_again(rig: Rig) -> None:
    make_due(rig, *(f"c{n}" for n in range(10)), payload=bytes(20_000))
    assert len(rig.write(methods.WILL_CLAIM, WillClaim("b1", 5, LEASE_MS), Identity(1, 1, 1)).wills) == 10
    assert len(rig.group.log[-1]) < 5_000


def test_a_broker_with_a_long_name_is_refused(rig: Rig) -> None:
    make_due(rig, "a")
    with pytest.raises(InvalidRequestError, match="257 bytes"):
        claim(rig, "b" * 257)


@pytest.mark.parametrize("limit", [1, 3, 100])
@pytest.mark.parametrize("rows_max", [2, 256])
def test_all_are_found_behind_the_cursors(limit: int, rows_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wills, "SCAN_ROWS_MAX", rows_max)
    rig = judging()
    names = [f"c{n:02}" for n in range(20)]
    make_due(rig, *names)
    found: list[str] = []
    cursor = b""
    for _ in range(100):
        reply = claim(rig, limit=limit, cursor=cursor)
        assert len(reply.claimed) <= limit
        found += clients(reply)
        cursor = reply.cursor
        if not cursor:
            break
    assert found == names


def test_a_claim_takes_few_large_wills_at_once() -> None:
    rig = judging()
    make_due(rig, *(f"c{n}" for n in range(8)), payload=bytes(m.VALUE_BYTES_MAX))
    first = claim(rig)
    assert clients(first) == ["c0"]
    assert clients(claim(rig, cursor=first.cursor)) == ["c1"]
    assert clients(claim(rig)) == []  # it looks at c0 only, and says where to go on
    assert claim(rig).cursor


def test_wills_of_slots_that_are_not_held_are_left_alone() -> None:
    rig = judging()
    make_due(rig, "a", "b")
    held = rig.group.machine.parts[SlotAssignment]
    slot = WILL.slot_of(WILL.key_of(("acme", "a", key("a").id)))
    held._mask[slot] = False
    held.holds_all = False
    assert clients(claim(rig)) == ["b"]


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_a_listing_shows_every_will_once_and_in_order(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "SCAN_ROWS_MAX", 3)
    rig = judging()
    for tenant in ("", "acme", "t"):
        make_due(rig, "a", "a\0", "b", tenant=tenant)
    claim(rig, tenant="acme")
    rig.settle()
    found: list[DueWill] = []
    cursor = b""
    for _ in range(100):
        reply = rig.read(methods.WILL_LIST, WillList(page=m.Page(limit, cursor)))
        found += reply.found
        cursor = reply.cursor
        if not cursor:
            break
    assert [(one.tenant, one.client_id) for one in found] == [
        (tenant, client) for tenant in ("", "acme", "t") for client in ("a", "a\0", "b")
    ]
    assert {one.tenant for one in found if one.claimant is not None} == {"acme"}
    assert [one.client_id for one in listed(rig, tenant="acme", client_id_prefix="a")] == ["a", "a\0"]


# --- whatever brokers do ---------------------------------------------------------------------------------

BROKERS = st.tuples(st.sampled_from(["b1", "b2", "b3"]), st.integers(1, 2))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("due"), st.sampled_from(["a", "b", "c"])),
        st.tuples(st.just("claim"), BROKERS, st.integers(1, 3)),
        st.tuples(st.just("acknowledge"), BROKERS),
        st.tuples(st.just("forget"), BROKERS),  # it dies, or is late: what it has claimed it never acknowledges
        st.tuples(st.just("fence"), st.sampled_from(["b1", "b2", "b3"])),
        st.tuples(st.just("time"), st.sampled_from([1, LEASE_MS // 2, LEASE_MS, 3 * LEASE_MS])),
        st.tuples(st.just("lead"), st.none()),
        st.tuples(st.just("restart"), st.none()),
    ),
    max_size=40,
)


@settings(max_examples=100, deadline=None)
@given(steps=steps, lag=st.sampled_from(LAGS))
def test_each_will_is_acknowledged_once_and_none_is_lost(steps: list[tuple[Any, ...]], lag: int) -> None:
    """Nobody gets a will whose claimant is neither late nor over. Whatever brokers, leaders and time did: in the end
    each will that was due has been acknowledged once."""
    rig = judging(lag)
    numbers: dict[str, int] = {}
    due: set[tuple[str, str]] = set()
    done: list[tuple[str, str]] = []
    holders: dict[tuple[str, str], tuple[tuple[str, int], int]] = {}  # who has claimed a will last, until when
    kept: dict[tuple[str, int], list[ClaimedWill]] = {}
    fences: dict[str, int] = {}

    def try_claim(life: tuple[str, int], limit: int) -> int:
        try:
            reply = claim(rig, *life, limit=limit)
        except FencedError:
            assert life[1] < fences.get(life[0], 0)
            return 0
        now_ms, past_ms = rig.group.machine._view.now_ms, rig.group.machine._view.past_ms
        for one in reply.claimed:
            name = one.client_id, one.id
            assert name in due
            assert name not in done
            if name in holders:
                (broker, epoch), until_ms = holders[name]
                over = epoch < fences.get(broker, 0) or (broker == life[0] and epoch < life[1])
                assert over or until_ms <= past_ms, "it was taken away from who has it"
            holders[name] = life, now_ms + LEASE_MS
            kept.setdefault(life, []).append(one)
        return len(reply.claimed)

    def try_acknowledge(life: tuple[str, int]) -> None:
        mine = kept.pop(life, [])
        keys = [WillKey(one.tenant, one.client_id, one.id) for one in mine]
        try:
            reply = rig.write(methods.WILL_ACKNOWLEDGE, WillAcknowledge(*life, keys))
        except FencedError:
            assert life[1] < fences.get(life[0], 0)
            return
        wrong = item_errors(reply)
        for at, one in enumerate(mine):
            name = one.client_id, one.id
            assert wrong.get(at) in (None, "conflict", "not_found")
            if at not in wrong:
                assert holders[name][0] == life
                done.append(name)

    for step, what, *more in steps:
        match step:
            case "due":
                numbers[what] = numbers.get(what, 0) + 1
                make_due(rig, what, number=numbers[what])
                due.add((what, f"{numbers[what]:016x}"))
            case "claim":
                try_claim(what, *more)
            case "acknowledge":
                try_acknowledge(what)
            case "forget":
                kept.pop(what, None)
            case "fence":
                fences[what] = 2
                fence(rig, what, 2)
            case "time":
                rig.advance(what)
            case "lead":
                rig.settle()
                rig.group.machine.forget()
            case "restart":
                rig.settle()
                rig.group.restart()
    claim(rig, "last", 1)  # a new leader begins to judge
    for _ in range(200):
        rig.settle()
        rig.advance(AMNESTY_MS + LEASE_MS)
        if try_claim(("last", 1), 3) == 0 and not listed(rig):
            break
        try_acknowledge(("last", 1))
    assert sorted(done) == sorted(due)
    assert len(done) == len(set(done))


def test_what_waits_is_counted_for_the_status(rig: Rig) -> None:
    def counts(limit: int = 100) -> Waiting:
        rig.settle()
        return waiting(rig.group.machine.reader, rig.now_ms, limit)

    assert counts() == (0, 0, 0, False)
    make_due(rig, "a", "b", "c")
    since_ms = listed(rig)[0].due_ms
    rig.advance(1_000)
    assert counts() == (3, 3, since_ms, False)
    assert counts(2) == (2, 2, since_ms, True)
    claim(rig, limit=2)
    assert counts() == (3, 1, since_ms, False)
    acknowledge(rig, "a")
    assert counts() == (2, 1, since_ms, False)
    rig.advance(LEASE_MS + 1)
    assert counts() == (2, 2, since_ms, False)
    claim(rig, "b2", 1)
    assert counts() == (2, 0, 0, False)
    fence(rig, "b2", 2)  # and its claims are over with its life
    assert counts() == (2, 2, since_ms, False)


def test_a_will_that_is_longer_than_a_reply_may_be_is_claimed_alone(rig: Rig) -> None:
    """Else nobody could ever publish it, nor what is behind it."""
    make_due(rig, "a", "b")
    found: list[str] = []
    for _ in range(2):
        command = command_of(methods.WILL_CLAIM, WillClaim("b1", 5, LEASE_MS))
        command.reply_bytes_max = 1
        (outcome,) = rig.group.propose([(command, None)], rig.now_ms)
        found += clients(methods.WILL_CLAIM.decode_reply(outcome))
    assert found == ["a", "b"]
