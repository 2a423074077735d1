"""Brokers: which there are, in which life, and when they were heard of. In ``metadata-0``, whose leader answers.

A *life* of a broker is its name and an epoch, which numbers its lives (``Owner``). A group may *fence* a broker from an
epoch on: after the entry that raises the fence, the group's log has no write in the name of a life with a lower epoch.

- A write is made in the name of ``Request.life``, and of ``broker`` and ``broker_epoch`` if its body has both. If
  either life is fenced, the whole request is refused with ``fenced``, and nothing is done. A retry of a write that was
  done before the fence still gets its answer.
- A client that relies on ``Request.life`` **must** name LIVES in ``Request.requires``: older servers ignore the life.
- A broker that never registers has no lease and no fence, and may write with any epoch. Not where roles are checked:
  there a write is ``fenced`` unless its life is one that a registration gave and that has not ended, and ``overloaded``
  while the server may have missed the registration. Administrators write in any name.
- Every group has a fence of each registered broker, until the broker is forgotten (``broker.register``). A client whose
  life was registered with no group in ``unfenced`` **should** name REGISTERED in ``Request.requires`` too.
- A fence is a lower bound only. A session that was taken over with a higher epoch than any registration gave is refused
  (``fenced``) to the registered lives of the broker, until another broker takes it over or it is deleted. So use only
  epochs that a registration gave to this broker.

**Lives.** ``broker.register`` begins a life with an epoch higher than any before, and lets all groups fence the lives
before. Once the answer names no group in ``unfenced``, no earlier life writes anything any more. If a group has no
leader, the answer comes after ``wait_ms`` and names the group; metad goes on trying, and the broker decides whether it
serves meanwhile. A retry begins another life.

A life ends, and is fenced, a little later than ``lease_ms`` after its last ``broker.heartbeat`` reached a node. A new
leader of ``metadata-0`` gives every life a whole lease, and five seconds at least; so does one that stood still, or
could not prove for half a second that it leads.

| state | meaning |
|---|---|
| ``loading`` | the life reads what it will serve from, and is silent for ``loading_ms`` if need be |
| ``registered`` | the life may serve, but some groups have not fenced the lives before yet |
| ``active`` | the life may serve |
| ``draining`` | the life may serve, and wants no new clients |
| ``fenced`` | the life is over: silent for too long, its process is dead, or an administrator has ended it |
| ``gone`` | the life has ended itself |

- A client **must** count its lease from when it *sent* the heartbeat that was acknowledged, by a clock that also counts
  while the machine is suspended, and read that clock whenever it serves. After the lease it **must not** serve from
  what it keeps in memory.
- That does not end the life: the service may be away, and then it fences nobody. The client **should** keep the
  connections of its own clients and send heartbeats to whatever node answers; one that is acknowledged says that the
  life serves on. The life is over once a heartbeat is answered ``fenced`` or ``not_found``.

**Evidence of a death.** A broker may register a ``probe_port``: a TCP port of its process, on the host that its
heartbeats come from. The leader dials it once for each connection that brings heartbeats, and sends nothing. If the
last of these connections ends, and for one second nothing comes from that host, it dials again. If the host refuses,
the life ends before its lease is over, provided that

- the port was reached before, in this life, at the host at the other end of that connection, and
- the client's end has closed or reset the connection (over TCP or TLS; QUIC does not say which end did), and
- this leader has known the life for a whole lease, and has neither turned a client away nor stood still meanwhile.

A client that registers a port **should** connect again at once when it loses a connection, and send a heartbeat.

**Quiet and clean.** A life that an administrator or the next registration has ended may serve until its lease is over,
by the clock of the leader: then it is *quiet*. One that ends otherwise is quiet at once, and so is the last one before
a registration with ``sole``. A registration is *clean* if ``clean_epoch`` is the life that was registered last: the
broker still has all that this life had.

**Whose name it is.** A certificate ``metad://broker/NAME`` binds its name. Its holder speaks for no other broker, and
once it has registered NAME, every request of another client that names it is ``permission_denied``, whatever the epoch;
only an administrator may fence it. A server judges by its own copy of ``metadata-0``, which may be a moment old. A name
that was registered otherwise is bound to nobody.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ..cluster import FenceItem
from ..messages import ItemError, Message, Page, Revision
from ..method import Body, By, For, Lane, Method, Reply
from ..table import Shown, Table
from ..text.fields import U32, U63, Batch
from .access import AuditEntry

LOADING, REGISTERED, ACTIVE, DRAINING = "loading", "registered", "active", "draining"
FENCED, GONE = "fenced", "gone"
STATES = (LOADING, REGISTERED, ACTIVE, DRAINING, FENCED, GONE)
"""In the order of a life."""
FORGOTTEN = "forgotten"
"""In the answer to the step that removes a broker: there is no record any more."""
LIVE = frozenset({LOADING, REGISTERED, ACTIVE, DRAINING})
"""The states of a life that is not over."""
SILENT = 0.6
"""Of its lease: a broker that was not heard of for so long is late by more than a heartbeat."""
LOADED = 80
"""A broker whose load is as much is loaded, where loads are percents."""
LEASE_MS_DEFAULT = 10_000
WAIT_MS_DEFAULT = 5_000

Port = Annotated[int, Meta(ge=0, le=65_535)]
Attributes = Annotated[dict[str, str], Meta(max_length=64)]


class BrokerKey(Message, frozen=True):
    """The name of a broker."""

    broker: str


class Broker(Message, frozen=True):
    """A broker, in its last life."""

    broker: str
    broker_epoch: U63
    state: str
    """One of the table above."""
    lease_ms: U32
    """How long it may be silent."""
    address: str = ""
    region: str = ""
    rack: str = ""
    attributes: Attributes = {}  # noqa: RUF012 - msgspec copies it
    registered_ms: U63 = 0
    """Unix time of the registration."""
    changed_ms: U63 = 0
    """Unix time of the last registration, drain or end."""
    least_epoch: U63 = 0
    """The least epoch that may write."""
    fenced_ms: U63 = 0
    """Unix time since when the lives before are over."""
    fenced: bool = False
    """Whether all groups have that fence."""
    load: U32 = 0
    """From its last heartbeat; 0 if this leader has heard none, and in what a watch shows."""
    probe_port: Port = 0
    registered_by: str = ""
    """Who registered this life: the URI of the certificate's or token's holder, or the client's host where nobody is
    checked."""
    freed: bool = False
    """The broker itself or an administrator has ended it: its name takes no room any more."""
    loading_ms: U32 = 0
    """How long it may be silent while it is ``loading``."""
    load_class: U32 = 0
    """How many binary digits its load has, give or take a quarter; watches show it. Written within some ten seconds."""
    unclean_epoch: U63 = 0
    """The last life that did not begin clean; 0: none."""
    quiet_epoch: U63 = 0
    """The lives below it are quiet."""
    quiet_ms: U32 = 0
    """For how long others below ``least_epoch`` may serve, from when a leader learns it; 0: all are quiet."""
    told: bool = False
    """Whether all groups know the epochs above as they are now."""
    registration: U63 = 0
    loaded_ms: U32 = 0
    """For how long its load has been 80 or more, by this leader; as ``load``, not in what a watch shows."""
    silent_ms: U32 = 0
    """For how long it was not heard of, if that is over 60 % of its lease; the same."""


class BrokerRegister(Message, frozen=True):
    """Begins a life. ``invalid_request`` if a field breaks its bound: 1 to 256 bytes of name, 500 to 3,600,000 ms of
    lease, 3,600,000 ms of ``loading_ms``, 1 KiB of each text, 16 KiB of attributes, 2^62 for ``at_least_epoch``.
    ``conflict`` if other names take all of 16 MiB, or ``overloaded`` while some are being forgotten. ``quota_exceeded``
    if the holder's take more of it than it may have (see "Shared room"). A name takes the most of 1,024 bytes, its
    record, and 624 and 13 times its length; it counts to the holder of its last life (``registered_by``) until it is
    freed or forgotten.

    From 14 MiB on, brokers that have ended are forgotten with their fences: those that are freed at once, the
    others once they ended over a day ago, the earliest end first, but none that is not quiet, has sessions that look
    connected, or is named by partitions.
    """

    broker: str
    lease_ms: U32 = LEASE_MS_DEFAULT
    address: str = ""
    region: str = ""
    rack: str = ""
    attributes: Attributes = {}  # noqa: RUF012
    at_least_epoch: U63 = 0
    """The epoch is not lower."""
    wait_ms: U32 = WAIT_MS_DEFAULT
    probe_port: Port = 0
    """0: none. See *Evidence of a death*."""
    loading_ms: U32 = 0
    """The life begins as ``loading``, and does not end for silence before so long, nor before its lease; 0: it may
    serve at once. A new leader counts anew."""
    clean_epoch: U63 = 0
    """The life that last closed in order, as the broker noted then and erases when it starts; or that still runs."""
    sole: bool = False
    """The process holds the lock of the one before, which has ended. It counts with a ``registration``."""
    registration: U63 = 0
    """Drawn at random; a retry has the same, and is as clean as the attempt before. Of another principal it is none."""


class BrokerRegistered(Message, frozen=True):
    """A life has begun."""

    broker_epoch: U63
    lease_ms: U32
    unfenced: list[str] = []  # noqa: RUF012
    """Groups, by name, in which an earlier life may still write; ``metadata-0``: it is not noted yet that all groups
    are fenced."""


class BrokerBeat(Message, frozen=True):
    """A life is alive."""

    broker: str
    broker_epoch: U63
    load: U32 = 0
    """How loaded it is, in its own unit."""


class BrokerHeartbeat(Message, frozen=True):
    """Says that lives are alive, many at once. Errors by position: ``not_found``; ``fenced`` if the life is over,
    with the epoch of the broker's last life; ``conflict`` while that is being decided: send the next heartbeat."""

    beats: Batch[BrokerBeat]


