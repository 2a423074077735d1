"""``m.serve``: the partitions that a broker leads and follows, as metad assigns them.

The broker's life must be registered. Then this follows the records that name the broker, and calls the author's
functions, for each partition one after the other, always with the newest record::

    async def lead(led: Led) -> None: ...      # serve it, under led.leader_epoch, while led.check() raises nothing
    async def follow(followed: Following) -> None: ...  # fetch from followed.leader, under followed.leader_epoch
    async def release(held: Held) -> None: ...  # stop; if held.gone, delete what there is; see Led.hand_over

    async with m.serve("topic", on_lead=lead, on_follow=follow, on_release=release) as serving:
        await serving.lost()

What cannot be done wrongly with it: a leadership ends at once for :class:`Led`, before any function is called, when a
newer record says so or the life is over; an owner gives a partition back only after ``on_release`` has returned; a
position is reported only for the ``leader_epoch`` that was promised; and the epochs in all requests are those of the
record that the author's functions were called with.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import Awaitable, Callable, Collection
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from metad_wire.families.assignment import PARTITIONS
from metad_wire.messages import Owner, TableRecord
from metad_wire.tables.assignment import DELETING, ELECTING, RELEASING, Partition

from ..broker_life import BrokerLife, LifeState
from ..dispatch.reports import log
from ..errors import ClosedError, ConflictError, FencedError, IneligibleError, InvalidRequestError, MetadError
from ..watch.filters import Watched
from .assignments import Assignments
from .in_sync import LAG_S, InSyncReplicas

if TYPE_CHECKING:
    from ..watch.watch import Watch

Key = tuple[str, str, str, int]
"""Tenant, resource, kind, partition."""
TICK_S: Final = 0.2
"""How often a leader looks whether somebody is to be proposed."""
_AGAIN_S: Final = 0.2
_ANSWER_S: Final = 5.0


class Held:
    """A partition of which the broker has a replica, by the newest record."""

    def __init__(self, record: Partition, me: Owner, serving: Serving) -> None:
        self.record = record
        self.me = me
        self._serving = serving
        self.over = False
        """Whether it has ended."""
        self.gone = False
        """Whether the broker has no replica of it any more, so that what it has of it may go."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__.lower()} {self.record.kind} {self.record.resource!r}/{self.record.partition}>"

    @property
    def key(self) -> Key:
        """Tenant, resource, kind and number."""
        return key_of(self.record)

    @property
    def leader_epoch(self) -> int:
        """What requests about its records name."""
        return self.record.leader_epoch

    def end(self) -> None:
        """Another record, or the end of the life, has taken its place."""
        self.over = True


class Following(Held):
    """A partition that another broker leads, or none."""

    @property
    def leader(self) -> Owner | None:
        """Whom to fetch from; None: nobody leads."""
        return self.record.leader

    @property
    def throttle_bytes(self) -> int | None:
        """How many bytes a second the broker may copy: by the plan that moves the partition to it, until it is in sync.
        None: any."""
        move = self.record.move
        if move is None or self.me.broker in move.original or self.me in self.record.isr:
            return None
        return move.throttle_bytes

    async def copied(self, size: int) -> None:
        """Wait until the next fetch may be sent, after one has brought so many bytes: those of all partitions that move
        to the broker count together. Returns at once where nothing is throttled."""
        limit, now_s = self.throttle_bytes, self._serving.now_s
        if limit is None:
            return
        self._serving.copied_s = until_s = max(now_s(), self._serving.copied_s) + size / max(limit, 1)
        while (left_s := until_s - now_s()) > 0:
            await asyncio.sleep(min(left_s, TICK_S))
            if self.over or self.throttle_bytes is None:
                return


