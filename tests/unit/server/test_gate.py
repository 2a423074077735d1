"""Who would wait too long in front of a group is turned away: by time, by lane, by tenant; cheaply; and it is told."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from server_rig import Answer, Rig, SteppedEnvironment

from metad.node.requests import admission as gate_module
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import FenceItem, GroupFence
from metad_wire.errors import OverloadedError
from metad_wire.method import Method
from metad_wire.tables.lease import LeaseKeepAlive, LeaseKey

GROUP = "data-0"


class Line:
    """A client's connection."""

    host = holder = ""
    principal = None


class Storm:
    """A group that makes nothing durable while requests come."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.line = Line()
        self.sent = 0

    def send(self, method: Method[Any, Any], body: Any, line: Line | None = None, deadline_ms: int = 0) -> Answer:
        answer = Answer()
        payload = method.encode_request(body, deadline_ms, None, GROUP)
        self.rig.node.requests.submit(method.code, payload, answer, source=line or self.line)
        return answer

    def put(self, items: int, namespace: str = "loud", line: Line | None = None, deadline_ms: int = 0) -> Answer:
        self.sent += items
        body = m.KvPut([m.KvPutItem(namespace, f"{self.sent}-{at}", b"v") for at in range(items)])
        return self.send(methods.KV_PUT, body, line, deadline_ms)

    def fill(self) -> int:
        """Until somebody is turned away; how many requests were let in."""
        count = 0
        while not (answer := self.put(1_000)).done:
            count += 1
            assert count < 1_000
        assert isinstance(answer.error, OverloadedError)
        return count

    @property
    def waiting(self) -> int:
        return self.rig.driver(GROUP).waiting_items


@pytest.fixture
async def storm(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Storm]:
    """The node's clock stands still once it serves."""
    rig = Rig(limits={"queue_ms": 500})
    stands_s: list[float] = []
    runs = SteppedEnvironment.now
    monkeypatch.setattr(SteppedEnvironment, "now", lambda self: stands_s[0] if stands_s else runs(self))
    node = await rig.open()
    stands_s.append(node.environment.now())
    rate = rig.driver(GROUP).rate
    rate.per_s, rate.measured = 20_000.0, True
    yield Storm(rig)
    stands_s.clear()
    await rig.close()


async def test_a_request_that_would_wait_too_long_is_turned_away_and_told_when_to_come_back(storm: Storm) -> None:
    driver = storm.rig.driver(GROUP)
    driver.rate.per_s = 30_000.0
    storm.fill()
    assert 15_000 <= storm.waiting < 16_000, "half a second's work, to the request"
    error = storm.put(1).error
    assert isinstance(error, OverloadedError)
    assert error.outcome_known
    assert error.retry_after_ms > 0
    assert GROUP in error.message
    for _ in range(100):
        await storm.rig.settle()
    assert storm.waiting == 0
    assert (await storm.rig.answered(storm.put(1))).reply(methods.KV_PUT).versions == [1]


async def test_a_request_is_turned_away_that_could_not_be_answered_within_its_deadline(storm: Storm) -> None:
    storm.rig.driver(GROUP).rate.per_s = 30_000.0
    for _ in range(8):
        assert not storm.put(1_000).done
    assert isinstance(storm.put(1, deadline_ms=200).error, OverloadedError)
    assert not storm.put(1, deadline_ms=5_000).done


async def test_a_thousand_items_may_wait_however_slowly_they_are_served(storm: Storm) -> None:
    storm.rig.driver(GROUP).rate.per_s = 0.0
    while storm.waiting < 900:
        assert not storm.put(100).done


async def test_control_waits_for_control_only(storm: Storm) -> None:
    storm.fill()
    beat = storm.send(methods.LEASE_KEEP_ALIVE, LeaseKeepAlive([LeaseKey("loud", "l")]))
    assert not beat.results or not isinstance(beat.results[0], OverloadedError)
    scan = storm.send(methods.KV_SCAN, m.KvScan("loud", "", m.Page(10)))
    assert isinstance(scan.error, OverloadedError)
    found = storm.send(methods.KV_GET, methods.KV_GET.body([m.KvKey("loud", "k")]))
    assert not found.results or not isinstance(found.results[0], OverloadedError)


