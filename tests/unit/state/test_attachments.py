"""Attachments: a broker speaks for the connection that it means, and for no later one of the same client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from state_rig import Group, Rig, command_of, contents, item_errors

from metad.config import DedupeConfig
from metad.state.cluster.fences import Fences
from metad.storage import keys
from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import slot_bits
from metad_wire.errors import ERRORS, FencedError, MetadError
from metad_wire.messages import SessionDeleteItem, SessionDisconnectItem, SessionProperties, SessionTakeoverItem
from metad_wire.tables.session import SESSION

LEAST = SESSION.rows["attachment"]
KEPT = SessionProperties(3_600, b"p", m.Will("gone", b"bye"))


@pytest.fixture(params=(0, 3), ids=lambda lag: f"lag{lag}")
def rig(request: pytest.FixtureRequest) -> Rig:
    """A group that has heard of the brokers a and b, in their first lives."""
    made = Rig(lag=request.param)
    fence(made, a=1, b=1)
    return made


def fence(rig: Rig, **lives: int) -> None:
    items = [c.FenceItem(broker, epoch, rig.now_ms) for broker, epoch in lives.items()]
    rig.write(methods.GROUP_FENCE, c.GroupFence(items))


def take(rig: Rig, broker: str, name: str = "x", epoch: int = 1, **how: Any) -> int:
    """The attachment."""
    item = SessionTakeoverItem("t", name, properties=KEPT, **how)
    reply = rig.write(methods.SESSION_TAKEOVER, m.SessionTakeover(broker, epoch, [item]))
    assert not reply.errors
    return int(reply.revisions[0].index)


def leave(rig: Rig, broker: str, attachment: int, name: str = "x", epoch: int = 1, **how: Any) -> dict[int, str]:
    item = SessionDisconnectItem("t", name, attachment=attachment, **how)
    return item_errors(rig.write(methods.SESSION_DISCONNECT, m.SessionDisconnect(broker, epoch, [item])))


def connected(rig: Rig, name: str = "x") -> bool:
    rig.settle()
    (session,) = rig.read(methods.SESSION_GET, methods.SESSION_GET.body([m.SessionKey("t", name)])).found
    return bool(session.connected)


def least(rig: Rig) -> dict[bytes, bytes]:
    """The rows that hold the least attachment of a session that may speak."""
    rig.settle()
    prefix = keys.table_prefix(rig.group.prefix, LEAST)
    return {key: value for key, value in contents(rig.group.engine) if key.startswith(prefix)}


def noted(rig: Rig) -> int:
    """How many there are."""
    return len(least(rig))


CONFLICT = {0: "conflict"}


def test_a_late_disconnect_is_a_conflict_and_does_nothing(rig: Rig) -> None:
    first = take(rig, "a")
    take(rig, "b")
    last = take(rig, "a")
    assert leave(rig, "a", first) == CONFLICT
    assert connected(rig)
    assert leave(rig, "a", last) == {}
    assert not connected(rig)


def test_the_error_says_the_least_attachment_that_may_speak(rig: Rig) -> None:
    first, last = take(rig, "a"), take(rig, "a")
    item = SessionDisconnectItem("t", "x", attachment=first)
    (error,) = rig.write(methods.SESSION_DISCONNECT, m.SessionDisconnect("a", 1, [item])).errors
    assert (error.current, error.message) == (last, f"the least attachment that may speak is {last}")


def test_a_disconnect_that_comes_twice_does_not_end_the_next_connection(rig: Rig) -> None:
    first = take(rig, "a")
    assert leave(rig, "a", first) == {}
    take(rig, "a")
    assert leave(rig, "a", first) == CONFLICT
    assert connected(rig)


@pytest.mark.parametrize("end", ["disconnect", "delete", "clean start"])
def test_what_was_said_of_a_session_that_has_ended_does_not_count_for_the_next(rig: Rig, end: str) -> None:
    first = take(rig, "a")
    if end == "disconnect":
        assert leave(rig, "a", first, expiry_interval_s=0) == {}
    elif end == "delete":
        rig.write(methods.SESSION_DELETE, m.SessionDelete([SessionDeleteItem("t", "x")]))
    if end != "clean start":
        assert noted(rig) == 0
    last = take(rig, "a", clean_start=end == "clean start")
    assert leave(rig, "a", first) == CONFLICT
    assert noted(rig) == 1
    assert leave(rig, "a", last) == {}


def test_a_session_that_is_over_begins_anew_with_the_takeover(rig: Rig) -> None:
    rig.advance(3_600_000)
    first = take(rig, "a")
    assert leave(rig, "a", 0) == {}
    rig.advance(3_700_000)
    last = take(rig, "a")
    assert leave(rig, "a", first) == CONFLICT
    assert leave(rig, "a", last) == {}


def test_updates_and_deletes_say_it_too(rig: Rig) -> None:
    first = take(rig, "a")
    take(rig, "a", "y")
    last = take(rig, "a")

    def update(attachment: int) -> dict[int, str]:
        items = [
            m.SessionUpdateItem("t", "x", SessionProperties(payload=b"%d" % attachment), attachment),
            m.SessionUpdateItem("t", "y", KEPT),
        ]
        return item_errors(rig.write(methods.SESSION_UPDATE, m.SessionUpdate("a", 1, items)))

    def delete(attachment: int, broker: str = "a") -> dict[int, str]:
        items = [SessionDeleteItem("t", "x", attachment=attachment)]
        return item_errors(rig.write(methods.SESSION_DELETE, m.SessionDelete(items, broker, 1)))

    assert update(last) == {}
    assert update(first) == CONFLICT
    rig.settle()
    (session,) = rig.read(methods.SESSION_GET, methods.SESSION_GET.body([m.SessionKey("t", "x")])).found
    assert session.properties.payload == b"%d" % last
    assert delete(first) == CONFLICT
    assert delete(last) == {}


def test_a_delete_that_says_an_attachment_says_whose_it_is(rig: Rig) -> None:
    """Nothing is noted where a life that is over loses a session, for its requests are refused: if they name it."""
    first = take(rig, "a")
    fence(rig, a=2)
    take(rig, "b")
    items = [SessionDeleteItem("t", "x", attachment=first)]
    assert item_errors(rig.write(methods.SESSION_DELETE, m.SessionDelete(items))) == {0: "invalid_item"}
    with pytest.raises(FencedError):
        rig.write(methods.SESSION_DELETE, m.SessionDelete(items, "a", 1))
    assert connected(rig)


def test_a_disconnect_that_is_twice_in_one_batch_is_a_conflict_the_second_time(rig: Rig) -> None:
    items = [SessionDisconnectItem("t", "x", attachment=take(rig, "a"))] * 2
    (error,) = rig.write(methods.SESSION_DISCONNECT, m.SessionDisconnect("a", 1, items)).errors
    assert (error.index, error.code) == (1, 203)
    rig.settle()
    assert error.current == int.from_bytes(next(iter(least(rig).values())), "big")
    again = [SessionDisconnectItem("t", "x")] * 2
    assert item_errors(rig.write(methods.SESSION_DISCONNECT, m.SessionDisconnect("a", 1, again))) == {}


def test_a_retry_of_a_takeover_answers_its_first_attachment(rig: Rig) -> None:
    body = m.SessionTakeover("a", 1, [SessionTakeoverItem("t", "x")])
    identity = m.Identity(7, 1, 1)
    first = rig.write(methods.SESSION_TAKEOVER, body, identity)
    take(rig, "b")
    assert rig.write(methods.SESSION_TAKEOVER, body, identity).revisions == first.revisions


def test_nothing_is_kept_for_brokers_that_never_registered() -> None:
    rig = Rig()
    take(rig, "a")
    take(rig, "b")
    last = take(rig, "a")
    assert leave(rig, "a", last) == {}
    take(rig, "a")
    assert noted(rig) == 0
    fence(rig, other=1)
    take(rig, "a", "y")
    assert noted(rig) == 1, "a session that begins: a broker that has registered may have had one of this name"
    take(rig, "b")
    assert leave(rig, "b", 0) == {}
    assert noted(rig) == 1


def test_who_takes_from_another_broker_writes_only_the_owner(rig: Rig) -> None:
    """All clients come back at once: a second row for each would cost a fifth of the processor."""
    first = take(rig, "a")
    before = least(rig)
    take(rig, "b")
    assert least(rig) == before
    take(rig, "a")
    assert least(rig) != before, "it finds what was stolen"
    assert leave(rig, "a", first) == CONFLICT
    before = least(rig)
    take(rig, "b")
    assert least(rig) == before


@pytest.mark.parametrize("then", ["leaves", "is fenced", "is fenced and swept", "is deleted"])
def test_what_was_stolen_stays_so_whatever_comes_next(rig: Rig, then: str) -> None:
    first = take(rig, "a")
    second = take(rig, "b")
    if then == "leaves":
        assert leave(rig, "b", second) == {}
    elif then == "is deleted":
        rig.write(methods.SESSION_DELETE, m.SessionDelete([SessionDeleteItem("t", "x")]))
    else:
        fence(rig, b=2)
    if then == "is fenced and swept":
        rig.write(methods.SESSION_LOSE, c.SessionLose([m.SessionKey("t", "x")], []))
    last = take(rig, "a")
    assert leave(rig, "a", first) == CONFLICT
    assert connected(rig)
    assert leave(rig, "a", last) == {}


def test_a_broker_that_never_registered_keeps_nothing_but_what_it_has_stolen(rig: Rig) -> None:
    first = take(rig, "a")
    take(rig, "c")
    assert leave(rig, "c", 0) == {}
    last = take(rig, "a")
    assert leave(rig, "a", first) == CONFLICT
    assert leave(rig, "a", last) == {}


def test_one_takeover_may_find_sessions_of_all_kinds(rig: Rig) -> None:
    firsts = {name: take(rig, "a", name) for name in ("stolen", "own", "twice")}
    take(rig, "b", "twice")
    items = [SessionTakeoverItem("t", name) for name in ("stolen", "own", "twice", "new")]
    reply = rig.write(methods.SESSION_TAKEOVER, m.SessionTakeover("b", 1, items))
    assert not reply.errors
    for name, first in firsts.items():
        last = take(rig, "a", name)
        assert leave(rig, "a", first, name) == CONFLICT
        assert leave(rig, "a", last, name) == {}


def test_an_update_is_heard_from_who_has_stolen_a_session(rig: Rig) -> None:
    take(rig, "a")
    mine = take(rig, "b")
    for attachment in (0, mine):
        items = [m.SessionUpdateItem("t", "x", SessionProperties(payload=b"%d" % attachment), attachment)]
        assert item_errors(rig.write(methods.SESSION_UPDATE, m.SessionUpdate("b", 1, items))) == {}
    assert item_errors(rig.write(methods.SESSION_UPDATE, m.SessionUpdate("a", 1, items))) == {0: "not_owner"}


def test_a_takeover_from_a_life_that_is_over_notes_nothing(rig: Rig) -> None:
    for number in range(3):
        take(rig, "a", str(number))
    rig.settle()
    before = least(rig)
    fence(rig, a=2)
    for number in range(3):
        take(rig, "b", str(number))
    assert least(rig) == before


# --- all that may happen to a session, in every order ----------------------------------------------------

FIRST, BEFORE, LAST = "first", "before", "last"
EVENTS = (
    ("take", "a"),
    ("take", "b"),
    ("anew", "a"),
    ("leave", "a", FIRST),
    ("leave", "a", BEFORE),
    ("leave", "a", LAST),
    ("leave", "b", FIRST),
    ("leave", "b", LAST),
    ("end", "a", LAST),
    ("delete", ""),
)
Event = tuple[str, ...]


class Life:
    """What a client's session has been through: the takeovers by each broker, and which of all connects it now."""

    def __init__(self, name: str, events: tuple[Event, ...]) -> None:
        self.name = name
        self.events = events
        self.taken: dict[str, list[int]] = {"a": [], "b": []}
        self.connects: tuple[str, int] | None = None

    def attachment(self, event: Event) -> int:
        taken = self.taken[event[1]]
        return taken[{FIRST: 0, BEFORE: -2, LAST: -1}[event[2]]]


