"""Sessions that the program owns: each takeover, and the news that its connection is over, in one object.

The news may come before the answer. So a session is listed here before its takeover goes out, and what the watch says
of it is compared with the answer by revision: only what is newer than the takeover ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import msgspec

from metad_wire.faults import UNFIT
from metad_wire.messages import Owner, SessionKey, SessionOwner, SessionProperties, SessionTakeoverItem
from metad_wire.tables.session import SESSION

from ..dispatch.reports import log
from ..errors import (
    ClosedError,
    ConflictError,
    DeadlineExceededError,
    FencedError,
    InvalidRequestError,
    MetadError,
    NotFoundError,
    NotOwnerError,
    another,
)
from ..namespaces.sessions import Sessions
from ..requests.behind import Behind
from ..results import Takeover, TakeoverResult
from ..watch.events import WatchBatch
from ..watch.watch import Watch

_AGAIN_S: Final = 1.0
"""How long to wait before sessions that could not be read are read again."""


class Owned:
    """A session that a takeover of this program has connected. Made by :meth:`Client.owned`::

        owned = await m.owned(life.broker, life.epoch, "acme", "device-1", restore=True)
        owned.on_lost(lambda why: connection.close())
        ...
        await owned.disconnect()

    It is lost once somebody else has connected the client, here or elsewhere, has disconnected it, or has ended its
    session. Then :attr:`error` says why: NotOwnerError (another broker has it), FencedError (another life of this
    broker), ConflictError (another takeover or a disconnect by this life), NotFoundError (the session has ended),
    or the error that has ended the client's watch.
    """

    def __init__(self, following: Following, owner: Owner, key: SessionKey) -> None:
        self._following = following
        self.owner: Final = owner
        """Name and epoch of the broker."""
        self.key: Final = key
        self._taken = Takeover(None, False)
        self._error: MetadError | None = None
        self._news: tuple[int, SessionOwner | None] = (0, None)  # the newest, while the takeover is not answered
        self._doubted = False  # news may have been missed meanwhile
        self._leaving = False  # it is the program that ends it
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listeners: list[Callable[[MetadError], None]] = []

    def __repr__(self) -> str:
        return f"<Owned {self.key.tenant}/{self.key.client_id} {self.attachment} {'over' if self.error else 'held'}>"

    @property
    def taken(self) -> Takeover:
        """The takeover, with what it has restored."""
        return self._taken

    @property
    def attachment(self) -> int:
        """The revision of the takeover: what the broker says of this connection later."""
        return self._taken.attachment

    @property
    def error(self) -> MetadError | None:
        """Why the session is this connection's no longer; None while it is."""
        return self._error

    def on_lost(self, listener: Callable[[MetadError], None]) -> Callable[[], None]:
        """Call ``listener`` once with :attr:`error`, in the client's own thread: at once if it is lost already, and not
        if it was :meth:`disconnect` that ended it. Returns what ends that."""
        if self._error is not None:
            if not self._leaving:
                listener(self._error)
        else:
            self._listeners.append(listener)

        def forget() -> None:
            with contextlib.suppress(ValueError):
                self._listeners.remove(listener)

        return forget

    async def lost(self) -> MetadError:
        """Wait until it is lost, or disconnected; why."""
        await asyncio.shield(self._over)
        assert self._error is not None
        return self._error

    async def disconnect(
        self,
        *,
        expiry_interval_s: int | None = None,
        will_discard: bool = False,
        deadline_s: float | None = None,
    ) -> bool:
        """The client has gone. Does nothing, and returns False, if the session is this connection's no longer."""
        if self._error is not None:
            return False
        self._leaving = True
        try:
            await self._following.sessions.disconnect(
                self.owner.broker,
                self.owner.broker_epoch,
                self.key.tenant,
                self.key.client_id,
                expiry_interval_s=expiry_interval_s,
                will_discard=will_discard,
                attachment=self.attachment,
                deadline_s=deadline_s,
            )
        except (ConflictError, NotOwnerError, NotFoundError) as error:
            self._end(error)
            return False
        self._end(ConflictError("this program has disconnected the client"))
        return True

    def drop_restored(self) -> None:
        """Forget what the takeover has restored, for as long as this object lives."""
        self._taken = msgspec.structs.replace(self._taken, properties=None, subscriptions=(), inflight=())

    def _heard(self, version: int, record: SessionOwner | None) -> None:
        """The owner row was written by this revision."""
        if self.attachment == 0:
            self._news = max(self._news, (version, record), key=lambda news: news[0])
        elif version > self.attachment:
            self._end(self._why(record))

    def _answered(self, taken: Takeover) -> None:
        self._taken = taken
        self._heard(*self._news)
        self._news = (0, None)

    def _why(self, record: SessionOwner | None) -> MetadError:
        whom = f"client {self.key.client_id!r} of tenant {self.key.tenant!r}"
        if record is None:
            return NotFoundError(f"the session of {whom} has ended")
        if record.broker != self.owner.broker:
            return NotOwnerError(f"{whom} has connected to broker {record.broker!r}")
        if record.broker_epoch != self.owner.broker_epoch:
            later = record.broker_epoch
            return FencedError(f"{whom} has connected to life {later} of this broker", current=later)
        if not record.connected:
            return ConflictError(f"{whom} was disconnected")
        return ConflictError(f"{whom} has connected again to this life of the broker")

    def _end(self, error: MetadError) -> None:
        if self._error is not None:
            return
        self._error = error
        self._following.forget(self)
        if not self._over.done():
            self._over.set_result(None)
        listeners, self._listeners = self._listeners, []
        for listener in () if self._leaving else listeners:
            try:
                listener(error)
            except Exception:  # noqa: BLE001 - the program's own
                log.exception("a listener of an owned session has failed")


