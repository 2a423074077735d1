"""What a request asks of its answerer (revisions, features, a group), and what an answer says of what was done."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from server_rig import Answer, Rig

from metad.node.replicas.driver import GroupDriver
from metad.node.requests import reads
from metad.node.requests.admission import ITEM_BYTES
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import GroupCommand, slot_bits
from metad_wire.connection.session import FEATURES
from metad_wire.errors import (
    CancelledError,
    DeadlineExceededError,
    InvalidRequestError,
    NotLeaderError,
    StaleRouteError,
    UnsupportedError,
)

KEY = [m.KvKey("n", "k")]
PUT = m.KvPut([m.KvPutItem("n", "k", b"v")])
LONG_MS = 3_600_000


@pytest.fixture
async def rig() -> Any:
    rig = Rig(groups={"offset": 1, "data": 1})
    await rig.open()
    yield rig
    await rig.close()


def ahead(rig: Rig, by: int, group: str = "data-0") -> m.Revision:
    return m.Revision(group, rig.driver(group).machine.revision + by)


def get(rig: Rig, *wanted: m.Revision, deadline_ms: int = LONG_MS) -> Answer:
    return rig.send(methods.KV_GET, methods.KV_GET.body(KEY, list(wanted)), deadline_ms=deadline_ms)


async def answered(rig: Rig, answer: Answer) -> None:
    async with asyncio.timeout(120):
        while not answer.done:  # noqa: ASYNC110 - nothing calls back
            await asyncio.sleep(0.005)


async def test_what_was_answered_is_there_at_once(rig: Rig) -> None:
    reply = await rig.ask(methods.KV_PUT, PUT)
    answer = get(rig, *reply.revisions)
    assert answer.done, "nothing to wait for"
    (record,) = answer.reply(methods.KV_GET).found
    assert record.mod_revision == reply.revisions[0].index == rig.driver("data-0").machine.revision


async def test_a_read_behind_a_write_that_is_not_answered_may_see_the_state_before_it(rig: Rig) -> None:
    write, read = rig.send(methods.KV_PUT, PUT), get(rig)
    assert not write.done
    assert read.reply(methods.KV_GET).found == [None]
    await rig.settle()
    assert write.reply(methods.KV_PUT).versions == [1]
    assert get(rig).reply(methods.KV_GET).found[0].version == 1


async def test_a_read_waits_for_its_revision_and_sees_what_has_it(rig: Rig) -> None:
    near, far = get(rig, ahead(rig, 1)), get(rig, ahead(rig, 1), ahead(rig, 3), ahead(rig, 2))
    await rig.settle()
    assert not near.done
    await rig.ask(methods.KV_PUT, PUT)
    assert near.reply(methods.KV_GET).found[0].version == 1
    await rig.ask(methods.KV_PUT, PUT)
    assert not far.done
    await rig.ask(methods.KV_PUT, PUT)
    assert far.reply(methods.KV_GET).found[0].version == 3
    assert waits_for_nothing(rig)


def waits_for_nothing(rig: Rig) -> bool:
    drivers: list[GroupDriver] = list(rig.node.drivers.values())
    return not any(driver._awaited for driver in drivers) and rig.node.status().in_flight_bytes == 0


async def test_groups_that_are_not_asked_are_left_out(rig: Rig) -> None:
    elsewhere = [ahead(rig, 9, "offset-0"), m.Revision("data-7", 9), m.Revision("nobody's", 9)]
    assert get(rig, *elsewhere).done


@pytest.mark.parametrize("deadline_ms", [50, LONG_MS])
async def test_nobody_waits_longer_than_the_deadline_and_the_bound(
    rig: Rig, deadline_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A revision that was lost, or never was, does not come."""
    monkeypatch.setattr(reads, "_BEHIND_S", 0.05 if deadline_ms == LONG_MS else 3_600.0)
    answer = get(rig, m.Revision("data-0", 2**63 - 1), deadline_ms=deadline_ms)
    assert not answer.done
    await answered(rig, answer)
    assert isinstance(answer.error, DeadlineExceededError)
    assert "has not come to the revision" in str(answer.error)
    assert waits_for_nothing(rig)
    assert get(rig).done


def empty_reads(rig: Rig, count: int) -> list[Answer]:
    """Reads of the next revision that look at no row."""
    body = methods.KV_GET.body([], [ahead(rig, 1)])
    return [rig.send(methods.KV_GET, body, deadline_ms=LONG_MS, group="data-0") for _ in range(count)]


