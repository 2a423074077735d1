"""Nothing a client sends may stop a node: every verb, with bodies that fit its types and identities used again for
others; and, where a verb has a bug, one request fails and the node goes on.
"""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace
from plain_bodies import PLAIN, plain_body
from server_rig import Answer, Rig
from wire_strategies import values_of

from metad.errors import StorageError
from metad.state import registry
from metad.state.registry import VERBS
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.declaration import Declaration, DeclaredField
from metad_wire.errors import (
    InternalError,
    InvalidItemError,
    InvalidRequestError,
    MetadError,
    OverloadedError,
    TooLargeError,
)
from metad_wire.messages import Identity
from metad_wire.methods import BETWEEN_NODES, Method
from metad_wire.program.sparing import Sparing
from metad_wire.tables import broker as b
from metad_wire.tables import consumer as g
from metad_wire.tables import lease as w
from metad_wire.tables import sequence as s
from metad_wire.tables.access import BindingChange, Given, Grant, PrincipalKey, PrincipalRoles, Role, RoleKey
from metad_wire.tables.declaration import DeclarationKey, Declare
from metad_wire.tables.feature import FeatureRecord, FeatureWish
from metad_wire.tables.inflight import Inflight, InflightKey
from metad_wire.tables.plan import NewPlan, PlanKey, PlanState
from metad_wire.tables.retained import (
    RetainedDeleteItem,
    RetainedKey,
    RetainedPutItem,
)
from metad_wire.tables.subscription import Subscription, SubscriptionKey
from metad_wire.tables.tenants import Quota, QuotaKey
from metad_wire.tables.will import WillClaim, WillKey, WillWait
from metad_wire.watch import WatchFilter, WatchOpen
from sim.naming import kind_of

OPEN = [verb.method for verb in VERBS.values() if verb.method.code not in BETWEEN_NODES]
"""What clients may ask of a group."""
# Few names, so that requests meet each other's records; identities are few for the same reason.
NAMES = st.sampled_from(["", "a", "b", "c\0", "\u00e9"])
IDENTITIES = st.builds(
    Identity,
    client_id=st.sampled_from([0, 1, 2**64 - 1]),
    seq=st.sampled_from([0, 1, 2, 2**63 - 1]),
    low=st.sampled_from([0] * 9 + [2]),  # it makes the window forget what others would repeat
    age_ms=st.sampled_from([0, 1, 2**63 - 1]),
)
ATTEMPTS = st.sampled_from(OPEN).flatmap(
    lambda method: st.tuples(
        st.just(method),
        st.lists(values_of(method.body, NAMES), min_size=1, max_size=4),
        st.none() | IDENTITIES,
        st.booleans(),
    )
)
"""One identity for several bodies of a method; and whether each is done before the next comes, so that a repetition
meets its first attempt in one entry, in flight, or done."""


def still_works(rig: Rig) -> Any:
    return rig.ask(methods.KV_PUT, m.KvPut([m.KvPutItem(f"n{i}", "k", b"v") for i in range(20)]))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ATTEMPTS, max_size=12))
def test_no_request_stops_a_node(attempts: list[tuple[Method[Any, Any], list[Any], Identity | None, bool]]) -> None:
    async def run() -> None:
        rig = Rig()
        await rig.open()
        answers: list[Answer] = []
        for method, bodies, identity, in_turn in attempts:
            for body in bodies:
                answers.append(rig.send(method, body, identity))
                if in_turn:
                    await rig.settle()
        rig.node.will_turns.drain()  # those that wait for a turn would wait for a minute
        await rig.settle()
        assert rig.node.failure is None
        assert all(answer.done for answer in answers)
        assert rig.node.status().in_flight_bytes == 0
        await still_works(rig)
        await rig.close()

    asyncio.run(run())


async def test_an_identity_reused_for_another_body_is_answered() -> None:
    # This stopped any node, each leader in turn, with 60 bytes.
    rig = Rig()
    await rig.open()
    identity = Identity(1, 1, 0)
    for count in (1, 2, 3):
        items = [m.SessionTakeoverItem("t", f"c{i}") for i in range(count)]
        rig.send(methods.SESSION_TAKEOVER, m.SessionTakeover("b", 1, items, restore=True), identity)
        await rig.settle()
        assert rig.node.failure is None
    await still_works(rig)
    await rig.close()


