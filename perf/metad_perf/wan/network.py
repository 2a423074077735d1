"""Places far from each other: network namespaces that reach each other only through the relay.

Each place has an address on the relay's network, and one on the bridge, by which only this process reaches it without
delay. The kernels of places remember nothing of one connection for the next, and TCP's congestion control belongs to
the route, so that one running server can be measured with several. Blocking; needs root.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path as File

from ..faults import netns
from ..faults.netns import Network, do
from . import tun
from .relay import Account, Relay
from .relay_line import Path

_QUEUE_PACKETS = 10_000  # of a device towards the relay: it must not lose a burst of a whole window
_CONTROLS = File("/proc/sys/net/ipv4/tcp_available_congestion_control")
_CONTROL = File("/proc/sys/net/ipv4/tcp_congestion_control")


def missing(*, cuts: bool = False) -> str:
    """The missing requirement for places, in words; empty if none is missing."""
    return netns.missing(cuts=cuts) or tun.missing()


def congestion_controls() -> list[str]:
    """The congestion controls of this kernel's TCP, the default first."""
    default = _CONTROL.read_text().strip()
    return [default, *(one for one in _CONTROLS.read_text().split() if one != default)]


class Places:
    """All places, numbered from 0."""

    def __init__(self, network: Network, relay: Relay, addresses: Sequence[str], devices: Sequence[str]) -> None:
        self.network = network
        self.count = len(addresses)
        self._relay = relay
        self._addresses = list(addresses)
        self._devices = list(devices)
        self._paths = {(a, b): Path() for a in range(self.count) for b in range(self.count) if a != b}

    def address(self, n: int) -> str:
        """IPv4 address of a place on the relay's network."""
        return self._addresses[n]

    def shape(self, a: int, b: int, path: Path) -> None:
        """Set the path between two places, the same in both directions."""
        for way in ((a, b), (b, a)):
            self._paths[way] = path
            self._relay.shape(*way, path)

    def cut(self, source: int, target: int) -> None:
        """From now on no packet goes from ``source`` to ``target`` over the relay."""
        self._relay.shape(source, target, Path(delay_ms=self._paths[source, target].delay_ms, cut=True))

    def cut_off(self, n: int) -> None:
        """From now on no packet reaches or leaves the place over the relay."""
        for way in self._paths:
            if n in way:
                self.cut(*way)

    def heal(self) -> None:
        """Restore every path as it was shaped."""
        for way, path in self._paths.items():
            self._relay.shape(*way, path)

    def account(self) -> Account:
        """The relay's counts so far."""
        return self._relay.account()

    def control(self, name: str) -> None:
        """Set TCP's congestion control for new connections."""
        for n, device in enumerate(self._devices):
            route = ["ip", "route", "replace", self._subnet(), "dev", device, "src", self._addresses[n]]
            do(*self.network.prefix(n), *route, "congctl", name)

    def _subnet(self) -> str:
        return f"{self._addresses[0].rpartition('.')[0]}.0/24"

    def connect(self) -> None:
        """Give each place its device, address and settings. Raises ServerError."""
        for n, (device, address) in enumerate(zip(self._devices, self._addresses, strict=True)):
            do("ip", "link", "set", device, "netns", self.network.space(n))
            within = self.network.prefix(n)
            do(*within, "ip", "address", "add", f"{address}/24", "dev", device)
            do(*within, "ip", "link", "set", device, "mtu", str(tun.MTU_BYTES), "txqueuelen", str(_QUEUE_PACKETS), "up")
            with netns.inside(self.network.space(n)):
                File("/proc/sys/net/ipv4/tcp_no_metrics_save").write_text("1")


@contextlib.contextmanager
def places(count: int, seed: int, *, cuts: bool = False) -> Iterator[Places]:
    """``count`` places, joined without delay; all are removed in any case. Raises ServerError."""
    tag = os.getpid() % 100_000
    network = Network(count, cuts=cuts)
    relay: Relay | None = None
    addresses = [f"10.{192 + tag // 256 % 63}.{tag % 256}.{n + 1}" for n in range(count)]
    devices = [f"mp{tag}t{n}" for n in range(count)]
    try:
        network.make()
        relay = Relay(devices, addresses, seed)
        made = Places(network, relay, addresses, devices)
        made.connect()
        yield made
    finally:
        if relay is not None:
            relay.stop()
        network.remove()
