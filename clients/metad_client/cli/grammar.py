"""How commands are added to the grammar of ``metadctl``, and the arguments that many of them have."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Awaitable, Callable, Collection
from datetime import UTC, datetime
from typing import Any, Final, NoReturn, TypeAlias

from metad_wire.transport import split_endpoint

from ..client import Client
from .printing import Printer, in_line

Arguments: TypeAlias = argparse.Namespace
Parser: TypeAlias = argparse.ArgumentParser
Command = Callable[[Client, Arguments, Printer], Awaitable[int | None]]
"""Returns the exit status; None means 0."""
Check = Callable[[Arguments], None]
"""Raises ValueError for a command line that the grammar allows and that makes no sense."""
Leaf = Callable[[str, str, Command], Parser]
"""Adds a command for a kind of record: (its name, help, its function)."""
LIMIT_DEFAULT = 1_000
_UNITS: Final = {"s": 1, "min": 60, "m": 60, "h": 3_600, "d": 86_400}


class Usage(argparse.ArgumentParser):
    """One whose complaints have no control characters of the command line. ``hint``: what was meant perhaps."""

    hint = ""

    def error(self, message: str) -> NoReturn:
        super().error(in_line(message) + self.hint)


class _Command(Usage):
    """One whose options may stand anywhere among its arguments, also where there may be any number of these.
    ``has_verbs``: commands follow it."""

    has_verbs = False
    default = ""
    """The command that is meant where the first word is none."""
    _is_mixed = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As of the base class, which takes `TABLE --index I KEY` for a table without a key. What is left over is an
        error of this command, not of ``metadctl``."""
        if self.default:
            first = next((word for word in args if not word.startswith("-")), "")
            if first not in self._verbs() and not {"-h", "--help"} & {*args}:
                args = [self.default, *args]
        found, extra = super().parse_known_args(args, namespace)
        if not extra or self._is_mixed:
            return found, extra
        if not self.has_verbs:
            self._is_mixed = True
            try:
                found, extra = self.parse_known_intermixed_args(args, None)
            finally:
                self._is_mixed = False
        if extra:
            self.error(f"unrecognized arguments: {' '.join(extra)}")
        return found, extra

    def _verbs(self) -> Collection[str]:
        return next((action.choices for action in self._actions if isinstance(action.choices, dict)), {})


async def _nothing(*_: Any) -> None:
    """What an offline command asks a cluster."""


class Commands:
    """Adds commands behind one word of the command line. ``common``: the options that every command has."""

    def __init__(self, parser: Parser, common: Parser, *, metavar: str, required: bool) -> None:
        if isinstance(parser, _Command):
            parser.has_verbs = True
        self._parser = parser
        self._verbs: Any = parser.add_subparsers(metavar=metavar, required=required, parser_class=_Command)
        self._common = common
        self._groups: dict[str, Commands] = {}

    def group(self, name: str, help: str, default: str) -> Commands:
        """Add a word that commands follow, one of which is meant where none is named."""
        parser = self._verbs.add_parser(name, help=help, parents=[self._common])
        parser.default = default
        self._groups[name] = Commands(parser, self._common, metavar="COMMAND", required=True)
        return self._groups[name]

    def behind(self, name: str) -> Commands | None:
        """The commands behind a word that :meth:`group` has added; None if it has not."""
        return self._groups.get(name)

    def add(self, name: str, help: str, command: Command, check: Check | None = None) -> Parser:
        """Add a command."""
        parser: Parser = self._verbs.add_parser(name, help=help, parents=[self._common])
        parser.set_defaults(command=command, verify=check, complain=parser.error)
        return parser

    def offline(self, name: str, help: str, work: Callable[[Arguments], int]) -> Parser:
        """Add a command that asks no cluster. ``work`` returns the exit status."""
        parser = self.add(name, help, _nothing)
        parser.set_defaults(offline=work)
        return parser

    def hint(self, text: str) -> None:
        """Say so behind each complaint about these commands."""
        for parser in (self._parser, *self._verbs.choices.values()):
            parser.hint = text

    def parser(self, name: str) -> Parser:
        """That of a command which was added."""
        parser: Parser = self._verbs.choices[name]
        return parser

    def kinds(self, name: str, help: str) -> Leaf:
        """Add a verb that says of which kind its record is."""
        parser = self._verbs.add_parser(name, help=help)
        return Commands(parser, self._common, metavar="KIND", required=True).add

    def unlisted(self, name: str, about: str) -> tuple[Parser, Commands]:
        """Add a word that ``--help`` does not list, and that commands follow."""
        parser = self._verbs.add_parser(name, description=about, parents=[self._common])
        return parser, Commands(parser, self._common, metavar="COMMAND", required=False)

    def family(self, name: str, help: str, listing: Command, check: Check | None = None) -> tuple[Parser, Commands]:
        """Add a command that lists records, and behind its name commands for some of them."""
        parser = self.add(name, help, listing, check)
        return parser, Commands(parser, self._common, metavar="COMMAND", required=False)


