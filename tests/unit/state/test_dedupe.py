"""A retried write happens once: in its entry, in flight, applied, after a restart; what cannot be told is refused."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from state_rig import Group, Rig, command_of, contents, item_errors

import metad.state.cluster.dedupe as dedupe
from metad.config import DedupeConfig
from metad.state.core.entry import decode_entry
from metad.state.core.verb import Command
from metad.state.machine import Known
from metad.state.registry import VERBS
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import IdentityExpiredError, InvalidRequestError, MetadError
from metad_wire.messages import Identity
from sim.counting import lines_run

NOW = 1_700_000_000_000


class Client:
    """Writes to one group under identities, as an SDK does."""

    def __init__(self, group: Group, client_id: int = 1) -> None:
        self.group = group
        self.client_id = client_id
        self.seq = 0
        self.now_ms = NOW

    def identity(self, seq: int | None = None, low: int = 0, age_ms: int = 0) -> Identity:
        if seq is None:
            self.seq += 1
            seq = self.seq
        return Identity(self.client_id, seq, low, age_ms)

    def put(self, identity: Identity, value: bytes = b"v", key: str = "k") -> Any:
        return self.group.propose([(put(value, key), identity)], self.now_ms)[0]


def put(value: bytes = b"v", key: str = "k") -> Command[Any]:
    body = m.KvPut([m.KvPutItem("n", key, value)])
    return Command(methods.KV_PUT, body, VERBS[methods.KV_PUT.code].rows(body))


def version(group: Group, key: str = "k") -> int:
    group.apply(len(group.in_flight))
    body = methods.KV_GET.body([m.KvKey("n", key)])
    rows = VERBS[methods.KV_GET.code].rows(body)
    verb = VERBS[methods.KV_GET.code]
    assert verb.read is not None
    reply = verb.read(group.machine.reader, Command(methods.KV_GET, body, rows))
    record = methods.KV_GET.decode_reply(methods.encode(reply)).found[0]
    return record.version if record else 0


@pytest.fixture
def group() -> Group:
    return Group("data", 0, DedupeConfig())


@pytest.fixture
def client(group: Group) -> Client:
    return Client(group)


def recalled(group: Group, outcome: Any, identity: Identity) -> int:
    assert isinstance(outcome, Known)
    return int(methods.KV_PUT.decode_reply(group.machine.recall(outcome.index, put(), identity)).versions[0])


def test_twice_in_one_entry_is_once(group: Group, client: Client) -> None:
    identity = client.identity()
    outcomes = group.propose([(put(), identity), (put(), identity)], NOW)
    assert version(group) == 1
    assert recalled(group, outcomes[1], identity) == 1


def test_a_retry_while_the_first_is_in_flight_is_known(group: Group, client: Client) -> None:
    identity = client.identity()
    client.put(identity)
    outcome = client.put(client.identity(identity.seq, age_ms=5))
    assert version(group) == 1
    assert recalled(group, outcome, identity) == 1


def test_a_retry_after_it_was_applied_gets_the_same_reply(group: Group, client: Client) -> None:
    first, second = client.identity(), client.identity()
    client.put(first)
    client.put(second)
    group.apply(2)
    for identity, expected in ((first, 1), (second, 2)):
        retry = client.identity(identity.seq, age_ms=5)
        assert recalled(group, client.put(retry), retry) == expected
    assert version(group) == 2


def test_a_retry_after_a_restart_is_known(group: Group, client: Client) -> None:
    applied, replayed = client.identity(), client.identity()
    client.put(applied)
    group.apply(1)
    client.put(replayed)
    group.restart()
    for identity, expected in ((applied, 1), (replayed, 2)):
        retry = client.identity(identity.seq, age_ms=5)
        assert recalled(group, client.put(retry), retry) == expected
    assert version(group) == 2


def test_a_follower_that_takes_over_knows_it_too(group: Group, client: Client) -> None:
    identity = client.identity()
    client.put(identity)
    group.apply(1)
    group.machine, group.engine = group.follower, group.follower_engine
    group.machine.dedupe.load()
    assert isinstance(client.put(client.identity(identity.seq, age_ms=5)), Known)


def test_clients_and_seqs_are_apart(group: Group, client: Client) -> None:
    other = Client(group, 2**64 - 1)
    for identity in (client.identity(5), client.identity(6)):
        assert isinstance(client.put(identity), bytes)
    assert isinstance(other.put(other.identity(5)), bytes)
    assert version(group) == 3


def test_a_refused_write_is_not_remembered(group: Group, client: Client) -> None:
    # Nothing was done, so the retry is simply a first attempt.
    body = m.KvTransact([m.KvTransaction("n", [], [], reads=["k"])])
    command = Command(methods.KV_TRANSACT, body, VERBS[methods.KV_TRANSACT.code].rows(body), 0)
    client.put(client.identity())
    identity = client.identity()
    (outcome,) = group.propose([(command, identity)], NOW)
    assert isinstance(outcome, InvalidRequestError)
    assert isinstance(client.put(identity), bytes)


def test_item_errors_are_remembered(group: Group, client: Client) -> None:
    body = m.KvPut([m.KvPutItem("n", "k", b"v", 7)])
    command = Command(methods.KV_PUT, body, VERBS[methods.KV_PUT.code].rows(body))
    identity = client.identity()
    group.propose([(command, identity)], NOW)
    group.apply(1)
    for _ in range(6):
        client.put(client.identity())
    (outcome,) = group.propose([(command, identity)], NOW)  # by now it would not even conflict
    group.apply(7)
    assert isinstance(outcome, Known)
    reply = methods.KV_PUT.decode_reply(group.machine.recall(outcome.index, command, identity))
    assert reply.errors[0].index == 0


LONG = "x" * 4096
REFUSED: dict[str, tuple[Any, Any]] = {
    "put": (
        methods.KV_PUT,
        m.KvPut([m.KvPutItem("n", LONG, b""), m.KvPutItem("n", "k", b"v"), m.KvPutItem("n", 5, b"")]),
    ),  # type: ignore[arg-type]
    "all of them": (methods.KV_PUT, m.KvPut([m.KvPutItem("n", LONG, b"")] * 2)),
    "update": (
        methods.SESSION_UPDATE,
        m.SessionUpdate(
            "b", 1, [m.SessionUpdateItem("t", name, m.SessionProperties()) for name in (LONG, "c", "none")]
        ),
    ),
    "restore": (
        methods.SESSION_TAKEOVER,
        m.SessionTakeover(
            "b", 1, [m.SessionTakeoverItem("t", name) for name in ("none", LONG, "c", "fenced")], True, True
        ),
    ),
    "reads": (
        methods.KV_TRANSACT,
        m.KvTransact(
            [
                m.KvTransaction("n", [], [m.KvOperation("k", b"v")], reads=["k"]),
                m.KvTransaction("n", [], [], reads=[LONG]),
                m.KvTransaction("n", [], [], reads=["none", "k"]),
            ]
        ),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_retry_has_the_same_items_refused(case: str) -> None:
    method, body = REFUSED[case]
    rig = Rig()
    sessions = [m.SessionTakeoverItem("t", "c", False, m.SessionProperties(7, b"p"))]
    rig.write(methods.SESSION_TAKEOVER, m.SessionTakeover("b", 1, sessions))
    rig.write(methods.SESSION_TAKEOVER, m.SessionTakeover("b", 9, [m.SessionTakeoverItem("t", "fenced")]))
    first = rig.write(method, body, Identity(1, 1, 1))
    assert "invalid_item" in item_errors(first).values()
    assert [error.index for error in first.errors] == sorted(item_errors(first))
    for name, missing in first.columns.items():
        column = getattr(first, name)
        assert len(column) == len(body.items)
        assert all(column[at] == missing for at in item_errors(first))
    assert rig.write(method, body, Identity(1, 1, 1, 5)) == first
    rig.group.restart()
    assert rig.write(method, body, Identity(1, 1, 1, 5)) == first


def test_a_retry_at_a_node_with_other_limits_has_the_first_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is what the first attempt has done."""
    rig = Rig()
    body = m.KvPut([m.KvPutItem("n", "k" * 100, b"v"), m.KvPutItem("n", "k", b"v")])
    first = rig.write(methods.KV_PUT, body, Identity(1, 1, 1))
    assert first.errors == []
    monkeypatch.setattr(m, "KEY_BYTES_MAX", 50)
    assert rig.write(methods.KV_PUT, body, Identity(1, 1, 1, 5)) == first
    assert item_errors(rig.write(methods.KV_PUT, body, Identity(1, 2, 1))) == {0: "invalid_item"}


