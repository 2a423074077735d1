"""Compares the states of a group's replicas, in the background, and has one that is wrong replaced.

An entry says what is written, so replicas that have applied the same entries have the same rows. A replica whose rows
differ has a disk or a memory that changed them, or a bug. The leader looks at one part of a group's state after the
other: it names its newest entry, each replica pins its state as it is with that entry applied, sums the part up in a
thread, and answers. Requests and entries go to a peer by one connection, in order, so no replica has applied a later
entry when it is asked.

A difference counts once a second comparison finds it as well. What a quorum of voters has is right. A leader that is
wrong itself hands over to one of them; the next leader then finds it. A follower that is wrong keeps its log, its term
and its vote, for what it acknowledged is in its log. It applies nothing more and serves nobody until a snapshot is in
place of its state. Without such a quorum nothing is done, but the alarm is raised all the same.

The part that differs is compared again and again until all replicas agree in it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from metad_wire.cluster import GroupCompare, GroupRebuild, GroupRebuilding, GroupSum
from metad_wire.errors import ConflictError, MetadError, UnknownOutcomeError
from metad_wire.methods import GROUP_COMPARE, GROUP_REBUILD, encode

from ... import log_events
from ...config import StorageConfig
from ...control.host import Done
from ...errors import StorageError
from ...logs import event
from ...raft.messages import Configuration
from ...raft.roles.membership import ChangeRefusedError
from ...storage.engine import Pin
from ...storage.keys import after_prefix, snapshot_mark
from ..calls.peer_sender import PeerSender
from ..disk.node_snapshots import NodeSnapshots
from ..disk.stores import Stores
from ..environment import Environment, Queue, Timer
from ..health import Health
from ..replicas.driver import Checkpoint, GroupDriver
from ..replicas.groups import Agenda, Groups

ROWS: Final = 2_048
"""Rows of a part: some milliseconds of a thread on each replica."""
_PART_BYTES: Final = 2 * 1024 * 1024
_SCAN_ROWS, _SCAN_BYTES = 128, 64 * 1024  # of the part, in one go: less than a millisecond
_REST_S: Final = 0.002  # between them, for the event loop
_REACH_S: Final = 10.0  # a replica that does not come to the entry in this time applies on, and is not compared
_COMPARE_S: Final = 30.0  # whoever has not answered by then is not compared
_STREAM_S: Final = 30.0  # a replica with a wrong state goes on with it if no snapshot begins to come in this time

_encode_row = msgspec.msgpack.Encoder().encode


class Judgement(NamedTuple):
    """What a comparison has found."""

    right: GroupSum | None
    """What a quorum of voters has. None: no quorum has the same."""
    unlike: tuple[str, ...]
    """The nodes that have something else, sorted; without a quorum, all, unless they agree."""


def judge(sums: Mapping[str, GroupSum], configuration: Configuration) -> Judgement:
    """Say who is right. ``sums``: by node, of those that have answered."""
    nodes: defaultdict[GroupSum, list[str]] = defaultdict(list)
    for node, found in sums.items():
        nodes[found].append(node)
    for found, alike in nodes.items():
        if len({*configuration.voters}.intersection(alike)) >= configuration.quorum():
            return Judgement(found, tuple(sorted(sums.keys() - {*alike})))
    return Judgement(None, tuple(sorted(sums)) if len(nodes) > 1 else ())


def sum_up(pin: Pin, prefix: bytes, begin: bytes, rows_max: int) -> GroupSum:
    """Sum up the rows of a group from ``begin`` on, a key behind its prefix. Blocks for some milliseconds: call it in a
    thread. Raises StorageError."""
    digest, mark, end = blake2b(digest_size=16), snapshot_mark(prefix), after_prefix(prefix)
    rows = size = 0
    at = prefix + begin
    while found := pin.scan(at, end, _SCAN_ROWS, _SCAN_BYTES):
        for row in found:
            if row[0] == mark:  # it says which snapshot this replica has received last
                continue
            digest.update(_encode_row(row))
            rows += 1
            size += len(row[0]) + len(row[1])
            if rows >= rows_max or size >= _PART_BYTES:
                return GroupSum(digest.digest(), rows, row[0][len(prefix) :] + b"\0")
        at = found[-1][0] + b"\0"
        if rows >= _SCAN_ROWS:
            time.sleep(_REST_S)
    return GroupSum(digest.digest(), rows)


@dataclass(eq=False, slots=True)
class _Comparison:
    """Of one part of a group that this node leads."""

    driver: GroupDriver
    term: int
    body: GroupCompare
    awaited: set[str]
    sums: dict[str, GroupSum] = field(default_factory=dict)
    timer: Timer | None = None


class _Rebuilding(NamedTuple):
    """A replica here that waits for a snapshot of this leader until then."""

    leader: str | None
    until_s: float


class Comparisons:
    """Compares what this node leads, and answers the leaders of what it follows."""

    def __init__(
        self,
        stores: Stores,
        groups: Groups,
        snapshots: NodeSnapshots,
        outbound: PeerSender,
        agenda: Agenda,
        environment: Environment,
        health: Health,
        config: StorageConfig,
    ) -> None:
        self.every_s = config.compare_every_ms / 1000
        """A node begins one comparison of one of the groups that it leads in this time."""
        self._node_id = stores.identity.node_id
        self._groups = groups
        self._state = stores.state
        self._streams = snapshots.streams
        self._outbound = outbound
        self._agenda = agenda
        self._environment = environment
        self._health = health
        self._begins: dict[str, bytes] = {}  # of the next part, by group; replicas know it, too, should they lead next
        self._under_way: dict[GroupDriver, _Comparison] = {}
        self._rebuilding: dict[GroupDriver, _Rebuilding] = {}
        self._turn, self._looks_twice = 0, False
        self._timer: Timer | None = None
        groups.on_change.append(self._look_after_rebuilding)

    def start(self) -> None:
        """Begin to compare."""
        self._timer = self._environment.call_at(self._environment.now() + self.every_s, self.start)
        if self._health.failure is None:
            self._look_after_rebuilding()
            if not self._groups.crowded():
                self._begin()

    def stop(self) -> None:
        """Compare no more."""
        for timer in (self._timer, *(comparison.timer for comparison in self._under_way.values())):
            if timer is not None:
                timer.cancel()

    # --- the leader --------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Compare the next part of the next group."""
        led = [
            driver
            for _, driver in sorted(self._groups.drivers.items())
            if driver.group.ready and not driver.installing and len(driver.group.configuration.members) > 1
        ]
        doubtful = [driver for driver in led if driver.doubted]
        self._looks_twice = bool(doubtful) and not self._looks_twice
        if self._looks_twice:  # before the next group, but not instead of all others
            led = doubtful
        if led:
            self._turn += 1
            driver = led[self._turn % len(led)]
            if driver not in self._under_way:
                self._compare(driver)

    def _compare(self, driver: GroupDriver) -> None:
        group = driver.group
        members = [
            member for member in group.configuration.members if member == self._node_id or member in group.connected
        ]
        begin = self._begins.get(group.name, b"")
        body = GroupCompare(group.name, group.log.last_index, begin, ROWS, [*driver.doubted])
        comparison = self._under_way[driver] = _Comparison(driver, group.term, body, {*members})
        until_s = self._environment.now() + _COMPARE_S
        comparison.timer = self._environment.call_at(until_s, partial(self._judge, comparison))
        for member in members:
            answered = partial(self._answered, comparison, member)
            if member == self._node_id:
                self._sum_up(driver, body, answered)
            else:
                self._outbound.call(member, GROUP_COMPARE.code, GROUP_COMPARE.encode_request(body), answered)

    def _answered(self, comparison: _Comparison, member: str, result: bytes | MetadError) -> None:
        comparison.awaited.discard(member)
        if not isinstance(result, MetadError):
            comparison.sums[member] = GROUP_COMPARE.decode_reply(result)
        if not comparison.awaited:
            self._judge(comparison)

    def _judge(self, comparison: _Comparison) -> None:
        driver, group, sums = comparison.driver, comparison.driver.group, comparison.sums
        if self._under_way.get(driver) is not comparison:
            return
        del self._under_way[driver]
        if comparison.timer is not None:
            comparison.timer.cancel()
        if self._health.failure is not None or not group.ready or group.term != comparison.term or len(sums) < 2:
            return
        found = judge(sums, group.configuration)
        if found.unlike and found.unlike == driver.doubted:
            self._differ(comparison, found)
        elif not found.unlike and self._all_alike(driver, sums.keys()):
            self._begins[group.name] = next(iter(sums.values())).end
            driver.doubted = ()
        if found.unlike:
            driver.doubted = found.unlike

    def _all_alike(self, driver: GroupDriver, compared: Collection[str]) -> bool:
        """Whether nobody differs who differed before."""
        if {*driver.unlike, *driver.doubted}.intersection(driver.group.configuration.members) - {*compared}:
            return False  # it is being rebuilt
        for member in driver.unlike:
            self._streams.rebuilt(driver.group, member)
        if driver.unlike:
            event(log_events.REPLICAS_ALIKE, group=driver.group.name, peers=driver.unlike)
        driver.unlike, driver.undecided = [], False
        return True

    def _differ(self, comparison: _Comparison, found: Judgement) -> None:
        """A second comparison has found the same difference."""
        driver, group, index = comparison.driver, comparison.driver.group, comparison.body.index
        driver.unlike, driver.undecided = [*found.unlike], found.right is None
        if found.right is None:
            event(log_events.REPLICAS_UNDECIDED, group=group.name, peers=driver.unlike, index=index)
            return
        for member in found.unlike:
            event(log_events.REPLICA_UNLIKE, group=group.name, peer=member, index=index, rows=found.right.rows)
        if self._node_id in found.unlike:
            self._hand_over(driver, [member for member in comparison.sums if member not in found.unlike])
            return
        for member in found.unlike:
            self._outbound.call(
                member,
                GROUP_REBUILD.code,
                GROUP_REBUILD.encode_request(GroupRebuild(group.name)),
                partial(self._stream, driver, member),
            )

    def _hand_over(self, driver: GroupDriver, right: list[str]) -> None:
        """This leader's own state is wrong."""
        group = driver.group
        lags = {member: group.lag(member) for member in right}
        for member in sorted(right, key=lambda member: (lags[member] is None, lags[member], member)):
            try:
                group.transfer(member)
            except ChangeRefusedError:  # it has no vote, or the membership changes; a later comparison tries again
                continue
            return

    def _stream(self, driver: GroupDriver, member: str, result: bytes | MetadError) -> None:
        """The replica of this member waits for a snapshot."""
        if isinstance(result, MetadError) or not driver.group.ready or driver.installing:
            return
        if driver.machine.applied >= GROUP_REBUILD.decode_reply(result).index:
            self._streams.rebuild(driver.group, member)

    # --- every replica -----------------------------------------------------------------------------------

    def answer(self, body: GroupCompare, done: Done) -> None:
        """Answer the leader of a group. Raises NotReplicaError."""
        driver = self._groups.replica(body.group)
        self._begins[body.group], driver.doubted = body.begin, tuple(body.doubted)
        self._sum_up(driver, body, done)

    def _sum_up(self, driver: GroupDriver, body: GroupCompare, done: Done) -> None:
        applied = driver.machine.applied
        if driver.installing or driver.checkpoint is not None or applied > body.index:
            done(ConflictError(f"{body.group} has applied entry {applied} here, or takes a snapshot"))
            return
        if applied == body.index:
            self._sum_up_now(driver, body, done)
            return

        def reached() -> None:
            timer.cancel()
            self._sum_up_now(driver, body, done)

        def late() -> None:
            if driver.checkpoint is checkpoint:
                driver.checkpoint = None
                if self._groups.drivers.get(driver.group.group_id) is driver and not driver.installing:
                    self._agenda.commit(driver)
                done(ConflictError(f"{body.group} does not come to entry {body.index} here"))

        checkpoint = driver.checkpoint = Checkpoint(body.index, reached)
        timer = self._environment.call_at(self._environment.now() + _REACH_S, late)

    def _sum_up_now(self, driver: GroupDriver, body: GroupCompare, done: Done) -> None:
        prefix, found = driver.group.prefix, list[GroupSum]()
        try:
            pin = self._state.pin(prefix + body.begin, after_prefix(prefix))
        except StorageError as error:
            self._health.fail(error)
            done(UnknownOutcomeError("the node's storage failed; its log says more"))
            return

        def over(error: BaseException | None) -> None:
            pin.close()
            if error is not None:
                self._health.stop_for(error)
            done(encode(found[0]) if found else UnknownOutcomeError("the node's storage failed; its log says more"))

        def work() -> None:
            found.append(sum_up(pin, prefix, body.begin, body.rows))

        self._environment.beside(work, over, Queue.COMPARISONS)

    def rebuild(self, body: GroupRebuild, done: Done) -> None:
        """Let a replica wait for a snapshot in place of its state. Raises NotReplicaError or ConflictError."""
        driver = self._groups.replica(body.group)
        group = driver.group
        if group.is_leader or driver.installing:
            raise ConflictError(f"{body.group} is led by this node, or takes a snapshot")
        driver.install()
        driver.rebuilding = True
        self._agenda.hold(driver)
        group.rebuild(True)
        self._rebuilding[driver] = _Rebuilding(group.leader, self._environment.now() + _STREAM_S)
        applied = driver.machine.applied
        event(log_events.REPLICA_REBUILDS, group=body.group, leader=group.leader, applied=applied)
        done(encode(GroupRebuilding(applied)))

    def _look_after_rebuilding(self) -> None:
        """Let replicas go on to which no snapshot comes: another node leads, or none."""
        now_s = self._environment.now()
        for driver, waits in list(self._rebuilding.items()):
            if not driver.rebuilding or self._groups.drivers.get(driver.group.group_id) is not driver:
                del self._rebuilding[driver]  # it is being installed, or the replica is gone
            elif driver.group.leader == waits.leader and self._streams.receives(driver.group):
                self._rebuilding[driver] = _Rebuilding(waits.leader, now_s + _STREAM_S)
            elif driver.group.leader != waits.leader or now_s >= waits.until_s:
                del self._rebuilding[driver]
                self._go_on(driver)

    def _go_on(self, driver: GroupDriver) -> None:
        driver.rebuilding = False
        driver.installed(driver.machine)
        driver.group.rebuild(False)
        event(log_events.REPLICA_GOES_ON, group=driver.group.name)
        if driver.group.applied < driver.group.applicable:
            self._agenda.commit(driver)