class OwnedResult(list[Owned | None]):
    """Of a call on many: by position the session, None if the item failed."""

    def __init__(self, owned: Sequence[Owned | MetadError]) -> None:
        super().__init__(None if isinstance(one, MetadError) else one for one in owned)
        self.errors = {at: one for at, one in enumerate(owned) if isinstance(one, MetadError)}
        """The items that failed: position in the caller's sequence -> error. Empty if none did."""

    @property
    def ok(self) -> bool:
        """True iff no item failed."""
        return not self.errors

    def raise_for_error(self) -> None:
        """Raise the error of the first item that failed, with a note of how many did; return if none did."""
        for position, error in self.errors.items():
            error.add_note(f"item {position}; {len(self.errors)} items failed")
            raise error


class Following:
    """The watch of one broker's sessions, and those that the program owns or is about to: as many as it has."""

    def __init__(self, sessions: Sessions, watch: Watch, behind: Behind) -> None:
        self.sessions = sessions
        self.watch = watch
        self.ended = False
        self._behind = behind
        self._held: dict[SessionKey, list[Owned]] = {}
        self._unseen: dict[str, set[SessionKey]] = {}  # per group, what the snapshot after a gap has not shown yet

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def expect(self, owned: Sequence[Owned]) -> None:
        """Their takeovers go out next."""
        for one in owned:
            self._held.setdefault(one.key, []).append(one)

    def forget(self, owned: Owned) -> None:
        """No news of it is wanted."""
        left = [one for one in self._held.get(owned.key, ()) if one is not owned]
        if left:
            self._held[owned.key] = left
        else:
            self._held.pop(owned.key, None)

    def answered(self, owned: Owned, taken: Takeover) -> None:
        """Its takeover was done. The older one of two connections of a client is over."""
        owned._answered(taken)
        connected = [one for one in self._held.get(owned.key, ()) if one.attachment]
        connected.sort(key=lambda one: one.attachment)  # those of one request stay in their order
        for one in connected[:-1]:
            one._end(one._why(SessionOwner(True, *_fields(one.owner), 0)))
        if owned._doubted and owned.error is None:
            self._behind.go_on(self._look([owned]))

    async def run(self) -> None:
        """Follow the watch until it ends; then all that is left is lost."""
        error: MetadError = ClosedError("the client is closed")
        try:
            async for batch in self.watch:
                self._take(batch)
        except MetadError as why:
            error = why
        finally:
            self.ended = True
            for one in [one for held in self._held.values() for one in held]:
                one._end(another(error))

    def _take(self, batch: WatchBatch) -> None:
        if batch.kind == "changes":
            for event in batch.events:
                for one in list(self._held.get(event.key, ())):
                    one._heard(event.version, event.record)
        elif batch.kind == "snapshot":
            self._compare(batch)

    def _compare(self, batch: WatchBatch) -> None:
        """After a gap: what the records do not show as the program's own may be lost. They say no revisions."""
        if batch.first:
            slots = batch.slots
            self._unseen[batch.group] = {key for key in self._held if _slot_of(key) in slots}
        unseen = self._unseen.setdefault(batch.group, set())
        for event in batch.events:
            held = self._held.get(event.key, ())
            if all(one.attachment and _is_of(event.record, one.owner) for one in held):
                unseen.discard(event.key)
        if batch.last:
            doubted = [one for key in self._unseen.pop(batch.group) for one in self._held.get(key, ())]
            for one in doubted:
                one._doubted = True
            self._behind.go_on(self._look([one for one in doubted if one.attachment]))

    async def _look(self, doubted: Sequence[Owned]) -> None:
        """Read sessions that may be lost, until it is known."""
        while doubted := [one for one in doubted if one.error is None]:
            try:
                found = await self.sessions.get_many([one.key for one in doubted])
            except ClosedError:
                return
            except MetadError:
                await asyncio.sleep(_AGAIN_S)
                continue
            again: list[Owned] = []
            for at, (one, session) in enumerate(zip(doubted, found, strict=True)):
                if at in found.errors:
                    again.append(one)
                elif session is None:
                    one._end(one._why(None))
                elif not _is_of(session, one.owner):
                    owner = SessionOwner(session.connected, session.broker, session.broker_epoch, 0)
                    one._end(one._why(owner))
            doubted = again
            if again:
                await asyncio.sleep(_AGAIN_S)


