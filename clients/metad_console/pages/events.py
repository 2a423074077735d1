"""Events: what has changed, of all nodes together, the newest first, as their logs tell it."""

from __future__ import annotations

import time
from collections import deque
from typing import Final

from nicegui import ui

from metad_client.cli import people
from metad_client.cli.lamps.events import Nodes, Seen, said
from metad_client.cli.looking import STATUS_S
from metad_client.errors import MetadError

from ..frame import frame, problem, reason
from ..listings import Row, Table
from ..pager import ROWS_MAX
from ..sessions import Session

LOOK_S: Final = 1.0
SINCE_MS: Final = 2 * 3_600_000
"""How far back the first look goes."""
WHAT_CHARS_MAX: Final = 400


def page() -> None:
    """Build it."""
    with frame("/events", "Events", "What has changed in the last two hours. The newest first.") as session:
        _Events(session)


class _Events:
    """Asks the nodes for what is new while the page is open."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._nodes: Nodes | None = None
        self._seen: deque[Seen] = deque(maxlen=ROWS_MAX)
        self._failed = problem("")
        self._table = Table("Events", "Nothing has changed.")
        ui.timer(LOOK_S, self._look)

    async def _look(self) -> None:
        try:
            if self._nodes is None:
                m = await self._session.client()
                await m.cluster.map()  # with which the client knows all nodes
                self._nodes = Nodes(m, (), int(time.time() * 1_000) - SINCE_MS, STATUS_S)
            self._seen.extend(await self._nodes.look())
        except MetadError as error:
            self._failed.set_text(reason(error, "what has changed"))
            return
        away = [f"{node} does not answer: {why}" for node, why in sorted(self._nodes.errors.items())]
        if withheld := sum(self._nodes.withheld.values()):
            away.append(f"{withheld:,} are left out, about tables that you may not read")
        self._failed.set_text("; ".join(away))
        now_ms = int(time.time() * 1_000)
        self._table.show([_row(one, now_ms) for one in reversed(self._seen)])


def _row(seen: Seen, now_ms: int) -> Row:
    event = seen.event
    what = said(event)[:WHAT_CHARS_MAX]
    return {
        "when": people.when(seen.when_ms, now_ms),
        "node": seen.node,
        "level": event.level,
        "event": event.event,
        "what": what or event.text[:WHAT_CHARS_MAX],
    }
