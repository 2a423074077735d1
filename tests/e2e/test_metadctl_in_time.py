"""Every command of metadctl ends soon after its ``--timeout`` where a cluster does not answer: while a backup goes into
it, so that it serves nothing, and while a majority of its nodes is gone. Once an export took half a minute, whatever
``--timeout`` said.

The list is the command line's own: a new command is tried as soon as it is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest
from test_metadctl_unknown_names import ALIKE, NAME, leaves

from metad.embedded import Cluster, cluster
from metad_backup.repository import Repository
from metad_backup.taking import take
from metad_client import blocking, connect
from metad_client.cli.command_line import build_parser, main
from metad_wire.operator.backup import Restore
from waiting import wait_until

TIMEOUT_S: Final = 1.0
LITTLE_S: Final = 8.0
"""Beyond the timeout, on a busy machine, with as many commands at once as :data:`AT_ONCE`."""
AT_ONCE: Final = 12
OWN_WAY: Final = {
    "top": "a screen, until it is left",
    "replace": "it has a --deadline, and says all the while what it waits for",
    "certs": "asks no cluster",
    "token": "asks no cluster",
    "completion": "asks no cluster",
    "backup verify": "asks no cluster, but starts one",
}
SMALL: Final = {"fsync": False, "groups": {"data": 2, "offset": 1}}


def commands(repository: Path, elsewhere: str, scratch: Path) -> dict[str, list[str]]:
    """All that ask a cluster, with arguments that lead as far as the cluster."""
    found = {words: needs for words, needs in leaves(build_parser(), named=False) if words.split()[0] not in ALIKE}
    files = scratch / "files"
    files.mkdir()
    (files / "kv.jsonl").write_text('{"namespace": "n", "key": "k", "value": "v"}\n')
    imported = ["--into", "n", "--refused", str(scratch / "refused.jsonl")]
    etcd = ["--from", "http://127.0.0.1:9", "--prefix", "/", *imported]
    zookeeper = ["--from", "127.0.0.1:9", "--path", "/a", *imported]
    for words in found:
        if words.startswith("import "):
            found[words] = etcd if " etcd" in words else zookeeper if " zookeeper" in words else [str(files)]
    found |= {
        "groups move": ["data-0", "--from", "n1", "--to", "n2"],
        "groups prefer": ["data-0", "--none"],
        "groups split": ["data-0", "--wait", "--deadline", "1"],
        "groups merge": ["data-0", "--into", "data-1", "--wait", "--deadline", "1"],
        "node drain": ["n1", "--wait", "--deadline", "1"],
        "watch": ["kv", "--from", "snapshot"],
        "export": [str(scratch / "exported")],
        "backup take": [str(scratch / "taken")],
        "restore": [str(repository)],
        "tenants move": [NAME, "--to", elsewhere],
        "status": ["--wait", "OK"],
    }
    return {words: needs for words, needs in found.items() if words not in OWN_WAY}


class Late(dict[str, float]):
    """Commands that took longer than they may, and how long each did; ``waited``: how many met their timeout."""

    waited = 0


def tried(endpoint: str, wanted: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> tuple[Late, str]:
    """Run the commands, many at once; what they said on stderr as well."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    late, err = Late(), io.StringIO()

    def one(words: str) -> None:
        begun_s = time.monotonic()
        with contextlib.suppress(SystemExit):
            main(["--endpoint", endpoint, "--timeout", f"{TIMEOUT_S:g}", *words.split(), *wanted[words]])
        took_s = time.monotonic() - begun_s
        late.waited += took_s >= TIMEOUT_S * 0.9
        if took_s > TIMEOUT_S + LITTLE_S:
            late[words] = took_s

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, wanted))
    return late, err.getvalue()


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Path]]:
    """Another cluster, and a backup of it."""
    repository = tmp_path_factory.mktemp("backup")

    async def back_up(of: Cluster) -> None:
        async with connect(of.url) as c:
            await c.kv.put("n", "k", b"v")
            await take(c, Repository(str(repository), create=True))

    with cluster(1, **SMALL) as other:
        asyncio.run(back_up(other))
        yield other, repository


Tried = Callable[[Cluster], tuple[Late, str]]


@pytest.fixture
def try_all(elsewhere: tuple[Cluster, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tried:
    other, repository = elsewhere
    monkeypatch.chdir(tmp_path)
    wanted = commands(repository, address(other), tmp_path)
    assert len(wanted) > 100
    return lambda of: tried(address(of), wanted, monkeypatch)


def address(of: Cluster) -> str:
    return of.url.partition("//")[2]


def test_a_cluster_into_which_a_backup_goes(try_all: Tried) -> None:
    with cluster(1, **SMALL) as restoring:
        with blocking.connect(restoring.url) as c:
            for group in ("data-0", "data-1", "offset-0", "metadata-0"):
                c.backups.restore(group, Restore("begin", "another", 1))
        late, said = try_all(restoring)
    assert late == {}
    assert late.waited > 20
    assert "has sent anything of a snapshot for 1 s" in said, "the export"


def test_a_cluster_without_a_majority(try_all: Tried) -> None:
    with cluster(3, **SMALL) as broken:
        for name in broken.nodes[1:]:
            broken.kill(name)
        with blocking.connect(broken.url) as c:
            wait_until(lambda: not any(c.cluster.map().leaders.values()), "nobody leads")
        late, _ = try_all(broken)
    assert late == {}
    assert late.waited > 60
