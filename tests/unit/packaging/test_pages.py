"""The pages name only what there is: files, extras, commands. A page that tells of what has gone fails here."""

from __future__ import annotations

import ast
import re
import textwrap
import tomllib
from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from metad.cli import _parser as metad_parser
from metad_client.cli.command_line import build_parser as metadctl_parser
from metad_console.cli import parser as console_parser
from metad_perf.cli import _parser as perf_parser
from metad_spark.cli import _parser as spark_parser

ROOT = Path(__file__).resolve().parents[3]
PAGES = [
    path
    for pattern in ("*.md", "*/*.md", "docs/*/*.md")
    for path in sorted(ROOT.glob(pattern))
    if path.name != "LICENSE.md" and ".venv" not in path.parts
]
CODE = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"[\w./{},-]*\w\.(?:py|md|toml|svg|txt|sh)")
LINK = re.compile(r"\]\(([^)#: ]*)(#[^) ]*)?\)")
MADE = {
    # what a reader makes, or a command does
    *("storm.json", "storm.html", "cluster.toml", "n1.toml", "n3.toml", "node.toml", "metad.toml", "broker.py"),
    *("tokens.txt", "calibration.toml", "scenario.toml", "my.toml", "schedule.json", "a.toml", "size.toml"),
    "settings.toml",
}
TREE = {
    path.relative_to(ROOT).as_posix()
    for top in ("metad", "wire", "clients", "perf", "spark", "tests", "docs")
    for path in (ROOT / top).rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
} | {path.name for path in ROOT.iterdir()}
NAMES = {path.rpartition("/")[2] for path in TREE}
PACKAGES = {
    "metad_wire": "wire/",
    "metad_client": "clients/",
    "metad_console": "clients/",
    "metad_perf": "perf/",
    "metad_spark": "spark/",
}


def expanded(text: str) -> Iterator[str]:
    """A name with alternatives, ``state/{kv,plain}.py``, as each of them."""
    found = re.fullmatch(r"(.*)\{(.*)\}(.*)", text)
    if found is None:
        yield text
    else:
        yield from (f"{found[1]}{each.strip()}{found[3]}" for each in found[2].split(","))


def exists(name: str, page: Path, folder: str) -> bool:
    """Whether a page may mean a file by this: from the root, from its own folder, from a package, or in the folder that
    the same cell of a table has named before."""
    own = page.parent.relative_to(ROOT).as_posix()
    package = PACKAGES.get(name.partition("/")[0], "")
    places = {name, f"{own}/{name}", f"{package}{name}", *(f"{folder}/{name}" if folder else name,)}
    if any((ROOT / place).exists() for place in places):
        return True
    if "/" in name:
        return any(path.endswith(f"/{name}") for path in TREE)
    return not folder and name in NAMES


def dangling(page: Path) -> list[str]:
    missing = []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        for cell in line.split(" | ") if line.startswith("|") else [line]:
            folder = ""
            for code in CODE.findall(cell):
                if not FILE.fullmatch(code) or code in MADE or code.startswith(("/", ".", "-")):
                    continue
                for name in expanded(code):
                    if not exists(name, page, folder if line.startswith("|") else ""):
                        missing.append(f"{page.name}:{number}: {name}")
                if "/" in code:
                    folder = code.rpartition("/")[0]
    return missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_that_a_page_names_exist(page: Path) -> None:
    """A page led to a ``hosting.py`` that had long been another file."""
    assert dangling(page) == []


def test_a_file_in_a_wrong_folder_is_found(tmp_path: Path) -> None:
    assert not exists("hosting.py", ROOT / "ARCHITECTURE.md", "metad/node")
    assert exists("health.py", ROOT / "ARCHITECTURE.md", "metad/node")


def definitions(folder: str) -> set[str]:
    """The functions and classes below a folder."""
    texts = (path.read_text() for path in (ROOT / folder).rglob("*.py"))
    return {name for text in texts for name in re.findall(r"(?m)^ *(?:async )?(?:def|class) (\w+)", text)}


def test_functions_and_scenarios_of_the_page_about_consensus_exist() -> None:
    rows = re.findall(r"(?m)^\| (?!rule|---)(.*) \| (.*) \| (.*) \|$", (ROOT / "docs" / "consensus.md").read_text())
    code, scenarios = definitions("metad/raft"), definitions("tests/sim/replicas/scenarios")
    fields = {
        name for path in (ROOT / "metad/raft").rglob("*.py") for name in re.findall(r"(?m)^ +(\w+):", path.read_text())
    }
    assert len(rows) > 25
    for _, where, proof in rows:
        assert {*re.findall(r"`(?:\w+\.)?([A-Za-z_]+)`", where)} - {"py"} <= code | fields, where
        assert {*re.findall(r"`(\w+)`", proof)} <= scenarios, proof


def test_each_decision_says_what_guards_it() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text()
    for page in set(folder.glob("*.md")) - {folder / "README.md", folder / "tried_and_not_kept.md"}:
        assert f"({page.name})" in index
        assert all(f"**{word}.**" in page.read_text() for word in ("Choice", "Price", "Test")), page.name


# --- links ---


def anchors(page: Path) -> set[str]:
    """The places in a page that a link may lead to, as GitHub names them."""
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(page: Path) -> list[str]:
    dead = []
    for file, anchor in LINK.findall(re.sub(r"(?ms)^```.*?^```", "", page.read_text())):
        target = page.parent / file if file else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor[1:] not in anchors(target)):
            dead.append(f"{page.relative_to(ROOT)}: {file}{anchor}")
    return dead


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert dead_links(page) == []


