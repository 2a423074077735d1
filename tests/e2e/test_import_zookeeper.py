"""A subtree of a ZooKeeper is imported into a metad that serves, as an etcd is (``test_import_etcd.py``). It has no
history, so the copy follows by walks, and only what cannot be a key of metad is left out, and listed.
"""

from __future__ import annotations

import itertools
import json
import signal
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e_metadctl import metadctl, printed
from import_peers import Running, Writer, ZooKeeper, values, written_until
from kazoo.client import KazooClient
from kazoo.protocol.serialization import Create2
from kazoo.security import OPEN_ACL_UNSAFE, make_acl, make_digest_acl

from metad import embedded
from metad_client import blocking
from waiting import WAIT_S, wait_until

_NUMBERS = itertools.count()


class CreateContainer(Create2):  # type: ignore[misc]
    """kazoo has none."""

    type = 19


class CreateTtl(Create2):  # type: ignore[misc]
    """One with a time to live of a minute."""

    type = 21

    def serialize(self) -> bytearray:
        request: bytearray = super().serialize()
        return request + struct.pack("!q", 60_000)


class Site:
    """A ZooKeeper and a metad, with a subtree and a namespace that no other test has."""

    def __init__(self, zookeeper: ZooKeeper, server: embedded.ServingInThread, directory: Path) -> None:
        self.zookeeper, self.server, self.directory = zookeeper, server, directory
        number = next(_NUMBERS)
        self.path, self.into = f"/app{number:03}", f"app{number:03}"
        self.refused = directory / "refused.jsonl"
        self.client: KazooClient = zookeeper.client
        self.client.create(self.path, b"root")

    def words(self, phase: str, *more: str) -> list[str]:
        """The command line of a phase."""
        where = ["--from", self.zookeeper.hosts, "--path", self.path, "--into", self.into]
        return ["import", "zookeeper", phase, *where, "--refused", str(self.refused), *more]

    def told(self, phase: str, *more: str) -> Any:
        """The document of a phase that succeeds without a word."""
        return printed(self.server, *self.words(phase, *more))

    def ran(self, phase: str, *more: str) -> tuple[int, Any, str]:
        """The exit status, the document if there is one, and what was said."""
        status, out, err = metadctl(self.server, *self.words(phase, *more), "--json")
        return status, json.loads(out) if out else None, err

    def make(self, names: Iterator[str] | list[str], value: bytes = b"v") -> None:
        """Create znodes."""
        for one in [self.client.create_async(f"{self.path}/{name}", value, makepath=True) for name in names]:
            one.get(timeout=WAIT_S)

    def make_as(self, request: type[Create2], name: str, flags: int) -> None:
        """Create a znode of a kind."""
        answer = self.client.handler.async_result()
        self.client._call(request(f"{self.path}/{name}", b"", OPEN_ACL_UNSAFE, flags), answer)
        answer.get(timeout=WAIT_S)

    @property
    def there(self) -> dict[str, bytes]:
        """What metad has, by the path below the subtree's root."""
        return {key.removeprefix(self.path): value for key, value in values(self.server, self.into).items()}

    def rows(self) -> dict[str, bytes]:
        """What ZooKeeper has, in the same way, but for ephemeral znodes."""
        found: dict[str, bytes] = {}
        waiting = [self.path]
        while waiting:
            path = waiting.pop()
            data, stat = self.client.get(path)
            if not stat.ephemeralOwner:
                found[path.removeprefix(self.path)] = data
            waiting += [f"{path}/{name}" for name in self.client.get_children(path)]
        return found


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    with ZooKeeper(tmp_path_factory.mktemp("zookeeper")) as zookeeper:
        yield zookeeper


@pytest.fixture(scope="module")
def server() -> Iterator[embedded.ServingInThread]:
    with embedded.serve_in_thread() as server:
        yield server


@pytest.fixture
def site(zookeeper: ZooKeeper, server: embedded.ServingInThread, tmp_path: Path) -> Site:
    return Site(zookeeper, server, tmp_path)


