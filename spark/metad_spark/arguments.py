"""Command lines from Structs: a command is a frozen Struct, and each of its fields a flag.

A field is annotated with its type, the help, and if need be the word for its value and the flag:
``out: Annotated[Path | None, "write it", "FILE"] = None`` is ``--out FILE``. The type says how the value is read; a
field without a default is required. Without a help a flag is hidden. A flag without dashes is a positional argument.
"""

from __future__ import annotations

import argparse
import tomllib
import types
from collections.abc import Callable, Mapping
from importlib.abc import Traversable
from pathlib import Path
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

import msgspec


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all commands."""

    ABOUT: ClassVar[str]
    """The help of the command."""
    ONE_OF: ClassVar[tuple[str, ...]] = ()
    """Fields of which a command line has one, and no more."""
    READ: ClassVar[Mapping[str, Callable[[str], Any]]] = {}
    """How fields are read whose type does not say it, by name. One with several values is given several times."""

    def run(self) -> int:
        """Returns the exit code."""
        raise NotImplementedError


def parser_of(
    name: str, about: str, version: str, commands: Mapping[str, type[Command]], notes: Traversable
) -> argparse.ArgumentParser:
    """The parser of a program. ``command`` of what it returns is the Struct's type. ``notes``: a TOML file that has, by
    the name of a command, what stands at the end of its help: what it does, and what its report says."""
    written = tomllib.loads(notes.read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(prog=name, description=about)
    parser.add_argument("--version", action="version", version=f"{name} {version}")
    below = parser.add_subparsers(metavar="COMMAND", required=True)
    for word, command in commands.items():
        one = below.add_parser(
            word, help=command.ABOUT, description=command.ABOUT, epilog=written.get(word), formatter_class=_Defaults
        )
        one.set_defaults(command=command)
        _add(one, command)
    return parser


def made(args: argparse.Namespace) -> Command:
    """The command that was given."""
    command: type[Command] = args.command
    return command(**{field.name: getattr(args, field.name) for field in msgspec.structs.fields(command)})


class _Defaults(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    def _get_help_string(self, action: argparse.Action) -> str | None:
        told = action.default is None or isinstance(action.default, bool | tuple | list)
        return action.help if told else super()._get_help_string(action)


def _add(parser: argparse.ArgumentParser, command: type[Command]) -> None:
    hints = get_type_hints(command, include_extras=True)
    one_of = parser.add_mutually_exclusive_group(required=True) if command.ONE_OF else parser
    for field in msgspec.structs.fields(command):
        of = get_args(hints[field.name])[0]
        text, metavar, flag = (*hints[field.name].__metadata__, None, None)[:3]
        flag = flag or f"--{field.name.replace('_', '-')}"
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        to = one_of if field.name in command.ONE_OF else parser
        how = {
            "help": argparse.SUPPRESS if text is None else text,
            **_reading(of, default, command.READ.get(field.name)),
        }
        if metavar is not None:
            how["metavar"] = metavar
        if not flag.startswith("-"):
            many = (
                {}
                if get_origin(of) is not tuple
                else {"type": get_args(of)[0], "nargs": "*" if "default" in how else "+"}
            )
            to.add_argument(field.name, **how | many | {"metavar": flag})
        else:
            required = default is msgspec.NODEFAULT and to is parser
            to.add_argument(flag, dest=field.name, required=required, **how)


def _reading(of: Any, default: Any, read: Callable[[str], Any] | None) -> dict[str, Any]:
    """How argparse reads a value of this type."""
    if read is not None and get_origin(of) is tuple:
        return {"type": read, "action": "append", "default": []}
    if of is bool:
        return {"action": "store_false" if default is True else "store_true"}
    how: dict[str, Any] = {} if default is msgspec.NODEFAULT else {"default": default}
    if read is not None:
        return how | {"type": read}
    if get_origin(of) in (Union, types.UnionType):
        (of,) = (one for one in get_args(of) if one is not type(None))
    if get_origin(of) is Literal:
        return how | {"choices": get_args(of)}
    if get_origin(of) is tuple:
        if isinstance(default, tuple) and default:
            how["default"] = ",".join(f"{one:g}" if isinstance(one, float) else one for one in default)
        return how | {"type": _numbers if get_args(of)[0] is float else _names}
    readers: dict[Any, Callable[[str], Any]] = {int: count, float: float, str: str, Path: Path}
    return how | {"type": readers[of]}


def count(text: str) -> int:
    """An integer, also written as 1e7 or 10_000_000."""
    try:
        number = float(text.replace("_", "").replace(",", ""))
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a number: {text!r}") from None
    if not number.is_integer():
        raise argparse.ArgumentTypeError(f"not a whole number: {text!r}")
    return int(number)


def _numbers(text: str) -> tuple[float, ...]:
    """``1,30`` -> numbers."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"not numbers with commas between: {text!r}") from None


def _names(text: str) -> tuple[str, ...]:
    """``a,b`` -> names."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
