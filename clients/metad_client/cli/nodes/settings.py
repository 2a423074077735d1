"""``metadctl settings``: what nodes are set to, where that is from, and what is set while they run.

Settings of brokers, which brokers read, are another thing: the records of ``metadctl config``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from metad_wire.operator.settings import NodeSetting, SettingsReply

from ...client import Client
from ...errors import MetadError, NotFoundError
from ..grammar import Arguments, Commands, Parser
from ..looking import answered, raise_failed
from ..overview import as_read
from ..printing import Printer

Row = dict[str, Any]
_ALL = "all"


def add(commands: Commands) -> None:
    """Add the commands."""
    verbs = commands.group("settings", "what nodes are set to; set it while they run", "get")
    get = _node(verbs.add("get", "the settings of a node, or of all, and where each is from", _get))
    get.add_argument("setting", nargs="?", default="", metavar="SETTING", help="only this one, as limits.slow_ms")
    setting = _setting(verbs.add("set", "set a setting while nodes run, and for their later starts", _set))
    setting.add_argument("text", metavar="VALUE", help="as in the configuration file, or as 30s or 64MiB")
    _setting(verbs.add("unset", "have what the configuration file says count again", _set)).set_defaults(text=None)
    diff = verbs.add("diff", "where nodes differ, from each other or from their files; exit status 1 if they do", _diff)
    diff.add_argument("node", nargs="?", default=_ALL, metavar="NODE", help="only where this one differs")


def _node(parser: Parser) -> Parser:
    parser.add_argument("node", metavar="NODE", help="the node, or `all`")
    return parser


def _setting(parser: Parser) -> Parser:
    _node(parser).add_argument("setting", metavar="SETTING", help="as limits.slow_ms; `settings get` lists them")
    return parser


async def _get(m: Client, a: Arguments, printer: Printer) -> None:
    _show(await m.cluster.settings(a.setting, nodes=_named(a)), printer, a.node)


async def _set(m: Client, a: Arguments, printer: Printer) -> None:
    _show(await m.cluster.set(a.setting, a.text, nodes=_named(a)), printer, a.node)


def _named(a: Arguments) -> list[str]:
    return [] if a.node == _ALL else [a.node]


def _show(found: Mapping[str, SettingsReply | MetadError], printer: Printer, node: str) -> None:
    told = [(name, one) for name, reply in answered(found).items() for one in reply.settings]
    if told or not found:
        rows = [_row(name, one) for name, one in told]
        if node != _ALL:
            rows = [{key: value for key, value in row.items() if key != "node"} for row in rows]
        printer.listing("settings", [_record(name, one) for name, one in told], False, rows)
    raise_failed(found)


def _record(node: str, one: NodeSetting) -> Row:
    values = {field: json.loads(getattr(one, field)) for field in ("value", "configured", "default")}
    fields = {"source": one.source, "live": one.live, "own": one.own}
    bounds = {"least": one.least, "most": one.most} if one.live and one.most else {}
    return {"node": node, "setting": one.setting, **values, **fields, **bounds}


def _row(node: str, one: NodeSetting) -> Row:
    bounds = " to ".join(_read(one.setting, bound) for bound in (one.least, one.most)) if one.most else "yes"
    return {
        "node": node,
        "setting": one.setting,
        "value": _shown(one.setting, one.value),
        "source": one.source,
        "while it runs": bounds if one.live else "needs a restart",
    }


def _shown(setting: str, encoded: str) -> str | None:
    """A value as people read it: with a unit behind the number that the configuration file has."""
    value = json.loads(encoded)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | list | dict):
        return (value if isinstance(value, str) else encoded if value else "") or None
    read = _read(setting, value)
    return f"{value} ({read})" if read.replace(",", "") != str(value) else str(value)


def _read(setting: str, number: float) -> str:
    """A number with the unit that its setting has."""
    return str(as_read(setting.removesuffix("_max"), int(number))[1]) if number == int(number) else f"{number:g}"


async def _diff(m: Client, a: Arguments, printer: Printer) -> int:
    found = await m.cluster.settings()
    replies = answered(found)
    if a.node != _ALL and a.node not in replies:
        raise_failed({a.node: found.get(a.node) or NotFoundError(f"{a.node} is no member of the cluster")})
    by_setting: dict[str, dict[str, NodeSetting]] = {}
    for node, reply in replies.items():
        for one in reply.settings:
            by_setting.setdefault(one.setting, {})[node] = one
    records = [record for name, nodes in by_setting.items() if (record := _difference(name, nodes, a.node)) is not None]
    rows = [
        {
            "setting": record["setting"],
            **{node: _shown(record["setting"], one.value) for node, one in by_setting[record["setting"]].items()},
            "set while they run": record["set_at_run_time"],
        }
        for record in records
    ]
    printer.listing("settings", records, False, rows)
    raise_failed({node: one for node, one in found.items() if a.node in (_ALL, node)})
    return 1 if records else 0


def _difference(setting: str, nodes: Mapping[str, NodeSetting], wanted: str) -> Row | None:
    """What differs of a setting: between nodes, but for those that have each their own; or from what a node's file,
    environment and flags say. None: nothing does, or nothing of the node that is wanted."""
    values = {node: one.value for node, one in nodes.items()}
    usual = Counter(values.values()).most_common(1)[0][0]
    own = any(one.own for one in nodes.values())
    unlike = [] if own or len({*values.values()}) == 1 else [node for node, value in values.items() if value != usual]
    changed = [node for node, one in nodes.items() if one.value != one.configured]
    if not (unlike or changed if wanted == _ALL else wanted in {*unlike, *changed}):
        return None
    return {
        "setting": setting,
        "values": {node: json.loads(value) for node, value in values.items()},
        "configured": {node: json.loads(one.configured) for node, one in nodes.items()},
        "between_nodes": bool(unlike),
        "set_at_run_time": changed,
    }
