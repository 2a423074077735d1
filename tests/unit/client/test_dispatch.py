"""The components of the dispatcher, each alone, on connections that only note what they are told."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise
from typing import Any, cast

import pytest

from metad_client import (
    Backoff,
    ConnectionLostError,
    DeadlineExceededError,
    NotFoundError,
    NotLeaderError,
    Options,
    OverloadedError,
)
from metad_client.dispatch.calls.alarm import Alarm
from metad_client.dispatch.calls.call import ENVELOPE_BYTES_MAX, Call
from metad_client.dispatch.calls.call_queue import Backlog, CallQueue
from metad_client.dispatch.calls.retries import Deadlines, Retries
from metad_client.dispatch.discovery import PROBE_AFTER_S, SEEK_DEADLINE_S, SEEK_MAX_S, SEEK_MIN_S, Discovery
from metad_client.dispatch.leaders import Leaders
from metad_client.dispatch.nodes import NodeQueue, Nodes
from metad_client.dispatch.router import ANY, SUSPECT_S, Nearest, Router, Routes, Sender, Suspects
from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire.errors import StaleRouteError, UnknownMethodError, UnknownOutcomeError
from metad_wire.methods import CLUSTER_MAP, KV_GET, KV_PUT


class Connected:
    """A connection with a window of so many bytes."""

    def __init__(self, node: str, cluster_id: str = "c1", window_bytes: int = 3_000) -> None:
        self.welcome = m.Welcome(1, 0, node, cluster_id, window_bytes, 1 << 20, 60_000)
        self.window_bytes = window_bytes
        self.sent: list[Call] = []
        self.answered: set[Call] = set()
        self.cancelled: list[Call] = []

    def can_send(self, size: int, *, ahead: bool = False) -> bool:
        return size <= self.window_bytes

    def send(self, call: Call, payload: bytes) -> None:
        self.window_bytes -= len(call.body) + ENVELOPE_BYTES_MAX
        self.sent.append(call)
        call.carried(self, len(self.sent))

    def cancel(self, call: Call) -> None:
        self.cancelled.append(call)

    def calls(self) -> list[Call]:
        return [call for call in self.sent if call not in self.answered]


class Rig:
    """The components, put together without a dispatcher."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.sought = 0
        self.learned: list[str] = []
        self.suspected = 0
        self.backlog = Backlog(100, 10_000, [])
        self.nodes = Nodes(self.backlog)
        self.leaders = Leaders()
        self.routes = Routes()
        self.suspects = Suspects(self.loop, self.nodes, self.suspect)
        self.sender = Sender(self.loop, random.Random(1), self.suspects)
        rng = random.Random(1)
        nearest = Nearest(self.loop, "", self.nodes, self.leaders, self.routes, self.suspects, rng)
        self.router = Router(self.nodes, self.leaders, self.routes, self.sender, self.backlog, rng, self.seek, nearest)
        self.discovery = Discovery(
            self.loop,
            self.nodes,
            self.routes,
            self.router,
            self.sender,
            self.suspects,
            Alarm(self.loop, lambda now: None),
            lambda queue, reply: self.learned.append(queue.node),
            self.loop.create_future(),
        )

    def seek(self) -> None:
        self.sought += 1

    def suspect(self) -> None:
        self.suspected += 1

    def connect(self, *names: str) -> list[Connected]:
        connections = [Connected(name) for name in names]
        self.nodes.follow(dict.fromkeys(names, ""))
        for connection in connections:
            assert self.nodes.attach(cast("Any", connection), None) is not None
        return connections

    def call(self, group: str | None = "data-0", body: bytes = b"", method: Any = KV_GET, **options: Any) -> Call:
        return Call(method, body, self.loop.time() + 10, self.loop.create_future(), group, **options)


@pytest.fixture
async def rig() -> Rig:
    return Rig()


def is_waiting(call: Call) -> bool:
    return call.queue is not None


# --- calls ---