class Led(Held):
    """A partition that this life leads, or owns."""

    def __init__(self, record: Partition, me: Owner, serving: Serving) -> None:
        super().__init__(record, me, serving)
        self.in_sync: InSyncReplicas | None = None
        """Once :meth:`begin` was called."""
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []  # a heap

    @property
    def serves(self) -> bool:
        """Whether the broker may serve it, at this moment: look whenever it is served. By in-sync replicas no lease is
        needed, for nothing is acknowledged without them: so an outage of metad stops nothing. Otherwise it counts."""
        may = (LifeState.SERVING,) if self.in_sync is None else (LifeState.SERVING, LifeState.SUSPENDED)
        return not self.over and self._serving.life.state in may

    def check(self) -> None:
        """Raise FencedError if the broker does not lead it any more, or cannot be sure."""
        if self.over:
            raise FencedError(f"{self!r}: another record has taken the place of leader_epoch {self.leader_epoch}")
        self._serving.life.check()
        if not self.serves:
            raise FencedError(f"{self!r}: the lease of {self.me.broker} is late, and its life may be over")

    def begin(self, end: int, *, lag_s: float = LAG_S) -> InSyncReplicas:
        """Lead by in-sync replicas, with so many records in the log. To be called once, before anything is appended."""
        if self.in_sync is not None:
            raise InvalidRequestError(f"{self!r} has begun already, with {self.in_sync.start} records")
        if self.record.election == "owner":
            raise InvalidRequestError(f"{self!r} has one owner, and nobody is in sync with it")
        self.in_sync = InSyncReplicas(self.record, self.me, end, self._serving.now_s(), lag_s)
        return self.in_sync

    def appended(self, end: int) -> int:
        """The log has so many records. Returns the high watermark: those before it are acknowledged."""
        reached = self._leading().appended(end)
        self._advanced()
        return reached

    def fetched(self, follower: Owner, leader_epoch: int, position: int) -> int:
        """A follower has the records before ``position``, as its fetch says: its own life, and the ``leader_epoch``
        under which it follows. Returns the high watermark. Raises FencedError for another epoch, NoReplicaError."""
        self.check()
        if leader_epoch != self.leader_epoch:
            raise FencedError(f"{self!r}: leader_epoch is {self.leader_epoch}", current=self.leader_epoch)
        reached = self._leading().fetched(follower, position, self._serving.now_s())
        self._advanced()
        return reached

    async def acknowledged(self, end: int) -> None:
        """Wait until the records before ``end`` are acknowledged: for as long as too few are in sync, so bound it by
        ``asyncio.timeout``, and end it with the producer's connection. Raises FencedError once the broker leads no
        more. Either way nobody knows what becomes of them."""
        replicas = self._leading()
        while replicas.high_watermark < end:
            if self.over:
                raise FencedError(f"{self!r}: its leader_epoch {self.leader_epoch} ended before that was acknowledged")
            came: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, waits := (end, id(came), came))
            try:
                await came
            finally:
                if came.cancelled():
                    self._waiting.remove(waits)
                    heapq.heapify(self._waiting)

    def end(self) -> None:
        super().end()
        self._advanced()

    def _advanced(self) -> None:
        """Wake up who waits for what is acknowledged now; everybody, if it is over."""
        reached = 0 if self.in_sync is None else self.in_sync.high_watermark
        while self._waiting and (self.over or self._waiting[0][0] <= reached):
            came = heapq.heappop(self._waiting)[2]
            if not came.done():
                came.set_result(None)

    async def seal(self, end: int, *, successor: bool = True, deadline_s: float | None = None) -> None:
        """End the partition at so many records; with ``successor`` the next one begins in the same entry. Raises
        FencedError, ConflictError, NoPlaceError."""
        self.check()
        await self._serving.assignments.seal(
            *self.key,
            self.me.broker,
            self.me.broker_epoch,
            self.leader_epoch,
            end,
            successor=successor,
            deadline_s=deadline_s,
        )

    async def hand_over(self, to: Owner | None = None, *, deadline_s: float | None = None) -> None:
        """Let another replica that is in sync lead. A master by position says so in ``on_release``: ``to`` is the life
        of ``record.target`` that has every record by now. Raises FencedError, NoCandidateError, ConflictError,
        IneligibleError."""
        if to is not None:
            record = self.record
            await self._serving.assignments.in_sync(
                *self.key,
                self.me,
                leader_epoch=record.leader_epoch,
                partition_epoch=record.partition_epoch,
                isr=[self.me, to],
                deadline_s=deadline_s,
            )
            return
        self.check()
        await self._serving.assignments.release(
            *self.key, self.me.broker, self.me.broker_epoch, self.leader_epoch, deadline_s=deadline_s
        )

    def _leading(self) -> InSyncReplicas:
        if self.in_sync is None:
            raise InvalidRequestError(f"{self!r}: call begin() first")
        return self.in_sync


OnLead = Callable[[Led], Awaitable[None]]
OnFollow = Callable[[Following], Awaitable[None]]
OnRelease = Callable[[Held], Awaitable[None]]
OnElect = Callable[[Following], Awaitable[tuple[int, int]]]
"""Promises to take nothing of a lower ``leader_epoch``, durably; returns the epoch of the last record, and how many
records there are."""


class Author(NamedTuple):
    """The author's functions."""

    on_lead: OnLead
    on_release: OnRelease
    on_follow: OnFollow | None = None
    on_elect: OnElect | None = None


