"""The methods of the SDK that follow from declarations, written out for type checkers and editors when this file is
run: those that read keys, and the faces of the blocking client."""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import msgspec
from typed_tables import Names, formatted

import metad_client
from metad_client import namespaces
from metad_wire.table import TABLES, Got, Table

READS = Path(metad_client.__path__[0]) / "namespaces" / "reads.py"
TWINS = Path(metad_client.__path__[0]) / "blocking" / "namespaces.py"
README = Path(__file__).resolve().parents[3] / "clients" / "README.md"
MODULE = '''"""The methods of ``m.kv``, ``m.sessions`` and others that read keys, as the tables declare them.

This module is made of the declarations by ``python tests/unit/client/typed_verbs.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

{imports}
from ..requests.verb import Verb
from ..results import ReadResult
from . import Facade
'''
CLASS = """

class _{table}Reads(Facade):
"""
METHODS = '''
    async def {verb}_many(
        self, keys: Sequence[{key}], *, min_revisions: Sequence[Revision] = (), deadline_s: float | None = None
    ) -> ReadResult[{found} | None]:
        {many}
        return await _{constant}.read(self._requests, keys, deadline_s, min_revisions)

    async def {verb}(
        self, {fields}, *, min_revisions: Sequence[Revision] = (), deadline_s: float | None = None
    ) -> {one}:
        """Read one, as :meth:`{verb}_many` does{none}."""
        return await _{constant}.one_read(self._requests, {key}({names}), deadline_s, min_revisions)
'''
MISSING = " None if there is none, or if it could not be read: ``raise_for_error`` says why."
UNREAD = " None if it could not be read: ``raise_for_error`` says why."
_FACE = re.compile(r"^    (\w+) = (?:Call|Listing)\(.*\)\n", re.MULTILINE)


def tables() -> list[Table[Any]]:
    """Those that declare methods which read keys."""
    return [table for _, table in sorted(TABLES.items()) if table.got]


def reads() -> str:
    """Of the module with the methods that read keys."""
    names = Names("metad_wire.messages", "Revision")
    name = names.of
    classes, constants = "", ""
    for table in tables():
        classes += CLASS.format(table=table.name.title())
        for method, got in table.got.items():
            constant = method.name.upper().replace(".", "_")
            names.add(f"metad_wire.tables.{table.name}", constant)
            found, fields = name(got.found), msgspec.structs.fields(got.key)
            one = f"{found} | None" if got.may_miss else found
            classes += METHODS.format(
                verb=method.name.partition(".")[2],
                key=name(got.key),
                found=found,
                one=one,
                none="; None if there is none" if got.may_miss else "",
                many=docstring(got),
                constant=constant,
                fields=", ".join(f"{field.name}: {plain_name(field.type)}" for field in fields),
                names=", ".join(field.name for field in fields),
            )
            constants += f"_{constant}: Verb[{name(got.key)}, {one}] = Verb({constant})\n"
    return formatted(MODULE.format(imports=names.imports) + classes + "\n\n" + constants, READS)


def docstring(got: Got) -> str:
    """Of a method that reads many keys."""
    text = f'"""{got.about}{MISSING if got.may_miss else UNREAD}"""'
    return "\n        ".join(textwrap.wrap(text, 112))


def plain_name(kind: Any) -> str:
    """A field's type, without what its values may be."""
    return "str" if isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.StrType) else "int"


def faces() -> str:
    """Of the module with the blocking client's namespaces: each has all methods of its target. How one is written there
    already is kept."""
    text = TWINS.read_text(encoding="utf-8")
    for before in re.findall(r"^class \w+\(Twin.*?(?=^class |\Z)", text, re.MULTILINE | re.DOTALL):
        lines = _FACE.findall(before)
        target = re.search(r"(?:Call|Listing)\((\w+)\.(\w+)(.*?)\.\w+[,)]", before)
        if target is None or target[1] == "broker_life":  # an object that is opened
            continue
        module, owner, arguments = target.groups()
        known = {match[1]: match[0] for match in _FACE.finditer(before)}
        block = "".join(
            known.get(name, f"    {name} = {face}({module}.{owner}{arguments}.{name})\n")
            for name, face in methods_of(getattr(imported(module), owner), before)
        )
        first, last = before.index(known[lines[0]]), before.index(known[lines[-1]]) + len(known[lines[-1]])
        text = text.replace(before, before[:first] + block + before[last:])
    return text


def imported(name: str) -> Any:
    """A module with a namespace."""
    return importlib.import_module(f"{namespaces.__name__}.{name}")


def methods_of(owner: type, written: str) -> list[tuple[str, str]]:
    """The methods of a class that send requests and are not ``written`` out for its twin, and how each is turned."""
    found: dict[str, str] = {}
    for base in owner.__mro__[::-1]:
        for table in tables():  # declared a moment ago, perhaps
            if base.__name__ == f"_{table.name.title()}Reads":
                verbs = [method.name.partition(".")[2] for method in table.got]
                found |= dict.fromkeys([*verbs, *(f"{verb}_many" for verb in verbs)], "Call")
        for name, method in vars(base).items():
            if not name.startswith("_") and f"    def {name}(" not in written:
                if inspect.isasyncgenfunction(method):
                    found[name] = "Listing"
                elif inspect.iscoroutinefunction(method):
                    found[name] = "Call"
    return sorted(found.items(), key=lambda face: not face[0].endswith("_many"))


def namespace_of(table: Table[Any]) -> str:
    """The attribute of a client that has the methods of a table."""
    (owner,) = getattr(imported("reads"), f"_{table.name.title()}Reads").__subclasses__()
    return str(owner.__module__).removeprefix(f"{namespaces.__name__}.")


def readme() -> str:
    """Of the SDK's page: the row of each namespace names its methods that read keys, and a row says how new that is
    which they read."""
    text = README.read_text(encoding="utf-8")
    for table in tables():
        for method in table.got:
            many, attribute = f"`{method.name.partition('.')[2]}_many`", namespace_of(table)
            if not re.search(rf"^\| `m\.{attribute}` \| [^|]*{many}", text, re.MULTILINE):
                text = re.sub(rf"^(\| `m\.{attribute}` \| [^|]*_many`)", rf"\1, {many}", text, flags=re.MULTILINE)
            if f"`{method.name}`" not in text:
                text = text.replace(
                    ", plain tables, and metadctl's", f", `{method.name}`, plain tables, and metadctl's"
                )
    return text


if __name__ == "__main__":
    READS.write_text(reads(), encoding="utf-8")
    TWINS.write_text(faces(), encoding="utf-8")
    README.write_text(readme(), encoding="utf-8")
