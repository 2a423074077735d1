"""The relay: a process that joins network namespaces by TUN devices and treats packets as a long path does.

Each place has one device; a packet goes to the place that its destination address names, over a :class:`Line` per
direction. The process wakes for a batch: it drains every device, delivers the packets that are due, and sleeps until
the next packet is due or arrives. It asks for real-time priority, because a path does not become slower when the
machines at its ends are busy. The parent shapes, cuts and queries over a pipe; when the pipe ends, the relay ends.
Needs root.

Places far from each other are network namespaces that reach each other only through the relay.

Each place has an address on the relay's network, and one on the bridge, by which only this process reaches it without
delay. The kernels of places remember nothing of one connection for the next, and TCP's congestion control belongs to
the route, so that one running server can be measured with several. Blocking; needs root.

A TUN device: a network interface of the kernel whose other end is a file of ours, one IP packet per read or write.

Linux only, root only. Knows no packet and no policy.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import os
import select
import signal
import struct
import time
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from multiprocessing.connection import Connection
from pathlib import Path as File
from typing import Any, TypeAlias

import msgspec

from ..errors import ServerError, WorkerError
from ..faults import netns
from ..faults.netns import Network, do
from ..spawn import client_processes
from .relay_line import Counts, Line, Path

DEVICE = File("/dev/net/tun")
MTU_BYTES = 1_500
_TUNSETIFF = 0x400454CA
_IFF_TUN = 0x0001
_IFF_NO_PI = 0x1000  # packets as they are, without four bytes in front


def _no_tun() -> str:
    """The missing requirement for TUN devices, in words; empty if none is missing."""
    if os.geteuid() != 0:
        return "TUN devices need root"
    return "" if os.access(DEVICE, os.R_OK | os.W_OK) else f"TUN devices need {DEVICE}"


def open_tun(name: str) -> int:
    """Make the device, which lives as long as its file; returns the non-blocking file. Without offloads, so that the
    kernel hands out no packet over the MTU: what is lost or delayed is what would be on a wire. Raises ServerError."""
    try:
        fd = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ServerError(f"{DEVICE}: {error.strerror}") from error
    try:
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    except OSError as error:
        os.close(fd)
        raise ServerError(f"cannot make the TUN device {name}: {error.strerror}") from error
    return fd


_DRAIN_MAX = 64  # packets of one device in a turn: others are due meanwhile
_START_S = 20.0
_ANSWER_S = 10.0
_CLOCK_MONOTONIC = 1
_TIMER_ABSTIME = 1
_LATE_NS = 1_000_000  # a packet delivered this long after it was due is counted as late


class Shape(msgspec.Struct, frozen=True):
    """Order: give a direction a path."""

    source: int
    target: int
    path: Path


class Ask(msgspec.Struct, frozen=True):
    """Order: report the counts so far."""


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """The relay's counts so far. ``late``: delivered more than 1 ms after they were due; ``late_us_max`` and
    ``late_us_mean`` are over all delivered packets; ``cpu_s`` is of the process."""

    counts: dict[tuple[int, int], Counts]
    delivered: int
    refused: int
    """Dropped by the kernel of the receiving place."""
    late: int
    late_us_max: float
    late_us_mean: float
    cpu_s: float
    wakes: int


_Held: TypeAlias = tuple[int, int, int, Line, bytes]  # due ns, order of arrival, device, its line, packet


class Relay:
    """The parent's handle. Blocking."""

    def __init__(self, devices: Sequence[str], addresses: Sequence[str], seed: int) -> None:
        context = client_processes()
        self._pipe, theirs = context.Pipe()
        packed = [bytes(int(part) for part in address.split(".")) for address in addresses]
        self._process = context.Process(target=_main, args=(list(devices), packed, seed, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._receive(_START_S)

    def shape(self, source: int, target: int, path: Path) -> None:
        """From now on packets from ``source`` to ``target`` travel this path."""
        self._pipe.send(Shape(source, target, path))
        self._receive(_ANSWER_S)

    def account(self) -> Account:
        """The counts so far."""
        self._pipe.send(Ask())
        answer = self._receive(_ANSWER_S)
        assert isinstance(answer, Account)
        return answer

    def stop(self) -> None:
        """End the relay; its devices end with it."""
        self._pipe.close()
        self._process.join(_ANSWER_S)
        self._process.kill()
        self._process.join()

    def _receive(self, timeout_s: float) -> Any:
        try:
            if not self._pipe.poll(timeout_s):
                raise WorkerError("the relay does not answer")
            answer = self._pipe.recv()
        except EOFError:
            raise WorkerError("the relay died") from None
        if isinstance(answer, ServerError):
            raise answer
        return answer


def _main(devices: list[str], addresses: list[bytes], seed: int, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to end
    try:
        fds = [open_tun(device) for device in devices]
    except ServerError as error:
        pipe.send(error)
        return
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    gc.collect()
    gc.freeze()
    gc.disable()  # the code below makes no cycles
    pipe.send(None)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        _Loop(fds, addresses, seed, pipe).run()


class _Loop:
    def __init__(self, fds: list[int], addresses: list[bytes], seed: int, pipe: Connection) -> None:
        places = range(len(fds))
        self._pipe = pipe
        self._fds = fds
        self._lines = {(a, b): Line(Path(), f"{seed}/{a}/{b}") for a in places for b in places if a != b}
        # By device, then by destination: where the packet goes.
        self._ways = {fds[a]: {addresses[b]: (fds[b], self._lines[a, b]) for b in places if a != b} for a in places}
        self._held: list[_Held] = []
        self._order = 0
        self._delivered = self._late = self._late_ns = self._late_ns_max = self._wakes = self._refused = 0
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._timer = int(self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))
        if self._timer < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._armed_ns = 0

    def run(self) -> None:
        """Run until the pipe ends."""
        poller = select.epoll()
        for fd in (*self._fds, self._timer, self._pipe.fileno()):
            poller.register(fd, select.EPOLLIN)
        while True:
            more = False
            for fd, _ in poller.poll():
                if fd in self._ways:
                    more |= self._drain(fd)
                elif fd == self._timer:
                    with contextlib.suppress(BlockingIOError):
                        os.read(fd, 8)
                    self._armed_ns = 0
                else:
                    self._obey()
            self._wakes += 1
            self._deliver()
            if not more:
                self._arm()

    def _drain(self, fd: int) -> bool:
        """Take in up to a batch; returns whether there may be more."""
        read, clock, ways, held, order = os.read, time.monotonic_ns, self._ways[fd], self._held, self._order
        try:
            for _ in range(_DRAIN_MAX):
                packet = read(fd, MTU_BYTES)
                way = ways.get(packet[16:20])
                if way is None or packet[0] >> 4 != 4:  # the kernel's own traffic, IPv6 and multicast
                    continue
                target, line = way
                due_ns = line.due_ns(clock(), len(packet))
                if due_ns is not None:
                    order += 1
                    heappush(held, (due_ns, order, target, line, packet))
        except BlockingIOError:
            return False
        finally:
            self._order = order
        return True

    def _deliver(self) -> None:
        """Deliver the packets that are due."""
        held, write, clock = self._held, os.write, time.monotonic_ns
        now_ns = clock()
        while held and held[0][0] <= now_ns:
            due_ns, _, target, line, packet = heappop(held)
            try:
                write(target, packet)
            except OSError:  # its kernel has no room, or the packet is malformed: as on a wire, nobody is told
                self._refused += 1
            line.held -= 1
            late_ns = now_ns - due_ns
            self._delivered += 1
            self._late_ns += late_ns
            if late_ns > self._late_ns_max:
                self._late_ns_max = late_ns
            if late_ns > _LATE_NS:
                self._late += 1
            now_ns = clock()

    def _arm(self) -> None:
        """Wake up when the next packet is due."""
        if not self._held or self._held[0][0] == self._armed_ns:
            return
        self._armed_ns = due_ns = self._held[0][0]
        spec = struct.pack("@qqqq", 0, 0, *divmod(due_ns, 1_000_000_000))
        if self._libc.timerfd_settime(self._timer, _TIMER_ABSTIME, spec, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def _obey(self) -> None:
        asked = self._pipe.recv()
        if isinstance(asked, Shape):
            self._lines[asked.source, asked.target].shape(asked.path)
            self._pipe.send(None)
            return
        self._pipe.send(
            Account(
                counts={way: line.counts for way, line in self._lines.items()},
                delivered=self._delivered,
                refused=self._refused,
                late=self._late,
                late_us_max=self._late_ns_max / 1e3,
                late_us_mean=self._late_ns / max(self._delivered, 1) / 1e3,
                cpu_s=time.process_time(),
                wakes=self._wakes,
            )
        )


_QUEUE_PACKETS = 10_000  # of a device towards the relay: it must not lose a burst of a whole window
_CONTROLS = File("/proc/sys/net/ipv4/tcp_available_congestion_control")
_CONTROL = File("/proc/sys/net/ipv4/tcp_congestion_control")


def missing(*, cuts: bool = False) -> str:
    """The missing requirement for places, in words; empty if none is missing."""
    return netns.missing(cuts=cuts) or _no_tun()


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
            do(*within, "ip", "link", "set", device, "mtu", str(MTU_BYTES), "txqueuelen", str(_QUEUE_PACKETS), "up")
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