async def test_every_attempt_of_a_write_has_its_identity_and_says_its_age(rig: Rig) -> None:
    (connection,) = rig.connect("n1")
    call = rig.call(method=KV_PUT)
    rig.sender.send(cast("Any", connection), call)
    await asyncio.sleep(2)
    again = call.attempt(rig.loop.time(), call.identities)
    assert again.identity == m.Identity(again.identity.client_id, 1, 1, 2000)
    assert call.attempts == 2
    call.succeed(m.KvPutReply([], [], []))
    assert again.identity.seq < call.identities.low


async def test_a_call_knows_why_it_was_refused(rig: Rig) -> None:
    call = rig.call()
    for error, astray, stale in [
        (NotLeaderError(), True, False),
        (UnknownOutcomeError(), True, False),
        (StaleRouteError(), False, True),
        (OverloadedError(), False, False),
    ]:
        call.refused("n1", error)
        assert (call.astray, call.stale, call.refused_by) == (astray, stale, "n1")
    nobodys = rig.call(ANY)
    nobodys.refused("n1", StaleRouteError())
    assert not nobodys.stale, "it is about no slots"


async def test_a_withdrawn_attempt_is_cancelled_once(rig: Rig) -> None:
    (connection,) = rig.connect("n1")
    call = rig.call()
    rig.sender.send(cast("Any", connection), call)
    call.withdraw()
    call.withdraw()
    assert connection.cancelled == [call]


# --- what waits ---


async def test_what_waits_is_bounded_in_calls_and_in_bytes(rig: Rig) -> None:
    retrying: list[int] = []
    backlog = Backlog(3, 100, retrying)
    queue = CallQueue(backlog)
    backlog.check(1_000)  # a single one may be larger
    calls = [rig.call(body=b"x" * 40) for _ in range(2)]
    for call in calls:
        queue.add(call)
    with pytest.raises(OverloadedError, match="80 bytes wait"):
        backlog.check(21)
    backlog.check(20)
    retrying.append(1)
    with pytest.raises(OverloadedError, match="3 requests wait"):
        backlog.check(0)
    calls[0].fail(ConnectionLostError())
    assert list(queue) == calls[1:]
    assert backlog.calls == 2
    backlog.check(60)


async def test_a_queue_is_in_order_and_lets_some_go_first(rig: Rig) -> None:
    queue = CallQueue(rig.backlog)
    first, second, urgent = rig.call(), rig.call(), rig.call()
    queue.add(first)
    queue.add(second)
    queue.add(urgent, first=True)
    assert list(queue) == [urgent, first, second]
    first.unqueue()
    first.unqueue()
    assert list(queue) == [urgent, second]


async def test_a_node_is_sent_what_fits_its_window_and_the_rest_later(rig: Rig) -> None:
    (connection,) = rig.connect("n1")
    queue = rig.nodes.queues["n1"]
    calls = [rig.call(body=b"x" * 1_000) for _ in range(4)]
    for call in calls:
        queue.waiting.add(call)
    rig.sender.send_waiting(queue)
    assert connection.sent == calls[:2]
    connection.window_bytes = 1_400
    rig.sender.send_waiting(queue)
    assert connection.sent == calls[:3]
    queue.disconnect(None)
    connection.window_bytes = 1_400
    rig.sender.send_waiting(queue)
    assert list(queue.waiting) == calls[3:]


# --- nodes ---


async def test_a_connection_belongs_to_the_node_that_greeted(rig: Rig) -> None:
    nodes = rig.nodes
    first = nodes.attach(cast("Any", Connected("n1")), None)
    assert first is not None
    assert first is nodes.queues["n1"]
    assert not first.down.is_set()
    assert nodes.attach(cast("Any", Connected("n1")), None) is None, "it has one"
    assert nodes.attach(cast("Any", Connected("n2")), None) is None, "the map does not name it"
    nodes.follow({"n1": "", "n2": ""})
    assert nodes.attach(cast("Any", Connected("n2", "another cluster")), None) is None
    assert nodes.attach(cast("Any", Connected("n2")), None) is nodes.queues["n2"]
    assert nodes.reached == 2


