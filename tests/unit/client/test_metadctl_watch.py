"""``metadctl watch``: its lines for people and for programs, and how it ends."""

from __future__ import annotations

import errno
import io
import json
import re
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from scripted import Server
from watch_server import WatchNodes

from metad_client import ChangeKind, PermissionDeniedError, SessionKey, SessionOwner, WatchEvent, cli
from metad_client.cli.watching import _document, line_of
from metad_wire.families.core import USERS, User
from metad_wire.messages import Revision, TableRecord


class Screen(io.StringIO):
    """An output on which the user presses Ctrl-C once it has so many lines, or which breaks then."""

    def __init__(self, lines: int, *, breaks: OSError | None = None) -> None:
        super().__init__()
        self._lines = lines
        self._breaks = breaks
        self.grown: Callable[[int], None] = lambda _: None

    def flush(self) -> None:
        super().flush()
        lines = self.getvalue().count("\n")
        self.grown(lines)
        if lines >= self._lines and self._breaks is not None:
            raise self._breaks
        if lines >= self._lines:
            self._lines = sys.maxsize
            signal.raise_signal(signal.SIGINT)

    def fileno(self) -> int:
        return 1


@pytest.fixture
def nodes(scripted_server: Server) -> WatchNodes:
    nodes = WatchNodes(scripted_server, data=1)
    nodes.place(nodes={"n1": "a:7420"}, data=1)
    nodes.groups[0].put("k1", b"1")
    return nodes


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Ctrl-C as in a process of its own: a Spark session of another test has left its own handler."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def run(
    scripted_server: Server, monkeypatch: pytest.MonkeyPatch, capsys: Any, interrupts: None
) -> Callable[..., tuple[int, str, str]]:
    def run(screen: Screen, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdout", screen)
        status = cli.main(["--endpoint", "a", "watch", *arguments], transport=scripted_server.transport)
        return status, screen.getvalue(), capsys.readouterr().err

    return run


def test_a_person_sees_a_line_for_each_change_and_how_to_go_on(nodes: WatchNodes, run: Any) -> None:
    (group,) = nodes.groups
    screen = Screen(4)

    def grown(lines: int) -> None:
        if lines == 2:
            group.put("k2", b"\xff" * 80)
        elif lines == 3:
            group.delete("k1")

    screen.grown = grown
    status, out, err = run(screen, "kv", "--tenant", "ns", "--prefix", "k", "--from", "snapshot")
    assert status == 130
    lines = out.splitlines()
    assert lines[0] == "WRITTEN  kv             ns/k1  value=1 version=1"
    assert lines[1] == "COMPLETE data-0: changes of 1024 slots follow"
    assert lines[2].startswith("CREATED  kv             ns/k2  value_base64=")
    assert len(lines[2]) == 80
    assert lines[3] == "DELETED  kv             ns/k1"
    (token,) = re.findall(r"^metadctl: to go on from here: --from (\S+)$", err, re.MULTILINE)
    filters = group.streams[0].received.body.filters
    assert [(each.table, each.fields, each.prefix) for each in filters] == [("kv", ["ns"], "k")]
    group.put("k3", b"3")
    status, out, _ = run(Screen(1), "kv", "--from", token)
    assert (status, out) == (130, "CREATED  kv             ns/k3  value=3 version=1\n")


def test_a_program_reads_json_lines_with_tokens(nodes: WatchNodes, run: Any) -> None:
    (group,) = nodes.groups
    screen = Screen(3)
    screen.grown = lambda lines: group.delete("k1") and None if lines == 2 else None
    status, out, err = run(screen, "kv", "--from", "snapshot", "--json")
    assert status == 130
    first, complete, deleted = map(json.loads, out.splitlines())
    assert first["record"]["value"] == "1"
    assert "token" not in first
    assert (complete["kind"], complete["slots"], complete["group"]) == ("SNAPSHOT", 1024, "data-0")
    assert deleted == {
        "table": "kv",
        "row": "record",
        "kind": "DELETED",
        "key": {"namespace": "ns", "key": "k1"},
        "record": None,
        "revision": {"group": "data-0", "index": 20},
        "version": 20,
        "time_ms": 1_700_000_000_002,
        "token": deleted["token"],
    }
    assert deleted["token"] in err
    assert complete["token"] not in err


def test_a_gap_is_shown(nodes: WatchNodes, run: Any) -> None:
    (group,) = nodes.groups
    _, _, err = run(Screen(1), "kv", "--from", "snapshot")
    token = err.split()[-1]
    group.put("k2", b"2")
    group.base = 2
    _, out, _ = run(Screen(2), "kv", "--from", token)
    assert out.splitlines()[0] == "GAP      data-0: changes of 1024 slots are lost; what there is follows"


def test_a_reader_that_goes_ends_it_quietly(nodes: WatchNodes, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.dup2", lambda *_: 0)
    status, _, err = run(Screen(1, breaks=BrokenPipeError()), "kv", "--from", "snapshot")
    assert (status, err) == (0, "")


def test_a_full_disk_ends_it_with_a_line(nodes: WatchNodes, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.dup2", lambda *_: 0)
    full = OSError(errno.ENOSPC, "No space left on device")
    status, _, err = run(Screen(1, breaks=full), "kv", "--from", "snapshot")
    assert status == 1
    assert err.splitlines()[1:] == ["metadctl: cannot write the output: No space left on device"]


def test_an_error_ends_it_with_a_line_and_the_token(nodes: WatchNodes, run: Any) -> None:
    (group,) = nodes.groups
    screen = Screen(9)

    def grown(lines: int) -> None:
        if lines == 2:
            group.live[0].end(PermissionDeniedError("not for you"))

    screen.grown = grown
    status, _, err = run(screen, "kv", "--from", "snapshot")
    assert status == 1
    assert re.fullmatch(r"metadctl: to go on from here: --from \S+\nmetadctl: .*not for you\n", err)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("kv", "--from", "yesterday"), 1, "a token begins with 'w1.'"),
        (("kv", "--prefix", "k"), 2, "--prefix needs --tenant"),
        (("kv", "--from"), 2, "expected one argument"),
    ],
)
def test_a_wrong_command_line_says_what_is_wrong(
    nodes: WatchNodes, run: Any, capsys: Any, arguments: tuple[str, ...], status: int, said: str
) -> None:
    try:
        ended, _, err = run(Screen(1), *arguments)
    except SystemExit as exit:
        ended, err = int(str(exit.code)), capsys.readouterr().err
    assert ended == status
    assert said in err


def test_a_row_that_is_part_of_a_record_is_named() -> None:
    owner = SessionOwner(True, "b1", 7, 0)
    event = WatchEvent(
        "session",
        "owner",
        ChangeKind.CHANGED,
        SessionKey("acme", "c\n1"),
        owner,
        None,
        False,
        Revision("data-0", 5),
        5,
        0,
    )
    assert line_of(event) == "CHANGED  session/owner  acme/c\\n1  connected=yes broker=b1 broker_epoch=7 disco…"


def test_secrets_are_left_out() -> None:
    alice = User("acme", "alice", "scram_sha_256", b"\xffsalt", 4_096, b"hash", b"key")
    record = TableRecord(alice, 1, 5, 5)
    key = USERS.plain.key("acme", "alice")
    event: WatchEvent[Any, Any] = WatchEvent(
        *("user", "record", ChangeKind.CREATED, key, record, None, False, Revision("metadata-0", 5), 5, 0)
    )
    for text in (line_of(event), json.dumps(_document(event))):
        assert "scram_sha_256" in text
        assert not re.search("salt|hash|server_key", text)