def test_a_dead_link_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    page = tmp_path / "a.md"
    page.write_text("# A `b`, c\n[x](#a-b-c) [y](gone.md) [z](#d) [w](https://example.org/e)\n")
    assert dead_links(page) == ["a.md: gone.md", "a.md: #d"]


# --- extras ---

EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


def texts() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        yield page.relative_to(ROOT).as_posix(), page.read_text()
    for path in TREE:
        if path.endswith(".py") and not path.startswith("tests/"):
            yield path, (ROOT / path).read_text()


def test_nothing_is_installed_from_an_index_that_does_not_have_it() -> None:
    """metad is installed from a clone: ``pip install ./clients '.[server]'``."""
    named = [(place, found) for place, text in texts() for found in re.findall(r"metad-service\[[^\]]*\]", text)]
    assert named == []
    assert [place for place, text in texts() if re.search(r"pip install(?: -e)? '?\.(?:\[|\s|`)", text)] == []
    wanted = re.compile(r"pip install \./clients '?\.\[([\w,-]+)\]")
    unknown = [(place, each) for place, text in texts() for one in wanted.findall(text) for each in one.split(",")]
    assert unknown
    assert [(place, each) for place, each in unknown if each not in EXTRAS] == []


# --- commands ---


def commands(parser: ArgumentParser) -> dict[str, ArgumentParser]:
    found: dict[str, Any] = {}
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            found.update(action.choices)
    return found


PROGRAMS = {
    "metad": metad_parser(),
    "metadctl": metadctl_parser(),
    "metad-perf": perf_parser(),
    "metad-spark": spark_parser(),
    "metad-console": console_parser(),
}
INVOKED = re.compile(r"(?:^|`)(?:\$ )?(?:\.venv/bin/)?(metad|metadctl|metad-perf|metad-spark|metad-console) ([^`]+)")
FLAG = re.compile(r"(--?[a-z][\w-]*)(?:=.*)?")


def code_of(page: Path) -> Iterator[str]:
    """The lines of blocks of code, continued ones joined, and what stands in backquotes."""
    in_block = False
    for line in page.read_text().replace("\\\n", " ").splitlines():
        if line.lstrip().startswith("```"):
            in_block = not in_block
        elif in_block:
            yield line
        else:
            yield from (f"`{code}" for code in CODE.findall(line))


def unknown_commands(page: Path) -> list[str]:
    missing = []
    for program, rest in (each for code in code_of(page) for each in INVOKED.findall(code)):
        words = re.sub(r"--[\w-]+=?", " -- ", rest.partition("#")[0]).split()
        known = commands(PROGRAMS[program])
        named = next((word for word in words if word in known), None)
        # An option in front of the command may have a value, which is no command.
        if named is None and words and words[0] != "--" and re.fullmatch(r"[a-z][a-z-]+", words[0]):
            missing.append(f"{page.name}: {program} {rest}")
    return missing


def unknown_flags(page: Path) -> list[str]:
    """The flags that neither a command nor a subcommand of it has, where a page writes a whole command."""
    missing = []
    for program, rest in (each for code in code_of(page) for each in INVOKED.findall(code)):
        path = [PROGRAMS[program]]
        for word in re.split(r"[\s\[\]()]+", re.split(r"[#|;&>]", rest)[0]):
            flag = FLAG.fullmatch(word)
            if flag is None:
                path += [found] if (found := commands(path[-1]).get(word)) is not None else []
            elif not any(flag[1] in parser._option_string_actions for parser in path):
                missing.append(f"{page.name}: {program} {rest}: {flag[1]}")
    return missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_that_a_page_names_exist(page: Path) -> None:
    assert unknown_commands(page) == []
    assert unknown_flags(page) == []


def test_a_command_or_a_flag_that_does_not_exist_is_found(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text(
        "```\nmetad serv\nmetadctl --endpoint a get kv a b --gone\nmetad serve --config a \\\n --lost=1\n```\n"
    )
    assert unknown_commands(page) == ["a.md: metad serv"]
    assert [each.rpartition(": ")[2] for each in unknown_flags(page)] == ["--gone", "--lost"]


# --- blocks of code ---

BLOCK = re.compile(r"(?ms)^( *)```(\w*)\n(.*?)^ *```")
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"].keys() | {
    "metadctl",
    "metad-amqtt",
}


def wrong_blocks(page: Path) -> list[str]:
    """The blocks of Python that do not compile, and the lines of a shell that start a program of ours, or a target of
    make, that does not exist."""
    wrong = []
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    for indent, language, code in BLOCK.findall(page.read_text()):
        if language == "python":
            try:
                compile(textwrap.dedent(code), page.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            except SyntaxError as error:
                wrong.append(f"{page.name}: {error}")
        elif language in ("", "sh"):
            lines = [line.removeprefix(indent) for line in code.splitlines()]
            for name in (found for line in lines for found in re.findall(r"^(?:\$ )?\.venv/bin/([\w-]+)", line)):
                if name not in SCRIPTS and name not in ("python", "pip"):
                    wrong.append(f"{page.name}: .venv/bin/{name}")
            for name in (found for line in lines for found in re.findall(r"^(?:\$ )?make ([a-z-]+)", line)):
                if name not in targets:
                    wrong.append(f"{page.name}: make {name}")
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_blocks_of_code_are_right(page: Path) -> None:
    assert wrong_blocks(page) == []


def test_a_wrong_block_is_found(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text("```python\nawait x\n```\n```python\na b\n```\n```\n.venv/bin/metadtl get\nmake nothing\n```\n")
    assert [each.partition(" (")[0] for each in wrong_blocks(page)] == [
        "a.md: invalid syntax",
        "a.md: .venv/bin/metadtl",
        "a.md: make nothing",
    ]