def rows(group: Group) -> int:
    return sum(key[3] == 1 for key, _ in contents(group.engine)) - marks(group)


def test_what_the_client_has_its_answers_to_is_forgotten(group: Group, client: Client) -> None:
    for _ in range(10):
        client.put(client.identity())
    group.apply(10)
    assert (rows(group), len(group.machine.dedupe)) == (10, 10)
    client.put(client.identity(low=8))
    group.apply(1)
    assert (rows(group), len(group.machine.dedupe)) == (4, 4)  # 8, 9, 10 and 11
    client.put(client.identity(low=12))
    group.apply(1)
    assert (rows(group), len(group.machine.dedupe)) == (1, 1)


def test_a_row_stays_until_all_its_clients_have_their_answers(group: Group) -> None:
    one, two = Client(group, 1), Client(group, 2)
    group.propose([(put(), one.identity()), (put(key="l"), two.identity())], NOW)
    one.put(one.identity(low=2))
    group.apply(2)
    assert rows(group) == 2
    two.put(two.identity(low=2))
    group.apply(1)
    assert rows(group) == 2  # one's second and two's second


def test_a_late_copy_of_an_answered_write_is_not_done_again(group: Group, client: Client) -> None:
    first = client.identity()
    client.put(first)
    client.put(client.identity(low=2))
    group.apply(2)
    assert isinstance(client.put(first), IdentityExpiredError)
    assert version(group) == 2


