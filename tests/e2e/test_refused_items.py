"""Random batches with bad items at random positions, over several groups and requests: those positions and no others
carry errors, and everything else is stored. One device that chooses a bad client id used to stop hundreds of others."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

import metad_client as sdk
from metad import embedded
from metad_wire import messages as m

LONG = "x" * (m.KEY_BYTES_MAX + 1)
BAD: list[Callable[[Any], Any]] = [
    lambda item: None,
    lambda item: 5,
    lambda item: m.Ping(1),
    *(
        lambda item, wrong=wrong, at=at: _with(item, at, wrong)
        for at in (0, 1)
        for wrong in (LONG, None, 7, b"b", "\udfff", 1.5, object(), ["t"])
    ),
]
"""What makes a bad item of a good one."""
TOO_LARGE = bytes(m.VALUE_BYTES_MAX + 1)


def _with(item: Any, at: int, wrong: Any) -> Any:
    field = item.__struct_fields__[at]
    return replace(item, **{field: wrong})


def mixed(
    rng: random.Random, good: Sequence[Any], *more: Callable[[Any], Any]
) -> tuple[list[Any], list[int], list[int]]:
    """A batch of these items and of bad ones: (items, positions of the good ones, positions of the bad ones)."""
    kinds = [*BAD, *more]
    batch = [(item, True) for item in good]
    for _ in range(rng.randrange(1, 40)):
        batch.insert(rng.randrange(len(batch) + 1), (rng.choice(kinds)(rng.choice(good)), False))
    items = [item for item, _ in batch]
    where = [at for at, (_, fine) in enumerate(batch) if fine]
    return items, where, [at for at, (_, fine) in enumerate(batch) if not fine]


def check(result: sdk.WriteResult | sdk.ReadResult[Any], bad: list[int]) -> None:
    assert sorted(result.errors) == bad
    for at, error in result.errors.items():
        assert isinstance(error, sdk.InvalidItemError)
        assert str(error).endswith(f" (item {at})")
        assert "$" not in str(error)
        assert error.outcome_known
    assert result.ok is not bool(bad)


@pytest.mark.parametrize("seed", range(4))
async def test_bad_items_fail_alone(seed: int) -> None:
    rng = random.Random(seed)
    options = sdk.Options(batch_items=rng.choice([20, 70, 1_000]))
    async with (
        embedded.serve(groups={"data": rng.choice([1, 3]), "offset": rng.choice([1, 2])}) as server,
        sdk.connect(f"metad://{server.endpoint}", options) as client,
    ):
        count = rng.choice([1, 30, 400])
        await sessions(client, rng, count)
        await offsets(client, rng, count)
        await key_values(client, rng, count)


async def sessions(client: sdk.Client, rng: random.Random, count: int) -> None:
    names = [f"c{i}" for i in range(count)]
    taking = [m.SessionTakeoverItem("t", name) for name in names]
    items, good, bad = mixed(rng, taking, lambda item: replace(item, properties=m.SessionProperties(-1)))
    taken = await client.sessions.takeover_many("b1", 1, items)
    check(taken, bad)
    assert [taken.previous(at) for at in good] == [None] * count
    changes = [m.SessionUpdateItem("t", name, m.SessionProperties(60 + i, b"%d" % i)) for i, name in enumerate(names)]
    items, _, bad = mixed(
        rng,
        changes,
        lambda item: replace(item, properties=m.SessionProperties(0, TOO_LARGE)),
        lambda item: replace(item, properties=None),
    )
    check(await client.sessions.update_many("b1", 1, items), bad)
    keys, good, bad = mixed(rng, [m.SessionKey("t", name) for name in names])
    found = await client.sessions.get_many(keys)
    check(found, bad)
    payloads = [session.properties.payload for at in good if (session := found[at]) is not None]
    assert payloads == [b"%d" % i for i in range(count)]
    assert [found[at] for at in bad] == [None] * len(bad)
    items, good, bad = mixed(rng, taking)
    taken = await client.sessions.takeover_many("b2", 5, items, restore=True)
    check(taken, bad)
    assert [taken.previous(at) for at in good] == [m.Owner("b1", 1)] * count
    assert [taken.properties(at) for at in good] == [change.properties for change in changes]
    assert [(taken.previous(at), taken.properties(at)) for at in bad] == [(None, None)] * len(bad)
    items, _, bad = mixed(rng, [m.SessionDisconnectItem("t", name) for name in names])
    check(await client.sessions.disconnect_many("b2", 5, items), bad)
    items, _, bad = mixed(rng, [m.SessionDeleteItem("t", name) for name in names])
    check(await client.sessions.delete_many(items), bad)
    assert [session async for session in client.sessions.list()] == []


async def offsets(client: sdk.Client, rng: random.Random, count: int) -> None:
    commits = [m.OffsetCommitItem("t", f"g{i % 9}", "topic", i, i, 1) for i in range(count)]
    items, _, bad = mixed(
        rng,
        commits,
        lambda item: replace(item, partition=-1),
        lambda item: replace(item, partition=2**32),
        lambda item: replace(item, generation=2**53),
        lambda item: replace(item, metadata="m" * len(TOO_LARGE)),
        lambda item: replace(item, expected=2**70),
        lambda item: replace(item, offset=float("nan")),
    )
    check(await client.offsets.commit_many(items), bad)
    wanted = [m.OffsetKey(item.tenant, item.group, item.topic, item.partition) for item in commits]
    keys, good, bad = mixed(rng, wanted, lambda item: replace(item, partition="0"))
    found = await client.offsets.fetch_many(keys)
    check(found, bad)
    assert [offset.offset for at in good if (offset := found[at]) is not None] == list(range(count))
    groups, good, bad = mixed(rng, [m.ConsumerGroup("t", f"g{i}") for i in range(9)])
    generations = await client.offsets.generations_many(groups)
    check(generations, bad)
    assert [generations[at] for at in good] == [int(i < count) for i in range(9)]
    assert [generations[at] for at in bad] == [0] * len(bad)
    resets, _, bad = mixed(rng, [m.GenerationReset("t", f"g{i}", int(i < count), 5) for i in range(9)])
    check(await client.offsets.reset_generations_many(resets), bad)
    keys, _, bad = mixed(rng, wanted)
    check(await client.offsets.delete_many(keys), bad)
    assert await client.offsets.generations_many([m.ConsumerGroup("t", f"g{i}") for i in range(9)]) == [5] * 9
    assert await client.offsets.fetch_many(wanted) == [None] * count


async def key_values(client: sdk.Client, rng: random.Random, count: int) -> None:
    puts = [m.KvPutItem(f"n{i % 7}", f"k{i}", b"%d" % i, rng.choice([None, 0])) for i in range(count)]
    items, good, bad = mixed(
        rng,
        puts,
        lambda item: replace(item, value="text"),
        lambda item: replace(item, value=TOO_LARGE),
        lambda item: replace(item, value=bytes(3 * len(TOO_LARGE))),
        lambda item: replace(item, expected_version=-1),
    )
    put = await client.kv.put_many(items)
    check(put, bad)
    assert [put.versions[at] for at in good] == [1] * count
    assert [put.versions[at] for at in bad] == [0] * len(bad)
    steps = [
        m.KvTransaction(f"n{i % 7}", [m.KvCompare(f"k{i}", 1)], [m.KvOperation(f"k{i}", b"t")], reads=[f"k{i}"])
        for i in range(count)
    ]
    transactions, good, bad = mixed(
        rng,
        steps,
        lambda item: replace(item, compares=[None]),
        lambda item: replace(item, then=[m.KvOperation("k", TOO_LARGE)]),
        lambda item: replace(item, otherwise=[m.KvOperation(LONG)]),
        lambda item: replace(item, reads=["k"] * 129),
        lambda item: replace(item, reads=[LONG]),
        lambda item: replace(item, reads="k" * 2_000),
    )
    done = await client.kv.transact_many(transactions)
    check(done, bad)
    assert all(result is not None and result.succeeded for result in map(done.results.__getitem__, good))
    assert [done.results[at] for at in bad] == [None] * len(bad)
    keys, good, bad = mixed(rng, [m.KvKey(item.namespace, item.key) for item in puts])
    found = await client.kv.get_many(keys)
    check(found, bad)
    assert [record.value for at in good if (record := found[at]) is not None] == [b"t"] * count
    deletes, _, bad = mixed(rng, [m.KvDeleteItem(item.namespace, item.key, 2) for item in puts])
    check(await client.kv.delete_many(deletes), bad)
    assert await client.kv.get_many([m.KvKey(item.namespace, item.key) for item in puts]) == [None] * count


async def test_single_calls_raise_the_error_of_their_own_item() -> None:
    async with embedded.serve() as server, sdk.connect(f"metad://{server.endpoint}") as client:
        kv: Any = client.kv
        for value, why in (
            ("text", "value: expected bytes, got str"),
            (None, "value: expected bytes, got NoneType"),
            (TOO_LARGE, f"its value takes {len(TOO_LARGE)} bytes, 1048576 are allowed"),
            (bytes(20_000_000), "its value takes 20000000 bytes, 1048576 are allowed"),
        ):
            with pytest.raises(sdk.InvalidItemError) as raised:
                await kv.put("ns", "k", value)
            assert str(raised.value) in (why, why.replace("NoneType", "None"))
        with pytest.raises(sdk.InvalidItemError, match="its key fields take"):
            await client.sessions.get("t", LONG)
        assert await client.kv.put("ns", "k", b"") == 1


async def test_a_takeover_that_restores_more_than_a_reply_holds_is_sent_in_halves() -> None:
    """A few devices with large states stopped the takeover of all that shared their batch."""
    async with embedded.serve() as server, sdk.connect(f"metad://{server.endpoint}") as client:
        states = [m.SessionProperties(i, bytes(m.VALUE_BYTES_MAX if i % 10 == 0 else 10)) for i in range(60)]
        items = [m.SessionTakeoverItem("t", f"c{i}", False, state) for i, state in enumerate(states)]
        (await client.sessions.takeover_many("b1", 1, items)).raise_for_error()
        back = [m.SessionTakeoverItem("t", f"c{i}") for i in range(60)]
        taken = await client.sessions.takeover_many("b2", 1, back, restore=True)
        taken.raise_for_error()
        assert [taken.properties(i) for i in range(60)] == states
        assert {taken.previous(i) for i in range(60)} == {m.Owner("b1", 1)}
        found = await client.sessions.get_many([m.SessionKey("t", f"c{i}") for i in range(60)])
        assert [session is not None and session.properties for session in found] == states
        calls = [client.sessions.takeover("b3", 1, "t", f"c{i}", restore=True) for i in range(60)]
        assert [taken.properties for taken in await asyncio.gather(*calls)] == states


async def test_a_text_against_the_grammar_is_refused_by_every_verb_that_takes_one() -> None:
    """Each item alone. A will for no topic was stored, became due, and nobody could publish it."""
    async with embedded.serve() as server, sdk.connect(server.url) as m:
        right, wrong = (sdk.SessionProperties(60, will=sdk.Will(topic)) for topic in ("state/c", "state/#"))
        items = [sdk.SessionTakeoverItem("t", name, properties=one) for name, one in (("a", right), ("b", wrong))]
        taken = await m.sessions.takeover_many("b1", 1, items)
        assert {at: str(error) for at, error in taken.errors.items()} == {
            1: "properties: will: topic: a topic has no wildcards: + and # are for filters (item 1)"
        }
        owned = await m.owned_many("b1", 1, items)
        assert [one is not None for one in owned] == [True, False]
        calls = [
            m.sessions.update("b1", 1, "t", "a", wrong),
            m.retained.put("t", "a/+", b"x"),
            m.retained.get("t", "a/+"),
            m.retained.delete("t", "a/#"),
            m.subscriptions.add("b1", 1, "t", "a", "a/#/b"),
            m.subscriptions.remove("b1", 1, "t", "a", "$share/g"),
        ]
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(error, sdk.InvalidItemError)
        for filter_ in ("a/#/b", "$share/g/a", ""):
            with pytest.raises(sdk.InvalidRequestError, match="filter: "):
                async for _ in m.retained.match("t", filter_):
                    pass
