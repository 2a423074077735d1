"""What is not known is not fresh: a default must not turn it into the best case. This reads the sources."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SOURCES = [
    path
    for folder in (
        "metad",
        "clients/metad_client",
        "clients/metad_amqtt",
        "wire/metad_wire",
        "spark/metad_spark/source",
    )
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "testing" not in path.parts
]
AGES = re.compile(r"(\b|_)(age|behind|silent|overdue|late|lag|lags|lasting|unclaimed|stale|leaderless)(_|\b)")
"""Names of what is best if it is 0."""
KNOWN = {
    "Identity.age_ms": "0 says that no attempt came before",
    "Backlog.unclaimed": "of a node that answers",
    "Backlog.unclaimed_ms": "of a node that answers",
    "GroupStatus.leaderless_ms": "of a node that answers; 0: there is a leader",
    "StatusReply.overdue_ms": "of a node that answers",
    "Problem.lasting_ms": "0: it is not known, and only shown",
    "Broker.silent_ms": "of a leader that hears it; 0: for no longer than a broker may be silent",
    "__init__(age_ms)": "of an identity: 0 says that no attempt came before",
    "write_once(age_ms)": "0 says that no attempt came before",
    "session_sweeps: max(default=0)": "of what is overdue: nothing is",
    "sweeps: max(default=0)": "of all groups that this node leads",
}


def names_of(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} | {
        one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)
    }


def is_best(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float) and not node.value


def is_age(*names: str) -> bool:
    return any(AGES.search(name) for name in names)


def defaults(path: Path) -> Iterator[tuple[str, int]]:
    """Every default that makes an age 0: its name, and the line."""
    text = path.read_text()
    if not AGES.search(text):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or) and is_best(node.values[-1]):
            if is_age(*names_of(node.values[0])):
                yield f"{path.stem}: or 0", node.lineno
        elif isinstance(node, ast.Call):
            default = next((each.value for each in node.keywords if each.arg == "default"), None)
            if is_best(default) and is_age(*names_of(node.args[0] if node.args else node)):
                yield f"{path.stem}: max(default=0)", node.lineno
        elif isinstance(node, ast.ClassDef):
            for field in node.body:
                target = field.target if isinstance(field, ast.AnnAssign) and is_best(field.value) else None
                if isinstance(target, ast.Name) and is_age(target.id):
                    yield f"{node.name}.{target.id}", field.lineno
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            places = [*node.args.posonlyargs, *node.args.args][::-1]
            given = [*zip(places, node.args.defaults[::-1], strict=False)]
            given += [*zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)]  # type: ignore[list-item]
            for argument, default in given:
                if is_best(default) and is_age(argument.arg):
                    yield f"{node.name}({argument.arg})", node.lineno


def test_no_default_makes_an_unknown_age_the_best_one() -> None:
    found = {name: f"{path.relative_to(ROOT)}:{line}" for path in SOURCES for name, line in defaults(path)}
    assert not {name: where for name, where in found.items() if name not in KNOWN}
    assert found.keys() == KNOWN.keys(), "what is gone is no exception any more"


def test_the_test_finds_what_it_is_for(tmp_path: Path) -> None:
    source = tmp_path / "mark.py"
    source.write_text(
        "class Mark:\n    age_ms: float = 0.0\n"
        "def made(behind_ms: int = 0) -> None: ...\n"
        "def mark(age_ms): return age_ms or 0.0\n"
        "worst = max((one.overdue_ms for one in found), default=0)\n"
    )
    assert [name for name, _ in defaults(source)] == [
        "Mark.age_ms",
        "made(behind_ms)",
        "mark: max(default=0)",
        "mark: or 0",
    ]
