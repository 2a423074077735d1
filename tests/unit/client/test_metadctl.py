"""metadctl: what is asked, what is printed, and the exit status."""

from __future__ import annotations

import asyncio
import io
import json
import sys
import time
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from metad_client import cli
from metad_client.cli import command_line, overview, people
from metad_client.cli.view import view
from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import ConflictError, ConnectionLostError
from metad_wire.families import PLURALS
from metad_wire.families.assignment import PARTITIONS
from metad_wire.methods import KV_GET, LEASE_GET, OFFSET_FETCH, RETAINED_GET, SEQUENCE_GET, SESSION_GET
from metad_wire.operator.authority import issue_fleet
from metad_wire.tables import assignment as a
from metad_wire.tables import broker as b
from metad_wire.tables import lease, plan, sequence
from metad_wire.tables import retained as r
from metad_wire.tables import subscription as sub
from metad_wire.tables.access import AuditList
from metad_wire.tables.consumer import (
    ConsumerDescribe,
    ConsumerDescribeReply,
    ConsumerMembers,
    MemberKey,
)
from metad_wire.tables.offset import OffsetGroups
from metad_wire.tables.will import DueWill, WillClaimant, WillList

WHOLE_RESOURCE = a.ResourceCreate(
    *("t", "o", "bin", 3, 2, 3, 2, "position", 2, 9, 0, "region"), {"tier": "hot"}, {"owner": "ops", "size": "a=b"}
)
QUEUES_OF_GROUPS = a.ResourceCreate(
    *("t", "o", "message_queue", 3, None, 2, 1, "position", 2), replicas=[["b1", "b2"], ["b3", "b4"], ["b1", "b2"]]
)
ALL_SLOTS = b"\xff" * 128