@pytest.mark.parametrize("restarted", [False, True])
def test_a_late_copy_is_refused_by_whoever_leads_next(group: Group, client: Client, restarted: bool) -> None:
    # Once wrong: only the leader that had heard it knew what a client has its answers to.
    first = client.identity()
    client.put(first)
    client.put(client.identity(low=2))
    group.apply(2)
    group.machine, group.engine = group.follower, group.follower_engine
    if restarted:
        group.machine.dedupe.load()
    assert isinstance(client.put(first), IdentityExpiredError)


def test_the_first_write_of_a_client_says_how_far_it_has_its_answers(group: Group, client: Client) -> None:
    # Once wrong: a client's first write to a group did not leave its low mark there.
    client.put(client.identity(9, low=9))
    assert isinstance(client.put(client.identity(3)), IdentityExpiredError)


def test_an_answer_confirmed_while_its_retry_waits_is_not_made_up(group: Group, client: Client) -> None:
    identity = client.identity()
    client.put(identity)
    outcome = client.put(identity)
    client.put(client.identity(low=2))
    group.apply(3)
    assert isinstance(outcome, Known)
    with pytest.raises(IdentityExpiredError):
        group.machine.recall(outcome.index, put(), identity)


@pytest.mark.parametrize("config", [DedupeConfig(identities_max=4), DedupeConfig(reply_bytes_max=110)])
@pytest.mark.parametrize("restart", [False, True])
def test_past_the_bound_old_retries_are_refused_and_young_ones_served(config: DedupeConfig, restart: bool) -> None:
    group = Group("data", 0, config)
    client = Client(group)
    identities = []
    for _ in range(20):
        identities.append(client.identity())
        client.put(identities[-1])
        client.now_ms += 60_000
    group.apply(20)
    if restart:
        group.restart()
    window = group.machine.dedupe
    assert 1 <= len(window) <= 4
    assert rows(group) == len(window)
    for number, identity in enumerate(identities):
        age_ms = client.now_ms - (NOW + number * 60_000)
        outcome = client.put(client.identity(identity.seq, age_ms=age_ms))
        if number < 20 - len(window):
            assert isinstance(outcome, IdentityExpiredError), number
        else:
            assert isinstance(outcome, Known), number
    # One that cannot have been among those forgotten is done.
    assert isinstance(client.put(client.identity(500, age_ms=1_000)), bytes)
    assert version(group) == 21