@pytest.mark.parametrize(
    "method", [method for method in OPEN if method.item and method.mutates], ids=lambda method: method.name
)
async def test_a_write_without_items_spends_its_identity(method: Method[Any, Any]) -> None:
    """So a client proves that an attempt in doubt is never done, and may send its items with other identities."""
    rig = Rig()
    await rig.open()
    group = f"{kind_of(method)}-0"
    whole = replace(body_of(method), items=[5] * 2)
    none = method.decode_request(
        methods.encode((0, None, Raw(method.without_items(methods.encode(whole))), group))
    ).body
    spent, used = Identity(1, 1, 1), Identity(1, 2, 1)
    assert (await rig.answered(rig.send(method, none, spent, group=group))).reply(method).errors == []
    assert type((await rig.answered(rig.send(method, whole, spent, group=group))).error) is InvalidRequestError
    (await rig.answered(rig.send(method, whole, used, group=group))).reply(method)
    again = replace(used, age_ms=5)
    assert type((await rig.answered(rig.send(method, none, again, group=group))).error) is InvalidRequestError
    await rig.close()


@pytest.mark.parametrize("method", [method for method in OPEN if method.item], ids=lambda method: method.name)
async def test_a_thousand_bad_items_are_refused_within_bounds(method: Method[Any, Any]) -> None:
    """A kilobyte of request asks for a thousand refusals: they take tens of kilobytes, and only the answer is written
    for them, which a retry repeats."""
    rig = Rig()
    await rig.open()
    group = f"{kind_of(method)}-0"
    for number, item in enumerate((5, [[]] * 9, [b"x" * 50] * 9, "\0" * 100, {"\0": 1}), 1):
        body = replace(body_of(method), items=[item] * 1_000)
        identity = Identity(1, number, 1) if method.mutates else None
        answer = await rig.answered(rig.send(method, body, identity, group=group))
        reply = answer.reply(method)
        assert [error.index for error in reply.errors] == list(range(1_000))
        assert {error.code for error in reply.errors} == {InvalidItemError.code}
        assert len(methods.encode(reply)) < 64 * 1024
        assert rig.node.status().in_flight_bytes == 0
        if identity is not None:
            again = await rig.answered(rig.send(method, body, replace(identity, age_ms=5), group=group))
            assert again.reply(method) == reply
            other = await rig.answered(rig.send(method, body_of(method), identity, group=group))
            assert isinstance(other.error, InvalidRequestError), "the identity is another request's"
    assert rig.driver(group).machine.dedupe._bytes < 5 * 64 * 1024
    await still_works(rig)
    await rig.close()