def orders(depth: int) -> Iterator[tuple[Event, ...]]:
    """Every order of that many events in which each speaks of a takeover that there was. Two names of one takeover are
    one event."""

    def follow(done: tuple[Event, ...]) -> Iterator[tuple[Event, ...]]:
        if len(done) == depth:
            yield done
            return
        for event in EVENTS:
            if event[0] in ("leave", "end"):
                taken = sum(e[0] in ("take", "anew") and e[1] == event[1] for e in done)
                if taken < {LAST: 1, FIRST: 2, BEFORE: 3}[event[2]]:
                    continue
            yield from follow((*done, event))

    for begin in (("take", "a"), ("take", "b")):
        yield from follow((begin,))


class Explored:
    """Many sessions at once, each with an order of its own: an event of many sessions is one request."""

    def __init__(self, depth: int, *, registered: str) -> None:
        self.groups = (
            Group("data", 0, DedupeConfig()),
            Group("data", 1, DedupeConfig(), initial_slots=slot_bits(())),
        )
        self.at = 0
        self.epoch = {"a": 1, "b": 1}
        self.registered = registered
        self.depth = depth
        self.lives = [Life(f"x{number}", events) for number, events in enumerate(orders(depth))]
        for _ in range(50):  # the younger group's log is much shorter
            self.ask(methods.KV_PUT, m.KvPut([m.KvPutItem("n", "k", b"")]))
        self.fence(**dict.fromkeys(registered, 1))

    def ask(self, method: Any, body: Any, group: Group | None = None) -> Any:
        group = group or self.groups[self.at]
        (outcome,) = group.propose([(command_of(method, body), None)], group.now_ms)
        group.apply(len(group.in_flight))
        if isinstance(outcome, MetadError):
            raise outcome
        return method.decode_reply(outcome)

    def fence(self, **lives: int) -> None:
        self.epoch.update(lives)
        self.ask(methods.GROUP_FENCE, c.GroupFence([c.FenceItem(b, epoch, 1) for b, epoch in lives.items()]))
        for life in self.lives:
            if life.connects is not None and life.connects[0] in lives:
                life.connects = None
            for broker in lives:
                life.taken[broker] = [0] * len(life.taken[broker])  # what an earlier life says is refused as a whole

    def move(self, number: int) -> None:
        """Every slot goes to the other group."""
        source, target = self.groups[self.at], self.groups[1 - self.at]
        slots = slot_bits(range(c.SLOTS))
        prefix = len(source.prefix)

        def rows(group: Group) -> dict[bytes, bytes]:
            found = [(key[prefix:], value) for key, value in contents(group.engine) if key.startswith(group.prefix)]
            return {key: value for key, value in found if keys.slot_of_key(key) is not None}

        def step(group: Group, name: str, **fields: Any) -> int:
            body = c.GroupCommand(name, number, 1, slots=slots, **fields)
            return int(self.ask(methods.GROUP_COMMAND, body, group).revisions[0].index)

        step(target, "open")
        step(target, "drop", rows=dict.fromkeys(rows(target), b""))
        step(target, "import", batch=1, rows=rows(source))
        sealed = step(source, "seal")
        carried = source.machine.parts[Fences].carried(source.now_ms)
        step(target, "adopt", batch=2, revision=sealed, fences=carried)
        step(source, "close")
        self.at = 1 - self.at

    def run(self, between: dict[int, list[Any]]) -> int:
        """How many late words were refused."""
        refused = 0
        for turn in range(self.depth):
            for happens in between.get(turn, ()):
                happens(self)
            by_event: dict[Event, list[Life]] = {}
            for life in self.lives:
                by_event.setdefault(life.events[turn], []).append(life)
            for event, lives in by_event.items():
                for at in range(0, len(lives), m.BATCH_ITEMS_MAX):
                    refused += self.happen(event, lives[at : at + m.BATCH_ITEMS_MAX])
        return refused

    def happen(self, event: Event, lives: list[Life]) -> int:
        what, broker = event[:2]
        if what in ("take", "anew"):
            takes = [SessionTakeoverItem("t", life.name, what == "anew", KEPT) for life in lives]
            reply = self.ask(methods.SESSION_TAKEOVER, m.SessionTakeover(broker, self.epoch[broker], takes))
            assert not reply.errors
            for life in lives:
                life.taken[broker].append(reply.revisions[0].index)
                life.connects = broker, reply.revisions[0].index
            return 0
        if what == "delete":
            reply = self.ask(methods.SESSION_DELETE, m.SessionDelete([SessionDeleteItem("t", x.name) for x in lives]))
            for life in lives:
                life.connects = None
            return 0
        lives = [life for life in lives if life.attachment(event)]
        if not lives:
            return 0
        interval_s = 0 if what == "end" else None
        leaves = [SessionDisconnectItem("t", x.name, interval_s, attachment=x.attachment(event)) for x in lives]
        reply = self.ask(methods.SESSION_DISCONNECT, m.SessionDisconnect(broker, self.epoch[broker], leaves))
        refused = {error.index: ERRORS[error.code].name for error in reply.errors}
        for position, life in enumerate(lives):
            means = broker, life.attachment(event)
            if life.connects == means:
                assert position not in refused, f"{life.events}: {event} was refused: {refused[position]}"
                life.connects = None
            elif broker in self.registered:
                assert position in refused, f"{life.events}: {event} was done, of {life.connects}"
            elif position not in refused and life.connects is not None and life.connects[0] == broker:
                life.connects = None  # nothing was promised to this broker
        return sum(name == "conflict" for name in refused.values())


