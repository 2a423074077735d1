"""Reads near: which replica may answer a read without leading, and how it proves that it is as new as the read wants.

A read may say how old the state may be that answers it (``freshness_ms``). A replica that does not lead answers it if
it can prove that it has everything that was acknowledged so long ago; otherwise it refuses, and the leader answers.

**The proof.** The replica notes its own clock, and asks the leader up to where the group is committed. The leader says
that once it has proven that it leads, at a moment behind the question (a lease, or a round that begins then). So what
was acknowledged before the question was *sent* is at that index or before it. Once the replica has applied so far, its
state lacks nothing that is older than the question, by the replica's own clock: no two clocks are compared, and how
long question and answer were under way does not matter. A leader that is deposed, cut off or stopped proves nothing.

**Where the slots are.** What moves away is sealed in the log that the replica follows, and the target writes only what
comes behind the seal. So a replica that has applied up to the index knows of each move by which an older write went
elsewhere, and it answers for the slots that its own state holds, as a leader does.

**Permissions** are those of this node's copy of ``metadata-0``. Where they are enforced, that copy has to be as new.

**Clocks.** A proof grows old by the monotonic clock, which counts the time during which the machine is suspended, and
drift is allowed for. Where the calendar has gone further, or less far, since the question was sent, one of the two has
stood still or jumped: the proof is given up. A machine whose clocks both stand still and are not set right afterwards
cannot know it.

Nobody is asked before a read wants it: the first one that finds no proof begins the questions, which go on while reads
come. So a group that nobody reads near sleeps, and a read finds a proof that is there already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final, NamedTuple

from metad_wire.cluster import METADATA, ReadIndex
from metad_wire.errors import InternalError, InvalidRequestError, MetadError, NotFreshError, NotLeaderError
from metad_wire.methods import READ_INDEX

from ...control.host import Done
from ..environment import Deadlines, Environment
from ..replicas.driver import GroupDriver
from ..replicas.groups import Groups

AGAIN_PART: Final = 0.2
"""A replica asks again after this part of the freshness that is wanted, so a proof that gets lost is no refusal."""
AGAIN_S: Final = (0.1, 1.0)
"""But no more often than this, which costs the leader a few hundred microseconds a second, and no more seldom."""
WANTED_S: Final = 10.0
"""It asks for so long after the last read."""
UNANSWERED_S: Final = 2.0
"""A question without an answer is given up after this time; the leader that got it may be cut off."""
AGAIN_MS: Final = 250
"""When to come again with a read that was refused: the leader has answered by then, over a long path, too."""
APART_S: Final = 0.05
"""The clocks of a good machine go apart by less while a proof is used: calendars are slewed by 0.05 %."""

CallPeer = Callable[[str, int, bytes, Done], None]
"""Sends a request to another node: its id, the method, the payload, and what takes the answer."""


def answer_read_index(driver: GroupDriver, done: Callable[[int | MetadError], None]) -> None:
    """Call ``done`` with the index that the group's leader has committed, once it has proven that it leads; or with the
    error that says that this node does not lead. A replica that has applied so far has everything that was acknowledged
    before."""

    def proven(ok: bool) -> None:
        done(driver.group.commit if ok else driver.not_leader())

    driver.group.read(proven)


def ask_read_index(driver: GroupDriver, call_peer: CallPeer, done: Callable[[int | MetadError], None]) -> None:
    """Call ``done`` with the index that the group's leader, on this node or another, has committed once it has proven
    that it leads; or with the error that says why nobody knows."""
    group = driver.group
    if group.is_leader:
        answer_read_index(driver, done)
    elif not group.leader:
        done(NotLeaderError(f"no leader of {group.name} is known, who would say how far the group is"))
    else:
        payload = READ_INDEX.encode_request(ReadIndex(), group=group.name)
        call_peer(group.leader, READ_INDEX.code, payload, lambda answer: done(_index_of(answer)))


def _index_of(answer: bytes | MetadError) -> int | MetadError:
    """A client asks again later or elsewhere, whatever the leader's node has answered."""
    if isinstance(answer, bytes):
        try:
            return READ_INDEX.decode_reply(answer).index
        except InvalidRequestError as error:
            return InternalError(str(error))
    return NotLeaderError(f"the leader has not said how far the group is: {answer}")


def not_fresh(driver: GroupDriver, what: str) -> NotFreshError:
    """The error of a read that this replica cannot answer: ``what`` it cannot prove."""
    leader = driver.group.leader or ""
    why = f"this replica of {driver.group.name} cannot prove {what}: ask the leader"
    return NotFreshError(why, retry_after_ms=AGAIN_MS, leader=leader)


class Moment(NamedTuple):
    """Names a moment of this node, by its monotonic clock and by its calendar."""

    monotonic_s: float
    calendar_s: float

    def age_s(self, now: Moment) -> float:
        """How long ago it was; infinite if a clock has stood still or jumped since."""
        passed_s = now.monotonic_s - self.monotonic_s
        by_calendar_s = now.calendar_s - self.calendar_s
        return passed_s if abs(passed_s - by_calendar_s) <= APART_S else inf