async def test_without_a_connected_node_any_cluster_will_do(rig: Rig) -> None:
    nodes = rig.nodes
    (old,) = rig.connect("n1")
    nodes.queues["n1"].disconnect(None)
    assert nodes.any_up() is None
    new = Connected("m1", "another cluster")
    assert nodes.attach(cast("Any", new), None) is nodes.queues["m1"]
    assert nodes.up() == [(nodes.queues["m1"], new)]
    assert list(nodes.connections) == [old, new], "the old one may have calls in flight"


async def test_a_connection_is_exchanged_only_for_the_one_that_is_there(rig: Rig) -> None:
    (old,) = rig.connect("n1")
    new = cast("Any", Connected("n1"))
    assert rig.nodes.attach(new, cast("Any", Connected("n1"))) is None
    queue = rig.nodes.attach(new, cast("Any", old))
    assert queue is not None
    assert (queue.connection, queue.connects, rig.nodes.reached) == (new, 2, 1)


async def test_nodes_are_those_of_the_map(rig: Rig) -> None:
    rig.connect("n1", "n2")
    rig.nodes.changed.clear()
    kept = rig.nodes.queues["n1"]
    (removed,) = rig.nodes.follow({"n1": "", "n3": ""})
    assert removed.node == "n2"
    assert list(rig.nodes.queues) == ["n1", "n3"]
    assert rig.nodes.queues["n1"] is kept
    assert rig.nodes.changed.is_set()


# --- where calls go ---


async def test_a_call_goes_to_the_leader_of_its_group_or_to_its_node(rig: Rig) -> None:
    one, two = rig.connect("n1", "n2")
    rig.leaders.learn("data-0", "n2")
    led, bound, lost, anybodys = rig.call(), rig.call(ANY, node="n1"), rig.call(ANY, node="n9"), rig.call(ANY)
    rig.router.route([led, bound, lost, anybodys])
    assert two.sent == [led]
    assert one.sent == [bound, anybodys]
    with pytest.raises(NotFoundError, match="n9 is no member"):
        await lost.future
    assert rig.sought == 0


async def test_calls_are_parked_until_a_leader_is_known(rig: Rig) -> None:
    (connection,) = rig.connect("n1")
    calls = [rig.call() for _ in range(3)]
    rig.router.route(calls)
    assert rig.sought == 3
    assert not rig.router.has_leaders()
    assert str(rig.router.obstacle(calls[0])) == "no leader of data-0 is known"
    rig.router.release()
    assert not connection.sent
    rig.leaders.learn("data-0", "n1")
    rig.router.release()
    assert connection.sent == calls
    assert rig.router.has_leaders()
    assert rig.backlog.calls == 0


async def test_who_waits_for_the_map_waits_until_it_has_the_methods_groups(rig: Rig, a_map: Any) -> None:
    call = rig.call(None)
    rig.router.park(call)
    rig.router.release()
    assert not call.future.done()
    rig.routes.learn(c.MapReply(1, a_map({"n1": ""}), {}))
    rig.router.release()
    assert call.future.result() is None
    assert not is_waiting(call)


async def test_one_call_of_a_group_without_a_leader_is_tried_on_a_node(rig: Rig) -> None:
    (connection,) = rig.connect("n1")
    calls = [rig.call() for _ in range(3)]
    rig.router.route(calls)
    rig.router.probe()
    assert connection.sent == calls[:1]
    assert calls[0].probes == "n1"
    rig.leaders.learn("data-0", "n1")
    rig.router.probe()
    assert len(connection.sent) == 1, "its leader is known"