async def answered_at_once(answers: list[Answer]) -> int:
    """The most that are answered in one turn of the loop, until all are."""
    most, before = 0, sum(answer.done for answer in answers)
    while before < len(answers):
        await asyncio.sleep(0)
        done = sum(answer.done for answer in answers)
        most, before = max(most, done - before), done
    return most


async def test_reads_that_look_at_nothing_are_answered_in_turns_too(rig: Rig) -> None:
    """Once wrong: however many waited for a revision, all were answered in one callback of the loop."""
    answers = empty_reads(rig, 1_000)
    rig.send(methods.KV_PUT, PUT)
    rig.turn()
    assert rig.step()
    assert await answered_at_once(answers) <= 128
    assert [answer.reply(methods.KV_GET).found for answer in answers] == [[]] * 1_000
    assert waits_for_nothing(rig)


async def test_reads_that_waited_too_long_are_answered_in_turns(rig: Rig) -> None:
    answers = empty_reads(rig, 1_000)
    late_s = rig.node.environment.now() + 3_600
    assert rig.node._reads._expire(late_s)
    rig.node._reads._expire(late_s)  # while the last look is not through
    assert sum(answer.done for answer in answers) <= 128
    assert await answered_at_once(answers) <= 128
    assert {type(answer.error) for answer in answers} == {DeadlineExceededError}
    assert waits_for_nothing(rig)


async def test_a_read_that_waits_is_counted_with_what_it_takes_itself(rig: Rig) -> None:
    """Once wrong: one without items took forty bytes of the budget, and a kilobyte of memory."""
    empty_reads(rig, 10)
    assert rig.node.status().in_flight_bytes > 10 * 5 * ITEM_BYTES
    rig.send(methods.KV_GET, methods.KV_GET.body([], [ahead(rig, 1)] * 100), group="data-0")
    assert rig.node.status().in_flight_bytes > (11 * 4 + 110) * ITEM_BYTES
    await rig.ask(methods.KV_PUT, PUT)
    assert waits_for_nothing(rig)


async def test_who_leads_no_longer_says_so(rig: Rig) -> None:
    answer = get(rig, ahead(rig, 1))
    rig.driver("data-0").demoted()
    assert isinstance(answer.error, NotLeaderError)
    assert waits_for_nothing(rig)


async def test_an_adoption_of_slots_is_waited_for_too(rig: Rig) -> None:
    answer = get(rig, ahead(rig, 400))
    steps = [
        GroupCommand("open", 1, 1, 0, slot_bits(())),
        GroupCommand("adopt", 1, 1, 1, slot_bits(()), {}, 405),
    ]
    for step in steps:
        assert not answer.done
        await ask_peer(rig, step)
    assert answer.done
    assert rig.driver("data-0").machine.revision == 406


async def ask_peer(rig: Rig, step: GroupCommand) -> None:
    answer = Answer()
    payload = methods.GROUP_COMMAND.encode_request(step, group="data-0")
    rig.node.requests.submit_peer(methods.GROUP_COMMAND.code, payload, answer)
    await rig.settle()
    answer.reply(methods.GROUP_COMMAND)


async def test_too_many_revisions_are_refused(rig: Rig) -> None:
    answer = get(rig, *[m.Revision("data-0", 1)] * 1025)
    assert isinstance(answer.error, InvalidRequestError)


# --- features --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "body"),
    [(methods.KV_PUT, PUT), (methods.KV_GET, methods.KV_GET.body(KEY)), (methods.STATUS, m.Status())],
    ids=lambda value: getattr(value, "name", ""),
)
async def test_a_request_that_requires_what_is_not_here_is_not_done(
    rig: Rig, method: methods.Method[Any, Any], body: Any
) -> None:
    async def ask(requires: int) -> Answer:
        answer = Answer()
        payload = method.encode_request(body, requires=requires, group="data-0")
        rig.node.requests.submit(method.code, payload, answer)
        await rig.settle()
        return answer

    for requires in (FEATURES + 1, 1 << 62, FEATURES | 1 << 40):
        assert isinstance((await ask(requires)).error, UnsupportedError)
    assert get(rig).reply(methods.KV_GET).found == [None]
    (await ask(FEATURES)).reply(method)


