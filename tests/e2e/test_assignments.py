"""The commands of metadctl for what metad assigns, on a real node: resources are made, placed, elected and moved, and
plans begin, pause and end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from e2e_metadctl import metadctl, printed
from serving_brokers import idle_brokers

from metad import embedded
from metad_client import blocking
from metad_client.cli.command_line import main
from waiting import wait_until

BROKERS = ("b1", "b2", "b3")


@pytest.fixture(scope="module")
def server() -> Iterator[embedded.Server]:
    with idle_brokers(BROKERS) as server:
        yield server


@pytest.fixture
def orders(server: embedded.Server, request: pytest.FixtureRequest) -> str:
    """The tenant of a topic with three partitions of two replicas."""
    tenant: str = request.node.name
    made = printed(server, *f"resources create {tenant} orders --partitions 3 --replication 2".split())
    assert made == {"created": True}
    return tenant


def partition(server: embedded.Server, tenant: str, number: int = 0) -> Any:
    return printed(server, "partitions", "get", tenant, "orders", "topic", str(number))


def replicas_of(server: embedded.Server) -> dict[str, int]:
    """How many each broker has."""
    return {name: printed(server, "partitions", "count", "--broker", name)["records"] for name in BROKERS}


def test_a_resource_is_made_altered_resized_and_deleted(server: embedded.Server, orders: str) -> None:
    assert printed(server, "partitions", "count", orders, "orders") == {"records": 3}
    by_broker = [printed(server, "partitions", "list", "--broker", name) for name in BROKERS]
    assert sum(one["tenant"] == orders for each in by_broker for one in each) == 6
    named = ["--min-isr", "2", "--repair-after-ms", "0", "--spread", "none", "--attribute", "owner=ops"]
    assert printed(server, "resources", "alter", orders, "orders", *named) == {"changed": True}
    found = printed(server, "resources", "get", orders, "orders", "topic")
    assert (found["min_isr"], found["repair_after_ms"], found["spread"]) == (2, 0, "none")
    assert (found["attributes"], found["labels"]) == ({"owner": "ops"}, {})
    resized = printed(server, *f"resources resize {orders} orders --partitions 5 --write-partitions 4".split())
    assert resized == {"changed": True}
    assert len(printed(server, "partitions", "list", orders, "orders")) == 5
    assert printed(server, "resources", "delete", orders, "orders") == {"ordered": True}
    wait_until(lambda: partition(server, orders)["state"] == "deleting", "its brokers are told")
    status, out, err = metadctl(server, "resources", "resize", orders, "orders", "--partitions", "6")
    assert (status, out) == (1, "")
    assert "is being deleted" in err


def test_a_partition_is_explained_elected_and_moved(server: embedded.Server, orders: str) -> None:
    first, second = partition(server, orders)["replicas"]
    (third,) = {*BROKERS} - {first, second}
    told = printed(server, "partitions", "explain", orders, "orders", "0")
    assert (told["state"], told["next"]) == ("online", "nothing is to be done")
    assert [(one["broker"], one["lacks"]) for one in told["candidates"]] == [(first, ""), (second, "")]
    led = printed(server, "partitions", "elect", orders, "orders", "0", "--broker", second)
    assert led["leader"]["broker"] == second
    assert led["leader_epoch"] == 2
    status, _, err = metadctl(server, "partitions", "elect", orders, "orders", "0", "--broker", third)
    assert status == 1
    assert third in err

    moved = printed(server, "partitions", "move", orders, "orders", "0", second, third)
    assert moved["move"]["wanted"] == [second, third]
    status, out, _ = metadctl(server, "partitions", "explain", orders, "orders", "0")
    assert status == 0
    assert f"waits to end the move until {third} are in sync" in out
    assert re.search(rf"^{third} +\d+ +it is not in sync$", out, re.MULTILINE)
    cancelled = printed(server, "partitions", "move", orders, "orders", "0", "--cancel")
    assert sorted(cancelled["replicas"]) == sorted([first, second])
    assert cancelled["move"] is None
    status, _, err = metadctl(server, "partitions", "move", orders, "orders", "0", "--cancel")
    assert (status, "no move is under way" in err) == (1, True)


def test_a_partition_is_shown_in_words(server: embedded.Server, orders: str) -> None:
    """Once a listing had Python's dicts, a column of leaders that was called `broker`, and was due in 0 ms."""
    for words in (["partitions", "list", orders, "orders"], ["records", "list", "partition", orders]):
        header, *lines = metadctl(server, *words)[1].splitlines()
        assert re.split("  +", header)[4:] == [
            *("state", "leader", "leader epoch", "replicas", "moves to", "in sync", "why")
        ]
        assert len(lines) == 3
        assert not any("{" in line for line in lines)
    shown = metadctl(server, "partitions", "get", orders, "orders", "topic", "0")[1]
    first, second = partition(server, orders)["replicas"]
    assert re.search(rf"^leader +{first} in life \d+$", shown, re.MULTILINE)
    assert re.search(rf"^in sync +{first} in life \d+, {second} in life \d+$", shown, re.MULTILINE)
    assert re.search("^looked at again +-$", shown, re.MULTILINE)
    assert "{" not in shown


