"""The methods of the SDK that follow from declarations, written out for type checkers and editors when this file is
run: those that tables declare by their shape, and the faces of the blocking client."""

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
from metad_client import assignment, families, namespaces
from metad_wire import tables as tables_package
from metad_wire.errors import ERRORS
from metad_wire.method import By, For, Method
from metad_wire.methods import NEAR
from metad_wire.table import TABLES, Listed, Table

DECLARED = Path(metad_client.__path__[0]) / "namespaces" / "declared.py"
TWINS = Path(metad_client.__path__[0]) / "blocking" / "namespaces.py"
README = Path(__file__).resolve().parents[3] / "clients" / "README.md"
MODULE = '''"""The methods of ``m.kv``, ``m.sessions`` and others that the tables declare by their shape.

This module is made of the declarations by ``python tests/unit/client/typed_verbs.py``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

{imports}
from ..requests.listing import Listing
from ..requests.requests import Verb
from ..results import ReadResult, WriteResult
from . import Facade
'''
CLASS = """

class _{table}Declared(Facade):
"""
METHODS = '''
    async def {verb}_many(
        self, keys: Sequence[{key}], *, min_revisions: Sequence[Revision] = (), {near}deadline_s: float | None = None
    ) -> ReadResult[{found} | None]:
        {many}
        return await _{constant}.read(self._requests, keys, deadline_s, min_revisions{nearly})

    async def {verb}(
        self, {fields}, *, min_revisions: Sequence[Revision] = (), {near}deadline_s: float | None = None
    ) -> {one}:
        """Read one, as :meth:`{verb}_many` does{none}."""
        return await _{constant}.one_read(self._requests, {key}({names}), deadline_s, min_revisions{nearly})
'''
BATCH = """
    async def {verb}_many(self, {named}: Sequence[{item}], *, deadline_s: float | None = None) -> WriteResult:
        {many}
        return WriteResult(await _{constant}.many(self._requests, {named}, deadline_s))
"""
ONE = '''
    async def {verb}(self, {fields}, {defaults}deadline_s: float | None = None) -> None:
        """The same with one, as :meth:`{verb}_many` does it. Raises the error of its item."""
        await _{constant}.one(self._requests, {item}({names}), deadline_s)
'''
LISTING = """
    def {verb}(
        self,
        {fields},
        *,
        page_size: int = 1000,
        min_revisions: Sequence[Revision] = (),
        {near}deadline_s: float | None = None,
    ) -> AsyncIterator[{found}]:
        {about}
        return _{constant}.{pages}(self._requests, page_size, deadline_s, min_revisions{nearly}, {asked})
"""
NEAR_ARGUMENT = {"near": "freshness_ms: int = 0, ", "nearly": ", freshness_ms"}
"""Of a read that any replica may answer."""
PAGES = " It is read a page at a time; the deadline is that of each page."
SPREAD = " All groups are asked, and what stays comes once, wherever its slot moves."
MISSING = " None if there is none, or if it could not be read: ``raise_for_error`` says why."
UNREAD = " None if it could not be read: ``raise_for_error`` says why."
_WORDS = {"internal", "cancelled", "closed", "draining", "unsupported"}
"""Names of errors that sentences may have for themselves."""
_ERROR = re.compile("|".join(rf"\b{error.name}\b" for error in ERRORS.values() if error.name not in _WORDS))
_PLAIN = {
    msgspec.inspect.StrType: "str",
    msgspec.inspect.IntType: "int",
    msgspec.inspect.BoolType: "bool",
    msgspec.inspect.BytesType: "bytes",
    msgspec.inspect.NoneType: "None",
}
_FACE = re.compile(r"^    (\w+) = (?:Call|Listing)\(.*\)\n", re.MULTILINE)


def tables() -> list[Table[Any]]:
    """Those that declare methods by their shape."""
    return [table for _, table in sorted(TABLES.items()) if verbs(table)]


def verbs(table: Table[Any]) -> dict[str, str]:
    """The methods of the SDK that a table declares, and how the blocking client turns each."""
    found: dict[str, str] = {}
    for method in [*table.got, *table.batched]:
        name = method.name.partition(".")[2]
        if method.whose is not For.NODES:
            found |= {name: "Call"} if method in table.got or is_plain(method) else {}
            found |= {f"{name}_many": "Call"}
    return found | {method.name.partition(".")[2]: "Listing" for method in lists(table)}


def is_plain(method: Method[Any, Any]) -> bool:
    """Whether an item is made of plain values, so that a method takes them one by one."""
    try:
        return bool([plain_name(field.type) for field in msgspec.structs.fields(method.item)])
    except KeyError:
        return False


def lists(table: Table[Any]) -> dict[Method[Any, Any], Listed]:
    """Those of its listings that groups answer."""
    return {method: listed for method, listed in table.listed.items() if method.by is By.GROUP}