@pytest.fixture
def ctl(scripted_server, capsys, monkeypatch):
    """Runs metadctl against the scripted server: (exit status, stdout, stderr)."""
    monkeypatch.setattr(command_line, "LOOK_AGAIN_S", 0.02)

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
        ("members", m.Status()),
        ("links", m.Status()),
        ("groups", m.Status()),
        ("groups add --kind data", c.AddGroup("data")),
        ("groups rebalance", c.Rebalance(0, True)),
        ("groups rebalance --replicas 5", c.Rebalance(5, True)),
        ("groups rebalance --even-slots", c.Rebalance()),
        ("brokers", b.BrokerList(page=m.Page(1000))),
        ("brokers --limit 5", b.BrokerList(page=m.Page(6))),
        ("brokers --prefix b --state fenced", b.BrokerList("b", "fenced", m.Page(1000))),
        ("brokers get b1", b.BrokerGet(["b1"])),
        ("brokers fence b1", b.BrokerFence("b1")),
        ("brokers fence b1 --epoch 7", b.BrokerFence("b1", 7)),
        ("sessions --tenant t --prefix c --broker b --limit 5", m.SessionList("t", "c", "b", m.Page(6), [], ALL_SLOTS)),
        ("sessions --away", m.SessionList(slots=ALL_SLOTS)),
        ("sessions count --tenant t", m.SessionList("t", slots=ALL_SLOTS)),
        ("sessions takeover t c --broker b --epoch 7", m.SessionTakeover("b", 7, [m.SessionTakeoverItem("t", "c")])),
        (
            "sessions takeover t c --broker b --epoch 7 --payload p --expiry 60 --clean-start",
            m.SessionTakeover("b", 7, [m.SessionTakeoverItem("t", "c", True, m.SessionProperties(60, b"p"))]),
        ),
        ("sessions endings --tenant t", m.SessionEndings("t", ALL_SLOTS)),
        ("sessions delete t c", m.SessionDelete([m.SessionDeleteItem("t", "c")])),
        (
            "subscriptions --tenant t --prefix c --limit 5",
            sub.SubscriptionList("t", "c", m.Page(6), [], ALL_SLOTS),
        ),
        (
            "subscriptions add t c a/# --broker b --epoch 7 --qos 1",
            sub.SubscriptionAdd("b", 7, [sub.Subscription("t", "c", "a/#", sub.SubscriptionOptions(1))]),
        ),
        (
            "subscriptions remove t c a/# --broker b --epoch 7",
            sub.SubscriptionRemove("b", 7, [sub.SubscriptionKey("t", "c", "a/#")]),
        ),
        ("wills", WillList(page=m.Page(1000), slots=ALL_SLOTS)),
        ("wills --tenant t --prefix c --limit 5", WillList("t", "c", m.Page(6), [], ALL_SLOTS)),
        ("wills --unclaimed --limit 5", WillList(page=m.Page(1000), slots=ALL_SLOTS)),
        ("retained --tenant t --limit 5", r.RetainedMatch("t", "#", ALL_SLOTS, "", m.Page(6))),
        ("retained --tenant t --filter a/+", r.RetainedMatch("t", "a/+", ALL_SLOTS, "", m.Page(1000))),
        ("retained get t a/b", RETAINED_GET.body([r.RetainedKey("t", "a/b")])),
        ("retained put t a/b v --qos 1 --expiry 60", r.RetainedPut([r.RetainedPutItem("t", "a/b", b"v", 1, b"", 60)])),
        ("retained delete t a/b --revision 7", r.RetainedDelete([r.RetainedDeleteItem("t", "a/b", 7)])),
        ("leases --namespace ns --prefix l --limit 5", lease.LeaseList("ns", "l", m.Page(6))),
        ("leases revoke ns l", methods.LEASE_REVOKE.body([lease.LeaseKey("ns", "l")])),
        ("groups consumer --tenant t --prefix g", OffsetGroups("t", "g", ALL_SLOTS, "", m.Page(1000))),
        ("groups consumer reset t g 2 --expected 9", m.OffsetResetGenerations([m.GenerationReset("t", "g", 9, 2)])),
        ("groups consumer dismiss t g 1.1", methods.CONSUMER_LEAVE.body([MemberKey("t", "g", "1.1")])),
        ("join n2 --peer h:1 --clients h:2 --region eu", c.Join(c.NodeRecord("n2", "h:2", "h:1", "eu"))),
        ("join n2 --peer h:1", c.Join(c.NodeRecord("n2", "", "h:1"))),
        ("leave n2", c.Leave("n2")),
        ("get offset t g topic 3", OFFSET_FETCH.body([m.OffsetKey("t", "g", "topic", 3)])),
        ("get kv ns k", KV_GET.body([m.KvKey("ns", "k")])),
        ("put kv ns k v", m.KvPut([m.KvPutItem("ns", "k", b"v")])),
        ("put kv ns k v --expected-version 0", m.KvPut([m.KvPutItem("ns", "k", b"v", 0)])),
        ("put offset t g topic 3 42", m.OffsetCommit([m.OffsetCommitItem("t", "g", "topic", 3, 42)])),
        (
            "put offset t g topic 3 42 --generation 2 --expected -1 --metadata x --monotonic",
            m.OffsetCommit([m.OffsetCommitItem("t", "g", "topic", 3, 42, 2, -1, "x")], True),
        ),
        ("delete offset t g topic 3", methods.OFFSET_DELETE.body([m.OffsetKey("t", "g", "topic", 3)])),
        ("delete kv ns k --expected-version 4", m.KvDelete([m.KvDeleteItem("ns", "k", 4)])),
        ("list kv ns --prefix k --limit 0", m.KvScan("ns", "k", m.Page(1000))),
        ("get sequence ns s", SEQUENCE_GET.body([sequence.SequenceKey("ns", "s")])),
        ("put sequence ns s", sequence.SequenceAdd([sequence.SequenceAddItem("ns", "s", 1)])),
        ("put sequence ns s 100", sequence.SequenceAdd([sequence.SequenceAddItem("ns", "s", 100)])),
        ("delete sequence ns s", methods.SEQUENCE_DELETE.body([sequence.SequenceKey("ns", "s")])),
        ("list sequences ns --prefix s", sequence.SequenceList("ns", "s", m.Page(1000))),
        ("resources create t o --kind bin", methods.ASSIGNMENT_CREATE.body([a.ResourceCreate("t", "o", "bin")])),
        (
            "resources create t o",  # as topics are usually
            methods.ASSIGNMENT_CREATE.body([a.ResourceCreate("t", "o", "topic", 1, None, 3, 2)]),
        ),
        (
            "resources create t o --kind message_queue --partitions 3 --replicas b1,b2 --replicas b3,b4",
            methods.ASSIGNMENT_CREATE.body([QUEUES_OF_GROUPS]),
        ),
        (
            "resources create t o --kind connector --partitions 2",
            methods.ASSIGNMENT_CREATE.body([a.ResourceCreate("t", "o", "connector", 2, election="owner")]),
        ),
        (
            "resources create t o --kind bin --partitions 3 --write-partitions 2 --replication 3 --min-isr 2 "
            "--election position --copies 2 --force-after-ms 9 --repair-after-ms 0 --spread region --label tier=hot "
            "--attribute owner=ops --attribute size=a=b",
            methods.ASSIGNMENT_CREATE.body([WHOLE_RESOURCE]),
        ),
        (
            "resources alter t o --copies 2 --label tier=hot",
            methods.ASSIGNMENT_ALTER.body([a.ResourceAlter("t", "o", "topic", copies=2, labels={"tier": "hot"})]),
        ),
        (
            "resources resize t o --partitions 4 --first-partition 1",
            methods.ASSIGNMENT_RESIZE.body([a.ResourceResize("t", "o", "topic", 4, None, 1)]),
        ),
        ("resources delete t o --kind shard", methods.ASSIGNMENT_DELETE.body([a.ResourceKey("t", "o", "shard")])),
        ("partitions explain t o 3", methods.ASSIGNMENT_EXPLAIN.body([a.PartitionKey("t", "o", "topic", 3)])),
        ("plans --prefix p --limit 5", plan.PlanList("p", m.Page(6))),
        ("plans list", plan.PlanList(page=m.Page(1000))),
        ("plans add p b1 b2", methods.PLAN_CREATE.body([plan.NewPlan("p", "add", ["b1", "b2"])])),
        (
            "plans drain p b1 --moves 3 --throttle 1000",
            methods.PLAN_CREATE.body([plan.NewPlan("p", "drain", ["b1"], 3, 1_000)]),
        ),
        ("plans rebalance p", methods.PLAN_CREATE.body([plan.NewPlan("p", "rebalance")])),
        ("plans delete p", methods.PLAN_DELETE.body([plan.PlanKey("p")])),
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


@pytest.mark.parametrize("options", ["--wills publish", "--wills drop --retained"])
def test_the_end_of_a_tenant_is_ordered(ctl, scripted_server, options):
    def answer(received):
        received.reply(m.SessionEndingsReply([]) if isinstance(received.body, m.SessionEndings) else None)

    scripted_server.answer = answer
    done = ctl("sessions", "end-tenant", "t", *options.split())
    assert (done.status, done.err) == (0, "")
    assert "ordered  yes" in done.out
    expected = m.SessionEndTenant("t", "publish" in options, "retained" in options, ALL_SLOTS)
    assert [r.body for r in scripted_server.received if isinstance(r.body, m.SessionEndTenant)] == [expected]


