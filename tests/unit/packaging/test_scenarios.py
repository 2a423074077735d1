"""The README's table of what works: each system and each family of verbs has a row, and a scenario that shows it.

Here stands which systems and families there are. A scenario's docstring begins with its system, and its ``SHOWS`` names
methods that its nodes have answered. So a method that is new fails here until a scenario of its family calls it.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from metad_wire.methods import BETWEEN_NODES, METHODS

ROOT = Path(__file__).resolve().parents[3]
FOLDER = "tests/e2e/scenarios"
TITLE = "What works, and the test that shows it"
SYSTEMS = (
    "RobustMQ meta service",
    "RobustMQ MetaService layers",
    "RocketMQ broker metadata",
    "NameServer",
    "ZooKeeper",
    "Kafka on ZooKeeper",
    "KRaft",
    "etcd",
    "Pulsar's pluggable metadata",
    "Kafka Connect",
    "AMQP queues",
    "MQTT share groups",
    "Discovery",
    "Combined roles",
    "Coordinator, broker and replica design (Coo-M-S)",
)
FAMILIES = {
    "session": ("session", "subscription", "inflight", "will", "retained"),
    "offset": ("offset", "consumer"),
    "metadata": ("broker", "declaration", "table"),
    "assignment": ("assignment", "plan"),
    "generic": ("kv", "lease", "sequence"),
    "watch": ("watch",),
    "admin": (
        "system",
        "cluster",
        "role",
        "principal",
        "access",
        "tenants",
        "quota",
        "feature",
        "audit",
        "backup",
        "group",
    ),
}
"""What the names of a family's methods begin with."""
PUBLIC = {method.name for code, method in METHODS.items() if code not in BETWEEN_NODES}


class Scenario(NamedTuple):
    system: str
    shows: frozenset[str]
    says_what_is_missing: bool


def scenarios() -> dict[str, Scenario]:
    """By the name of the file."""
    found = {}
    for path in (ROOT / FOLDER).glob("test_*.py"):
        module = ast.parse(path.read_text())
        text = ast.get_docstring(module) or ""
        (shows,) = (
            ast.literal_eval(each.value).split()
            for each in module.body
            if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "SHOWS"
        )
        found[path.name] = Scenario(text.partition(": ")[0], frozenset(shows), "\nNot yet: " in text)
    return found


def rows(readme: str) -> dict[str, tuple[list[str], str]]:
    """Of the table, by the first cell: the files that the second one links to, and the third."""
    section = readme.partition(f"## {TITLE}\n")[2].partition("\n## ")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in section.splitlines() if line[:1] == "|"
    ]
    return {name: (re.findall(r"\]\(([^)]+)\)", links), missing) for name, links, missing in cells[2:]}


def problems(readme: str) -> list[str]:
    """What of the table is not so."""
    known, table = scenarios(), rows(readme)
    wanted = [*SYSTEMS, *(f"verbs: {family}" for family in FAMILIES)]
    found = [f"no row: {name}" for name in wanted if name not in table]
    found += [f"what is {name}?" for name in table if name not in wanted]
    links = {name: [link.removeprefix(f"{FOLDER}/") for link in links] for name, (links, _) in table.items()}
    found += [f"{name}: no scenario {link}" for name, each in links.items() for link in each if link not in known]
    found += [f"{name}: says nothing of what is missing" for name, (_, missing) in table.items() if not missing]
    for name in SYSTEMS:
        if [known[link].system for link in links.get(name, ()) if link in known] != [name]:
            found.append(f"{name}: its row links to its scenario, whose docstring begins with its name")
    for family, tables in FAMILIES.items():
        shown = {method for link in links.get(f"verbs: {family}", ()) if link in known for method in known[link].shows}
        methods = {method for method in PUBLIC if method.partition(".")[0] in tables}
        found += [f"verbs: {family}: no scenario of the row shows {method}" for method in sorted(methods - shown)]
    return found


def test_each_system_and_each_family_of_verbs_has_a_scenario() -> None:
    assert problems((ROOT / "README.md").read_text()) == []


def test_each_scenario_is_of_one_system_and_says_what_is_missing() -> None:
    known = scenarios()
    assert sorted(scenario.system for scenario in known.values()) == sorted(SYSTEMS)
    assert [name for name, scenario in known.items() if not scenario.says_what_is_missing] == []
    assert {method for scenario in known.values() for method in scenario.shows} <= PUBLIC


def test_each_method_is_of_one_family() -> None:
    tables = [table for family in FAMILIES.values() for table in family]
    assert len(tables) == len({*tables})
    assert {method.partition(".")[0] for method in PUBLIC} == {*tables}


@pytest.mark.parametrize("name", [*SYSTEMS, *(f"verbs: {family}" for family in FAMILIES)])
def test_a_row_that_is_gone_or_has_no_link_is_found(name: str) -> None:
    readme = (ROOT / "README.md").read_text()
    row = next(line for line in readme.splitlines() if line.startswith(f"| {name} |"))
    assert f"no row: {name}" in problems(readme.replace(f"{row}\n", ""))
    assert problems(readme.replace(row, re.sub(r"\]\([^)]+\)", "]", row)))
    assert problems(readme.replace(row, row.replace(".py", "_.py")))
