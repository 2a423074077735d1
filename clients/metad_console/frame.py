"""What every page has: the head with the verdict, the list of pages, the keys, and how an error is said in place."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from nicegui import Client as Browser
from nicegui import ui

from metad_client import Watch
from metad_client.cli import overview
from metad_client.cli.printing import in_line
from metad_client.errors import ClosedError, PermissionDeniedError, UnauthenticatedError

from .polling import LATE_MS
from .sessions import Session

REFRESH_S: Final = 0.5
"""How often a page looks whether there is a new reading."""
GONE_S: Final = 0.5
"""A page whose session is over has so long to leave for the sign-in."""
_THEMES: Final = {"dark": True, "light": False}


class Entry(NamedTuple):
    """A page in the list of pages."""

    path: str
    name: str


PAGES: Final = (
    Entry("/", "Overview"),
    Entry("/cluster", "Cluster"),
    Entry("/brokers", "Brokers"),
    Entry("/records", "Records"),
    Entry("/watch", "Watch"),
    Entry("/storm", "Storm"),
    Entry("/busy", "Slow and loud"),
    Entry("/events", "Events"),
    Entry("/disks", "Certificates, disks"),
    Entry("/audit", "Audit"),
)
"""In order of their keys: 1 to 9, and 0."""
_KEYS: Final = {
    "1 to 9, 0": "go to a page",
    "/": "to the first field",
    "n, b": "next page of a list, and back",
    "p": "pause a watch",
    "?": "this list",
}


def reason(error: Exception, what: str) -> str:
    """Why something could not be read, as a person is told. ``what``: as in "sessions of acme"."""
    if isinstance(error, PermissionDeniedError):
        return f"You may not read {what}."
    if isinstance(error, UnauthenticatedError):
        return f"Your sign-in is not valid any more: {error}. Sign out, and in again."
    if isinstance(error, ClosedError):
        return "You are signed out."
    if isinstance(error, TimeoutError):
        return f"No answer in time for {what}."
    return in_line(f"{what} could not be read: {error}")


def clock(at_s: float) -> str:
    """A Unix time of today, as a person reads it."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%H:%M:%SZ")


def late(watched: Watch[Any] | None, begun_s: float) -> str:
    """That a watch may lack what is new, as a person is told; empty if the nodes have said of late that it does not.
    ``begun_s``: since when they are asked, by the monotonic clock."""
    age_ms = None if watched is None else watched.age_ms
    if age_ms is None:
        age_ms = (time.monotonic() - begun_s) * 1_000
    if age_ms < LATE_MS:
        return ""
    return (
        f"The nodes have said nothing since {clock(time.time() - age_ms / 1_000)}: what changed then is not shown yet."
    )


def tag(kind: str, text: str = "", *, classes: str = "", **properties: str | bool) -> ui.element:
    """An element of HTML. ``text`` is text, whatever is in it."""
    made = ui.element(kind)
    if classes:
        made.classes(classes)
    for key, value in properties.items():
        made.props[key.rstrip("_").replace("_", "-")] = value
    if text:
        with made:
            ui.label(text).props["tag"] = "span"
    return made


def label(text: str = "", classes: str = "") -> ui.label:
    """A text, whatever is in it."""
    made = ui.label(text)
    return made.classes(classes) if classes else made


def problem(text: str) -> ui.label:
    """Say in place what went wrong. Hidden while there is nothing to say."""
    made = ui.label(text).classes("problem")
    made.props["role"] = "alert"
    made.bind_visibility_from(made, "text", backward=bool)
    return made


def button(text: str, on_click: Callable[[], object], classes: str = "") -> ui.element:
    """A plain button. ``on_click`` is called when a person presses it."""
    made = tag("button", text, classes=f"plain {classes}".strip(), type="button")
    made.on("click", on_click)
    return made


@contextmanager
def dialog(title: str, classes: str, role: str = "dialog") -> Iterator[ui.dialog]:
    """Build a dialog of what is built within, and open it. It is gone once it is closed. It is no part of the element
    that asked for it, which may be a dialog that closes."""
    with ui.context.client.content, ui.dialog() as made, tag("div", classes=classes, role=role, aria_label=title):
        tag("h2", title)
        yield made
    made.on("hide", made.delete)
    made.open()