class BrokerHeartbeatReply(Message, frozen=True):
    """By position: how long each life may serve from when the heartbeat was sent on; 0 if it was refused. And the state
    that its broker is in; empty if there is no such broker."""

    leases_ms: list[U32]
    """By position: for how long the life may serve, from when the heartbeat was sent."""
    states: list[str]
    """By position: the state that the broker is in."""
    errors: list[ItemError] = []  # noqa: RUF012


class BrokerDrain(Message, frozen=True):
    """The life wants no new clients. ``fenced`` if it is over."""

    broker: str
    broker_epoch: U63


class BrokerServe(Message, frozen=True):
    """The life is not ``loading`` any more, and its lease holds from now on; nothing changes if it was not. ``fenced``
    if it is over."""

    broker: str
    broker_epoch: U63


class BrokerDeregister(Message, frozen=True):
    """The life ends itself, and every group is fenced. ``fenced`` if it is over already."""

    broker: str
    broker_epoch: U63
    wait_ms: U32 = WAIT_MS_DEFAULT


class BrokerFence(Message, frozen=True):
    """For administrators: ends a life. It changes nothing if the life is over already."""

    broker: str
    broker_epoch: U63 = 0
    """Of the life; 0: the last one."""
    wait_ms: U32 = WAIT_MS_DEFAULT


