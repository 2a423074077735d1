"""Pages that stay open through faults: none hangs, and none shows old numbers as if they were new. And a client of the
cluster that puts into a session what may be put there cannot break the page of those who look at it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from browsing import Browser, Console
from e2e_nodes import Nodes
from e2e_server import free_ports

from metad_client import SessionProperties, SessionTakeoverItem, blocking
from metad_client.limits import KEY_BYTES_MAX
from waiting import wait_until

OLD = "The cluster has not answered since"
SILENT = "The nodes have said nothing since"
LIVE = {"/": OLD, "/cluster": OLD, "/storm": OLD, "/disks": OLD, "/watch?table=kv&tenant=config": SILENT}
"""Pages that change by themselves, and what they say once they cannot."""
READ = "/records?kind=kv&scope=config"
HTML = "<b onmouseover=hacked=5>{{constructor.constructor('hacked=6')()}}</b>"
LINES = "one\r\ntwo\u2028three\x00\x1b[31m"
TURNED = "safe\u202edlo"
LONG = "x" * (KEY_BYTES_MAX - 64)


class World:
    """Three nodes, a console of them at an address of its own, and a client."""

    def __init__(self, home: Path, nodes: Nodes, client: blocking.BlockingClient) -> None:
        self.home, self.nodes, self.client = home, nodes, client
        self.address = f"127.0.0.1:{free_ports(1)[0]}"

    def console(self) -> Console:
        return Console(self.home, "--endpoint", self.nodes.where, "--listen", self.address)

    def at(self, path: str) -> str:
        return f"http://{self.address}{path}"

    @contextmanager
    def stopped(self, *names: str) -> Iterator[None]:
        """Nodes that take connections and answer nothing."""
        processes = [self.nodes.servers[name].process for name in names]
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for process in processes:
                process.send_signal(signal.SIGCONT)


@pytest.fixture(scope="module")
def world(chromium: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home = tmp_path_factory.mktemp("faults")
    with Nodes(home) as nodes, blocking.connect(nodes.url) as client:
        client.kv.put("config", "greeting", b"hello")
        life = client.brokers.register("broker-1", lease_s=600)
        sessions = [
            SessionTakeoverItem("hostile", name, True, SessionProperties(3_600, name.encode() * 8))
            for name in (HTML, LINES, TURNED, LONG)
        ]
        client.sessions.takeover_many(life.broker, life.epoch, sessions).raise_for_error()
        yield World(home, nodes, client)


@pytest.fixture
def console(world: World) -> Iterator[Console]:
    with world.console() as console:
        yield console


@contextmanager
def opened(world: World, browser: Browser, *paths: str) -> Iterator[dict[str, str]]:
    """A tab for each page, by its path; only the first tab is left behind."""
    first, tabs = browser.driver.current_window_handle, dict[str, str]()
    for path in paths:
        browser.driver.switch_to.new_window("tab")
        browser.open(world.at(path))
        browser.find("h1")
        tabs[path] = browser.driver.current_window_handle
    yield tabs
    for tab in tabs.values():
        browser.driver.switch_to.window(tab)
        browser.driver.close()
    browser.driver.switch_to.window(first)


def test_what_a_client_puts_into_a_session_is_text(world: World, console: Console, browser: Browser) -> None:
    """In the table, in the record and in the watch; what is invisible is shown as JSON writes it."""
    browser.open(world.at("/records?kind=session&scope=hostile"))
    browser.sees("page 1: 4 records", "<b onmouseover", "xxxx")
    assert "one\\r\\ntwo\\u2028three\\x00\\x1b[31m" in browser.text
    assert "safe\\u202edlo" in browser.text
    browser.press("one")
    browser.sees("One record of session", "one\\r\\ntwo\\u2028three\\u0000\\u001b[31m")
    browser.press("Close", ".record")
    browser.press("safe")
    browser.sees("safe\\u202edlo")
    assert not {"\u202e", "\u2028"} & set(browser.run("return document.body.textContent"))
    browser.open(world.at("/watch?table=session&tenant=hostile"))
    browser.sees("watching")
    again = [SessionTakeoverItem("hostile", name) for name in (HTML, LINES, TURNED, LONG)]
    world.client.sessions.takeover_many("broker-2", 1, again).raise_for_error()
    browser.sees("<b onmouseover", "one\\r\\n")
    browser.looks(390, dark=False)
    assert browser.run("return document.documentElement.scrollWidth") <= 390
    browser.looks(1200, dark=False)
    assert browser.run("return window.hacked") is None
    assert browser.complaints() == []


def test_pages_say_that_they_are_old_while_no_node_answers(world: World, console: Console, browser: Browser) -> None:
    with opened(world, browser, *LIVE, READ) as tabs:
        browser.sees("greeting")
        browser.driver.switch_to.window(tabs["/watch?table=kv&tenant=config"])
        browser.sees("watching")
        with world.stopped(*world.nodes.servers):
            for path, text in LIVE.items():
                browser.driver.switch_to.window(tabs[path])
                browser.sees(text)
            browser.driver.switch_to.window(tabs[READ])
            browser.press("Read again")
            browser.sees("records of kv of config")
            assert browser.find(".problem", "")
        for path, text in LIVE.items():
            browser.driver.switch_to.window(tabs[path])
            browser.sees_no_more(text)
        world.client.kv.put("config", "later", b"x")
        browser.sees("later")
        browser.driver.switch_to.window(tabs[READ])
        browser.press("Read again")
        browser.sees("later", "page 1: 2 records")
        assert not browser.text.count("No answer in time")
    browser.complaints()


def test_a_slow_node_is_named_and_the_others_are_read(world: World, console: Console, browser: Browser) -> None:
    """It leads some groups, which other nodes lead soon. Until then a page of records says that nobody answers."""
    with opened(world, browser, "/", READ) as tabs:
        leader = world.client.cluster.map().leaders["data-0"]
        with world.stopped(leader):
            browser.driver.switch_to.window(tabs["/"])
            browser.sees(f"node_unreachable: {leader}")
            browser.driver.switch_to.window(tabs[READ])

            def is_read() -> bool:
                before = browser.text
                browser.press("Read again")
                wait_until(lambda: "reading" not in browser.text and browser.text != before, "an answer or a reason")
                return "could not be read" not in browser.text and "No answer in time" not in browser.text

            wait_until(is_read, "the records, from other nodes")
            browser.sees("greeting")
            browser.driver.switch_to.window(tabs["/"])
            assert OLD not in browser.text
        browser.sees("OK: 3 of 3 nodes up")
    browser.complaints()


def test_a_page_goes_on_when_nodes_were_started_again(world: World, console: Console, browser: Browser) -> None:
    with opened(world, browser, "/", "/watch?table=kv&tenant=config") as tabs:
        browser.sees("watching")
        for tab in tabs.values():
            browser.driver.switch_to.window(tab)
            browser.run("window.stays = true")
        for name in world.nodes.servers:
            world.nodes.kill(name)
        browser.driver.switch_to.window(tabs["/"])
        browser.sees(OLD, "could not be read")
        world.nodes.start_all([*world.nodes.servers])
        browser.sees("OK: 3 of 3 nodes up")
        assert OLD not in browser.text
        browser.driver.switch_to.window(tabs["/watch?table=kv&tenant=config"])
        world.client.kv.put("config", "after-the-restart", b"x")
        browser.sees("after-the-restart")
        for tab in tabs.values():
            browser.driver.switch_to.window(tab)
            assert browser.run("return window.stays") is True
    browser.complaints()


def test_a_page_of_a_console_that_was_started_again_is_loaded_anew(world: World, browser: Browser) -> None:
    """Also one of a laptop that has slept: its page is over. Meanwhile it says that the connection is lost."""
    with world.console() as console:
        browser.open(world.at("/cluster"))
        browser.sees("data-0")
        console.process.send_signal(signal.SIGSTOP)
        browser.sees("Connection lost")
        console.process.send_signal(signal.SIGCONT)
        browser.sees_no_more("Connection lost")
        browser.sees("data-0")
    browser.sees("Connection lost")
    browser.run("window.stays = true")
    with world.console():
        wait_until(lambda: browser.run("return !window.stays && document.readyState === 'complete'"), "a new page", 60)
        browser.sees("data-0")
        assert browser.run("return location.pathname") == "/cluster"
        browser.open("about:blank")
    browser.complaints()
