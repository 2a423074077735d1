"""What people read about the settings: the reference and a sample file, both made from the declarations."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import msgspec

from metad_wire.described import texts

from .declarations import SETTINGS, Config, Section
from .environment import VARIABLES
from .files import toml

_WIDTH = 100  # of the sample


def reference() -> str:
    """The configuration reference as Markdown."""
    lines = ["# Configuration", "", _text(Config), ""]
    for title, section in _sections():
        if title:
            lines += [f"## `[{title}]`", "", _text(section), ""]
        lines += ["| key | default | while it runs | what it does |", "| --- | --- | --- | --- |"]
        for field, default, text in _fields(section):
            live = _live(f"{title}.{field}" if title else field)
            lines.append(f"| `{field}` | `{msgspec.json.encode(default).decode()}` | {live} | {text} |")
        lines.append("")
    lines += ["## While a node runs", "", _WHILE_IT_RUNS, ""]
    lines += ["## Environment variables", "", _ENVIRONMENT, "", "| variable | key |", "| --- | --- |"]
    lines += [*(f"| `{variable}` | `{key}` |" for variable, key in VARIABLES.items()), ""]
    return "\n".join(lines)


def _live(key: str) -> str:
    """How a setting may be set while a node runs; empty if a restart is needed."""
    live = SETTINGS[key].live
    return "" if live is None else f"{live.least:,} to {live.most:,}" if live.most else "yes"


_WHILE_IT_RUNS = """\
``metadctl settings set NODE|all SETTING VALUE`` sets what has bounds, or yes, in the column *while it runs*. It counts
at once, over file, environment and flags, and after each start: the node keeps it in ``settings.toml`` in ``data_dir``
until ``metadctl settings unset``. All else needs a restart."""

_ENVIRONMENT = """\
``metad serve`` reads these, for containers. A variable wins over the file, and a flag over the variable. An empty
variable counts as not set. Lists are ``a,b``, tables ``a=HOST:PORT,b=HOST:PORT``, and yes or no is ``true`` or
``false``. ``metad cluster`` reads none of them."""


def sample() -> str:
    """A configuration file in which every key is a comment with its default."""
    lines = ["# Configuration of a metad node. Each key has its default. Remove the # in front of a key to set it."]
    lines += ["# This names what is wrong with a file: metad config --check FILE"]
    variables = {key: variable for variable, key in VARIABLES.items()}
    for title, section in _sections():
        if title:
            lines += ["", "", *_comment(_text(section)), f"[{title}]"]
        for field, default, text in _fields(section):
            variable = variables.get(f"{title}.{field}" if title else field)
            said = f"{text} Environment: {variable}." if variable else text
            if SETTINGS[f"{title}.{field}" if title else field].live is not None:
                said += " May be set while the node runs."
            lines += ["", *_comment(said), f"#{field} = {toml(default)}"]
    return "\n".join([*lines, ""])


def _comment(text: str) -> list[str]:
    plain = " ".join(text.replace("``", "").split())
    return textwrap.wrap(plain, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _text(section: type[Section]) -> str:
    return texts(sys.modules[section.__module__]).classes[section.__name__]


def _sections() -> Iterator[tuple[str, type[Section]]]:
    """The keys outside of any table first, then the tables."""
    yield "", Config
    defaults = Config()
    for field in Config.__struct_fields__:
        if isinstance(value := getattr(defaults, field), Section):
            yield field, type(value)


def _fields(section: type[Section]) -> Iterator[tuple[str, Any, str]]:
    """Name, default and text of each field. The text is the string literal behind the field in the class body."""
    written = texts(sys.modules[section.__module__]).fields
    defaults = section()
    for field in section.__struct_fields__:
        default = getattr(defaults, field)
        if not isinstance(default, Section):
            yield field, default, written[section.__name__, field]