def limit(parser: Parser, what: str = "show at most N records, 0 for all", default: int = LIMIT_DEFAULT) -> None:
    """Add the option."""
    parser.add_argument("--limit", type=count, default=default, metavar="N", help=f"{what}; default {default}")


def tenant_and_prefix(parser: Parser) -> None:
    """Add the options that choose clients. :func:`check_prefix` checks them."""
    parser.add_argument("--tenant", metavar="T", help="only those of this tenant")
    parser.add_argument("--prefix", default="", metavar="P", help="only client ids with this prefix; needs --tenant")


def check_prefix(a: Arguments) -> None:
    """Refuse a prefix without a tenant."""
    if a.prefix and a.tenant is None:
        raise ValueError("--prefix needs --tenant")


def needs(option: str, why: str) -> Check:
    """Refuse a command line without this option."""

    def check(a: Arguments) -> None:
        if getattr(a, option) is None:
            raise ValueError(f"--{option} is missing: {why}")

    return check


def broker_life(parser: Parser, help: str) -> None:
    """Add the options that name a life of a broker."""
    parser.add_argument("--broker", required=True, metavar="B", help=help)
    parser.add_argument("--epoch", required=True, type=count, metavar="N", help="epoch of the broker")


def count(text: str) -> int:
    """Read an argument."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"no whole number: {text}") from None
    if not 0 <= number < 1 << 63:
        raise argparse.ArgumentTypeError(f"not between 0 and 2**63: {text}")
    return number


def endpoint(text: str) -> str:
    """Read an argument."""
    try:
        split_endpoint(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def since(parser: Parser, default: int | str, said: str = "") -> None:
    """Add the option: a time in Unix milliseconds."""
    how = "90s, 30min, 1h or 2d ago, or 2026-11-22T15:04:05Z (without Z: as this machine has it)"
    parser.add_argument(
        "--since", type=moment, default=default, metavar="T", help=f"only from then on: {how}{said and f'; {said}'}"
    )


def moment(text: str) -> int:
    """Read an argument: a time in Unix milliseconds."""
    ago_s = _span_s(text)
    if ago_s is not None:
        return max(0, int(1_000 * (time.time() - ago_s)))
    try:
        return max(0, int(1_000 * datetime.fromisoformat(text).astimezone(UTC).timestamp()))
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"neither as in 30min nor a time: {text}") from None


def _span_s(text: str) -> int | None:
    """``90s``, ``30min``, ``1h`` or ``2d`` in seconds; None for anything else."""
    found = re.fullmatch(r"(\d{1,9})(s|min|m|h|d)", text)
    return None if found is None else int(found[1]) * _UNITS[found[2]]


def seconds(text: str) -> float:
    """Read an argument: for how long to wait; ``60`` and ``60s`` are the same."""
    span_s = _span_s(text)
    number = float(text) if span_s is None else float(span_s)
    if not 0 < number <= 3600:
        raise argparse.ArgumentTypeError(f"not between 0 and 3600 seconds: {text}")
    return number


def interval_s(text: str) -> int:
    """Read an argument: an interval that is stored."""
    number = int(text)
    if not 0 <= number <= 0xFFFF_FFFF:
        raise argparse.ArgumentTypeError(f"not between 0 and 2**32 - 1 seconds: {text}")
    return number
