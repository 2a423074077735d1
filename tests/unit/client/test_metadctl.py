"""metadctl: what is asked, what is printed, and the exit status."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from types import SimpleNamespace

import pytest

from metad_client import cli
from metad_client.cli import overview
from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire.errors import ConflictError, ConnectionLostError


@pytest.fixture
def ctl(scripted_server, capsys):
    """Runs metadctl against the scripted server: (exit status, stdout, stderr)."""

    def run(*arguments):
        try:
            status = cli.main(["--endpoint", "a", *arguments], transport=scripted_server.transport)
        except SystemExit as exit:
            status = exit.code
        printed = capsys.readouterr()
        return SimpleNamespace(status=status, out=printed.out, err=printed.err)

    return run


@pytest.mark.parametrize(
    ("command", "body"),
    [
        ("status", m.Status()),
        ("members", m.Status()),
        ("groups", m.Status()),
        ("groups add --kind data", c.AddGroup("data")),
        ("groups rebalance", c.Rebalance()),
        ("transfer data-0 n1", c.Transfer("data-0", "n1")),
        ("join n2 --peer h:1 --clients h:2 --region eu", c.Join(c.NodeRecord("n2", "h:2", "h:1", "eu"))),
        ("join n2 --peer h:1", c.Join(c.NodeRecord("n2", "", "h:1"))),
        ("leave n2", c.Leave("n2")),
        ("get session t c", m.SessionGet([m.SessionKey("t", "c")])),
        ("get offset t g topic 3", m.OffsetFetch([m.OffsetKey("t", "g", "topic", 3)])),
        ("get kv ns k", m.KvGet([m.KvKey("ns", "k")])),
        ("put kv ns k v", m.KvPut([m.KvPutItem("ns", "k", b"v")])),
        ("put kv ns k v --expected-version 0", m.KvPut([m.KvPutItem("ns", "k", b"v", 0)])),
        (
            "put session t c --broker b --epoch 7",
            m.SessionTakeover("b", 7, [m.SessionTakeoverItem("t", "c")]),
        ),
        (
            "put session t c --broker b --epoch 7 --payload p --expiry 60 --clean-start",
            m.SessionTakeover("b", 7, [m.SessionTakeoverItem("t", "c", True, m.SessionProperties(60, b"p"))]),
        ),
        ("put offset t g topic 3 42", m.OffsetCommit([m.OffsetCommitItem("t", "g", "topic", 3, 42)])),
        (
            "put offset t g topic 3 42 --generation 2 --expected -1 --metadata x --monotonic",
            m.OffsetCommit([m.OffsetCommitItem("t", "g", "topic", 3, 42, 2, -1, "x")], True),
        ),
        ("delete session t c", m.SessionDelete([m.SessionKey("t", "c")])),
        ("delete offset t g topic 3", m.OffsetDelete([m.OffsetKey("t", "g", "topic", 3)])),
        ("get generation t g", m.OffsetGenerations([m.ConsumerGroup("t", "g")])),
        ("put generation t g 2 --expected 9", m.OffsetResetGenerations([m.GenerationReset("t", "g", 9, 2)])),
        ("delete kv ns k --expected-version 4", m.KvDelete([m.KvDeleteItem("ns", "k", 4)])),
        (
            "list sessions --tenant t --prefix c --broker b --limit 5",
            m.SessionList("t", "c", "b", m.Page(6)),
        ),
        ("list offsets t g --prefix top", m.OffsetList("t", "g", "top", m.Page(1000))),
        ("list kv ns --prefix k --limit 0", m.KvScan("ns", "k", m.Page(1000))),
    ],
)
def test_commands_ask_what_they_say(ctl, scripted_server, command, body):
    done = ctl(*command.split(), "--json")
    assert (done.status, done.err) == (0, "")
    assert [received.body for received in scripted_server.received] == [body]
    json.loads(done.out)
    human = ctl(*command.split())
    assert human.status == 0
    assert human.out


def test_tables(ctl):
    assert ctl("get", "kv", "ns", "k").out == (
        "field            value\n"
        "namespace        ns\n"
        "key              k\n"
        "value            k\n"
        "version          1\n"
        "create_revision  1\n"
        "mod_revision     1\n"
    )
    table = ctl("list", "sessions").out.splitlines()
    assert table[0].split()[:2] == ["tenant", "client_id"]
    assert [line.split()[1] for line in table[1:]] == ["c0", "c1", "c2"]
    assert ctl("groups").out == (
        "group       leader  term  replicas  learners  commit  applied  slots\n"
        "metadata-0  -       -     -         -         -       -        -\n"
        "offset-0    -       -     -         -         -       -        -\n"
        "data-0      n1      3     n1, n2    -         5       5        1024\n"
    )


def test_status_is_of_the_whole_cluster(ctl, scripted_server, a_map):
    scripted_server.map = a_map({"n1": "a:7420", "n2": "b:7420"})
    done = ctl("status", "--timeout", "1")
    assert done.status == 0
    top, nodes, groups = done.out.split("\n\n")
    assert "nodes_up     1 of 2\n" in top
    assert "groups_led   1 of 3" in top
    assert [line.split()[:2] for line in nodes.splitlines()[1:]] == [["n1", "a:7420"], ["n2", "b:7420"]]
    assert "connection refused by b:7420" in nodes
    assert groups.splitlines()[-1].split()[:3] == ["data-0", "n1", "3"]
    (up, down) = json.loads(ctl("members", "--json", "--timeout", "1").out)
    assert (up["node"], up["state"], up["leads"], up["rss_bytes"]) == ("n1", "up", 1, 4 << 20)
    assert (down["node"], down["state"]) == ("n2", "not reached")


def test_a_server_whose_cluster_is_being_formed_has_a_status_too(ctl, scripted_server):
    scripted_server.map = None
    done = ctl("status")
    assert done.status == 0
    assert "map_version  0\n" in done.out
    assert "nodes_up     1 of 1\n" in done.out
    assert done.out.splitlines()[-1].split()[:2] == ["data-0", "n1"]


def test_the_leaders_word_counts_most():
    def status(*groups):
        return m.StatusReply("n", "c", "v", 1, 1, 1, 1, True, 1, 1, 0, 1, 1, list(groups))

    def group(role, term, applied, leader):
        return m.GroupStatus("data-0", "data", 8, applied, 1, 9, 0, role, leader, term, applied, ["n1"], ["n2"])

    statuses = {
        "n1": status(group("leader", 3, 90, "n1")),
        "n2": status(group("leader", 4, 70, "n2")),
        "n3": status(group("follower", 4, 80, "n2")),
        "n4": ConnectionLostError("gone"),
    }
    (row,) = overview.groups(c.MapReply(0, None, {}), statuses)
    assert (row["leader"], row["term"], row["applied"], row["learners"]) == ("n2", 4, 70, ["n2"])


def test_an_empty_listing_says_so(ctl, scripted_server):
    scripted_server.answer = lambda received: received.reply(m.KvScanReply([], b""))
    assert ctl("list", "kv", "ns").out == "nothing found\n"
    assert ctl("list", "kv", "ns", "--json").out == "[]\n"


def test_json_holds_bytes_that_are_no_text(ctl, scripted_server):
    scripted_server.answer = lambda received: received.reply(m.KvGetReply([m.Kv("ns", "k", b"\xff", 1, 1, 1)]))
    assert json.loads(ctl("get", "kv", "ns", "k", "--json").out)["value_base64"] == "/w=="


def test_options_may_stand_before_or_behind(ctl):
    assert ctl("--json", "get", "kv", "ns", "k").out == ctl("get", "kv", "ns", "k", "--json").out


def test_a_value_from_stdin(ctl, scripted_server, monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"\x00\xffpiped")))
    assert ctl("put", "kv", "ns", "k", "-").status == 0
    assert scripted_server.received[0].body.items[0].value == b"\x00\xffpiped"


def test_a_listing_stops_at_its_limit_and_says_so(ctl):
    done = ctl("list", "sessions", "--limit", "2", "--json")
    assert [session["client_id"] for session in json.loads(done.out)] == ["c0", "c1"]
    assert done.err == "metadctl: the first 2 are shown; --limit 0 shows all\n"
    assert ctl("list", "sessions", "--limit", "3").err == ""


def test_what_is_not_there(ctl, scripted_server):
    def answer(received):
        match received.body:
            case m.SessionGet():
                received.reply(m.SessionGetReply([None]))
            case m.OffsetFetch():
                received.reply(m.OffsetFetchReply([None]))
            case m.KvGet():
                received.reply(m.KvGetReply([None]))
            case _:
                received.reply(m.WriteReply([], [m.ItemError(0, 200)]))

    scripted_server.answer = answer
    for verb in ("get", "delete"):
        done = ctl(verb, "session", "t", "c")
        assert (done.status, done.out, done.err) == (1, "", "metadctl: no session t/c\n")
        assert ctl(verb, "offset", "t", "g", "topic", "1").err == "metadctl: no offset t/g/topic/1\n"
        assert ctl(verb, "kv", "ns", "k").err == "metadctl: no key ns/k\n"


def test_a_group_that_is_not_there(ctl, scripted_server):
    done = ctl("transfer", "data-9", "n1")
    assert (done.status, done.err) == (1, "metadctl: there is no group data-9\n")
    assert scripted_server.received == []


def test_errors_are_one_line(ctl, scripted_server):
    scripted_server.answer = lambda received: received.fail(ConflictError("version is 3\nand more"))
    done = ctl("put", "kv", "ns", "k", "v")
    assert (done.status, done.out, done.err) == (1, "", "metadctl: conflict: version is 3 and more\n")


def test_nobody_there(ctl, scripted_server):
    asyncio.run(scripted_server.stop_listening())
    done = ctl("status")
    assert (done.status, done.err) == (1, "metadctl: connection refused by a:7420\n")


def test_a_deadline(ctl, scripted_server):
    scripted_server.answer = None
    done = ctl("--timeout", "0.01", "put", "kv", "ns", "k", "v")
    assert done.status == 1
    assert "the write may have happened" in done.err


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("", "COMMAND"),
        ("get", "KIND"),
        ("get kv ns", "KEY"),
        ("get offset t g topic many", "PARTITION"),
        ("put offset t g topic 0 -5", "-5"),
        ("put session t c", "--broker"),
        ("groups add", "--kind"),
        ("join n2", "--peer"),
        ("join n2 --peer here", "not HOST:PORT"),
        ("transfer data-0", "NODE"),
        ("list sessions --prefix c", "--prefix needs --tenant"),
        ("--endpoint quic://a status", "no transport for quic://"),
        ("--endpoint a:b status", "not a port"),
        ("--timeout 0 status", "not between 0 and 3600"),
        ("put kv ns k \udcff", "not UTF-8"),
        ("get kv ns \udcff", "not UTF-8"),
    ],
)
def test_wrong_command_lines(ctl, command, complaint):
    done = ctl(*command.split())
    assert done.status == 2
    assert complaint in done.err
    assert "Traceback" not in done.err


def test_a_terminal_gets_the_same_table_with_or_without_rich(ctl, monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr(written, "isatty", lambda: True, raising=False)
    from metad_client.cli.printing import Printer

    Printer(False, written).many([m.KvKey("ns", "[bold]k")])
    assert "[bold]k" in written.getvalue()
    monkeypatch.setitem(sys.modules, "rich.table", None)
    written.truncate(0)
    written.seek(0)
    Printer(False, written).many([m.KvKey("ns", "[bold]k")])
    assert written.getvalue() == "namespace  key\nns         [bold]k\n"
