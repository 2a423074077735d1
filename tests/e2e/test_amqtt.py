"""MQTT brokers that share their clients through metad, as processes, with real MQTT clients: what a client has an
answer for survives kill -9 of every broker, and a client that comes to another broker finds its session there."""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from metad import embedded
from metad.config import StorageConfig
from metad.storage.rocks import RocksEngine, Shared, state_options
from metad_client import blocking
from metad_perf.mqtt.brokers import BrokerProcess
from metad_perf.mqtt.command import Device
from metad_wire.operator.authority import issue_fleet
from waiting import WAIT_S, wait_until

Start = Callable[[str], BrokerProcess]


@pytest.fixture
def url() -> Iterator[str]:
    with embedded.serve_in_thread() as server:
        yield server.url


@pytest.fixture
def start(url: str, tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def begin(name: str) -> BrokerProcess:
            running = BrokerProcess(url, name, tmp_path)
            stack.callback(running.end)
            return running

        yield begin


@pytest.fixture
def device() -> Iterator[Callable[..., Device]]:
    made: list[Device] = []

    def make(client_id: str, **settings: object) -> Device:
        one = Device(client_id, **settings)  # type: ignore[arg-type]
        made.append(one)
        return one

    yield make
    for one in made:
        one.leave()


def nothing(device: Device, publisher: Device, topic: str) -> None:
    """Nothing has come that was published before: a later message is the next one."""
    publisher.publish(topic, b"the next")
    assert device.next().payload == b"the next"


def settled(publisher: Device, subscriber: Device, topic: str) -> None:
    """The publisher's broker has heard of the subscription."""

    def arrives() -> bool:
        publisher.publish(topic, b"probe", 0)
        with suppress(queue.Empty):
            return subscriber.next(0.05).payload == b"probe"
        return False

    wait_until(arrives, f"{topic} reaches {subscriber.client_id}")
    with suppress(queue.Empty):
        while subscriber.next(0.2).payload == b"probe":
            pass


def test_a_client_finds_its_session_at_another_broker(start: Start, device: Callable[..., Device]) -> None:
    one, two = start("broker-1"), start("broker-2")
    client, other = device("client", will=("wills/client", b"gone", 1, False)), device("other")
    assert not client.connect(one.port)
    assert client.subscribe(("news/+", 1), ("wills/#", 2), ("dropped", 0)) == [1, 2, 0]
    client.unsubscribe("dropped")
    assert not other.connect(two.port)
    settled(other, client, "news/probe")
    for number in range(200):
        other.publish("news/1", b"%d" % number, number % 3)
    assert [int(client.next().payload) for _ in range(200)] == list(range(200))
    again = device("client")
    assert again.connect(two.port)
    assert client.ended.wait(WAIT_S), "the broker that it has left closes the older connection"
    other.publish("dropped", b"not for it")
    other.publish("news/2", b"there")
    assert again.next().payload == b"there", "no will: the session goes on"
    with pytest.raises(queue.Empty):
        client.next(0)
    again.leave()
    other.publish("news/3", b"away", 1)
    other.publish("news/4", b"lost", 0)
    back = device("client")
    assert back.connect(one.port)
    assert (message := back.next()).payload == b"away"
    assert not message.retain
    settled(other, back, "news/5")


def test_what_is_acknowledged_survives_every_broker(start: Start, device: Callable[..., Device], url: str) -> None:
    one, two = start("broker-1"), start("broker-2")
    away, sender, listener = device("away"), device("sender"), device("listener")
    away.connect(one.port)
    away.subscribe(("mail/away", 1))
    away.leave()
    sender.connect(two.port)
    with blocking.connect(url) as m:
        wait_until(lambda: not any(one.connected for one in m.sessions.list("mqtt", "away")), "its end is stored")
    wait_until(lambda: not listener.connect(two.port) and listener.subscribe(("mail/#", 1)) == [1], "a listener")
    settled(sender, listener, "mail/other")
    for number in range(30):
        sender.publish("mail/away", b"%d" % number)
    sender.publish("state/last", b"kept", retain=True)
    for running in (one, two):
        assert running.end() == -signal.SIGKILL
    assert listener.ended.wait(WAIT_S)
    three = start("broker-3")
    assert away.connect(three.port)
    assert [int(away.next().payload) for _ in range(30)] == list(range(30))
    away.subscribe(("state/#", 1))
    assert (message := away.next()).payload == b"kept"
    assert message.retain
    away.leave()
    assert away.connect(three.port)
    assert listener.connect(three.port)
    settled(away, listener, "mail/away")


def test_a_message_waits_if_its_subscriber_dies_with_it(start: Start, device: Callable[..., Device]) -> None:
    """The subscriber's broker is killed with messages in its memory: the publisher has no acknowledgement for them
    until they are stored."""
    one, two = start("broker-1"), start("broker-2")
    client, sender = device("client"), device("sender")
    client.connect(one.port)
    client.subscribe(("jobs", 1))
    sender.connect(two.port)
    settled(sender, client, "jobs")
    sent = [sender.client.publish("jobs", b"%d" % number, 1) for number in range(500)]
    assert client.next().payload == b"0"
    one.end()
    for message in sent:
        message.wait_for_publish(WAIT_S)
        assert message.is_published()
    got = {0} | {int(client.got.get_nowait().payload) for _ in range(client.got.qsize())}
    assert client.connect(two.port)
    while len(got) < 500:
        got.add(int(client.next().payload))
    assert got == set(range(500))


def test_a_will_is_published_once(start: Start, device: Callable[..., Device]) -> None:
    one, two = start("broker-1"), start("broker-2")
    near, far, publisher = device("near"), device("far"), device("publisher")
    for watcher, broker in ((near, one), (far, two)):
        watcher.connect(broker.port)
        watcher.subscribe(("wills/+", 1))
    publisher.connect(one.port)
    settled(publisher, far, "wills/probe")
    while near.got.qsize():
        near.next()
    orderly, broken = (device(name, will=(f"wills/{name}", b"gone", 1, True)) for name in ("orderly", "broken"))
    orderly.connect(one.port)
    orderly.leave()
    broken.connect(one.port)
    broken.vanish()
    for watcher in (near, far):
        message = watcher.next()
        assert (message.topic, message.payload, message.qos) == ("wills/broken", b"gone", 1)
        nothing(watcher, publisher, "wills/probe")
        while watcher.got.qsize():
            watcher.next()
    late = device("late")
    late.connect(two.port)
    late.subscribe(("wills/#", 1))
    assert (message := late.next()).topic == "wills/broken"
    assert message.retain


def test_the_wills_of_the_clients_of_a_killed_broker(start: Start, device: Callable[..., Device], url: str) -> None:
    """Those of the clients that do not come back, each once, by the brokers that are left."""
    brokers = [start(f"broker-{number}") for number in (1, 2, 3)]
    watcher = device("watcher")
    watcher.connect(brokers[1].port)
    watcher.subscribe(("wills/+", 1))
    clients = [device(f"c{number}", will=(f"wills/c{number}", b"gone", 1, False)) for number in range(10)]
    for client in clients:
        client.connect(brokers[0].port)
    clients[0].leave()
    with blocking.connect(url) as m:
        wait_until(lambda: not next(m.sessions.list("mqtt", "c0")).connected, "its goodbye is stored")
    brokers[0].end()
    assert clients[1].connect(brokers[2].port)
    got = sorted(watcher.next().topic for _ in range(8))
    assert got == [f"wills/c{number}" for number in range(2, 10)]
    clients[1].vanish()
    assert watcher.next().topic == "wills/c1"
    assert watcher.got.empty()


def test_a_silent_client_is_closed_and_its_will_published(start: Start, device: Callable[..., Device]) -> None:
    """It has said that it is heard every second. (amqtt alone waits for ever.)"""
    one = start("broker-1")
    watcher = device("watcher")
    watcher.connect(one.port)
    watcher.subscribe(("wills/+", 1))
    body = b"\x00\x04MQTT\x04\x0e\x00\x01" + b"".join(
        len(text).to_bytes(2, "big") + text for text in (b"silent", b"wills/silent", b"gone")
    )
    with socket.create_connection(("127.0.0.1", one.port), WAIT_S) as raw:
        raw.sendall(bytes([0x10, len(body)]) + body)
        assert raw.recv(4) == b"\x20\x02\x00\x00"
        assert watcher.next().topic == "wills/silent"
        assert raw.recv(1) == b""


def test_retained_messages_are_replaced_and_removed(start: Start, device: Callable[..., Device]) -> None:
    one, two = start("broker-1"), start("broker-2")
    publisher = device("publisher")
    publisher.connect(one.port)
    for payload in (b"old", b"new"):
        publisher.publish("state/a", payload, retain=True)
    publisher.publish("state/b", b"removed", retain=True)
    publisher.publish("state/b", b"", retain=True)
    publisher.publish("state/c", b"last", retain=True)

    subscriber = device("subscriber", clean=True)
    subscriber.connect(two.port)
    subscriber.subscribe(("state/#", 1))
    got = sorted(subscriber.next() for _ in range(2))
    assert got == [("state/a", b"new", 1, True), ("state/c", b"last", 1, True)]
    subscriber.subscribe(("state/c", 0))
    assert subscriber.next() == ("state/c", b"last", 0, True)


class Raw:
    """A connection whose packets the test writes itself."""

    def __init__(self, port: int, client_id: bytes, *, present: bool | None) -> None:
        """``present``: whether CONNACK says that there was a session; None: CONNACK is not awaited."""
        self._socket = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self.send(0x10, b"\x00\x04MQTT\x04\x00\x00\x00" + _text(client_id))
        assert present is None or self.next() == (0x20, bytes([present, 0]))

    def send(self, first: int, body: bytes) -> None:
        self._socket.sendall(bytes([first, len(body)]) + body)

    def next(self) -> tuple[int, bytes]:
        """The next packet: its first byte, and what follows the length."""
        first, length = self._socket.recv(2, socket.MSG_WAITALL)
        return first, self._socket.recv(length, socket.MSG_WAITALL) if length else b""

    def connack(self) -> bytes:
        """The next packet, which is CONNACK; nothing if the connection is closed."""
        return self._socket.recv(4, socket.MSG_WAITALL)

    def has_more(self, timeout_s: float) -> bool:
        """Whether a packet, or the end, comes in time."""
        return bool(select.select([self._socket], [], [], timeout_s)[0])

    def is_closed(self) -> bool:
        """Wait until the broker has closed the connection."""
        return self._socket.recv(1) == b""

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def _text(text: bytes) -> bytes:
    return len(text).to_bytes(2, "big") + text


def test_a_message_of_qos_2_that_has_begun_at_a_killed_broker(start: Start, device: Callable[..., Device]) -> None:
    """The publisher has PUBREC from a broker that is killed, so it does not send the message again: only PUBREL."""
    one, two, watcher = start("broker-1"), start("broker-2"), device("watcher")
    watcher.connect(two.port)
    watcher.subscribe(("exactly/#", 2))
    identifier = b"\x00\x07"
    with Raw(one.port, b"publisher", present=False) as publisher:
        publisher.send(0x34, _text(b"exactly/once") + identifier + b"paid")
        assert publisher.next() == (0x50, identifier)
        one.end()
    with Raw(two.port, b"publisher", present=True) as publisher:
        publisher.send(0x62, identifier)
        assert publisher.next() == (0x70, identifier)
        assert watcher.next() == ("exactly/once", b"paid", 2, False)
        publisher.send(0x62, identifier)
        assert publisher.next() == (0x70, identifier), "an answer to what is done already"
        for copy in (0x34, 0x3C, 0x3C):  # it may send the message itself again as long as it has no PUBREC
            publisher.send(copy, _text(b"exactly/once") + identifier + b"again")
            assert publisher.next() == (0x50, identifier)
        publisher.send(0x62, identifier)
        assert publisher.next() == (0x70, identifier)
        assert watcher.next().payload == b"again"
    with Raw(two.port, b"publisher", present=True) as publisher:
        publisher.send(0x62, identifier)
        assert publisher.next() == (0x70, identifier)
        publisher.send(0x34, _text(b"exactly/last") + identifier + b"last")
        assert publisher.next() == (0x50, identifier)
        publisher.send(0x62, identifier)
        assert watcher.next().payload == b"last"


@pytest.mark.parametrize(
    ("waits", "dies"), [(False, False), (True, False), (True, True)], ids=["at-once", "has-waited", "broker-dies"]
)
def test_a_message_of_qos_2_that_a_subscriber_has_comes_once(
    start: Start, device: Callable[..., Device], waits: bool, dies: bool
) -> None:
    """The subscriber has sent PUBREC and has PUBREL from one broker, and answers PUBCOMP to another."""
    one, two, sender = start("broker-1"), start("broker-2"), device("sender")
    sender.connect(two.port)
    with Raw(one.port, b"client", present=False) as client:
        subscribed(sender, client, b"exactly/once", qos=b"\x02")
        if waits:
            client.send(0xE0, b"")
            assert client.is_closed()
            sender.publish("exactly/once", b"paid", 2)
            client = Raw(one.port, b"client", present=True)
        else:
            sent = sender.client.publish("exactly/once", b"paid", 2)
        first, body = client.next()
        assert (first, body[-4:]) == (0x34, b"paid")
        identifier = body[14:16]
        client.send(0x50, identifier)
        assert client.next() == (0x62, identifier)
        if dies:
            one.end()
        with Raw(two.port, b"client", present=True) as later:
            assert later.next() == (0x62, identifier), "the next step, and not the message"
            later.send(0x70, identifier)
            if not waits:
                sent.wait_for_publish(WAIT_S)
                assert sent.is_published()
            settled_raw(sender, later, b"exactly/once")
        client.close()
    with Raw(two.port, b"client", present=True) as last:
        settled_raw(sender, last, b"exactly/once")


def settled_raw(publisher: Device, raw: Raw, topic: bytes) -> None:
    """A message that is published now is the next one, so nothing else was to come."""
    publisher.publish(topic.decode(), b"next", 0)
    assert raw.next() == (0x30, _text(topic) + b"next")


def subscribed(publisher: Device, raw: Raw, topic: bytes, qos: bytes = b"\x01") -> None:
    """A subscription that the publisher's broker has heard of."""
    raw.send(0x82, b"\x00\x01" + _text(topic) + qos)
    while (answer := raw.next())[0] == 0x20:  # CONNACK, if it was not awaited
        pass
    assert answer == (0x90, b"\x00\x01" + qos)

    def arrives() -> bool:
        publisher.publish(topic.decode(), b"probe", 0)
        return raw.has_more(0.05)

    wait_until(arrives, "a probe")
    publisher.publish(topic.decode(), b"last probe", 0)
    while b"last" not in raw.next()[1]:
        pass


def test_a_subscriber_that_acknowledges_nothing_gets_all_when_it_is_back(
    start: Start, device: Callable[..., Device]
) -> None:
    one, two, sender = start("broker-1"), start("broker-2"), device("sender")
    sender.connect(two.port)
    with Raw(one.port, b"client", present=False) as client:
        subscribed(sender, client, b"jobs")
        sent = [sender.client.publish("jobs", b"%d" % number, 1) for number in range(50)]
        assert client.next()[0] == 0x32
    for message in sent:
        message.wait_for_publish(WAIT_S)
        assert message.is_published()
    back = device("client")
    assert back.connect(two.port)
    assert {int(back.next().payload) for _ in range(50)} == set(range(50))


def test_what_no_subscriber_has_acknowledged_is_not_acknowledged(start: Start, device: Callable[..., Device]) -> None:
    """Both brokers are killed while messages are in their memory only."""
    one, two, sender = start("broker-1"), start("broker-2"), device("sender")
    sender.connect(two.port)
    with Raw(one.port, b"client", present=False) as client:
        subscribed(sender, client, b"jobs")
        sent = [sender.client.publish("jobs", b"%d" % number, 1) for number in range(50)]
        for _ in range(10):
            assert client.next()[0] == 0x32
        for broker in (two, one):
            broker.end()
    assert sender.ended.wait(WAIT_S)
    acknowledged = {number for number, message in enumerate(sent) if message.is_published()}
    three, back, last = start("broker-3"), device("client"), device("last")
    assert back.connect(three.port)
    last.connect(three.port)
    last.publish("jobs", b"-1")
    got: set[int] = set()
    while -1 not in got:
        got.add(int(back.next().payload))
    assert acknowledged <= got


def test_a_clean_session_ends_with_its_connection(start: Start, device: Callable[..., Device], url: str) -> None:
    one, two = start("broker-1"), start("broker-2")
    client = device("client", clean=True)
    assert not client.connect(one.port)
    client.subscribe(("news", 1))
    client.leave()
    with blocking.connect(url) as m:
        wait_until(lambda: m.sessions.get("mqtt", "client") is None, "its end")
        assert not client.connect(one.port)
        client.subscribe(("news", 1))
        one.end()  # nobody ends the session
        assert m.sessions.get("mqtt", "client") is not None
    lasting = device("client")
    assert not lasting.connect(two.port), "a session that should have ended is none"
    assert lasting.subscribe(("mine", 1)) == [1]
    lasting.leave()
    assert lasting.connect(two.port)
    fresh = device("client", clean=True)
    assert not fresh.connect(two.port)
    assert lasting.ended.wait(WAIT_S)


def test_an_expired_session_leaves_nothing_behind(tmp_path: Path, device: Callable[..., Device]) -> None:
    """Whoever had it: its filters, the messages that waited for it, and one of QoS 2 that it had begun to publish."""
    folder = tmp_path / "metad"
    with embedded.serve_in_thread(folder, expiry={"amnesty_ms": 500}) as server, ExitStack() as stack:
        one, two = (BrokerProcess(server.url, f"broker-{n}", tmp_path, "--expiry-s", "10") for n in (1, 2))
        for broker in (one, two):
            stack.callback(broker.end)
        away, sender = device("gone-for-good"), device("sender", clean=True)
        away.connect(one.port)
        away.subscribe(("mail/#", 1), ("news", 0))
        sender.connect(two.port)
        settled(sender, away, "mail/away")
        away.leave()
        with Raw(one.port, b"gone-for-good", present=True) as publisher:
            publisher.send(0x34, _text(b"exactly/once") + b"\x00\x07paid")
            assert publisher.next() == (0x50, b"\x00\x07")
            publisher.send(0xE0, b"")
        one.end()
        for number in range(20):
            sender.publish("mail/away", b"%d" % number)
        with blocking.connect(server.url) as m:
            wait_until(lambda: len(m.inflight.get("mqtt", "gone-for-good")) == 21, "all that it has")
            wait_until(lambda: m.sessions.get("mqtt", "gone-for-good") is None, "its end")
            assert not m.inflight.get("mqtt", "gone-for-good")
    shared = Shared(StorageConfig(block_cache_bytes=8 << 20, memtable_bytes=16 << 20))
    state = RocksEngine(folder / "state", state_options(shared), wal=False)
    rows = [key for key, _ in state.scan(b"", b"\xff" * 8, 1_000_000)]
    state.close()
    assert any(b"broker-2" in key for key in rows), "the brokers are known"
    assert [key for key in rows if b"gone-for-good" in key] == []


def test_brokers_with_certificates_share_their_clients(url: str, tmp_path: Path, device: Callable[..., Device]) -> None:
    """And one whose certificate is of another authority gets nothing for its clients, but what waits in metad."""
    certs, others = str(tmp_path / "certs"), str(tmp_path / "others")
    issue_fleet(Path(certs), [], [], brokers=["one", "two"])
    issue_fleet(Path(others), [], [], brokers=["three"])
    with ExitStack() as stack:
        brokers = [
            BrokerProcess(url, name, tmp_path, "--certs", folder)
            for name, folder in (("one", certs), ("two", certs), ("three", others))
        ]
        for broker in brokers:
            stack.callback(broker.end)
        near, far, sender = device("near"), device("far"), device("sender")
        for client, broker in ((near, brokers[1]), (far, brokers[2])):
            client.connect(broker.port)
            client.subscribe(("news", 1))
        sender.connect(brokers[0].port)
        settled(sender, near, "news")
        sender.publish("news", b"secret")
        assert near.next().payload == b"secret"
        # A refused link is logged by either end in its own time: nothing that the clients see waits for it.
        wait_until(lambda: "no link to broker three" in brokers[0].log, "that one says that three is refused")
        wait_until(lambda: "a caller of the link, 127.0.0.1:" in brokers[2].log, "that three says that it is refused")
        assert "Traceback" not in brokers[0].log + brokers[1].log + brokers[2].log
        assert far.connect(brokers[1].port)
        while far.next().payload != b"secret":
            pass


def test_a_broker_shows_its_certificate_to_metad(tmp_path: Path, device: Callable[..., Device]) -> None:
    made = issue_fleet(tmp_path / "certs", ["n1"], [], brokers=["one"])["node-n1"]
    security = {"certificate": made.certificate, "key": made.key, "ca": made.ca}
    with embedded.serve_in_thread(node_id="n1", security=security) as server, ExitStack() as stack:
        url = f"metads://{server.endpoint}"
        broker = BrokerProcess(url, "one", tmp_path, "--certs", str(tmp_path / "certs"))
        stack.callback(broker.end)
        client = device("client")
        client.connect(broker.port)
        assert client.subscribe(("news", 1)) == [1]
        client.publish("news", b"encrypted")
        assert client.next().payload == b"encrypted"


def test_one_client_has_one_connection(start: Start, device: Callable[..., Device]) -> None:
    one = start("broker-1")
    older, newer, publisher = device("client"), device("client"), device("publisher")
    older.connect(one.port)
    older.subscribe(("news", 1))
    for _ in range(5):
        assert newer.connect(one.port)
        assert older.ended.wait(WAIT_S)
        older, newer = newer, device("client")
    publisher.connect(one.port)
    publisher.publish("news", b"one")
    assert older.next().payload == b"one"
    assert older.got.empty()


def test_a_shared_subscription_has_each_message_once(start: Start, device: Callable[..., Device]) -> None:
    one, two = start("broker-1"), start("broker-2")
    members, publisher = [device(f"member-{n}") for n in range(4)], device("publisher")
    for member, broker in zip(members, (one, two, one, two), strict=True):
        member.connect(broker.port)
        assert member.subscribe(("$share/workers/jobs/#", 1)) == [1]
    publisher.connect(one.port)

    def all_known() -> bool:
        publisher.publish("jobs/probe", b"probe")
        return all(member.got.qsize() for member in members)

    wait_until(all_known, "every member has had one")
    while any(member.got.qsize() for member in members):
        [member.next() for member in members if member.got.qsize()]
    for number in range(100):
        publisher.publish("jobs/1", b"%d" % number)
    got = [int(member.next().payload) for member in members for _ in range(member.got.qsize())]
    assert sorted(got) == list(range(100))


def test_a_newer_life_ends_the_older_one(start: Start, device: Callable[..., Device]) -> None:
    old = start("broker-1")
    client = device("client")
    client.connect(old.port)
    new = start("broker-1")
    assert new.epoch > old.epoch
    assert old.ended() == 3
    assert client.ended.wait(WAIT_S)
    assert client.connect(new.port)


def test_a_broker_that_is_started_twice_serves_on(url: str, start: Start, device: Callable[..., Device]) -> None:
    """Once wrong: the second one ended the life of the first, and then had no address to serve at."""
    first = start("broker-1")
    command = [sys.executable, "-m", "metad_amqtt", "--metad", url, "--name", "broker-1"]
    second = subprocess.run(
        [*command, "--bind", f"127.0.0.1:{first.port}"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (second.returncode, second.stdout) == (1, "")
    assert second.stderr.count("\n") == 1, second.stderr
    assert second.stderr.startswith("broker-1: cannot listen: ")
    assert "already in use" in second.stderr
    client = device("client")
    assert not client.connect(first.port)


def test_without_metad_a_client_is_told_to_come_later(tmp_path: Path, device: Callable[..., Device]) -> None:
    with embedded.cluster(nodes=1, data_dir=tmp_path / "metad") as cluster, ExitStack() as stack:
        broker = BrokerProcess(cluster.url, "broker-1", tmp_path, lease_s=100)
        stack.callback(broker.end)
        client, other = device("client"), device("other")
        client.connect(broker.port)
        client.subscribe(("news", 1))
        cluster.kill("n1")
        with ThreadPoolExecutor(1) as beside:
            subscribing = beside.submit(client.subscribe, ("more", 1))
            with pytest.raises(ConnectionRefusedError, match="navailable"):
                other.connect(broker.port)
            assert subscribing.result() == [0x80]
        storing = threading.Thread(target=cluster.start, args=("n1",))
        storing.start()
        client.publish("news", b"through")
        assert client.next().payload == b"through"
        storing.join()


def test_a_broker_that_metad_does_not_hear_keeps_its_clients_and_serves_nobody(
    tmp_path: Path, device: Callable[..., Device]
) -> None:
    """They may be at another broker by now, or metad may be away: it goes on where it was."""
    with embedded.cluster(nodes=1, data_dir=tmp_path / "metad") as cluster, ExitStack() as stack:
        broker = BrokerProcess(cluster.url, "broker-1", tmp_path, lease_s=1)
        stack.callback(broker.end)
        client, other = device("client"), device("other")
        client.connect(broker.port)
        client.subscribe(("news", 1))
        client.publish("news", b"before")
        assert client.next().payload == b"before"
        cluster.kill("n1")
        with pytest.raises(ConnectionRefusedError, match="navailable"):  # by then its life is suspended
            other.connect(broker.port)
        storing = threading.Thread(target=client.publish, args=("news", b"through"))
        storing.start()
        with pytest.raises(queue.Empty):
            client.next(1.0)
        cluster.start("n1")
        assert client.next().payload == b"through"
        storing.join()
        assert not client.ended.is_set()
        assert "this life of broker-1 is lost" not in broker.log


def test_a_broker_that_reaches_no_node_for_long_lets_its_clients_go(
    tmp_path: Path, device: Callable[..., Device]
) -> None:
    """It may be the only one that is cut off. Its life goes on with metad."""
    with embedded.cluster(nodes=1, data_dir=tmp_path / "metad") as cluster, ExitStack() as stack:
        broker = BrokerProcess(cluster.url, "broker-1", tmp_path, "--alone-s", "1", lease_s=1)
        stack.callback(broker.end)
        client = device("client")
        client.connect(broker.port)
        cluster.kill("n1")
        assert client.ended.wait(WAIT_S)
        cluster.start("n1")
        for _ in range(10):
            with suppress(ConnectionRefusedError):
                assert client.connect(broker.port), "its session is there"
                break
        else:
            pytest.fail("it serves nobody although metad is there")
        assert "this life of broker-1 is lost" not in broker.log


@pytest.mark.slow
def test_the_story_of_make_mqtt(tmp_path: Path) -> None:
    """In small. Three nodes, of which the leader is killed."""
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "metad_perf.cli", "mqtt", "--clients", "5", "--messages", "200"]
    done = subprocess.run([*command, "--json", str(report)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every client has seen what it must see." in done.stdout
    told = json.loads(report.read_text())
    steps = [one["step"] for one in told["steps"]]
    assert sum("killed with SIGKILL while" in step for step in steps) == 2
    assert any("mosquitto_sub" in step for step in steps) == told["mosquitto"]
    assert ("mosquitto-clients has them" in done.stdout) != told["mosquitto"]


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "amqtt.py").write_text("raise ModuleNotFoundError(\"No module named 'amqtt'\", name='amqtt')")
    around = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-c", "import metad_amqtt"]
    done = subprocess.run(command, env=around, capture_output=True, text=True, timeout=300, check=False)
    assert done.stderr.splitlines()[-1].startswith("ModuleNotFoundError: metad_amqtt: the Python package amqtt")
    assert "pip install ./clients ./clients/metad_amqtt" in done.stderr


def test_a_client_id_at_two_brokers_at_the_same_instant(start: Start, device: Callable[..., Device]) -> None:
    """Exactly one connection stays, gets what is published, and is the only one to acknowledge it. Both stayed in a
    quarter of all trials."""
    brokers = [start("broker-1"), start("broker-2")]
    sender = device("sender")
    sender.connect(brokers[0].port)
    for trial in range(20):
        client_id, topic = b"twin-%d" % trial, b"to/%d" % trial
        order = brokers if trial % 2 else brokers[::-1]
        both = [Raw(one.port, client_id, present=None) for one in order]
        left = list(both)

        def one_is_left(left: list[Raw] = left) -> bool:
            for each in list(left):
                if each.has_more(0.02) and not each.connack():
                    left.remove(each)
            return len(left) == 1

        wait_until(one_is_left, "one connection is closed")
        (stays,) = left
        subscribed(sender, stays, topic)
        sent = sender.client.publish(topic.decode(), b"once", 1)
        first, body = stays.next()
        assert (first, body[-4:]) == (0x32, b"once")
        stays.send(0x40, body[2 + len(topic) :][:2])
        sent.wait_for_publish(WAIT_S)
        assert sent.is_published()
        for each in both:
            each.close()
