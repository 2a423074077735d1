"""Watch: the changes of a table as they happen, the newest first, in a list that stays short."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any, Final

import msgspec
from nicegui import ui

from metad_client import Client, Watch, WatchEvent
from metad_client.cli.command_line import WATCHED
from metad_client.cli.printing import cell
from metad_client.cli.watching import shown
from metad_client.errors import MetadError
from metad_wire.families import KNOWN

from ..forms import Field, filters
from ..frame import button, clock, frame, label, late, problem, reason, tag
from ..listings import READ_S, Row, Table
from ..pager import ROWS_MAX
from ..sessions import Session

SHOW_S: Final = 0.5
"""How often the list is drawn, however many changes there are."""
PROGRESS_S: Final = 1.0
"""How often the nodes say that nothing is missing."""
BUFFER_BYTES: Final = 1024 * 1024
"""What comes faster than it is read waits at the node, which then leaves out what is old."""
WHAT_CHARS_MAX: Final = 400


class Changes:
    """A watch of one page: what it saw last, and how much in all."""

    def __init__(self, session: Session, table: str, tenant: str, prefix: str) -> None:
        self.lines: deque[Row] = deque(maxlen=ROWS_MAX)
        self.seen = 0
        self.error: Exception | None = None
        self.is_open = False
        self.begun_s = time.monotonic()
        self.watched: Watch[Any] | None = None
        self._session = session
        self._table, self._tenant, self._prefix = table, tenant, prefix

    async def run(self) -> None:
        """Watch until cancelled, or until the cluster refuses it."""
        try:
            await self._watch(await self._session.client())
        except MetadError as error:
            self.error = error

    async def _watch(self, m: Client) -> None:
        table: Any = self._table if self._table in KNOWN else await m.tables.open(self._table, deadline_s=READ_S)
        async with m.watch(
            table, tenant=self._tenant or None, prefix=self._prefix, progress_s=PROGRESS_S, buffer_bytes=BUFFER_BYTES
        ) as self.watched:
            async for batch in self.watched:
                self.is_open = True  # from the first word of progress on, every change comes
                events = batch.events
                self.seen += len(events)
                # Only the last ones are seen; to make lines of the others would stall every page.
                self.lines.extend(_line(event) for event in events[-ROWS_MAX:])
                if batch.kind == "gap":
                    self.lines.append({"time": clock(time.time()), "change": "GAP", "what": "changes are lost here"})
                await asyncio.sleep(0)


def _line(event: WatchEvent) -> Row:
    table = event.table if event.row in ("record", event.table) else f"{event.table}/{event.row}"
    key = "" if event.key is None else "/".join(map(cell, msgspec.structs.astuple(event.key)))
    what = "" if event.record is None else shown(event)[:WHAT_CHARS_MAX]
    at_s = event.time_ms / 1_000 if event.time_ms else time.time()
    return {"time": clock(at_s), "change": event.kind.name, "table": table, "key": key, "what": what}


def page(table: str = "", tenant: str = "", prefix: str = "") -> None:
    """Build it. It watches once a table is chosen."""
    with frame("/watch", "Watch", "The changes of a table as they happen.") as session:
        known = [*WATCHED] if table in WATCHED or not table else [table, *WATCHED]
        fields = [
            Field("table", "Table", table or "session", known),
            Field("tenant", "Tenant or namespace", tenant),
            Field("prefix", "Next field begins with", prefix, hint="needs the first"),
        ]
        filters("/watch", fields, "Watch")
        if not table:
            label("Choose what to watch. A change is shown when a majority of the replicas has it.", "notice")
        elif prefix and not tenant:
            label("A prefix needs a tenant or a namespace.", "notice")
        else:
            _show(session, Changes(session, table, tenant, prefix))


def _show(session: Session, changes: Changes) -> None:
    paused = False
    drawn = -1
    failed = problem("")
    with tag("div", classes="pager"):
        pause = button("Pause", lambda: turn(), "pause")
        said = label("", "soft")
    table = Table("Changes", "Nothing has changed yet.")
    task: asyncio.Task[None] | None = None

    def turn() -> None:
        nonlocal paused
        paused = not paused
        pause.clear()
        with pause:
            ui.label("Go on" if paused else "Pause").props["tag"] = "span"

    def look() -> None:
        nonlocal drawn, task
        if task is None:
            task = asyncio.get_running_loop().create_task(changes.run(), name="console-watch")
        error = changes.error
        failed.set_text(late(changes.watched, changes.begun_s) if error is None else reason(error, "these changes"))
        state = "watching" if changes.is_open else "opening"
        said.set_text(
            f"{'paused' if paused else state}; {changes.seen:,} changes seen"
            + (f", the last {ROWS_MAX} are shown" if changes.seen > ROWS_MAX else "")
        )
        if not paused and drawn != changes.seen:
            drawn = changes.seen
            table.show([*reversed(changes.lines)])

    def end(_: Any = None) -> None:
        if task is not None:
            task.cancel()

    ui.timer(SHOW_S, look)
    ui.context.client.on_delete(end)
