"""OPERATE.md and the code say the same: every drill, problem, exit status and refusal is on the page, and the page has
no command that its drill does not run."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import metad.cli
import metad_perf.cli
from metad.config.environment import VARIABLES
from metad.config.pages import reference
from metad.log_events import EVENTS
from metad_client.cli import overview
from metad_client.cli.command_line import build_parser
from metad_client.cli.verdict import CODES, EXIT_STATUS
from metad_client.cli.view import view
from metad_perf.drill.drills import DRILLS
from metad_wire.cluster import MapReply
from metad_wire.messages import StatusReply, TurnedAway

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "OPERATE.md").read_text()
LOOKS = {"status", "runs", "log", "ends"}


def section(title: str) -> str:
    """The text under a heading, up to the next of any level."""
    found = re.search(rf"(?m)^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", PAGE.replace("```\n#", "```\n\\#"), re.DOTALL)
    assert found is not None, f"no section {title!r}"
    return found[1]


def commands(text: str) -> set[str]:
    blocks = re.findall(r"(?ms)^```\n(.*?)^```$", text)
    lines = [line for block in blocks for line in block.splitlines()]
    return {line.partition(" > ")[0] for line in lines if re.match(r"metadctl [a-z-]", line)}


def looks(name: str) -> Iterator[tuple[str, str]]:
    """Each text that a drill expects, with the look that expects it, without parts that are only known when it is
    played."""
    module = importlib.import_module(DRILLS[name].play.__module__)
    for call in ast.walk(ast.parse(inspect.getsource(DRILLS[name].play))):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in LOOKS):
            continue
        look = call.func.attr
        texts = [each.value for each in call.keywords if each.arg == "says"]
        texts += call.args[1:2] if look == "log" else call.args[1:] if look == "status" else []
        for text in texts:
            for known in ast.walk(text):
                if isinstance(known, ast.Name) and hasattr(module, known.id):
                    yield look, getattr(module, known.id)
                elif isinstance(known, ast.Constant) and isinstance(known.value, str):
                    yield look, known.value.split()[0] if look == "status" else known.value


@pytest.mark.parametrize("name", DRILLS)
def test_a_drill_runs_the_commands_of_its_section(name: str) -> None:
    assert commands(section(name)) == set(DRILLS[name].commands)


@pytest.mark.parametrize("name", DRILLS)
def test_a_section_shows_what_its_drill_expects_to_see(name: str) -> None:
    text = " ".join(section(name).split())
    expected = list(looks(name))
    assert expected
    for look, words in expected:
        assert words in text, (look, words)


@pytest.mark.parametrize("name", DRILLS)
def test_a_section_says_what_is_seen_what_to_do_and_when_it_is_over(name: str) -> None:
    text = section(name)
    places = [text.find(part) for part in ("**What you see.**", "**What to do.**", "**It is over**")]
    assert -1 not in places
    assert places == sorted(places)


def test_the_page_has_no_drill_that_is_not_played() -> None:
    drills = PAGE.partition("\n## Drills\n")[2].partition("\n## ")[0]
    assert re.findall(r"(?m)^### (.+)$", drills) == list(DRILLS)


def test_every_problem_is_explained_with_its_severity() -> None:
    rows = re.findall(r"(?m)^\| `([a-z_]+)` \| (\w+) \|", section("Each problem"))
    assert dict(rows) == CODES


def test_every_verdict_is_explained_with_its_exit_status() -> None:
    rows = re.findall(r"(?m)^\| (\d) \| `([A-Z]+): …` \|", section("Is all well?"))
    assert {verdict.lower(): int(status) for status, verdict in rows} == EXIT_STATUS


def all_commands() -> list[str]:
    """Every command of the page, in blocks and in sentences."""
    blocks = [line for block in re.findall(r"(?ms)^```\n(.*?)^```$", PAGE) for line in block.splitlines()]
    spans = re.findall(r"(?s)`([^`\n]+(?:\n[^`\n]+)?)`", re.sub(r"(?ms)^```\n.*?^```$", "", PAGE))
    # What the command prints follows it in a block, with a colon behind its name.
    return [
        line
        for text in (*blocks, *spans)
        if re.match(r"(metad|metadctl|metad-perf) \S", line := " ".join(text.split()))
    ]


@pytest.mark.parametrize("line", sorted(set(all_commands())))
def test_commands_are_of_the_grammar(line: str) -> None:
    program, *arguments = shlex.split(line.partition(" > ")[0])
    parser = {"metad": metad.cli._parser, "metadctl": build_parser, "metad-perf": metad_perf.cli._parser}[program]()
    parser.parse_args(arguments)


OTHER_PAGES = ("README.md", "docs/MQTT.md", "docs/WRITE_A_BROKER.md")


@pytest.mark.parametrize("page", OTHER_PAGES)
def test_metadctl_of_other_pages_is_of_the_grammar(page: str) -> None:
    lines = re.findall(r"(?m)^(?:\.venv/bin/)?metadctl (\S.*)$", (ROOT / page).read_text())
    assert lines
    for line in lines:
        for command in f"metadctl {line.partition(' > ')[0]}".split(" && "):
            build_parser().parse_args(shlex.split(command, comments=True)[1:])


def test_variables_are_known() -> None:
    variables = set(re.findall(r"`(METAD_\w+)`", PAGE))
    assert variables
    assert variables <= set(VARIABLES)


def test_names_are_events_problems_or_settings() -> None:
    """A renamed event would leave a page that nobody can follow at night."""
    names = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", PAGE))
    settings = set(re.findall(r"`([a-z_]+)`", reference()))
    assert names & set(EVENTS)
    keys = overview.expiry(view(MapReply(0, None, {}), {}))
    fields = {*StatusReply.__struct_fields__, *TurnedAway.__struct_fields__}
    assert names <= {*EVENTS, *CODES, *settings, *keys, *fields, "left_out"}


def test_the_readme_leads_to_the_page() -> None:
    assert "(docs/OPERATE.md)" in (ROOT / "README.md").read_text().partition("## Find your way")[2]


REFUSING = {
    "HandshakeError",
    "NodeRefusedError",
    "UnauthenticatedError",
    "ConfigError",
    "StorageError",
    "DamagedStoreError",
    "LeftError",
    "RefusedError",
}
PHRASE_CHARS_MIN = 10
"""A shorter phrase may be on the page by chance, and counts only if there is no longer one."""


def refusals(path: str) -> Iterator[list[str]]:
    """The fixed phrases of each text with which a file of the server refuses a node, or ends it."""
    for each in ast.walk(ast.parse((ROOT / path).read_text())):
        texts: list[ast.expr] = []
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id in REFUSING:
            texts = each.args[:1]
        elif isinstance(each, ast.FunctionDef) and each.name == "foreign_directory":
            texts = [one.value for one in ast.walk(each) if isinstance(one, ast.Return) and one.value is not None]
        for text in texts:
            parts = [
                one.value for one in ast.walk(text) if isinstance(one, ast.Constant) and isinstance(one.value, str)
            ]
            if parts:
                yield [phrase.strip(" ,'") for part in parts for phrase in re.split(r"[;:.()]", part)]


@pytest.mark.parametrize(
    "path",
    [
        "metad/control/map/decisions.py",
        "metad/node/lives.py",
        "metad/node/disk/stores.py",
        "metad/server/access.py",
        "metad/server/peers/peers.py",
        "metad/server/peers/outbound.py",
    ],
)
def test_every_refusal_is_explained(path: str) -> None:
    found = list(refusals(path))
    assert found
    rows = "\n".join(re.findall(r"(?m)^\| `.* \|$", PAGE.partition("## A node is refused, or ends")[2]))
    for phrases in found:
        long = min(PHRASE_CHARS_MIN, max(map(len, phrases)))
        assert any(len(phrase) >= long and phrase in rows for phrase in phrases), phrases
