"""What is in flight between brokers and a client: packet identifiers, states of QoS 1 and 2, and waiting messages.

Names and values are the brokers' choice; metad stores them. They belong to the session as subscriptions do: its owner
writes and deletes them, a takeover leaves them to the next owner, and they end with the session. With ``any_owner`` a
broker leaves something for a session that it does not own, even where the owner's life is over; it must choose names
that no other broker chooses. It does not become the owner, and moves no deadline. INFLIGHT_MAX, INFLIGHT_BYTES_MAX and
INFLIGHT_VALUE_BYTES_MAX bound them.
"""

from __future__ import annotations

from typing import Any

from .. import messages as m
from ..messages import InflightState as InflightState
from ..method import Lane
from ..session_part import part_key_bytes, part_keys
from ..table import Shown, Table
from ..text.fields import U63, Batch, ClientId
from .session import SESSION

INFLIGHT_MAX = 4_096
"""What is in flight for one session: ``quota_exceeded``. The session's end drops it all in one entry."""
INFLIGHT_BYTES_MAX = 512 * 1024
"""The same in bytes, key fields with their separators, and values: ``quota_exceeded``."""
INFLIGHT_VALUE_BYTES_MAX = 64 * 1024
"""One value of it: ``invalid_item``."""


class Inflight(m.Message, frozen=True):
    """One thing that is in flight for a client."""

    tenant: str
    client_id: ClientId
    name: str
    value: bytes
    """The broker's own encoding."""


class InflightKey(m.Message, frozen=True):
    """Identity of a thing in flight; (tenant, client_id) routes it, as it does the session."""

    tenant: str
    client_id: ClientId
    name: str


class InflightPut(m.Message, frozen=True):
    """Writes states. If a value is the stored one, nothing is written. Item errors: ``not_found`` if there is no
    session; ``not_owner`` and ``fenced``, but not with ``any_owner``; ``quota_exceeded``."""

    broker: str
    broker_epoch: U63
    """Its life: it must own the sessions, or see ``any_owner``."""
    items: Batch[Inflight]
    any_owner: bool = False
    """The sessions may belong to any life of any broker."""


class InflightDelete(m.Message, frozen=True):
    """Deletes states. Item errors: ``not_found`` if there is no session or nothing of the name, ``not_owner``,
    ``fenced``."""

    broker: str
    broker_epoch: U63
    items: Batch[InflightKey]


def _value_bytes(item: Any) -> int:
    return len(item.value) if isinstance(item, Inflight) else 0


INFLIGHT = Table(
    "inflight",
    kind="data",
    rows={"state": 0x13},
    record=Inflight,
    key=("tenant", "client_id", "name"),
    routing=("tenant", "client_id"),
    part_of="session",
    key_bytes=part_key_bytes("name"),
    value_bytes_max=INFLIGHT_VALUE_BYTES_MAX,
    value_bytes=_value_bytes,
    shows={"state": Shown(InflightKey, bytes)},
    crcs=SESSION.crcs,
    keys=part_keys(SESSION, "name"),
)
"""``state``: the value of each. ``count``: of each session, how many there are, and how many bytes."""
INFLIGHT_PUT = INFLIGHT.writes(0x0120, "put", InflightPut, m.WriteReply, Lane.RECORDS)
INFLIGHT_DELETE = INFLIGHT.writes(0x0121, "delete", InflightDelete, m.WriteReply, Lane.RECORDS)
INFLIGHT_GET = INFLIGHT.gets(
    0x0122, "get", m.SessionKey, list[InflightState], "All that is in flight for each client, in order of the name."
)