@pytest.mark.parametrize("has", ["nothing", "a will", "a message", "an order under way"])
def test_the_end_of_a_tenant_that_never_was_is_not_said_to_be_ordered(ctl, scripted_server, has):
    def answer(received):
        match received.body:
            case m.SessionList():
                received.reply(m.ListReply([], b""))
            case WillList():
                wills = [DueWill("t", "c", "1", m.Will("t"), 1)] if has == "a will" else []
                received.reply(m.ListReply(wills, b""))
            case r.RetainedMatch():
                messages = [r.Retained("t", "topic", b"v")] if has == "a message" else []
                received.reply(m.ListReply(messages, b""))
            case m.SessionEndings() if has != "an order under way":
                received.reply(m.SessionEndingsReply([]))
            case _:
                received.reply()

    scripted_server.answer = answer
    done = ctl("sessions", "end-tenant", "t", "--wills", "drop", "--retained")
    ordered = [received for received in scripted_server.received if isinstance(received.body, m.SessionEndTenant)]
    if has != "nothing":
        assert done.status == 0
        assert len(ordered) == 1
        return
    assert (done.status, done.out) == (1, "")
    assert "tenant 't' has no session, no will that is due and no retained message: check its name" in done.err
    assert not ordered


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("partitions elect t o 3", methods.ASSIGNMENT_ELECT.body([a.Elect("t", "o", "topic", 3)])),
        (
            "partitions elect t o 3 --kind shard --broker b --force",
            methods.ASSIGNMENT_ELECT.body([a.Elect("t", "o", "shard", 3, "b", True)]),
        ),
        (
            "partitions move t o 3 b c",
            methods.ASSIGNMENT_MOVE.body([a.MovePartition("t", "o", "topic", 3, ["b", "c"])]),
        ),
        ("partitions move t o 3 --cancel", methods.ASSIGNMENT_MOVE.body([a.MovePartition("t", "o", "topic", 3, [])])),
        ("plans pause p", methods.PLAN_SET.body([plan.PlanState("p", "paused")])),
        ("plans resume p", methods.PLAN_SET.body([plan.PlanState("p", "running")])),
        ("plans cancel p", methods.PLAN_SET.body([plan.PlanState("p", "cancelled")])),
    ],
)
def test_what_is_ordered_is_read_again(ctl, scripted_server, command, wanted):
    ctl(*command.split())
    asked, read = scripted_server.received
    assert asked.body == wanted
    assert read.method.name in ("partition.get", "plan.get")


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("partitions move t o 3", "name the brokers that are to have the partition, or --cancel"),
        ("partitions move t o 3 b --cancel", "name the brokers that are to have the partition, or --cancel"),
        ("partitions list t --broker b", "--broker stands alone"),
        ("resources create t o --label tier", "not NAME=VALUE: tier"),
        ("connectors assign t o --replication 2", "unrecognized arguments: --replication"),
        ("connectors resize t o", "--tasks"),
        ("queues assign t / o --kind topic", "--kind"),
    ],
)
def test_what_makes_no_sense_of_what_is_assigned(ctl, scripted_server, command, complaint):
    done = ctl(*command.split())
    assert (done.status, done.out) == (2, "")
    assert complaint in done.err
    assert scripted_server.received == []


def test_the_partitions_of_a_broker_are_found_by_its_name(ctl, scripted_server):
    assert ctl("partitions", "list", "--broker", "b").status == 0
    (asked,) = scripted_server.received
    assert (asked.body.table, asked.body.fields, asked.body.index) == (PARTITIONS.number, ["b"], 1)


def test_the_status_asks_the_nodes_and_who_knows_the_brokers(ctl, scripted_server):
    nodes_and_brokers = [m.Status(), b.BrokerList(page=m.Page(1000))]
    newest_backup = AuditList(kind="admin", method_prefix="backup.end", newest_first=True, page=m.Page(10))
    for words, asked in (
        (["status"], [*nodes_and_brokers, newest_backup]),
        (["status", "--check"], nodes_and_brokers),
        (["status", "--check", "--backup-older-than", "26h"], [*nodes_and_brokers, newest_backup]),
    ):
        scripted_server.received.clear()
        ctl(*words)
        assert [received.body for received in scripted_server.received] == asked


def test_a_transfer_says_whether_the_node_is_there(ctl, scripted_server, a_map):
    scripted_server.map = a_map({"n1": "a:7420", "n2": "b:7420"})
    done = ctl("transfer", "data-0", "n1", "--timeout", "1", "--json")
    assert (done.status, done.err) == (0, "")
    assert scripted_server.received[0].body == c.Transfer("data-0", "n1")
    done = ctl("transfer", "data-0", "n2", "--timeout", "1", "--json")
    assert (done.status, done.err) == (0, "n2 is unreachable: it leads data-0 once it is back\n")
    assert json.loads(done.out)["text"] == "under way"


def test_what_was_done_is_told_whole(ctl, scripted_server):
    """What a rebalance removes was cut off."""
    text = "; ".join(f"data-{number}: n2 goes" for number in range(30))
    scripted_server.answer = lambda received: received.reply(c.Done(text, 2))
    assert text in ctl("groups", "rebalance").out


def test_the_status_needs_nobody_who_knows_the_brokers(ctl, scripted_server):
    usual = scripted_server.answer
    scripted_server.answer = lambda received: (
        received.fail(ConflictError("no")) if isinstance(received.body, b.BrokerList) else usual(received)
    )
    done = ctl("status")
    assert done.status == 0
    assert "brokers" not in done.out
    assert json.loads(ctl("status", "--json").out)["brokers"] is None


