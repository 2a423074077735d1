"""Log lines: their form, the registry of their keys, what is repeated, who ends and why, and who leads."""

from __future__ import annotations

import ast
import calendar
import json
import logging
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from metad import cli, log_events, process
from metad.control.host import Timer
from metad.errors import ConfigError, RefusedError, ServerError
from metad.log_events import EVENTS, Event
from metad.logs import DISTINCT_MAX, REPEAT_S, JsonLines, Repeats, configure, event, flush, logger
from metad.node.replicas.group_status import GroupStatuses
from metad.node.replicas.groups import Observer
from metad.server.peers.refusals import COUNTS_S, LASTS_S, Answer, Refusals, majority_of
from metad_wire.cluster import GroupId

ROOT = Path(__file__).resolve().parents[3]
BY_NAME: dict[str, Event] = {name: value for name, value in vars(log_events).items() if isinstance(value, Event)}


@pytest.fixture
def written(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """What was logged as JSON lines; the other lines are left out."""
    sources = [logging.getLogger(name) for name in ("metad", "asyncio")]
    before = [(source.handlers[:], source.level, source.propagate) for source in sources]

    def lines() -> list[dict[str, Any]]:
        flush()
        return [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]

    yield lines
    for source, (handlers, level, propagate) in zip(sources, before, strict=True):
        source.handlers[:], source.propagate = handlers, propagate
        source.setLevel(level)


# --- the registry ---


_LOGS = re.compile(r"\bevent\(|\.(?:debug|info|warning|error|exception|critical|log)\(")


def sources() -> Iterator[tuple[Path, ast.Call]]:
    for folder in (ROOT / "metad", ROOT / "wire" / "metad_wire"):
        for path in sorted(folder.rglob("*.py")):
            if "testing" not in path.parts and path.name != "log_events.py":
                text = path.read_text()
                for node in ast.walk(ast.parse(text)) if _LOGS.search(text) else ():
                    if isinstance(node, ast.Call):
                        yield path, node


def used() -> dict[str, set[str]]:
    """Key -> the fields with which it is logged, of every call in the code. Fails on one that is not declared."""
    found: dict[str, set[str]] = {}
    for path, call in sources():
        match call.func:
            case ast.Name("event"):
                match call.args[0]:
                    case ast.Attribute(ast.Name("log_events"), name):
                        said = BY_NAME[name]
                    case ast.Name(name):
                        said = BY_NAME[name]
                    case ast.IfExp(ast.Name() | ast.Attribute(), body, orelse):
                        for one in (body, orelse):
                            assert isinstance(one, ast.Attribute)
                            found.setdefault(BY_NAME[one.attr].key, set()).update(k.arg or "" for k in call.keywords)
                        continue
                    case _:
                        raise AssertionError(f"{path}:{call.lineno}: not an event of the registry")
                fields = {keyword.arg for keyword in call.keywords if keyword.arg not in (None, "exc_info")}
                found.setdefault(said.key, set()).update(field for field in fields if field)
            case ast.Attribute(ast.Name("_log" | "logger"), "debug" | "info" | "warning" | "error" | "log" as level):
                if path.name == "logs.py":
                    continue
                key = call.args[1 if level == "log" else 0]
                assert isinstance(key, ast.Constant), f"{path}:{call.lineno}: the key is no constant"
                assert key.value in EVENTS, f"{path}:{call.lineno}: {key.value!r} is not declared"
                if level != "log":
                    assert logging.getLevelName(EVENTS[key.value].level) == level.upper()
                found.setdefault(key.value, set()).update(
                    field.value
                    for keyword in call.keywords
                    if keyword.arg == "extra"
                    for fields in ast.walk(keyword.value)
                    if isinstance(fields, ast.Dict)
                    for field in fields.keys
                    if isinstance(field, ast.Constant) and field.value != "fields"
                )
    return found


LOCAL_FIELDS = {"tls_refused": {"detail"}}
"""Fields that are put together before the call."""


def test_what_can_happen_once_only_is_not_the_same_again() -> None:
    """An epoch, the end of a certificate: a line that differs in it tells something else."""
    once = {"epoch", "ends", "ended", "move"}
    missing = {
        event.key: left
        for event in EVENTS.values()
        if event.level >= logging.WARNING and (left := once & {*event.fields} - {*event.about})
    }
    assert missing == {}


def test_every_key_that_is_logged_is_declared_and_every_declared_one_is_logged() -> None:
    found = used() | {"note": {"logger"}}  # what libraries say
    assert {key: found[key] | LOCAL_FIELDS.get(key, set()) for key in found} == {
        key: {*declared.fields} for key, declared in EVENTS.items()
    }


def test_nothing_is_logged_past_the_registry() -> None:
    """The level of quic_failed depends on who could have provoked it; everything else is as declared."""
    others = [
        f"{path}:{call.lineno}"
        for path, call in sources()
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in ("debug", "info", "warning", "error", "exception", "critical", "log")
        and not (isinstance(call.func.value, ast.Name) and call.func.value.id in ("_log", "logger", "parser"))
        and "log" in ast.unparse(call.func.value).lower()
    ]
    assert others == []


@pytest.mark.parametrize("declared", EVENTS.values(), ids=EVENTS)
def test_declarations(declared: Event) -> None:
    assert declared.key.isascii()
    assert declared.key == declared.key.lower()
    assert declared.key.replace("_", "").isalpha(), "snake_case"
    assert declared.text.endswith((".", "?"))
    assert not {*declared.fields} & {"ts", "level", "node", "event", "text", "exception", "left_out"}
    assert {*declared.about} <= {*declared.fields}


def test_the_page_is_what_the_code_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["logs"]) == 0
    printed = capsys.readouterr().out
    for key in EVENTS:
        assert f"| `{key}` |" in printed