def test_who_confirms_nothing_takes_nobody_elses_memory() -> None:
    # Once wrong: whoever came first went first, so one client emptied the memory of all.
    group = Group("data", 0, DedupeConfig(identities_max=20))
    honest, greedy = Client(group, 2), Client(group, 1)
    identity = honest.identity()
    honest.put(identity)
    for _ in range(200):
        greedy.put(greedy.identity())
    group.apply(len(group.in_flight))
    for window in (group.machine.dedupe, group.follower.dedupe):
        assert window.lookup(Identity(2, identity.seq, 0, 60_000)) == 1
        assert window.lookup(Identity(2, 2, 0, 60_000)) is None
        with pytest.raises(IdentityExpiredError):
            window.lookup(Identity(1, 1, 0, 1))
    assert len(group.machine.dedupe) <= 20


@pytest.mark.parametrize("skew_ms", [-3_600_000, 0, 3_600_000])
def test_no_calendar_is_asked_whether_a_write_was_done(skew_ms: int) -> None:
    # Once wrong: under a leader whose clock differed by more than 5 s a retry was done twice, or refused for an hour.
    group = Group("data", 0, DedupeConfig(identities_max=4))
    client, other = Client(group, 1), Client(group, 2)
    for _ in range(20):
        client.put(client.identity())
        other.put(other.identity())
    group.apply(40)
    group.machine, group.engine = group.follower, group.follower_engine
    group.machine.dedupe.load()
    client.now_ms += skew_ms
    done = version(group)
    assert isinstance(client.put(client.identity(1, age_ms=10)), IdentityExpiredError)
    assert isinstance(client.put(client.identity(1, age_ms=10_000_000)), IdentityExpiredError)
    assert isinstance(client.put(client.identity(21, age_ms=10)), bytes)  # its first attempt was lost
    assert isinstance(client.put(client.identity(22, age_ms=10_000_000)), bytes)
    group.in_flight.clear()
    assert done == 40


def test_a_mark_goes_when_all_that_it_hides_is_confirmed() -> None:
    group = Group("data", 0, DedupeConfig(identities_max=4))
    client = Client(group)
    for _ in range(20):
        client.put(client.identity())
    group.apply(20)
    assert marks(group) == 1
    client.put(client.identity(low=20))
    group.apply(1)
    assert marks(group) == 0
    assert contents(group.engine) == contents(group.follower_engine)