def declared() -> str:
    """Of the module with the methods that tables declare."""
    names = Names("metad_wire.messages", "Revision")
    errors = {error.name: error.__name__ for error in ERRORS.values()}
    name = names.of
    classes, constants = "", ""
    for table in tables():
        classes += CLASS.format(table=table.name.title())
        for method, got in table.got.items():
            constant = method.name.upper().replace(".", "_")
            names.add(declaring(constant), constant)
            found, fields = name(got.found), msgspec.structs.fields(got.key)
            one = f"{found} | None" if got.may_miss else found
            classes += METHODS.format(
                verb=method.name.partition(".")[2],
                key=name(got.key),
                found=found,
                one=one,
                none="; None if there is none" if got.may_miss else "",
                many=docstring(got.about + (MISSING if got.may_miss else UNREAD)),
                constant=constant,
                fields=", ".join(f"{field.name}: {plain_name(field.type)}" for field in fields),
                names=", ".join(field.name for field in fields),
                **nearness(method),
            )
            constants += f"_{constant}: Verb[{name(got.key)}, {one}] = Verb({constant})\n"
        for method, batched in table.batched.items():
            if method.whose is For.NODES:
                continue
            constant = method.name.upper().replace(".", "_")
            names.add(declaring(constant), constant)
            fields = msgspec.structs.fields(method.item)
            plain = is_plain(method)
            classes += (BATCH + ONE * plain).format(
                verb=method.name.partition(".")[2],
                named=batched.named,
                item=name(method.item),
                many=docstring(_ERROR.sub(lambda found: errors[found[0]], batched.about)),
                constant=constant,
                fields=", ".join(parameter(field) for field in fields if plain and field.required),
                defaults="*, " + "".join(f"{parameter(field)}, " for field in fields if plain and not field.required),
                names=", ".join(field.name for field in fields),
            )
            constants += f"_{constant}: Verb[{name(method.item)}, None] = Verb({constant})\n"
        for method, listed in lists(table).items():
            constant = method.name.upper().replace(".", "_")
            names.add(declaring(constant), constant)
            wanted = [field for field in msgspec.structs.fields(method.body) if field.name in listed.asked]
            classes += LISTING.format(
                verb=method.name.partition(".")[2],
                fields=", ".join(map(parameter, wanted)),
                found=name(listed.found),
                about=docstring(listed.about + PAGES + SPREAD * spreads(method)),
                constant=constant,
                pages="of_all_groups" if spreads(method) else "of_group",
                asked=", ".join(f"{each}={each}" for each in listed.asked),
                **nearness(method),
            )
            constants += f"_{constant}: Listing[{name(listed.found)}] = Listing({constant})\n"
    return formatted(MODULE.format(imports=names.imports) + classes + "\n\n" + constants, DECLARED)


def spreads(method: Method[Any, Any]) -> bool:
    """Whether all groups have a share of a listing."""
    return "slots" in method.body.__struct_fields__


def nearness(method: Method[Any, Any]) -> dict[str, str]:
    """The argument of a read that any replica may answer."""
    return NEAR_ARGUMENT if method.code in NEAR else dict.fromkeys(NEAR_ARGUMENT, "")


def declaring(constant: str) -> str:
    """The module that declares a method."""
    for name in tables_package.NAMES:
        module = importlib.import_module(f"{tables_package.__name__}.{name}")
        if hasattr(module, constant):
            return module.__name__
    raise LookupError(constant)


def docstring(text: str) -> str:
    """Of a method, in lines."""
    return "\n        ".join(textwrap.wrap(f'"""{text}"""', 112))


def parameter(field: Any) -> str:
    """Of a method, for a field of the body."""
    default = "" if field.required else f" = {field.default!r}".replace("''", '""')
    return f"{field.name}: {plain_name(field.type)}{default}"


def plain_name(kind: Any) -> str:
    """A field's type, without what its values may be."""
    info = msgspec.inspect.type_info(kind)
    types = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
    return " | ".join(_PLAIN[type(one)] for one in types)


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
    """A module with a namespace, which may be one of rules."""
    package = next((one for one in (families, assignment) if hasattr(one, name)), namespaces)
    return importlib.import_module(f"{package.__name__}.{name}")


def methods_of(owner: type, written: str) -> list[tuple[str, str]]:
    """The methods of a class that send requests and are not ``written`` out for its twin, and how each is turned."""
    found: dict[str, str] = {}
    for base in owner.__mro__[::-1]:
        for table in tables():  # declared a moment ago, perhaps
            if base.__name__ == f"_{table.name.title()}Declared":
                found |= verbs(table)
        for name, method in vars(base).items():
            if not name.startswith("_") and f"    def {name}(" not in written:
                if is_listing(method):
                    found[name] = "Listing"
                elif inspect.iscoroutinefunction(method):
                    found[name] = "Call"
    return sorted(found.items(), key=lambda face: not face[0].endswith("_many"))


def is_listing(method: Any) -> bool:
    """Whether it gives records, one by one."""
    return "AsyncIterator" in str(getattr(method, "__annotations__", {}).get("return"))


def namespace_of(table: Table[Any]) -> str:
    """The attribute of a client that has the methods of a table."""
    (owner,) = getattr(imported("declared"), f"_{table.name.title()}Declared").__subclasses__()
    return str(owner.__module__).rpartition(".")[2]


def readme() -> str:
    """Of the SDK's page: the row of each namespace names its methods that read keys or list, and a row says how new
    what they read is."""
    text = README.read_text(encoding="utf-8")
    for table in tables():
        for method in [*table.got, *table.batched, *lists(table)]:
            if method.whose is For.NODES:
                continue
            verb, attribute = method.name.partition(".")[2], namespace_of(table)
            name = f"`{verb}_many`" if method not in table.listed else f"`{verb}`"
            if not re.search(rf"^\| `m\.{attribute}` \| [^|]*{name}", text, re.MULTILINE):
                text = re.sub(rf"^(\| `m\.{attribute}` \| [^|]*_many`)", rf"\1, {name}", text, flags=re.MULTILINE)
            if not method.mutates and f"`{method.name}`" not in text:
                text = text.replace(", `table.get`", f", `{method.name}`, `table.get`")
    return text


if __name__ == "__main__":
    DECLARED.write_text(declared(), encoding="utf-8")
    TWINS.write_text(faces(), encoding="utf-8")
    README.write_text(readme(), encoding="utf-8")
