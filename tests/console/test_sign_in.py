"""Who may see what: people sign in with tokens on a cluster that checks, each sees what his roles allow, and signing
out ends his client at the nodes. And what a stranger would try without a browser: other names, other origins, other
people's pages."""

from __future__ import annotations

import http.client
import re
import subprocess
from collections.abc import Iterator
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from browsing import CONSOLE, Browser, Console
from e2e_nodes import NAMES, Nodes

from metad_client import Given, Options, blocking
from metad_console.sessions import SESSIONS_MAX
from metad_wire.operator.authority import issue_fleet
from metad_wire.operator.tokens import line_of, new_token
from metad_wire.transport.credentials import TlsFiles
from waiting import WAIT_S, wait_until

READER = "metad://client/reader"


class Guarded:
    """A cluster that checks. By their tokens, ``reader`` may read tenant acme and nothing else, ``boss`` everything."""

    def __init__(self, home: Path) -> None:
        self.certs = home / "certs"
        made = issue_fleet(self.certs, NAMES, [], admins=["ops"])
        self.ops: TlsFiles = made["admin-ops"]
        self.tokens = {name: new_token(name) for name in ("reader", "boss")}
        (home / "tokens").write_text("".join(f"{line_of(token)}\n" for token in self.tokens.values()))

        def flags(name: str, _: str) -> list[str]:
            files = made[f"node-{name}"]
            return ["--tls-cert", files.certificate, "--tls-key", files.key, "--tls-ca", files.ca]

        security = f'[security]\nauthorization = true\ntokens_file = "{home}/tokens"\nadministrators = ["boss"]\n'
        self.nodes = Nodes(home, config=security, flags=flags)
        self.flags = ("--endpoint", f"metads://{self.nodes.where}", "--tls-ca", self.ops.ca)

    def client(self) -> Any:
        return blocking.connect(f"metads://{self.nodes.where}", Options(tls=self.ops, deadline_s=WAIT_S))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    guarded = Guarded(tmp_path_factory.mktemp("guarded"))
    with guarded.nodes:
        with guarded.client() as ops:
            ops.principals.put(READER, [Given("reader", "acme")])
            life = ops.brokers.register("broker-1", lease_s=600)
            for tenant in ("acme", "other"):
                ops.sessions.takeover(life.broker, life.epoch, tenant, "device-1")
            ops.kv.put("acme", "greeting", b"hello")

            def known() -> bool:
                return all(ops.principals.may(principal=READER, node=node).roles for node in NAMES)

            wait_until(known, "every node knows the roles")
        yield guarded


@pytest.fixture(scope="module")
def console(guarded: Guarded, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    with Console(tmp_path_factory.mktemp("console"), *guarded.flags, "--sign-in", "--write") as console:
        yield console


def sign_in(browser: Browser, console: Console, token: str) -> None:
    browser.open(console.url)
    browser.sees("Your token")
    browser.find("input[name=token]").send_keys(token)
    browser.press("Sign in")


def connections(guarded: Guarded) -> int:
    """Of clients, with all nodes, without the one that asks."""
    with guarded.client() as ops:
        statuses = ops.cluster.statuses().values()
        return sum(status.connections for status in statuses) - len(statuses)


# --- in a browser ---


def test_a_person_sees_what_he_may_and_signing_out_ends_his_client(
    guarded: Guarded, console: Console, browser: Browser
) -> None:
    wait_until(lambda: connections(guarded) == 0, "nobody is connected")
    sign_in(browser, console, "reader.wrong")
    browser.sees("You are not signed in")
    assert browser.run("return document.cookie") == ""
    browser.complaints()  # the browser notes the status 401
    browser.find("input[name=token]").send_keys(guarded.tokens["reader"])
    browser.press("Sign in")
    browser.sees("client/reader", "You may not read the state of the cluster.")
    assert connections(guarded) > 0
    browser.open(f"{console.url}/records?kind=session&scope=acme")
    browser.sees("device-1", "page 1: 1 record")
    browser.open(f"{console.url}/records?kind=kv&scope=acme")
    browser.sees("greeting", "hello")
    for path, what in {
        "/records?kind=session&scope=other": "records of session of other",
        "/records?kind=session": "records of session",
        "/brokers": "brokers",
        "/audit": "the audit trail",
        "/busy": "what n1, n2 and n3 saw",
        "/events": "what has changed",
        "/watch?table=session&tenant=other": "these changes",
    }.items():
        browser.open(f"{console.url}{path}")
        browser.sees(f"You may not read {what}.")
        assert "device-1" not in browser.text
        assert "Traceback" not in browser.text
    browser.open(f"{console.url}/records?kind=kv&scope=acme&prefix=greeting")
    browser.press("greeting")
    browser.press("Delete", ".record")
    browser.press("Do it")
    browser.sees("You may not do this.")
    browser.press("Leave it")
    assert browser.complaints() == []
    browser.press("Sign out")
    browser.sees("Your token")
    wait_until(lambda: connections(guarded) == 0, "the client of the session to be gone")
    browser.open(f"{console.url}/records?kind=session&scope=acme")
    browser.sees("Your token")


def test_another_window_of_a_session_ends_with_it(guarded: Guarded, console: Console, browser: Browser) -> None:
    sign_in(browser, console, guarded.tokens["boss"])
    browser.sees("3 of 3 nodes up")
    first = browser.driver.current_window_handle
    browser.driver.switch_to.new_window("tab")
    browser.open(f"{console.url}/cluster")
    browser.sees("data-0")
    browser.press("Sign out")
    browser.sees("Your token")
    browser.driver.close()
    browser.driver.switch_to.window(first)
    browser.sees("Your token")
    wait_until(lambda: connections(guarded) == 0, "the client of the session to be gone")


def test_certificates_say_when_they_end(guarded: Guarded, console: Console, browser: Browser) -> None:
    sign_in(browser, console, guarded.tokens["boss"])
    browser.sees("3 of 3 nodes up")
    browser.open(f"{console.url}/disks")
    browser.sees("Certificates of the nodes", "GiB")
    wait_until(lambda: browser.text.count("fine") >= 10, "three disks, six files of nodes and an authority")
    browser.press("Sign out")
    browser.sees("Your token")


# --- without one ---


def asked(
    console: Console, method: str, path: str, *, host: str = "", cookie: str = "", body: str = "", **headers: str
) -> http.client.HTTPResponse:
    """The answer to one request; ``headers`` with _ for -."""
    connection = http.client.HTTPConnection(console.address, timeout=30)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host or console.address)
    if cookie:
        connection.putheader("Cookie", f"metad_console={cookie}")
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    if method == "POST":
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body.encode())
    answer = connection.getresponse()
    answer.text = answer.read().decode() if answer.status != 101 else ""  # type: ignore[attr-defined]
    answer.close()
    connection.close()
    return answer