FUNCTIONS = [
    (method, name)
    for method in OPEN
    for name in ("rows", "evaluate", "read", "forget", "recall")
    if getattr(VERBS[method.code], name) is not None
]
BODIES: dict[str, dict[str, Any]] = {
    "items": {
        "declaration": [DeclarationKey(f"t{i}") for i in range(30)],
        "declaration.declare": [Declaration(f"t{i}", "data", [DeclaredField("k", "str")], ["k"], 1) for i in range(30)],
        "session": [m.SessionKey("t", f"c{i}") for i in range(30)],
        "offset": [m.OffsetKey("t", f"g{i}", "t", 0) for i in range(30)],
        "kv": [m.KvKey(f"n{i}", "k") for i in range(30)],
        "session.takeover": [m.SessionTakeoverItem("t", f"c{i}") for i in range(30)],
        "session.update": [m.SessionUpdateItem("t", f"c{i}", m.SessionProperties()) for i in range(30)],
        "subscription.add": [Subscription("t", f"c{i}", "f/+") for i in range(30)],
        "subscription.remove": [SubscriptionKey("t", f"c{i}", "f/+") for i in range(30)],
        "inflight.put": [Inflight("t", f"c{i}", "n", b"v") for i in range(30)],
        "inflight.delete": [InflightKey("t", f"c{i}", "n") for i in range(30)],
        "will.acknowledge": [WillKey("t", f"c{i}", "1") for i in range(30)],
        "will.release": [WillKey("t", f"c{i}", "1") for i in range(30)],
        "offset.commit": [m.OffsetCommitItem("t", f"g{i}", "t", 0, 1) for i in range(30)],
        "offset.reset_generations": [m.GenerationReset("t", f"g{i}", 0, 1) for i in range(30)],
        "offset.delete_groups": [m.ConsumerGroup("t", f"g{i}") for i in range(30)],
        "consumer": [g.MemberKey("t", f"g{i}", "m") for i in range(30)],
        "consumer.join": [g.JoinItem("t", f"g{i}", 60_000) for i in range(30)],
        "consumer.assign": [g.AssignItem("t", f"g{i}", "m", 1, []) for i in range(30)],
        "consumer.describe": [m.ConsumerGroup("t", f"g{i}") for i in range(30)],
        "kv.put": [m.KvPutItem(f"n{i}", "k", b"v") for i in range(30)],
        "kv.delete": [m.KvDeleteItem(f"n{i}", "k") for i in range(30)],
        "lease": [w.LeaseKey(f"n{i}", "l") for i in range(30)],
        "sequence": [s.SequenceKey(f"n{i}", "s") for i in range(30)],
        "lease.grant": [w.LeaseGrantItem(f"n{i}", 60_000) for i in range(30)],
        "sequence.add": [s.SequenceAddItem(f"n{i}", "s") for i in range(30)],
        "plan": [PlanKey(f"p{i}") for i in range(30)],
        "plan.create": [NewPlan(f"p{i}", "rebalance") for i in range(30)],
        "plan.set": [PlanState(f"p{i}", "paused") for i in range(30)],
        "quota": [QuotaKey(f"tenant/t{i}") for i in range(30)],
        "feature.change": [FeatureWish(f"f{i}", "held") for i in range(30)],
        "feature.switch": [FeatureRecord(f"f{i}", "on") for i in range(30)],
        "quota.put": [Quota(f"tenant/t{i}", 1) for i in range(30)],
        "role": [RoleKey(f"r{i}") for i in range(30)],
        "role.put": [Role(f"r{i}", [Grant(["read"])]) for i in range(30)],
        "principal": [PrincipalKey(f"metad://client/c{i}") for i in range(30)],
        "principal.put": [PrincipalRoles(f"metad://client/c{i}", [Given("reader")]) for i in range(30)],
        "principal.change": [BindingChange(f"metad://client/c{i}", [Given("reader")]) for i in range(30)],
        "retained": [RetainedKey("t", f"topic{i}") for i in range(30)],
        "retained.put": [RetainedPutItem("t", f"topic{i}", b"v") for i in range(30)],
        "retained.delete": [RetainedDeleteItem("t", f"topic{i}") for i in range(30)],
        "kv.transact": [m.KvTransaction(f"n{i}", [], [m.KvOperation("k", b"v")]) for i in range(30)],
    }
}


def body_of(method: Method[Any, Any]) -> Any:
    """A request of many items, where the method has items."""
    if method.name in PLAIN:
        return plain_body(method.name, [[f"t{i}"] for i in range(30)])
    table = method.name.partition(".")[0]
    values: dict[str, Any] = {"broker": "b", "broker_epoch": 1, "tenant": "t", "group": "g"}
    values |= {"namespace": "n", "lease": "l", "filter": "#"}
    values["items"] = BODIES["items"].get(method.name, BODIES["items"].get(table))
    values["restore"] = values["publish_wills"] = True
    values["lease_ms"] = 1_000
    return method.body(**{name: values[name] for name in method.body.__struct_fields__ if name in values})


