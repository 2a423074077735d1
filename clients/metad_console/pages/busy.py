"""Slow and loud: which requests took long and what they waited for, and who asks for most, as each node counted."""

from __future__ import annotations

import time
from typing import Final

from nicegui import ui

from metad_client.cli.busy import loud_rows, slow_row
from metad_client.cli.looking import STATUS_S
from metad_client.cli.people import listed
from metad_client.errors import MetadError
from metad_wire.messages import ActivityReply

from ..frame import frame, problem, reason, tag
from ..listings import Table
from ..pager import ROWS_MAX
from ..sessions import Session

LOOK_S: Final = 2.0
SLOW_MAX: Final = 200
"""Of each node."""
LOUD_MAX: Final = 20
"""Of each kind: tenants, clients, brokers and keys."""


def page() -> None:
    """Build it."""
    with frame("/busy", "Slow and loud", "What each node has seen of late.") as session:
        _Busy(session)


class _Busy:
    """Asks the nodes now and then while the page is open."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._failed = problem("")
        tag("h2", "Slow requests")
        self._slow = Table("Slow requests", "No request took longer than limits.slow_ms.")
        tag("h2", "Who asks for most")
        self._loud = Table("Who asks for most", "Nobody asks for anything.")
        ui.timer(LOOK_S, self._look)

    async def _look(self) -> None:
        try:
            m = await self._session.client()
            replies = await m.cluster.activity(SLOW_MAX, deadline_s=STATUS_S)
        except MetadError as error:
            self._failed.set_text(reason(error, "what is slow and loud"))
            return
        found = {node: reply for node, reply in replies.items() if isinstance(reply, ActivityReply)}
        errors = {node: reply for node, reply in replies.items() if isinstance(reply, MetadError)}
        what = f"what {listed(sorted(errors))} saw"
        self._failed.set_text(reason(next(iter(errors.values())), what) if errors else "")
        if not found:
            return  # an empty table would say that nothing is slow
        now_ms = int(time.time() * 1_000)
        slow = [(one, node) for node, reply in found.items() for one in reply.slow]
        slow.sort(key=lambda each: each[0].ended_ms, reverse=True)
        self._slow.show([slow_row(one, node, now_ms) for one, node in slow[:ROWS_MAX]])
        self._loud.show(loud_rows(found.values(), LOUD_MAX))
