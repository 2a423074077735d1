"""Brokers: their lives, epochs and states."""

from __future__ import annotations

import time

from metad_client.cli.tables.brokers import broker_row
from metad_wire.tables.broker import STATES, Broker

from ..actions import fence
from ..forms import Field, filters
from ..frame import frame
from ..listings import Listed
from ..pager import ROWS_MAX


def page(prefix: str = "", state: str = "") -> None:
    """Build it. ``prefix``, ``state``: only these brokers."""
    state = state if state in STATES else ""
    with frame("/brokers", "Brokers", "Each with its last life.") as session:
        filters(
            "/brokers", [Field("prefix", "Name begins with", prefix), Field("state", "State", state, ("", *STATES))]
        )
        Listed[Broker](
            session,
            "brokers",
            lambda m: m.brokers.list(prefix, state=state, page_size=ROWS_MAX + 1, deadline_s=5.0),
            lambda broker: broker_row(broker, int(time.time() * 1_000)),
            (lambda broker: fence(session, broker)) if session.may_write else None,
        )
