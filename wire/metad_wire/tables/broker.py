"""Brokers: which there are, in which life, and whether they are heard of. In ``metadata-0``, whose leader answers.

A client asks the leader, which decides what is written and has it written with ``broker.change``.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ..messages import ItemError, Message, Page, Revision
from ..method import Body, By, For, Lane, Method, Reply
from ..table import Shown, Table
from ..text.fields import U32, U63, Batch

REGISTERED, ACTIVE, DRAINING, FENCED, GONE = "registered", "active", "draining", "fenced", "gone"
FORGOTTEN = "forgotten"
"""In the answer to the step that removes a broker: there is no record any more."""
LIVE = frozenset({REGISTERED, ACTIVE, DRAINING})
"""The states in which a life may serve. ``registered``: some group has not fenced the lives before yet."""
LEASE_MS_DEFAULT = 10_000
WAIT_MS_DEFAULT = 5_000

Port = Annotated[int, Meta(ge=0, le=65_535)]
Attributes = Annotated[dict[str, str], Meta(max_length=64)]


class BrokerKey(Message, frozen=True):
    """The name of a broker."""

    broker: str


class Broker(Message, frozen=True):
    """A broker, in its last life. ``least_epoch``: lives with a lower epoch are over since ``fenced_ms``, and
    ``fenced`` says whether all groups know. ``load``: what it said last of itself, to the node that answers; 0 in what
    a watch shows. ``probe_port``: as it was registered. ``registered_by``: the holder of the certificate or token that
    registered this life (a URI), or its host where nobody is checked. ``freed``: its owner or an administrator has
    ended it, so its name takes no room any more."""

    broker: str
    broker_epoch: U63
    state: str
    lease_ms: U32
    address: str = ""
    region: str = ""
    rack: str = ""
    attributes: Attributes = {}  # noqa: RUF012 - msgspec copies it
    registered_ms: U63 = 0
    changed_ms: U63 = 0
    least_epoch: U63 = 0
    fenced_ms: U63 = 0
    fenced: bool = False
    load: U32 = 0
    probe_port: Port = 0
    registered_by: str = ""
    freed: bool = False


class BrokerRegister(Message, frozen=True):
    """A broker begins a life, which ends every earlier one. Its epoch is at least ``at_least_epoch``. The answer waits
    for up to ``wait_ms`` until all groups have fenced the earlier lives. ``probe_port``: a port of the host that its
    heartbeats come from, which accepts TCP connections for as long as the broker's process lives; 0: there is none. If
    the connection ends and the host refuses that port, the life may be over before its lease is."""

    broker: str
    lease_ms: U32 = LEASE_MS_DEFAULT
    address: str = ""
    region: str = ""
    rack: str = ""
    attributes: Attributes = {}  # noqa: RUF012
    at_least_epoch: U63 = 0
    wait_ms: U32 = WAIT_MS_DEFAULT
    probe_port: Port = 0


class BrokerRegistered(Message, frozen=True):
    """``unfenced``: groups in which an earlier life may still write."""

    broker_epoch: U63
    lease_ms: U32
    unfenced: list[str] = []  # noqa: RUF012


class BrokerBeat(Message, frozen=True):
    """A life is alive."""

    broker: str
    broker_epoch: U63
    load: U32 = 0


class BrokerHeartbeat(Message, frozen=True):
    """Lives that are alive. Nothing is written."""

    beats: Batch[BrokerBeat]


class BrokerHeartbeatReply(Message, frozen=True):
    """By position: how long each life may serve from when the heartbeat was sent on; 0 if it was refused. And the state
    that its broker is in; empty if there is no such broker."""

    leases_ms: list[U32]
    states: list[str]
    errors: list[ItemError] = []  # noqa: RUF012


class BrokerDrain(Message, frozen=True):
    """The life goes on, but wants no new clients."""

    broker: str
    broker_epoch: U63


class BrokerDeregister(Message, frozen=True):
    """The life ends itself."""

    broker: str
    broker_epoch: U63
    wait_ms: U32 = WAIT_MS_DEFAULT


class BrokerFence(Message, frozen=True):
    """An administrator ends a life; epoch 0: the last one, whichever that is."""

    broker: str
    broker_epoch: U63 = 0
    wait_ms: U32 = WAIT_MS_DEFAULT


class BrokerEnded(Message, frozen=True):
    """The broker as it is now. ``unfenced``: groups in which the life may still write."""

    broker: Broker
    unfenced: list[str] = []  # noqa: RUF012


class BrokerGet(Message, frozen=True):
    """Read brokers by name."""

    brokers: Batch[str]


class BrokerGetReply(Message, frozen=True):
    """By position; None where there is none."""

    brokers: list[Broker | None]


class BrokerList(Message, frozen=True):
    """Brokers in order of their names: those that start with ``prefix``, in this ``state`` if it is not empty."""

    prefix: str = ""
    state: str = ""
    page: Page = Page()


class BrokerStep(Message, frozen=True):
    """Between a node and its metadata group: what happens to a broker. ``step`` is ``register`` (with
    ``registration``), ``drain``, ``deregister``, ``fence``, ``expire``, ``fenced``: all groups have the fence
    ``broker_epoch``, or ``forget``: no group has that fence any more. ``by``: who asked to register it."""

    step: str
    broker: str
    broker_epoch: U63 = 0
    registration: BrokerRegister | None = None
    by: str = ""


class BrokerChange(Message, frozen=True):
    """Steps in their order. ``map_version``: that of the map whose groups were asked for ``fenced`` and ``forget``
    steps."""

    steps: Batch[BrokerStep]
    map_version: U63 = 0


class BrokerChanged(Message, frozen=True):
    """``brokers``: by position of the steps, as they are now; None where the step failed."""

    revisions: list[Revision]
    errors: list[ItemError]
    brokers: list[Broker | None]


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
BROKER_LIST = BROKER.lists(
    0x0506, "list", BrokerList, Broker, "Brokers in order of their names.", lane=Lane.CONTROL, by=By.METADATA
)
