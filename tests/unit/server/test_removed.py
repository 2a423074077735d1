"""A replica that its group has let go leaves nothing but what it must never forget."""

from __future__ import annotations

from typing import Any

from server_rig import Rig

from metad.raft.journal import was_here
from metad.raft.messages import Configuration, PreVote, Vote
from metad.storage.keys import group_prefix
from metad_wire import messages as m
from metad_wire.group import GroupId
from metad_wire.methods import KV_PUT

PREFIX = group_prefix(GroupId("data", 0))


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
    assert was_here(rig.node._stores.log, GroupId("data", 7)) is False
    assert rows(rig), "a crash now must find either all of it or none"
    await rig.settle()
    assert not rows(rig)
    assert was_here(rig.node._stores.log, GroupId("data", 0)) is None
    assert was_here(rig.node._stores.log, GroupId("offset", 0)) is True
    await rig.close()


async def test_wanted_again_it_begins_with_nobody_and_remembers_its_vote() -> None:
    rig = Rig()
    term = await removed(rig)
    works: list[Any] = []
    rig.node.environment.beside = lambda work, done, queue=None: works.append((work, done))  # type: ignore[method-assign]
    for _ in range(2):
        rig.node.lifecycle.load_map()  # the map still wishes for it, and names it among the first
    for step in range(2):
        ((work, done),) = works
        works.clear()
        assert GroupId("data", 0) not in rig.node.drivers, "the loop would wait for the disk"
        assert bool(rows(rig)) is (step == 0), "the state may be dropped once it is durable that the log is"
        work()
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


async def test_a_crash_before_its_state_was_dropped() -> None:
    rig = Rig()
    term = await removed(rig)
    left = rig.state_engine.scan(PREFIX, PREFIX + b"\xff", 999)
    await rig.settle()
    rig.kill()
    rig.state_engine.write(dict(left))
    await rig.begin()
    group = rig.driver("data-0").group
    assert not rows(rig)
    assert (group.log.last_index, group.term) == (0, term)
    assert group.configuration == Configuration(())
    rig.kill()