def test_tables(ctl):
    assert ctl("get", "kv", "ns", "k").out == (
        "field            value\n"
        "namespace        ns\n"
        "key              k\n"
        "value            k\n"
        "version          1\n"
        "create_revision  1\n"
        "mod_revision     1\n"
        "lease\n"
    )
    table = ctl("sessions").out.splitlines()
    assert table[0].split() == ["tenant", "client", "broker", "epoch", "state", "since", "ends"]
    assert [line.split()[1] for line in table[1:]] == ["c0", "c1", "c2"]
    assert ctl("groups").out == (
        "group       leader  replicas  learners  lag  slots\n"
        "metadata-0  -       n1        -         -    -\n"
        "offset-0    -       n1        -         -    -\n"
        "data-0      n1      n1, n2    -         -    1024\n"
    )


def test_brokers(ctl):
    assert ctl("brokers").out == (
        "broker  epoch  state   since  address  region  load  lease  earlier lives\n"
        "b1      7      active  -      h:1      -       0     10 s   fenced\n"
    )
    document = json.loads(ctl("brokers", "--json").out)
    (record,) = document["brokers"]
    assert document["more"] is False
    assert (record["broker_epoch"], record["attributes"], record["least_epoch"]) == (7, {"version": "5"}, 0)
    assert ctl("brokers", "get", "b1").out.splitlines()[-1].split() == ["version", "5"]
    assert ctl("brokers", "fence", "b1").out.splitlines()[-1].split() == ["unfenced_groups", "data-0"]


NOW_MS = 1_700_000_000_000  # 22:13:20 UTC


@pytest.fixture
def now(monkeypatch):
    """Stops the clock of this machine."""
    monkeypatch.setattr(time, "time", lambda: NOW_MS / 1_000)


@pytest.mark.parametrize(
    ("at_ms", "text"),
    [
        (0, None),
        (NOW_MS - 190_000, "22:10:10Z, 3 min 10 s ago"),
        (NOW_MS + 30_000, "22:13:50Z, in 30 s"),
        (NOW_MS - 86_400_000, "2023-11-13 22:13Z, 1 d ago"),
        (NOW_MS + 7_200_000, "2023-11-15 00:13Z, in 2 h"),
        (2**63 - 1, "9999-12-31 23:59Z, in 106751971491 d 8 h"),
    ],
)
def test_a_time_is_shown_with_its_distance_from_now(at_ms, text):
    assert people.when(at_ms, NOW_MS) == text


def away(client, since_ms, expires_ms=0, interval_s=60, will=None):
    kept = m.SessionProperties(interval_s, b"state", will)
    return m.Session("t", client, False, "b1", 7, since_ms, kept, expires_ms, since_ms + 5_000 if will else 0)


@pytest.fixture
def clients(scripted_server):
    """Sessions in every state; c1 has subscriptions, things in flight and wills."""
    sessions = [
        away("c0", NOW_MS - 10_000, NOW_MS + 50_000),
        away("c1", NOW_MS - 10_000, NOW_MS + 3_590_000, 3_600, m.Will("gone", b"bye", delay_s=5)),
        m.Session("t", "c2", True, "b2", 1, 0, m.SessionProperties()),
        away("c3", NOW_MS - 10_000, interval_s=m.NEVER_S),
        away("c4", NOW_MS - 10_000),
    ]
    dues = [
        DueWill("t", "c1", "1", m.Will("old", b"bye"), NOW_MS - 60_000, WillClaimant("b1", 7, NOW_MS + 20_000, 1)),
        DueWill("t", "c1", "2", m.Will("older"), NOW_MS - 90_000, WillClaimant("b1", 7, NOW_MS - 20_000, 2)),
        DueWill("t", "c11", "3", m.Will("of another"), NOW_MS - 1_000),
    ]

    def answer(received):
        match received.body:
            case m.SessionList():
                received.reply(m.ListReply(sessions, b""))
            case m.Get() if isinstance(received.body, SESSION_GET.body):
                (key,) = received.body.items
                received.reply(SESSION_GET.reply([one for one in sessions if one.client_id == key.client_id]))
            case WillList():
                received.reply(m.ListReply(dues, b""))
            case _:
                received.reply()

    scripted_server.answer = answer


def test_sessions_are_shown_with_their_deadlines(ctl, clients, now):
    assert ctl("sessions").out == (
        "tenant  client  broker  epoch  state      since                ends\n"
        "t       c0      b1      7      away       22:13:10Z, 10 s ago  22:14:10Z, in 50 s\n"
        "t       c1      b1      7      away       22:13:10Z, 10 s ago  23:13:10Z, in 59 min 50 s\n"
        "t       c2      b2      1      connected  -                    -\n"
        "t       c3      b1      7      away       22:13:10Z, 10 s ago  never\n"
        "t       c4      b1      7      away       22:13:10Z, 10 s ago  22:14:10Z, in 50 s\n"
    )
    for option, names in (("--connected", ["c2"]), ("--away", ["c0", "c1", "c3", "c4"])):
        document = json.loads(ctl("sessions", option, "--json").out)
        assert [one["client_id"] for one in document["sessions"]] == names
        assert document["more"] is False
    document = json.loads(ctl("sessions", "--away", "--limit", "2", "--json").out)
    assert [one["client_id"] for one in document["sessions"]] == ["c0", "c1"]
    assert document["more"] is True
    assert document["sessions"][0]["expires_ms"] == NOW_MS + 50_000


def test_sessions_are_counted_by_broker_and_state(ctl, clients):
    assert ctl("sessions", "count").out == (
        "5 sessions\n\nbroker  connected  away\nb1      0          4\nb2      1          0\n"
    )
    document = json.loads(ctl("sessions", "count", "--json").out)
    assert (document["sessions"], document["more"]) == (5, False)
    assert document["brokers"][1] == {"broker": "b2", "connected": 1, "away": 0}
    some = ctl("sessions", "count", "--limit", "3")
    assert some.out.startswith("3 sessions are counted, and there are more\n")
    assert some.err == "metadctl: the first 3 are shown; --limit 0 shows all\n"


