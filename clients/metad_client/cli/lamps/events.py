"""``metadctl events``: what has changed, of all nodes together and in order of time, as their logs tell it."""

from __future__ import annotations

import asyncio
import json
import sys
import textwrap
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from metad_wire.messages import EventsReply, LoggedEvent, Said

from ...client import Client
from ...errors import ConnectionLostError, MetadError
from .. import overview, people
from ..grammar import Arguments, Commands, limit, since
from ..looking import STATUS_S
from ..printing import PAGE_CHARS, Printer, cell, plain

SINCE_DEFAULT: Final = "2h"
FOLLOW_S: Final = 1.0
"""How often ``--follow`` looks."""
_INDENT: Final = " " * 11


class Seen(NamedTuple):
    """What one node has logged."""

    when_ms: int
    node: str
    event: LoggedEvent


class Nodes:
    """Asks all nodes, or those that are named, for what is new. What each has said so far is known by its cursor."""

    def __init__(self, m: Client, nodes: Sequence[str], since_ms: int, deadline_s: float) -> None:
        self._m, self._nodes, self._since_ms, self._deadline_s = m, nodes, since_ms, deadline_s
        self._cursors: dict[str, bytes] = {}
        self.errors: dict[str, str] = {}
        """Nodes that did not answer when they were asked last -> why."""
        self.begins_ms: dict[str, int] = {}
        """Of each node: nothing is known of what was before that."""
        self.withheld: dict[str, int] = defaultdict(int)
        """Of each node: how many events were not shown to this client."""

    async def look(self) -> list[Seen]:
        """What is new, the oldest first. Raises ConnectionLostError, or the error of the only node, if none answers."""
        found: list[Seen] = []
        left: Sequence[str] = self._nodes
        first = True
        while first or left:
            replies = await self._m.cluster.events(
                since_ms=self._since_ms, cursors=self._cursors, nodes=left, deadline_s=self._deadline_s
            )
            if first:
                errors = [error for error in replies.values() if isinstance(error, MetadError)]
                if errors and len(errors) == len(replies):
                    raise errors[0]
                if not replies:
                    raise ConnectionLostError("no node is known")
            left = [node for node, reply in replies.items() if self._take(node, reply, found)]
            first = False
        return sorted(found, key=lambda seen: seen[:2])

    def _take(self, node: str, reply: EventsReply | MetadError, found: list[Seen]) -> bool:
        """Note a reply. Returns whether the node has more."""
        if isinstance(reply, MetadError):
            self.errors[node] = " ".join(str(reply.__cause__ or reply).split())
            return False
        self.errors.pop(node, None)
        self._cursors[node] = reply.cursor
        self.begins_ms[node] = max(reply.begins_ms, self.begins_ms.get(node, 0))
        self.withheld[node] += reply.withheld
        found += [Seen(one.when_ms, node, one) for one in reply.events]
        return reply.more


def add(commands: Commands) -> None:
    """Add the command."""
    listing = commands.add("events", "what has changed, of all nodes in order of time; the last hours", _events)
    since(listing, SINCE_DEFAULT, f"default {SINCE_DEFAULT}")
    said = "only what this node has logged; may be repeated"
    listing.add_argument("--node", action="append", default=[], metavar="N", help=said)
    listing.add_argument("--follow", "-f", action="store_true", help="then print what is new, until Ctrl-C")
    limit(listing, "show the last N, 0 for all")


async def _events(m: Client, a: Arguments, printer: Printer) -> None:
    nodes = Nodes(m, a.node, a.since, min(STATUS_S, a.timeout))
    await m.cluster.map()  # with which the client knows all nodes
    found = await nodes.look()
    more = bool(a.limit) and len(found) > a.limit
    shown = found[-a.limit :] if more else found
    if a.follow:
        await _follow(nodes, shown, as_json=a.json)
        return
    if a.json:
        printer.one({"events": [_document(one) for one in shown], "more": more, "nodes": _known(nodes)})
        return
    for line in lines(shown, int(time.time() * 1_000)):
        printer.lines(line)
    if not shown:
        printer.lines("nothing found")
    _tell(nodes, a.since)
    if more:
        _say(f"the last {a.limit} are shown; --limit 0 shows all")