@dataclass(eq=False, slots=True)
class _Proof:
    """What one replica can prove, and what it does for that."""

    driver: GroupDriver
    wanted_until_s: float = 0.0
    again_s: float = AGAIN_S[1]
    asked: Moment | None = None  # the question that is under way; no other one is
    due_s: float = 0.0  # when to ask again
    coming: tuple[Moment, int] | None = None
    """A question that was answered, and the index that the replica has yet to apply. Later answers wait until it has,
    or a replica that is always a little behind would never prove anything."""
    proven: Moment | None = None
    """The state lacks nothing that was acknowledged before then."""

    def answered(self, asked: Moment, index: int | MetadError) -> None:
        """The leader has said how far the group is, or why it does not."""
        if self.asked is not asked:
            return  # it was given up
        self.asked = None
        if isinstance(index, int):
            self.look()
            if self.coming is None:
                self.coming = asked, index
                self.look()

    def look(self) -> None:
        """Take over what has been applied meanwhile."""
        if self.coming is not None and self.driver.machine.applied >= self.coming[1]:
            self.proven, self.coming = self.coming[0], None

    def age_s(self, now: Moment) -> float:
        """How old the state may be; infinite if nobody knows."""
        self.look()
        age_s = inf if self.proven is None else self.proven.age_s(now)
        if age_s == inf:
            self.proven = None
        return age_s


class NearReads:
    """The proofs of one node's replicas, of which there are as many as it has groups."""

    def __init__(
        self, groups: Groups, call_peer: CallPeer, environment: Environment, *, drift: float, enforced: bool
    ) -> None:
        """``drift``: by which part the clock of this node may go slower than it should. ``enforced``: whether requests
        are compared with the permissions of those who ask."""
        self.served = self.refused = 0
        """Reads so far."""
        self._groups = groups
        self._call_peer = call_peer
        self._environment = environment
        self._drift = drift
        self._enforced = enforced
        self._proofs: dict[GroupDriver, _Proof] = {}
        self._timer = Deadlines(environment, self._ask_again)

    def check(self, driver: GroupDriver, freshness_ms: int) -> None:
        """Raise NotFreshError unless the replica can prove that it has all that was acknowledged so long ago."""
        now, wanted_s = self._now(), freshness_ms / 1000
        drivers = [driver]
        if self._enforced and driver.group.group_id != METADATA:
            drivers.append(self._groups.drivers[METADATA])
        ages_s = [self._age_s(each, now, wanted_s) for each in drivers]
        # What the clock counts may be too little by the drift.
        if driver.installing or max(ages_s) * (1 + self._drift) > wanted_s:
            self.refused += 1
            raise not_fresh(driver, f"that it has all that was acknowledged {freshness_ms} ms ago")
        self.served += 1

    def stop(self) -> None:
        """Stop the timer."""
        self._timer.stop()

    def _now(self) -> Moment:
        return Moment(self._environment.now(), self._environment.wall_ms() / 1000)

    def _age_s(self, driver: GroupDriver, now: Moment, wanted_s: float) -> float:
        """How old the state of a replica may be. It is wanted from now on, too."""
        if driver.group.may_read():
            return 0.0
        proof = self._proofs.get(driver)
        if proof is None:
            proof = self._proofs[driver] = _Proof(driver)
        if proof.wanted_until_s < now.monotonic_s:
            proof.again_s = AGAIN_S[1]
        proof.wanted_until_s = now.monotonic_s + WANTED_S
        proof.again_s = min(proof.again_s, max(AGAIN_S[0], wanted_s * AGAIN_PART))
        age_s = proof.age_s(now)
        if age_s > wanted_s:
            proof.due_s = min(proof.due_s, now.monotonic_s + AGAIN_S[0])
            self._ask(proof, now)
        self._timer.arm()
        return age_s

    def _ask(self, proof: _Proof, now: Moment) -> None:
        """Ask the leader how far the group is, unless that is under way, or was done a moment ago."""
        asked = proof.asked
        if asked is not None and now.monotonic_s - asked.monotonic_s > UNANSWERED_S:
            asked = None
        if asked is not None or now.monotonic_s < proof.due_s:
            return
        proof.asked, proof.due_s = now, now.monotonic_s + proof.again_s
        ask_read_index(proof.driver, self._call_peer, partial(proof.answered, now))

    def _ask_again(self, _: float) -> bool:
        """Ask where it is time. Whether any proof is wanted still."""
        now = self._now()
        for driver, proof in list(self._proofs.items()):
            if now.monotonic_s > proof.wanted_until_s or self._groups.here(driver.group.name) is not driver:
                del self._proofs[driver]
            else:
                proof.look()
                self._ask(proof, now)
        return bool(self._proofs)
