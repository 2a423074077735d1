"""``metadctl events``: the order and the lines of what nodes have logged, and what is said of those that say nothing.

It guards that a node which does not answer is named, and never left out silently."""

from __future__ import annotations

import asyncio
import json

import pytest
from scripted import Nodes
from test_metadctl import ctl as ctl

from metad_client.cli.lamps.events import Seen, lines
from metad_wire import messages as m
from metad_wire.errors import InvalidRequestError, UnknownMethodError

NOON_MS = 1_795_953_600_000  # 2026-11-29T12:00:00Z
GAINED = m.LoggedEvent(NOON_MS, "info", "leader_gained", {"group": "data-0", "term": 7})
SHORT = m.LoggedEvent(
    NOON_MS + 1_500,
    "warning",
    "disk_short",
    {"free_bytes": 3 << 29, "full": False, "lasts_ms": None, "groups": ["data-0", "data-1"]},
    "The disk has less room than the low-water mark. What takes more room is refused until there is some.",
)
OVER = m.LoggedEvent(
    NOON_MS + 86_400_000, "info", "overload_over", {"lasted_ms": 2_100, "oldest_s": 90, "per_s": 4_500}
)


def test_people_read_units_sentences_and_the_day_when_it_changes():
    found = [Seen(NOON_MS, "n1", GAINED), Seen(SHORT.when_ms, "n22", SHORT), Seen(OVER.when_ms, "n1", OVER)]
    assert list(lines(found, NOON_MS)) == [
        "12:00:00Z  n1   leader_gained: group data-0, term 7",
        "12:00:01Z  n22  WARNING disk_short: disk free 1.5 GiB, full no, groups data-0,",
        "           data-1",
        "           The disk has less room than the low-water mark. What takes more room",
        "           is refused until there is some.",
        "2026-11-30",
        "12:00:00Z  n1   overload_over: lasted 2 s, oldest 1 min 30 s, per second 4,500",
    ]


def script(server):
    """Two nodes have logged something, in an order of their own, and the third is too old to know the method."""
    logged = {"n1": [GAINED, OVER], "n2": [SHORT]}

    def answer(received):
        if not isinstance(received.body, m.Events):
            received.reply()
        elif (events := logged.get(received.peer.node)) is None:
            received.fail(UnknownMethodError("there is no method 0x074b"))
        else:
            at = int(received.body.page.cursor or b"0")
            reply = m.EventsReply(events[at : at + 1], b"%d" % (at + 1), at + 1 < len(events), NOON_MS - 5, 2)
            received.reply(reply)

    server.answer = answer


@pytest.fixture
def of_three(scripted_server):
    for host, node in (("b", "n2"), ("c", "n3")):
        asyncio.run(scripted_server.listen(host, node))
    Nodes(scripted_server)  # the map
    script(scripted_server)


def test_events_of_all_nodes_are_in_order_and_who_is_missing_is_named(ctl, of_three):
    done = ctl("events", "--since", "2026-11-29T00:00:00Z", "--json")
    assert (done.status, done.err) == (0, "")
    found = json.loads(done.out)
    assert [(one["node"], one["event"]) for one in found["events"]] == [
        ("n1", "leader_gained"),
        ("n2", "disk_short"),
        ("n1", "overload_over"),
    ]
    assert found["events"][1]["fields"]["lasts_ms"] is None
    assert [(one["node"], one["begins_ms"], bool(one["error"])) for one in found["nodes"]] == [
        ("n1", NOON_MS - 5, False),
        ("n2", NOON_MS - 5, False),
        ("n3", None, True),
    ]
    assert found["nodes"][0]["withheld"] == 4  # on two pages
    shown = ctl("events", "--since", "2026-11-29T00:00:00Z", "--limit", "2")
    assert "leader_gained" not in shown.out
    assert "overload_over" in shown.out
    assert "n3 does not answer, so what it has logged is missing: there is no method 0x074b" in shown.err
    assert "nothing is known of before (n1: " in shown.err
    assert "n2 has 2 more, about tables that we may not read" in shown.err
    assert "the last 2 are shown" in shown.err


def test_one_node_that_does_not_answer_is_an_error(ctl, of_three):
    done = ctl("events", "--node", "n3")
    assert (done.status, done.out) == (1, "")
    assert done.err == "metadctl: there is no method 0x074b\n"
    assert ctl("events", "--node", "n9").err == "metadctl: n9 is no member of the cluster\n"
    assert ctl("events", "--node", "n2", "--since", "never").status == 2


async def test_what_follows_is_asked_for_by_the_cursors(server, nodes, dial, settle):
    script(server)
    client = await dial()
    await settle()
    first = await client.cluster.events(since_ms=5, nodes=["n1"])
    assert first["n1"].more
    second = await client.cluster.events(nodes=["n1"], cursors={"n1": first["n1"].cursor})
    assert [one.event for one in second["n1"].events] == ["overload_over"]
    assert server.received[-1].body == m.Events(0, m.Page(1_000, b"1"))
    with pytest.raises(InvalidRequestError, match="cursors"):
        await client.cluster.events(cursors={"n1": "1"})
