"""Tables of records: one for rows that are there, and one for a listing that is read page by page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from nicegui import events, ui

from metad_client import Client
from metad_client.cli.printing import cell
from metad_client.errors import MetadError

from .frame import button, clock, label, problem, reason, tag
from .pager import ROWS_MAX, Pager
from .sessions import Session

Record = TypeVar("Record")
Row = dict[str, Any]
READ_S: Final = 5.0
"""A page of a listing that takes longer is given up: a person tries again, or asks for less."""
SCOPES: Final = ("tenant", "namespace")
"""Columns that seldom tell records apart."""
_BEFORE: Final = "read before"


class Table(ui.element, component="static/rows.js"):
    """Rows of text and numbers, whose columns are the keys of the rows. ``about``: what they are. ``on_open``: with the
    number of a row, when a person chooses it."""

    def __init__(
        self, about: str, empty: str = "Nothing is here.", on_open: Callable[[int], object] | None = None
    ) -> None:
        super().__init__()
        self._empty, self._on_open = empty, on_open
        self.props["about"] = about
        self.props["empty"] = "…"
        self.props["columns"], self.props["rows"], self.props["link"] = [], [], -1
        if on_open is not None:
            self.on("open", self._open)

    def show(self, rows: Sequence[Row]) -> None:
        """Show these rows instead of those before. At most :data:`ROWS_MAX` are shown."""
        header = list(dict.fromkeys(key for row in rows for key in row))
        link = -1
        if self._on_open is not None and header:
            # What tells rows apart leads on; a tenant is often that of all of them.
            link = next((number for number, name in enumerate(header) if name not in SCOPES), 0)
        shown = [[number, [_value(row.get(name)) for name in header]] for number, row in enumerate(rows[:ROWS_MAX])]
        new = {"columns": header, "rows": shown, "link": link, "empty": self._empty}
        changed = {name: value for name, value in new.items() if self.props.get(name) != value}
        for name, value in changed.items():
            self.props[name] = value
        if changed:
            self.update()

    def _open(self, event: events.GenericEventArguments) -> None:
        number = event.args
        if self._on_open is not None and isinstance(number, int) and 0 <= number < len(self.props["rows"]):
            self._on_open(number)


def _value(value: Any) -> str | int | float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return cell(value)


class Sliced:
    """A table of rows that are all there, :data:`ROWS_MAX` at a time."""

    def __init__(
        self, about: str, empty: str = "Nothing is here.", on_open: Callable[[int], object] | None = None
    ) -> None:
        self._rows: Sequence[Row] = []
        self._from = 0
        open_ = (lambda number: on_open(self._from + number)) if on_open is not None else None
        self._table = Table(about, empty, open_)
        with tag("div", classes="pager") as self._pager:
            self._back = button("Back", lambda: self._turn(-ROWS_MAX), "back")
            self._next = button("Next", lambda: self._turn(ROWS_MAX), "next")
            self._where = label("", "soft")

    def show(self, rows: Sequence[Row]) -> None:
        """Show these instead of those before, from where the person was."""
        self._rows = rows
        if self._from >= len(rows):
            self._from = 0
        self._table.show(rows[self._from : self._from + ROWS_MAX])
        self._pager.set_visibility(len(rows) > ROWS_MAX)
        last = min(self._from + ROWS_MAX, len(rows))
        self._where.set_text(f"{self._from + 1:,} to {last:,} of {len(rows):,}")

    def _turn(self, by: int) -> None:
        at = self._from + by
        if 0 <= at < len(self._rows):
            self._from = at
            self.show(self._rows)


class Listed(Generic[Record]):
    """A listing of the SDK, page by page. ``what``: what a person is told that could not be read."""

    def __init__(
        self,
        session: Session,
        what: str,
        records: Callable[[Client], AsyncIterator[Record]],
        row_of: Callable[[Record], Row],
        on_open: Callable[[Record], object] | None = None,
    ) -> None:
        self._session, self._what = session, what
        self._records, self._row_of = records, row_of
        self._pager: Pager[Record] | None = None
        self._busy = asyncio.Lock()
        self._problem = problem("")
        open_ = (lambda number: on_open(self._shown[number])) if on_open is not None else None
        self._shown: list[Record] = []
        self._table = Table(what, "Nothing is found.", open_)
        with tag("div", classes="pager"):
            self._back = button("Back", self.back, "back")
            self._next = button("Next", self.forward, "next")
            button("Read again", self.again)
            self._where = label("", "soft")
        ui.timer(0, self.forward, once=True)
        ui.context.client.on_delete(self.close)

    async def forward(self) -> None:
        """Read the next page, or show it again."""
        if self._busy.locked():
            return  # a person who clicks twice wants one page
        async with self._busy:
            said, begin_s = self._where.text, time.perf_counter()
            self._where.set_text("reading …")
            try:
                async with asyncio.timeout(READ_S):
                    if self._pager is None:
                        client = await self._session.client()
                        self._pager = Pager(self._records(client))
                    is_read = await self._pager.forward()
            except (MetadError, TimeoutError, RuntimeError) as error:
                self._problem.set_text(reason(error, self._what))
                self._where.set_text(said)
            else:
                self._problem.set_text("")
                self._show()
                took_ms = (time.perf_counter() - begin_s) * 1_000
                self._say(f"read at {clock(time.time())} in {took_ms:.0f} ms" if is_read else _BEFORE)

    def back(self) -> None:
        """Show the page before."""
        if self._pager is not None and not self._busy.locked():
            self._pager.back()
            self._show()
            self._say(_BEFORE)

    async def again(self) -> None:
        """Begin at the first page, as it is now."""
        await self.close()
        await self.forward()

    async def close(self) -> None:
        """Let the listing go."""
        async with self._busy:
            pager, self._pager = self._pager, None
            if pager is not None:
                await pager.close()

    def _show(self) -> None:
        pager = self._pager
        assert pager is not None
        self._shown = pager.rows
        self._table.show([self._row_of(record) for record in self._shown])
        for each, is_on in ((self._back, pager.has_back), (self._next, pager.has_more)):
            each.props["disabled"] = not is_on
            each.update()

    def _say(self, when: str) -> None:
        pager = self._pager
        assert pager is not None
        more = ", and there are more" if pager.has_more else ""
        count = "1 record" if len(self._shown) == 1 else f"{len(self._shown):,} records"
        self._where.set_text(f"page {pager.number}: {count}{more}; {when}")