def signed_in(console: Console, token: str) -> str:
    """A cookie."""
    answer = asked(console, "POST", "/sign-in", body=urlencode({"token": token}), Origin=console.url)
    assert (answer.status, answer.headers["location"]) == (303, "/")
    cookie = SimpleCookie(answer.headers["set-cookie"])["metad_console"]
    assert cookie["httponly"]
    assert cookie["samesite"] == "Strict"
    return cookie.value


SOCKET = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec_WebSocket_Key": "x3JJHMbDL1EzLkh9GBhXDw==",
    "Sec_WebSocket_Version": "13",
}


def socket_path(page: str) -> str:
    return f"/_nicegui_ws/socket.io/?EIO=4&transport=websocket&client_id={page}&implicit_handshake=false"


def test_a_page_of_another_site_reaches_nothing(guarded: Guarded, console: Console) -> None:
    """Neither under a name that it has pointed here, nor from its own origin, by form, script or WebSocket."""
    cookie = signed_in(console, guarded.tokens["boss"])
    page = page_of(asked(console, "GET", "/", cookie=cookie))
    port = console.address.rpartition(":")[2]
    for path in ("/", "/sign-in", "/console/style.css", socket_path(page)):
        rebound = asked(console, "GET", path, host=f"evil.example:{port}", cookie=cookie)
        assert rebound.status == 421, path
    for origin in ("http://evil.example", f"https://{console.address}", "null", f"http://localhost:{port}"):
        for path in ("/sign-in", "/sign-out"):
            assert asked(console, "POST", path, cookie=cookie, Origin=origin).status == 403, (path, origin)
        assert asked(console, "GET", socket_path(page), cookie=cookie, Origin=origin, **SOCKET).status == 403, origin
        assert asked(console, "GET", "/", cookie=cookie, Origin=origin).status == 403
    assert asked(console, "POST", "/sign-out", cookie=cookie).status == 403  # what says nothing of its origin
    assert asked(console, "GET", socket_path(page), cookie=cookie, **SOCKET).status == 403
    assert asked(console, "GET", "/", cookie=cookie).status == 200, "the session is untouched"
    assert asked(console, "GET", socket_path(page), cookie=cookie, Origin=console.url, **SOCKET).status == 101
    assert asked(console, "POST", "/sign-out", cookie=cookie, Origin=console.url).status == 303


