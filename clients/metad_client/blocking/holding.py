"""What a blocking program holds: a lease with its locks, membership of a consumer group, sessions, routes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Generic, Self, TypeVar

from metad_wire.messages import KvCompare, Message, Owner, SessionKey, TableRecord
from metad_wire.tables.assignment import Partition

from .. import routes
from ..assignment import route
from ..assignment.choosing import Choice, To, wanted
from ..errors import ClosedError, MetadError
from ..holding import lease, lock, membership, owned
from ..holding.belief import LeaseState
from ..results import Takeover
from .portal import Portal
from .verbs import Call, Twin, forgetting

Record = TypeVar("Record", bound=Message)
Connection = TypeVar("Connection")
Answer = TypeVar("Answer")


class Lock(Twin):
    """A key that is the program's until it is released, or its lease is over. See :class:`metad_client.Lock`."""

    proclaim = Call(lock.Lock.proclaim)
    release = Call(lock.Lock.release)

    def __init__(self, portal: Portal, target: lock.Lock) -> None:
        super().__init__(portal, target)
        self._lock = target
        self.namespace = target.namespace
        self.key = target.key
        self.token = target.token

    @property
    def is_held(self) -> bool:
        """Whether the lock may be relied on now. Look before each use."""
        return self._lock.is_held

    @property
    def guard(self) -> KvCompare:
        """Holds in a transaction of the namespace as long as the lock is the program's."""
        return self._lock.guard

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(MetadError):
            self.release()


class _Kept(Twin):
    """What is kept alive for the program until it is closed."""

    def __init__(self, portal: Portal, target: lease.HeldLease | membership.Membership) -> None:
        super().__init__(portal, target)
        self._kept = target

    @property
    def state(self) -> LeaseState:
        """What may be believed now: look before each use."""
        return self._kept.state

    def __enter__(self) -> Self:
        self._portal.run(self._kept.opened())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(ClosedError):
            self._portal.run(self._kept.close())


class HeldLease(_Kept):
    """A lease that is kept alive by itself until it is closed: ``with m.hold("jobs") as lease``. See
    :class:`metad_client.HeldLease`."""

    lost = Call(lease.HeldLease.lost)
    close = Call(lease.HeldLease.close)
    lock = Call(lease.HeldLease.lock, Lock)
    on_state = Call(lease.HeldLease.on_state, forgetting)

    def __init__(self, portal: Portal, target: lease.HeldLease) -> None:
        super().__init__(portal, target)
        self._lease = target
        self.namespace = target.namespace

    @property
    def name(self) -> str:
        """Of the lease: what ``kv.put(..., lease=)`` takes. Empty until it is granted."""
        return self._lease.name

    def opened(self) -> Self:
        """Have the lease granted, and begin to keep it alive. If this is cancelled, a lease that was granted by then is
        given back. Raises a MetadError, ClosedError if it was closed."""
        self._portal.run(self._lease.opened())
        return self


class Owned(Twin):
    """A session that a takeover of this program has connected, and the news that it is lost. See
    :class:`metad_client.Owned`."""

    lost = Call(owned.Owned.lost)
    disconnect = Call(owned.Owned.disconnect)
    on_lost = Call(owned.Owned.on_lost, forgetting)

    def __init__(self, portal: Portal, target: owned.Owned) -> None:
        super().__init__(portal, target)
        self._owned = target
        self.owner: Owner = target.owner
        self.key: SessionKey = target.key

    @property
    def taken(self) -> Takeover:
        """The takeover, with what it has restored."""
        return self._owned.taken

    @property
    def attachment(self) -> int:
        """The revision of the takeover: what the broker says of this connection later."""
        return self._owned.attachment

    @property
    def error(self) -> MetadError | None:
        """Why the session is this connection's no longer; None while it is."""
        return self._owned.error

    def drop_restored(self) -> None:
        """Forget what the takeover has restored, for as long as this object lives."""
        self._owned.drop_restored()


class OwnedResult(list[Owned | None]):
    """Of a call on many: by position the session, None if the item failed. See :class:`metad_client.OwnedResult`."""

    def __init__(self, portal: Portal, result: owned.OwnedResult) -> None:
        super().__init__(None if one is None else Owned(portal, one) for one in result)
        self._result = result
        self.errors = result.errors

    @property
    def ok(self) -> bool:
        """True iff no item failed."""
        return self._result.ok

    def raise_for_error(self) -> None:
        """Raise the error of the first item that failed, with a note of how many did; return if none did."""
        self._result.raise_for_error()


