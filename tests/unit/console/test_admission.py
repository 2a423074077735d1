"""Which requests are answered: by host and origin, and what an address of the console is called by browsers."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import pytest

from metad_client import Options
from metad_client.errors import ClosedError
from metad_console.admission import Admission, Place, hosts_of
from metad_console.sessions import AGE_S, IDLE_S, PAGES_MAX, Session, Sessions

HERE = Place(hosts_of(["127.0.0.1", "localhost", "::1"], 8480, encrypted=False), False)
NAMED = Place(hosts_of(["console.example", "other.example:444"], 443, encrypted=True), True)


@pytest.mark.parametrize("host", ["127.0.0.1:8480", "localhost:8480", "LOCALHOST:8480", "[::1]:8480"])
def test_hosts_that_are_the_console(host: str) -> None:
    assert HERE.is_host(host)
    assert HERE.is_origin(f"http://{host}", host)


@pytest.mark.parametrize(
    "host", ["", "127.0.0.1", "localhost", "evil.example:8480", "127.0.0.1:8481", "127.0.0.1.evil.example:8480"]
)
def test_hosts_that_are_not(host: str) -> None:
    assert not HERE.is_host(host)


@pytest.mark.parametrize(
    "origin",
    ["null", "", "http://evil.example", "https://127.0.0.1:8480", "http://127.0.0.1", "http://localhost:8480"],
)
def test_origins_that_are_not(origin: str) -> None:
    """Another name of the same machine is another origin: its cookies are others, too."""
    assert not HERE.is_origin(origin, "127.0.0.1:8480")


def test_the_port_of_the_scheme_is_left_out_by_browsers() -> None:
    assert NAMED.hosts == {"console.example", "console.example:443", "other.example:444"}
    assert NAMED.is_origin("https://console.example", "console.example")
    assert not NAMED.is_origin("http://console.example", "console.example")


class Asked:
    """One request to the console without a framework behind it; ``reached``: whether it got through."""

    def __init__(self, *, signs_in: bool) -> None:
        self.sessions = Sessions("metad://127.0.0.1:1", Options(), ["metadctl"], may_write=False, signs_in=signs_in)
        self.reached = 0
        self._admission = Admission(self._app, self.sessions, HERE)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.reached += 1

    async def __call__(self, path: str, *, kind: str = "http", method: str = "GET", **headers: str) -> int:
        """The status; 0 if it got through, 1008 for a WebSocket that is closed."""
        sent: list[MutableMapping[str, Any]] = []
        given = {"host": "127.0.0.1:8480", **headers}
        scope = {"type": kind, "method": method, "path": path.partition("?")[0], "query_string": path.encode()}
        scope["headers"] = [(name.encode(), value.encode()) for name, value in given.items()]
        scope["query_string"] = path.partition("?")[2].encode()

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": b"token=" + b"x" * 20_000}

        before = self.reached
        await self._admission(scope, receive, send)
        if self.reached > before:
            return 0
        return int(sent[0].get("status", sent[0].get("code", -1)))


async def test_without_a_session_there_is_the_sign_in_and_nothing_else() -> None:
    asked = Asked(signs_in=True)
    assert await asked("/sign-in") == 200
    assert await asked("/console/style.css") == 200
    assert await asked("/_nicegui/3/static/x.js") == 0, "the framework's own files are no secret"
    for path in ("/", "/records?kind=kv", "/sign-in/../records"):
        assert await asked(path) == 303, path
    for path in ("/console/../cli.py", "/console/missing.js", "/console/sign_in.html", "/console/static/keys.js"):
        assert await asked(path) == 404, path
    socket = "/_nicegui_ws/socket.io/?client_id=x"
    assert await asked(socket, kind="websocket", origin="http://127.0.0.1:8480") == 1008
    assert await asked(socket) == 401
    await asked.sessions.close()


async def test_a_websocket_is_let_in_for_a_page_of_its_own_session_only() -> None:
    asked = Asked(signs_in=False)
    own = asked.sessions.own
    assert own is not None
    own.pages["mine"] = lambda: None
    for page, origin, status in (
        ("mine", "http://127.0.0.1:8480", 0),
        ("other", "http://127.0.0.1:8480", 1008),
        ("mine", "http://evil.example", 1008),
        ("mine", "", 1008),
    ):
        given = {"origin": origin} if origin else {}
        assert await asked(f"/_nicegui_ws/socket.io/?client_id={page}", kind="websocket", **given) == status, origin
    assert await asked("/", method="POST", origin="http://127.0.0.1:8480") == 405
    await asked.sessions.close()


async def test_a_session_ends_when_nobody_looks_for_long_or_after_a_day() -> None:
    session = Session("metad://127.0.0.1:1", Options(), ["metadctl"], may_write=False, own=False)
    now_s = session.began_s
    assert not session.is_over(now_s + IDLE_S - 1)
    assert session.is_over(now_s + IDLE_S + 1)
    session.pages["open"] = lambda: None
    assert not session.is_over(now_s + AGE_S - 1), "a page that is open is somebody who looks"
    assert session.is_over(now_s + AGE_S + 1)
    await session.close()
    assert not session.pages
    with pytest.raises(ClosedError):
        await session.client()


async def test_open_pages_are_bounded() -> None:
    asked = Asked(signs_in=False)
    own = asked.sessions.own
    assert own is not None
    for number in range(PAGES_MAX - 1):
        own.pages[str(number)] = lambda: None
    assert await asked("/") == 0
    own.pages["one more"] = lambda: None
    assert await asked("/") == 429
    await asked.sessions.close()
