"""Retained messages on real nodes: put, matched and expired while a leader is killed and slots move, and watched; and
the same from a program without asyncio."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from functools import partial
from typing import Any

import pytest

from metad import embedded
from metad_client import (
    ChangeKind,
    Client,
    ConflictError,
    ConnectionLostError,
    InvalidItemError,
    InvalidRequestError,
    NotFoundError,
    Retained,
    RetainedDeleteItem,
    RetainedKey,
    RetainedPutItem,
    blocking,
    connect,
)
from metad_wire.cluster import unpack_slots
from metad_wire.text.topics import match

SMALL = {"election_timeout_ms": 300, "heartbeat_ms": 50}
TIMEOUT_S = 240.0
FILTERS = ("#", "site/+/door", "site/3/#", "+/7/+", "site/1/door", "none/#", "site/+/+/lock", "$SYS/#", "+/#")


def topics() -> list[str]:
    rng = random.Random(3)
    found = {f"site/{rng.randrange(40)}/{rng.choice(('door', 'window', 'door/lock', ''))}" for _ in range(600)}
    return sorted(found | {"site", "site/3", "$SYS/uptime", "site/3!/door", "/7/"})


async def check(m: Client, stored: dict[str, bytes]) -> None:
    for filter_ in FILTERS:
        found = [(one.topic, one.payload) async for one in m.retained.match("acme", filter_, page_size=7)]
        assert found == sorted((topic, stored[topic]) for topic in stored if match(filter_, topic)), filter_


async def insist(call: Any) -> None:
    """A change of the cluster is not sent again by itself."""
    while True:
        try:
            await call(deadline_s=60)
            return
        except (ConnectionLostError, ConflictError):
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_filters_find_what_was_put_through_a_rebalance_and_the_death_of_a_leader() -> None:
    async with (
        embedded.cluster(nodes=3, groups={"data": 2}, raft=SMALL) as cluster,
        asyncio.timeout(TIMEOUT_S),
        connect(cluster.url) as m,
        connect(cluster.url) as other,
    ):
        image = await other.image("retained", tenant="acme").caught_up()
        stored = {topic: topic.encode() for topic in topics()}
        items = [RetainedPutItem("acme", topic, payload) for topic, payload in stored.items()]
        (await m.retained.put_many(items)).raise_for_error()
        (await m.retained.put_many([RetainedPutItem("other", "site/1/door", b"other")])).raise_for_error()
        await check(m, stored)

        await insist(partial(m.cluster.add_group, "data"))
        await insist(m.cluster.rebalance)
        while True:
            await check(m, stored)
            known = (await m.cluster.map()).map
            if known is not None and not known.moves and set(unpack_slots(known.slots["data"])) == {0, 1, 2}:
                break
        await check(m, stored)
        leader = (await m.cluster.map()).leaders["data-0"]
        cluster.kill(leader)
        gone = list(stored)[::5]
        (await m.retained.put_many([RetainedPutItem("acme", topic, b"") for topic in gone])).raise_for_error()
        for topic in gone:
            del stored[topic]
        changed = list(stored)[::3]
        (await m.retained.put_many([RetainedPutItem("acme", topic, b"again") for topic in changed])).raise_for_error()
        stored.update(dict.fromkeys(changed, b"again"))
        await check(m, stored)
        await asyncio.to_thread(cluster.start, leader)
        await check(other, stored)

        def shown() -> dict[str, bytes]:
            return {key.topic: one.payload for key, one in image["retained"].items()}

        while shown() != stored:  # noqa: ASYNC110 - the image tells of single changes only
            await asyncio.sleep(0.05)


async def test_a_watch_says_that_a_message_has_expired() -> None:
    async with embedded.serve() as server, asyncio.timeout(TIMEOUT_S), connect(server.url) as m:
        watch = await m.watch("retained", tenant="acme").opened()
        await m.retained.put("acme", "a", b"1", expiry_interval_s=60)
        await m.retained.put("acme", "b", b"1", expiry_interval_s=60)
        await m.retained.put("acme", "b", b"2")
        await server.advance(600)
        seen: list[tuple[str, ChangeKind]] = []  # the two topics may be in different groups
        async for batch in watch:
            seen += [(event.key.topic, event.kind) for event in batch.events]
            if len(seen) == 4:
                break
        written = ChangeKind.WRITTEN
        assert sorted(seen) == sorted([("a", written), ("a", ChangeKind.EXPIRED), ("b", written), ("b", written)])
        assert [one async for one in m.retained.match("acme", "#")] == [await m.retained.get("acme", "b")]
        await watch.close()


def test_metadctl_has_the_same_verbs() -> None:
    def ctl(url: str, *arguments: str, status: int = 0) -> Any:
        command = [sys.executable, "-m", "metad_client.cli", "--endpoint", url, *arguments, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == status, done.stderr
        return json.loads(done.stdout) if status == 0 else done.stderr

    with embedded.serve_in_thread() as server:
        url = server.url
        assert ctl(url, "retained", "put", "acme", "site/1/door", "open", "--qos", "1") == {"retained": True}
        ctl(url, "retained", "put", "acme", "site/2/door", "shut", "--expiry", "3600")
        found = ctl(url, "retained", "get", "acme", "site/1/door")
        assert (found["topic"], found["payload"], found["qos"], found["expires_ms"]) == ("site/1/door", "open", 1, 0)
        assert [one["topic"] for one in ctl(url, "retained", "--tenant", "acme")["retained"]] == [
            "site/1/door",
            "site/2/door",
        ]
        assert [one["topic"] for one in ctl(url, "retained", "--tenant", "acme", "--filter", "+/2/#")["retained"]] == [
            "site/2/door"
        ]
        assert "last level" in ctl(url, "retained", "--tenant", "acme", "--filter", "#/a", status=1)
        assert "conflict" in ctl(url, "retained", "delete", "acme", "site/1/door", "--revision", "999", status=1)
        assert ctl(url, "retained", "delete", "acme", "site/1/door") == {"deleted": True}
        assert ctl(url, "retained", "put", "acme", "site/2/door", "") == {"retained": False}
        assert "no retained message acme/site/1/door" in ctl(url, "retained", "get", "acme", "site/1/door", status=1)
        assert "no retained message acme/site/2/door" in ctl(url, "retained", "delete", "acme", "site/2/door", status=1)
        assert "--qos" in ctl(url, "retained", "put", "acme", "a", "b", "--qos", "3", status=2)


def test_a_program_without_asyncio_has_the_same_verbs() -> None:
    with embedded.serve_in_thread() as server, blocking.connect(server.url) as m:
        m.retained.put("acme", "site/1/door", b"open", qos=1, properties=b"p")
        m.retained.put("acme", "site/2/door", b"shut", expiry_interval_s=3_600)
        m.retained.put("acme", "site/3/door", b"over", expiry_interval_s=0)
        first = m.retained.get("acme", "site/1/door")
        assert first is not None
        assert (first.payload, first.qos, first.properties, first.expires_ms) == (b"open", 1, b"p", 0)
        found = list(m.retained.match("acme", "site/+/door"))
        assert [one.topic for one in found] == ["site/1/door", "site/2/door"]
        assert found[1].expires_ms > 0
        keys = [RetainedKey("acme", f"site/{number}/door") for number in (1, 3, 4)]
        assert m.retained.get_many(keys) == [first, None, None]

        with pytest.raises(InvalidItemError, match="no wildcards"):
            m.retained.put("acme", "site/+/door", b"v")
        with pytest.raises(InvalidRequestError, match="last level"):
            list(m.retained.match("acme", "#/door"))
        with pytest.raises(ConflictError) as conflict:
            m.retained.delete("acme", "site/1/door", revision=first.revision + 1)
        assert conflict.value.current == first.revision
        m.retained.delete("acme", "site/1/door", revision=first.revision)
        with pytest.raises(NotFoundError):
            m.retained.delete("acme", "site/1/door")
        m.retained.put("acme", "site/2/door", b"")
        m.retained.delete_many([RetainedDeleteItem("acme", "site/3/door")]).raise_for_error()
        assert list(m.retained.match("acme", "#")) == []
        assert m.retained.put_many([RetainedPutItem("acme", "a", b"1"), RetainedPutItem("acme", "", b"1")]).errors
        assert isinstance(m.retained.get("acme", "a"), Retained)
