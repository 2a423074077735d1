"""A real etcd and a real ZooKeeper for tests of imports, from Debian's packages: ``make import-test`` installs them.

Where they are not installed these tests are skipped, and say so. With METAD_REQUIRE_PEERS=1 that is an error.
"""

from __future__ import annotations

import base64
import http.client
import json
import logging
import os
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from kazoo.client import KazooClient

from metad import embedded
from metad_client import blocking
from metad_perf.peers.nodes import Nodes, find
from metad_perf.peers.peer import MissingError
from metad_perf.peers.zookeeper import JAR, find_zookeeper
from waiting import WAIT_S

METADCTL = Path(sys.executable).with_name("metadctl")


def installed(look: Callable[[], str]) -> str:
    """What ``look`` finds; the test is skipped, or fails, where it is not installed."""
    try:
        return look()
    except MissingError as error:
        if os.environ.get("METAD_REQUIRE_PEERS"):
            raise
        pytest.skip(f"{error}; `make import-test` runs this test")


class Etcd:
    """One member, and what a client of it does. Leaving the block ends it."""

    def __init__(self, directory: Path, certs: Path | None = None) -> None:
        """``certs``: as `metadctl certs` writes them, for a node ``e``."""
        self._program = installed(lambda: find("etcd", "etcd", "etcd-server"))
        self._directory = directory
        self._certs = certs
        self._nodes = Nodes("etcd", directory)
        self._port, self._peer_port = self._nodes.ports(2)
        self.url = f"{'https' if certs else 'http'}://127.0.0.1:{self._port}"
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._nodes.stop()

    def start(self) -> None:
        """Start it, on the same ports and data as before."""
        peer = f"http://127.0.0.1:{self._peer_port}"
        argv = [self._program, "--name", "e", "--data-dir", str(self._directory / "data"), "--log-level", "error"]
        argv += ["--listen-client-urls", self.url, "--advertise-client-urls", self.url]
        argv += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"e={peer}"]
        if self._certs is not None:
            files = ["--cert-file", "node-e.pem", "--key-file", "node-e-key.pem"]
            argv += [str(self._certs / word) if word.endswith(".pem") else word for word in files]
        self._nodes.start("e", argv)
        self._nodes.wait(self._serves)

    def kill(self) -> None:
        """SIGKILL."""
        self._nodes.kill("e")

    def put(self, rows: Mapping[str | bytes, bytes], lease: int = 0) -> int:
        """Put rows, a hundred in each transaction; the revision of the last one."""
        items, revision = list(rows.items()), 0
        for start in range(0, len(items), 100):
            puts = [
                {"request_put": {"key": _b64(key), "value": _b64(value), "lease": str(lease)}}
                for key, value in items[start : start + 100]
            ]
            revision = int(self.call("/v3/kv/txn", {"success": puts})["header"]["revision"])
        return revision

    def delete(self, key: str) -> int:
        """Delete a key; the revision."""
        return int(self.call("/v3/kv/deleterange", {"key": _b64(key)})["header"]["revision"])

    def compact(self, revision: int) -> None:
        """Drop the history before a revision."""
        self.call("/v3/kv/compaction", {"revision": str(revision), "physical": True})

    def lease(self, ttl_s: int) -> int:
        """Grant a lease."""
        return int(self.call("/v3/lease/grant", {"TTL": str(ttl_s)})["ID"])

    def rows(self, prefix: str) -> dict[str, bytes]:
        """All rows of a prefix that is no end of another."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        found = self.call("/v3/kv/range", {"key": _b64(prefix), "range_end": _b64(end)})
        return {base64.b64decode(kv["key"]).decode(): base64.b64decode(kv.get("value", "")) for kv in found["kvs"]}

    def call(self, path: str, body: Mapping[str, Any]) -> Any:
        """One request."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=WAIT_S)
        if self._certs is not None:
            tls = ssl.create_default_context(cafile=str(self._certs / "ca.pem"))
            connection = http.client.HTTPSConnection("127.0.0.1", self._port, timeout=WAIT_S, context=tls)
        try:
            connection.request("POST", path, json.dumps(body))
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        assert answer.status == 200, text
        return json.loads(text)

    def _serves(self) -> bool:
        try:
            self.call("/v3/kv/range", {"key": _b64("a")})
        except (OSError, http.client.HTTPException, AssertionError):
            return False
        return True


def _b64(text: str | bytes) -> str:
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


class ZooKeeper:
    """One node, and a client of it. Leaving the block ends both."""

    def __init__(self, directory: Path) -> None:
        java = installed(find_zookeeper)
        self._nodes = Nodes("zookeeper", directory)
        (port,) = self._nodes.ports(1)
        lines = ["tickTime=2000", f"dataDir={directory / 'data'}", f"clientPort={port}", "maxClientCnxns=0"]
        lines += ["clientPortAddress=127.0.0.1", "admin.enableServer=false", "forceSync=no"]
        config = directory / "zoo.cfg"
        config.write_text("\n".join(lines) + "\n")
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        settings = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-Dzookeeper.extendedTypesEnabled=true"]
        logging.getLogger("kazoo").setLevel(logging.CRITICAL)
        self._nodes.start("z", [java, *settings, "-cp", str(JAR), main, str(config)])
        self.hosts = f"127.0.0.1:{port}"
        self.client = KazooClient(hosts=self.hosts, timeout=30.0)
        self.client.start(WAIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.stop()
        self.client.close()
        self._nodes.stop()


class Running:
    """A command of ``metadctl`` in a process of its own. Leaving the block kills it."""

    def __init__(self, server: embedded.ServingInThread, words: Sequence[str], directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self._said = directory / "stderr"
        with self._said.open("wb") as stderr:
            command = [str(METADCTL), "--endpoint", server.endpoint, *words]
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr, cwd=directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(WAIT_S)

    @property
    def said(self) -> str:
        """On stderr so far."""
        return self._said.read_text()


def values(server: embedded.ServingInThread, *namespaces: str) -> dict[str, bytes]:
    """What metad has in these namespaces."""
    with blocking.connect(server.url) as c:
        return {kv.key: kv.value for space in namespaces for kv in c.kv.scan(space)}


def written_until(server: embedded.ServingInThread, namespace: str, keys: int) -> Callable[[], bool]:
    """Whether a namespace has so many keys by now."""
    return lambda: len(values(server, namespace)) >= keys


class Writer:
    """Changes rows all the time, one after the other, until the block is left; ``done`` counts."""

    def __init__(self, change: Callable[[int], None]) -> None:
        self._change = change
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.done = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(WAIT_S)

    def _run(self) -> None:
        while not self._ended.is_set():
            self._change(self.done)
            self.done += 1
            time.sleep(0.002)  # who writes all the while pauses between rounds