def test_everything_of_one_client(ctl, clients, now):
    document = json.loads(ctl("sessions", "get", "t", "c1", "--json").out)
    assert [*document] == ["session", "subscriptions", "inflight", "inflight_count", "wills_due"]
    assert document["session"]["will_ms"] == NOW_MS - 5_000
    assert (document["subscriptions"][0]["filter"], document["inflight_count"]) == ("n", 1)
    assert [one["id"] for one in document["wills_due"]] == ["1", "2"]
    done = ctl("sessions", "get", "t", "c1")
    facts, filters, inflight, dues = done.out.split("\n\n")
    shown = dict(line.split(maxsplit=1) for line in facts.splitlines() if "  " in line)
    assert (shown["state"], shown["ends"], shown["subscriptions"]) == ("away", "23:13:10Z, in 59 min 50 s", "1")
    assert "will           gone, 3 B, 5 s after the client has gone\n" in facts
    assert "will due       22:13:15Z, 5 s ago\n" in facts
    for client, stays in (("c1", "1 h"), ("c2", "no longer than its client"), ("c3", "ever")):
        assert f"stays for      {stays}\n" in ctl("sessions", "get", "t", client).out
    assert filters.splitlines()[0] == "subscriptions"
    assert inflight.splitlines() == ["in flight", "name  bytes", "n     0"]
    assert len(dues.splitlines()) == 4


def test_wills_say_for_how_long_they_are_due_and_who_has_them(ctl, clients, now):
    first, second, third = ctl("wills").out.splitlines()[1:]
    assert "b1, epoch 7" in first
    assert "22:12:20Z, 1 min ago" in first
    assert "22:13:40Z, in 20 s" in first
    assert "b1" not in second
    assert second.split()[-1] == "2"
    assert "22:13:19Z, 1 s ago" in third
    document = json.loads(ctl("wills", "--unclaimed", "--json").out)
    assert [one["id"] for one in document["wills"]] == ["2", "3"]
    assert (document["wills"][0]["claimant"]["claims"], document["wills"][1]["claimant"]) == (2, None)


def test_a_session_that_has_ended_may_have_left_a_will(ctl, clients, now, scripted_server):
    before = scripted_server.answer
    scripted_server.answer = lambda received: (
        received.reply(SESSION_GET.reply([None])) if isinstance(received.body, SESSION_GET.body) else before(received)
    )
    document = json.loads(ctl("sessions", "get", "t", "c1", "--json").out)
    assert (document["session"], len(document["wills_due"])) == (None, 2)
    assert "ended; a will is left" in ctl("sessions", "get", "t", "c1").out


def test_leases_say_how_much_time_is_left(ctl):
    table = "lease  holder  left  of     keys\nl      holder  42 s  1 min  0\n"
    assert ctl("leases", "--namespace", "ns").out == table
    document = json.loads(ctl("leases", "get", "ns", "l", "--json").out)
    assert (document["lease"]["left_ms"], document["keys"], document["more"]) == (42_000, ["k"], False)
    assert ctl("leases", "get", "ns", "l").out.endswith("\n\nkeys\nkey\nk\n")


def test_retained_messages(ctl, now, scripted_server):
    found = [r.Retained("t", "a", b"on", 1, b"", NOW_MS + 60_000, 5), r.Retained("t", "b", b"\xff")]
    scripted_server.answer = lambda received: received.reply(m.ListReply(found, b""))
    assert ctl("retained", "--tenant", "t").out == (
        "topic  qos  bytes  expires              payload\n"
        "a      1    2      22:14:20Z, in 1 min  on\n"
        "b      0    1      never                1 bytes that are no text\n"
    )
    document = json.loads(ctl("retained", "--tenant", "t", "--json").out)
    one, other = document["retained"]
    assert (one["expires_ms"], other["payload_base64"]) == (NOW_MS + 60_000, "/w==")


def test_a_consumer_group_is_shown_with_its_offsets(ctl):
    document = json.loads(ctl("groups", "consumer", "get", "t", "g", "--json").out)
    assert (document["generation"], document["offsets"][0]["offset"], document["more"]) == (5, 42, False)
    assert (document["state"], [one["member"] for one in document["members"]]) == ("stable", ["1.1"])
    facts, members, offsets = ctl("groups", "consumer", "get", "t", "g").out.split("\n\n")
    assert ["generation", "5"] in [line.split() for line in facts.splitlines()]
    assert ["state", "stable"] in [line.split() for line in facts.splitlines()]
    assert members.splitlines()[1].split()[:3] == ["member", "instance", "holder"]
    assert members.splitlines()[2].split()[0] == "1.1"
    assert offsets.splitlines()[2].split()[:3] == ["topic", "0", "42"]
    listed = json.loads(ctl("groups", "consumer", "--tenant", "t", "--json").out)
    assert listed == {"groups": [{"tenant": "t", "group": "group", "generation": 5}], "more": False}