async def test_calls_that_wait_for_another_node_by_now_stay_in_order(rig: Rig) -> None:
    one, two = rig.connect("n1", "n2")
    one.window_bytes = 0
    rig.leaders.learn("data-0", "n1")
    calls = [rig.call() for _ in range(3)]
    rig.router.route(calls)
    rig.leaders.learn("data-0", "n2")
    rig.router.reroute(call for call in rig.nodes.queues["n1"].waiting if call.group == "data-0")
    assert two.sent == calls
    assert not rig.nodes.queues["n1"].waiting


# --- times ---


async def test_an_alarm_rings_at_the_earliest_time(rig: Rig) -> None:
    rings: list[float] = []
    alarm = Alarm(rig.loop, rings.append)
    now = rig.loop.time()
    for after in (5, 2, 3):
        alarm.set(now + after)
    await asyncio.sleep(10)
    assert rings == [now + 2]
    alarm.set(now)
    await asyncio.sleep(0.001)
    assert rings[1:] == [now + 10], "a time that has passed is now"
    alarm.set(now + 20)
    alarm.cancel()
    await asyncio.sleep(20)
    assert len(rings) == 2


async def test_deadlines_end_what_is_due_and_sweeps_are_apart(rig: Rig) -> None:
    now = rig.loop.time()
    calls = [rig.call() for _ in range(200)]
    for number, call in enumerate(calls):
        call.deadline = now + 1 + number / 10_000
    sweeps: list[float] = []
    left = dict.fromkeys(calls)

    def expire(call: Call) -> None:
        del left[call]
        if rig.loop.time() not in sweeps:
            sweeps.append(rig.loop.time())
        assert call.deadline <= rig.loop.time()

    deadlines = Deadlines(rig.loop, lambda: list(left), expire)
    deadlines.alarm.set(min(call.deadline for call in calls))
    await asyncio.sleep(2)
    assert not left
    assert len(sweeps) <= 4


async def test_retries_come_in_order_of_time_and_skip_what_ended(rig: Rig) -> None:
    due: list[Call] = []
    retries = Retries(rig.loop, Options(backoff=Backoff(base_s=4.0, cap_s=4.0)), random.Random(1), due.extend)
    calls = [rig.call() for _ in range(20)]
    ended, late = rig.call(), rig.call()
    for call in [*calls, ended]:
        assert retries.schedule(call, OverloadedError()) is None
    late.deadline = rig.loop.time()
    assert isinstance(retries.schedule(late, OverloadedError("busy")), OverloadedError)
    assert len(retries) == 21
    ended.fail(ConnectionLostError())
    assert ended not in retries.calls()
    await asyncio.sleep(1)
    assert 0 < len(due) < 20
    await asyncio.sleep(4)
    assert set(due) == set(calls)
    assert len(due) == 20
    assert len(retries) == 0


async def test_news_of_a_leader_bring_forward_whom_others_refused(rig: Rig) -> None:
    due: list[Call] = []
    retries = Retries(rig.loop, Options(backoff=Backoff(base_s=9.0, cap_s=9.0)), random.Random(1), due.extend)
    refused, by_it, overloaded, elsewhere = rig.call(), rig.call(), rig.call(), rig.call("data-1")
    refused.refused("n1", NotLeaderError())
    by_it.refused("n2", NotLeaderError())
    overloaded.refused("n1", OverloadedError())
    elsewhere.refused("n1", NotLeaderError())
    for call in (refused, by_it, overloaded, elsewhere):
        retries.schedule(call, OverloadedError(retry_after_ms=1_000))
    retries.hurry("data-0", "n2")
    await asyncio.sleep(0.001)
    assert due == [refused]
    await asyncio.sleep(9)
    assert len(due) == 4, "who was brought forward comes once"


# --- news ---


