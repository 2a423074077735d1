"""``metad-perf mqtt``: what MQTT clients see of two brokers that share their sessions through three nodes of metad,
while a broker and a leader are killed. Each step checks what it shows, and the first that is wrong ends the run.

One publisher of QoS 2 has its handshake cut: it sends packet by packet, as no client library does. And mosquitto's own
clients (Debian's package mosquitto-clients) take part as processes.
"""

from __future__ import annotations

import os
import queue
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from metad_client import Options, blocking

from ..commands import Mqtt
from ..errors import PerfError
from ..report import output
from ..report.conclusion import reported
from ..spawn import Server, Shape, temporary_server
from .brokers import BrokerProcess

WAIT_S = 30.0


class Got(NamedTuple):
    """A message that came."""

    topic: str
    payload: bytes
    qos: int
    retain: bool


class Device:
    """One connection at a time. ``will``: topic, payload, QoS and whether it is retained."""

    def __init__(
        self, client_id: str, *, clean: bool = False, will: tuple[str, bytes, int, bool] | None = None
    ) -> None:
        self.client_id = client_id
        self.got: queue.Queue[Got] = queue.Queue()
        self._clean = clean
        self._will = will
        self._connected: queue.Queue[Any] = queue.Queue()
        self._subscribed: queue.Queue[list[int]] = queue.Queue()
        self._unsubscribed: queue.Queue[None] = queue.Queue()
        self.ended = threading.Event()
        """The connection has ended."""
        self.client = self._made()

    def _made(self) -> mqtt.Client:
        client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            self.client_id,
            clean_session=self._clean,
            protocol=mqtt.MQTTv311,
            reconnect_on_failure=False,
        )
        if self._will is not None:
            client.will_set(*self._will)
        client.on_connect = lambda _c, _u, flags, code, _p: self._connected.put((flags, code))
        client.on_subscribe = lambda _c, _u, _m, codes, _p: self._subscribed.put([code.value for code in codes])
        client.on_unsubscribe = lambda *_: self._unsubscribed.put(None)
        client.on_disconnect = lambda *_: self.ended.set()
        client.on_message = lambda _c, _u, m: self.got.put(Got(m.topic, bytes(m.payload), m.qos, m.retain))
        return client

    def connect(self, port: int, *, keepalive: int = 60) -> bool:
        """Connect; whether the session was present. Raises ConnectionRefusedError if the broker refuses it."""
        self.leave()
        self.client = self._made()
        self.ended.clear()
        self.client.connect("127.0.0.1", port, keepalive)
        self.client.loop_start()
        flags, code = self._connected.get(timeout=WAIT_S)
        if code.is_failure:
            raise ConnectionRefusedError(str(code))
        return bool(flags.session_present)

    def subscribe(self, *filters: tuple[str, int]) -> list[int]:
        """The codes of SUBACK."""
        self.client.subscribe(list(filters))
        return self._subscribed.get(timeout=WAIT_S)

    def unsubscribe(self, *filters: str) -> None:
        self.client.unsubscribe(list(filters))
        self._unsubscribed.get(timeout=WAIT_S)

    def publish(self, topic: str, payload: bytes, qos: int = 1, *, retain: bool = False) -> None:
        """Return once it is acknowledged."""
        sent = self.client.publish(topic, payload, qos, retain)
        sent.wait_for_publish(WAIT_S)
        assert sent.is_published(), f"{topic} was not acknowledged"

    def next(self, timeout_s: float = WAIT_S) -> Got:
        """The next message."""
        return self.got.get(timeout=timeout_s)

    def leave(self) -> None:
        """DISCONNECT."""
        self.client.disconnect()
        self.client.loop_stop()

    def vanish(self) -> None:
        """End the connection without a word."""
        sock = self.client.socket()
        assert sock is not None
        sock.close()
        self.client.loop_stop()


_PROGRAMS: Final = ("mosquitto_sub", "mosquitto_pub")


def is_installed() -> bool:
    """Whether both programs are there."""
    return all(map(shutil.which, _PROGRAMS))