def test_status_is_of_the_whole_cluster(ctl, scripted_server, a_map):
    scripted_server.map = a_map({"n1": "a:7420", "n2": "b:7420"})
    done = ctl("status", "--timeout", "1")
    assert done.status == 0
    top, facts, nodes, groups = done.out.split("\n\n")
    verdict, *found = top.splitlines()
    assert verdict == "CRITICAL: 1 of 2 nodes up, 1 of 3 groups led"
    assert found[0] == "critical group_no_leader: metadata-0 and offset-0: no leader; 0 of 2 replicas reachable"
    assert "warning node_unreachable: n2: not reached: connection refused by b:7420" in found
    assert facts.splitlines() == [
        "cluster c1, map version 1, via given",
        "brokers: 1 active",
        "sessions: 7 ended, 3 deadlines not carried out, the oldest 2 s late, 2 fences not swept",
        "wills: 4 came due, 5 wait, no broker has 1 of them, the oldest for 1 min",
        "(nothing is known of groups that nobody leads)",
    ]
    assert [line.split()[:2] for line in nodes.splitlines()[1:]] == [["n1", "up"], ["n2", "unreachable"]]
    assert groups.splitlines()[-1].split()[:2] == ["data-0", "n1"]
    check = ctl("status", "--check", "--timeout", "1")
    assert (check.status, check.out) == (2, top + "\n")
    row = json.loads(ctl("status", "--json", "--timeout", "1").out)
    assert (row["verdict"], row["nodes_up"], row["nodes_total"], row["groups_led"]) == ("critical", 1, 2, 1)
    (problem,) = [one for one in row["problems"] if one["code"] == "node_unreachable"]
    assert (problem["severity"], problem["node"], "group" in problem) == ("warning", "n2", False)
    (up, down) = json.loads(ctl("members", "--json", "--timeout", "1").out)
    assert (up["node"], up["state"], up["leads"], up["rss_bytes"]) == ("n1", "up", 1, 4 << 20)
    assert (up["sessions_ended"], up["wills_due"], up["overdue_ms"]) == (7, 4, 2_000)
    assert up["wills_dropped"] == 0
    assert up["backlog"]["unclaimed_ms"] == 60_000
    assert row["brokers"] == {"active": 1}
    assert row["expiry"] == {
        "sessions_ended": 7,
        "deadlines_late": 3,
        "overdue_ms": 2_000,
        "fences_unswept": 2,
        "wills_due": 4,
        "wills_waiting": 5,
        "wills_unclaimed": 1,
        "unclaimed_ms": 60_000,
        "tenants_ending": 0,
        "more": False,
    }
    assert (down["node"], down["state"]) == ("n2", "unreachable")
    table = ctl("members", "--timeout", "1").out
    assert max(map(len, table.splitlines())) <= 80, "it fits the screen of a person"
    head, first, second = table.splitlines()
    assert head.split() == ["node", "state", "health", "endpoint", "leads", "disk", "free", "version", "up", "for"]
    assert first.split()[:3] == ["n1", "up", "ok"]
    assert first.split()[-3:] == ["0.1.0", "2", "s"]
    assert second.split()[:3] == ["n2", "unreachable", "-"]
    wide = ctl("members", "--wide", "--timeout", "1").out
    assert max(map(len, wide.splitlines())) <= 80
    assert wide.count("\n\n") == 1  # a part for each node
    assert "memory                      4.0 MiB" in wide
    assert "rss_bytes" not in wide
    one = ctl("members", "n1", "--timeout", "1").out
    assert wide.startswith(one)
    assert json.loads(ctl("members", "n2", "--timeout", "1", "--json").out) == [down]
    none = ctl("members", "n9", "--timeout", "1")
    assert (none.status, none.err) == (1, "metadctl: n9 is no member of the cluster\n")


def test_a_healthy_node_is_ok(ctl, scripted_server):
    names = ["metadata-0", "offset-0", "data-0"]
    groups = [
        m.GroupStatus(name, name.partition("-")[0], 1024, 5, 1, 5, 100, "leader", "n1", 3, 5, ["n1"]) for name in names
    ]
    status = m.StatusReply("n1", "c1", "0.1.0", 1, 12_000_000, 3_000, 4 << 20, True, 1, 1, 0, 5, 5, groups)
    scripted_server.answer = lambda received: received.reply(status)
    check = ctl("status", "--check")
    assert (check.status, check.out) == (0, "OK: 1 of 1 nodes up, 3 of 3 groups led\n")
    assert "3 h 20 min" in ctl("status").out
    assert "4.0 MiB" in ctl("status").out
    assert json.loads(ctl("status", "--check", "--json").out)["problems"] == []


def test_a_wait_ends_with_the_verdict_that_is_wanted_or_in_time(ctl, scripted_server):
    names = ["metadata-0", "offset-0", "data-0"]
    groups = [
        m.GroupStatus(name, name.partition("-")[0], 1024, 5, 1, 5, 100, "leader", "n1", 3, 5, ["n1"]) for name in names
    ]
    ill = m.StatusReply(
        "n1", "c1", "0.1.0", 1, 12_000_000, 3_000, 4 << 20, True, 1, 1, 0, 5, 5, groups, failing="hangs"
    )
    replies = iter([ill, ill])
    scripted_server.answer = lambda received: received.reply(next(replies, replace(ill, failing="")))
    done = ctl("status", "--wait", "OK", "--check", "--timeout", "60s")
    assert (done.status, done.out) == (0, "OK: 1 of 1 nodes up, 3 of 3 groups led\n")
    assert done.err == "metadctl: waits: warning disk_failing: n1: hangs\n"  # once, although it looked twice
    scripted_server.answer = lambda received: received.reply(ill)
    late = ctl("status", "--wait", "ok", "--timeout", "1s")
    assert (late.status, late.out.splitlines()[0]) == (1, "WARNING: 1 of 1 nodes up, 3 of 3 groups led")
    assert ctl("status", "--wait", "WARN").status == 0
    assert ctl("status", "--check", "--despite", "disk_failing").status == 0
    assert json.loads(ctl("status", "--json", "--despite", "disk_failing").out)["verdict"] == "ok"
    for wrong in ("--wait fine", "--despite everything", "--timeout 2h --wait OK", "--timeout soon"):
        assert ctl("status", *wrong.split()).status == 2
    asyncio.run(scripted_server.stop_listening())
    gone = ctl("status", "--wait", "OK", "--check", "--timeout", "1")
    assert gone.status == 3
    assert gone.out.startswith("UNKNOWN: no node could be asked: ")


