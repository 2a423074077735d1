"""A real MQTT client (paho) whose steps wait for the broker's answer."""

from __future__ import annotations

import queue
import threading
from typing import Any, NamedTuple

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

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
