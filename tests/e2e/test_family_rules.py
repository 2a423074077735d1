"""The verbs of families that have rules, on a real node: their rules hold however many programs use them at once, and
what they refuse leaves everything as it was. The commands of metadctl for them."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metad import embedded
from metad_client import (
    Client,
    ConflictError,
    InvalidItemError,
    NotFoundError,
    Resize,
    ShrinkError,
    TablePutItem,
    blocking,
    connect,
)
from metad_client.cli.command_line import main
from metad_client.families import topics as topic_rules
from metad_wire.families.core import TOPICS, Topic
from metad_wire.families.stream import PARTITIONS, Partition

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


def metadctl(server: embedded.Server, *arguments: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(["--endpoint", server.endpoint, *arguments])
    return status, out.getvalue(), err.getvalue()


def printed(server: embedded.Server, *arguments: str) -> Any:
    """The document of a command that succeeds."""
    status, out, err = metadctl(server, *arguments, "--json")
    assert (status, err) == (0, ""), arguments
    return json.loads(out)


# --- topics ---


def numbers(topic: Topic | None) -> tuple[int, int, int] | None:
    return None if topic is None else (topic.partitions, topic.read_queues, topic.write_queues)


def partitions_of(m: blocking.BlockingClient, tenant: str, topic: str) -> list[int]:
    return [found.record.partition for found in m.table(PARTITIONS).list(tenant, topic)]


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


def test_partitions_come_and_go_with_their_topic(m: blocking.BlockingClient, tenant: str) -> None:
    m.table(TOPICS).put(Topic(tenant, "orders", partitions=2))
    first = [Partition(tenant, "orders", number, ["a", "b"], ["a"], "a", 7) for number in range(2)]
    m.table(PARTITIONS).put_many([TablePutItem(one) for one in first]).raise_for_error()
    m.topics.resize(tenant, "orders", partitions=4, replicas={3: ["b", "c"]})
    found = [found.record for found in m.table(PARTITIONS).list(tenant, "orders")]
    assert found == [
        *first,
        Partition(tenant, "orders", 2, [], []),
        Partition(tenant, "orders", 3, ["b", "c"], ["b", "c"], "b"),
    ]
    with pytest.raises(ShrinkError, match="fewer_partitions"):
        m.topics.resize(tenant, "orders", partitions=3)
    assert partitions_of(m, tenant, "orders") == [0, 1, 2, 3]
    m.topics.resize(tenant, "orders", partitions=1, fewer_partitions=True)
    assert partitions_of(m, tenant, "orders") == [0]


def test_partitions_have_no_records_where_the_topic_had_none(m: blocking.BlockingClient, tenant: str) -> None:
    m.table(TOPICS).put(Topic(tenant, "orders", partitions=2))
    m.topics.resize(tenant, "orders", partitions=4)
    assert partitions_of(m, tenant, "orders") == []
    m.topics.resize(tenant, "orders", partitions=6, replicas={5: ["a"]})
    assert partitions_of(m, tenant, "orders") == [5]


def test_many_partitions_take_several_transactions(m: blocking.BlockingClient, tenant: str) -> None:
    m.table(TOPICS).put(Topic(tenant, "orders"))
    m.table(PARTITIONS).put(Partition(tenant, "orders", 0, ["a"], ["a"], "a"))
    m.topics.resize(tenant, "orders", partitions=300, read_queues=2, write_queues=1)
    assert partitions_of(m, tenant, "orders") == [*range(300)]
    found = m.table(TOPICS).get(tenant, "orders")
    assert found is not None
    assert (numbers(found.record), found.version) == ((300, 2, 1), 4)
    m.topics.resize(tenant, "orders", partitions=2, fewer_partitions=True)
    assert partitions_of(m, tenant, "orders") == [0, 1]


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
                fewer_partitions=st.booleans(),
            ),
            min_size=1,
            max_size=4,
        ),
        min_size=1,
        max_size=6,
    )
)
def test_no_resizes_at_once_leave_a_partition_outside_or_a_queue_unread(
    server: embedded.Server, monkeypatch: pytest.MonkeyPatch, rounds: list[list[Resize]]
) -> None:
    """Each entry of the log is looked at: not only how it ends, but whatever anybody could have seen meanwhile."""
    monkeypatch.setattr(topic_rules, "STEP_PARTITIONS", 3)
    tenant = next(TENANTS)

    async def resized(m: Client, item: Resize) -> None:
        given = {name: getattr(item, name) for name in Resize.__struct_fields__ if name not in ("tenant", "topic")}
        with contextlib.suppress(ShrinkError, InvalidItemError):
            await m.topics.resize(tenant, "orders", **given)

    async def everything() -> None:
        async with connect(server.url) as m:
            watch = m.watch([TOPICS, PARTITIONS], tenant=tenant, start="snapshot")
            await watch.opened()
            await m.table(TOPICS).put(Topic(tenant, "orders"))
            await m.table(PARTITIONS).put(Partition(tenant, "orders", 0, ["a"], ["a"], "a"))
            for items in rounds:
                await asyncio.gather(*(resized(m, item) for item in items))
            last = await m.table(TOPICS).put(Topic(tenant, "end"))
            assert last == 1
            await looked_at(watch)

    async def looked_at(watch: Any) -> None:
        there: set[int] = set()
        topic = Topic(tenant, "orders")
        async for batch in watch:
            for _, entry in itertools.groupby(batch.events, lambda event: event.revision):
                for event in entry:
                    if event.table == "partition":
                        (there.discard if event.record is None else there.add)(event.key.partition)
                    elif event.key.topic == "end":
                        assert there == {*range(topic.partitions)}
                        return
                    else:
                        topic = event.record.record
                assert topic.write_queues <= topic.read_queues
                assert not there - {*range(topic.partitions)}

    asyncio.run(everything())


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
    (shown,) = printed(server, "topics", "resize", tenant, "orders", "--partitions", "2", "--fewer-partitions")
    assert (shown["partitions"], shown["write_queues"]) == (2, 4)
    with pytest.raises(SystemExit):
        metadctl(server, "topics", "resize", tenant, "orders", "--partitions", "many")