async def _follow(nodes: Nodes, found: Sequence[Seen], *, as_json: bool) -> None:
    """Print these, and what follows, until the program is interrupted."""
    told: dict[str, str] = {}
    day = ""
    while True:
        now_ms = int(time.time() * 1_000)
        documents = (json.dumps(_document(one), ensure_ascii=False) for one in found)
        for text in documents if as_json else lines(found, now_ms, day):
            sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
        if found:
            day = _day(found[-1].when_ms)
        for node in {*nodes.errors, *told}:
            error = nodes.errors.get(node, "")
            if error != told.get(node, ""):
                _say(f"{node} does not answer: {error}" if error else f"{node} answers again")
        told = dict(nodes.errors)
        await asyncio.sleep(FOLLOW_S)
        try:
            found = await nodes.look()
        except MetadError as error:
            found = []
            nodes.errors.update(dict.fromkeys(nodes.begins_ms, " ".join(str(error).split())))


def _known(nodes: Nodes) -> list[dict[str, Any]]:
    """For programs: what was asked whom."""
    return [
        {"node": node, "begins_ms": nodes.begins_ms.get(node), "withheld": nodes.withheld[node], "error": error or None}
        for node, error in sorted({**dict.fromkeys(nodes.begins_ms, ""), **nodes.errors}.items())
    ]


def _document(seen: Seen) -> dict[str, Any]:
    fields: dict[str, Any] = plain(seen.event)
    return {"when_ms": seen.when_ms, "node": seen.node, **fields}


def _tell(nodes: Nodes, since_ms: int) -> None:
    """Say what is missing."""
    for node, error in sorted(nodes.errors.items()):
        _say(f"{node} does not answer, so what it has logged is missing: {error}")
    now_ms = int(time.time() * 1_000)
    begins = [f"{node}: {people.when(at, now_ms)}" for node, at in sorted(nodes.begins_ms.items()) if at > since_ms]
    if begins:
        _say(f"nothing is known of before ({'; '.join(begins)})")
    for node, count in sorted(nodes.withheld.items()):
        if count:
            _say(f"{node} has {count:,} more, about tables that we may not read (broker, audit)")


def _say(text: str) -> None:
    sys.stderr.write(f"metadctl: {text}\n")


# --- as people read them ---


def lines(found: Collection[Seen], now_ms: int, day: str = "") -> Iterator[str]:
    """Lines of at most :data:`PAGE_CHARS`. A line with the date stands in front of those of another day than ``day``,
    or than today if that is empty."""
    day = day or _day(now_ms)
    width = max((len(seen.node) for seen in found), default=0)
    for seen in found:
        if (of := _day(seen.when_ms)) != day:
            day = of
            yield day
        yield from _lines(seen, width)


def _day(when_ms: int) -> str:
    return datetime.fromtimestamp(when_ms / 1_000, UTC).strftime("%Y-%m-%d")


def _lines(seen: Seen, width: int) -> Iterator[str]:
    event = seen.event
    at = datetime.fromtimestamp(seen.when_ms / 1_000, UTC).strftime("%H:%M:%SZ")
    bad = "" if event.level == "info" else f"{event.level.upper()} "
    told = said(event)
    yield from _wrapped(f"{at}  {cell(seen.node):{width}}  {bad}{cell(event.event)}" + (f": {told}" if told else ""))
    if bad and event.text:
        yield from _wrapped(f"{_INDENT}{cell(event.text, 4 * PAGE_CHARS)}")


def said(event: LoggedEvent) -> str:
    """The fields of an event in one line, as people read them."""
    return ", ".join(_field(name, value) for name, value in event.fields.items() if value is not None)


def _field(name: str, value: Said) -> str:
    """A field with its unit: ``lasted_ms`` of 2,100 is ``lasted 2 s``."""
    title, shown = name.replace("_", " "), value
    if isinstance(value, int | float) and not isinstance(value, bool):
        if name.endswith("per_s"):
            title, shown = f"{title.removesuffix(' s')} second", f"{value:,}"
        elif name.endswith("_s"):
            title, shown = title.removesuffix(" s"), people.duration(int(1_000 * value))
        else:
            title, shown = overview.as_read(name, value)
            title = title.replace("_", " ")
    return f"{title} {cell(shown, PAGE_CHARS)}"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, PAGE_CHARS, subsequent_indent=_INDENT, break_on_hyphens=False, drop_whitespace=True)