class BrokerEnded(Message, frozen=True):
    """The broker as it is now."""

    broker: Broker
    unfenced: list[str] = []  # noqa: RUF012
    """Groups in which the life may still write, as in ``BrokerRegistered``."""


class BrokerGet(Message, frozen=True):
    """Read brokers by name."""

    brokers: Batch[str]


class BrokerGetReply(Message, frozen=True):
    """By position; nil where there is none."""

    brokers: list[Broker | None]


class BrokerList(Message, frozen=True):
    """Lists brokers in order of their names."""

    prefix: str = ""
    state: str = ""
    """Only those in this state; empty: all."""
    page: Page = Page()


class BrokerStep(Message, frozen=True):
    """Between a node and its metadata group: what happens to a broker."""

    step: str
    """What happens. A step of a life that is not its broker's last one, or is over, fails with ``fenced``.

    ``register`` begins a life. ``serve``, ``load``, ``drain``, ``deregister``, ``fence`` and ``expire`` change the life
    ``broker_epoch``; ``fence`` with 0: the last one. ``quiet`` notes that no life below ``broker_epoch`` serves any
    more. ``fenced`` notes that all groups have ``told``; ``conflict`` if it has changed since, or the map's
    version is not ``map_version``. ``forget`` deletes the record, because no group has the fence ``broker_epoch`` any
    more; ``conflict`` as with ``fenced``, and for a life that is not over. The broker in the answer is
    ``forgotten``."""
    broker: str
    """Its name."""
    broker_epoch: U63 = 0
    """Of the life that the step is about, or of the fence."""
    registration: BrokerRegister | None = None
    """With ``register``."""
    by: str = ""
    """With ``register``: who asked for it, as in ``registered_by`` of ``Broker``."""
    load_class: U32 = 0
    """With ``load``: as in ``Broker``."""
    told: FenceItem | None = None
    """With ``fenced``: what all groups have."""
    line: AuditEntry | None = None
    """With ``register``: what is noted if it ends a life that is alive. What it is about is added."""