def test_partitions_are_named_as_get_names_them(server: embedded.Server, orders: str) -> None:
    key = [orders, "orders", "topic", "1"]
    for words in (key, [orders, "orders", "1"], [orders, "orders", "1", "--kind", "topic"], [*key[:3], "--json", "1"]):
        assert printed(server, "partitions", "explain", *words)["partition"] == 1
    first, second = partition(server, orders, 1)["replicas"]
    (third,) = {*BROKERS} - {first, second}
    assert printed(server, "partitions", "elect", *key, "--broker", second)["leader"]["broker"] == second
    for words in (key, [orders, "orders", "1", "--kind", "topic"], [orders, "orders", "1"]):
        moved = printed(server, "partitions", "move", *words, second, third)
        assert moved["move"]["wanted"] == [second, third]
        assert printed(server, "partitions", "move", *words, "--cancel")["move"] is None
    for verb in ("alter", "resize --partitions 4"):
        assert printed(server, "resources", *verb.split(), *key[:3]) == {"changed": True}
    for words in ([*key[:3]], [orders, "orders", "1", "2"], [*key, "2"]):
        assert metadctl(server, "partitions", "explain", *words).returncode == 2


@pytest.mark.parametrize("family", ["resources", "partitions", "topics"])
def test_a_family_lists_its_records(server: embedded.Server, orders: str, family: str) -> None:
    assert metadctl(server, family) == metadctl(server, family, "list")
    assert printed(server, family) == printed(server, family, "list")