# --- what an answer says of what was done ----------------------------------------------------------------


@pytest.mark.parametrize("method", [methods.KV_PUT, methods.KV_GET], ids=lambda method: method.name)
@pytest.mark.parametrize("group", ["data-9", "data", "offset-0", "data-", "data-0x", "metadata-0", "nobody's"])
async def test_a_group_that_does_not_exist_is_led_by_nobody(
    rig: Rig, method: methods.Method[Any, Any], group: str
) -> None:
    answer = rig.send(method, PUT if method is methods.KV_PUT else methods.KV_GET.body(KEY), group=group)
    await rig.settle()
    assert isinstance(answer.error, NotLeaderError)
    assert answer.error.leader == ""
    assert get(rig).reply(methods.KV_GET).found == [None]


@pytest.mark.parametrize("method", [methods.KV_PUT, methods.KV_GET], ids=lambda method: method.name)
async def test_a_request_that_names_no_group_is_refused(rig: Rig, method: methods.Method[Any, Any]) -> None:
    answer = rig.send(method, PUT if method is methods.KV_PUT else methods.KV_GET.body(KEY), group="")
    await rig.settle()
    assert isinstance(answer.error, InvalidRequestError)
    assert "names no group" in str(answer.error)
    assert get(rig).reply(methods.KV_GET).found == [None]


@pytest.mark.parametrize("method", [methods.KV_PUT, methods.KV_GET], ids=lambda method: method.name)
async def test_a_request_with_an_item_of_another_group_is_refused_whole(method: methods.Method[Any, Any]) -> None:
    rig = Rig(groups={"data": 2})
    await rig.open()
    names = [f"n{i}" for i in range(9)]
    body: Any = methods.KV_GET.body([m.KvKey(name, "k") for name in names])
    if method is methods.KV_PUT:
        body = m.KvPut([m.KvPutItem(name, "k", b"v") for name in names])
    for group in ("data-0", "data-1"):
        answer = rig.send(method, body, group=group)
        await rig.settle()
        assert isinstance(answer.error, StaleRouteError)
    for name in names:
        assert (await rig.ask(methods.KV_GET, methods.KV_GET.body([m.KvKey(name, "k")]))).found == [None]
    assert waits_for_nothing(rig)
    await rig.close()


async def test_what_is_cancelled_or_too_late_has_done_nothing_and_will_not(rig: Rig) -> None:
    early = rig.send(methods.KV_PUT, PUT)
    rig.turn()  # it has begun
    cancelled, late = rig.send(methods.KV_PUT, PUT), rig.send(methods.KV_PUT, PUT, deadline_ms=1)
    for answer in (early, cancelled):
        assert answer.work is not None
        rig.node.requests.cancel(answer.work)
    assert late.work is not None
    late.work.deadline_s = 0.0
    await rig.settle()
    assert early.reply(methods.KV_PUT).versions == [1], "what has begun runs on"
    assert isinstance(cancelled.error, CancelledError)
    assert isinstance(late.error, DeadlineExceededError)
    await rig.settle()
    (record,) = get(rig).reply(methods.KV_GET).found
    assert record.version == 1


@pytest.mark.parametrize("keys", [1, 1_000])
async def test_nothing_is_read_while_a_snapshot_is_installed(rig: Rig, keys: int) -> None:
    """Half of the state is another's by then. A read may have been proven before, and a long one be on its way."""
    driver = rig.driver("data-0")
    body = methods.KV_GET.body([m.KvKey("n", f"k{number}") for number in range(keys)])
    driver.installing = True
    answer = await rig.answered(rig.send(methods.KV_GET, body))
    assert isinstance(answer.error, NotLeaderError)
    driver.installing = False
    assert len((await rig.ask(methods.KV_GET, body)).found) == keys


async def test_nothing_is_applied_while_a_snapshot_is_installed(rig: Rig) -> None:
    driver = rig.driver("data-0")
    machine = driver.machine
    driver.install()
    answer = rig.send(methods.KV_PUT, PUT)
    before = machine.applied
    for _ in range(5):
        await rig.settle()
    assert (machine.applied, answer.done) == (before, False)
    assert driver.group.commit > before
    assert driver.stage([], 1_000) == (0, 0)
    driver.installed(machine)
    rig.node._agenda.commit(driver)
    assert (await rig.answered(answer)).done
