"""The tables of families on a real node: an author of a broker uses them from the SDK and from metadctl."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from e2e_metadctl import metadctl, printed
from golden_rows import MESSAGES, message_value, rows
from test_metadctl_units import RAW

from metad import embedded
from metad_client import ConflictError, InvalidItemError, TablePutItem, blocking
from metad_wire.families import FAMILIES, PLURALS, SECRETS
from metad_wire.families.amqp import BINDINGS, EXCHANGES, Binding, Exchange
from metad_wire.families.core import ACLS, TOPICS, USERS, Acl, Topic, User

GOLDEN = {row.name: message_value(row) for row in rows(MESSAGES)}


@pytest.fixture(scope="module")
def server() -> Iterator[embedded.Server]:
    with embedded.serve_in_thread() as server:
        yield server


def said(record: Any) -> list[str]:
    """A record as arguments of `put`."""
    given = []
    for name, value in msgspec.structs.asdict(record).items():
        match value:
            case str():
                given.append(f"{name}={value}")
            case bytes():
                given.append(f"{name}_base64={base64.b64encode(value).decode()}")
            case _:
                given.append(f"{name}={json.dumps(value)}")
    return given


def test_each_table_has_a_command_of_its_own(server: embedded.Server) -> None:
    for name, table in FAMILIES.items():
        if table.ruled_by:
            continue  # nobody puts those: test_assignments.py
        own, golden = PLURALS[name], GOLDEN[table.record.__name__]
        key = [str(getattr(golden, field)) for field in table.key]
        assert printed(server, own, "put", *said(golden)) == {"version": 1}, name
        (listed,) = printed(server, own, "list", *key[:1])
        numbers = {"version", "create_revision", "mod_revision"}
        shown = {*table.record.__struct_fields__} - SECRETS[name] | numbers
        assert {field.removesuffix("_base64") for field in listed} == shown, name
        status, out, _ = metadctl(server, own, "get", *key)
        assert status == 0
        assert not RAW.search(out), out
        assert printed(server, own, "delete", *key) == {"deleted": True}


@pytest.mark.parametrize("name", ["topic", "user"])
def test_its_command_is_that_of_records(server: embedded.Server, name: str) -> None:
    own, golden = PLURALS[name], GOLDEN[FAMILIES[name].record.__name__]
    key = [golden.tenant, getattr(golden, name)]
    assert printed(server, own, "put", *said(golden)) == {"version": 1}
    assert printed(server, "records", "put", name, *said(golden), "--expected-version", "1") == {"version": 2}
    refused = metadctl(server, own, "put", *said(golden), "--expected-version", "1")
    assert refused == metadctl(server, "records", "put", name, *said(golden), "--expected-version", "1")
    assert "version is 2, and the request says 1" in refused[2]
    for words in (["get", *key], ["list", *key[:1]], ["list", "--json"], ["get", *key, "--json"]):
        shown = metadctl(server, own, *words)
        assert shown == metadctl(server, "records", words[0], name, *words[1:])
        assert ("hidden" in shown[1]) == (name == "user" and "--json" not in words)
    assert printed(server, "records", "delete", name, *key) == {"deleted": True}
    assert metadctl(server, own, "get", *key) == (1, "", f"metadctl: no {name} {'/'.join(key)}\n")


def test_a_secret_is_shown_to_whoever_asks_for_it(server: embedded.Server) -> None:
    alice = GOLDEN["User"]
    assert printed(server, "users", "put", *said(alice)) == {"version": 1}
    for words in (["users", "get"], ["records", "get", "user"]):
        whole = printed(server, *words, "acme", "alice", "--secrets")
        assert base64.b64decode(whole["hash_base64"]) == alice.hash
        assert base64.b64decode(whole["salt_base64"]) == alice.salt


def test_the_tables_of_a_tenant_from_the_shell_and_from_a_program(server: embedded.Server) -> None:
    salt = os.urandom(16)
    proof = hashlib.pbkdf2_hmac("sha256", b"a password", salt, 600_000)
    for words in (
        ["topics", "put", "tenant=shop", "topic=orders", "partitions=4"],
        ["subscription-groups", "put", "tenant=shop", "group=billing", "retries_max=3"],
        ["exchanges", "put", "tenant=shop", "vhost=/", "exchange=orders", "type=topic"],
        [
            "queues",
            "put",
            "tenant=shop",
            "vhost=/",
            "queue=bills",
            "type=quorum",
            'arguments={"x-message-ttl":"60000"}',
        ],
        ["acls", "put", "tenant=shop", "rule=10", "permission=deny", "principal=eve", "operation=write"],
    ):
        assert printed(server, *words) == {"version": 1}
    with blocking.connect(server.url) as m:
        topics, users = m.table(TOPICS), m.table(USERS)
        topics.put_many(
            [TablePutItem(Topic("shop", "bills", 2)), TablePutItem(Topic("other", "orders"))]
        ).raise_for_error()
        m.table(BINDINGS).put(Binding("shop", "/", "orders", "queue", "bills", "paid.#", "paid.#"))
        users.put(User("shop", "alice", "pbkdf2_sha_256", salt, 600_000, proof), expected_version=0)

        assert {(r.record.topic, r.record.partitions) for r in topics.list("shop")} == {("bills", 2), ("orders", 4)}
        assert [r.record for r in m.table(EXCHANGES).list("shop")] == [Exchange("shop", "/", "orders", "topic")]
        (rule,) = m.table(ACLS).list("shop")
        assert rule.record == Acl("shop", "10", "deny", principal="eve", operation="write")
        with pytest.raises(ConflictError):
            users.put(User("shop", "alice", "pbkdf2_sha_256", salt, 600_000, bytes(32)), expected_version=0)
        with pytest.raises(InvalidItemError, match="iterations"):
            users.put(User("shop", "bob", "pbkdf2_sha_256", salt, 1, proof))
        found = topics.get("shop", "orders")
        assert found is not None
        topics.put(msgspec.structs.replace(found.record, partitions=8), expected_version=found.version)

    assert {row["topic"]: row["partitions"] for row in printed(server, "topics", "list", "shop")} == {
        "bills": 2,
        "orders": 8,
    }
    assert printed(server, "bindings", "list", "shop", "/", "orders")[0]["destination"] == "bills"
    status, _, err = metadctl(server, "topics", "delete", "shop", "orders", "--expected-version", "1")
    assert (status, err) == (1, "metadctl: conflict: topic shop/orders: version is 2, and the request says 1\n")
    status, _, err = metadctl(server, "topics", "put", "tenant=shop", "topic=orders", "partitions=0")
    assert status == 1
    assert "partitions" in err
    shown = metadctl(server, "users", "list", "shop")[1]
    assert "alice" in shown
    assert proof.hex()[:8] not in shown
