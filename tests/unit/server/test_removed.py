"""A replica that its group has let go leaves nothing but what it must never forget."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from server_rig import Rig

from metad.raft.log.journal import RaftLog, was_here
from metad.raft.messages import Configuration, PreVote, Vote
from metad.raft.replica import RaftGroup
from metad.storage.keys import group_prefix
from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire.cluster import GroupId
from metad_wire.errors import NotLeaderError
from metad_wire.methods import GROUP_FENCE, KV_GET, KV_PUT, SESSION_TAKEOVER

PREFIX = group_prefix(GroupId("data", 0))


async def test_a_long_read_does_not_take_what_is_dropped_for_absent() -> None:
    """It is answered in pieces, and the replica is let go between two of them."""
    rig = Rig()
    node = await rig.open()
    names = [f"k{number}" for number in range(1_000)]
    for at in range(0, len(names), 100):
        await rig.ask(KV_PUT, m.KvPut([m.KvPutItem("n", name, b"v") for name in names[at : at + 100]]))
    answer = rig.send(KV_GET, KV_GET.body([m.KvKey("n", name) for name in names]))
    assert not answer.done
    node.lifecycle.close(GroupId("data", 0))
    await rig.settle()
    assert not rows(rig)
    (error,) = answer.results
    assert isinstance(error, NotLeaderError)
    await rig.close()


class _Dropped:
    """An engine that must not be read."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"somebody goes on with the state of a replica that was let go: {name}")


async def test_nobody_goes_on_with_the_state_of_a_replica_that_was_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks at a group in several turns holds its driver, and this one led until it was let go."""
    rig = Rig()
    node = await rig.open()
    await rig.ask(SESSION_TAKEOVER, m.SessionTakeover("b", 1, [m.SessionTakeoverItem("t", "c")]))
    await rig.answered(rig.send(GROUP_FENCE, c.GroupFence([c.FenceItem("b", 2)]), group="data-0"))
    data, offset = rig.driver("data-0"), rig.driver("offset-0")
    node.sweeps.start()
    chores = node.sweeps._chores[data] + node.sweeps._chores[offset]
    assert len(chores) == 16
    monkeypatch.setattr(RaftGroup, "accepting", True)
    for driver in (data, offset):
        node.lifecycle.close(driver.group.group_id)
        driver.machine.reader.engine = _Dropped()  # type: ignore[assignment]
    for chore in chores:
        assert not chore.begin(100, lambda _: None), chore
    await rig.close()


async def removed(rig: Rig) -> int:
    """A node whose data-0 was closed after writes; the term it was in."""
    node = await rig.open()
    for number in range(40):
        await rig.ask(KV_PUT, m.KvPut([m.KvPutItem(f"n{number}", "k", b"v")]))
    group = rig.driver("data-0").group
    term = group.term
    assert rows(rig)
    node.lifecycle.close(GroupId("data", 0))
    return term


def rows(rig: Rig) -> int:
    return len(rig.state_engine.scan(PREFIX, PREFIX + b"\xff", 999))


async def test_its_data_goes_once_that_it_is_gone_is_durable() -> None:
    rig = Rig()
    await removed(rig)
    assert was_here(rig.node.stores.log, GroupId("data", 7)) is False
    assert rows(rig), "a crash now must find either all of it or none"
    await rig.settle()
    assert not rows(rig)
    assert was_here(rig.node.stores.log, GroupId("data", 0)) is None
    assert was_here(rig.node.stores.log, GroupId("offset", 0)) is True
    await rig.close()


async def test_wanted_again_it_begins_with_nobody_and_remembers_its_vote() -> None:
    rig = Rig()
    term = await removed(rig)
    works: list[Any] = []
    synced: list[str] = []
    stores = rig.node.stores
    stores.log.sync, stores.state.sync = partial(synced.append, "log"), partial(synced.append, "state")  # type: ignore[method-assign]
    rig.node.environment.beside = lambda work, done, queue=None: works.append((work, done))  # type: ignore[method-assign]
    for _ in range(2):
        rig.node.lifecycle.load_map()  # the map still wishes for it, and names it among the first
    for step in range(2):
        ((work, done),) = works
        works.clear()
        assert GroupId("data", 0) not in rig.node.drivers, "the loop would wait for the disk"
        assert bool(rows(rig)) is (step == 0), "the state may be dropped once it is durable that the log is"
        work()
        assert synced == ["log", "state"][: step + 1], "each is durable before what needs it"
        done(None)
    assert not works
    driver = rig.driver("data-0")
    group = driver.group
    assert not rows(rig)
    assert (group.log.last_index, driver.machine.applied) == (0, 0)
    assert group.configuration == Configuration(())
    assert (group.term, group.vote) == (term, "node-1")
    assert not group._state.may_campaign
    sent: list[object] = []
    group._host.send = lambda peer, message: sent.append(message)
    group.receive("node-2", PreVote(term + 1, 10**6, term))
    group.receive("node-2", Vote(term + 1, 10**6, term, True))
    await rig.settle()
    assert [message.granted for message in sent] == [False, False], "it may have acknowledged what node-2 lacks"  # type: ignore[attr-defined]
    await rig.settle()
    assert rig.driver("data-0").group is group
    rig.kill()


async def test_a_crash_before_its_state_was_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    term = await removed(rig)
    left = rig.state_engine.scan(PREFIX, PREFIX + b"\xff", 999)
    await rig.settle()
    rig.kill()
    rig.state_engine.write(dict(left))
    steps: list[str] = []
    with monkeypatch.context() as watched:
        sync, come_back = rig.state_engine.sync, RaftLog.come_back

        def synced() -> None:
            steps.append("dropped" if not rows(rig) else "not yet")
            sync()

        def back(log: RaftLog) -> None:
            steps.append("back")
            come_back(log)

        watched.setattr(rig.state_engine, "sync", synced)
        watched.setattr(RaftLog, "come_back", back)
        await rig.begin()
    assert "dropped" in steps[: steps.index("back")], "a power failure would find the old state below a new log"
    group = rig.driver("data-0").group
    assert not rows(rig)
    assert (group.log.last_index, group.term) == (0, term)
    assert group.configuration == Configuration(())
    rig.kill()


async def test_one_that_is_back_keeps_its_state_whenever_the_disk_is_done_with_the_old_log() -> None:
    """The word that the old log is dropped durably comes late, when the group has a new replica here."""
    rig = Rig()
    node = await rig.open()
    old = rig.driver("data-0").group.log
    node.lifecycle.close(GroupId("data", 0))
    told, old._on_durable = old._on_durable, lambda: None
    await rig.settle()
    node.lifecycle.load_map()
    async with asyncio.timeout(60):
        while GroupId("data", 0) not in node.drivers:
            await rig.settle()
    rig.state_engine.write({PREFIX + b"new": b"row"})
    told()
    assert rows(rig), "what the new replica has is gone"
    rig.kill()