def test_a_wrong_command_line_gets_the_usage_of_its_command(
    server: embedded.Server, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, said in (
        (["partitions", "explain", "a", "b", "--what", "0"], "unrecognized arguments: --what"),
        (["partitions", "move", "a", "b", "0"], "name the brokers that are to have the partition, or --cancel"),
        (["plans", "list", "\x1b[31m"], "unrecognized arguments: \\x1b[31m"),
        (["plans", "--what"], "unrecognized arguments: --what"),
    ):
        with pytest.raises(SystemExit) as exit:
            main(["--endpoint", server.endpoint, *words])
        err = capsys.readouterr().err
        assert exit.value.code == 2
        command = " ".join(words[: 1 if words[1].startswith("-") else 2])
        assert err.startswith(f"usage: metadctl {command} [-h]")
        assert err.endswith(f"metadctl {command}: error: {said}\n")


def test_complaints_have_no_control_characters(server: embedded.Server) -> None:
    status, _, err = metadctl(server, "topics", "get", "t", "\x1b[2J\x07")
    assert (status, err) == (1, "metadctl: no topic t/\\x1b[2J\\x07\n")


def test_nobody_is_said_to_be_fenced_who_had_no_life_before(server: embedded.Server) -> None:
    assert re.search("^b1 .* none, or fenced$", metadctl(server, "brokers")[1], re.MULTILINE)


def test_an_explanation_is_whole_where_nobody_has_a_terminal(server: embedded.Server, orders: str) -> None:
    printed(server, *f"resources create {orders} lone --replicas b1 --replication 2 --min-isr 2".split())
    out = metadctl(server, "partitions", "explain", orders, "lone", "0")[1]
    assert re.search(
        "^next +nothing is acknowledged until 2 are in sync: there are no other replicas$", out, re.MULTILINE
    )


def test_a_plan_is_begun_shown_paused_and_ended(server: embedded.Server, orders: str) -> None:
    begun = printed(server, *f"plans drain {orders} b1 --moves 1 --throttle 1000000".split())
    assert begun == {"plan": orders, "state": "running"}

    def shown() -> Any:
        return printed(server, "plans", "show", orders)

    wait_until(lambda: (shown()["moving"], shown()["begun"]) == (1, 1), "a move")
    now = shown()
    assert (now["rule"], now["moves"], now["throttle_bytes"], now["begun"]) == ("drain", 1, 1_000_000, 1)
    assert now["replicas"] == {"b1": replicas_of(server)["b1"]}
    status, out, _ = metadctl(server, "plans", "show", orders)
    assert status == 0
    assert "moving now       1\n" in out
    assert f"left on them\nbroker  state   replicas\nb1      active  {now['replicas']['b1']}\n" in out
    for verb, state in (("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")):
        assert printed(server, "plans", verb, orders) == {"plan": orders, "state": state}
    assert metadctl(server, "plans", "resume", orders)[0] == 1
    wait_until(lambda: shown()["moving"] == 0, "what was begun is given up")
    for command in ("plans", "plans list"):
        (listed,) = printed(server, *command.split(), "--prefix", orders)["plans"]
        assert (listed["plan"], listed["state"]) == (orders, "cancelled")
    assert printed(server, "plans", "delete", orders) == {"deleted": True}
    assert printed(server, "plans", "--prefix", orders)["plans"] == []


def test_a_drain_says_why_replicas_stay(server: embedded.Server, orders: str) -> None:
    """Once it was `running` with `begun 0`, and no reason."""
    made = f"resources create {orders} wide --replication 3 --partitions 2".split()
    assert printed(server, *made) == {"created": True}
    printed(server, "plans", "drain", orders, "b1")
    try:
        stay = "no other broker lives that does not drain, and has no replica of the partition yet"
        wait_until(lambda: printed(server, "plans", "show", orders)["stay"].get(stay, 0) >= 2, "they are looked at")
        out = metadctl(server, "plans", "show", orders)[1]
        assert re.search(rf"of those left\nreplicas +why they are still there\n(.*\n)*\d+ +{stay}\n", out), out
    finally:
        printed(server, "plans", "cancel", orders)
        wait_until(lambda: printed(server, "plans", "show", orders)["moving"] == 0, "what was begun is given up")
        printed(server, "plans", "delete", orders)


def test_a_connector_is_assigned_scaled_and_shown(server: embedded.Server, request: pytest.FixtureRequest) -> None:
    tenant: str = request.node.name
    printed(server, "connectors", "put", f"tenant={tenant}", "connector=sink", "plugin=s3", "tasks_max=2")
    for _ in range(2):
        assert printed(server, "connectors", "assign", tenant, "sink") == {"assigned": True}
    assert printed(server, "connectors", "resize", tenant, "sink", "--tasks", "3") == {"changed": True}
    assert printed(server, "connectors", "get", tenant, "sink")["tasks_max"] == 3
    shown = printed(server, "connectors", "tasks", tenant, "sink")
    assert ([one["partition"] for one in shown["tasks"]], shown["more"]) == ([0, 1, 2], False)
    first = shown["tasks"][0]
    assert first["leader"]["broker"] == first["replicas"][0]
    status, out, _ = metadctl(server, "connectors", "tasks", tenant, "sink")
    header, task, *_ = out.splitlines()
    assert (status, header.split()[:4]) == (0, ["task", "state", "leader", "leader"])
    assert re.match(rf"0 +online +{first['leader']['broker']} ", task)
    assert "ago" in task
    assert task.endswith("it is new")
    again = metadctl(server, "resources", "partitions", tenant, "sink", "--kind", "connector")[1]
    assert [line.split()[:5] for line in again.splitlines()] == [line.split()[:5] for line in out.splitlines()]
    for words in (
        ["connectors", "tasks", tenant, "nobody"],
        ["connectors", "resize", tenant, "nobody", "--tasks", "1"],
    ):
        status, _, err = metadctl(server, *words)
        assert (status, "nobody" in err) == (1, True)


def test_a_shard_is_trimmed_and_a_queue_is_of_the_kind_that_it_says(
    server: embedded.Server, request: pytest.FixtureRequest
) -> None:
    tenant: str = request.node.name
    assert printed(server, "shards", "assign", tenant, "log", "--replication", "1") == {"assigned": True}
    with blocking.connect(server.url) as m:
        found = m.assignments.partitions.get(tenant, "log", "shard", 0)
        assert found is not None
        owner = found.record.leader
        assert owner is not None
        m.assignments.seal(tenant, "log", "shard", 0, owner.broker, owner.broker_epoch, 1, 700)
    _, out, _ = metadctl(server, "shards", "segments", tenant, "log")
    assert re.search(r"^0 +sealed .* 700 +sealed at 700$", out, re.MULTILINE), out
    assert printed(server, "shards", "trim", tenant, "log", "1") == {"ordered": True}
    wait_until(
        lambda: printed(server, "shards", "segments", tenant, "log")["segments"][0]["state"] == "deleting",
        "it is trimmed",
    )
    assert metadctl(server, "shards", "trim", tenant, "log", "2")[0] == 1

    for queue, kind in (("q", "quorum"), ("c", "classic")):
        printed(server, "queues", "put", f"tenant={tenant}", "vhost=/", f"queue={queue}", f"type={kind}")
        assert printed(server, "queues", "assign", tenant, "/", queue) == {"assigned": True}
        (leader,) = printed(server, "queues", "leaders", tenant, "/", queue)["leaders"]
        assert (leader["kind"], leader["resource"]) == (f"{kind}_queue", f"%2F/{queue}")
    status, _, err = metadctl(server, "queues", "assign", tenant, "/", "c", "--kind", "quorum_queue")
    assert (status, "of a quorum_queue 'quorum', not 'classic'" in err) == (1, True)


def test_a_topic_that_is_assigned_grows_in_both_places(server: embedded.Server, orders: str) -> None:
    printed(server, "topics", "put", f"tenant={orders}", "topic=orders", "partitions=3")
    for topic in ("orders", "unassigned"):
        printed(server, "topics", "put", f"tenant={orders}", f"topic={topic}", "partitions=3")
    resized = printed(server, "topics", "resize", orders, "orders", "unassigned", "--partitions", "4")
    assert [one["partitions"] for one in resized] == [4, 4]
    shown = printed(server, "topics", "partitions", orders, "orders")["partitions"]
    assert [one["partition"] for one in shown] == [0, 1, 2, 3]


def test_what_only_rules_write_is_not_put(server: embedded.Server, orders: str) -> None:
    for words in (["partitions", "put"], ["resources", "put"], ["partitions", "delete", orders]):
        assert metadctl(server, *words).returncode == 2
    status, _, err = metadctl(server, "records", "delete", "resource", orders, "orders", "topic")
    assert (status, "written by the methods of assignment only" in err) == (1, True)
    assert printed(server, "resources", "count", orders) == {"records": 1}