class Ownership:
    """The sessions that one client owns. It opens a watch of a broker's sessions with the first of them.

    A takeover that nobody waits for any more is given back: the session stays, and no client is connected.
    """

    def __init__(self, sessions: Sessions, open_watch: Callable[[str], Watch], deadline_s: float) -> None:
        self._sessions = sessions
        self._open_watch = open_watch
        self._deadline_s = deadline_s
        self._following: dict[str, Following] = {}
        self._behind = Behind(self, "metad-owned")

    def __len__(self) -> int:
        return sum(map(len, self._following.values()))

    async def one(
        self,
        broker: str,
        epoch: int,
        item: SessionTakeoverItem,
        *,
        restore: bool,
        restore_parts: bool,
        deadline_s: float | None,
    ) -> Owned:
        """See :meth:`Client.owned`."""
        properties: SessionProperties | None = item.properties

        async def taken() -> list[Takeover | MetadError]:
            return [
                await self._sessions.takeover(
                    broker,
                    epoch,
                    item.tenant,
                    item.client_id,
                    clean_start=item.clean_start,
                    properties=properties,
                    restore=restore,
                    restore_parts=restore_parts,
                    deadline_s=deadline_s,
                )
            ]

        (owned,) = await self._own(broker, epoch, [item], taken, deadline_s)
        if isinstance(owned, MetadError):
            raise owned
        return owned

    async def many(
        self,
        broker: str,
        epoch: int,
        items: Sequence[SessionTakeoverItem],
        *,
        restore: bool,
        restore_parts: bool,
        deadline_s: float | None,
    ) -> OwnedResult:
        """See :meth:`Client.owned_many`."""
        wrong = [item for item in items if not isinstance(item, SessionTakeoverItem)]
        if wrong:
            raise InvalidRequestError(f"items: expected SessionTakeoverItem, got {type(wrong[0]).__name__}")

        async def taken() -> list[Takeover | MetadError]:
            result = await self._sessions.takeover_many(
                broker, epoch, items, restore=restore, restore_parts=restore_parts, deadline_s=deadline_s
            )
            return _answers(result, len(items))

        return OwnedResult(await self._own(broker, epoch, items, taken, deadline_s))

    async def _own(
        self,
        broker: str,
        epoch: int,
        items: Sequence[SessionTakeoverItem],
        takeover: Callable[[], Coroutine[Any, Any, list[Takeover | MetadError]]],
        deadline_s: float | None,
    ) -> list[Owned | MetadError]:
        following = await self._followed(broker, deadline_s)
        owner = Owner(broker, epoch)
        owned = [Owned(following, owner, _key_of(item)) for item in items]
        taking = self._behind.go_on(_take(following, owned, takeover))
        try:
            answer = await asyncio.shield(taking)
        except asyncio.CancelledError:
            self._behind.go_on(_give_back(taking))
            raise
        if isinstance(answer, MetadError):
            raise answer
        return answer

    async def _followed(self, broker: str, deadline_s: float | None) -> Following:
        """Who is told what happens to this broker's sessions from now on."""
        if not isinstance(broker, str) or not broker:
            raise InvalidRequestError(f"broker: expected a name, got {broker!r}")
        following = self._following.get(broker)
        if following is None or following.ended:
            following = self._following[broker] = Following(self._sessions, self._open_watch(broker), self._behind)
            self._behind.go_on(following.run())
        try:
            async with asyncio.timeout(self._deadline_s if deadline_s is None else deadline_s):
                await following.watch.opened()
        except TimeoutError:
            raise DeadlineExceededError(
                "the watch that would tell of the loss of the session has not begun in time; nothing was done",
                outcome_known=True,
            ) from None
        return following