async def test_a_connection_that_does_not_answer_for_long_is_suspected(rig: Rig) -> None:
    one, two = rig.connect("n1", "n2")
    slow, quick = rig.call(), rig.call()
    rig.sender.send(cast("Any", one), slow)
    rig.sender.send(cast("Any", two), quick)
    two.answered.add(quick)
    await asyncio.sleep(SUSPECT_S - 0.1)
    assert rig.suspected == 0
    await asyncio.sleep(1)
    assert rig.suspected > 0
    assert rig.suspects.connections == {one}
    one.answered.add(slow)
    await asyncio.sleep(1)
    assert not rig.suspects.connections
    assert rig.suspects.timer is None, "nothing is in flight"


async def test_the_only_node_is_not_suspected(rig: Rig) -> None:
    (connection,) = rig.connect("n1")
    rig.sender.send(cast("Any", connection), rig.call())
    await asyncio.sleep(5)
    assert rig.suspected == 0


async def test_one_question_at_a_time_goes_to_the_nodes_in_order_and_first_to_those_that_answer(rig: Rig) -> None:
    connections = rig.connect("n1", "n2", "n3")
    rig.suspects.connections = {cast("Any", connections[0])}
    rig.discovery.asked_at["n1"] = rig.loop.time()
    rig.router.park(rig.call())
    asked = []
    for _ in range(4):
        rig.discovery.seek(at_once=True)
        rig.discovery.seek(at_once=True)
        await asyncio.sleep(0.001)
        (question,) = [call for each in connections for call in each.calls()]
        (connection,) = [each for each in connections if question in each.sent]
        asked.append(connection.welcome.node_id)
        connection.answered.add(question)
        question.succeed(c.MapReply(0, None, {}))
        await asyncio.sleep(0)
    assert asked == ["n2", "n3", "n2", "n3"]
    assert rig.learned == asked
    assert rig.discovery.asked.done()


async def test_a_node_that_does_not_answer_soon_is_not_waited_for(rig: Rig) -> None:
    """It may have just stopped, so that nobody suspects it yet: a lease of half a second ended meanwhile."""
    one, two = rig.connect("n1", "n2")
    rig.discovery.seek(at_once=True)
    await asyncio.sleep(0.01)
    assert (len(one.sent), len(two.sent)) == (1, 0)
    await asyncio.sleep(SEEK_MAX_S)
    assert (len(one.sent), len(two.sent)) == (1, 1)
    one.sent[0].succeed(c.MapReply(0, None, {}))
    two.sent[0].succeed(c.MapReply(0, None, {}))
    await asyncio.sleep(2 * SEEK_MAX_S)
    assert rig.learned == ["n1", "n2"]
    assert (len(one.sent), len(two.sent)) == (1, 1), "nobody waits for a leader"


async def test_a_node_that_has_answered_is_asked_again_while_another_says_nothing(rig: Rig) -> None:
    """It may have learned who leads since. A client waited for the whole deadline of a question to a node that stood
    still, and a lease of half a second ended meanwhile."""
    answers, silent = rig.connect("n1", "n2")
    answers.window_bytes = silent.window_bytes = 1 << 20
    rig.discovery.seek(at_once=True)
    await asyncio.sleep(0.01)
    answers.answered.add(answers.sent[0])
    answers.sent[0].succeed(c.MapReply(0, None, {}))
    await asyncio.sleep(0)
    rig.router.park(rig.call())
    rig.discovery.seek(at_once=True)
    await asyncio.sleep(0.01)
    assert (len(answers.sent), len(silent.sent)) == (1, 1)
    await asyncio.sleep(SEEK_MAX_S)
    assert (len(answers.sent), len(silent.sent)) == (2, 1)
    await asyncio.sleep(SEEK_MAX_S)
    assert (len(answers.sent), len(silent.sent)) == (2, 1), "both have yet to answer"


async def test_the_only_node_is_not_asked_twice_at_a_time(rig: Rig) -> None:
    (connection,) = rig.connect("n1")
    connection.window_bytes = 1 << 20
    rig.discovery.seek(at_once=True)
    await asyncio.sleep(3 * SEEK_MAX_S)
    assert len(connection.sent) == 1