async def test_a_fence_is_carried_out_before_what_waits(storm: Storm) -> None:
    waiting = [storm.put(1_000) for _ in range(9)]
    fence = Answer()
    storm.rig.node.requests.request(methods.GROUP_FENCE, GroupFence([FenceItem("b", 2)]), fence, group=GROUP)
    while not fence.done:
        storm.rig.turn()
        assert storm.rig.step() or fence.done
    fence.reply(methods.GROUP_FENCE)
    assert sum(answer.done for answer in waiting) <= 3, "those that had begun before it came"


async def test_who_asks_for_little_is_let_in_while_another_has_filled_the_queue(storm: Storm) -> None:
    storm.fill()
    quiet = storm.put(1, "quiet", Line())
    assert not quiet.done
    while not quiet.done:
        storm.rig.turn()
        assert storm.rig.step() or quiet.done
    assert storm.waiting > 5_000, "it has not waited for the others"


async def test_a_tenant_gets_no_more_by_having_more_connections(storm: Storm) -> None:
    storm.fill()
    quiet = [storm.put(100, "quiet", Line()) for _ in range(2)]
    before = storm.waiting
    loud = [storm.put(100, "loud", Line()) for _ in range(1_000)]
    assert not any(answer.done for answer in quiet)
    assert sum(not answer.done for answer in loud) < 100, "only as many as the queue has turns for"
    assert storm.waiting < 2 * before


async def test_long_requests_are_turned_away_with_their_items_skipped(
    storm: Storm, monkeypatch: pytest.MonkeyPatch
) -> None:
    storm.fill()
    decoded: list[str] = []
    decode = Method.decode_what_fits

    def spy(self: Method[Any, Any], payload: bytes) -> Any:
        decoded.append(self.name)
        return decode(self, payload)

    monkeypatch.setattr(Method, "decode_what_fits", spy)
    assert isinstance(storm.put(1_000).error, OverloadedError)
    assert decoded == []
    quiet = storm.put(1_000, "quiet", Line())
    assert not quiet.done, "whom it looks at is let in as before"
    assert decoded == ["kv.put"]


async def test_who_comes_back_too_early_again_and_again_is_not_looked_at(
    storm: Storm, monkeypatch: pytest.MonkeyPatch
) -> None:
    storm.fill()
    driver, looks = storm.rig.driver(GROUP), 0
    before = driver.before

    def spy(*args: Any) -> int:
        nonlocal looks
        looks += 1
        return before(*args)

    monkeypatch.setattr(type(driver), "before", lambda self, *args: spy(*args))
    for _ in range(2_000):
        assert isinstance(storm.put(1).error, OverloadedError)
    assert looks < 300
    beat = storm.send(methods.LEASE_KEEP_ALIVE, LeaseKeepAlive([LeaseKey("loud", "l")]))
    assert not beat.results or not isinstance(beat.results[0], OverloadedError), "what keeps it alive is"
    looked_at = looks
    quiet = storm.put(1, "quiet", Line())
    assert not quiet.done
    assert looks == looked_at + 1, "and others are"


async def test_status_and_log_say_what_waits_and_what_was_turned_away(
    storm: Storm, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "metad")
    let_in = storm.fill()
    storm.put(1)
    status = storm.rig.node.status()
    (group,) = [group for group in status.groups if group.name == GROUP]
    assert group.waiting_items == storm.waiting
    assert group.served_per_s > 0
    assert group.wait_ms == pytest.approx(1_000 * group.waiting_items / group.served_per_s, rel=0.2)
    lanes = {lane.lane: (lane.admitted, lane.refused) for lane in status.lanes}
    assert lanes == {"heartbeats": (0, 0), "control": (0, 0), "records": (let_in, 2), "scans": (0, 0)}
    assert [record.getMessage() for record in caplog.records].count("overloaded") == 1
    for _ in range(100):
        await storm.rig.settle()
    monkeypatch.setattr(gate_module, "_CALM_S", -1.0)
    storm.rig.node.gate.ended()
    assert [record.getMessage() for record in caplog.records].count("overload_over") == 1
    assert not storm.rig.node.gate.strained
