"""What a node has to write to the audit trail: bounded, put together by principal, and written once."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from metad.node.requests.audit import AGAIN_S, ANSWER_S, BATCH, LINES, REFUSALS_S, SOON_S, AuditQueue
from metad_wire.errors import IdentityExpiredError, InvalidRequestError, MetadError, NotLeaderError, TooLargeError
from metad_wire.messages import Identity, WriteReply
from metad_wire.methods import AUDIT_NOTE, encode
from metad_wire.tables.access import AuditEntry

DONE = encode(WriteReply([], []))
GONE = NotLeaderError("nobody leads it")


class World:
    """Time, and whoever leads metadata-0."""

    def __init__(self) -> None:
        self.rng = random.Random(1)
        self.now_s = 100.0
        self.timers: list[SimpleNamespace] = []
        self.sent: list[tuple[Identity, list[AuditEntry]]] = []
        self.payloads: list[bytes] = []
        self.waiting: list[Callable[[bytes | MetadError], None]] = []
        self.answer: bytes | MetadError | None = DONE
        """To each; None: the test answers, or nobody."""
        environment: Any = self
        self.queue = AuditQueue(environment, self.send)

    def now(self) -> float:
        return self.now_s

    def call_at(self, when_s: float, callback: Callable[[], None]) -> SimpleNamespace:
        timer = SimpleNamespace(when_s=when_s, callback=callback)
        timer.cancel = lambda: self.timers.remove(timer) if timer in self.timers else None
        self.timers.append(timer)
        return timer

    def send(self, payload: bytes, done: Callable[[bytes | MetadError], None]) -> None:
        request = AUDIT_NOTE.decode_request(payload)
        assert request.identity is not None
        self.sent.append((request.identity, request.body.lines))
        self.payloads.append(payload)
        if self.answer is None:
            self.waiting.append(done)
        else:
            done(self.answer)

    def go(self, passed_s: float) -> None:
        until_s = self.now_s + passed_s
        while due := [timer for timer in self.timers if timer.when_s <= until_s]:
            timer = min(due, key=lambda one: one.when_s)
            self.timers.remove(timer)
            self.now_s = max(self.now_s, timer.when_s)
            timer.callback()
        self.now_s = until_s

    @property
    def lines(self) -> list[AuditEntry]:
        return [line for _, lines in self.sent for line in lines]

    @property
    def times(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for line in self.lines:
            found[line.who] = found.get(line.who, 0) + line.times
        return found


def admin(names: str = "") -> AuditEntry:
    return AuditEntry("", 0, "admin", "n1", "metad://admin/ops", "10.0.0.9", "role.put", names)


def refused(who: str) -> AuditEntry:
    return AuditEntry("", 0, "refused", "n1", who, "10.0.0.7", "kv.put", outcome="permission_denied")


def test_what_was_administered_is_written_soon_and_together() -> None:
    world = World()
    world.queue.note(admin("a"))
    world.go(0.03)
    world.queue.note(admin("b"))
    assert not world.sent
    world.go(0.03)
    assert [line.names for line in world.lines] == ["a", "b"]
    assert len(world.sent) == 1
    assert [line.waited_ms for line in world.lines] == [50, 20]
    assert not len(world.queue)
    assert not world.timers, "nothing is looked at while nothing waits"


def test_refusals_are_put_together_by_principal_and_all_are_counted() -> None:
    world = World()
    for _ in range(1_000):
        world.queue.refused(refused("flood"))
        world.go(0.01)
    world.queue.refused(refused("other"))
    world.go(2 * REFUSALS_S)
    flood = [line for line in world.lines if line.who == "flood"]
    assert world.times == {"flood": 1_000, "other": 1}
    assert len(flood) <= 11, "one a second"
    assert max(line.times for line in flood) > 80


def test_more_principals_than_a_batch_has_room_for_make_a_line_a_second_each() -> None:
    world = World()
    for _ in range(20):
        for number in range(3 * BATCH):
            world.queue.refused(refused(str(number)))
        world.go(0.1)
    world.go(2)
    assert world.times == {str(number): 20 for number in range(3 * BATCH)}
    assert max(len(lines) for _, lines in world.sent) == BATCH
    assert len(world.lines) <= 3 * BATCH * 3


def test_what_an_administrator_does_does_not_wait_for_refusals() -> None:
    world = World()
    world.queue.refused(refused("app"))
    world.queue.note(admin())
    world.go(SOON_S)
    assert [line.kind for line in world.lines] == ["admin"]
    world.go(REFUSALS_S)
    assert [line.kind for line in world.lines] == ["admin", "refused"]


def test_a_batch_is_sent_again_as_it_was_until_it_is_written() -> None:
    world = World()
    world.answer = GONE
    world.queue.note(admin("a"))
    world.go(SOON_S)
    world.queue.note(admin("b"))
    for _ in range(5):
        world.queue.refused(refused("app"))
        world.go(AGAIN_S)
    assert len(world.sent) == 6
    assert [lines for _, lines in world.sent] == [world.sent[0][1]] * 6
    assert len({(one.client_id, one.seq, one.low) for one, _ in world.sent}) == 1, "or it would be written twice"
    ages_ms = [one.age_ms for one, _ in world.sent]
    assert ages_ms[0] == 0
    assert all(before < after for before, after in itertools.pairwise(ages_ms))
    world.answer = DONE
    world.sent.clear()
    world.go(AGAIN_S)
    assert [(one.seq, [(line.names, line.times) for line in lines]) for one, lines in world.sent] == [
        (1, [("a", 1)]),
        (2, [("b", 1), ("", 5)]),
    ]


def test_whoever_does_not_answer_is_asked_again_and_answers_in_vain() -> None:
    world = World()
    world.answer = None
    world.queue.note(admin("a"))
    world.go(SOON_S + ANSWER_S)
    assert len(world.sent) == 2
    late, answer = world.waiting
    late(GONE)
    world.go(2 * AGAIN_S)
    assert len(world.sent) == 2
    answer(DONE)
    assert not len(world.queue)
    assert not world.timers


def test_what_waits_is_bounded_and_what_is_dropped_is_said() -> None:
    """Refusals go first, the oldest of them; then the oldest of the rest."""
    world = World()
    world.answer = GONE
    world.queue.note(admin("first"))
    world.go(SOON_S)
    for number in range(LINES):
        world.queue.refused(refused(str(number)))
    world.queue.refused(refused("0"))
    for number in range(10):
        world.queue.note(admin(str(number)))
    assert len(world.queue) == LINES + 1
    world.answer = DONE
    world.go(10)
    assert [line.names for line in world.lines if line.kind == "admin"][-10:] == [str(number) for number in range(10)]
    written = [line.who for line in world.lines if line.kind == "refused"]
    assert written == [str(number) for number in range(10, LINES)]
    assert [line.dropped for line in world.lines if line.dropped] == [11], "one of them was refused twice"

    world.answer = GONE
    world.queue.note(admin("again"))
    world.go(SOON_S)
    world.sent.clear()
    for number in range(LINES + 5):
        world.queue.note(admin(str(number)))
    world.answer = DONE
    world.go(10)
    assert [line.names for line in world.lines] == ["again", *(str(number) for number in range(5, LINES + 5))]
    assert [line.dropped for line in world.lines if line.dropped] == [5]


def test_a_batch_of_which_nothing_is_known_any_more_is_counted_as_dropped() -> None:
    world = World()
    world.answer = IdentityExpiredError("first sent long ago")
    world.queue.note(admin("a"))
    world.queue.note(admin("b"))
    world.go(SOON_S)
    world.answer = DONE
    world.queue.note(admin("c"))
    world.go(1)
    assert [(line.names, line.dropped) for line in world.lines] == [("a", 0), ("b", 0), ("c", 2)]


def test_a_node_that_ends_does_not_wait_for_more() -> None:
    world = World()
    world.queue.refused(refused("app"))
    world.queue.note(admin())
    world.queue.flush()
    world.go(0)
    assert len(world.lines) == 2
    world.answer = GONE
    world.queue.note(admin("late"))
    world.queue.stop()
    world.go(100)
    assert len(world.lines) == 2
    assert not world.timers


@pytest.mark.parametrize("why", [IdentityExpiredError(), InvalidRequestError("no"), TooLargeError("no")], ids=repr)
def test_a_batch_that_is_refused_for_good_holds_up_no_other_and_what_was_lost_before_is_not_forgotten(
    why: MetadError,
) -> None:
    world = World()
    world.answer = why
    world.queue.note(admin("a"))
    world.go(SOON_S)
    world.queue.note(admin("b"))
    world.go(SOON_S)
    world.answer = DONE
    world.queue.note(admin("c"))
    world.go(1)
    assert [(line.names, line.dropped) for line in world.lines][-1] == ("c", 2)


def test_new_principals_put_off_no_refusals() -> None:
    world = World()
    for number in range(6):
        world.queue.refused(refused(f"app{number}"))
        world.go(REFUSALS_S / 2)
    assert {"app0", "app1"} <= world.times.keys()


def test_hosts_that_nobody_knows_have_lines_of_their_own() -> None:
    world = World()
    for host in ("10.0.0.1", "10.0.0.2"):
        world.queue.refused(msgspec.structs.replace(refused(""), host=host))
    world.go(REFUSALS_S)
    assert [line.host for line in world.lines] == ["10.0.0.1", "10.0.0.2"]


def test_refusals_that_wait_while_nobody_answers_are_bounded_with_all_others() -> None:
    world = World()
    world.answer = None
    world.queue.note(admin("under way"))
    world.go(SOON_S)
    for turn in range(3):
        for number in range(LINES):
            world.queue.refused(refused(f"{turn}/{number}"))
        world.go(REFUSALS_S)
        assert len(world.queue) <= LINES + BATCH