def test_a_server_whose_cluster_is_being_formed_has_a_status_too(ctl, scripted_server):
    scripted_server.map = None
    done = ctl("status")
    assert done.status == 0
    assert done.out.startswith("CRITICAL: 1 of 1 nodes up, 1 of 1 groups led\n")
    assert "critical group_no_leader: metadata-0: the cluster is being formed\n" in done.out
    assert "map version 0" in done.out
    assert done.out.splitlines()[-1].split()[:2] == ["data-0", "n1"]
    assert ctl("status", "--check").status == 2


def test_the_lanes_of_a_member_are_words(ctl, scripted_server):
    lanes = [m.LaneStatus("heartbeats", 1_200, 0), m.LaneStatus("records", 7, 3)]
    status = m.StatusReply("n1", "c1", "0.1.0", 1, 1, 1, 1, True, 1, 1, 0, 5, 5, [], lanes=lanes)
    scripted_server.answer = lambda received: received.reply(status)
    wide = [" ".join(line.split()) for line in ctl("members", "--wide").out.splitlines()]
    assert {"lane heartbeats 1,200", "lane records 7 and 3 refused"} <= {*wide}
    (row,) = json.loads(ctl("members", "--json").out)
    assert row["lanes"][1] == {"lane": "records", "admitted": 7, "refused": 3}


def test_links(ctl, scripted_server):
    refused = m.PeerLink("n3", "tls", False, refuses="it was here with another data directory")
    links = [m.PeerLink("n2", "quic", True, 80_123), refused]
    status = m.StatusReply("n1", "c1", "0.1.0", 1, 1, 1, 1, True, 1, 1, 0, 5, 5, [], "", links)
    scripted_server.answer = lambda received: received.reply(status)
    assert ctl("links").out == (
        "node  to  state  transport  round trip  reason\n"
        "n1    n2  up     quic       80.1 ms     -\n"
        "n1    n3  down   tls        -           n3 is refused: it was here with another…\n"
    )
    down = json.loads(ctl("links", "--json").out)[1]
    assert down["reason"] == "n3 is refused: it was here with another data directory"


def test_the_leaders_word_counts_most():
    def status(node, *groups):
        links = [m.PeerLink(other, "tcp", True) for other in ("n1", "n2", "n3") if other != node]
        return m.StatusReply(node, "c", "v", 1, 1, 1, 1, True, 1, 1, 0, 1, 1, list(groups), "", links)

    def group(role, term, applied, leader):
        return m.GroupStatus("data-0", "data", 8, applied, 1, 9, 0, role, leader, term, applied, ["n1"], ["n2"])

    statuses = {
        "n1": status("n1", group("leader", 3, 90, "n1")),
        "n2": status("n2", group("leader", 4, 70, "n2")),
        "n3": status("n3", group("follower", 4, 80, "n2")),
        "n4": ConnectionLostError("gone"),
    }
    (row,) = overview.groups(view(c.MapReply(0, None, {}), statuses))
    assert (row["leader"], row["term"], row["applied"], row["learners"]) == ("n2", 4, 70, ["n2"])


def test_an_empty_listing_says_so(ctl, scripted_server):
    scripted_server.answer = lambda received: received.reply(m.ListReply([], b""))
    assert ctl("list", "kv", "ns").out == "nothing found\n"
    assert ctl("list", "kv", "ns", "--json").out == "[]\n"


def test_json_holds_bytes_that_are_no_text(ctl, scripted_server):
    scripted_server.answer = lambda received: received.reply(KV_GET.reply([m.Kv("ns", "k", b"\xff", 1, 1, 1)]))
    assert json.loads(ctl("get", "kv", "ns", "k", "--json").out)["value_base64"] == "/w=="


def test_options_may_stand_before_or_behind(ctl):
    assert ctl("--json", "get", "kv", "ns", "k").out == ctl("get", "kv", "ns", "k", "--json").out


def test_a_value_from_stdin(ctl, scripted_server, monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"\x00\xffpiped")))
    assert ctl("put", "kv", "ns", "k", "-").status == 0
    assert scripted_server.received[0].body.items[0].value == b"\x00\xffpiped"


def test_a_listing_stops_at_its_limit_and_says_so(ctl, scripted_server):
    keys = m.ListReply([m.Kv("ns", f"k{i}", b"v", 1, 1, 1) for i in range(3)], b"")
    scripted_server.answer = lambda received: received.reply(keys if isinstance(received.body, m.KvScan) else None)
    for words in (["list", "kv", "ns"], ["sessions"]):
        done = ctl(*words, "--limit", "2", "--json")
        assert done.err == "metadctl: the first 2 are shown; --limit 0 shows all\n"
        assert ctl(*words, "--limit", "3").err == ""
        assert ctl(*words, "--limit", "0").err == ""
    document = json.loads(done.out)
    assert [session["client_id"] for session in document["sessions"]] == ["c0", "c1"]
    assert document["more"] is True
    assert json.loads(ctl("sessions", "--limit", "3", "--json").out)["more"] is False