@contextmanager
def frame(path: str, title: str, about: str = "") -> Iterator[Session]:
    """Build a page around what is built within; gives its session."""
    browser = ui.context.client
    session: Session = browser.request.state.session
    _belongs(browser, session)
    ui.dark_mode(_THEMES.get(browser.request.cookies.get("metad_theme", "")))
    ui.add_head_html(
        '<link rel="icon" href="/console/icon.svg"><link rel="stylesheet" href="/console/style.css">'
        '<script defer src="/console/keys.js"></script>'
    )
    _top(session)
    with tag("div", classes="shell"):
        with tag("nav", classes="pages", aria_label="Pages"):
            for number, entry in enumerate(PAGES, 1):
                with tag("a", entry.name, href=entry.path) as link:
                    tag("kbd", str(number % 10), aria_hidden="true")
                if entry.path == path:
                    link.props["aria-current"] = "page"
        with tag("main", classes="page") as main:
            with tag("div", classes="head"):
                tag("h1", title)
                if about:
                    tag("p", about)
            _age(session)
            yield session
    ui.skip_link("To the content", target=main)
    with tag("dialog", classes="keys", aria_label="Keys"):
        tag("h2", "Keys")
        with tag("dl"):
            for key, does in _KEYS.items():
                tag("dt", key)
                tag("dd", does)
        with tag("form", method="dialog"):
            tag("button", "Close", classes="plain")


def _belongs(browser: Browser, session: Session) -> None:
    """Tie a page to its session: the session ends the page, and knows when it is closed."""

    def end() -> None:
        browser.run_javascript("location.href = '/sign-in'")
        asyncio.get_running_loop().call_later(GONE_S, gone)

    def gone() -> None:
        if not browser.is_deleted:
            browser.remove_all_elements()  # the framework drops the rest once the browser has left

    session.opened(browser.id, end)
    browser.on_delete(lambda: session.left(browser.id))


def _top(session: Session) -> None:
    with tag("header", classes="top"):
        tag("a", "metad", classes="name", href="/")
        chip = label("…", "chip")
        cluster = label("", "soft")
        tag("span", _who(session), classes="who", title=session.principal)
        tag("button", "Light or dark", type="button", onclick="metadTheme()")
        if not session.is_own:
            with tag("form", method="post", action="/sign-out"):
                tag("button", "Sign out", type="submit")

    def show() -> None:
        reading = session.poll.reading
        if reading is None:
            return
        judged = "unknown" if reading.error is not None or session.poll.is_late else reading.judged
        chip.set_text(judged)
        chip.classes(replace=f"chip {judged}")
        name = reading.cluster.cluster_id if reading.cluster is not None else ""
        cluster.set_text(f"cluster {name}" if name else "")

    show()
    ui.timer(REFRESH_S, show)


def _age(session: Session) -> None:
    """Say how old the state of the cluster is that the page shows, once it is old."""
    said = problem("")

    def look() -> None:
        age_ms = session.poll.age_ms()
        if age_ms is None or not session.poll.is_late:
            said.set_text("")
            return
        since = clock(time.time() - age_ms / 1_000)
        said.set_text(f"The cluster has not answered since {since}: its state is shown as it was then.")

    look()
    ui.timer(REFRESH_S, look)


def _who(session: Session) -> str:
    mode = "may change the cluster" if session.may_write else "reads only"
    who = session.principal.removeprefix("metad://") or ("the console's own identity" if session.is_own else "")
    return f"{who}, {mode}" if who else mode


def each_reading(session: Session, show: Callable[[], object]) -> None:
    """Call ``show`` now with what was read last, and with every reading that is new."""
    seen = session.poll.number

    def look() -> None:
        nonlocal seen
        if session.poll.number != seen:
            seen = session.poll.number
            show()

    show()
    ui.timer(REFRESH_S, look)


def headline(session: Session) -> str:
    """The verdict in one line, or why there is none."""
    reading = session.poll.reading
    if reading is None:
        return "The cluster is being asked."
    if reading.error is not None:
        return reason(reading.error, "the state of the cluster")
    return overview.headline(reading.row)
