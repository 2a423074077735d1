"""An etcd is imported into a metad that serves: in phases, through kills, beside writers, over a compaction. What
cannot be carried over is listed, and nothing that a client of metad has written is overwritten.

It guards what an operator relies on: that the cut ends an import only if both sides are equal.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e_metadctl import metadctl, printed
from import_peers import Etcd, Running, Writer, values, written_until

from metad import embedded
from metad_client import blocking
from waiting import wait_until

_NUMBERS = itertools.count()


class Site:
    """An etcd and a metad, with a prefix and a namespace that no other test has."""

    def __init__(self, etcd: Etcd, server: embedded.ServingInThread, directory: Path) -> None:
        self.etcd, self.server, self.directory = etcd, server, directory
        number = next(_NUMBERS)
        self.prefix, self.into = f"/app{number:03}/", f"app{number:03}"
        self.refused = directory / "refused.jsonl"

    def words(self, phase: str, *more: str) -> list[str]:
        """The command line of a phase."""
        where = ["--from", self.etcd.url, "--prefix", self.prefix, "--into", self.into]
        return ["import", "etcd", phase, *where, "--refused", str(self.refused), *more]

    def told(self, phase: str, *more: str) -> Any:
        """The document of a phase that succeeds without a word."""
        return printed(self.server, *self.words(phase, *more))

    def ran(self, phase: str, *more: str) -> tuple[int, Any, str]:
        """The exit status, the document if there is one, and what was said."""
        status, out, err = metadctl(self.server, *self.words(phase, *more), "--json")
        return status, json.loads(out) if out else None, err

    def put(self, rows: dict[str, bytes], lease: int = 0) -> int:
        """Put rows below the prefix."""
        return self.etcd.put({f"{self.prefix}{key}": value for key, value in rows.items()}, lease)

    @property
    def there(self) -> dict[str, bytes]:
        """What metad has."""
        return values(self.server, self.into)

    def lines(self) -> list[dict[str, Any]]:
        """Of the file of what was refused."""
        return [json.loads(line) for line in self.refused.read_text().splitlines()]


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with Etcd(tmp_path_factory.mktemp("etcd")) as etcd:
        yield etcd


@pytest.fixture(scope="module")
def server() -> Iterator[embedded.ServingInThread]:
    with embedded.serve_in_thread() as server:
        yield server


@pytest.fixture
def site(etcd: Etcd, server: embedded.ServingInThread, tmp_path: Path) -> Site:
    return Site(etcd, server, tmp_path)


def rows_of(count: int, value: bytes = b"v") -> dict[str, bytes]:
    return {f"k{i:05}": value + b"%d" % i for i in range(count)}


def test_an_import_from_prepare_to_cut(site: Site) -> None:
    rows = rows_of(2_500)
    site.put(rows)
    site.put({"short": b"1", "long": b"2"}, site.etcd.lease(600))
    site.etcd.put({site.prefix.encode() + b"\xff\xfe": b"no text", f"{site.prefix}{'n' * 5_000}": b"long"})
    site.put({"large": b"x" * 1_100_000})
    carried = {f"{site.prefix}{key}": value for key, value in rows.items()}

    told = site.told("prepare")
    assert (told["keys"], told["carried"], told["phase"], told["in_metad"]) == (2_505, 2_502, "new", 0)
    reasons = {one["code"]: one["keys"] for one in told["not_carried"]}
    assert reasons == {"key_not_utf8": 1, "key_too_long": 1, "value_too_large": 1}
    assert [(one["code"], one["keys"]) for one in told["carried_without"]] == [("lease", 2)]
    assert "mod_revision" in told["always"]
    assert {line["code"]: "key" in line for line in site.lines()} == {
        "key_not_utf8": False,  # it is in key_base64
        "key_too_long": True,
        "value_too_large": True,
    }
    assert site.there == {}, "it writes nothing"
    assert site.ran("verify")[0] == site.ran("cut")[0] == 1, "nothing was copied"

    told = site.told("copy")
    assert (told["written"], told["phase"], told["snapshots"]) == (2_500, "following", 1)
    assert site.there == carried
    assert site.told("copy")["written"] == 0
    told = site.told("verify")
    assert (told["same"], told["leased"], told["differences"]) == (2_500, 2, [])

    told = site.ran("cut", "--quiet", "1s")[1]
    assert (told["phase"], told["leased_copied"]) == ("done", 2)
    assert 1_000 <= told["stopped_ms"] < 60_000
    with blocking.connect(site.server.url) as c:
        (lease,) = {kv.lease for kv in c.kv.scan(site.into) if kv.lease}
        found = c.leases.get(site.into, lease)
        assert lease.startswith("etcd-")
        assert found is not None
        assert 500_000 < found.ttl_ms <= 600_000
        assert found.keys == 2
        assert [*c.kv.scan(f"metad.import.{told['import']}")] == [], "the notes are gone"
    assert site.there == carried | {f"{site.prefix}short": b"1", f"{site.prefix}long": b"2"}

    with blocking.connect(site.server.url) as c:
        c.kv.put(site.into, f"{site.prefix}k00000", b"newer")
    for phase in ("copy", "verify"):
        status, _, said = site.ran(phase)
        assert status == 1
        assert "done" in said
    assert site.ran("cut")[0] == 0, "it is cut already"
    assert site.there[f"{site.prefix}k00000"] == b"newer"
    assert site.told("forget")["phase"] == "done"
    assert site.told("prepare")["phase"] == "new"


def test_a_copy_that_is_killed_goes_on_elsewhere(site: Site) -> None:
    rows = rows_of(6_000)
    site.put(rows)
    with Running(site.server, site.words("copy", "--rate", "2000"), site.directory / "first") as first:
        wait_until(written_until(site.server, site.into, 1_500), "rows are copied")
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
    copied = len(site.there)
    assert copied < 6_000, "it was killed in the middle"
    site.put({"k00001": b"changed behind the cursor", "k05999": b"changed before it", "new": b"n"})
    for key in ("k00002", "k05998"):
        site.etcd.delete(f"{site.prefix}{key}")
    site.refused = site.directory / "second.jsonl"
    told = site.told("copy", "--rate", "0")
    assert told["snapshots"] == 1
    assert told["written"] <= 6_000 - copied + 1_000 + 3, "it began where the first one was"
    assert told["conflicts"] == 0
    assert site.there == site.etcd.rows(site.prefix)
    assert site.told("verify")["same"] == 5_999


def test_writers_go_on_until_the_cut(site: Site) -> None:
    site.put(rows_of(1_000))

    def change(number: int) -> None:
        site.put({f"k{number % 1_000:05}": b"w%d" % number, f"n{number % 50}": b"%d" % number})
        if number % 3 == 0:
            site.etcd.delete(f"{site.prefix}n{number % 50}")

    follower = Running(site.server, site.words("copy", "--follow"), site.directory / "f")
    with follower as copy, Writer(change) as writer:
        wait_until(lambda: "follows" in copy.said, "the snapshot is copied")
        begun = writer.done
        wait_until(lambda: int(site.there.get(f"{site.prefix}n7", b"0")) > begun, "it follows the writer")
        status, _, said = site.ran("cut", "--deadline", "2s", "--quiet", "1s")
        assert status == 1
        assert "goes on changing" in said
        assert "stop the writers" in said
        assert copy.process.wait(60) == 1, "the cut has taken over"
        assert "another run" in copy.said
        assert writer.done > 100
    status, told, _ = site.ran("cut", "--quiet", "1s")
    assert (status, told["phase"]) == (0, "done")
    assert site.there == site.etcd.rows(site.prefix)


def test_differences_are_found_and_nothing_is_cut_over(site: Site) -> None:
    site.put(rows_of(50))
    site.told("copy")
    prefix = site.prefix
    with blocking.connect(site.server.url) as c:
        c.kv.put(site.into, f"{prefix}k00001", b"planted")
        c.kv.delete(site.into, f"{prefix}k00002")
        c.kv.put(site.into, f"{prefix}other", b"only here")
    site.put({"k00003": b"not copied yet", "new": b"n"})
    site.etcd.delete(f"{prefix}k00004")
    status, told, _ = site.ran("verify")
    assert status == 1
    found = {(one["what"], one["key"].removeprefix(prefix), one["not_copied"]) for one in told["differences"]}
    assert found == {
        ("differs", "k00001", False),
        ("missing", "k00002", False),
        ("only_in_metad", "other", False),
        ("differs", "k00003", True),
        ("missing", "new", True),
        ("deleted", "k00004", True),
    }
    assert (told["same"], told["not_copied"]) == (46, 3)
    status, told, said = site.ran("cut", "--quiet", "1s")
    assert (status, told["phase"]) == (1, "following")
    assert "3 keys differ" in said
    assert site.told("copy", "--overwrite")["conflicts"] == 0
    assert site.there == site.etcd.rows(prefix) | {f"{prefix}other": b"only here"}
    assert site.ran("verify")[0] == 1
    assert site.ran("cut", "--quiet", "1s", "--allow-others")[0] == 0


def test_what_a_client_of_metad_has_changed_is_not_overwritten(site: Site) -> None:
    with blocking.connect(site.server.url) as c:
        c.kv.put(site.into, f"{site.prefix}k00000", b"was there before")
        site.put(rows_of(10))
        told = site.told("copy")
        assert (told["written"], told["conflicts"]) == (9, 1)
        c.kv.put(site.into, f"{site.prefix}k00001", b"a client's")
        c.kv.delete(site.into, f"{site.prefix}k00002")
        c.kv.put(site.into, f"{site.prefix}k00003", b"another client's")
    site.put({"k00001": b"new", "k00002": b"new", "k00005": b"new"})
    site.etcd.delete(f"{site.prefix}k00003")
    told = site.told("copy")
    assert (told["written"], told["deleted"], told["conflicts"]) == (1, 0, 3)
    assert {line["code"] for line in site.lines()} == {"conflict"}
    listed = [line["key"].removeprefix(site.prefix) for line in site.lines()]
    assert sorted(listed) == ["k00000", "k00001", "k00002", "k00003"], "of both runs"
    there = {key.removeprefix(site.prefix): value for key, value in site.there.items()}
    assert there["k00000"] == b"was there before"
    assert there["k00001"] == b"a client's"
    assert there["k00003"] == b"another client's"
    assert "k00002" not in there
    assert site.told("copy", "--overwrite")["conflicts"] == 0
    assert site.there == site.etcd.rows(site.prefix)


def test_a_compaction_while_it_follows_begins_a_new_snapshot(site: Site) -> None:
    """The follower is stopped, and etcd is away, so that its watch has to begin in what was dropped."""
    site.put(rows_of(300))
    with Running(site.server, site.words("copy", "--follow"), site.directory / "f") as copy:
        wait_until(lambda: "follows" in copy.said, "it follows")
        copy.process.send_signal(signal.SIGSTOP)
        site.etcd.kill()
        site.etcd.start()
        site.etcd.delete(f"{site.prefix}k00007")
        site.etcd.compact(site.put({"k00008": b"changed", "new": b"n"}))
        copy.process.send_signal(signal.SIGCONT)
        wait_until(lambda: site.there == site.etcd.rows(site.prefix), "all is here")
        assert "etcd has dropped its history before revision" in copy.said
        assert "a new snapshot is read" in copy.said
        assert "tries again" in copy.said, "it went on while etcd was away"
        os.kill(copy.process.pid, signal.SIGINT)
        assert copy.process.wait(60) == 130
    assert site.told("verify")["same"] == 300


def test_an_etcd_with_tls_and_users(server: embedded.ServingInThread, tmp_path: Path) -> None:
    certs = tmp_path / "certs"
    assert metadctl(server, "certs", "--out", str(certs), "--nodes", "e", "--hosts", "127.0.0.1,localhost")[0] == 0
    (tmp_path / "password").write_text("secret\n")
    with Etcd(tmp_path, certs=certs) as etcd:
        etcd.call("/v3/auth/user/add", {"name": "root", "password": "secret"})
        etcd.call("/v3/auth/user/grant", {"user": "root", "role": "root"})
        etcd.put({"/tls/a": b"1"})
        etcd.call("/v3/auth/enable", {})
        where = ["--from", etcd.url, "--prefix", "/tls/", "--into", "tls"]
        status, _, said = metadctl(server, "import", "etcd", "copy", *where, "--timeout", "3s")
        assert status == 1
        assert "certificate verify failed" in said
        trusted = [*where, "--source-ca", str(certs / "ca.pem")]
        status, _, said = metadctl(server, "import", "etcd", "copy", *trusted)
        assert status == 1
        assert "user name is empty" in said
        login = [*trusted, "--user", "root", "--password-file", str(tmp_path / "password")]
        assert printed(server, "import", "etcd", "copy", *login)["written"] == 1
        assert printed(server, "import", "etcd", "verify", *login)["same"] == 1


def test_parts_of_the_path_become_namespaces(site: Site) -> None:
    site.put({"eu/a/x": b"1", "eu/b": b"2", "us/a/x": b"3", "us/a/x/y": b"4"})
    site.etcd.put({site.prefix: b"the prefix itself"})
    split = ["--split", "1", "--strip"]
    assert site.told("prepare", *split)["namespaces"] == 3
    site.told("copy", *split)
    assert site.told("verify", *split)["same"] == 5
    assert values(site.server, f"{site.into}/eu") == {"eu/a/x": b"1", "eu/b": b"2"}
    assert values(site.server, f"{site.into}/us") == {"us/a/x": b"3", "us/a/x/y": b"4"}
    assert site.there == {"": b"the prefix itself"}


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--from", "http://127.0.0.1:1"], 1, "127.0.0.1:1"),
        (["--from", "ftp://127.0.0.1:1"], 2, "not as in http://HOST:2379"),
        (["--into", "metad.import"], 2, "metad.import"),
        (["--user", "root"], 2, "--password-file"),
        (["--source-ca", "/nowhere.pem"], 1, "--source-ca"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(site: Site, words: list[str], status: int, said: str) -> None:
    with Running(site.server, site.words("copy", *words), site.directory / "wrong") as run:
        assert run.process.wait(60) == status, run.said
    assert said in run.said.splitlines()[-1]
    assert "Traceback" not in run.said
