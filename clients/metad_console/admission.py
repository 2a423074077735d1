"""What every request meets first: which host it asks for, where it comes from, and whose session it has. ASGI, by hand.

A page of another site in the same browser may send requests here, also under a name of its own that it has pointed at
this address (DNS rebinding). So only requests for known hosts are answered, and those that a page of another origin
makes are refused, WebSockets included. Signing in and out are plain forms: no page of the console is built before a
session is there.
"""

from __future__ import annotations

import html
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from importlib.resources import files
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

from metad_client.errors import MetadError

from .sessions import PAGES_MAX, Sessions, TooManyError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

FORM_BYTES_MAX: Final = 16_384
"""A form has a token, of which nodes take 8 KB at most."""
COOKIE: Final = "metad_console"
SOCKET: Final = "/_nicegui_ws/"
_LIBRARY: Final = "/_nicegui/"
_OWN: Final = "/console/"
_TYPES: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_POLICY: Final = (
    # The framework builds its templates in the browser, which needs eval; nothing is loaded from anywhere else.
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:; connect-src 'self'; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
_HEADERS: Final = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),  # with none at all, forms would not say where they come from
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


class Place(NamedTuple):
    """Where the console is served."""

    hosts: frozenset[str]
    """What browsers may send as Host, with the port where it is not the scheme's."""
    encrypted: bool

    @property
    def scheme(self) -> str:
        """How the addresses of its pages are begun: ``http`` or ``https``."""
        return "https" if self.encrypted else "http"

    def is_host(self, host: str) -> bool:
        """Whether a browser that sends this Host means the console."""
        return host.lower() in self.hosts

    def is_origin(self, origin: str, host: str) -> bool:
        """Whether a page of this origin is one of the console, at the same host."""
        parts = urlsplit(origin)
        return parts.scheme == self.scheme and parts.netloc.lower() == host.lower() and self.is_host(host)


def hosts_of(names: Iterable[str], port: int, *, encrypted: bool) -> frozenset[str]:
    """What browsers send as Host for these names: a name that has no port of its own gets that of the console."""
    found = set[str]()
    for name in map(str.lower, names):
        has_port = ":" in name.rpartition("]")[2] if name.startswith("[") else name.count(":") == 1
        if not has_port and ":" in name and not name.startswith("["):
            name = f"[{name}]"  # an address of IPv6
        found.add(name if has_port else f"{name}:{port}")
        if not has_port and port == (443 if encrypted else 80):
            found.add(name)
    return frozenset(found)


class Admission:
    """Lets requests through to ``app`` that may be answered, with their session in ``scope["state"]["session"]``."""

    def __init__(self, app: App, sessions: Sessions, place: Place) -> None:
        self._app = app
        self._sessions = sessions
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or hand it on."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if status := self._foreign(scope, headers):
            await _refuse(scope, send, *status)
            return
        # A proxy that sets it is none that the console knows, and the framework writes it into pages.
        scope["headers"] = [(name, value) for name, value in scope["headers"] if not name.startswith(b"x-forwarded-")]
        path = scope["path"]
        if path.startswith(_OWN):
            await _file(path.removeprefix(_OWN), send)
        elif path.startswith(_LIBRARY) or path == "/favicon.ico":
            await self._app(scope, receive, _with_headers(send, self._place))
        elif path in ("/sign-in", "/sign-out"):
            await self._form(scope, headers, receive, send)
        else:
            await self._within(scope, headers, receive, send)

    def _foreign(self, scope: Scope, headers: dict[bytes, bytes]) -> tuple[int, str] | None:
        """Why a request is not answered: status and text."""
        host, origin = _text(headers.get(b"host")), headers.get(b"origin")
        if not self._place.is_host(host):
            return 421, "The console is not served under this name. Start it with --host NAME to allow one."
        if origin is not None and not self._place.is_origin(_text(origin), host):
            return 403, "A page of another site may not do this."
        writes = scope["type"] == "websocket" or scope["method"] not in ("GET", "HEAD")
        if writes and origin is None:
            return 403, "A browser says where such a request comes from, and this one does not."
        return None

    # --- with a session ---

    async def _within(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send) -> None:
        session = self._sessions.get(_key(headers)) or self._sessions.own
        path = scope["path"]
        if session is None:
            await _refuse(scope, send, 401, "", to="/sign-in")
            return
        if path.startswith(SOCKET):
            # The page that it is for was built for this session, and not for another that someone knows the page of.
            query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
            if query.get("client_id", [""])[0] not in session.pages:
                await _refuse(scope, send, 403, "This page is over.")
                return
            await self._app(scope, receive, send)
            return
        if scope["method"] not in ("GET", "HEAD"):
            await _refuse(scope, send, 405, "Pages are only read.")
            return
        if len(session.pages) >= PAGES_MAX:
            await _plain(send, 429, f"{PAGES_MAX} pages of this session are open. Close some, and come again.")
            return
        scope.setdefault("state", {})["session"] = session
        await self._app(scope, receive, _timed(_with_headers(send, self._place)))

    # --- signing in and out ---

    async def _form(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send) -> None:
        signs_in = scope["path"] == "/sign-in"
        if scope["method"] in ("GET", "HEAD"):
            if signs_in and self._sessions.own is None:
                await _answer(send, 200, sign_in_page(""), self._place)
            else:
                await _refuse(scope, send, 303, "", to="/")
            return
        if not signs_in:
            await self._sessions.end(_key(headers))
            await _answer(send, 303, b"", self._place, location="/sign-in", cookie=self._cookie("", 0))
            return
        form = parse_qs((await _body(receive)).decode("latin-1"))
        token = form.get("token", [""])[0].strip()
        try:
            session = await self._sessions.sign_in(token.encode("latin-1", "replace"))
        except TooManyError as error:
            await _answer(send, 429, sign_in_page(str(error)), self._place)
        except MetadError as error:
            await _answer(send, 401, sign_in_page(f"You are not signed in: {error}"), self._place)
        else:
            await self._sessions.end(_key(headers))  # one of the same browser, whose cookie is replaced
            await _answer(send, 303, b"", self._place, location="/", cookie=self._cookie(session.key, None))

    def _cookie(self, key: str, age_s: int | None) -> bytes:
        parts = [f"{COOKIE}={key}", "Path=/", "HttpOnly", "SameSite=Strict"]
        parts += ["Secure"] if self._place.encrypted else []
        parts += [] if age_s is None else [f"Max-Age={age_s}"]
        return "; ".join(parts).encode()


