"""What is in flight between brokers and a client: packet identifiers and states of QoS 1 and 2, and messages that wait
for a client that is away, opaque to metad. It belongs to sessions."""

from __future__ import annotations

from typing import Any

from .. import messages as m
from ..messages import InflightState as InflightState
from ..method import Lane
from ..session_part import part_key_bytes, part_keys
from ..table import Shown, Table
from ..text.fields import U63, Batch, ClientId
from .session import SESSION

INFLIGHT_MAX = 4_096  # of one session: its end drops them all, in one entry of the log
INFLIGHT_BYTES_MAX = 512 * 1024  # of one session's together: key fields with their separators, and values
INFLIGHT_VALUE_BYTES_MAX = 64 * 1024  # of one


class Inflight(m.Message, frozen=True):
    """One thing that is in flight for a client. ``name`` is the broker's choice, as is the ``value``."""

    tenant: str
    client_id: ClientId
    name: str
    value: bytes


class InflightKey(m.Message, frozen=True):
    """Identity of a thing in flight; (tenant, client_id) routes it, as it does the session."""

    tenant: str
    client_id: ClientId
    name: str


class InflightPut(m.Message, frozen=True):
    """Write, for clients whose sessions belong to this life of a broker; ``any_owner``: to whichever life they belong.
    Item errors: not_found (there is no session), not_owner, fenced, quota_exceeded."""

    broker: str
    broker_epoch: U63
    items: Batch[Inflight]
    any_owner: bool = False


class InflightDelete(m.Message, frozen=True):
    """Delete, for clients whose sessions belong to this life of a broker. Item errors: not_found (there is no session,
    or nothing of this name), not_owner, fenced."""

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