@pytest.mark.parametrize(("method", "name"), FUNCTIONS, ids=lambda value: getattr(value, "name", value))
async def test_a_bug_in_a_verb_fails_its_requests_only(
    method: Method[Any, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(commit={"pipeline_entries_max": 1})
    await rig.open()
    await still_works(rig)

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(registry.VERBS[method.code], name, broken)
    identity = Identity(1, 1, 0) if method.mutates else None
    answers = [rig.send(method, body_of(method), identity)]
    rig.turn()
    answers += [rig.send(method, body_of(method), identity) for _ in range(2)]
    await rig.settle()
    answers.append(rig.send(method, body_of(method), identity))
    await rig.settle()
    assert rig.node.failure is None
    assert all(answer.done for answer in answers)
    failed = [answer.results[0] for answer in answers if isinstance(answer.results[0], MetadError)]
    if name != "recall":
        assert len(failed) == len(answers)
    assert failed
    assert {type(error) for error in failed} <= {InternalError}
    assert rig.node.status().in_flight_bytes == 0
    monkeypatch.undo()
    await still_works(rig)
    await rig.close()


async def test_a_failed_command_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(groups={"data": 1})
    await rig.open()
    verb = VERBS[methods.KV_PUT.code]
    evaluate = verb.evaluate
    assert evaluate is not None

    def broken(view: Any, command: Any) -> Any:
        reply = evaluate(view, command)
        if command.body.items[0].value == b"bad":
            raise ZeroDivisionError("planted")
        if command.body.items[0].value == b"unencodable":
            return object()
        return reply

    monkeypatch.setattr(verb, "evaluate", broken)
    answers = [rig.send(methods.KV_PUT, m.KvPut([m.KvPutItem("n", "k", value)])) for value in (b"bad", b"unencodable")]
    answers.append(rig.send(methods.KV_PUT, m.KvPut([m.KvPutItem("n", "other", b"good")])))
    await rig.settle()
    assert [isinstance(answer.results[0], InternalError) for answer in answers] == [True, True, False]
    found = await rig.ask(methods.KV_GET, methods.KV_GET.body([m.KvKey("n", "k"), m.KvKey("n", "other")]))
    assert [record and record.value for record in found.found] == [None, b"good"]
    monkeypatch.undo()
    assert (await rig.ask(methods.KV_PUT, m.KvPut([m.KvPutItem("n", "k", b"v")]))).versions == [1]
    await rig.close()


async def test_a_broken_disk_still_stops_the_node_at_a_recall() -> None:
    rig = Rig(groups={"data": 1})
    await rig.open()
    identity = Identity(1, 1, 0)
    body = m.KvPut([m.KvPutItem("n", "k", b"v")])
    await rig.ask(methods.KV_PUT, body, identity)
    rig.state_engine.broken["get"] = StorageError("broken")
    answer = rig.send(methods.KV_PUT, body, identity)
    await rig.settle()
    assert rig.node.failure is not None
    assert not answer.error.outcome_known
    rig.state_engine.broken.clear()
    await rig.close()


def test_bugs_are_logged_sparingly() -> None:
    now_s = 0.0
    sparing = Sparing(2, 60.0, lambda: now_s)
    assert [sparing.admit() for _ in range(5)] == [0, 0, None, None, None]
    now_s = 60.0
    assert [sparing.admit() for _ in range(3)] == [3, 0, None]


async def test_a_bug_that_is_met_often_fills_no_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(groups={"data": 1})
    await rig.open()

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(VERBS[methods.KV_GET.code], "read", broken)
    monkeypatch.setattr("metad.logs._bugs", Sparing(3, 1e9))
    with caplog.at_level(logging.ERROR, "metad"):
        for _ in range(50):
            rig.send(methods.KV_GET, methods.KV_GET.body([m.KvKey("n", "k")]))
    assert len([record for record in caplog.records if record.message == "bug"]) == 3
    await rig.close()


LONG = "x" * 1_900_000
"""A field of a request as large as one may be that writes."""


@pytest.mark.parametrize(
    ("method", "body"),
    [
        (methods.KV_PUT, m.KvPut([m.KvPutItem("n", f"k{i}", b"") for i in range(1_000)], LONG)),
        (
            methods.OFFSET_COMMIT,
            m.OffsetCommit([m.OffsetCommitItem("t", f"g{i}", "t", 0, 1) for i in range(1_000)], member=LONG),
        ),
        (methods.WILL_WAIT, WillWait(LONG, 1, 60_000)),
        (methods.WILL_CLAIM, WillClaim(LONG, 1, 60_000)),
        (methods.SESSION_TAKEOVER, m.SessionTakeover(LONG, 1, [m.SessionTakeoverItem("t", "c")])),
        (methods.BROKER_REGISTER, b.BrokerRegister(LONG)),
        (methods.BROKER_DRAIN, b.BrokerDrain(LONG, 1)),
        (methods.BROKER_DEREGISTER, b.BrokerDeregister(LONG, 1)),
        (methods.BROKER_FENCE, b.BrokerFence(LONG)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
async def test_a_long_name_is_not_repeated_for_each_item(method: Method[Any, Any], body: Any) -> None:
    """Two megabytes that were in the error of each of a thousand items made two gigabytes of answer."""
    rig = Rig()
    await rig.open()
    table = method.name.partition(".")[0]
    group = {"offset": "offset-0", "broker": ""}.get(table, "data-0")
    answer = await rig.answered(rig.send(method, body, group=group))
    assert isinstance(answer.error, InvalidRequestError)
    assert len(encode_error(answer.error)) < 8 * 1024
    assert rig.node.status().in_flight_bytes == 0
    await still_works(rig)
    await rig.close()


def encode_error(error: MetadError) -> bytes:
    return methods.encode(error.body())


async def test_errors_are_short_whatever_a_request_names() -> None:
    rig = Rig()
    await rig.open()
    key = m.KvKey("n", "k")
    unknown = await rig.answered(rig.send(methods.KV_GET, methods.KV_GET.body([key]), group=LONG))
    assert len(encode_error(unknown.error)) < 8 * 1024
    beats = b.BrokerHeartbeat([b.BrokerBeat(LONG[:100_000], 1)] * 3)
    refused = await rig.answered(rig.send(methods.BROKER_HEARTBEAT, beats, group=""))
    assert len(refused.results[0]) < 8 * 1024
    await rig.close()


async def test_a_listing_with_a_huge_prefix_is_refused_before_anything_is_made_of_it() -> None:
    """Guards the loop: 15 MB of zeros took a quarter of a second to become a key that no row has."""
    rig = Rig()
    await rig.open()
    prefix = "\0" * m.LISTING_BYTES_MAX
    payload = methods.KV_SCAN.encode_request(m.KvScan("n", prefix, m.Page(1)), group="data-0")
    answer = Answer()
    rig.node.requests.submit(methods.KV_SCAN.code, payload, answer)
    assert isinstance(answer.error, TooLargeError)
    refusals: list[MetadError] = []
    outlet: Any = SimpleNamespace(refused=refusals.append)
    opening = WatchOpen([WatchFilter("kv", ["x" * m.CHANGE_BYTES_MAX])])
    assert rig.node.watches.open(methods.WATCH_OPEN.encode_request(opening, group="data-0"), outlet) is None
    assert isinstance(refusals[0], TooLargeError)
    await rig.close()


async def test_who_waits_for_wills_takes_no_memory_from_those_who_write() -> None:
    """A few connections that waited with long names had all writes of the node refused for a minute."""
    rig = Rig(limits={"in_flight_bytes_max": 16 * 1024 * 1024})
    await rig.open()
    waits = [
        rig.send(methods.WILL_WAIT, WillWait("b", 1, 60_000, "t" * size), group="data-0")
        for size in (*[500_000] * 16, *[3_000] * 5_000)
    ]
    await rig.settle()
    refused = [wait.error for wait in waits if wait.done]
    assert {type(error) for error in refused} == {OverloadedError}
    waiting = rig.node.requests._waiting
    assert 0 < waiting.held <= 12 * 1024 * 1024
    await still_works(rig)
    rig.node.will_turns.drain()
    assert not all(wait.done for wait in waits), "thousands hear of it in slices"
    for _ in range(20):
        await rig.settle()
    assert all(wait.done for wait in waits)
    assert waiting.held == 0
    await rig.close()


async def test_a_put_is_refused_for_its_defaults_before_its_records_are_made() -> None:
    """Guards a leader's loop and memory: 30 KB of a table with long defaults became a thousand records of 12 KB."""
    rig = Rig()
    await rig.open()
    long = [DeclaredField(f"f{i}", "list[str]", methods.encode(["x" * 235])) for i in range(50)]
    ample = Declaration("ample", "data", [DeclaredField("k", "str"), *long], ["k"], 1)
    (table,) = (await rig.ask(methods.DECLARATION_DECLARE, Declare([ample]))).found

    def put(count: int) -> Answer:
        items = [m.TablePutItem([f"k{i}"]) for i in range(count)]
        body = methods.TABLE_PUT.body(table.number, 1, items)
        answer = Answer()
        payload = methods.TABLE_PUT.encode_request(body, group="data-0")
        rig.node.requests.submit(methods.TABLE_PUT.code, payload, answer)
        return answer

    assert isinstance(put(1_000).error, TooLargeError)
    answer = put(100)
    assert rig.node.status().in_flight_bytes > 100 * 50 * 235
    (reply,) = (await rig.answered(answer)).results
    assert isinstance(reply, bytes)
    await rig.close()
