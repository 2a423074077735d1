"""The verbs of families that have rules, on a real node: their rules hold however many programs use them at once, and
what they refuse leaves everything as it was. The commands of metadctl for them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import itertools
import json
import os
import pty
import sys
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from e2e_metadctl import metadctl, printed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from metad import embedded
from metad_client import (
    Client,
    ConflictError,
    Effective,
    IncompatibleSchemaError,
    InvalidItemError,
    InvalidRequestError,
    MetadError,
    NewSchema,
    NotFoundError,
    Resize,
    Setting,
    ShrinkError,
    TablePutItem,
    Tables,
    blocking,
    connect,
)
from metad_client.families.users import Mechanism, derive
from metad_wire.families.core import DYNAMIC_CONFIG, SCHEMAS, TOPICS, USERS, DynamicConfig, Schema, SchemaBinding, Topic

TENANTS = (f"tenant-{number}" for number in itertools.count())
"""Examples of one property share a node, and no records."""
SOME = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def server() -> Iterator[embedded.Server]:
    with embedded.serve_in_thread() as server:
        yield server


@pytest.fixture(scope="module")
def m(server: embedded.Server) -> Iterator[blocking.BlockingClient]:
    with blocking.connect(server.url) as client:
        yield client


@pytest.fixture
def tenant() -> str:
    return next(TENANTS)


def overtaken(
    server: embedded.Server, call: Callable[[Client], Awaitable[Any]], meanwhile: Callable[[Client], Awaitable[Any]]
) -> Any:
    """What a verb returns if somebody else does something after it has looked and before it writes: what it raises, if
    it does."""

    async def everything() -> Any:
        async with connect(server.url) as m, connect(server.url) as other:
            for rules in (m.topics, m.schemas, m.users, m.config):
                attach(rules._tables, other)
            try:
                return await call(m)
            except MetadError as error:
                return error

    def attach(tables: Tables, other: Client) -> None:
        transact = tables.transact_many

        async def late(*arguments: Any, **named: Any) -> Any:
            tables.transact_many = transact  # type: ignore[method-assign]
            await meanwhile(other)
            return await transact(*arguments, **named)

        tables.transact_many = late  # type: ignore[method-assign]

    return asyncio.run(everything())


# --- topics ---


def numbers(topic: Topic | None) -> tuple[int, int, int] | None:
    return None if topic is None else (topic.partitions, topic.read_queues, topic.write_queues)


def test_queues_to_write_shrink_first_and_are_never_more_than_those_to_read(
    m: blocking.BlockingClient, tenant: str
) -> None:
    m.table(TOPICS).put(Topic(tenant, "orders", read_queues=8, write_queues=8, permission=4))
    with pytest.raises(ShrinkError, match="Lower write_queues to 4 first"):
        m.topics.resize(tenant, "orders", read_queues=4)
    with pytest.raises(ShrinkError, match="Lower write_queues to 4 first"):
        m.topics.resize(tenant, "orders", read_queues=4, write_queues=4)
    with pytest.raises(InvalidItemError, match=r"write_queues: .* 9 queues to write and 8 to read"):
        m.topics.resize(tenant, "orders", write_queues=9)
    assert numbers(m.topics.resize(tenant, "orders", write_queues=4)) == (1, 8, 4)
    with pytest.raises(ShrinkError, match="Lower write_queues to 3 first"):
        m.topics.resize(tenant, "orders", read_queues=3)
    drained = m.topics.resize(tenant, "orders", read_queues=4)
    assert drained == Topic(tenant, "orders", read_queues=4, write_queues=4, permission=4)
    assert numbers(m.topics.resize(tenant, "orders", read_queues=6, write_queues=5)) == (1, 6, 5)
    before = m.table(TOPICS).get(tenant, "orders")
    assert numbers(m.topics.resize(tenant, "orders", read_queues=6)) == (1, 6, 5)
    assert m.table(TOPICS).get(tenant, "orders") == before, "what is so already is not written again"


def test_partitions_only_grow(m: blocking.BlockingClient, tenant: str) -> None:
    m.table(TOPICS).put(Topic(tenant, "orders", partitions=2))
    assert numbers(m.topics.resize(tenant, "orders", partitions=300, read_queues=2, write_queues=1)) == (300, 2, 1)
    with pytest.raises(ShrinkError, match="has 300 partitions, and would have 299"):
        m.topics.resize(tenant, "orders", partitions=299)
    with pytest.raises(InvalidItemError, match="at least one"):
        m.topics.resize(tenant, "orders", partitions=0)
    found = m.table(TOPICS).get(tenant, "orders")
    assert found is not None
    assert (numbers(found.record), found.version) == ((300, 2, 1), 2)


def test_a_batch_of_topics_answers_for_each(m: blocking.BlockingClient, tenant: str) -> None:
    names = [f"topic-{number}" for number in range(200)]
    m.table(TOPICS).put_many([TablePutItem(Topic(tenant, name)) for name in names]).raise_for_error()
    items: list[Any] = [Resize(tenant, name, read_queues=8, write_queues=8) for name in names]
    items += [Resize(tenant, "nothing", 2), Resize(tenant, names[0], read_queues=1, write_queues=2), None]
    done = m.topics.resize_many(items)
    assert {at: type(error) for at, error in done.errors.items()} == {
        200: NotFoundError,
        201: InvalidItemError,
        202: InvalidItemError,
    }
    assert [numbers(one) for one in done] == [(1, 8, 8)] * 200 + [None] * 3
    assert {numbers(found.record) for found in m.table(TOPICS).list(tenant)} == {(1, 8, 8)}


@SOME
@given(
    st.lists(
        st.lists(
            st.builds(
                Resize,
                tenant=st.just(""),
                topic=st.just("orders"),
                partitions=st.none() | st.integers(1, 12),
                read_queues=st.none() | st.integers(0, 6),
                write_queues=st.none() | st.integers(0, 6),
            ),
            min_size=1,
            max_size=4,
        ),
        min_size=1,
        max_size=6,
    )
)
def test_no_resizes_at_once_take_a_partition_or_leave_a_queue_unread(
    server: embedded.Server, rounds: list[list[Resize]]
) -> None:
    """Each entry of the log is looked at: not only how it ends, but whatever anybody could have seen meanwhile."""
    tenant = next(TENANTS)

    async def resized(m: Client, item: Resize) -> None:
        given = {name: getattr(item, name) for name in Resize.__struct_fields__ if name not in ("tenant", "topic")}
        with contextlib.suppress(ShrinkError, InvalidItemError):
            await m.topics.resize(tenant, "orders", **given)

    async def everything() -> None:
        async with connect(server.url) as m:
            watch = m.watch(TOPICS, tenant=tenant, start="snapshot")
            await watch.opened()
            await m.table(TOPICS).put(Topic(tenant, "orders"))
            for items in rounds:
                await asyncio.gather(*(resized(m, item) for item in items))
            last = await m.table(TOPICS).put(Topic(tenant, "end"))
            assert last == 1
            await looked_at(watch)

    async def looked_at(watch: Any) -> None:
        partitions = 1
        async for batch in watch:
            for event in batch.events:
                topic = event.record.record
                if topic.topic == "end":
                    return
                assert topic.write_queues <= topic.read_queues
                assert topic.partitions >= partitions
                partitions = topic.partitions

    asyncio.run(everything())


def test_a_resize_that_is_overtaken_looks_again(
    m: blocking.BlockingClient, server: embedded.Server, tenant: str
) -> None:
    topics = m.table(TOPICS)
    topics.put(Topic(tenant, "orders", partitions=3, read_queues=8, write_queues=8))
    found = overtaken(
        server,
        lambda m: m.topics.resize(tenant, "orders", partitions=5),
        lambda other: other.topics.resize(tenant, "orders", write_queues=6),
    )
    assert numbers(found) == (5, 8, 6)

    async def fewer(other: Client) -> None:
        await other.topics.resize(tenant, "orders", write_queues=4)
        await other.topics.resize(tenant, "orders", read_queues=4)

    found = overtaken(server, lambda m: m.topics.resize(tenant, "orders", write_queues=7), fewer)
    assert isinstance(found, InvalidItemError), "there are no queues any more to read them from"
    now = topics.get(tenant, "orders")
    assert now is not None
    assert numbers(now.record) == (5, 4, 4)


def test_a_topic_that_others_change_all_the_time_is_given_up(
    server: embedded.Server, monkeypatch: pytest.MonkeyPatch, tenant: str
) -> None:
    """After a bounded number of attempts, each of which has looked again."""

    async def everything() -> None:
        async with connect(server.url) as m:
            await m.table(TOPICS).put(Topic(tenant, "orders"))
            transact, attempts = m.topics._tables.transact_many, 0

            async def late(*arguments: Any, **named: Any) -> Any:
                nonlocal attempts
                attempts += 1
                await m.table(TOPICS).put(Topic(tenant, "orders", partitions=attempts % 2 + 1))
                return await transact(*arguments, **named)

            monkeypatch.setattr(m.topics._tables, "transact_many", late)
            with pytest.raises(ConflictError, match=f"topic {tenant}/orders was changed by others 30 times"):
                await m.topics.resize(tenant, "orders", partitions=9)
            assert attempts == 30

    asyncio.run(everything())


def test_metadctl_resizes_topics(server: embedded.Server, m: blocking.BlockingClient, tenant: str) -> None:
    for name in ("bills", "orders"):
        m.table(TOPICS).put(Topic(tenant, name, partitions=4))
    shown = printed(server, "topics", "resize", tenant, "bills", "orders", "--read-queues", "8", "--write-queues", "8")
    assert [(one["topic"], one["read_queues"], one["write_queues"]) for one in shown] == [
        ("bills", 8, 8),
        ("orders", 8, 8),
    ]
    status, out, err = metadctl(server, "topics", "resize", tenant, "orders", "nothing", "--write-queues", "4")
    assert (status, err) == (1, f"metadctl: there is no topic {tenant}/nothing\n")
    assert "orders" in out
    status, _, err = metadctl(server, "topics", "resize", tenant, "orders", "--partitions", "2")
    assert status == 1
    assert "4 partitions, and would have 2" in err
    (shown,) = printed(server, "topics", "resize", tenant, "orders", "--partitions", "6")
    assert (shown["partitions"], shown["write_queues"]) == (6, 4)
    assert metadctl(server, "topics", "resize", tenant, "orders", "--partitions", "many").returncode == 2


# --- schemas ---


def record(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "Order", "fields": list(fields)})


NUMBER = {"name": "number", "type": "int"}
ORDER = record(NUMBER)
WITH_NOTE = record(NUMBER, {"name": "note", "type": "string", "default": ""})
WITHOUT_DEFAULT = record(NUMBER, {"name": "note", "type": "string"})
OTHER, EMPTY = record({"name": "other", "type": "int"}), record()


def test_a_schema_has_one_version_however_often_it_is_registered(m: blocking.BlockingClient, tenant: str) -> None:
    register = m.schemas.register
    assert register(tenant, "order", "avro", ORDER) == 1
    assert register(tenant, "order", "avro", WITH_NOTE, about="more") == 2
    assert register(tenant, "order", "avro", json.dumps(json.loads(ORDER), indent=4)) == 1
    assert [(one.record.schema_version, one.record.text) for one in m.table(SCHEMAS).list(tenant)] == [
        (1, ORDER),
        (2, WITH_NOTE),
    ]
    newest = m.schemas.newest(tenant, "order")
    assert newest == Schema(tenant, "order", 2, "avro", WITH_NOTE, about="more")
    assert m.schemas.newest(tenant, "nothing") is None
    m.table(SCHEMAS).delete(tenant, "order", 2)
    assert register(tenant, "order", "avro", WITH_NOTE) == 3, "no number is used twice"


@pytest.mark.parametrize(
    ("compatibility", "refused"),
    [
        ("none", set()),
        ("backward", {WITHOUT_DEFAULT, OTHER}),
        ("forward", {OTHER, EMPTY}),
        ("full", {WITHOUT_DEFAULT, OTHER, EMPTY}),
    ],
)
def test_a_new_version_goes_with_the_one_before(
    m: blocking.BlockingClient, tenant: str, compatibility: Any, refused: set[str]
) -> None:
    for at, text in enumerate((WITHOUT_DEFAULT, OTHER, EMPTY, WITH_NOTE)):
        m.schemas.register(tenant, f"s{at}", "avro", ORDER, compatibility=compatibility)
        if text in refused:
            with pytest.raises(IncompatibleSchemaError, match=f"subject {tenant}/s{at}, {compatibility}: "):
                m.schemas.register(tenant, f"s{at}", "avro", text)
            assert m.schemas.newest(tenant, f"s{at}") == Schema(tenant, f"s{at}", 1, "avro", ORDER)
        else:
            assert m.schemas.register(tenant, f"s{at}", "avro", text) == 2


def test_transitive_is_with_all_versions_before(m: blocking.BlockingClient, tenant: str) -> None:
    texts = [
        record(NUMBER, {"name": "a", "type": "int"}),
        record(NUMBER),
        record(NUMBER, {"name": "a", "type": "string", "default": ""}),
    ]
    for subject, compatibility in (("one", "backward"), ("all", "backward_transitive")):
        for text in texts[:2]:
            m.schemas.register(tenant, subject, "avro", text, compatibility=compatibility)  # type: ignore[arg-type]
    assert m.schemas.register(tenant, "one", "avro", texts[2]) == 3
    with pytest.raises(IncompatibleSchemaError, match=r"it cannot read version 1: .*string.*int"):
        m.schemas.register(tenant, "all", "avro", texts[2])
    assert m.schemas.register(tenant, "all", "avro", texts[1], compatibility="backward") == 2, (
        "nothing but that changes"
    )
    assert m.schemas.register(tenant, "all", "avro", texts[2]) == 3


def test_what_is_no_schema_is_refused(m: blocking.BlockingClient, tenant: str) -> None:
    wrong: list[tuple[str, str, str | None, str]] = [
        ("avro", "{", None, "this is no avro schema"),
        ("avro", '{"type": "nothing"}', "none", "this is no avro schema"),
        ("avro", record({"name": "a", "type": "int", "default": "text"}), None, "its default is none of its type"),
        ("avro", '{"type":"array","items":' * 3_000 + '"int"' + "}" * 3_000, None, "nested too deeply"),
        ("avro", '"' + "x" * 300_000 + '"', None, "300002 characters, at most"),
        ("json", '{"type": "nothing"}', None, "this is no json schema"),
        ("json", '{"$schema": "http://example.com/mine"}', None, "none that is known"),
        ("protobuf", "message Order {}", None, "schemas of protobuf are not compared"),
    ]
    items = [NewSchema(tenant, f"s{at}", *one[:3]) for at, one in enumerate(wrong)]  # type: ignore[arg-type]
    done = m.schemas.register_many([*items, NewSchema(tenant, "good", "json", "{}")])
    for at, one in enumerate(wrong):
        assert one[3] in str(done.errors[at]), one
        assert isinstance(done.errors[at], InvalidItemError)
    assert done == [*[None] * len(wrong), 1]
    assert [one.record.subject for one in m.table(SCHEMAS).list(tenant)] == ["good"]
    assert m.schemas.register(tenant, "proto", "protobuf", "message Order {}", compatibility="none") == 1
    with pytest.raises(IncompatibleSchemaError, match="version 1 is one of protobuf"):
        m.schemas.register(tenant, "proto", "avro", ORDER, compatibility="full")


def test_programs_that_register_at_once_get_versions_that_go_together(server: embedded.Server, tenant: str) -> None:
    """Each looks again after it has lost, so none of them is compared with less than what is there."""
    texts = [record(NUMBER, {"name": f"f{n}", "type": "int", "default": 0}) for n in range(6)]

    async def everything() -> list[int]:
        async with connect(server.url) as one, connect(server.url) as other:
            return await asyncio.gather(
                *(client.schemas.register(tenant, "order", "avro", text) for text in texts for client in (one, other))
            )

    found = asyncio.run(everything())
    assert found[::2] == found[1::2]
    assert sorted(found[::2]) == [1, 2, 3, 4, 5, 6]


def test_a_schema_is_compared_as_its_subject_says_when_it_is_written(
    m: blocking.BlockingClient, server: embedded.Server, tenant: str
) -> None:
    m.schemas.register(tenant, "order", "avro", ORDER)
    found = overtaken(
        server,
        lambda m: m.schemas.register(tenant, "order", "avro", EMPTY),
        lambda other: other.schemas.register(tenant, "order", "avro", ORDER, compatibility="full"),
    )
    assert isinstance(found, IncompatibleSchemaError)
    found = overtaken(
        server,
        lambda m: m.schemas.register(tenant, "order", "avro", WITH_NOTE),
        lambda other: other.table(SCHEMAS).put(Schema(tenant, "order", 2, "avro", ORDER)),
    )
    assert found == 3
    assert [one.record.text for one in m.table(SCHEMAS).list(tenant)] == [ORDER, ORDER, WITH_NOTE]


def test_topics_follow_a_schema(
    m: blocking.BlockingClient, server: embedded.Server, tenant: str, tmp_path: Path
) -> None:
    file = tmp_path / "order.avsc"
    file.write_text(ORDER)
    assert printed(server, "schemas", "register", tenant, "order", str(file)) == {"schema_version": 1}
    file.write_text(WITHOUT_DEFAULT)
    status, _, err = metadctl(server, "schemas", "register", tenant, "order", str(file))
    assert (status, err.count("\n")) == (1, 1)
    assert "it cannot read version 1: /fields/1: reader field missing default value: note" in err
    file.write_text(WITH_NOTE)
    assert printed(server, "schemas", "register", tenant, "order", str(file), "--compatibility", "full") == {
        "schema_version": 2
    }
    with pytest.raises(NotFoundError, match=f"no version 3 of schema {tenant}/order"):
        m.schemas.bind(tenant, "orders", "order", schema_version=3)
    assert metadctl(server, "schemas", "bind", tenant, "nothing", "orders")[2] == (
        f"metadctl: there is no schema {tenant}/nothing\n"
    )
    m.schemas.bind(tenant, "old-orders", "order", schema_version=1, refuse=False)
    assert printed(server, "schemas", "bind", tenant, "order", "orders") == {"version": 1}
    followers = list(m.schemas.followers(tenant, "order"))
    assert followers == [
        SchemaBinding(tenant, "old-orders", "order", schema_version=1, refuse=False),
        SchemaBinding(tenant, "orders", "order"),
    ]
    shown = printed(server, "schemas", "followers", tenant, "order")
    assert [one["resource"] for one in shown] == ["old-orders", "orders"]
    texts = [
        one.schema and one.schema.text
        for topic in ("old-orders", "orders")
        for one in m.schemas.followed(tenant, topic)
    ]
    assert texts == [ORDER, WITH_NOTE]
    m.table(SCHEMAS).delete(tenant, "order", 1)
    assert m.schemas.followed(tenant, "old-orders")[0].schema is None


# --- users ---


def test_a_user_proves_a_password_that_is_kept_nowhere(m: blocking.BlockingClient, tenant: str) -> None:
    for mechanism in get_args(Mechanism):
        assert m.users.create(tenant, mechanism, "pencil", mechanism=mechanism, iterations=4_096) == 1
        assert m.users.check(tenant, mechanism, "pencil")
        assert not m.users.check(tenant, mechanism, "pencils")
        assert not m.users.check(tenant, mechanism, "")
    assert not m.users.check(tenant, "nobody", "pencil")
    found = [one.record for one in m.table(USERS).list(tenant)]
    assert len({one.salt for one in found}) == 4
    assert "pencil" not in repr(found)
    with pytest.raises(ConflictError):
        m.users.create(tenant, "scram_sha_256", "another")
    m.users.create(tenant, "later", "pencil", iterations=4_096, enabled=False, superuser=True, attributes={"a": "b"})
    assert not m.users.check(tenant, "later", "pencil"), "it may not connect"
    m.users.set_password(tenant, "later", "rubber", mechanism="pbkdf2_sha_512", iterations=5_000)
    later = m.table(USERS).get(tenant, "later")
    assert later is not None
    assert (later.record.mechanism, later.record.iterations) == ("pbkdf2_sha_512", 5_000)
    assert (later.record.enabled, later.record.superuser, later.record.attributes) == (False, True, {"a": "b"})
    with pytest.raises(NotFoundError, match=f"there is no user {tenant}/nobody"):
        m.users.set_password(tenant, "nobody", "rubber")


def test_an_exchange_of_rfc_7677_is_accepted() -> None:
    """With what is kept a broker checks the proof that a client of SCRAM sends, and signs its answer."""
    kept = derive("scram_sha_256", "pencil", b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4_096)
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    said = f"n=user,r=rOprNGfwEbeRWgbNEkqO,r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r={nonce}".encode()
    proof = b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    signature = hmac.digest(kept.hash, said, "sha256")
    client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
    assert hashlib.sha256(client_key).digest() == kept.hash
    assert hmac.digest(kept.server_key, said, "sha256") == b64decode("6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize(
    ("password", "as_well"),
    [
        ("I\u00adX", "IX"),
        ("\u2168", "IX"),
        ("\u00aa", "a"),
        ("a\u00a0b", "a b"),
        ("USER", "USER"),
        ("\u0627", "\u0627"),
    ],
)
def test_scram_takes_spellings_of_a_password_for_one(password: str, as_well: str) -> None:
    """The examples of RFC 4013, and more."""
    found = derive("scram_sha_256", password, bytes(16), 4_096)
    assert found == derive("scram_sha_256", as_well, bytes(16), 4_096)
    assert found != derive("scram_sha_256", "another", bytes(16), 4_096)


@pytest.mark.parametrize(
    "password", ["", "bell\u0007", "\u0627\u0031", "x" * 1_025, "sur\ud800rogate", None, b"secret"]
)
def test_a_password_that_is_none_is_refused_and_not_repeated(
    m: blocking.BlockingClient, tenant: str, password: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    for call in (m.users.create, m.users.set_password):
        with pytest.raises((InvalidItemError, InvalidRequestError), match="password: ") as raised:
            call(tenant, "alice", password)
        assert not password or str(password) not in f"{raised.value!r} {raised.value.__cause__!r}"
    with contextlib.suppress(InvalidRequestError):
        assert not m.users.check(tenant, "alice", password)
    assert not password or str(password) not in caplog.text


def test_a_password_is_in_no_log(m: blocking.BlockingClient, tenant: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    m.users.create(tenant, "alice", "a-very-secret-word", iterations=4_096)
    assert m.users.check(tenant, "alice", "a-very-secret-word")
    m.users.set_password(tenant, "alice", "a-very-secret-word", iterations=4_096)
    assert "a-very-secret-word" not in caplog.text


def test_other_changes_of_a_user_survive_a_new_password(
    m: blocking.BlockingClient, server: embedded.Server, tenant: str
) -> None:
    m.users.create(tenant, "alice", "old", iterations=4_096)
    found = m.table(USERS).get(tenant, "alice")
    assert found is not None
    changed = replace(found.record, superuser=True, attributes={"a": "b"})
    overtaken(
        server,
        lambda m: m.users.set_password(tenant, "alice", "new", iterations=4_096),
        lambda other: other.table(USERS).put(changed),
    )
    found = m.table(USERS).get(tenant, "alice")
    assert found is not None
    assert (found.record.superuser, found.record.attributes) == (True, {"a": "b"})
    assert [m.users.check(tenant, "alice", password) for password in ("old", "new")] == [False, True]
    gone = overtaken(
        server,
        lambda m: m.users.set_password(tenant, "alice", "old", iterations=4_096),
        lambda other: other.table(USERS).delete(tenant, "alice"),
    )
    assert isinstance(gone, NotFoundError), "no user comes back"


def test_metadctl_reads_passwords_from_files_only(server: embedded.Server, tenant: str, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("a secret word\nnot this\n")
    at = ["--password-file", str(file)]
    assert printed(server, "users", "create", tenant, "alice", "--iterations", "4096", *at) == {"version": 1}
    assert printed(server, "users", "check", tenant, "alice", *at) == {"right": True}
    file.write_text("another")
    assert metadctl(server, "users", "check", tenant, "alice", *at, "--json") == (1, '{\n  "right": false\n}\n', "")
    assert printed(server, "users", "set-password", tenant, "alice", "--iterations", "4096", *at) == {"changed": True}
    assert printed(server, "users", "check", tenant, "alice", *at) == {"right": True}
    status, _, err = metadctl(server, "users", "create", tenant, "alice", *at)
    assert status == 1
    assert "another" not in err
    for wrong in ([*at, "secret"], ["--password-file", str(tmp_path / "missing")], []):
        assert metadctl(server, "users", "create", tenant, "bob", *wrong).returncode == 2
    said = metadctl(server, "users", "create", tenant, "bob", "--password", "rosebud")
    assert said.returncode == 2
    assert "cannot read the file of --password-file" in said.stderr
    assert "rosebud" not in said.stderr


def test_metadctl_asks_for_a_password_in_a_terminal(server: embedded.Server, tenant: str) -> None:
    """Twice, so that a slip is found, and without showing it."""
    for again, status in (("other word", 2), ("secret word", 0)):
        child, terminal = pty.fork()
        if child == 0:  # its terminal is ours
            words = ["users", "create", tenant, "alice", "--iterations", "4096"]
            program = [sys.executable, "-m", "metad_client.cli", "--endpoint", server.endpoint, *words]
            os.execv(sys.executable, program)
        shown = b""
        for asked, answer in ((b"Password: ", "secret word"), (b"Again: ", again)):
            while asked not in shown:
                shown += os.read(terminal, 1_024)
            os.write(terminal, f"{answer}\n".encode())
        with contextlib.suppress(OSError):  # the end of a terminal
            while more := os.read(terminal, 1_024):
                shown += more
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == status, shown
        os.close(terminal)
        assert b"secret" not in shown


# --- config ---


def test_a_setting_keeps_its_last_values(m: blocking.BlockingClient, tenant: str) -> None:
    at: Any = ("topic", f"{tenant}/orders", "retention_ms")
    assert m.config.history(*at) == []
    before_ms = time.time_ns() // 1_000_000
    assert m.config.set(*at, "1")
    assert not m.config.set(*at, "1"), "it has that value"
    assert m.config.set(*at, None)
    assert not m.config.set(*at, None)
    assert m.table(DYNAMIC_CONFIG).get(*at) is None
    for value in range(20):
        assert m.config.set(*at, str(value), keep=12 if value == 19 else 10)
    found = m.config.history(*at)
    assert [one.value for one in found] == [str(value) for value in range(9, 20)]
    times = [one.changed_at_ms for one in found]
    assert times == sorted(times)
    assert before_ms <= times[0] <= times[-1] <= time.time_ns() // 1_000_000
    m.table(DYNAMIC_CONFIG).put(DynamicConfig(*at, "put"))
    assert m.config.set(*at, "21", keep=3)
    assert [(one.value, one.changed_at_ms > 0) for one in m.config.history(*at)] == [
        ("19", True),
        ("put", False),
        ("21", True),
    ]


def test_many_settings_at_once_answer_one_by_one(m: blocking.BlockingClient, tenant: str) -> None:
    items: list[Any] = [Setting("tenant", tenant, f"s{number}", "x") for number in range(300)]
    done = m.config.set_many([*items, Setting("planet", tenant, "s", "x"), items[0]])  # type: ignore[arg-type]
    assert done[:300] == [True] * 300
    assert [type(error) for error in done.errors.values()] == [InvalidItemError]
    assert done[300:] == [None, False], "of two of one setting the second finds that nothing is left to do"


@SOME
@given(st.lists(st.lists(st.none() | st.sampled_from("abc"), min_size=1, max_size=4), max_size=6))
def test_no_change_of_a_setting_is_missing_from_its_history(
    server: embedded.Server, rounds: list[list[str | None]]
) -> None:
    """However many change it at once: the history is what a watch of the setting has seen."""
    at: Any = ("tenant", next(TENANTS), "name")

    async def everything() -> None:
        async with connect(server.url) as m:
            watch = m.watch(DYNAMIC_CONFIG, start="snapshot")
            await watch.opened()
            for values in rounds:
                await asyncio.gather(*(m.config.set(*at, value, keep=100) for value in values))
            history = await m.config.history(*at)
            await m.table(DYNAMIC_CONFIG).put(DynamicConfig(*at[:2], "end", ""))
            seen: list[str | None] = []
            async for batch in watch:
                for event in batch.events:
                    if (event.key.scope, event.key.name) == at[1:]:
                        seen.append(None if event.record is None else event.record.record.value)
                    elif (event.key.scope, event.key.name) == (at[1], "end"):
                        assert [one.value for one in history] == seen
                        return

    asyncio.run(everything())


def test_what_somebody_else_set_meanwhile_is_in_the_history(
    m: blocking.BlockingClient, server: embedded.Server, tenant: str
) -> None:
    at: Any = ("tenant", tenant, "name")

    async def there_and_back(other: Client) -> None:
        await other.config.set(*at, "x")
        await other.config.set(*at, None)

    overtaken(server, lambda m: m.config.set(*at, "a"), there_and_back)
    assert [one.value for one in m.config.history(*at)] == ["x", None, "a"]
    put = DynamicConfig(*at, "put")
    overtaken(server, lambda m: m.config.set(*at, "b"), lambda other: other.table(DYNAMIC_CONFIG).put(put))
    assert [one.value for one in m.config.history(*at)] == ["x", None, "a", "put", "b"]


def test_what_holds_is_what_the_narrowest_scope_says(m: blocking.BlockingClient, tenant: str) -> None:
    topic = f"{tenant}/orders"
    said: list[tuple[Any, str]] = [("cluster", ""), ("tenant", ""), ("tenant", tenant), ("topic", ""), ("topic", topic)]
    for until in range(len(said)):
        items = [Setting(*scope, f"{tenant}-{at}", str(until)) for at, scope in enumerate(said[: until + 1])]
        m.config.set_many(items).raise_for_error()
    m.config.set_many([Setting(*scope, f"{tenant}-all", str(at)) for at, scope in enumerate(said)]).raise_for_error()
    scopes: list[tuple[Any, str]] = [("topic", topic), ("tenant", tenant)]
    for until in reversed(range(len(said))):
        found = m.config.effective(scopes, [f"{tenant}-all", "nothing"])
        assert found == {f"{tenant}-all": Effective(str(until), *said[until])}
        m.config.set(*said[until], f"{tenant}-all", None)
    every = m.config.effective(scopes)
    assert {name: tuple(every[name][1:]) for name in every if name.startswith(tenant)} == {
        f"{tenant}-{at}": scope for at, scope in enumerate(said)
    }
    assert m.config.effective([("topic", f"{tenant}/other")], [f"{tenant}-4"]) == {}
    assert m.config.effective([], [f"{tenant}-0"]) == {f"{tenant}-0": Effective("4", "cluster", "")}


def test_metadctl_sets_settings(server: embedded.Server, tenant: str) -> None:
    at = ["topic", f"{tenant}/orders", "retention_ms"]
    assert printed(server, "config", "set", *at, "60000") == {"changed": True}
    assert printed(server, "config", "set", *at, "60000") == {"changed": False}
    assert printed(server, "config", "set", "tenant", tenant, "retention_ms", "1") == {"changed": True}
    scopes = [f"tenant={tenant}", f"topic={tenant}/orders"]
    shown = {"name": "retention_ms", "value": "60000", "scope_kind": "topic", "scope": f"{tenant}/orders"}
    assert printed(server, "config", "effective", *scopes, "--name", "retention_ms") == [shown]
    assert printed(server, "config", "unset", *at) == {"changed": True}
    assert [one["value"] for one in printed(server, "config", "history", *at)] == ["60000", None]
    assert " ago" in metadctl(server, "config", "history", *at)[1]
    assert metadctl(server, "config", "effective", "planet=earth").returncode == 2
