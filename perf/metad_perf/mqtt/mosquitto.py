"""mosquitto's own clients (Debian's package mosquitto-clients), as processes."""

from __future__ import annotations

import queue
import shutil
import signal
import subprocess
import threading
from typing import Final

from .device import WAIT_S

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