def publish(port: int, topic: str, *payloads: bytes, qos: int = 1, retain: bool = False) -> None:
    """Publish, each payload by a client of its own that ends once it has its acknowledgement. Raises OSError."""
    for payload in payloads:
        command = ["mosquitto_pub", "-V", "311", "-p", str(port), "-t", topic, "-q", str(qos), "-m", payload.decode()]
        done = subprocess.run(command + ["-r"] * retain, capture_output=True, text=True, timeout=WAIT_S, check=False)
        if done.returncode:
            raise ConnectionError(f"mosquitto_pub: {done.stderr.strip()}")


class Subscriber:
    """mosquitto_sub with a session that stays; ``will``: topic and payload. It serves once this is made."""

    def __init__(
        self, port: int, client_id: str, *filters: str, qos: int = 1, will: tuple[str, str] = ("", "")
    ) -> None:
        self.client_id = client_id
        self._subscribed = threading.Event()
        self._got: queue.Queue[tuple[str, bytes]] = queue.Queue()
        command = ["mosquitto_sub", "-V", "311", "-p", str(port), "-i", client_id, "-c", "-q", str(qos), "-d"]
        command += ["-F", "GOT %t %p"]
        for filter_ in filters:
            command += ["-t", filter_]
        if will[0]:
            command += ["--will-topic", will[0], "--will-payload", will[1], "--will-qos", "1"]
        self._process = subprocess.Popen(
            ["stdbuf", "-oL", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        if not self._subscribed.wait(WAIT_S):
            self.end(signal.SIGKILL)
            raise ConnectionError(f"mosquitto_sub has no SUBACK from port {port}")

    def next(self, timeout_s: float = WAIT_S) -> tuple[str, bytes]:
        """The topic and the payload of the next message. Raises queue.Empty."""
        return self._got.get(timeout=timeout_s)

    def end(self, number: signal.Signals) -> None:
        """SIGTERM: with DISCONNECT, and only while it has nothing to do: without its broker it would wait for that,
        and in the middle of an answer it would hang. Safe to call again."""
        self._process.send_signal(number)
        self._process.wait(WAIT_S)
        self._reading.join(WAIT_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if line.startswith(b"GOT "):
                    _, topic, payload = line.rstrip(b"\n").split(b" ", 2)
                    self._got.put((topic.decode(), payload))
                elif b"SUBACK" in line:
                    self._subscribed.set()


_IDENTIFIER: Final = b"\x00\x07"


def _text(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(2, "big") + data


class CutPublisher:
    """One connection. A message is short: its packet's length has one byte."""

    def __init__(self, port: int, client_id: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self._send(0x10, b"\x00\x04MQTT\x04\x00\x00\x3c" + _text(client_id))
        first, body = self._next()
        if first != 0x20 or body[1]:
            raise ConnectionRefusedError(f"CONNACK {body.hex()}")
        self.session_present = bool(body[0])

    def begin(self, topic: str, payload: bytes) -> None:
        """PUBLISH of QoS 2, and wait for PUBREC: from now on the broker has the message."""
        self._send(0x34, _text(topic) + _IDENTIFIER + payload)
        self._expect(0x50)

    def finish(self) -> None:
        """PUBREL, and wait for PUBCOMP."""
        self._send(0x62, _IDENTIFIER)
        self._expect(0x70)

    def ends(self) -> bool:
        """Wait until the broker has closed the connection."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        """End the connection without a word."""
        self._socket.close()

    def _expect(self, first: int) -> None:
        found = self._next()
        if found != (first, _IDENTIFIER):
            raise ConnectionError(f"packet {found[0]:#x} {found[1].hex()}, not {first:#x}")

    def _send(self, first: int, body: bytes) -> None:
        self._socket.sendall(bytes([first, len(body)]) + body)

    def _next(self) -> tuple[int, bytes]:
        head = self._socket.recv(2, socket.MSG_WAITALL)
        if len(head) < 2:
            raise ConnectionError("the broker has closed the connection")
        return head[0], self._socket.recv(head[1], socket.MSG_WAITALL) if head[1] else b""


QUIET_S = 0.5
"""After so long without a message, no more is expected. Only to notice messages that are too many."""
DEADLINE_S = 30.0


class WrongError(PerfError):
    """A client has seen what it must not see."""

    name = "mqtt"


def run(options: Mqtt) -> int:
    """Returns the exit code: 1 if anything was wrong."""
    with (
        temporary_server(shape=Shape(nodes=3)) as server,
        TemporaryDirectory(prefix="metad-perf-mqtt-") as folder,
        ExitStack() as stack,
    ):
        story = Story(server, Path(folder), stack)
        story.tell(options.clients, options.messages)
    output.write_json(options.json, reported(options, {"steps": story.steps, "mosquitto": is_installed()}))
    if not is_installed():
        output.say("The steps with mosquitto's clients are left out: Debian's package mosquitto-clients has them.")
    output.say("Every client has seen what it must see.")
    return 0


def expect(what: str, found: object, wanted: object) -> None:
    """Raise WrongError if it is not so."""
    if found != wanted:
        raise WrongError(f"{what}: {found!r}, not {wanted!r}")


class Story:
    """Two brokers and their clients."""

    def __init__(self, server: Server, folder: Path, stack: ExitStack) -> None:
        self.steps: list[dict[str, Any]] = []
        self._server = server
        self._folder = folder
        self._stack = stack
        self._url = ""
        self._brokers: dict[str, BrokerProcess] = {}

    def tell(self, clients: int, messages: int) -> None:
        """All of it, in order."""
        with self._step("three nodes of metad and two MQTT brokers start"):
            self._server.start()
            self._url = f"metad://{self._server.endpoint}"
            for name in ("broker-1", "broker-2"):
                self._start(name)
        app = self._device("app")
        expect("the session of app is present", app.connect(self._port("broker-2")), False)
        self._takeover(app)
        self._qualities(app)
        self._shared(app)
        self._wills(app)
        if is_installed():
            self._mosquitto(app)
        self._broker_dies(app, clients, messages)
        self._leader_dies(app, messages)

    # --- what happens ---

    def _takeover(self, app: Device) -> None:
        lamp = self._device("lamp", will=("wills/lamp", b"gone", 1, False))
        with self._step("lamp subscribes at broker-1, and app publishes at broker-2: lamp gets it"):
            expect("the session of lamp is present", lamp.connect(self._port("broker-1")), False)
            expect("SUBACK", lamp.subscribe(("home/+/set", 1)), [1])
            self._reach(app, lamp, "home/lamp/set")
        with self._step("lamp goes; app publishes three messages; lamp connects to broker-2: it finds them"):
            lamp.leave()
            for payload in (b"on", b"off", b"dim"):
                app.publish("home/lamp/set", payload)
            expect("the session of lamp is present", lamp.connect(self._port("broker-2")), True)
            expect("what has waited", [lamp.next().payload for _ in range(3)], [b"on", b"off", b"dim"])
        with self._step("lamp connects to broker-1 while it is connected to broker-2: the older connection is closed"):
            twin = self._device("lamp")
            expect("the session of lamp is present", twin.connect(self._port("broker-1")), True)
            expect("the older connection has ended", lamp.ended.wait(DEADLINE_S), True)
            self._reach(app, twin, "home/lamp/set")
            expect("what the older connection got", lamp.got.qsize(), 0)
        with self._step("a retained message of broker-1 reaches a subscriber that comes to broker-2 later"):
            twin.publish("home/lamp/state", b"dim", retain=True)
            panel = self._device("panel", clean=True)
            panel.connect(self._port("broker-2"))
            panel.subscribe(("home/+/state", 1))
            expect("the retained message", panel.next(), ("home/lamp/state", b"dim", 1, True))
            panel.leave()
        twin.leave()

    def _qualities(self, app: Device) -> None:
        meter = self._device("gauge")
        with self._step("gauge subscribes at broker-1 with QoS 0, 1 and 2; app publishes with each at broker-2"):
            meter.connect(self._port("broker-1"))
            filters = [(f"gauge/{qos}/+/#", qos) for qos in range(3)]
            expect("SUBACK", meter.subscribe(*filters), [0, 1, 2])
            for qos in range(3):
                self._reach(app, meter, f"gauge/{qos}/probe")
            for subscribed in range(3):
                for published in range(3):
                    app.publish(f"gauge/{subscribed}/value/{published}", b"", published)
            app.publish("gauge/2", b"matches nothing", 2)
            got = {one.topic: one.qos for one in _drained(meter, 9)}
            wanted = {f"gauge/{s}/value/{p}": min(s, p) for s in range(3) for p in range(3)}
            expect("topics, and the QoS of each", got, wanted)
        topic = "gauge/2/exactly/once"
        with self._step("a QoS 2 handshake begins at broker-1; broker-2 takes its publisher over, and it ends there"):
            begun = CutPublisher(self._port("broker-1"), "payer")
            self._stack.callback(begun.close)
            begun.begin(topic, b"paid")
            ended = CutPublisher(self._port("broker-2"), "payer")
            self._stack.callback(ended.close)
            expect("the session is present", ended.session_present, True)
            expect("the older connection has ended", begun.ends(), True)
            ended.finish()
            ended.finish()
            expect("what has come", _drained(meter, 1), [Got(topic, b"paid", 2, False)])
        meter.leave()

    def _shared(self, app: Device) -> None:
        workers = [self._device(f"worker-{number}") for number in range(4)]
        with self._step("four workers at both brokers share $share/workers/jobs/#: each job goes to one of them"):
            for number, worker in enumerate(workers):
                worker.connect(self._port(f"broker-{number % 2 + 1}"))
                expect("SUBACK", worker.subscribe(("$share/workers/jobs/#", 1)), [1])
            self._until(lambda: self._all_are_offered(app, workers), "every worker is offered a job")
            for worker in workers:
                _drained(worker)
            for number in range(100):
                app.publish("jobs/new", b"%d" % number)
            got = sorted(int(one.payload) for worker in workers for one in _drained(worker))
            expect("the jobs that were done", got, list(range(100)))
        for worker in workers:
            worker.leave()

    def _all_are_offered(self, app: Device, workers: list[Device]) -> bool:
        app.publish("jobs/probe", b"probe")
        return all(worker.got.qsize() for worker in workers)

    def _mosquitto(self, app: Device) -> None:
        watcher = self._device("watcher-m")
        watcher.connect(self._port("broker-2"))
        watcher.subscribe(("wills/#", 1))
        self._reach(app, watcher, "wills/probe")
        topic, filters = "mosquitto/door/state", ("mosquitto/+/state", "mosquitto/door/open/#")
        with self._step("mosquitto_sub subscribes at broker-1; mosquitto_pub publishes at broker-2 with QoS 0, 1, 2"):
            door = self._subscriber("broker-1", "door", *filters, will=("wills/door", "gone"), qos=2)
            self._until(lambda: self._hears(app, door, topic), "broker-2 knows its filters")
            for qos in range(3):
                publish(self._port("broker-2"), topic, b"%d" % qos, qos=qos)
            self._gets_at_last(door, [b"0", b"1", b"2"])
        with self._step("mosquitto_sub ends; three messages are published; it finds them at broker-2"):
            door.end(signal.SIGTERM)
            publish(self._port("broker-1"), topic, b"open", b"shut", b"locked", qos=2)
            door = self._subscriber("broker-2", "door", *filters, will=("wills/door", "gone"), qos=2)
            self._gets_at_last(door, [b"open", b"shut", b"locked"])
        with self._step("mosquitto_sub is killed with SIGKILL: its will is published, once"):
            door.end(signal.SIGKILL)
            expect("the will", [one.topic for one in _drained(watcher, 1)], ["wills/door"])
        with self._step("a retained message of mosquitto_pub at broker-2 reaches a mosquitto_sub of broker-1"):
            publish(self._port("broker-2"), "mosquitto/window/state", b"open", qos=1, retain=True)
            window = self._subscriber("broker-1", "window", "mosquitto/window/#")
            expect("the retained message", window.next(), ("mosquitto/window/state", b"open"))
            window.end(signal.SIGKILL)
        watcher.leave()

    def _subscriber(self, name: str, client_id: str, *filters: str, **settings: Any) -> Subscriber:
        subscriber = Subscriber(self._port(name), client_id, *filters, **settings)
        self._stack.callback(subscriber.end, signal.SIGKILL)
        return subscriber

    def _hears(self, app: Device, subscriber: Subscriber, topic: str) -> bool:
        app.publish(topic, b"probe", 0)
        try:
            return subscriber.next(0.1)[1] == b"probe"
        except queue.Empty:
            return False

    def _gets_at_last(self, subscriber: Subscriber, wanted: list[bytes]) -> None:
        """These, in this order, and nothing else but probes."""
        got: list[bytes] = []
        while len(got) < len(wanted):
            payload = subscriber.next(DEADLINE_S)[1]
            if payload != b"probe":
                got.append(payload)
        expect(f"what {subscriber.client_id} got", got, wanted)

    def _wills(self, app: Device) -> None:
        watchers = [self._device("watcher-1"), self._device("watcher-2")]
        with self._step("a client vanishes without a word: its will reaches a subscriber of each broker, once"):
            for number, watcher in enumerate(watchers, 1):
                watcher.connect(self._port(f"broker-{number}"))
                watcher.subscribe(("wills/#", 1))
                self._reach(app, watcher, "wills/probe")
            for watcher in watchers:
                _drained(watcher)
            sensor = self._device("sensor", will=("wills/sensor", b"gone", 1, False))
            sensor.connect(self._port("broker-1"))
            sensor.vanish()
            for watcher in watchers:
                expect("the will", [one.topic for one in _drained(watcher, 1)], ["wills/sensor"])
        for watcher in watchers:
            watcher.leave()

    def _broker_dies(self, app: Device, clients: int, messages: int) -> None:
        fleet = [self._device(f"meter-{number}") for number in range(clients)]
        for meter in fleet:
            meter.connect(self._port("broker-1"))
            meter.subscribe((f"meters/{meter.client_id}", 1))
        self._until(
            lambda: all(self._reaches(app, meter, f"meters/{meter.client_id}") for meter in fleet), "all meters"
        )
        lost = self._device("lost", will=("wills/lost", b"gone", 1, False))
        lost.connect(self._port("broker-1"))
        watcher = self._device("watcher-3")
        watcher.connect(self._port("broker-2"))
        watcher.subscribe(("wills/#", 1))
        bell = self._bell(app, "broker-1")
        text = f"broker-1 is killed with SIGKILL while app publishes {messages} messages to its {clients} clients"
        with self._step(text):
            sent = [
                app.client.publish(f"meters/meter-{number % clients}", b"%d" % number, 1) for number in range(messages)
            ]
            self._until(lambda: sum(one.is_published() for one in sent) > messages // 10, "a tenth of them")
            self._brokers["broker-1"].end()
        with self._step("its clients come to broker-2: each finds its session, and no acknowledged message is lost"):
            for one in sent:
                one.wait_for_publish(DEADLINE_S)
                expect("a message is acknowledged", one.is_published(), True)
            got = [_drained(meter, quiet_s=0.0) for meter in fleet]
            for meter in fleet:
                expect(f"the session of {meter.client_id} is present", meter.connect(self._port("broker-2")), True)
            for number, meter in enumerate(fleet):
                wanted = {n for n in range(messages) if n % clients == number}
                self._gets(meter, got[number], wanted)
        if bell is not None:
            with self._step("mosquitto_sub of broker-1 comes to broker-2, and finds what mosquitto_pub has sent"):
                publish(self._port("broker-2"), "bell/1", b"ring", b"rang")
                bell.end(signal.SIGKILL)
                bell = self._subscriber("broker-2", "bell", "bell/+")
                self._gets_at_last(bell, [b"ring", b"rang"])
                bell.end(signal.SIGKILL)
        with self._step("one client of broker-1 does not come back: broker-2 publishes its will, once"):
            expect("the will", [one.topic for one in _drained(watcher, 1)], ["wills/lost"])
            watcher.leave()
        with self._step("broker-1 starts again, as a newer life, and serves"):
            before = self._brokers["broker-1"]
            self._start("broker-1")
            expect("the life is newer", self._brokers["broker-1"].epoch > before.epoch, True)
            back = fleet[0]
            expect("the session is present", back.connect(self._port("broker-1")), True)
            self._reach(app, back, f"meters/{back.client_id}")
        for meter in fleet:
            meter.leave()

    def _bell(self, app: Device, name: str) -> Subscriber | None:
        if not is_installed():
            return None
        bell = self._subscriber(name, "bell", "bell/+")
        self._until(lambda: self._hears(app, bell, "bell/1"), "mosquitto_sub is reached")
        return bell

    def _leader_dies(self, app: Device, messages: int) -> None:
        away, here = self._device("away"), self._device("here")
        for client in (away, here):
            client.connect(self._port("broker-1"))
            client.subscribe((f"to/{client.client_id}", 1))
            self._reach(app, client, f"to/{client.client_id}")
        bell = self._bell(app, "broker-2")
        doomed_client = self._device("doomed", will=("to/here", b"gone", 1, False))
        doomed_client.connect(self._port("broker-2"))
        away.leave()
        with blocking.connect(self._url, Options(deadline_s=DEADLINE_S)) as metad:
            leaders = metad.cluster.map().leaders
        doomed = leaders["data-0"]
        led = sum(one == doomed for one in leaders.values())
        with self._step(
            f"{doomed}, the leader of {led} of {len(leaders)} groups of metad, is killed with SIGKILL while clients "
            "connect, subscribe and publish"
        ):
            killing = threading.Timer(0.0, os.kill, (self._server.pids[doomed], signal.SIGKILL))
            sent = [app.client.publish("to/away", b"%d" % number, 1) for number in range(messages)]
            killing.start()
            doomed_client.vanish()
            if bell is not None:
                publish(self._port("broker-1"), "bell/1", *(b"%d" % number for number in range(10)))
            newcomers = [self._device(f"newcomer-{number}") for number in range(10)]
            for newcomer in newcomers:
                expect("session present", self._connects(newcomer, "broker-2"), False)
                expect("SUBACK", newcomer.subscribe((f"to/{newcomer.client_id}", 1)), [1])
            killing.join()
            for one in sent:
                one.wait_for_publish(DEADLINE_S)
                expect("a message is acknowledged", one.is_published(), True)
        with self._step("the client that was away finds every message"):
            expect("the session is present", away.connect(self._port("broker-2")), True)
            self._gets(away, [], set(range(messages)))
        with self._step("the will of a client that vanished meanwhile is published once"):
            expect("the will", [one.payload for one in _drained(here, 1, quiet_s=2.0)], [b"gone"])
            self._reach(app, here, "to/here")
        if bell is not None:
            with self._step("mosquitto_sub has got what mosquitto_pub sent meanwhile"):
                left = set(range(10))
                while left:
                    payload = bell.next(DEADLINE_S)[1]
                    if payload != b"probe":
                        left.discard(int(payload))
                bell.end(signal.SIGKILL)

    # --- how ---

    @contextmanager
    def _step(self, text: str) -> Iterator[None]:
        begin = time.monotonic()
        try:
            yield
        except (queue.Empty, ConnectionError, OSError) as error:
            raise WrongError(f"{text}: {type(error).__name__} {error}".strip()) from error
        seconds = time.monotonic() - begin
        self.steps.append({"step": text, "seconds": seconds})
        output.say(f"{seconds:6.2f} s  {text}")

    def _start(self, name: str) -> None:
        broker = self._brokers[name] = BrokerProcess(self._url, name, self._folder)
        self._stack.callback(broker.end)

    def _port(self, name: str) -> int:
        return self._brokers[name].port

    def _device(self, client_id: str, **settings: Any) -> Device:
        device = Device(client_id, **settings)
        self._stack.callback(device.leave)
        return device

    def _connects(self, device: Device, name: str) -> bool:
        """Connect as often as the broker says that it is not available."""
        until = time.monotonic() + DEADLINE_S
        while True:
            try:
                return device.connect(self._port(name))
            except ConnectionRefusedError:
                if time.monotonic() > until:
                    raise

    def _reaches(self, publisher: Device, subscriber: Device, topic: str) -> bool:
        publisher.publish(topic, b"probe", 0)
        try:
            return subscriber.next(0.1).payload == b"probe"
        except queue.Empty:
            return False

    def _reach(self, publisher: Device, subscriber: Device, topic: str) -> None:
        """Brokers hear of a subscription some milliseconds after the client has its answer."""
        self._until(lambda: self._reaches(publisher, subscriber, topic), f"{topic} reaches {subscriber.client_id}")
        _drained(subscriber)

    def _gets(self, device: Device, got: list[Got], wanted: set[int]) -> None:
        """It has got some, and gets the others. One that it did not acknowledge comes again."""
        left = wanted - {int(one.payload) for one in got if one.payload != b"probe"}
        while left:
            payload = device.next(DEADLINE_S).payload
            if payload != b"probe":
                left.discard(int(payload))

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > until:
                raise WrongError(f"{what}: not within {DEADLINE_S:g} s")


def _drained(device: Device, count: int = 0, quiet_s: float = QUIET_S) -> list[Got]:
    """At least so many messages, and those that follow until it is quiet."""
    found = [device.next(DEADLINE_S) for _ in range(count)]
    while True:
        try:
            found.append(device.next(quiet_s))
        except queue.Empty:
            return found
