"""The size of the house: lines, files, functions, and the modules that a request leads through.

``python tests/house.py --json F`` prints the numbers and writes them, and ``tests/unit/test_house.py`` sets limits.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "metad": ROOT / "metad",
    "metad_wire": ROOT / "wire" / "metad_wire",
    "metad_client": ROOT / "clients" / "metad_client",
    "metad_pytest": ROOT / "clients" / "metad_pytest",
}
"""The product: what metad-client and metad-service bring, but for the tools."""
BROKERS = ROOT / "clients" / "metad_amqtt"
"""A distribution of its own."""
CONSOLE = ROOT / "clients" / "metad_console"
"""A program beside the product, with an extra of its own."""
TOOLS = {
    "metad_amqtt": BROKERS,
    "metad_console": CONSOLE,
    "metad_perf": ROOT / "perf" / "metad_perf",
    "metad_judge": ROOT / "perf" / "metad_judge",
    "metad_spark": ROOT / "spark" / "metad_spark",
}
PARTS = {"tests": ROOT / "tests", "perf": ROOT / "perf", "spark": ROOT / "spark"}
FUNCTION_LINES_MAX = 60
_VERBS = """
acknowledge adapt am append are be became become been began brought came campaign can clear complain could cost decide
did do drop end escape fail fell felt found gave get go goes gone got had has have held implement is kept knew knows led
left let lost made mean met might must need paid pause put reach read refuse reject resume run said sat saw sent set
shall should shown stood take taken taught thought told took want was went were will won would write
"""
_BATCH = 1_000  # takeovers
_ROUNDS = 3  # of a request: what not every round enters belongs to a timer


def product() -> list[Path]:
    """The files of the product."""
    return [file for folder in PACKAGES.values() for file in sorted(folder.rglob("*.py"))]


def shipped() -> list[Path]:
    """The files of the product, the MQTT brokers and the console."""
    return [*product(), *sorted(BROKERS.rglob("*.py")), *sorted(CONSOLE.rglob("*.py"))]


def pages() -> list[Path]:
    """The Markdown files that people read."""
    hidden = {page for page in ROOT.rglob("*.md") if any(part[0] == "." for part in page.relative_to(ROOT).parts)}
    return sorted({*ROOT.rglob("*.md")} - hidden)


def page_kib() -> dict[str, int]:
    """The pages, by path: how long each is, in KiB, rounded up."""
    return {name_of(page): -(-page.stat().st_size // 1024) for page in pages()}


def every_file() -> list[Path]:
    """The Python files of the product, its tools and its tests, simulators among them."""
    folders = (*PACKAGES.values(), BROKERS, CONSOLE, *PARTS.values())
    return [file for folder in folders for file in sorted(folder.rglob("*.py"))]


def findings(package: str, find: Callable[[str], Iterable[str]]) -> set[str]:
    """What is found in the files of a package that is shipped: ``file: what`` of each."""
    root = (PACKAGES | TOOLS)[package]
    files = [file for file in shipped() if root in file.parents]
    return {f"{file.relative_to(root.parent).as_posix()}: {what}" for file in files for what in find(file.read_text())}


def name_of(file: Path) -> str:
    """Its path from the root."""
    return str(file.relative_to(ROOT))


def lines(files: list[Path]) -> int:
    """All lines of these files, empty ones and comments as well."""
    return sum(file.read_bytes().count(b"\n") for file in files)


def files_per_folder() -> dict[str, int]:
    """The folders of the product, by path: how many Python files each holds."""
    count: dict[str, int] = {}
    for file in shipped():
        count[name_of(file.parent)] = count.get(name_of(file.parent), 0) + 1
    return count


@dataclass(frozen=True, slots=True)
class Definition:
    """A class or a function, with all that it stands in."""

    name: str  # path:Class.method
    is_class: bool
    public: bool
    lines: int
    parts: int  # the methods of a class, properties among them; the parameters of a function
    text: str  # its docstring


@dataclass(frozen=True, slots=True)
class Parsed:
    """What is kept of a file's syntax, which is many times as large."""

    definitions: tuple[Definition, ...]  # nested ones too
    imports: tuple[tuple[int, str, tuple[str, ...]], ...]  # (dots, module, names); no names: the module itself
    top: frozenset[str]  # what is defined, assigned or imported outside of all functions and classes


