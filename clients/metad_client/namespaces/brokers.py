"""``m.brokers``: the brokers of the cluster, and the life of this program's own one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from metad_wire import methods
from metad_wire.messages import Owner
from metad_wire.program.whole_file import write_whole
from metad_wire.tables import broker as b
from metad_wire.tables.broker import Broker

from ..broker_life import BrokerLife, Lease, LifeState
from ..dispatch.dispatcher import Dispatcher
from ..errors import FencedError, InvalidRequestError, MetadError
from ..requests.behind import Behind
from ..requests.listing import Listing
from ..requests.requests import Requests
from ..requests.wrong import argument
from . import Facade

_SECONDS_MAX = 3_600
_BEGUN, _ASKED = "begun", "asked"


class _Note(NamedTuple):
    """What a broker's file says of its lives, one line of three words; see :meth:`Brokers.register`.

    It is ``asked`` from before a registration is sent until its life may serve, which the file says first. So the life
    of a registration that is ``asked`` has never served, and the broker has all that it had: nothing. The next attempt
    is the same registration once more, of which metad counts each as clean as the first, whether that came or not, and
    whether it comes yet. An attempt that comes after the life has begun ends that, and begins one that never serves:
    the broker's record shows the registration, so the next one names that life.

    Another process that registers the name with another file has another registration and another ``epoch``: then
    neither is found, and the broker counts as unclean, as it should. A copy of the file in use elsewhere is no other
    file: delete it where a folder is restored from a copy."""

    epoch: int = 0
    """The last life that is known to have served with what the broker has; 0: none."""
    registration: int = 0
    """The last one that was asked for."""
    state: str = _BEGUN

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises InvalidRequestError, OSError."""
        try:
            epoch, registration, state = path.read_text().split()
            return cls(int(epoch), int(registration), state)
        except FileNotFoundError:
            return cls()
        except ValueError as error:
            raise InvalidRequestError(f"note: {path} is not what register() writes: {error}") from error

    def write(self, path: Path) -> None:
        """It is on the disk after that, or what was before. Raises OSError."""
        write_whole(path, f"{self.epoch} {self.registration} {self.state}\n".encode())


