"""A network for nodes of our own: one namespace each, joined by a bridge whose host end is ours, and cut at will.

A cut is an nftables rule in the receiver's namespace that drops what comes from one address: nothing is refused or
reset, packets just do not arrive, in one direction or in both. Needs root, ``ip`` and ``nft``. Blocking.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess

from .errors import ServerError

_TIMEOUT_S = 20.0
_TABLE = "metad_perf"


def missing() -> str:
    """What is missing for namespaces, in words; empty where nothing is."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [program for program in ("ip", "nft") if shutil.which(program) is None]
    return f"network namespaces need {' and '.join(absent)}" if absent else ""


class Network:
    """``count`` namespaces, numbered from 0, that reach each other and us."""

    def __init__(self, count: int) -> None:
        tag = os.getpid() % 100_000
        self._bridge = f"mp{tag}b"
        self._subnet = f"10.{64 + tag // 256 % 128}.{tag % 256}"
        self._spaces = [f"metad-perf-{tag}-{n}" for n in range(count)]
        self._links = [(f"mp{tag}h{n}", f"mp{tag}n{n}") for n in range(count)]

    def address(self, n: int) -> str:
        """IPv4 address of a namespace."""
        return f"{self._subnet}.{n + 1}"

    def prefix(self, n: int) -> list[str]:
        """What to put before a command so that it runs in a namespace; the process stays the command's own."""
        return ["ip", "netns", "exec", self._spaces[n]]

    def make(self) -> None:
        """Set it up. Raises ServerError."""
        _do("ip", "link", "add", self._bridge, "type", "bridge")
        _do("ip", "address", "add", f"{self._subnet}.254/24", "dev", self._bridge)
        _do("ip", "link", "set", self._bridge, "up")
        for n, (space, (host, inner)) in enumerate(zip(self._spaces, self._links, strict=True)):
            _do("ip", "netns", "add", space)
            _do("ip", "link", "add", host, "type", "veth", "peer", "name", inner, "netns", space)
            _do("ip", "link", "set", host, "master", self._bridge, "up")
            _do(*self.prefix(n), "ip", "address", "add", f"{self.address(n)}/24", "dev", inner)
            _do(*self.prefix(n), "ip", "link", "set", inner, "up")
            _do(*self.prefix(n), "ip", "link", "set", "lo", "up")
            _do(*self.prefix(n), "nft", "add", "table", "inet", _TABLE)
            _do(*self.prefix(n), "nft", f"add chain inet {_TABLE} in {{ type filter hook input priority 0; }}")

    def cut(self, source: int, target: int) -> None:
        """Nothing from ``source`` reaches ``target`` any more; the other way is untouched."""
        rule = ["ip", "saddr", self.address(source), "drop"]
        _do(*self.prefix(target), "nft", "add", "rule", "inet", _TABLE, "in", *rule)

    def heal(self) -> None:
        """Everything arrives again."""
        for n in range(len(self._spaces)):
            _do(*self.prefix(n), "nft", "flush", "chain", "inet", _TABLE, "in")

    def remove(self) -> None:
        """Take away whatever there is of it."""
        for space in self._spaces:
            _try("ip", "netns", "delete", space)
        for host, _ in self._links:
            _try("ip", "link", "delete", host)
        _try("ip", "link", "delete", self._bridge)


def _do(*command: str) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise ServerError(f"{' '.join(command)}: {' '.join(done.stderr.split()) or done.returncode}")


def _try(*command: str) -> None:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, check=False)