class Generation(Twin):
    """One generation of a consumer group, as one member has it. See :class:`metad_client.Generation`."""

    ended = Call(membership.Generation.ended)
    commit = Call(membership.Generation.commit)

    def __init__(self, portal: Portal, target: membership.Generation) -> None:
        super().__init__(portal, target)
        self._generation = target
        self.number = target.number
        self.protocol = target.protocol
        self.member = target.member
        self.is_leader = target.is_leader
        self.assignment = target.assignment

    @property
    def is_current(self) -> bool:
        """Whether what is assigned may be worked on now. Look before each piece of work. If it is not, although the
        group does not rebalance, the servers may be away: :meth:`Membership.next` gives the same generation again once
        they say that the member is still one."""
        return self._generation.is_current


class Membership(_Kept):
    """A member of a consumer group that lives by itself until it is closed: ``with m.consume("acme", "billing",
    assign=share_out) as member``. See :class:`metad_client.Membership`."""

    rebalance = Call(membership.Membership.rebalance)
    close = Call(membership.Membership.close)
    on_state = Call(membership.Membership.on_state, forgetting)

    def __init__(self, portal: Portal, target: membership.Membership) -> None:
        super().__init__(portal, target)
        self._membership = target
        self.tenant = target.tenant
        self.group = target.group

    @property
    def member(self) -> str:
        """The id of the member; empty until it has joined. A member that was lost has another one next."""
        return self._membership.member

    def opened(self) -> Self:
        """Join, and begin to say that the member lives. If this is cancelled, a member that was made by then leaves.
        Raises a MetadError, ClosedError if it was closed."""
        self._portal.run(self._membership.opened())
        return self

    def next(self) -> Generation | None:
        """Let go of the generation that there is, and wait for the next one, however long no server answers; None once
        the membership is closed. Raises a MetadError where the group refuses the member, InvalidRequestError where
        ``assign`` names others than its members, and whatever ``assign`` raises."""
        generation = self._portal.run(self._membership.next())
        return None if generation is None else Generation(self._portal, generation)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Generation:
        generation = self.next()
        if generation is None:
            raise StopIteration
        return generation


class Route(Twin, Generic[Record]):
    """The records of one resource. See :class:`metad_client.Route`. Any thread may use it."""

    refresh = Call(routes.Route[Record].refresh)
    check = Call(routes.Route[Record].check)

    def __init__(self, portal: Portal, target: routes.Route[Record]) -> None:
        super().__init__(portal, target)
        self._route = target
        self.key = target.key
        self.get = target.get

    @property
    def records(self) -> Mapping[routes.Rest, TableRecord[Record]]:
        """The records by the rest of their key. A refresh makes another mapping, so this one stays as it is."""
        return self._route.records

    def __getitem__(self, rest: str | int | routes.Rest) -> TableRecord[Record]:
        """As :meth:`get`. Raises NotFoundError."""
        return self._route[rest]


class PartitionRoute(Route[Partition]):
    """The partitions of one resource, for who sends to its brokers or reads from them. See
    :class:`metad_client.PartitionRoute`."""

    def __init__(self, portal: Portal, target: route.PartitionRoute) -> None:
        super().__init__(portal, target)
        self._chooses = target
        self.choose = target.choose

    def ask(
        self,
        connect: Callable[[Choice], Connection],
        send: Callable[[Connection, Choice], Answer],
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        order: Sequence[int] | None = None,
        to: To = "write",
        again: bool | None = None,
        deadline_s: float | None = None,
    ) -> Answer:
        """As :meth:`metad_client.PartitionRoute.ask`; the functions run in this thread, and nobody ends them: they take
        ``choice.wait_s`` at most by themselves."""
        asking = route.Asking(self._chooses, wanted(to, key, partition, order), again, deadline_s)
        if asking.is_late:
            self._portal.call(asking.renew)
        while True:
            choice = asking.choose()
            if choice is None:
                self._portal.run(asking.renewed())
                continue
            sent = False
            try:
                connection = connect(choice)
                choice, sent = asking.sends(choice), True
                return send(connection, choice)
            except Exception as error:  # noqa: BLE001 - it is judged
                self._portal.call(asking.failed, choice, error, sent)