def key_of(record: Partition) -> Key:
    """What identifies a partition."""
    return record.tenant, record.resource, record.kind, record.partition


class _Slot:
    """One partition: the newest row, what the author was told last, and the task that tells it."""

    __slots__ = ("held", "row", "said", "task")

    def __init__(self) -> None:
        self.row: TableRecord[Partition] | None = None
        self.held: Held | None = None
        self.said: tuple[str, int] = ("", 0)
        """What was said last, and of which epoch of the record."""
        self.task: asyncio.Task[None] | None = None


class Serving:
    """What a broker leads and follows. Made by :meth:`metad_client.Client.serve`."""

    def __init__(
        self,
        assignments: Assignments,
        watch: Callable[..., Watch[object]],
        life: BrokerLife,
        kinds: Collection[str],
        author: Author,
        clock: Callable[[], float],
    ) -> None:
        self.assignments = assignments
        self.life = life
        self.now_s = clock
        self.copied_s = 0.0
        """When the next fetch of what moves to the broker may be sent."""
        self._watch = watch
        self._kinds = frozenset(kinds)
        self._author = author
        self._slots: dict[Key, _Slot] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._proposing: set[Key] = set()
        self._runner: asyncio.Task[None] | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._forget_life: Callable[[], None] = lambda: None
        self._caught_up = asyncio.Event()
        self._is_over = False

    def __repr__(self) -> str:
        return f"<serving as {self.life.broker}: leads {len(self.led)} of {len(self._slots)} partitions>"

    @property
    def led(self) -> dict[Key, Led]:
        """The partitions that this life leads, as the author was told."""
        return {
            key: slot.held for key, slot in self._slots.items() if isinstance(slot.held, Led) and not slot.held.over
        }

    @property
    def held(self) -> dict[Key, Held]:
        """All partitions of which the broker has a replica, as the author was told. When :meth:`caught_up` returns, and
        before anything else is awaited, what the broker has of others may be deleted."""
        return {key: slot.held for key, slot in self._slots.items() if slot.held is not None}

    async def lost(self) -> MetadError:
        """Wait until the life is lost; why. Everything was taken from :class:`Led` by then."""
        return await self.life.lost()

    async def caught_up(self) -> None:
        """Wait until the partitions that the broker had at the start are known, and the author was told of them. Raises
        FencedError or ClosedError if the life or this is over: then nothing is held."""
        await self._caught_up.wait()
        while tasks := [slot.task for slot in self._slots.values() if slot.task is not None]:
            await asyncio.wait(tasks)
        self.life.check()
        if self._is_over:
            raise ClosedError(f"{self!r} is over")

    async def __aenter__(self) -> Self:
        self.life.check()
        self._forget_life = self.life.on_state(self._life_is)
        self._runner = asyncio.create_task(self._run(), name=f"assignments of {self.life.broker}")
        self._ticker = asyncio.create_task(self._tick(), name=f"in-sync replicas of {self.life.broker}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Serve nothing more. Owners are given back after ``on_release``; leaders by in-sync replicas hand over when
        the life ends."""
        self._is_over = True
        self._forget_life()
        tasks = [task for task in (self._runner, self._ticker, *self._tasks) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*map(self._stop, [*self._slots.values()]))

    # --- what is known ----------------------------------------------------------------------------------------

    def _life_is(self, state: LifeState) -> None:
        if state is LifeState.LOST:
            for slot in self._slots.values():
                if slot.held is not None:
                    slot.held.end()
                self._turn(slot)

    async def _run(self) -> None:
        """Follow the records. What is lost of the changes is read again."""
        while True:
            try:
                async with contextlib.aclosing(_batches(self._watch, self.life.broker)) as batches:
                    async for batch in batches:
                        if batch is None:
                            await self._read()
                            self._caught_up.set()
                            continue
                        for event in batch:
                            self._heard(event.key, event.record)
            except ClosedError:
                return
            except MetadError as error:
                log.warning("the assignments of broker %r: %s: %s", self.life.broker, error.name, error)
            await asyncio.sleep(_AGAIN_S)

    async def _read(self) -> None:
        """Read all partitions of the broker."""
        found: dict[Key, TableRecord[Partition]] = {}
        async for row in self.assignments.partitions.list_by("by_replica", self.life.broker):
            found[key_of(row.record)] = row
        for row in found.values():
            self._heard(row.record, row)
        for key, slot in [*self._slots.items()]:
            if key not in found and slot.row is not None:
                again = await self.assignments.partitions.get(*key)
                self._heard(slot.row.record, again)

    def _heard(self, key: object, row: TableRecord[Partition] | None) -> None:
        place = (key.tenant, key.resource, key.kind, key.partition)  # type: ignore[attr-defined]
        if self._kinds and place[2] not in self._kinds:
            return
        slot = self._slots.get(place)
        if row is not None and slot is not None and slot.row is not None and row.mod_revision <= slot.row.mod_revision:
            return
        if row is not None and self.life.broker not in row.record.replicas:
            row = None
        if slot is None:
            if row is None:
                return
            slot = self._slots[place] = _Slot()
        slot.row = row
        held = slot.held
        if held is not None and (row is None or not _goes_on(held, row.record)):
            held.end()
        elif held is not None and row is not None:
            held.record = row.record
            if isinstance(held, Led) and held.in_sync is not None:
                held.in_sync.learned(row.record)
                held._advanced()
        self._turn(slot)

    # --- what the author is told ------------------------------------------------------------------------------

    def _turn(self, slot: _Slot) -> None:
        """Have the author told, after what is told now."""
        if slot.task is None:
            slot.task = task = asyncio.create_task(self._tell(slot))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _tell(self, slot: _Slot) -> None:
        """Bring the author to the newest record."""
        try:
            while await self._step(slot):
                pass
        finally:
            slot.task = None
            if slot.row is None and slot.held is None:
                for key in [key for key, one in self._slots.items() if one is slot]:
                    del self._slots[key]

    async def _step(self, slot: _Slot) -> bool:
        """Tell the author one thing; False if there is nothing to tell."""
        row, held, me = slot.row, slot.held, self.life.owner
        other = row is None or (held is not None and held.record.resource_id != row.record.resource_id)
        if other or self.life.state is LifeState.LOST:
            if held is None:
                return False
            held.end()
            held.gone = other
            await self._called(self._author.on_release, held)
            slot.held = None
            return slot.row is not None and self.life.state is not LifeState.LOST
        assert row is not None
        record = row.record
        if record.state == DELETING:
            return await self._delete(slot, record)
        if record.state == RELEASING and record.leader == me:
            return await self._give_back(slot, record)
        if record.leader == me:
            if isinstance(held, Led) and not held.over:
                return False
            slot.held = led = Led(record, me, self)
            if not await self._called(self._author.on_lead, led):
                led.end()
            return True
        if (
            record.state == ELECTING
            and self._author.on_elect is not None
            and slot.said != ("report", record.leader_epoch)
        ):
            return await self._elect(slot, record)
        if self._author.on_follow is None:
            if isinstance(held, Led):
                held.end()
                if await self._called(self._author.on_release, held):
                    slot.held = Following(record, me, self)
                return True
            slot.held = held or Following(record, me, self)
            return False
        if isinstance(held, Following) and not held.over:
            return False
        slot.held = followed = Following(record, me, self)
        if not await self._called(self._author.on_follow, followed):
            followed.end()
        return True

    async def _give_back(self, slot: _Slot, record: Partition) -> bool:
        """An owner stops, and says so. A master by position takes nothing any more, and its author waits for the one
        that is to follow it: he is asked again until the record changes."""
        held, row = slot.held, slot.row
        if record.election == "position":
            if not isinstance(held, Led):  # it has taken nothing in this life, and metad goes on in a while
                return False
            held.end()
            held.record = record
            if await self._called(self._author.on_release, held) and slot.row is row:
                await asyncio.sleep(_AGAIN_S)
            return True
        if slot.said == ("release", record.leader_epoch):
            return False
        if isinstance(held, Led):
            held.end()
            if not await self._called(self._author.on_release, held):
                return True
            slot.held = Following(record, self.life.owner, self)
        if slot.row is not None and slot.row.record.leader_epoch == record.leader_epoch:
            await self._say(slot, record, self._release, ("release", record.leader_epoch))
        return True

    async def _delete(self, slot: _Slot, record: Partition) -> bool:
        held = slot.held or Following(record, self.life.owner, self)
        if slot.said == ("delete", record.partition_epoch):
            return False
        held.end()
        held.gone = True
        if not await self._called(self._author.on_release, held):
            return True
        slot.held = None
        await self._say(slot, record, self._release, ("delete", record.partition_epoch))
        return True

    async def _elect(self, slot: _Slot, record: Partition) -> bool:
        held = slot.held
        if held is not None:
            held.end()
        slot.held = followed = Following(record, self.life.owner, self)
        followed.over = True  # until the record says who leads, nothing is taken from anybody
        assert self._author.on_elect is not None
        try:
            last_epoch, length = await self._author.on_elect(followed)
        except Exception:  # noqa: BLE001 - the program's own
            log.exception("on_elect has failed for %r", followed)
            await asyncio.sleep(_AGAIN_S)
            return True

        async def report(of: Partition) -> None:
            me = self.life.owner
            await self.assignments.report(
                *key_of(of), me.broker, me.broker_epoch, of.leader_epoch, last_epoch, length, deadline_s=_ANSWER_S
            )

        await self._say(slot, record, report, ("report", record.leader_epoch))
        return True

    async def _release(self, record: Partition) -> None:
        me = self.life.owner
        await self.assignments.release(
            *key_of(record), me.broker, me.broker_epoch, record.leader_epoch, deadline_s=_ANSWER_S
        )

    async def _say(
        self, slot: _Slot, record: Partition, say: Callable[[Partition], Awaitable[None]], said: tuple[str, int]
    ) -> None:
        """Say something of a record until it is known to have come, or a newer record says that it does not matter."""
        try:
            await say(record)
        except MetadError as error:
            if not isinstance(error, FencedError) and (error.retryable or not error.outcome_known):
                await asyncio.sleep(_AGAIN_S)
                return
        slot.said = said

    async def _called(self, function: Callable[[Held], Awaitable[None]] | OnLead | OnFollow, held: Held) -> bool:
        """Call a function of the author; whether it succeeded. One that fails is logged, and called again with the
        newest record."""
        try:
            await function(held)  # type: ignore[arg-type]
        except Exception:  # noqa: BLE001 - the program's own
            log.exception("a function of the broker has failed for %r", held)
            await asyncio.sleep(_AGAIN_S)
            return False
        return True

    async def _stop(self, slot: _Slot) -> None:
        held, row = slot.held, slot.row
        if held is None:
            return
        led = isinstance(held, Led) and not held.over
        held.end()
        released = await self._called(self._author.on_release, held)
        slot.held = None
        if led and released and row is not None and self.life.state is not LifeState.LOST:
            with contextlib.suppress(MetadError):
                await self._release(row.record)

    # --- in-sync replicas -------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        """Propose who is in sync, where that has changed."""
        while True:
            await asyncio.sleep(TICK_S)
            self.propose()

    def propose(self) -> None:
        """Look now whether somebody is to be proposed, and not only at the next tick."""
        for key, led in self.led.items():
            replicas = led.in_sync
            if replicas is None or key in self._proposing or not led.serves:
                continue
            epoch = replicas.record.partition_epoch
            if (wanted := replicas.proposal(self.now_s())) is not None:
                self._proposing.add(key)
                task = asyncio.create_task(self._propose(key, led, replicas, epoch, wanted))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _propose(
        self, key: Key, led: Led, replicas: InSyncReplicas, partition_epoch: int, wanted: list[Owner]
    ) -> None:
        try:
            await self.assignments.in_sync(
                *key,
                led.me,
                leader_epoch=led.leader_epoch,
                partition_epoch=partition_epoch,
                isr=wanted,
                deadline_s=_ANSWER_S,
            )
            replicas.doubted()
        except MetadError as error:
            if error.outcome_known and not isinstance(error, ConflictError):
                replicas.refused(isinstance(error, IneligibleError))
                led._advanced()
            else:
                replicas.doubted()
        finally:
            self._proposing.discard(key)
        if replicas.in_doubt:
            with contextlib.suppress(MetadError):
                row = await self.assignments.partitions.get(*key, deadline_s=_ANSWER_S)
                if row is not None:
                    self._heard(row.record, row)


def _goes_on(held: Held, record: Partition) -> bool:
    """Whether what the author was told still holds by a newer record."""
    if record.resource_id != held.record.resource_id:
        return False
    if isinstance(held, Led):
        return (
            record.leader == held.me
            and record.leader_epoch == held.leader_epoch
            and record.state not in (RELEASING, DELETING)
        )
    return record.leader_epoch == held.leader_epoch and record.leader == held.record.leader and record.state != DELETING


async def _batches(watch: Callable[..., Watch[object]], broker: str):  # type: ignore[no-untyped-def]
    """The events of a broker's partitions; None where all are to be read, because what was before is not known."""
    opened = watch(Watched(PARTITIONS, broker=broker), coalesce=True)
    try:
        await opened.opened()
        yield None
        async for batch in opened:
            if batch.kind in ("gap", "snapshot"):
                if batch.kind == "gap" or batch.last:
                    yield None
            elif batch.kind == "changes":
                yield batch.events
    finally:
        await opened.close()