async def _take(
    following: Following,
    owned: list[Owned],
    takeover: Callable[[], Coroutine[Any, Any, list[Takeover | MetadError]]],
) -> list[Owned | MetadError] | MetadError:
    """Those that are lost by the time of the answer are errors."""
    following.expect(owned)
    try:
        answers = await takeover()
    except BaseException as error:
        for one in owned:
            following.forget(one)
        if isinstance(error, MetadError):
            return error
        raise
    for one, answer in zip(owned, answers, strict=True):
        if isinstance(answer, MetadError):
            following.forget(one)
        else:
            following.answered(one, answer)
    return [
        answer if isinstance(answer, MetadError) else one if one.error is None else one.error
        for one, answer in zip(owned, answers, strict=True)
    ]


async def _give_back(taking: asyncio.Task[list[Owned | MetadError] | MetadError]) -> None:
    answer = await taking
    if not isinstance(answer, MetadError):
        held = [one for one in answer if isinstance(one, Owned)]
        await asyncio.gather(*(one.disconnect(will_discard=True) for one in held), return_exceptions=True)


def _answers(result: TakeoverResult, count: int) -> list[Takeover | MetadError]:
    attachments, errors = result.attachments, result.errors
    return [
        errors[at]
        if at in errors
        else Takeover(
            result.previous(at),
            result.session_present(at),
            result.properties(at),
            result.subscriptions(at),
            result.inflight(at),
            attachments[at],
        )
        for at in range(count)
    ]


def _fields(owner: Owner) -> tuple[str, int]:
    return owner.broker, owner.broker_epoch


def _is_of(found: Any, owner: Owner) -> bool:
    """Whether a session, or its owner row, is connected to this life of a broker."""
    return found is not None and found.connected and (found.broker, found.broker_epoch) == _fields(owner)


def _key_of(item: SessionTakeoverItem) -> SessionKey:
    """Of an item that is wrong by itself: of no session."""
    fits = isinstance(item.tenant, str) and isinstance(item.client_id, str)
    return SessionKey(item.tenant, item.client_id) if fits else SessionKey("", "")


def _slot_of(key: SessionKey) -> int | None:
    try:
        return SESSION.slot_of(SESSION.key_of([key.tenant, key.client_id]))
    except UNFIT:  # its takeover will be refused
        return None
