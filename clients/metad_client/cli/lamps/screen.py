"""The screen of ``metadctl top``: the verdict, a table of nodes and one of groups, drawn anew at each look."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.widgets import DataTable, Footer, Static

from ...errors import MetadError
from ..view import ClusterView
from .sampling import Cells, Shown, shown


class Rows(DataTable[str]):
    """A table whose rows keep an order that the user chooses. The cursor stays with its row."""

    def __init__(self, title: str) -> None:
        super().__init__(cursor_type="row", id=title, cell_padding=1)
        self.sorted_by, self.is_reversed = 0, False
        self._shown: dict[str, Cells] = {}
        self._titles: list[str] = []

    def draw(self, rows: dict[str, Cells] | None = None) -> None:
        """Draw these rows, or the last ones anew."""
        self._shown = self._shown if rows is None else rows
        titles = list(next(iter(self._shown.values()), {}))
        chosen = self._cursor_name()
        self.clear(columns=True)
        self._titles = titles
        for position, title in enumerate(titles):
            mark = ("▼" if self.is_reversed else "▲") if position == self.sorted_by else ""
            self.add_column(title + mark, key=title)
        order = sorted(self._shown, key=self._order, reverse=self.is_reversed)
        for name in order:
            self.add_row(*(cell.text for cell in self._shown[name].values()), key=name)
        if chosen in order:
            self.cursor_coordinate = Coordinate(order.index(chosen), 0)

    def sort_next(self) -> None:
        """Sort by the next column."""
        self.sorted_by = (self.sorted_by + 1) % max(1, len(self._titles))
        self.is_reversed = self.sorted_by > 0  # of numbers the largest is what one looks for
        self.draw()

    def reverse(self) -> None:
        """Turn the order round."""
        self.is_reversed = not self.is_reversed
        self.draw()

    def _order(self, name: str) -> tuple[tuple[bool, float | str], str]:
        return [*self._shown[name].values()][self.sorted_by].order, name

    def _cursor_name(self) -> str:
        if not self.is_valid_coordinate(self.cursor_coordinate):
            return ""
        return str(self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value)


class Top(App[None]):
    """Looks at the cluster every ``every_s`` seconds."""

    CSS = """
    #head { height: auto; max-height: 8; }
    #nodes { height: auto; max-height: 45%; }
    #groups { height: 1fr; margin-top: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("p,space", "pause", "pause"),
        Binding("s", "sort", "sort by next column"),
        Binding("r", "reverse", "reverse"),
        Binding("t", "app.focus_next", "other table"),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, look: Callable[[], Awaitable[ClusterView]], every_s: float) -> None:
        super().__init__()
        self._look, self._every_s = look, every_s
        self._last: ClusterView | None = None
        self._head: list[str] = ["looks at the cluster"]
        self.paused = False
        self.looks = 0
        """How often it has looked, with success or without."""

    def compose(self) -> ComposeResult:
        """The parts of the screen."""
        yield Static("\n".join(self._head), id="head", markup=False)
        yield Rows("nodes")
        yield Rows("groups")
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Begin to look."""
        self.query_one("#nodes").focus()
        self.run_worker(self._follow(), exclusive=True)

    async def _follow(self) -> None:
        """Look again and again. One look follows the other: a slow node makes the screen slow, and asks for no more."""
        while True:
            if not self.paused:
                await self._once()
            await asyncio.sleep(self._every_s)

    async def _once(self) -> None:
        try:
            cluster = await self._look()
        except MetadError as error:
            self._say([f"UNKNOWN: no node could be asked: {' '.join(str(error).split())}", *self._head[1:]])
        else:
            now = shown(self._last, cluster)
            self._last = cluster
            if not self.paused:
                self._draw(now)
        self.looks += 1

    def _draw(self, now: Shown) -> None:
        self._say(now.head)
        self.query_one("#nodes", Rows).draw(now.nodes)
        self.query_one("#groups", Rows).draw(now.groups)

    def _say(self, head: list[str]) -> None:
        self._head = head
        state = "paused" if self.paused else f"every {self._every_s:g} s"
        clock = time.strftime("%H:%M:%SZ", time.gmtime())
        self.query_one("#head", Static).update("\n".join([f"{head[0]}   {clock}, {state}", *head[1:]]))

    def action_pause(self) -> None:
        """Leave the screen as it is, or go on."""
        self.paused = not self.paused
        self._say(self._head)

    def action_sort(self) -> None:
        """Sort the table that has the focus by its next column."""
        self._chosen().sort_next()

    def action_reverse(self) -> None:
        """Turn the order of the table round that has the focus."""
        self._chosen().reverse()

    def _chosen(self) -> Rows:
        focused = self.focused
        return focused if isinstance(focused, Rows) else self.query_one("#nodes", Rows)