class Brokers(Facade):
    """Brokers by name. The leader of ``metadata-0`` answers. ``deadline_s`` counts from now, and None means the
    client's default."""

    def __init__(self, requests: Requests, dispatcher: Dispatcher, clock: Callable[[], float]) -> None:
        super().__init__(requests)
        self._dispatcher = dispatcher
        self._clock = clock
        self._life: BrokerLife | None = None
        self._registering = False
        self._behind = Behind(self, "metad-life")

    async def register(
        self,
        broker: str,
        *,
        lease_s: float = b.LEASE_MS_DEFAULT / 1000,
        address: str = "",
        region: str = "",
        rack: str = "",
        attributes: Mapping[str, str] | None = None,
        at_least_epoch: int = 0,
        wait_s: float = b.WAIT_MS_DEFAULT / 1000,
        probe_port: int = 0,
        loading_s: float = 0.0,
        clean_epoch: int = 0,
        sole: bool = False,
        note: Path | None = None,
        deadline_s: float | None = None,
    ) -> BrokerLife:
        """Begin a life of a broker, which ends every earlier one, wherever it writes. From now on all writes of this
        client are made in its name, and it sends its heartbeats by itself; a client has one life at a time.

        The call waits for up to ``wait_s`` until every group refuses the earlier lives; :attr:`BrokerLife.unfenced`
        names those that could not be told. ``lease_s``: how long the life may go unheard of. ``at_least_epoch``: for
        brokers that have chosen their own epochs before.

        ``probe_port``: a TCP port of this process, on the host from which it reaches metad, that accepts connections
        for as long as the process lives, such as the one for the broker's clients. If the process dies, metad finds
        that port closed, and ends the life without waiting for the lease.

        ``loading_s``: how long the broker may take to read its image before it serves. Until it calls
        :meth:`BrokerLife.serve`, others see it in state ``loading``, and it is not ended for silence before that time.

        ``clean_epoch``: the epoch of the life that closed in order, which a broker notes last of all when it closes,
        and erases when it starts; or of the life that this very process has lost. If it is the life that was
        registered last, the broker counts as having all that it had. ``note`` instead, where all is on the disk before
        it counts: a file beside that, which this call keeps for one process at a time, waiting for the disk. Then the
        broker is clean after any end, also one in the middle of this call.
        ``sole``: this process holds a lock that each process of the broker holds while it runs, such as that of its
        directory, so the one before has ended. What only that may do is given to another at once.
        If this is cancelled, a life that has begun is ended: at once, or by the cluster once its lease is over. Raises
        InvalidRequestError, ConflictError, and OSError of the note.
        """
        attributes = {} if attributes is None else attributes
        argument("attributes", attributes, dict[str, str])
        argument("probe_port", probe_port, b.Port)
        body = b.BrokerRegister(
            broker,
            _ms("lease_s", lease_s),
            address,
            region,
            rack,
            dict(attributes),
            at_least_epoch,
            _ms("wait_s", wait_s),
            probe_port,
            _ms("loading_s", loading_s),
            clean_epoch,
            sole,
        )
        return await self._alone(body, note, deadline_s)

    async def _alone(self, body: b.BrokerRegister, note: Path | None, deadline_s: float | None) -> BrokerLife:
        if self._life is not None and self._life.state is not LifeState.LOST:
            raise InvalidRequestError(f"this client lives as broker {self._life.broker!r} already: end that life first")
        if self._registering:
            raise InvalidRequestError("this client registers as a broker already, and has one life at a time")
        if note is not None and (not isinstance(note, Path) or body.clean_epoch):
            raise InvalidRequestError(f"note: expected a Path, and no clean_epoch beside it, got {note!r:.100}")
        body = msgspec.structs.replace(body, registration=self._dispatcher.rng.getrandbits(63))
        self._registering = True
        try:
            if note is not None:
                body = await self._noted(body, note, deadline_s)
            life = await self._begun(body, deadline_s)
            if note is not None:
                try:
                    _Note(life.epoch, body.registration).write(note)
                except OSError:
                    self._behind.go_on(life.end())
                    raise
        finally:
            self._registering = False
        self._life = life
        self._dispatcher.live(life)
        return life

    async def _noted(self, body: b.BrokerRegister, path: Path, deadline_s: float | None) -> b.BrokerRegister:
        """The registration as it is to be sent, once the note says that it is asked for."""
        note = _Note.read(path)
        epoch, registration = note.epoch, body.registration
        known = await self.get(body.broker, deadline_s=deadline_s)
        if known is not None and 0 < note.registration == known.registration:
            epoch = known.broker_epoch
        if note.state == _ASKED:
            registration = note.registration
        _Note(epoch, registration, _ASKED).write(path)
        return msgspec.structs.replace(body, clean_epoch=epoch, registration=registration)

    async def _begun(self, body: b.BrokerRegister, deadline_s: float | None) -> BrokerLife:
        sent_s = self._clock()
        registered = await self._requests.one(methods.BROKER_REGISTER, body, deadline_s)
        # What the answer took does not count: the first heartbeat, below, says from when on the life may serve.
        lease = Lease(registered.lease_ms / 1000, max(sent_s, self._clock() - registered.lease_ms / 4000))
        owner = Owner(body.broker, registered.broker_epoch)
        life = BrokerLife(self._requests, owner, lease, registered.unfenced, self._clock)
        beginning = self._behind.go_on(self._begin(life))
        try:
            await asyncio.shield(beginning)
        except asyncio.CancelledError:
            life.stop(FencedError("nobody waits for the life any more"))
            raise
        return life

    async def _begin(self, life: BrokerLife) -> None:
        try:
            await life.begin()
            self._dispatcher.check()  # it may have been closed behind the answer
        except MetadError:
            self._behind.go_on(life.end())
            raise

    @property
    def life(self) -> BrokerLife | None:
        """The life that this client has registered last, if any."""
        return self._life

    async def get(self, broker: str, *, deadline_s: float | None = None) -> Broker | None:
        """A broker as it is now; None if it has never registered."""
        return (await self.get_many([broker], deadline_s=deadline_s))[0]

    async def get_many(self, brokers: Sequence[str], *, deadline_s: float | None = None) -> list[Broker | None]:
        """Up to 1,000 brokers, by position of their names."""
        if not isinstance(brokers, Sequence) or isinstance(brokers, str):
            raise InvalidRequestError(f"brokers: expected a sequence of str, got {type(brokers).__name__}")
        return (await self._requests.one(methods.BROKER_GET, b.BrokerGet([*brokers]), deadline_s)).brokers

    def list(
        self, prefix: str = "", *, state: str = "", page_size: int = 1000, deadline_s: float | None = None
    ) -> AsyncIterator[Broker]:
        """Brokers in order of their names, a page at a time: those that start with ``prefix``, in this ``state``
        (``registered``, ``active``, ``draining``, ``fenced``, ``gone``; empty: any)."""
        return _LIST.of_group(self._requests, page_size, deadline_s, prefix=prefix, state=state)

    async def fence(
        self,
        broker: str,
        epoch: int = 0,
        *,
        wait_s: float = b.WAIT_MS_DEFAULT / 1000,
        deadline_s: float | None = None,
    ) -> b.BrokerEnded:
        """For administrators: end a life of a broker; epoch 0: its last one. The answer names the groups that do not
        know yet. Raises NotFoundError, and FencedError if a later life has begun."""
        return await self._requests.one(
            methods.BROKER_FENCE, b.BrokerFence(broker, epoch, _ms("wait_s", wait_s)), deadline_s
        )


_LIST: Listing[Broker] = Listing(methods.BROKER_LIST)


def _ms(name: str, seconds: float) -> int:
    """Seconds as milliseconds. Raises InvalidRequestError."""
    argument(name, seconds, float)
    if not 0 <= seconds <= _SECONDS_MAX:
        raise InvalidRequestError(f"{name}: expected 0 to {_SECONDS_MAX}, got {seconds!r}")
    return round(seconds * 1000)