@cache
def parsed(file: Path) -> Parsed:
    """What its text parses to."""
    found: list[Definition] = []
    imports: list[tuple[int, str, tuple[str, ...]]] = []

    def inside(node: ast.AST, path: str, public: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{path}{child.name}"
                shown = public and not child.name.startswith("_")
                found.append(_definition(child, name, shown))
                inside(child, f"{name}.", shown and isinstance(child, ast.ClassDef))
            elif isinstance(child, ast.ImportFrom):
                imports.append((child.level, child.module or "", tuple(alias.name for alias in child.names)))
            elif isinstance(child, ast.Import):
                imports.extend((0, alias.name, ()) for alias in child.names)
            elif not isinstance(child, ast.expr):  # nothing is defined in an expression, and most nodes are
                inside(child, path, public)

    module = ast.parse(file.read_text(encoding="utf-8"))
    inside(module, f"{name_of(file)}:", True)
    return Parsed(tuple(found), tuple(imports), frozenset(_names(module)))


def _definition(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, name: str, public: bool) -> Definition:
    if isinstance(node, ast.ClassDef):
        parts = sum(isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) for child in node.body)
    else:
        given = node.args
        parts = len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs)
    size = (node.end_lineno or 0) - node.lineno + 1
    return Definition(name, isinstance(node, ast.ClassDef), public, size, parts, ast.get_docstring(node) or "")


def _names(module: ast.Module) -> Iterator[str]:
    for node in module.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (name for it in node.names for name in (it.name, it.asname) if name)
        else:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def definitions(files: list[Path]) -> Iterator[Definition]:
    """Every class and function of these files, nested ones too."""
    return chain.from_iterable(parsed(file).definitions for file in files)


def long_functions() -> dict[str, int]:
    """The functions of more than 60 lines, in the product, its tools and its tests: how many lines each has."""
    return {
        each.name: each.lines
        for each in definitions(every_file())
        if not each.is_class and each.lines > FUNCTION_LINES_MAX
    }


def methods_per_class() -> dict[str, int]:
    """The classes of the product: how many methods each has, properties among them."""
    return {each.name: each.parts for each in definitions(shipped()) if each.is_class}


def constructor_parameters() -> dict[str, int]:
    """The constructors that are written out in the product: how many parameters each has besides ``self``."""
    return {each.name: each.parts - 1 for each in definitions(shipped()) if each.name.endswith(".__init__")}


def texts_without_verb() -> list[str]:
    """The public classes and functions of the product whose docstring begins with a paragraph without a verb. A word is
    taken for a verb if it is on the list, or if the product's text has its form with ``-ing``."""
    words = {word for file in shipped() for word in re.findall("[a-z]+", file.read_text(encoding="utf-8").lower())}

    verbs = set(_VERBS.split())

    def is_verb(word: str) -> bool:
        stems = {word, word.removesuffix("s"), word.removesuffix("es"), word.removesuffix("ies") + "y"}
        forms = {form for stem in stems - {""} for form in (stem, stem.removesuffix("e"), stem + stem[-1])}
        return bool(stems & verbs) or any(len(form) > 1 and f"{form}ing" in words for form in forms)

    def has_verb(text: str) -> bool:
        plain = re.sub(r":\w+:`[^`]*`|``[^`]*``", "", text.partition("\n\n")[0]).lower()
        return any(map(is_verb, re.findall("[a-z]+", plain)))

    return [each.name for each in definitions(shipped()) if each.public and each.text and not has_verb(each.text)]


