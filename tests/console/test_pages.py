"""The pages of the console on a real cluster: what each shows, by mouse, by keyboard and on a phone, and that what is
stored cannot become a part of the page."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsing import Browser, Console
from e2e_nodes import Nodes

from metad_client import KvPutItem, SessionTakeoverItem, blocking
from metad_wire.messages import Message
from waiting import WAIT_S, wait_until

METADCTL = Path(sys.executable).with_name("metadctl")

PAGES = ("/", "/cluster", "/brokers", "/records", "/watch", "/storm", "/busy", "/events", "/disks", "/audit")
SHOWS = {
    "/": "3 of 3 nodes up",
    "/cluster": "metadata-0",
    "/brokers": "broker-1",
    "/records": "device-0000",
    "/watch": "Choose what to watch",
    "/storm": "items wait",
    "/busy": "Who asks for most",
    "/events": "leader",
    "/disks": "without TLS",
    "/audit": "page 1",
}
SESSIONS, KEYS = 500, 20
GROUPS = "[groups]\ndata = 40\noffset = 23\n"
"""With metadata-0 there are 64."""
HTML = "<img src=x onerror=hacked=1>'\"><script>hacked=2</script>{{constructor.constructor('hacked=3')()}}"
LONG = "k" * 3_000


class Robot(Message, frozen=True):
    """A record of a table that a program declares."""

    tenant: str
    robot: str
    battery: int


class World:
    """A cluster, a console that may write, and a client."""

    def __init__(self, nodes: Nodes, console: Console, client: blocking.BlockingClient) -> None:
        self.nodes, self.console, self.client = nodes, console, client

    def at(self, path: str) -> str:
        return f"{self.console.url}{path}"


@pytest.fixture(scope="module")
def world(chromium: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home = tmp_path_factory.mktemp("world")
    with (
        Nodes(home, config=GROUPS) as nodes,
        blocking.connect(nodes.url) as client,
        Console(home, "--endpoint", nodes.where, "--write") as console,
    ):
        life = client.brokers.register("broker-1", address="10.0.0.1:1883", lease_s=600)
        items = [SessionTakeoverItem("acme", f"device-{number:04d}") for number in range(SESSIONS)]
        client.sessions.takeover_many(life.broker, life.epoch, items).raise_for_error()
        keys = [KvPutItem("config", f"key-{number:04d}", b"value %d" % number) for number in range(KEYS)]
        client.kv.put_many(keys).raise_for_error()
        client.kv.put("hostile", HTML, HTML.encode())
        client.kv.put("hostile", LONG, b"v" * 20_000)
        client.offsets.commit("acme", "billing", "orders", 0, 42)
        yield World(nodes, console, client)


def test_every_page_is_drawn_without_a_complaint_of_the_browser(world: World, browser: Browser) -> None:
    """On a screen, and in the dark on a phone; no page scrolls sideways. A first request warms the templates up."""
    browser.open(world.at("/"))
    figures = []
    for width, dark in ((1200, False), (390, True)):
        browser.looks(width, dark=dark)
        for path in PAGES:
            browser.open(world.at(path))
            browser.sees(SHOWS[path])
            browser.shot(f"{path.strip('/') or 'overview'}-{width}-{'dark' if dark else 'light'}")
            assert browser.run("return document.body.classList.contains('body--dark')") is dark
            wide = browser.run("return [document.documentElement.scrollWidth, window.innerWidth]")
            assert wide[0] <= wide[1], f"{path} is {wide[0]} wide on {wide[1]}"
            figures.append((path, width, *browser.timings()))
    assert browser.complaints() == []
    for path, width, server_ms, paint_ms in figures:
        print(f"{path:10} {width:5} px: server {server_ms:6.1f} ms, first paint after {paint_ms:6.1f} ms")
    # The bars are 300 and 1000. A machine that does other work is slow: these say that nothing waits for a deadline.
    assert max(server_ms for _, _, server_ms, _ in figures) < 2_500
    assert max(paint_ms for *_, paint_ms in figures) < 5_000
    browser.looks(1200, dark=False)


def test_the_verdict_is_that_of_metadctl(world: World, browser: Browser) -> None:
    world.nodes.kill("n3")
    browser.open(world.at("/"))
    browser.sees("WARNING: 2 of 3 nodes up", "node_unreachable: n3", "group_under_replicated")
    command = [str(METADCTL), "--endpoint", world.nodes.where, "status"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True).stdout
    assert browser.find(".verdict").text == said.splitlines()[0]
    world.nodes.restart("n3")
    browser.sees("OK: 3 of 3 nodes up")
    browser.complaints()


def test_records_are_read_page_by_page(world: World, browser: Browser) -> None:
    browser.open(world.at("/records?kind=session&scope=acme"))
    browser.sees("page 1: 200 records, and there are more", "device-0199")
    assert "device-0200" not in browser.text
    browser.press("Next")
    browser.sees("page 2: 200 records", "device-0200")
    browser.types("n")
    browser.sees("page 3: 100 records", "device-0499")
    assert browser.find("button.next").get_attribute("disabled")
    browser.types("b")
    browser.sees("page 2", "device-0200")
    browser.open(world.at("/records?kind=session&scope=acme&prefix=device-049"))
    browser.sees("page 1: 10 records", "device-0490")
    browser.open(world.at("/records?kind=offset&scope=acme"))
    browser.sees("Give a consumer group")
    browser.open(world.at("/records?kind=offset&scope=acme&group=billing"))
    browser.sees("orders", "42")


def test_a_table_that_a_program_declared_is_shown(world: World, browser: Browser) -> None:
    table = world.client.tables.declare("robots", Robot, kind="metadata", key=["tenant", "robot"], routing=["tenant"])
    world.client.table(table).put(Robot("acme", "r2", 71))
    browser.open(world.at("/records"))
    browser.sees("device-0000")
    wait_until(lambda: browser.run("return !!document.querySelector('option[value=robots]')"), "the choice")
    browser.open(world.at("/records?kind=robots&scope=acme"))
    browser.sees("r2", "71")
    browser.open(world.at("/records?kind=nothing"))
    browser.sees("records of nothing could not be read")


def test_what_is_stored_is_text_whatever_is_in_it(world: World, browser: Browser) -> None:
    """HTML and templates in keys and values, in the table, in the record, in what asks, in a watch, in the address."""
    browser.open(world.at("/records?kind=kv&scope=hostile"))
    browser.sees("<img src=x onerror=")
    browser.press("<img")
    browser.sees("hacked=2", "create_revision")
    browser.press("Delete", ".record")
    browser.sees("The same from a shell", "delete kv hostile")
    browser.press("Leave it")
    browser.open(world.at("/watch?table=kv&tenant=hostile"))
    browser.sees("watching")
    world.client.kv.put("hostile", HTML, HTML.encode() * 2)
    browser.sees("CHANGED", "<img src=x onerror=")
    for path in ("/records?kind={0}&scope={0}&prefix={0}", "/watch?table={0}", "/brokers?prefix={0}", "/audit?who={0}"):
        browser.open(world.at(path.format("%3Cimg%20src%3Dx%20onerror%3Dwindow.hacked%3D4%3E{{constructor}}")))
        browser.find("h1")
    assert browser.run("return window.hacked") is None
    assert [said for said in browser.complaints() if "hacked" in said] == []
    browser.looks(390, dark=False)
    browser.open(world.at("/records?kind=kv&scope=hostile"))
    browser.sees("kkkk")
    assert browser.run("return document.documentElement.scrollWidth") <= 390
    browser.press("kkkk")
    browser.sees("create_revision")
    assert browser.run("return document.documentElement.scrollWidth") <= 390
    browser.looks(1200, dark=False)


def test_a_watch_shows_what_changes_in_a_short_list(world: World, browser: Browser) -> None:
    browser.open(world.at("/watch?table=kv&tenant=config"))
    browser.sees("watching; 0 changes seen")
    world.client.kv.put_many(
        [KvPutItem("config", f"watched-{number}", b"x") for number in range(260)]
    ).raise_for_error()
    browser.sees("260 changes seen", "watched-259")
    assert browser.run("return document.querySelectorAll('.table tbody tr').length") == 200
    browser.types("p")
    browser.sees("paused")
    world.client.kv.put("config", "while-paused", b"x")
    browser.sees("261 changes seen")
    assert "while-paused" not in browser.text
    browser.types("p")
    browser.sees("while-paused")


def test_a_storm_is_seen(world: World, browser: Browser) -> None:
    browser.open(world.at("/storm"))
    browser.press("Count from now on")
    browser.sees("counting, 0 since")
    items = [SessionTakeoverItem("storm", f"device-{number}") for number in range(500)]
    with blocking.connect(world.nodes.url) as other:
        life = other.brokers.register("broker-2", lease_s=600)
        other.sessions.takeover_many(life.broker, life.epoch, items).raise_for_error()
    browser.sees("counting, 500 since")
    assert browser.run("return document.querySelectorAll('.chart canvas').length") == 5


def test_who_asks_for_most_is_named(world: World, browser: Browser) -> None:
    browser.open(world.at("/busy"))
    for number in range(50):
        world.client.kv.put("loudest", f"key-{number}", b"x")
    browser.sees("tenant", "loudest")


def test_the_keyboard_is_enough(world: World, browser: Browser) -> None:
    browser.open(world.at("/cluster"))
    browser.sees("data-0")
    assert browser.tab() == "To the content"
    browser.types("\ue007")  # Enter
    assert browser.run("return document.activeElement.tagName") == "MAIN"
    row = browser.find("button.cell-link", "data-0")
    browser.run("arguments[0].focus(); arguments[0].marked = true", row)
    number = _uptime(browser)
    wait_until(lambda: _uptime(browser) != number, "the table to change")
    assert browser.run("return document.activeElement.marked") is True, "the focus was lost with the next reading"
    for number, path in enumerate(PAGES, 1):
        browser.types(str(number % 10))
        wait_until(lambda path=path: browser.run("return location.pathname") == path, path)  # type: ignore[misc]
        browser.sees(SHOWS[path])
        assert browser.find("a[aria-current=page]")
    browser.types("/")
    assert browser.run("return document.activeElement.tagName") == "INPUT"
    browser.types("3?")
    assert browser.run("return document.activeElement.value") == "3?", "keys are text in a field"
    browser.run("document.activeElement.blur()")
    browser.types("?")
    browser.sees("to the first field")
    browser.press("Close", "dialog")
    browser.press("Light or dark")
    assert browser.run("return document.body.classList.contains('body--dark')") is True
    browser.open(world.at("/"))
    browser.sees("3 of 3")
    assert browser.run("return document.body.classList.contains('body--dark')") is True, "the choice was forgotten"
    browser.driver.delete_all_cookies()


def _uptime(browser: Browser) -> str:
    return str(browser.run("return document.querySelector('.table tbody td:last-child').innerText"))


def test_an_action_asks_shows_the_command_and_is_done(world: World, browser: Browser) -> None:
    browser.open(world.at("/records?kind=kv&scope=config&prefix=key-0007"))
    browser.press("key-0007")
    browser.press("Delete", ".record")
    browser.sees("Delete key key-0007", f"metadctl --endpoint {world.nodes.where} delete kv config key-0007")
    assert world.client.kv.get("config", "key-0007") is not None
    browser.press("Do it")
    wait_until(lambda: world.client.kv.get("config", "key-0007") is None, "the deletion")
    browser.sees("Done: Delete key key-0007")


def test_a_record_that_was_written_meanwhile_stays(world: World, browser: Browser) -> None:
    browser.open(world.at("/records?kind=kv&scope=config&prefix=key-0008"))
    browser.press("key-0008")
    browser.press("Delete", ".record")
    world.client.kv.put("config", "key-0008", b"newer")
    browser.press("Do it")
    browser.sees("version")
    assert world.client.kv.get("config", "key-0008") is not None
    browser.press("Leave it")


def test_a_leader_is_moved_and_a_node_that_is_needed_stays(world: World, browser: Browser) -> None:
    browser.open(world.at("/cluster"))
    browser.press("data-1")
    chosen = browser.find(".ask button", "To ")
    target = chosen.text.removeprefix("To ")
    chosen.click()
    browser.press("Do it")
    wait_until(lambda: world.client.cluster.map().leaders["data-1"] == target, "another leader")
    browser.sees("Done: Move the leader of data-1")
    browser.press("n3", ".table")
    browser.press("Do it")
    browser.sees("This is not n3.")
    browser.find(".ask input").send_keys("n3")
    browser.press("Do it")
    browser.sees("with 2 of 3 replicas")
    browser.press("Leave it")


def test_a_broker_is_fenced_and_a_tenant_ended(world: World, browser: Browser) -> None:
    with blocking.connect(world.nodes.url) as other:
        life = other.brokers.register("broker-9", lease_s=600)
        other.sessions.takeover(life.broker, life.epoch, "gone", "device-1")
    browser.open(world.at("/brokers?prefix=broker-9"))
    browser.press("broker-9")
    browser.sees(f"brokers fence broker-9 --epoch {life.epoch}")
    browser.press("Do it")
    wait_until(lambda: world.client.brokers.get("broker-9").state == "fenced", "the end of the life")
    browser.open(world.at("/records?kind=session&scope=gone"))
    browser.press("End tenant gone")
    browser.find(".ask input").send_keys("gone")
    browser.press("Do it")
    wait_until(lambda: world.client.sessions.get("gone", "device-1") is None, "the end of the tenant")


def test_without_write_there_is_nothing_to_change(world: World, browser: Browser, tmp_path: Path) -> None:
    with Console(tmp_path, "--endpoint", world.nodes.where) as console:
        browser.open(f"{console.url}/records?kind=kv&scope=config&prefix=key-0001")
        browser.press("key-0001")
        browser.sees("create_revision", "reads only")
        assert "Delete" not in browser.text
        browser.open(f"{console.url}/cluster")
        browser.sees("data-0")
        assert browser.run("return document.querySelectorAll('button.cell-link').length") == 0


def test_a_cluster_that_is_away_is_said_to_be(browser: Browser, tmp_path: Path) -> None:
    with Console(tmp_path, "--endpoint", "127.0.0.1:1") as console:
        for path in PAGES:
            browser.open(f"{console.url}{path}")
            browser.find("h1")
        browser.open(f"{console.url}/")
        browser.sees("the state of the cluster could not be read")
        browser.open(f"{console.url}/records")
        browser.sees("records of session could not be read")
        assert "Traceback" not in browser.text
        browser.open("about:blank")