# --- lines ---


def test_a_line_has_utc_its_node_and_a_sentence_where_it_matters(
    written: Callable[[], list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        configure("info", "n7")
        before_s = time.time()
        event(log_events.LEADER_GAINED, group="data-0", term=4)
        event(log_events.PEER_SILENT, peer="n2")
        event(log_events.CHECKPOINT, log_bytes=1, seconds=1.0)
        logging.getLogger("asyncio").error("Task exception was never %s", "retrieved")
    finally:
        monkeypatch.undo()
        time.tzset()
    gained, silent, note = written()
    assert gained["ts"].endswith("Z")
    parsed = time.strptime(gained["ts"][:19], "%Y-%m-%dT%H:%M:%S")
    assert abs(calendar.timegm(parsed) - before_s) < 60
    assert {**gained, "ts": ""} == {
        "ts": "",
        "level": "info",
        "node": "n7",
        "event": "leader_gained",
        "group": "data-0",
        "term": 4,
    }
    assert (silent["level"], silent["peer"], silent["text"]) == ("warning", "n2", log_events.PEER_SILENT.text)
    assert (note["event"], note["logger"], note["text"]) == ("note", "asyncio", "Task exception was never retrieved")
    assert note["node"] == "n7"


def test_a_traceback_is_a_field() -> None:
    try:
        raise ZeroDivisionError("planted")
    except ZeroDivisionError as error:
        record = logger.makeRecord("metad", logging.ERROR, "", 0, "bug", (), (type(error), error, error.__traceback__))
    line = json.loads(JsonLines("n1").format(record))
    assert "ZeroDivisionError: planted" in line["exception"]
    assert line["event"] == "bug"


# --- what is repeated ---


class Said:
    """Passes events through the filter, at a time of its own."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self._repeats = Repeats(lambda: self.now_s)

    def __call__(self, said: Event, **fields: Any) -> int | None:
        """None if it is left out, or how many were left out before."""
        record = logger.makeRecord("metad", said.level, "", 0, said.key, (), None, extra={"fields": fields})
        if not self._repeats.filter(record):
            return None
        return int(vars(record)["fields"].get("left_out", 0))


def test_a_warning_is_logged_once_a_minute_for_each_peer() -> None:
    said = Said()
    assert said(log_events.REFUSED_BY_PEER, peer="n1", error="no") == 0
    for _ in range(270):
        said.now_s += 0.2
        assert said(log_events.REFUSED_BY_PEER, peer="n1", error="no") is None
    assert said(log_events.REFUSED_BY_PEER, peer="n2", error="no") == 0
    assert said(log_events.REFUSED_BY_PEER, peer="n1", error="another reason") == 0
    said.now_s += REPEAT_S
    assert said(log_events.REFUSED_BY_PEER, peer="n1", error="no") == 270
    assert said(log_events.REFUSED_BY_PEER, peer="n1", error="no") is None


def test_a_broker_that_registers_all_the_time_does_not_fill_the_log() -> None:
    """Guards the log: clients cause these lines, some thousand a second if they like."""
    said = Said()
    lines = [said(log_events.BROKER_REGISTERED, broker="b1", epoch=epoch, address="") for epoch in range(1_000)]
    assert lines == [0] + [None] * 999
    assert said(log_events.BROKER_REGISTERED, broker="b2", epoch=1, address="") == 0


def test_information_about_nothing_and_bugs_are_never_left_out() -> None:
    said = Said()
    assert [said(log_events.LEADER_GAINED, group="g", term=1) for _ in range(3)] == [0, 0, 0]
    assert [said(log_events.BUG, where="here") for _ in range(3)] == [0, 0, 0]


def test_strangers_cannot_fill_the_log_or_the_memory() -> None:
    said = Said()
    lines = sum(said(log_events.CLIENT_REFUSED, error="e", detail=str(n)) is not None for n in range(100_000))
    assert lines == DISTINCT_MAX + 1
    said.now_s += 2 * REPEAT_S
    assert said(log_events.CLIENT_REFUSED, error="e", detail="new") is not None
    assert said(log_events.PEER_SILENT, peer="n1") == 0


# --- the end ---


@pytest.mark.parametrize(
    ("ends", "status", "event_key", "reason"),
    [
        ("SIGTERM", 0, "ended", "SIGTERM"),
        (ServerError("the disk is full"), 1, "ended_by_error", "the disk is full"),
        (RefusedError("n1, n2 refuse this node"), 3, "ended_by_error", "n1, n2 refuse this node"),
        (ZeroDivisionError("planted"), 1, "ended_by_error", "ZeroDivisionError: planted"),
        (ExceptionGroup("tasks", [KeyError("x")]), 1, "ended_by_error", "ExceptionGroup: tasks (1 sub-exception)"),
    ],
    ids=["told", "failed", "refused", "bug", "bugs"],
)
def test_the_last_line_says_why_a_process_ends(
    written: Callable[[], list[dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    ends: str | Exception,
    status: int,
    event_key: str,
    reason: str,
) -> None:
    async def serve(*_: object) -> str:
        event(log_events.DRAINING)
        if isinstance(ends, Exception):
            raise ends
        return ends

    monkeypatch.setattr(process, "serve", serve)
    monkeypatch.setattr(cli, "install_uvloop", lambda: None)
    (tmp_path / "c.toml").write_text('node_id = "n7"\n')
    done = cli.main(["serve", "--config", str(tmp_path / "c.toml"), "--data-dir", str(tmp_path / "d")])
    lines = written()
    last = lines[-1]
    assert done == status
    assert (last["event"], last["reason"], last["status"], last["node"]) == (event_key, reason, status, "n7")
    bugs = [line for line in lines if line["event"] == "bug"]
    assert len(bugs) == (isinstance(ends, Exception) and not isinstance(ends, ServerError))
    assert all("Traceback" in line["exception"] for line in bugs)


def test_a_wrong_configuration_has_a_last_line_too(
    written: Callable[[], list[dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the node's name, as far as it is known, and beside a variable that may be what is wrong."""
    monkeypatch.setenv("METAD_DATADIR", "d")
    for name, text in (("n7", "node_id = 'n7'\nnonsense = 1\n"), ("node-1", "nonsense = 1\n"), ("", "nonsense")):
        (tmp_path / "c.toml").write_text(text)
        assert cli.main(["serve", "--config", str(tmp_path / "c.toml")]) == ConfigError.exit_status == 1
        unknown, last = written()[-2:]
        assert (unknown["event"], unknown["variable"]) == ("unknown_variable", "METAD_DATADIR")
        assert (last["event"], last["status"], last["node"]) == ("ended_by_error", 1, name)
        assert "c.toml" in last["reason"]


# --- a node that everybody refuses ---

BANS, TAKES, REFUSES, NONE = Answer.BANS, Answer.TAKES, Answer.REFUSES, Answer.NONE


def ends(*answers: Answer, after_s: float = LASTS_S) -> bool:
    """Whether a node ends that hears these answers once a second for so long."""
    refusals, peers = Refusals(), {str(number): answer for number, answer in enumerate(answers)}
    ended = [bool(refusals.final(peers, 5.0 + at, majority_of(len(peers)))) for at in range(int(after_s) + 1)]
    return ended[-1]


@pytest.mark.parametrize(
    ("answers", "final"),
    [
        ((BANS, BANS), True),
        ((BANS, BANS, BANS, NONE), True),  # three of five, and nobody else was reached
        ((BANS, NONE), False),  # one in a partition with it may be the wrong one
        ((BANS, BANS, NONE, NONE), False),
        ((BANS, BANS, BANS, TAKES), False),
        ((BANS, REFUSES), False),  # its certificate may be replaced
        ((REFUSES, REFUSES), False),
        ((NONE, NONE), False),
        ((BANS,), False),  # of two nodes nobody knows which one is wrong
        ((), False),
    ],
)
def test_only_a_majority_that_agrees_ends_a_node(answers: tuple[Answer, ...], final: bool) -> None:
    assert ends(*answers) is final
    assert not ends(*answers, after_s=LASTS_S - 1)


def final(refusals: Refusals, now_s: float, a: Answer, b: Answer) -> list[str]:
    return refusals.final({"a": a, "b": b}, now_s, majority_of(2))


def test_a_refusal_that_was_interrupted_begins_anew() -> None:
    refusals = Refusals()
    assert not final(refusals, 0.0, BANS, BANS)
    assert not final(refusals, LASTS_S - 1, BANS, TAKES)
    assert not final(refusals, LASTS_S, BANS, BANS)
    assert final(refusals, 2 * LASTS_S, BANS, BANS) == ["a", "b"]


def test_a_peer_that_is_being_dialled_has_taken_nothing_back() -> None:
    """Once wrong: on a busy machine one of the dials was always under way, so the node never ended."""
    refusals = Refusals()
    for second in range(0, int(LASTS_S), 2):
        assert not final(refusals, second, BANS, NONE)
        assert not final(refusals, second + 1, NONE, BANS)
    assert not final(refusals, LASTS_S, BANS, NONE)
    assert final(refusals, LASTS_S + 1, NONE, BANS) == ["a", "b"]


def test_a_refusal_is_forgotten_where_nothing_more_is_heard() -> None:
    refusals = Refusals()
    assert not final(refusals, 0.0, BANS, BANS)
    for second in range(1, 2 * int(LASTS_S)):
        assert not final(refusals, second, BANS, NONE)
    assert not final(refusals, 2 * LASTS_S, BANS, BANS)
    assert not final(refusals, 2 * LASTS_S + COUNTS_S + 1, BANS, NONE)


# --- who leads ---


class Clock:
    """The part of an environment that time needs."""

    def __init__(self) -> None:
        self.rng = random.Random(1)
        self.now_s = 100.0
        self._due: list[tuple[float, Callable[[], None]]] = []

    def now(self) -> float:
        return self.now_s

    def call_at(self, when_s: float, callback: Callable[[], None]) -> Timer:
        self._due.append((when_s, callback))
        return SimpleNamespace(cancel=lambda: None)

    def advance(self, by_s: float) -> None:
        until_s = self.now_s + by_s
        while self._due and min(self._due, key=lambda due: due[0])[0] <= until_s:
            first = min(self._due, key=lambda due: due[0])
            self._due.remove(first)
            self.now_s = first[0]
            first[1]()
        self.now_s = until_s


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[tuple[str, dict[str, Any]]]]:
    caplog.set_level(logging.DEBUG, "metad")

    def lines() -> list[tuple[str, dict[str, Any]]]:
        found = [(record.getMessage(), vars(record)["fields"]) for record in caplog.records]
        caplog.clear()
        return found

    return lines


def test_groups_without_a_leader_are_told_of_now_and_then(
    logged: Callable[[], list[tuple[str, dict[str, Any]]]],
) -> None:
    group = SimpleNamespace(leader=None)
    clock = Clock()
    drivers = {GroupId("data", number): SimpleNamespace(group=group) for number in range(12)}
    statuses = GroupStatuses(SimpleNamespace(drivers=drivers), clock)  # type: ignore[arg-type]
    statuses.start()
    clock.advance(4.9)
    assert logged() == []
    clock.advance(0.2)
    ((key, fields),) = logged()
    assert (key, fields["count"], fields["longest_ms"], len(fields["groups"])) == ("no_leader", 12, 5_000, 10)
    clock.advance(59)
    assert logged() == []
    clock.advance(2)
    assert [(key, fields["longest_ms"]) for key, fields in logged()] == [("no_leader", 65_000)]
    group.leader = "n1"
    clock.advance(1)
    assert [key for key, _ in logged()] == ["leader_found"]
    group.leader = None
    clock.advance(2)
    group.leader = "n2"
    clock.advance(60)
    assert logged() == [], "an election is nothing to tell"


def test_leaders_are_told_of_when_they_can_work_and_when_they_end(
    logged: Callable[[], list[tuple[str, dict[str, Any]]]],
) -> None:
    nothing: Any = SimpleNamespace(
        driver_of=lambda group: SimpleNamespace(demoted=lambda: None),
        drained=frozenset(),
        tell_soon=lambda: None,
        schedule=lambda driver: None,
        stop_for_bug=None,
    )
    observer = Observer(nothing, nothing, nothing, send_snapshot=nothing, install=nothing)
    group: Any = SimpleNamespace(
        name="data-0", prefix=b"d0", term=4, ready=False, is_leader=True, leader="n1", configuration=None
    )
    observer.role_changed(group)
    assert logged() == []
    group.ready = True
    observer.role_changed(group)
    observer.role_changed(group)
    assert logged() == [("leader_gained", {"group": "data-0", "term": 4})]
    group.ready = group.is_leader = False
    group.term, group.leader = 5, "n2"
    observer.role_changed(group)
    observer.role_changed(group)
    assert logged() == [("leader_lost", {"group": "data-0", "term": 4, "leader": "n2"})]