def dangling_references() -> list[str]:
    """The relative references of docstrings (``:mod:`` and its kin) that name no module, or nothing in that module."""

    def is_there(file: Path, role: str, dots: str, names: list[str]) -> bool:
        at = file.parents[len(dots) - 1]
        while names and ((at / names[0]).is_dir() or (at / f"{names[0]}.py").exists()):
            at /= names.pop(0)
        module = at / "__init__.py" if at.is_dir() else at.with_suffix(".py")
        if at == file.parent and len(dots) == 1:
            module = file  # a name beside
        return not names if role == "mod" else bool(names) and names[0] in parsed(module).top

    return [
        f"{name_of(file)}: {found[0]}"
        for file in every_file()
        for found in re.finditer(r":(\w+):`(\.+)([\w.]+)`", file.read_text(encoding="utf-8"))
        if not is_there(file, found[1], found[2], found[3].split("."))
    ]


def modules() -> dict[str, Path]:
    """The modules of all packages by their dotted names."""
    found = {}
    for package, folder in (PACKAGES | TOOLS).items():
        for file in sorted(folder.rglob("*.py")):
            parts = [package, *file.relative_to(folder).with_suffix("").parts]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def importers() -> dict[str, set[str]]:
    """The modules of all packages, ``__init__`` left out: which others import each. A module that is started as a
    program, or looked up by its name, has none. Families of tables are left out, too: each is a file that is found."""
    known = modules()
    counted = {name for name, file in known.items() if file.name != "__init__.py" and file.parent.name != "families"}
    found: dict[str, set[str]] = {name: set() for name in counted}
    for name, file in known.items():
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        for dots, source, names in parsed(file).imports:
            above = package.split(".")[: -(dots - 1) or None] if dots else []
            base = ".".join([*above, *filter(None, [source])])
            named = [base, *(f"{base}.{alias}" for alias in names)]
            for each in named:
                if each in found and each != name:
                    found[each].add(name)
    return found


def modules_of_requests() -> dict[str, set[str]]:
    """The modules that one ``kv.put`` and one ``takeover_many`` of 1,000 enter, by their paths: of the client, of the
    leader and of two followers, in the simulation of whole nodes. A request is repeated, and what not every round
    enters is left out: timers run beside it."""
    from metad_client import Client, SessionTakeoverItem
    from sim.nodes.scenarios import Scene

    async def register(client: Client) -> int:
        epoch: int = (await client.brokers.register("broker-1", lease_s=600.0)).epoch
        return epoch

    async def put(client: Client) -> None:
        await client.kv.put("space", "key", b"value")

    with Scene() as scene:
        epoch = scene.ask(scene.one, register)

        async def takeover(client: Client) -> None:
            items = [SessionTakeoverItem("acme", f"device-{number}") for number in range(_BATCH)]
            (await client.sessions.takeover_many("broker-1", epoch, items)).raise_for_error()

        return {
            name: set.intersection(*(_entered(partial(scene.ask, scene.one, what)) for _ in range(_ROUNDS)))
            for name, what in {"kv_put": put, "takeover": takeover}.items()
        }


def _entered(what: Callable[[], object]) -> set[str]:
    """The files of the product of which a function is called meanwhile."""
    entered: set[str] = set()

    def called(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            entered.add(frame.f_code.co_filename)

    sys.setprofile(called)
    try:
        what()
    finally:
        sys.setprofile(None)
    return entered & {str(file) for file in product()}


def numbers() -> dict[str, Any]:
    """What ``--json`` writes."""
    requests = modules_of_requests()
    return {
        "lines": {
            "product": lines(product()),
            "amqtt": lines(sorted(BROKERS.rglob("*.py"))),
            "tests": lines(sorted(PARTS["tests"].rglob("*.py"))),
            "perf": lines(sorted(PARTS["perf"].rglob("*.py"))),
            "spark": lines(sorted(PARTS["spark"].rglob("*.py"))),
        },
        "markdown_bytes": sum(page.stat().st_size for page in pages()),
        "modules_kv_put": len(requests["kv_put"]),
        "modules_takeover": len(requests["takeover"]),
        "files_per_folder_max": max(files_per_folder().values()),
        "modules_one_importer": sum(len(by) <= 1 for by in importers().values()),
        "functions_over_60": len(long_functions()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the house: lines, files, functions, modules of a request.")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the numbers there")
    arguments = parser.parse_args()
    found = numbers()
    text = json.dumps(found, indent=2)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