async def test_a_suspect_is_asked_beside_the_others(rig: Rig) -> None:
    """It may have come back. The others may know nothing, having no replica of the group."""
    suspect, other = rig.connect("n1", "n2")
    suspect.window_bytes = other.window_bytes = 1 << 20
    rig.suspects.connections = {cast("Any", suspect)}
    rig.suspects.given_up[cast("Any", suspect)] = 0.0
    for _ in range(35):
        rig.discovery.seek(at_once=True)
        await asyncio.sleep(0.1)
        (question,) = other.calls()
        other.answered.add(question)
        question.succeed(c.MapReply(0, None, {}))
        await asyncio.sleep(0)
    assert len(suspect.sent) == 4, "once in the time that it has for an answer"
    rig.learned.clear()
    suspect.sent[-1].succeed(c.MapReply(0, None, {}))
    await asyncio.sleep(0)
    assert rig.learned == ["n1"]


async def test_a_suspect_that_answers_is_asked_in_its_turn(rig: Rig) -> None:
    """It stood still, and goes on. The others have no replica of the group and were asked for half a second, until it
    was suspected no more: a member of a consumer group was silent for as long."""
    suspect, other = rig.connect("n1", "n2")
    suspect.window_bytes = other.window_bytes = 1 << 20
    rig.suspects.connections = {cast("Any", suspect)}
    rig.router.park(rig.call())
    for _ in range(4):
        rig.discovery.seek(at_once=True)
        await asyncio.sleep(0.001)
        for connection in (suspect, other):
            for question in connection.calls():
                connection.answered.add(question)
                question.succeed(c.MapReply(0, None, {}))
        await asyncio.sleep(0)
    assert len(suspect.sent) >= 2


async def test_a_node_that_lets_a_question_time_out_has_not_answered(rig: Rig) -> None:
    rig.connect("n1")
    ((queue, connection),) = rig.nodes.up()
    rig.discovery._question(queue, connection, 0.0).succeed(c.MapReply(0, None, {}))
    await asyncio.sleep(0)
    assert rig.discovery.answered == {"n1"}
    rig.discovery._question(queue, connection, 1.0).fail(DeadlineExceededError("the deadline passed"))
    await asyncio.sleep(0)
    assert not rig.discovery.answered


async def test_questions_that_help_nobody_become_rarer_and_a_call_is_tried(rig: Rig) -> None:
    (connection,) = rig.connect("n1")
    connection.window_bytes = 10_000
    call = rig.call()
    rig.router.park(call)
    rig.discovery.seek(at_once=True)
    times: list[float] = []
    for _ in range(1_000):
        await asyncio.sleep(0.001)
        for question in [each for each in connection.calls() if each.method is CLUSTER_MAP]:
            times.append(rig.loop.time())
            assert call not in connection.sent
            connection.answered.add(question)
            question.succeed(c.MapReply(0, None, {}))
    assert call in connection.sent
    assert PROBE_AFTER_S <= times[-1] - times[0] < PROBE_AFTER_S + SEEK_MAX_S, "no call waits for a leader any more"
    assert len(times) < 0.8 * PROBE_AFTER_S / SEEK_MIN_S
    waits = [later - sooner for sooner, later in pairwise(times)]
    assert 0.9 * SEEK_MIN_S < waits[0] < 1.5 * SEEK_MIN_S < waits[-1] < SEEK_MAX_S + 0.01


async def test_a_question_has_a_deadline_and_may_be_refused(rig: Rig) -> None:
    (connection,) = rig.connect("n1")
    now = rig.loop.time()
    rig.discovery.seek(at_once=True)
    await asyncio.sleep(0.001)
    (question,) = connection.calls()
    assert question.deadline == now + SEEK_DEADLINE_S
    question.fail(UnknownMethodError())
    await asyncio.sleep(0)
    assert rig.discovery.asked.done()


def test_a_queue_says_which_node_it_is_for(rig: Rig) -> None:
    assert repr(NodeQueue("n1", rig.backlog)) == "<NodeQueue n1 down>"
