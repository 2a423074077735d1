"""Disks that are short of room: what grows is refused, and what is there may change, end and go away."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from state_rig import Rig, command_of, contents, item_errors

import metad_wire
from metad.state.core.verb import SLIGHT_BYTES
from metad.state.registry import VERBS
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import FenceItem, GroupFence
from metad_wire.messages import SessionTakeoverItem as Take
from metad_wire.method import METHODS
from metad_wire.tables import consumer as w
from metad_wire.tables.sequence import SequenceAdd, SequenceAddItem

INTERNAL = Path(metad_wire.__file__).parent.parent / "INTERNAL.md"
SAY_SO_BY_ITEM = {"session.takeover", "offset.commit", "sequence.add", "consumer.join", "consumer.assign"}
BY_METADATA = {"broker.register", "cluster.add_group"}
ENDS = re.compile(
    r"\.(delete\w*|remove|leave|end_tenant|end_step|sweep|lose|expire\w*|revoke|detach|release|acknowledge|claim|disconnect"
    r"|reset_generations|fence|change|store|drop|alter|elect|report|in_sync|set|step|progress|note|end|keep|rest|switch)$"
)
"""What ends something, tells nodes how things are, or says in place of records how it is now."""


def test_every_verb_that_writes_is_known_to_grow_or_to_end_something() -> None:
    """A new one has to be one of these, or has to be refused while there is no room."""
    writing = [verb for verb in VERBS.values() if verb.evaluate is not None]
    assert {verb.method.name for verb in writing if verb.grows is None} == SAY_SO_BY_ITEM
    for verb in writing:
        assert bool(ENDS.search(verb.method.name)) == (verb.grows is False), verb.method.name


def test_the_protocol_names_what_is_refused() -> None:
    text = INTERNAL.read_text()
    said = text[text.index("### Room on the disks\n\n") :].split("\n\n")[1]
    growing = {verb.method.name for verb in VERBS.values() if verb.evaluate is not None and verb.grows is not False}
    assert f"{SLIGHT_BYTES:,} bytes" in said
    names = {name for name in re.findall(r"`(\w+\.\w+)`", said) if name in {method.name for method in METHODS.values()}}
    assert names == growing | SAY_SO_BY_ITEM | BY_METADATA


@pytest.mark.parametrize("puts", [True, False])
def test_a_transaction_grows_if_it_may_put(puts: bool) -> None:
    rig = Rig()
    operation = m.KvOperation("k", b"v" if puts else None)
    body = m.KvTransact([m.KvTransaction("n", [], [], [operation])])
    assert rig.group.machine.grows(command_of(methods.KV_TRANSACT, body), None) is puts


def test_what_was_done_before_is_answered_and_not_refused() -> None:
    rig = Rig()
    body = m.KvPut([m.KvPutItem("n", "k", b"v")])
    identity = m.Identity(1, 1, 0)
    command = command_of(methods.KV_PUT, body)
    assert rig.group.machine.grows(command, identity)
    rig.write(methods.KV_PUT, body, identity)
    assert not rig.group.machine.grows(command, identity)
    assert rig.group.machine.grows(command, m.Identity(1, 2, 0))
    rig.write(methods.KV_DELETE, m.KvDelete([m.KvDeleteItem("n", "k")]), m.Identity(1, 2, 1))
    late = m.Identity(1, 1, 0)
    assert not rig.group.machine.grows(command, late), "its evaluation says that nobody knows any more"


def test_what_is_there_is_not_replaced_by_much() -> None:
    """The log holds it beside what it replaces: 725 takeovers with payloads of 1 MB filled two disks."""
    machine = Rig().group.machine
    two = m.SessionTakeover("b", 1, [Take("t", "a"), Take("t", "b")])
    assert not machine.grows(command_of(methods.SESSION_TAKEOVER, two, 2 * SLIGHT_BYTES), None)
    assert machine.grows(command_of(methods.SESSION_TAKEOVER, two, 2 * SLIGHT_BYTES + 1), None)
    delete = m.KvDelete([m.KvDeleteItem("n", "k" * 2_000)])
    assert not machine.grows(command_of(methods.KV_DELETE, delete, 2_000), None)


def test_a_takeover_of_a_session_that_is_there_goes_on() -> None:
    rig = Rig(lag=2)
    rig.write(
        methods.SESSION_TAKEOVER,
        m.SessionTakeover("b", 1, [Take("t", "old"), Take("t", "away", properties=m.SessionProperties(60))]),
    )
    rig.write(methods.SESSION_DISCONNECT, m.SessionDisconnect("b", 1, [m.SessionDisconnectItem("t", "away")]))
    rig.group.no_room = "no room"
    items = [Take("t", name) for name in ("new", "old", "away", "new", "other")]
    reply = rig.write(methods.SESSION_TAKEOVER, m.SessionTakeover("c", 1, items))
    assert item_errors(reply) == {0: "no_room", 3: "no_room", 4: "no_room"}
    assert {error.message for error in reply.errors} == {"no room"}
    rig.settle()
    found = rig.read(
        methods.SESSION_GET, methods.SESSION_GET.body([m.SessionKey("t", name) for name in ("new", "old", "away")])
    )
    assert [one is not None for one in found.found] == [False, True, True]
    rig.group.no_room = ""
    assert not rig.write(methods.SESSION_TAKEOVER, m.SessionTakeover("c", 1, items)).errors


def test_a_refused_takeover_writes_nothing() -> None:
    rig = Rig()
    rig.write(methods.GROUP_FENCE, GroupFence([FenceItem("b", 1)]))
    rig.group.no_room = "no room"
    before = {key for key, _ in contents(rig.group.engine)}
    assert item_errors(rig.write(methods.SESSION_TAKEOVER, m.SessionTakeover("b", 1, [Take("t", "new")]))) == {
        0: "no_room"
    }
    assert {key for key, _ in contents(rig.group.engine)} == before


def test_an_offset_that_is_there_moves_on() -> None:
    rig = Rig("offset")
    commit = m.OffsetCommit([m.OffsetCommitItem("t", "g", "topic", 0, 5)])
    rig.write(methods.OFFSET_COMMIT, commit)
    rig.group.no_room = "no room"
    items = [m.OffsetCommitItem("t", "g", "topic", partition, 6) for partition in (0, 1)]
    assert item_errors(rig.write(methods.OFFSET_COMMIT, m.OffsetCommit(items))) == {1: "no_room"}


def test_a_sequence_that_is_there_is_added_to() -> None:
    rig = Rig()
    rig.write(methods.SEQUENCE_ADD, SequenceAdd([SequenceAddItem("n", "a")]))
    rig.group.no_room = "no room"
    reply = rig.write(methods.SEQUENCE_ADD, SequenceAdd([SequenceAddItem("n", "b"), SequenceAddItem("n", "a")]))
    assert (item_errors(reply), reply.values) == ({0: "no_room"}, [0, 2])


def test_a_member_joins_the_next_generation() -> None:
    rig = Rig("offset")
    join = w.ConsumerJoin([w.JoinItem("t", "g", session_ms=10_000, rebalance_ms=10_000)])
    (member,) = rig.write(methods.CONSUMER_JOIN, join).members
    rig.group.no_room = "no room"
    items = [
        w.JoinItem("t", "g", session_ms=10_000, rebalance_ms=10_000, member=name, rebalance=True)
        for name in (member, "")
    ]
    assert item_errors(rig.write(methods.CONSUMER_JOIN, w.ConsumerJoin(items))) == {1: "no_room"}