@pytest.mark.parametrize("who", ["leader", "follower", "restarted"])
def test_a_client_that_is_forgotten_with_its_mark(monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    monkeypatch.setattr(dedupe, "CLIENTS_MAX", 2)
    group = Group("data", 0, DedupeConfig(identities_max=2))
    clients = [Client(group, number) for number in (1, 2, 3, 4)]
    identity = clients[0].identity()
    for client in clients:
        client.put(identity if client is clients[0] else client.identity())
        client.put(client.identity())
        group.apply(2)
    assert 1 not in group.machine.dedupe._clients
    if who == "restarted":
        group.restart()
    window = group.follower.dedupe if who == "follower" else group.machine.dedupe
    for later_s, age_ms in ((0.0, 1), (0.9, 500), (4.0, 1_000), (20.0, 14_000)):  # the client's clock may be slow
        group.now_s = 1_000.0 + later_s
        with pytest.raises(IdentityExpiredError, match="further back"):
            window.lookup(Identity(1, identity.seq, 0, age_ms))
    # What waits here gets no younger, and what is younger than the forgetting was not forgotten.
    group.now_s = 2_000.0
    with pytest.raises(IdentityExpiredError):
        window.lookup(Identity(1, identity.seq, 0, 1), 0, 1_003.0)
    assert window.lookup(Identity(1, 77, 0, 900_000)) is None


@pytest.mark.parametrize("who", ["leader", "follower", "restarted"])
@pytest.mark.parametrize("later_s", [0.0, 3.0])
def test_a_client_that_was_forgotten_and_came_back_is_not_known_from_before(
    monkeypatch: pytest.MonkeyPatch, who: str, later_s: float
) -> None:
    """What a replica remembers of it since says nothing about the time before."""
    monkeypatch.setattr(dedupe, "CLIENTS_MAX", 2)
    group = Group("data", 0, DedupeConfig(identities_max=2))
    clients = [Client(group, number) for number in (1, 2, 3, 4)]
    for client in clients:
        for _ in range(2):
            client.put(client.identity())
        group.apply(2)
    assert 1 not in group.machine.dedupe._clients
    group.now_s += later_s
    monkeypatch.setattr(dedupe, "CLIENTS_MAX", 3)  # nobody has to go when it comes back
    assert isinstance(clients[0].put(clients[0].identity(50)), bytes)
    group.apply(1)
    if who == "restarted":
        group.restart()
    window = group.follower.dedupe if who == "follower" else group.machine.dedupe
    assert 1 in window._clients
    with pytest.raises(IdentityExpiredError, match="further back"):
        window.lookup(Identity(1, 1, 0, 1 + int(1_000 * later_s)))
    assert window.lookup(Identity(1, 50, 0, 1)) == 9, "what it has done since is known"
    assert window.lookup(Identity(1, 51, 0, 0)) is None, "what it does for the first time is done"


def test_whoever_is_forgotten_by_the_leader_is_so_by_followers_that_have_more_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leader's entry says it: a follower, or a leader that starts again, may never have known the client."""
    monkeypatch.setattr(dedupe, "CLIENTS_MAX", 2)
    group = Group("data", 0, DedupeConfig(identities_max=2))
    for client in [Client(group, number) for number in (1, 2, 3, 4)]:
        for _ in range(2):
            client.put(client.identity())
            with monkeypatch.context() as roomy:
                roomy.setattr(dedupe, "CLIENTS_MAX", 1_000)
                index, data, entry = group.in_flight[0]
                batches: list[Any] = []
                group.follower.stage(index, decode_entry(group.name, index, data), batches)
                group.follower_engine.write(*batches)
                group.follower.staged()
            group.in_flight.clear()
            batches = []
            group.machine.stage(index, entry, batches)
            group.engine.write(*batches)
            group.machine.staged()
    assert contents(group.engine) == contents(group.follower_engine)
    assert marks(group) == 3, "the mark of who is forgotten goes with it"
    for _ in range(2):
        with pytest.raises(IdentityExpiredError, match=r"further back|more unconfirmed"):
            group.follower.dedupe.lookup(Identity(1, 1, 0, 1))
        assert group.follower.dedupe._forgot_s is not None
        group.follower.dedupe.load()


def test_a_follower_that_leads_deletes_no_mark_for_what_it_forgot_when_another_led(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leader's entries have said it then, and the client may have come back and have a mark again."""
    monkeypatch.setattr(dedupe, "CLIENTS_MAX", 2)
    group = Group("data", 0, DedupeConfig(identities_max=2))
    clients = [Client(group, number) for number in (1, 2, 3, 4)]
    for client in (*clients, clients[0]):
        for _ in range(3):
            client.put(client.identity())
            group.apply(1)
    group.machine, group.engine = group.follower, group.follower_engine
    before = marks(group)
    clients[0].put(clients[0].identity())
    index, _, entry = group.in_flight[-1]
    deleted = [key for writes in entry for key, value in writes.items() if value is None]
    assert [key for key in deleted if key[3:12] == b"\x01" + b"\xff" * 8] == []
    assert before >= 2
    assert index == 16


def test_what_was_in_flight_when_the_lead_was_lost_is_not_known(group: Group, client: Client) -> None:
    """It never happened: a retry that is told that it did would be a write that is acknowledged and lost."""
    client.put(client.identity())
    group.apply(1)
    lost = client.identity()
    client.put(lost)
    group.in_flight.clear()
    group.last -= 1
    group.machine.forget()
    assert isinstance(client.put(client.identity(lost.seq, age_ms=5)), bytes)
    assert version(group) == 2


def test_an_identity_is_good_for_one_request(group: Group, client: Client) -> None:
    # Once wrong: with another key or method it answered "done" and wrote nothing.
    identity = client.identity()
    first, other = put(b"v", "a"), put(b"v", "b")
    first.digest, other.digest = 1, 2
    outcomes = group.propose([(first, identity), (other, identity), (first, identity)], NOW)
    assert isinstance(outcomes[1], InvalidRequestError)
    assert isinstance(outcomes[2], Known)
    for step in ("in flight", "applied", "restarted"):
        (outcome,) = group.propose([(other, identity)], NOW)
        assert isinstance(outcome, InvalidRequestError), step
        (outcome,) = group.propose([(first, identity)], NOW)
        assert isinstance(outcome, Known), step
        group.apply(len(group.in_flight))
        if step == "applied":
            group.restart()
    assert (version(group, "a"), version(group, "b")) == (1, 0)


def marks(group: Group) -> int:
    return sum(key[3:12] == b"\x01" + b"\xff" * 8 for key, _ in contents(group.engine))


def test_nothing_forgotten_nothing_refused(group: Group, client: Client) -> None:
    assert isinstance(client.put(client.identity(age_ms=2**62)), bytes)


def test_a_restart_remembers_what_the_last_life_did() -> None:
    config = DedupeConfig(identities_max=50)
    group = Group("data", 0, config)
    clients = [Client(group, number) for number in range(1, 8)]
    for step in range(200):
        client = clients[step * step % 7]
        client.now_ms = NOW + step
        client.put(client.identity(low=max(0, client.seq - 20)))
        if step % 5 == 4:
            group.apply(3)
    group.apply(len(group.in_flight))
    before = group.machine.dedupe

    def known(window: dedupe.DedupeWindow) -> dict[tuple[int, int], Any]:
        found: dict[tuple[int, int], Any] = {}
        for client in clients:
            for seq in range(1, client.seq + 1):
                try:
                    found[client.client_id, seq] = window.lookup(Identity(client.client_id, seq, 0, 150))
                except IdentityExpiredError:
                    found[client.client_id, seq] = "expired"
        return found

    earlier = known(before)
    assert {type(value) for value in earlier.values()} == {int, str}
    group.restart()
    assert group.machine.dedupe is not before
    assert known(group.machine.dedupe) == earlier
    assert len(group.machine.dedupe) == len(before)


def test_the_clients_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedupe, "CLIENTS_MAX", 10)
    group = Group("data", 0, DedupeConfig(identities_max=5))
    for number in range(200):
        client = Client(group, number)
        client.put(client.identity())
        client.put(client.identity(low=2))
    group.apply(len(group.in_flight))
    assert len(group.machine.dedupe._clients) <= 11
    assert len(group.machine.dedupe) <= 5


def test_a_client_that_claims_answers_it_cannot_have_harms_only_itself(group: Group, client: Client) -> None:
    identity = client.identity(5, low=2**62)
    assert isinstance(client.put(identity), bytes)
    group.apply(1)
    assert len(group.machine.dedupe) == 0
    assert isinstance(client.put(client.identity(6)), IdentityExpiredError)
    other = Client(group, 2)
    assert isinstance(other.put(other.identity()), bytes)


def test_followers_hold_the_same_window(group: Group) -> None:
    clients = [Client(group, number) for number in range(1, 4)]
    for step in range(60):
        client = clients[step % 3]
        client.put(client.identity(low=max(0, client.seq - 3)))
        if step % 7 == 0:
            group.apply(2)
    group.apply(len(group.in_flight))
    assert contents(group.engine) == contents(group.follower_engine)
    for client in clients:
        for seq in range(1, client.seq + 1):
            identity = Identity(client.client_id, seq, 0)

            def ask(window: dedupe.DedupeWindow, identity: Identity = identity) -> Any:
                try:
                    return window.lookup(identity)
                except MetadError:
                    return None

            if ask(group.machine.dedupe) is not None:
                assert ask(group.follower.dedupe) == ask(group.machine.dedupe)


# --- what is read again instead of remembered ------------------------------------------------------------


def test_a_retried_takeover_restores_from_the_state() -> None:
    rig = Rig()
    items = [m.SessionTakeoverItem("acme", "a"), m.SessionTakeoverItem("acme", "b", clean_start=True)]
    items += [m.SessionTakeoverItem("acme", "new")]
    old = [m.SessionTakeoverItem("acme", c, properties=m.SessionProperties(9, b"p" * 1000)) for c in "ab"]
    rig.write(methods.SESSION_TAKEOVER, m.SessionTakeover("b1", 1, old))
    identity = Identity(1, 1, 0)
    first = rig.write(methods.SESSION_TAKEOVER, m.SessionTakeover("b2", 1, items, True), identity)
    window = rig.group.engine.get(rig.group.prefix + b"\x01" + (2).to_bytes(8, "big"))
    assert window is not None
    assert b"ppp" not in window  # a storm's dedupe window must not hold every session a second time
    again = rig.write(methods.SESSION_TAKEOVER, m.SessionTakeover("b2", 1, items, True), identity)
    assert again == first
    assert again.properties == [m.SessionProperties(9, b"p" * 1000), None, None]


def test_a_retried_takeover_whose_sessions_grew_is_not_called_undone() -> None:
    rig = Rig()
    items = [m.SessionTakeoverItem("acme", f"c{i}") for i in range(12)]
    rig.write(methods.SESSION_TAKEOVER, m.SessionTakeover("b1", 1, items))
    identity = Identity(1, 1, 0)
    takeover = m.SessionTakeover("b2", 1, items, True)
    rig.write(methods.SESSION_TAKEOVER, takeover, identity)
    for item in items:
        large = m.SessionUpdateItem("acme", item.client_id, m.SessionProperties(1, bytes(1_000_000)))
        rig.write(methods.SESSION_UPDATE, m.SessionUpdate("b2", 1, [large]))
    with pytest.raises(IdentityExpiredError, match="done before"):
        rig.write(methods.SESSION_TAKEOVER, takeover, identity)


def transact(reads: int, then: str = "") -> Command[Any]:
    operations = [m.KvOperation(then, b"new")] if then else []
    body = m.KvTransact([m.KvTransaction("n", [], operations, reads=["k"] * reads)])
    return Command(methods.KV_TRANSACT, body, VERBS[methods.KV_TRANSACT.code].rows(body))


def test_what_a_transaction_reads_is_not_in_the_log_and_a_retry_reads_it_again(group: Group, client: Client) -> None:
    # Once wrong: three requests of 23 bytes put 21 MB into log and window.
    client.put(client.identity(), bytes(100_000))
    identity = client.identity()
    command = transact(20, "other")
    (encoded,) = group.propose([(command, identity)], NOW)
    reply = methods.KV_TRANSACT.decode_reply(encoded)
    assert [record.version for record in reply.results[0].records if record] == [1] * 20
    assert len(group.log[-1]) < 1_000
    (outcome,) = group.propose([(command, identity)], NOW)
    group.apply(len(group.in_flight))
    assert isinstance(outcome, Known)
    assert methods.KV_TRANSACT.decode_reply(group.machine.recall(outcome.index, command, identity)) == reply
    assert version(group, "other") == 1


def test_a_transaction_that_can_write_nothing_is_not_remembered(group: Group, client: Client) -> None:
    for _ in range(2):
        (outcome,) = group.propose([(transact(1), client.identity())], NOW)
        assert methods.KV_TRANSACT.decode_reply(outcome).results[0].succeeded
    assert len(group.machine.dedupe) == 0


def test_a_retry_that_asks_for_something_else_is_told_so(group: Group, client: Client) -> None:
    """Of a client that makes the digest of another request."""
    identity = client.identity()
    both, one = (
        m.KvTransact([m.KvTransaction(name, [], [m.KvOperation("k", b"v")], reads=["k"]) for name in names])
        for names in ("nm", "n")
    )
    group.propose([(command_of(methods.KV_TRANSACT, both), identity)], NOW)
    group.apply(1)
    with pytest.raises(IdentityExpiredError, match="another request"):
        group.machine.recall(1, command_of(methods.KV_TRANSACT, one), identity)


# --- no write pays for what others hold ------------------------------------------------------------------


def window_lines(call: Callable[[], object]) -> int:
    """How many lines of the window's own code a call runs."""
    return lines_run(call, dedupe.__file__)


def costs_of_newcomers(writes: int) -> list[int]:
    """Clients with descending ids come that confirm nothing, and the window is full after the first 1,000: what each
    entry costs from then on, on the leader and on the follower."""
    group = Group("data", 0, DedupeConfig(identities_max=1_000))

    def newcomer(number: int) -> None:
        client = Client(group, 100_000 - number)
        client.put(client.identity())
        group.apply(1)

    for number in range(1_100):
        newcomer(number)
    costs = [window_lines(partial(newcomer, number)) for number in range(1_100, 1_100 + writes)]
    for window in (group.machine.dedupe, group.follower.dedupe):
        assert len(window._clients) <= 1_001
        assert 900 <= len(window) <= 1_000
    return costs


def test_a_new_client_costs_the_same_however_many_hold_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once wrong: it passed all that hold something to find one that holds nothing, and all to find who holds most."""
    monkeypatch.setattr(dedupe, "CLIENTS_MAX", 1_000)
    assert max(costs_of_newcomers(100)) < 300


def test_a_large_reply_costs_the_same_however_many_hold_something() -> None:
    """Once wrong: each such reply is a good part of the window, so each looked for who holds most among all."""
    group = Group("data", 0, DedupeConfig(reply_bytes_max=200_000))
    for number in range(1_000):
        client = Client(group, number)
        client.put(client.identity())
        group.apply(1)
    window = group.machine.dedupe

    def large(seq: int) -> None:
        window.remember(2_000 + seq, Identity(5_000, seq, 0), 0, bytes(50_000))
        window.record(2_000 + seq, {})

    costs = [window_lines(partial(large, seq)) for seq in range(1, 20)]
    assert max(costs) < 300
    assert len(window) > 1_000, "who holds most has given up its own"


def test_who_holds_less_than_half_of_what_another_holds_gives_up_nothing() -> None:
    group = Group("data", 0, DedupeConfig(identities_max=300))
    clients = [Client(group, number) for number in range(4)]
    for client, count in zip(clients, (10, 40, 90, 900), strict=True):
        for _ in range(count):
            client.put(client.identity())
    group.apply(len(group.in_flight))
    window = group.machine.dedupe
    assert [len(window._clients[number].seqs) for number in range(3)] == [10, 40, 90]
    assert [window._clients[number].mark for number in range(3)] == [0, 0, 0]
    assert 150 <= len(window._clients[3].seqs) <= 160


def test_what_only_the_newest_entry_holds_is_looked_at_once_and_stays() -> None:
    group = Group("data", 0, DedupeConfig(identities_max=4))
    window = group.machine.dedupe
    for number in range(20):
        window.remember(1, Identity(number, 1, 0), 0, b"reply")
    assert window_lines(lambda: window.record(1, {})) < 20 * 30
    assert len(window) == 20
    window.remember(2, Identity(50, 1, 0), 0, b"reply")
    window.record(2, {})
    assert (len(window), window.lookup(Identity(50, 1, 0))) == (4, 2)


def test_the_client_that_has_held_nothing_for_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedupe, "CLIENTS_MAX", 3)
    group = Group("data", 0, DedupeConfig())
    one, two, _, four = clients = [Client(group, number) for number in (1, 2, 3, 4)]
    for client in clients[:3]:
        client.put(client.identity())
    for client in (two, one):
        client.put(client.identity(low=2**32))
    four.put(four.identity())
    assert {*group.machine.dedupe._clients} == {1, 3, 4}
    two.put(two.identity())
    assert {*group.machine.dedupe._clients} == {2, 3, 4}, "three and four hold something"


def test_the_first_of_many_is_found_behind_those_that_are_gone(group: Group, client: Client) -> None:
    """No line says what this costs: a plain dict finds its first key behind all that were deleted, so a client that
    confirmed 60,000 writes at once kept everybody waiting for a second."""
    client.put(client.identity())
    window = group.machine.dedupe
    for ordered in (window._clients[1].seqs, *window._levels):
        assert isinstance(ordered, OrderedDict)