def test_an_import_from_prepare_to_cut(site: Site) -> None:
    site.make([f"d{i % 10}/n{i:04}" for i in range(300)])
    site.make(["a-b", "a", "a/b"], b"")  # the order of paths is not that of a walk
    site.client.create(f"{site.path}/alive", b"e", ephemeral=True)
    site.client.create(f"{site.path}/lock-", b"s", sequence=True)
    site.client.create(f"{site.path}/guarded", b"g", acl=[make_acl("world", "anyone", read=True, write=True)])
    site.make_as(CreateContainer, "box", 4)
    site.make_as(CreateTtl, "short", 5)
    secret = make_digest_acl("owner", "secret", all=True)
    site.client.create(f"{site.path}/hidden", b"h", acl=[secret])

    told = site.told("prepare")
    assert (told["keys"], told["phase"]) == (300 + 10 + 3 + 6 + 1, "new")
    assert {one["code"]: one["keys"] for one in told["not_carried"]} == {"ephemeral": 1, "no_access": 1}
    assert {one["code"]: one["keys"] for one in told["carried_without"]} == {"sequential": 1, "acl": 1}
    assert "zxids" in told["always"]
    assert "containers" in told["always"], "nobody can count them"
    assert site.there == {}, "it writes nothing"

    assert site.told("copy")["written"] == 300 + 10 + 3 + 4 + 1
    assert len(site.there) == 318
    (lock,) = (name for name in site.there if name.startswith("/lock-"))
    assert (site.there[""], site.there["/a/b"], site.there[lock]) == (b"root", b"", b"s")
    assert {line["code"] for line in map(json.loads, site.refused.read_text().splitlines())} == {
        "ephemeral",
        "no_access",
    }
    told = site.told("copy")
    assert (told["written"], told["deleted"]) == (0, 0)

    site.client.set(f"{site.path}/a", b"changed")
    site.client.delete(f"{site.path}/d1/n0001")
    site.make(["later/child"])
    password = site.directory / "password"
    password.write_text("secret\n")
    login = ["--user", "owner", "--password-file", str(password)]
    status, told, _ = site.ran("verify")
    assert (status, told["not_copied"]) == (1, 4), "and not the hidden one"
    told = site.told("copy", *login)
    assert (told["written"], told["deleted"]) == (4, 1), "with its password the hidden one, too"
    status, told, said = site.ran("cut", *login, "--quiet", "1s")
    assert (status, told["phase"]) == (0, "done")
    assert "stop the writers" in said
    assert 1_000 <= told["stopped_ms"] < 60_000
    site.client.add_auth("digest", "owner:secret")
    assert site.there == site.rows()
    assert site.there["/hidden"] == b"h"
    assert site.ran("copy")[0] == 1, "the import is done"


def test_a_copy_that_is_killed_goes_on_beside_writers(site: Site) -> None:
    site.make([f"n{i:05}" for i in range(1_500)])

    def change(number: int) -> None:
        site.client.set(f"{site.path}/n{number % 1_500:05}", b"w%d" % number)
        site.client.create(f"{site.path}/x{number}", b"x")
        if number % 2:
            site.client.delete(f"{site.path}/x{number}")

    with Writer(change) as writer:
        with Running(site.server, site.words("copy", "--rate", "500"), site.directory / "first") as first:
            wait_until(written_until(site.server, site.into, 500), "rows are copied")
            first.process.send_signal(signal.SIGKILL)
            first.process.wait()
        assert len(site.there) < 1_500, "it was killed in the middle"
        with Running(site.server, site.words("copy", "--follow"), site.directory / "second") as second:
            wait_until(lambda: "follows" in second.said, "the first walk is copied")
            begun = writer.done + 2
            wait_until(lambda: f"/x{begun - begun % 2}" in site.there, "it follows the writer")
            status, _, said = site.ran("cut", "--deadline", "2s", "--quiet", "1s")
            assert status == 1
            assert "goes on changing" in said
            assert second.process.wait(60) == 1, "the cut has taken over"
    status, told, _ = site.ran("cut", "--quiet", "1s")
    assert (status, told["phase"]) == (0, "done")
    assert site.there == site.rows()


def test_differences_are_found_and_a_client_is_not_overwritten(site: Site) -> None:
    site.make(["a", "b", "c", "d"])
    site.told("copy")
    with blocking.connect(site.server.url) as c:
        c.kv.put(site.into, f"{site.path}/a", b"planted")
        c.kv.delete(site.into, f"{site.path}/b")
    status, told, _ = site.ran("verify")
    assert status == 1
    found = {(one["what"], one["key"].removeprefix(site.path)) for one in told["differences"]}
    assert found == {("differs", "/a"), ("missing", "/b")}
    for name in "ab":
        site.client.set(f"{site.path}/{name}", b"new")
    told = site.told("copy")
    assert (told["written"], told["conflicts"]) == (0, 2)
    assert site.there["/a"] == b"planted"
    assert site.ran("cut", "--quiet", "1s")[0] == 1
    site.told("copy", "--overwrite")
    assert site.there == site.rows()


def test_what_is_wrong_is_said_in_a_line(site: Site) -> None:
    for words, status, said in (
        (["--path", "/absent"], 1, "there is no znode /absent"),
        (["--path", "relative"], 2, "not as in /a/b"),
        (["--from", "127.0.0.1:1", "--timeout", "0.5"], 1, "127.0.0.1:1"),
    ):
        with Running(site.server, site.words("copy", *words), site.directory / "wrong") as run:
            assert run.process.wait(60) == status, run.said
        assert said in run.said.splitlines()[-1]
        assert "Traceback" not in run.said