def test_a_page_belongs_to_its_session(guarded: Guarded, console: Console) -> None:
    """Who knows the id of someone's page has no use for it, with a session of his own or without one."""
    boss, reader = (signed_in(console, guarded.tokens[name]) for name in ("boss", "reader"))
    page = page_of(asked(console, "GET", "/", cookie=boss))
    for cookie in (reader, "", "guessed"):
        assert asked(console, "GET", socket_path(page), cookie=cookie, Origin=console.url, **SOCKET).status == 403
    polling = socket_path(page).replace("websocket", "polling")
    assert asked(console, "GET", polling, cookie=reader).status == 403
    for cookie in (boss, reader):
        asked(console, "POST", "/sign-out", cookie=cookie, Origin=console.url)
        answer = asked(console, "GET", "/", cookie=cookie)
        assert (answer.status, answer.headers["location"]) == (303, "/sign-in")
    wait_until(lambda: connections(guarded) == 0, "both clients to be gone")


def test_sessions_are_bounded_and_make_room_when_they_end(guarded: Guarded, console: Console) -> None:
    cookies = [signed_in(console, guarded.tokens["reader"]) for _ in range(SESSIONS_MAX)]
    form = urlencode({"token": guarded.tokens["reader"]})
    full = asked(console, "POST", "/sign-in", body=form, Origin=console.url)
    assert full.status == 429
    assert "there is no room for more" in full.text  # type: ignore[attr-defined]
    asked(console, "POST", "/sign-out", cookie=cookies.pop(), Origin=console.url)
    cookies.append(signed_in(console, guarded.tokens["reader"]))
    assert len(set(cookies)) == SESSIONS_MAX
    for cookie in cookies:
        asked(console, "POST", "/sign-out", cookie=cookie, Origin=console.url)
    wait_until(lambda: connections(guarded) == 0, "all clients to be gone")


def page_of(answer: http.client.HTTPResponse) -> str:
    found = re.search(r"'client_id': '([0-9a-f-]{36})'", answer.text)  # type: ignore[attr-defined]
    assert found is not None
    return found[1]


def test_pages_may_not_be_framed_and_load_nothing_from_elsewhere(guarded: Guarded, console: Console) -> None:
    cookie = signed_in(console, guarded.tokens["reader"])
    answer = asked(console, "GET", "/", cookie=cookie, X_Forwarded_Prefix="//evil.example")
    policy = answer.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in policy
    assert "default-src 'self'" in policy
    assert "evil.example" not in answer.text  # type: ignore[attr-defined]
    assert re.findall(r"https?://(?!www\.w3\.org/)[\w.]+", answer.text) == []  # type: ignore[attr-defined]
    assert answer.headers["server"] is None
    asked(console, "POST", "/sign-out", cookie=cookie, Origin=console.url)


def test_a_form_that_is_too_long_and_a_wrong_one_are_answered(console: Console) -> None:
    for body in ("token=" + "x" * 100_000, "", "token=%ff%fe", "a" * 16_000):
        answer = asked(console, "POST", "/sign-in", body=body, Origin=console.url)
        assert answer.status == 401
        assert "You are not signed in" in answer.text  # type: ignore[attr-defined]


def test_the_console_does_not_open_to_strangers(guarded: Guarded) -> None:
    """Beyond loopback there is no console without TLS, and none without a sign-in."""
    ca, node = guarded.ops.ca, guarded.certs / "node-n1"
    https = ("--https-cert", f"{node}.pem", "--https-key", f"{node}-key.pem")
    for flags, why in {
        ("--listen", "0.0.0.0:0", "--host", "c.example"): "is not loopback: give --https-cert and --https-key",
        ("--listen", "0.0.0.0:0", *https, "--tls-ca", ca): "name those that browsers use with --host",
        ("--listen", "0.0.0.0:0", "--host", "c.example", *https): "give --tls-ca or --certs",
        ("--sign-in",): "give --tls-ca or --certs",
        ("--https-cert", "x"): "go together",
    }.items():
        done = subprocess.run([str(CONSOLE), *flags], capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert done.returncode == 2, flags
        assert why in done.stderr.splitlines()[-1], flags


def test_beyond_loopback_people_sign_in_over_https(guarded: Guarded, tmp_path: Path) -> None:
    import ssl

    files = guarded.certs / "node-n1"
    flags = ("--listen", "0.0.0.0:0", "--host", "console.example", "--host", "127.0.0.1")
    https = ("--https-cert", f"{files}.pem", "--https-key", f"{files}-key.pem")
    with Console(tmp_path, *guarded.flags, *flags, *https) as console:
        context = ssl.create_default_context(cafile=guarded.ops.ca)
        context.check_hostname = False
        port = int(console.address.rpartition(":")[2])
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=WAIT_S, context=context)
        host = f"console.example:{port}"
        body = urlencode({"token": guarded.tokens["reader"]})
        for path, status in (("/", 303), ("/sign-in", 200)):
            connection.request("GET", path, headers={"Host": host})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == status
            assert "max-age" in answer.headers["strict-transport-security"] if status == 200 else True
        connection.request("POST", "/sign-in", body, headers={"Host": host, "Origin": f"https://{host}"})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 303
        assert "Secure" in answer.headers["set-cookie"]
        connection.close()