def sign_in_page(problem: str) -> bytes:
    """The form, as HTML."""
    page = files(__package__).joinpath("static", "sign_in.html").read_text("utf-8")
    said = f'<p class="problem" role="alert">{html.escape(problem)}</p>' if problem else ""
    return page.replace("<!-- problem -->", said).encode()


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("latin-1")


def _key(headers: dict[bytes, bytes]) -> str:
    try:
        cookie = SimpleCookie(_text(headers.get(b"cookie")))
    except CookieError:
        return ""
    return cookie[COOKIE].value if COOKIE in cookie else ""


async def _body(receive: Receive) -> bytes:
    """The body of a request; empty if it is too long."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > FORM_BYTES_MAX or message["type"] == "http.disconnect":
            return b""
    return body


def _with_headers(send: Send, place: Place) -> Send:
    more = [*_HEADERS, (b"strict-transport-security", b"max-age=31536000")] if place.encrypted else _HEADERS

    async def sent(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *more]
        await send(message)

    return sent


def _timed(send: Send) -> Send:
    """Say in a header how long the page took, in milliseconds."""
    begin_s = time.perf_counter()

    async def timed(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            took_ms = (time.perf_counter() - begin_s) * 1_000
            message["headers"] = [*message["headers"], (b"server-timing", b"page;dur=%.1f" % took_ms)]
        await send(message)

    return timed


async def _file(name: str, send: Send) -> None:
    """Send a file of the console's own: style and keys."""
    found = files(__package__).joinpath("static", name)
    kind = _TYPES.get(name.rpartition(".")[2])
    if "/" in name or kind is None or not found.is_file():
        await _plain(send, 404, "There is no such file.")
        return
    await _plain(send, 200, found.read_text("utf-8"), kind)


async def _plain(send: Send, status: int, text: str, kind: str = "text/plain") -> None:
    headers = [(b"content-type", f"{kind}; charset=utf-8".encode()), (b"cache-control", b"no-cache"), *_HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})


async def _answer(
    send: Send, status: int, body: bytes, place: Place, *, location: str = "", cookie: bytes = b""
) -> None:
    headers = [(b"content-type", b"text/html; charset=utf-8"), (b"cache-control", b"no-store")]
    headers += [(b"location", location.encode())] if location else []
    headers += [(b"set-cookie", cookie)] if cookie else []
    sent = _with_headers(send, place)
    await sent({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _refuse(scope: Scope, send: Send, status: int, text: str, *, to: str = "") -> None:
    """Answer with a text, send a browser elsewhere, or close a WebSocket before it is one."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": text})  # the server answers 403
    elif to and not scope["path"].startswith(SOCKET):
        headers = [(b"location", to.encode()), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
    else:
        await _plain(send, status, text)
