"""What a node keeps of its log in memory, for ``metadctl events``: how much, in which order, and for whom.

It guards that neither a flood of one kind nor long texts take more memory than is said, that nobody is shown the keys
of a table that he may not read, and that the cursor of a process before this one hides nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from itertools import count

import pytest
from server_rig import Rig
from test_permissions import APP, OPS, ask, give
from test_permissions import rig as rig

from metad import log_events
from metad.log_events import CHANGES, EVENTS
from metad.logs import KEPT, KEPT_BYTES, Recent, event, keeping, kept
from metad_wire import methods
from metad_wire.errors import InvalidRequestError
from metad_wire.messages import Events, EventsReply, Page
from metad_wire.tables.access import Grant

ALL = [*KEPT]


def recent() -> Recent:
    seconds = count(1)
    return Recent(lambda: float(next(seconds)))


def pages(kept: Recent, limit: int = 1_000, tables: list[str] = ALL, since_ms: int = 0) -> Iterator[EventsReply]:
    cursor = b""
    while True:
        reply = kept.page(Events(since_ms, Page(limit, cursor)), tables)
        yield reply
        if not reply.more:
            return
        assert reply.cursor != cursor
        cursor = reply.cursor


def test_pages_go_on_where_the_last_one_ended_and_later_too() -> None:
    log = recent()
    for term in range(5):
        log.note(log_events.LEADER_GAINED, {"group": "data-0", "term": term})
    found = [*pages(log, limit=2)]
    assert [[one.fields["term"] for one in reply.events] for reply in found] == [[0, 1], [2, 3], [4]]
    last = found[-1].cursor
    assert log.page(Events(page=Page(2, last)), ALL).events == []
    log.note(log_events.LEADER_LOST, {"group": "data-0", "term": 5, "leader": None})
    (one,) = log.page(Events(page=Page(2, last)), ALL).events
    assert (one.level, one.event, one.fields["leader"], one.when_ms) == ("info", "leader_lost", None, 7_000)
    assert one.text == log_events.LEADER_LOST.text
    assert [one.fields["term"] for one in log.page(Events(4_000), ALL).events] == [2, 3, 4, 5]


def test_a_cursor_of_an_earlier_process_hides_nothing_and_a_wrong_one_is_refused() -> None:
    old, new = recent(), recent()
    for term in range(9):
        old.note(log_events.LEADER_GAINED, {"group": "data-0", "term": term})
    cursor = old.page(Events(), ALL).cursor
    new.note(log_events.LEADER_GAINED, {"group": "data-0", "term": 10})
    assert len(new.page(Events(page=Page(10, cursor)), ALL).events) == 1
    for wrong in (b"x", b"1:", b":1", b"1:2:3", b"\xff" * 100, b"9" * 70):
        with pytest.raises(InvalidRequestError, match="cursor"):
            new.page(Events(page=Page(10, wrong)), ALL)


def test_a_flood_of_one_table_takes_no_room_of_another_and_what_is_gone_is_said() -> None:
    log = recent()
    log.note(log_events.LEADER_GAINED, {"group": "data-0", "term": 1})
    for number in range(2 * KEPT["audit"]):
        log.note(log_events.AUDITED, {"who": "metad://admin/ops", "method": "quota.put", "names": f"tenant/{number}"})
    found = [one for reply in pages(log) for one in reply.events]
    assert [one.event for one in found].count("audited") == KEPT["audit"]
    assert found[0].event == "leader_gained"
    gone_ms = found[1].when_ms
    assert gone_ms - 1_000 < log.page(Events(), ALL).begins_ms <= gone_ms


def test_long_texts_are_cut_and_bytes_are_bounded() -> None:
    log = recent()
    long = "é" * 50_000
    for number in range(2_000):
        log.note(log_events.PEER_LOST, {"peer": f"{number}{long}", "groups": [long] * 50})
    found = [one for reply in pages(log) for one in reply.events]
    shown = found[-1].fields["groups"]
    assert isinstance(shown, list)
    assert (len(shown), shown[-1], len(shown[0])) == (21, "…", 1_000)
    assert len(str(found[-1].fields["peer"])) == 1_000
    assert sum(log._bytes.values()) <= KEPT_BYTES * KEPT["cluster"]
    assert KEPT_BYTES * sum(KEPT.values()) <= 1 << 20
    assert max(len(reply.events) for reply in pages(log)) < 20  # a page has a bound in bytes, too


def test_a_warning_that_repeats_is_kept_once() -> None:
    log = recent()
    for _ in range(100):
        log.note(log_events.PEER_SILENT, {"peer": "n2"})
    log.note(log_events.PEER_SILENT, {"peer": "n3"})
    assert [one.fields["peer"] for one in log.page(Events(), ALL).events] == ["n2", "n3"]


def test_what_clients_send_and_keys_of_records_are_no_change() -> None:
    """Whoever adds an event with such a field decides who may see it."""
    records = {"key", "tenant", "client_id", "filter", "client", "who", "names", "detail"}
    shown = {key for key, table in CHANGES.items() if table == "cluster" and records & {*EVENTS[key].fields}}
    # These details are about nodes, groups and slots, and the key is that of a setting.
    assert shown == {
        "limit_lowered",
        *("peer_refused", "replicas_added", "slot_move_broke_off", "slot_move_not_closed"),
        *("fences_not_spread", "brokers_not_forgotten"),
    }
    assert {*CHANGES} <= {*EVENTS}
    assert {*CHANGES.values()} == {*KEPT}
    assert all(EVENTS[key].level >= logging.INFO for key in CHANGES)


def test_each_thread_has_what_its_node_logs_and_all_have_what_nobody_does() -> None:
    def other() -> None:
        with keeping() as theirs:
            event(log_events.PEER_LOST, peer="n9")
            logged.set()
            ended.wait(10)
            names.append([one.fields["peer"] for one in theirs.page(Events(), ALL).events])

    names: list[list[object]] = []
    logged, ended = threading.Event(), threading.Event()
    thread = threading.Thread(target=other)
    with keeping() as ours:
        assert kept() is ours
        thread.start()
        assert logged.wait(10)
        event(log_events.PEER_LOST, peer="n2")
        beside = threading.Thread(target=lambda: event(log_events.PEER_LOST, peer="n3"))
        beside.start()
        beside.join()
        ended.set()
        thread.join()
        logging.getLogger("metad").warning("files_gone", extra={"fields": {"what": "tokens"}})  # as a transport does
        found = [one.fields for one in ours.page(Events(), ALL).events]
    assert found == [{"peer": "n2"}, {"peer": "n3"}, {"what": "tokens"}]
    assert names == [["n9", "n3"]]
    event(log_events.PEER_LOST, peer="n4")
    assert len(ours.page(Events(), ALL).events) == 3


async def test_whoever_reads_the_cluster_alone_sees_neither_brokers_nor_who_administers(rig: Rig) -> None:
    with keeping():
        event(log_events.LEADER_GAINED, group="data-0", term=7)
        event(log_events.BROKER_FENCED, broker="secret-broker", epoch=1, reason="a newer life")
        await give(rig, APP, Grant(["read"], ["cluster"]))  # which is audited
        reply = await ask(rig, APP, methods.EVENTS, Events())
        assert [one.event for one in reply.events] == ["leader_gained"]
        assert reply.withheld >= 2
        assert b"secret-broker" not in methods.encode(reply)
        assert b"ops" not in methods.encode(reply)
        await give(rig, APP, Grant(["read"], ["cluster", "broker"]))
        reply = await ask(rig, APP, methods.EVENTS, Events())
        assert [one.event for one in reply.events] == ["leader_gained", "broker_fenced"]
        every = await ask(rig, OPS, methods.EVENTS, Events())
        assert {one.event for one in every.events} == {"leader_gained", "broker_fenced", "audited"}
        assert every.withheld == 0