class BrokerChange(Message, frozen=True):
    """Steps in their order. ``map_version``: that of the map whose groups were asked for ``fenced`` and ``forget``
    steps."""

    steps: Batch[BrokerStep]
    map_version: U63 = 0
    """Of the map by which all groups were asked, for ``fenced`` and ``forget``."""


class BrokerChanged(Message, frozen=True):
    """``brokers``: by position of the steps, as they are now; None where the step failed."""

    revisions: list[Revision]
    """Of the entry."""
    errors: list[ItemError]
    """By position of the steps."""
    brokers: list[Broker | None]
    """By position: as they are now; nil where the step failed."""


BROKER = Table(
    "broker",
    kind="metadata",
    rows={"record": 0x50},
    record=Broker,
    key=("broker",),
    routing=(),
    shows={"record": Shown(BrokerKey, Broker)},
)
"""It has no slots: ``metadata-0`` keeps all of it."""
BROKER_CHANGE = BROKER.writes(
    0x0510, "change", BrokerChange, BrokerChanged, Lane.CONTROL, by=By.METADATA, whose=For.NODES, routed=False
)


def _asked(
    code: int, verb: str, body: type[Body], reply: type[Reply], lane: Lane, whose: For = For.CLIENTS
) -> Method[Body, Reply]:
    return Method(code, f"broker.{verb}", body, reply, lane, mutates=False, by=By.METADATA, whose=whose)


BROKER_REGISTER = _asked(0x0500, "register", BrokerRegister, BrokerRegistered, Lane.CONTROL)
BROKER_HEARTBEAT = _asked(0x0501, "heartbeat", BrokerHeartbeat, BrokerHeartbeatReply, Lane.HEARTBEATS)
BROKER_DRAIN = _asked(0x0502, "drain", BrokerDrain, BrokerEnded, Lane.CONTROL)
BROKER_DEREGISTER = _asked(0x0503, "deregister", BrokerDeregister, BrokerEnded, Lane.CONTROL)
BROKER_FENCE = _asked(0x0504, "fence", BrokerFence, BrokerEnded, Lane.CONTROL, For.ADMINS)
BROKER_GET = _asked(0x0505, "get", BrokerGet, BrokerGetReply, Lane.CONTROL)
BROKER_SERVE = _asked(0x0507, "serve", BrokerServe, BrokerEnded, Lane.CONTROL)
BROKER_LIST = BROKER.lists(
    0x0506, "list", BrokerList, Broker, "Brokers in order of their names.", lane=Lane.CONTROL, by=By.METADATA
)