def test_what_is_not_there(ctl, scripted_server):
    def answer(received):
        match received.body:
            case m.Get() if isinstance(received.body, SESSION_GET.body):
                received.reply(SESSION_GET.reply([None]))
            case WillList():
                received.reply(m.ListReply([], b""))
            case m.Get() if isinstance(received.body, LEASE_GET.body):
                received.reply(LEASE_GET.reply([None]))
            case m.Get() if isinstance(received.body, RETAINED_GET.body):
                received.reply(RETAINED_GET.reply([None]))
            case b.BrokerGet():
                received.reply(b.BrokerGetReply([None]))
            case ConsumerDescribe():
                received.reply(ConsumerDescribeReply([None]))
            case ConsumerMembers():
                received.reply(m.ListReply([], b""))
            case m.OffsetGenerations():
                received.reply(m.OffsetGenerationsReply([0]))
            case m.OffsetList():
                received.reply(m.ListReply([], b""))
            case m.Get() if isinstance(received.body, OFFSET_FETCH.body):
                received.reply(OFFSET_FETCH.reply([None]))
            case m.Get() if isinstance(received.body, KV_GET.body):
                received.reply(KV_GET.reply([None]))
            case m.Get():
                received.reply()
            case _:
                received.reply(m.WriteReply([], [m.ItemError(0, 200)]))

    scripted_server.answer = answer
    for verb in ("get", "delete"):
        done = ctl("sessions", verb, "t", "c")
        assert (done.status, done.out, done.err) == (1, "", "metadctl: no session t/c\n")
        assert ctl("retained", verb, "t", "a/b").err == "metadctl: no retained message t/a/b\n"
        assert ctl(verb, "offset", "t", "g", "topic", "1").err == "metadctl: no offset t/g/topic/1\n"
        assert ctl(verb, "kv", "ns", "k").err == "metadctl: no key ns/k\n"
    for verb in ("get", "revoke"):
        assert ctl("leases", verb, "ns", "l").err == "metadctl: no lease ns/l\n"
    assert ctl("brokers", "get", "b9").err == "metadctl: no broker b9\n"
    assert ctl("groups", "consumer", "get", "t", "g").err == "metadctl: no consumer group t/g\n"
    done = ctl("groups", "consumer", "dismiss", "t", "g", "1.1")
    assert (done.status, done.err) == (1, "metadctl: no member 1.1 of consumer group t/g\n")


def test_a_group_that_is_not_there(ctl, scripted_server):
    done = ctl("transfer", "data-9", "n1")
    assert (done.status, done.err) == (1, "metadctl: there is no group data-9\n")
    assert scripted_server.received == []


def test_the_tables_of_families_are_listed_by_family_and_have_their_verbs(ctl):
    page = ctl("--help").out
    assert "core: tenants, namespaces, topics, " in page
    assert "queue: subscription-groups\n" in page
    assert "\n    topics " not in page  # the commands of metad itself are not lost among them
    named = [name for line in page.partition("what brokers keep")[2].splitlines() for name in line.split(", ")]
    for plural in PLURALS.values():
        assert any(plural in name for name in named)
    shown = ctl("topics", "put", "--help").out
    assert "tenant, topic, [partitions]" in " ".join(shown.split())
    assert ctl("rules", "list", "--help").status == 0
    assert "TENANT CONNECTOR TASK" in ctl("connector-tasks", "get", "--help").out
    assert ctl("connector-tasks", "get", "t", "c").status == 2


def test_errors_are_one_line(ctl, scripted_server):
    scripted_server.answer = lambda received: received.fail(ConflictError("version is 3\nand more"))
    done = ctl("put", "kv", "ns", "k", "v")
    assert (done.status, done.out, done.err) == (1, "", "metadctl: conflict: version is 3 and more\n")


def test_nobody_there(ctl, scripted_server):
    asyncio.run(scripted_server.stop_listening())
    done = ctl("groups")
    assert (done.status, done.err) == (1, "metadctl: connection refused by a:7420\n")
    for flags in ([], ["--check"]):
        done = ctl("status", *flags)
        text = "UNKNOWN: no node could be asked: connection refused by a:7420\n"
        assert (done.status, done.out, done.err) == (3, text, "")
    row = json.loads(ctl("status", "--json").out)
    assert (row["verdict"], row["problems"]) == ("unknown", [])


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
        ("sessions takeover t c", "--broker"),
        ("sessions get t", "CLIENT"),
        ("sessions --connected --away", "not allowed with"),
        ("sessions --limit -1", "not between 0"),
        ("wills --prefix c", "--prefix needs --tenant"),
        ("subscriptions --prefix c", "--prefix needs --tenant"),
        ("watch session --prefix c", "--prefix needs --tenant"),
        ("retained", "--tenant is missing"),
        ("leases", "--namespace is missing"),
        ("groups consumer", "--tenant is missing"),
        ("list sessions", "invalid choice"),
        ("get session t c", "invalid choice"),
        ("groups add", "--kind"),
        ("groups rebalance --replicas 0", "a group has at least one"),
        ("join n2", "--peer"),
        ("join n2 --peer here", "not HOST:PORT"),
        ("transfer data-0", "NODE"),
        ("sessions --prefix c", "--prefix needs --tenant"),
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


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Those of a fleet, a file that is none, and a token."""
    at = tmp_path_factory.mktemp("certificates")
    issue_fleet(at, ["n1"], [], admins=["ops"])
    (at / "junk").write_bytes(b"\xffnone")
    (at / "token").write_text("token\n")
    return at


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("--certs {0}/none", "has no client"),
        ("--tls-ca {0}/none", "No such file"),
        ("--tls-ca {0}/junk", "cannot use the authorities"),
        ("--certs {0} --tls-cert {0}/junk", "cannot use the certificate"),
        ("--certs {0} --tls-key {0}/node-n1-key.pem", "the key is not the certificate's"),
        ("--certs {0} --token-file {0}/none", "cannot read the token"),
        ("--certs {0} --token-file {0}/junk", "it is no text"),
        ("--token-file {0}/token", "not sent in clear text"),
    ],
)
def test_a_check_that_cannot_use_its_own_files_knows_nothing(capsys, certificates, options, complaint):
    """Its exit status was 2, which says that the cluster is unwell."""
    arguments = options.format(certificates).split()
    assert cli.main(["status", "--check", *arguments]) == 3
    told = capsys.readouterr()
    assert told.out.startswith("UNKNOWN: no node could be asked: ")
    assert complaint in told.out
    assert (told.out.count("\n"), told.err) == (1, "")
    with pytest.raises(SystemExit, match="2"):
        cli.main(["status", *arguments])


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
