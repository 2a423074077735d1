"""metad-spark census, lag, skew, orphans: of a real cluster and its export, and of tables whose every row is known."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import metad.embedded
from metad_client import OffsetCommitItem, SessionDisconnectItem, SessionProperties, SessionTakeoverItem, blocking
from metad_spark.cli import main
from metad_spark.pipeline.context import Context
from metad_spark.queries import census as census_q
from metad_spark.queries import lag as lag_q
from metad_spark.queries import orphans as orphans_q
from metad_spark.queries import skew as skew_q
from metad_spark.source.options import Settings
from metad_spark.source.schema import schema_of
from metad_wire.messages import NEVER_S, SubscriptionOptions
from metad_wire.tables.inflight import Inflight
from metad_wire.tables.subscription import Subscription

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SESSIONS = 90


@pytest.fixture(scope="module")
def spark(context: Context) -> SparkSession:
    return context.session


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """90 sessions of two tenants: 60 at a broker in eu, 30 at one that is not registered, and 15 of those are away."""
    with (
        metad.embedded.cluster(nodes=1) as nodes,
        blocking.connect(nodes.url) as m,
        blocking.connect(nodes.url) as other,
    ):
        life = m.brokers.register("b-eu", region="eu", lease_s=300)
        for begin, end, client, broker, epoch in (
            (0, 60, m, "b-eu", life.owner.broker_epoch),
            (60, SESSIONS, other, "b-nowhere", 1),
        ):
            items = [
                SessionTakeoverItem(
                    f"t{number % 2}",
                    f"c-{number:03}",
                    False,
                    SessionProperties(NEVER_S if number < 6 else 100_000 + number, b"x" * number),
                )
                for number in range(begin, end)
            ]
            client.sessions.takeover_many(broker, epoch, items, deadline_s=60).raise_for_error()
            filters = [
                Subscription(f"t{number % 2}", f"c-{number:03}", f"f/{n}", SubscriptionOptions(1))
                for number in range(begin, end, 10)
                for n in range(3)
            ]
            client.subscriptions.add_many(broker, epoch, filters).raise_for_error()
        m.inflight.put_many(
            "b-eu", life.owner.broker_epoch, [Inflight("t0", "c-002", f"{n}", b"y" * 1_000) for n in range(5)]
        ).raise_for_error()
        away = [SessionDisconnectItem(f"t{number % 2}", f"c-{number:03}") for number in range(75, SESSIONS)]
        other.sessions.disconnect_many("b-nowhere", 1, away).raise_for_error()
        commits = [
            OffsetCommitItem("t0", group, "orders", partition, offset)
            for group, partition, offset in (("fast", 0, 100), ("fast", 1, 70), ("slow", 0, 40), ("alone", 7, 9))
        ]
        other.offsets.commit_many(commits, deadline_s=60).raise_for_error()
        yield nodes.url


@pytest.fixture(scope="module")
def exported(cluster: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("export") / "all"
    assert main(["export", "--source", cluster, "--out", str(folder)]) == 0
    return str(folder)


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Any:
    """Runs a command in the session of the tests, which it must find and leave. Returns its exit code and its JSON."""

    def ran(*args: str) -> tuple[int, dict[str, Any]]:
        out = tmp_path / "out.json"
        code = main([*args, "--json", str(out)])
        found: dict[str, Any] = json.loads(out.read_text())
        assert SparkSession.getActiveSession() is spark
        return code, found

    return ran


@pytest.mark.parametrize("where", ["cluster", "exported"])
def test_census(run: Any, request: pytest.FixtureRequest, where: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = run("census", "--source", request.getfixturevalue(where))
    assert (code, found["sessions"], found["connected"]) == (0, SESSIONS, 75)
    rows = {(row["tenant"], row["region"]): row for row in found["census"]}
    assert set(rows) == {(tenant, region) for tenant in (None, "t0", "t1") for region in (None, "eu", "?")}
    whole, eu = rows[None, None], rows["t0", "eu"]
    assert whole["sessions"] == rows["t0", None]["sessions"] + rows["t1", None]["sessions"] == SESSIONS
    assert (whole["endless"], whole["subscriptions"], whole["inflight"]) == (6, 27, 5)
    assert (whole["payload_bytes"], whole["inflight_bytes"]) == (sum(range(SESSIONS)), 5_000)
    assert whole["payload_bytes_at"] == [44, 80, 89, 89]
    assert whole["expiry_s_at"] == [100_047, 100_081, 100_089, 100_089], "without those that stay"
    assert len(whole["last_seen_s_at"]) == 4
    assert (eu["sessions"], eu["connected"], eu["inflight"], eu["last_seen_s_at"]) == (30, 30, 5, None)
    assert (rows["t1", "?"]["sessions"], rows["t1", "?"]["connected"]) == (15, 7)
    assert sum(row["sessions"] for row in found["population"]) == SESSIONS
    (mine,) = (row for row in found["population"] if (row["tenant"], row["region"]) == ("t0", "eu"))
    assert (mine["expiry_s"][0], mine["expiry_s"][-1], len(mine["expiry_s"])) == (100_006, 100_058, 21)
    assert sum(found["slots"]["sessions"]) == SESSIONS
    assert sum(found["slots"]["connected"]) == 75
    assert found["groups"]["nodes"] == 1
    assert len(found["groups"]["slots"]["data"]) == 1024
    assert found["brokers"] == [{"region": "eu", "state": "active", "brokers": 1}]
    assert "90 sessions, of which 75 are connected" in capsys.readouterr().out


def test_lag_of_a_cluster(run: Any, exported: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = run("lag", "--source", exported)
    assert (code, found["partitions"], found["exact"], found["at_least"], found["unknown"]) == (0, 4, 0, 2, 2)
    assert [(row["group"], row["lag"]) for row in found["groups"]] == [("slow", 60), ("fast", 0), ("alone", None)]
    assert "metad does not know where topics end" in capsys.readouterr().out
    heads = tmp_path / "heads.csv"
    heads.write_text("topic,partition,head\norders,0,110\norders,1,60\n")
    _, found = run("lag", "--source", exported, "--heads", str(heads))
    assert [(row["group"], row["lag"], row["exact"], row["unknown"]) for row in found["groups"]] == [
        *(("slow", 70, 1, 0), ("fast", 10, 1, 1), ("alone", None, 0, 1)),
    ]
    assert [(row["group"], row["partition"], row["lag"]) for row in found["worst"]] == [
        ("slow", 0, 70),
        ("fast", 0, 10),
    ]
    heads.write_text("topic,head\norders,110\n")
    assert main(["lag", "--source", exported, "--heads", str(heads)]) == 2
    assert "has no column partition" in capsys.readouterr().err


def test_skew_of_a_cluster(run: Any, exported: str) -> None:
    code, found = run("skew", "--source", exported, "--within", "1.5", "--count", "2")
    assert code == 0
    tables = {row["table"]: row for row in found["tables"]}
    assert (tables["session"]["rows"], tables["subscription"]["rows"], tables["subscription"]["keys"]) == (90, 27, 9)
    assert tables["inflight"]["bytes"] == 5 * (len("t0") + len("c-002") + 1 + 1_000)
    first = found["heaviest"][0]
    assert (first["key"], first["rows"]) == ("t0/c-002", 6)
    assert first["slot"] == crc32(b"t0\0\x01c-002\0\x01") % 1024
    assert sum(row["rows"] for row in found["groups"] if row["kind"] == "data") == 90 + 27 + 5
    assert sum(row["slots"] for row in found["groups"] if row["kind"] == "data") == 1024
    assert [proposal["kind"] for proposal in found["proposals"]] == ["data", "offset"]


@pytest.mark.parametrize("where", ["cluster", "exported"])
def test_a_sound_cluster_has_no_orphans_but_those_of_an_unknown_broker(
    run: Any, request: pytest.FixtureRequest, where: str
) -> None:
    code, found = run("orphans", "--source", request.getfixturevalue(where))
    assert (code, found["broken"]) == (0, 0)
    assert {check["name"]: check["orphans"] for check in found["checks"] if check["orphans"]} == {
        "session_of_unknown_broker": 15
    }


def test_what_is_wrong_is_one_line(
    run: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["census", "--source", str(tmp_path / "nowhere")]) == 1
    assert "it has no metad-snapshot.json" in capsys.readouterr().err
    patient = Settings.client_options
    monkeypatch.setattr(Settings, "client_options", lambda it: replace(patient(it), connect_timeout_s=0.5))
    assert main(["lag", "--source", "metad://127.0.0.1:1"]) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "connection refused" in told
    assert main(["orphans", "--source", "metad://127.0.0.1:1", "--master", "yarn"]) == 2


# --- tables whose every row is known ---

NOW = 1_000_000_000
HOUR = 3_600_000


_MADE: dict[str, DataFrame] = {}


def made(spark: SparkSession, table: str, *records: dict[str, Any]) -> DataFrame:
    """A table with these records; what they do not say is null, or what a number or a text is by default. Who asks for
    the same again, as with each planted bug, has the same."""
    named = f"{table} {records}"
    if named not in _MADE:
        _MADE[named] = _made(spark, table, *records)
    return _MADE[named]


def _made(spark: SparkSession, table: str, *records: dict[str, Any]) -> DataFrame:
    schema = schema_of(table)
    zero = {"bigint": 0, "string": "", "boolean": False}
    full = [
        {f.name: record.get(f.name, None if f.nullable else zero[f.dataType.simpleString()]) for f in schema.fields}
        for record in records
    ]
    return spark.createDataFrame([tuple(each.values()) for each in full], schema).coalesce(1)


def session(client: str, broker: str, epoch: int = 1, **more: Any) -> dict[str, Any]:
    return {"tenant": "a", "client_id": client, "broker": broker, "broker_epoch": epoch, "connected": True, **more}


def test_a_census_has_each_session_once_with_what_is_its_own(spark: SparkSession) -> None:
    will = ("t", b"", 0, False, 0, b"")
    sessions = [
        session("full", "near", expiry_interval_s=100, payload=b"12345", will=will, slot=3),
        session("bare", "near", slot=3),
        session("stays", "gone", expiry_interval_s=NEVER_S, payload=b"1", slot=4),
        # Away for an hour, until in an hour; and, by a clock that is ahead, since a moment from now on.
        session("away", "far", connected=False, disconnected_ms=NOW - HOUR, expires_ms=NOW + HOUR, slot=4),
        session("just", "far", connected=False, disconnected_ms=NOW + 5_000, expires_ms=0, slot=5),
        session("full", "far", slot=5) | {"tenant": "b"},
    ]
    filters = [{"tenant": "a", "client_id": "full", "filter": f} for f in "xyz"]
    waiting = [{"tenant": "a", "client_id": "full", "name": n, "value": b"1234"} for n in "12"]
    brokers = [{"broker": name, "region": name[0]} for name in ("near", "far")]
    tables = {"session": sessions, "subscription": filters, "inflight": waiting, "broker": brokers}
    described = census_q.sessions_of(*(made(spark, name, *rows) for name, rows in tables.items()), NOW).coalesce(1)
    described.cache()
    found = {(row.tenant, row.client_id): row.asDict() for row in described.collect()}
    assert len(found) == described.count() == 6

    def told(client: str, *names: str, tenant: str = "a") -> list[Any]:
        return [found[tenant, client][name] for name in names]

    assert told("full", "slot", "region", "connected", "has_will") == [3, "n", True, True]
    assert told("full", "expiry_s", "last_seen_s", "ends_in_s") == [100, None, None]
    counts = ("payload_bytes", "subscriptions", "inflight", "inflight_bytes")
    assert told("full", *counts) == [5, 3, 2, 8]
    assert told("full", *counts, tenant="b") == told("bare", *counts) == [0, 0, 0, 0]
    assert told("bare", "expiry_s", "has_will") == [0, False]
    assert told("stays", "expiry_s", "region") == [None, "?"]
    assert told("away", "connected", "last_seen_s", "ends_in_s") == [False, 3_600.0, 3_600.0]
    assert told("just", "last_seen_s", "ends_in_s") == [0.0, None]

    rows = {(row.tenant, row.region): row for row in census_q.census(described).collect()}
    assert len(rows) == 1 + 2 + 3 + 4
    whole, far = rows[None, None], rows[None, "f"]
    assert (whole.sessions, whole.connected, whole.endless, whole.wills) == (6, 4, 1, 1)
    assert (far.sessions, far.connected, rows["a", None].sessions) == (3, 1, 5)
    assert (whole.payload_bytes, whole.subscriptions, whole.inflight, whole.inflight_bytes) == (6, 3, 2, 8)
    assert (whole.payload_bytes_at, whole.expiry_s_at) == ([0, 5, 5, 5], [0, 100, 100, 100])
    assert far.last_seen_s_at == [0.0, 3_600.0, 3_600.0, 3_600.0]

    people = {(row.tenant, row.region): row for row in census_q.population(described).collect()}
    assert len(people) == 4
    near, far = people["a", "n"], people["a", "f"]
    assert (near.sessions, near.connected, near.wills, near.subscriptions, near.payload_bytes) == (2, 2, 0.5, 1.5, 2.5)
    assert (len(near.expiry_s), near.expiry_s[0], near.expiry_s[-1], near.endless) == (21, 0, 100, 0)
    assert (far.connected, far.ends, far.ends_in_s[-1], far.last_seen_s[0]) == (0, 1, 3_600.0, 0.0)
    assert (people["a", "?"].endless, people["a", "?"].expiry_s) == (1, None)

    slots = [(row.slot, row.sessions, row.connected) for row in census_q.by_slot(described).collect()]
    assert slots == [(3, 2, 2), (4, 2, 1), (5, 2, 1)]
    described.unpersist()


def test_each_kind_of_orphan_is_found_and_nothing_else(spark: SparkSession) -> None:
    brokers = [
        {"broker": "well", "broker_epoch": 5, "state": "active", "least_epoch": 5, "fenced_ms": NOW - HOUR},
        {"broker": "over", "broker_epoch": 2, "state": "fenced", "least_epoch": 3, "fenced_ms": NOW - HOUR},
        {"broker": "just", "broker_epoch": 2, "state": "fenced", "least_epoch": 3, "fenced_ms": NOW - 1_000},
    ]
    sessions = [
        session("fine", "well", 5, expires_ms=0),
        session("newer", "well", 6),  # a life that began after the registry was read
        session("older", "well", 4),
        session("late", "over", 2),
        session("soon", "just", 2),
        session("ahead", "over", 4),  # again a life that began after the registry was read
        session("stranger", "nobody"),
        session("away", "over", 2, connected=False, expires_ms=NOW + HOUR),
        session("expired", "over", 2, connected=False, expires_ms=NOW - HOUR),
        session("expires", "over", 2, connected=False, expires_ms=NOW - 1_000),
    ]
    # A tenant of another name has a client of the same name.
    filters = [("a", "fine", "x"), ("a", "gone", "x"), ("a", "gone", "y"), ("b", "fine", "x")]
    wills = [("a", "w1", NOW - HOUR, None), ("a", "w2", NOW - HOUR, NOW + 5_000), ("a", "w3", NOW - 1_000, None)]
    members = [("a", "two", "m1"), ("a", "two", "m2"), ("a", "short", "m1"), ("a", "lost", "m1")]
    groups = [
        ("two", 2, 3, 0),
        ("short", 3, 3, 0),
        ("none", 1, 3, 0),
        ("empty", 0, 0, NOW - HOUR),
        ("left", 0, 0, NOW - 9 * HOUR),
    ]
    commits = [("empty", NOW - 20 * HOUR), ("left", NOW - 20 * HOUR), ("simple", NOW - 20 * HOUR), ("busy", NOW)]
    commits += [("two", NOW - 20 * HOUR), ("fresh", NOW - 20 * HOUR), ("fresh", NOW)]
    found = orphans_q.orphans(
        sessions=made(spark, "session.owner", *sessions),
        subscriptions=made(spark, "subscription", *({"tenant": t, "client_id": c, "filter": f} for t, c, f in filters)),
        inflight=made(spark, "inflight", {"tenant": "a", "client_id": "fine", "name": "1"}).union(
            made(spark, "inflight", {"tenant": "a", "client_id": "lost", "name": "9"})
        ),
        wills=made(
            spark,
            "will",
            *({"tenant": t, "client_id": c, "id": "1", "due_ms": due, "until_ms": until} for t, c, due, until in wills),
        ),
        brokers=made(spark, "broker", *brokers),
        offsets=made(
            spark,
            "offset",
            *(
                {"tenant": "a", "group": g, "topic": "t", "partition": n, "committed_ms": ms}
                for n, (g, ms) in enumerate(commits)
            ),
        ),
        members=made(spark, "consumer", *({"tenant": t, "group": g, "member": n} for t, g, n in members)),
        groups=made(
            spark,
            "consumer.group",
            *(
                {"tenant": "a", "group": g, "members": n, "state": state, "since_ms": since}
                for g, n, state, since in groups
            ),
        ),
        now_ms=NOW,
        late_s=60.0,
        left_s=3 * 3_600.0,
    ).coalesce(1)
    rows = sorted((row.name, row.tenant, row.key, row.since_s) for row in found.collect())
    assert rows == [
        ("group_without_members", "a", "left", 9 * 3_600.0),
        ("inflight_without_session", "a", "lost/9", None),
        ("member_without_group", "a", "lost/m1", None),
        ("members_miscounted", "a", "none", None),
        ("members_miscounted", "a", "short", None),
        ("offsets_left_alone", "a", "simple", 20 * 3_600.0),
        ("session_expired", "a", "expired", 3_600.0),
        ("session_of_ended_life", "a", "late", 3_600.0),
        ("session_of_ended_life", "a", "older", 3_600.0),
        ("session_of_unknown_broker", "a", "stranger", None),
        ("subscription_without_session", "a", "gone/x", None),
        ("subscription_without_session", "a", "gone/y", None),
        ("subscription_without_session", "b", "fine/x", None),
        ("will_waits", "a", "w1/1", 3_600.0),
    ]
    summed = {row.name: row for row in orphans_q.summary(found).collect()}
    told = summed["subscription_without_session"]
    assert (told.orphans, told.tenants, told.first, told.last) == (3, 2, "a/gone/x", "b/fine/x")
    assert summed["session_of_ended_life"].since_s == 3_600.0


def test_lag_says_what_is_known(spark: SparkSession) -> None:
    offsets = made(
        spark,
        "offset",
        *(
            {"tenant": t, "group": g, "topic": topic, "partition": n, "offset": at, "committed_ms": NOW - 5_000}
            for t, g, topic, n, at in (
                ("a", "one", "x", 0, 10),
                ("a", "two", "x", 0, 25),
                ("b", "one", "x", 0, 90),  # of another tenant: its topic is another one
                ("a", "one", "x", 1, 7),
                ("a", "one", "y", 0, 50),
                ("a", "one", "z", 0, 70),
            )
        ),
    )
    heads = spark.createDataFrame(
        [("a", "x", 0, 30), ("a", "x", 1, 12), ("a", "y", 0, 40), ("a", "z", 0, 70), ("c", "x", 0, 999)],
        "tenant string, topic string, partition int, head int",
    ).coalesce(1)

    def told(said: DataFrame | None) -> list[tuple[Any, ...]]:
        rows = lag_q.lag(offsets, said, NOW).collect()
        return sorted((r.tenant, r.group, r.topic, r.partition, r.known, r.lag) for r in rows)

    assert told(None) == [
        ("a", "one", "x", 0, "at least", 15),
        ("a", "one", "x", 1, "unknown", None),
        ("a", "one", "y", 0, "unknown", None),
        ("a", "one", "z", 0, "unknown", None),
        ("a", "two", "x", 0, "at least", 0),
        ("b", "one", "x", 0, "unknown", None),
    ]
    assert told(heads) == [
        ("a", "one", "x", 0, "exact", 20),
        ("a", "one", "x", 1, "exact", 5),
        ("a", "one", "y", 0, "stale head", None),
        ("a", "one", "z", 0, "exact", 0),
        ("a", "two", "x", 0, "exact", 5),
        ("b", "one", "x", 0, "unknown", None),
    ]
    of_all = spark.createDataFrame([("x", 0, 90)], "topic string, partition int, head int")
    assert [lag for *_, lag in told(of_all) if lag is not None] == [80, 65, 0], "heads without a tenant are everybody's"
    lagging = lag_q.lag(offsets, heads, NOW)
    assert [(row.group, row.lag) for row in lag_q.worst(lagging).collect()] == [("one", 20), ("one", 5), ("two", 5)]
    assert [(row.group, row.lag) for row in lag_q.worst(lag_q.lag(offsets, None, NOW), 1).collect()] == [("one", 15)]
    assert {row.committed_s for row in lag_q.lag(offsets, None, NOW - 60_000).collect()} == {0.0}, "clocks differ"
    members = made(
        spark,
        "consumer.group",
        {"tenant": "a", "group": "one", "state": 3, "members": 2, "waiting": 0, "generation": 4},
        {"tenant": "a", "group": "idle", "state": 0, "members": 0, "waiting": 0, "generation": 1},
    )
    first, second, third, last = lag_q.groups(lag_q.lag(offsets, heads, NOW), members).collect()
    assert (first.group, first.lag, first.exact, first.unknown, first.state, first.members) == (
        *("one", 25, 3, 1, "stable", 2),
    )
    assert (first.partitions, first.lag_max, first.committed_s) == (4, 20, 5.0)
    assert (second.group, second.lag, second.committed_s, second.state) == ("two", 5, 5.0, None)
    assert (third.group, third.lag, third.partitions, third.state) == ("idle", None, 0, "empty")
    assert (last.tenant, last.lag, last.unknown) == ("b", None, 1)


def test_keys_have_the_bytes_of_their_texts_and_values(spark: SparkSession) -> None:
    sessions = made(
        spark,
        "session",
        {**session("c", "b"), "payload": b"123", "will": ("top", b"12", 0, False, 0, b"1"), "slot": 5},
        {**session("dé", ""), "slot": 5},
    )
    # As it is read, with the columns of streams: they are not stored.
    sessions = sessions.withColumn("change", F.lit("snapshot")).withColumn("row", F.lit("owner"))
    kept = made(
        spark,
        "kv",
        *({"namespace": "n", "key": f"k{n}", "value": b"1234", "lease": "", "slot": 9} for n in range(3)),
    )
    rows = skew_q.keys([("session", sessions), ("kv", kept)]).collect()
    found = {(row.table, row.key): (row.kind, row.slot, row.rows, row.bytes) for row in rows}
    assert found == {
        ("session", "a/c"): ("data", 5, 1, len("acb") + 3 + len("top") + 2 + 1),
        ("session", "a/dé"): ("data", 5, 1, len("ad") + 2),
        ("kv", "n"): ("data", 9, 3, 3 * (1 + 2 + 4)),
    }


def test_the_heaviest_keys_have_all_that_is_routed_with_them(spark: SparkSession) -> None:
    rows = [
        ("data", "session", 1, "a/x", 1, 10),
        ("data", "inflight", 1, "a/x", 6, 50),
        ("data", "session", 2, "a/y", 1, 20),
        ("data", "session", 2, "a/z", 1, 10),
        ("offset", "offset", 1, "a/x", 2, 7),
    ]
    found = spark.createDataFrame(rows, "kind string, table string, slot int, key string, rows long, bytes long")
    heavy = [(r.kind, r.key, r.rows, r.bytes, r.times) for r in skew_q.heaviest(found, "bytes", 2).collect()]
    assert heavy == [("data", "a/x", 7, 60, 2.0), ("data", "a/y", 1, 20, pytest.approx(2 / 3))]
    slots = {(row.kind, row.slot): (row.rows, row.bytes) for row in skew_q.by_slot(found).collect()}
    assert slots == {("data", 1): (7, 60), ("data", 2): (2, 30), ("offset", 1): (2, 7)}
    tables = [(row.kind, row.table, row.keys, row.rows, row.bytes) for row in skew_q.by_table(found).collect()]
    assert tables == [
        ("data", "inflight", 1, 6, 50),
        ("data", "session", 3, 3, 40),
        ("offset", "offset", 1, 2, 7),
    ]