def moving(number: int) -> Any:
    return lambda explored: explored.move(number)


def crash(broker: str) -> Any:
    return lambda explored: explored.fence(**{broker: explored.epoch[broker] + 1})


BETWEEN: dict[str, tuple[int, str, dict[int, list[Any]]]] = {
    "nothing": (5, "ab", {}),
    "b never registers": (5, "a", {}),
    **{f"a move at {at}": (5, "ab", {at: [moving(1)]}) for at in (1, 2, 3)},
    "there and back": (5, "ab", {1: [moving(1)], 3: [moving(2)]}),
    **{f"b crashes at {at}": (5, "ab", {at: [crash("b")]}) for at in (2, 3)},
    "a crashes at 2": (5, "ab", {2: [crash("a")]}),
}


@pytest.mark.parametrize("case", BETWEEN)
def test_only_who_speaks_for_the_connection_that_there_is_is_heard(case: str) -> None:
    """Two brokers and one client, in every order of what may happen to its session, with words that come late and more
    than once: what a broker says counts if and only if its takeover is the one that connects the client."""
    depth, registered, between = BETWEEN[case]
    assert Explored(depth, registered=registered).run(between) > 100


def test_a_past_life_is_refused_as_a_whole_whatever_attachment_it_says(rig: Rig) -> None:
    first = take(rig, "a")
    fence(rig, a=2)
    with pytest.raises(FencedError):
        leave(rig, "a", first)
