"""A network for our own nodes: one namespace each, joined by a bridge whose host end is ours, and cut on demand.

A cut is an nftables rule in the receiver's namespace that drops the packets of one address: nothing is refused or
reset, packets just do not arrive, in one direction or in both. Needs root, ``ip`` and, for cuts, ``nft``. Blocking.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator

from ..errors import ServerError

_TIMEOUT_S = 20.0
_TABLE = "metad_perf"
_OWN = "/proc/thread-self/ns/net"
_CLONE_NEWNET = 0x40000000


def missing(*, cuts: bool = True) -> str:
    """The missing requirement for namespaces, in words; empty if none is missing."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [program for program in (("ip", "nft") if cuts else ("ip",)) if shutil.which(program) is None]
    return f"network namespaces need {' and '.join(absent)}" if absent else ""


def enter(space: str) -> None:
    """Move this thread, and the processes it starts, into a namespace; existing sockets stay where they are. Raises
    OSError."""
    fd = os.open(f"/run/netns/{space}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _set(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def inside(space: str) -> Iterator[None]:
    """Enter a namespace for a while: a socket made here belongs to it for good."""
    own = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(space)
        try:
            yield
        finally:
            _set(own)
    finally:
        os.close(own)


class Network:
    """``count`` namespaces, numbered from 0, that reach each other and us; without ``cuts`` nft is not needed."""

    def __init__(self, count: int, *, cuts: bool = True) -> None:
        self._cuts = cuts
        tag = os.getpid() % 100_000
        self._bridge = f"mp{tag}b"
        self._subnet = f"10.{64 + tag // 256 % 128}.{tag % 256}"
        self._spaces = [f"metad-perf-{tag}-{n}" for n in range(count)]
        self._links = [(f"mp{tag}h{n}", f"mp{tag}n{n}") for n in range(count)]

    def address(self, n: int) -> str:
        """IPv4 address of a namespace."""
        return f"{self._subnet}.{n + 1}"

    def space(self, n: int) -> str:
        """Name of a namespace."""
        return self._spaces[n]

    def prefix(self, n: int) -> list[str]:
        """The prefix that runs a command in a namespace; the process is the command's own."""
        return ["ip", "netns", "exec", self._spaces[n]]

    def make(self) -> None:
        """Set it up. Raises ServerError."""
        do("ip", "link", "add", self._bridge, "type", "bridge")
        do("ip", "address", "add", f"{self._subnet}.254/24", "dev", self._bridge)
        do("ip", "link", "set", self._bridge, "up")
        for n, (space, (host, inner)) in enumerate(zip(self._spaces, self._links, strict=True)):
            do("ip", "netns", "add", space)
            do("ip", "link", "add", host, "type", "veth", "peer", "name", inner, "netns", space)
            do("ip", "link", "set", host, "master", self._bridge, "up")
            do(*self.prefix(n), "ip", "address", "add", f"{self.address(n)}/24", "dev", inner)
            do(*self.prefix(n), "ip", "link", "set", inner, "up")
            do(*self.prefix(n), "ip", "link", "set", "lo", "up")
            if self._cuts:
                self._filter(n)

    def _filter(self, n: int) -> None:
        do(*self.prefix(n), "nft", "add", "table", "inet", _TABLE)
        do(*self.prefix(n), "nft", f"add chain inet {_TABLE} in {{ type filter hook input priority 0; }}")

    def cut(self, source: int, target: int) -> None:
        """From now on no packet from ``source`` reaches ``target``; the other direction is untouched."""
        rule = ["ip", "saddr", self.address(source), "drop"]
        do(*self.prefix(target), "nft", "add", "rule", "inet", _TABLE, "in", *rule)

    def cut_off(self, n: int) -> None:
        """From now on no packet reaches or leaves the namespace, ours included; its own link stays up. Needs no nft."""
        do("ip", "link", "set", self._links[n][0], "nomaster")

    def heal(self) -> None:
        """Let everything arrive again."""
        for n, (host, _) in enumerate(self._links):
            do("ip", "link", "set", host, "master", self._bridge)
            if self._cuts:
                do(*self.prefix(n), "nft", "flush", "chain", "inet", _TABLE, "in")

    def remove(self) -> None:
        """Remove all parts of it that exist."""
        for space in self._spaces:
            _try("ip", "netns", "delete", space)
        for host, _ in self._links:
            _try("ip", "link", "delete", host)
        _try("ip", "link", "delete", self._bridge)


def _set(fd: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, _CLONE_NEWNET):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def do(*command: str) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise ServerError(f"{' '.join(command)}: {' '.join(done.stderr.split()) or done.returncode}")


def _try(*command: str) -> None:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, check=False)
