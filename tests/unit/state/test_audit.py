"""The audit trail: which lines are kept, and for whom."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from state_rig import Rig

from metad.control.audit import line_of
from metad.state.cluster import audit
from metad_wire.errors import MetadError
from metad_wire.messages import Identity, Page
from metad_wire.methods import AUDIT_LIST, AUDIT_NOTE, BROKER_CHANGE
from metad_wire.tables.access import KEPT, AuditEntry, AuditList, AuditNote
from metad_wire.tables.broker import BrokerChange, BrokerRegister, BrokerStep

OPS, APP, OTHER = "metad://admin/ops", "metad://client/app", "metad://client/other"


def line(kind: Any = "admin", who: str = OPS, names: str = "", **fields: Any) -> AuditEntry:
    return AuditEntry("", 0, kind, "n1", who, "10.0.0.7", "role.put", names, **fields)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, most in {"admin": 8, "life": 4, "refused": 6}.items():
        monkeypatch.setitem(KEPT, kind, most)


def note(rig: Rig, *lines: AuditEntry, identity: Identity | None = None) -> None:
    rig.write(AUDIT_NOTE, AuditNote([*lines]), identity)


def listed(rig: Rig, limit: int = 1_000, **asked: Any) -> list[AuditEntry]:
    """All pages."""
    found: list[AuditEntry] = []
    cursor = b""
    while True:
        reply = rig.read(AUDIT_LIST, AuditList(**asked, page=Page(limit, cursor)))
        found += reply.found
        assert len(reply.found) <= limit
        if not reply.cursor:
            return found
        cursor = reply.cursor


def names(rig: Rig, **asked: Any) -> list[str]:
    return [one.names for one in listed(rig, **asked)]


def test_lines_are_dated_by_the_log_and_in_order() -> None:
    rig = Rig("metadata")
    note(rig, line(names="a"), line(names="b"))
    first_ms = rig.now_ms
    rig.advance(5_000)
    last = line(names="c", waited_ms=70, dropped=3, times=9, items=2, failed=1, outcome="conflict")
    note(rig, last)
    found = listed(rig)
    assert [one.names for one in found] == ["a", "b", "c"]
    assert [one.id for one in found] == ["0000000000000001", "0000000000000002", "0000000000000003"]
    assert [one.when_ms for one in found] == [first_ms, first_ms, rig.now_ms]
    assert found[2] == msgspec.structs.replace(last, id=found[2].id, when_ms=found[2].when_ms)


def test_lines_have_the_time_of_a_calendar_and_never_an_earlier_one_than_before() -> None:
    """The log's time stands still while a group has no leader, and a quiet cluster that was restarted in turns was
    minutes behind: `--since 60s` found nothing of what was done a moment before."""
    rig = Rig("metadata")
    note(rig, line(names="a"))
    begin_ms = rig.now_ms
    for ahead_ms in (3_600_000, 1_000, 3_700_000):
        rig.now_ms = begin_ms + ahead_ms
        note(rig, line(names="b"))
    rig.group.restart()
    rig.now_ms = begin_ms
    note(rig, line(names="c"))
    assert [one.when_ms - begin_ms for one in listed(rig)] == [0, 3_600_000, 3_600_000, 3_700_000, 3_700_000]


def test_a_listing_is_of_a_time_a_principal_a_kind_or_a_method_in_either_order() -> None:
    rig = Rig("metadata")
    begin_ms = rig.now_ms
    for number in range(20):
        kind, who = ("admin", OPS) if number % 2 else ("refused", APP)
        method = "role.put" if number % 4 < 2 else "kv.get"
        note(rig, msgspec.structs.replace(line(kind, who, str(number)), method=method))
        rig.advance(1_000)
    numbers = [str(number) for number in range(20)]
    for limit in (1, 3, 1_000):
        assert names(rig, limit=limit) == numbers
        assert names(rig, limit=limit, newest_first=True) == numbers[::-1]
        for first in (False, True):
            way = -1 if first else 1
            found = names(rig, limit=limit, newest_first=first, since_ms=begin_ms + 5_000, until_ms=begin_ms + 9_000)
            assert found == ["5", "6", "7", "8"][::way]
            assert names(rig, limit=limit, newest_first=first, who=APP) == numbers[::2][::way]
            assert names(rig, limit=limit, newest_first=first, kind="admin") == numbers[1::2][::way]
            found = names(rig, limit=limit, newest_first=first, method_prefix="kv.", kind="admin")
            assert found == ["3", "7", "11", "15", "19"][::way]


def test_a_page_looks_at_few_lines_and_goes_on_behind_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "SCAN_ROWS_MAX", 4)
    rig = Rig("metadata")
    note(rig, *(line(who=OPS if number % 10 else APP, names=str(number)) for number in range(30)))
    assert names(rig, who=APP) == ["0", "10", "20"]
    assert names(rig, who=APP, newest_first=True) == ["20", "10", "0"]
    assert rig.read(AUDIT_LIST, AuditList(who=OTHER)).cursor, "there may be more behind these"


@pytest.mark.usefixtures("small")
def test_no_kind_takes_the_room_of_another() -> None:
    rig = Rig("metadata")
    note(rig, *(line(names=f"a{number}") for number in range(5)), line("life", APP, "l0"))
    for number in range(50):
        note(rig, line("refused", f"metad://client/{number}", str(number)))
    assert names(rig, kind="admin") == [f"a{number}" for number in range(5)]
    assert names(rig, kind="life") == ["l0"]
    assert names(rig, kind="refused") == [str(number) for number in range(44, 50)], "the oldest go"


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", KEPT)
@pytest.mark.parametrize("batch", [1, 3, 7])
def test_no_principal_takes_the_room_of_others(kind: Any, batch: int) -> None:
    """Whoever has the most loses his oldest line, also in a batch of many lines."""
    rig, most = Rig("metadata", lag=2), KEPT[kind]
    note(rig, line(kind, OTHER, "o1"), line(kind, OPS, "p1"))
    for number in range(0, 84, batch):
        note(rig, *(line(kind, APP, str(one)) for one in range(number, number + batch)))
    rig.settle()
    assert names(rig, kind=kind) == ["o1", "p1", *(str(one) for one in range(84 - most + 2, 84))]
    note(rig, line(kind, OTHER, "o2"), line(kind, OTHER, "o3"), line(kind, OTHER, "o4"))
    rig.settle()
    kept = [one.names for one in listed(rig, kind=kind)]
    assert len(kept) == most
    assert "p1" in kept
    assert kept[-1] == "o4"


@pytest.mark.usefixtures("small")
def test_hosts_share_where_nobody_is_identified() -> None:
    rig = Rig("metadata")
    note(rig, line("refused", "", "one"))
    for number in range(20):
        note(rig, msgspec.structs.replace(line("refused", "", str(number)), host="10.9.9.9"))
    assert names(rig)[0] == "one"
    assert len(names(rig)) == KEPT["refused"]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("then", ["restart", "follower", "lose"])
def test_whoever_leads_next_knows_the_same(then: str) -> None:
    """From its rows, from the entries of others, or without what never came to be."""
    rig = Rig("metadata")
    note(rig, line("refused", OTHER, "o1"))
    for number in range(9):
        note(rig, line("refused", APP, str(number)))
    assert names(rig) == ["o1", "4", "5", "6", "7", "8"]
    rig.lag = 5
    note(rig, line("refused", APP, "9"))
    note(rig, line("refused", APP, "10"))
    if then == "restart":
        rig.group.restart()
    elif then == "lose":
        rig.group.lose()
    else:
        rig.settle()
        rig.group.machine, rig.group.follower = rig.group.follower, rig.group.machine
        rig.group.engine, rig.group.follower_engine = rig.group.follower_engine, rig.group.engine
    note(rig, line("refused", APP, "last"))
    rig.settle()
    before = ["5", "6", "7", "8"] if then == "lose" else ["7", "8", "9", "10"]
    assert names(rig) == ["o1", *before, "last"]
    ids = [int(one.id, 16) for one in listed(rig)]
    assert ids == sorted({*ids})


@pytest.mark.usefixtures("small")
def test_what_is_in_flight_counts_once_it_is_applied_too() -> None:
    rig = Rig("metadata", lag=3)
    for number in range(30):
        note(rig, line("life", APP if number % 3 else OTHER, str(number)))
        assert len(rig.group.in_flight) <= 3
    rig.settle()
    assert len(names(rig)) == KEPT["life"]
    assert names(rig)[-1] == "29"


def test_a_batch_that_comes_again_is_written_once() -> None:
    rig = Rig("metadata")
    first, second = Identity(7, 1, 1), Identity(7, 2, 2)
    note(rig, line(names="a"), identity=first)
    note(rig, line(names="a"), identity=msgspec.structs.replace(first, age_ms=500))
    note(rig, line(names="b"), identity=second)
    rig.group.restart()
    note(rig, line(names="b"), identity=msgspec.structs.replace(second, age_ms=900))
    with pytest.raises(MetadError, match="answered before"):
        note(rig, line(names="a"), identity=msgspec.structs.replace(first, age_ms=9_000))
    assert names(rig) == ["a", "b"]


def test_a_command_that_comes_to_nothing_changes_nothing() -> None:
    """What goes for new lines is found out by trying, and that leaves no trace."""
    rig = Rig("metadata")
    lines = audit._Lines()
    for number in range(1, 10):
        lines.add(number, "refused", APP if number % 2 else OTHER)
    before = {kind: (ring._lines, ring._sizes, ring._total) for kind, ring in lines._rings.items()}
    copied = msgspec.msgpack.encode([[{who: [*of] for who, of in a.items()}, c] for a, _, c in before.values()])
    lines._rings["refused"].most = 9
    assert lines.to_drop([line("refused", APP), line("refused", APP), line("admin")]) == [1, 3]
    assert copied == msgspec.msgpack.encode(
        [[{who: [*of] for who, of in ring._lines.items()}, ring._total] for ring in lines._rings.values()]
    )
    assert lines.newest == 9
    rig.settle()


def test_texts_are_bounded() -> None:
    assert audit.bounded("a" * 5_000) == "a" * audit.TEXT_BYTES
    assert len(audit.bounded("ä" * 5_000 + "b").encode()) == audit.TEXT_BYTES
    assert audit.bounded("x" + "ä" * 5_000).endswith("ä")


class _Registry:
    def __init__(self) -> None:
        self.rig = Rig("metadata")

    def take(self, step: str, by: str, registration: int = 0, epoch: int = 0) -> None:
        asked = BrokerRegister("b1", registration=registration, sole=bool(registration)) if step == "register" else None
        noted = AuditEntry("", 0, "life", "n1", by, "10.0.0.7", "broker.register", items=1) if asked else None
        self.rig.write(BROKER_CHANGE, BrokerChange([BrokerStep(step, "b1", epoch, asked, by, line=noted)]))


def test_a_registration_is_noted_that_ends_a_life() -> None:
    registry = _Registry()
    registry.take("register", APP)
    assert not names(registry.rig), "there was none"
    registry.take("register", OTHER)
    registry.take("register", OTHER)
    found = listed(registry.rig)
    assert [(one.kind, one.who, one.host, one.node) for one in found] == [("life", OTHER, "10.0.0.7", "n1")] * 2
    assert [one.names for one in found] == [
        f"b1: epoch 2 ends epoch 1, registered by {APP}",
        f"b1: epoch 3 ends epoch 2, registered by {OTHER}",
    ]
    assert found[0].when_ms == registry.rig.now_ms
    registry.take("deregister", OTHER, epoch=3)
    registry.take("register", APP)
    assert len(listed(registry.rig)) == 2, "that life was over"


def test_an_attempt_to_register_that_comes_again_is_not_noted() -> None:
    registry = _Registry()
    registry.take("register", APP, 17)
    registry.take("register", APP, 17)
    assert not names(registry.rig)
    registry.take("register", OTHER, 17)
    assert len(names(registry.rig)) == 1, "who has read the number of another's registration has not drawn it"
    registry.take("register", OTHER, 17)
    registry.take("register", OTHER, 18)
    assert len(names(registry.rig)) == 2


def test_a_long_trail_is_loaded_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "_LOAD_ROWS", 2)
    rig = Rig("metadata")
    for number in range(7):
        note(rig, line(names=str(number)))
    rig.group.restart()
    note(rig, line(names="7"))
    assert [one.names for one in listed(rig)] == [str(number) for number in range(8)]


def test_a_listing_is_of_one_principal_and_of_none_whose_name_only_begins_so() -> None:
    rig = Rig("metadata")
    note(rig, line(who=APP, names="a"), line(who=f"{APP}2", names="b"))
    assert names(rig, who=APP) == ["a"]


def test_an_answer_ends_where_it_is_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig("metadata")
    for number in range(6):
        note(rig, line(names=f"{number}" * 500))
    monkeypatch.setattr(audit, "PAGE_BYTES_MAX", 1_000)
    reply = rig.read(AUDIT_LIST, AuditList())
    assert (len(reply.found), bool(reply.cursor)) == (2, True)
    assert len(listed(rig)) == 6


def test_texts_of_a_line_are_bounded() -> None:
    source: Any = SimpleNamespace(principal=None, host="h" * 5_000, holder="h")
    made = line_of("admin", "n1", source, AUDIT_LIST, "n" * 5_000)
    assert len(made.names) == len(made.host) == audit.TEXT_BYTES
