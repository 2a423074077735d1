"""The commands of families beside list, get, put and delete: those of the SDK's verbs that have rules."""

from __future__ import annotations

import argparse
import getpass
import sys
import time
import typing
from collections.abc import Collection
from contextlib import nullcontext, suppress
from pathlib import Path

from metad_wire.families import FAMILIES
from metad_wire.families.assignment import PARTITIONS, RESOURCES

from ...client import Client
from ...errors import InvalidRequestError, NotFoundError
from ...families.config import KEPT, ScopeKind
from ...families.schemas import Compatibility, Kind
from ...families.topics import Resize
from ...families.users import Mechanism
from .. import people
from ..grammar import Arguments, Commands, Parser, count
from ..printing import Printer
from . import assignments, declared, tenants


def add_families(commands: Commands, words: Collection[str] | None) -> None:
    """Add the commands of the tables in the code, as :func:`declared.add_families` does, with those of rules."""
    verbs = declared.add_families(commands, words)
    for name, add in {
        "tenant": tenants.add,
        "topic": _add_topics,
        "schema": _add_schemas,
        "user": _add_users,
        "dynamic_config": _add_config,
        RESOURCES.name: assignments.add_resources,
        PARTITIONS.name: assignments.add_partitions,
    }.items():
        if name in verbs:
            add(verbs[name])
    for name, of in verbs.items():
        assignments.add_kinds(of, FAMILIES[name])


# --- topics ---


def _add_topics(verbs: Commands) -> None:
    parser = verbs.add("resize", "let topics grow or shrink; write queues shrink before read queues", _resize)
    parser.add_argument("tenant", metavar="TENANT")
    parser.add_argument("topics", nargs="+", metavar="TOPIC")
    parser.add_argument("--partitions", type=count, metavar="N")
    parser.add_argument("--read-queues", type=count, metavar="N", help="of each broker, to consume from")
    parser.add_argument("--write-queues", type=count, metavar="N", help="of each broker, to publish to")


async def _resize(m: Client, a: Arguments, printer: Printer) -> None:
    if a.partitions is not None:
        for topic in [*a.topics]:
            with suppress(NotFoundError):  # most are assigned by their brokers
                await m.assignments.topics.resize(a.tenant, topic, a.partitions)
    numbers = (a.partitions, a.read_queues, a.write_queues)
    done = await m.topics.resize_many([Resize(a.tenant, topic, *numbers) for topic in a.topics])
    names = ("tenant", "topic", "partitions", "read_queues", "write_queues")
    if found := [{name: getattr(one, name) for name in names} for one in done if one is not None]:
        printer.many(found)
    done.raise_for_error()


# --- schemas ---


def _add_schemas(verbs: Commands) -> None:
    parser = verbs.add("register", "give a schema a version, if it goes with those that its subject has", _register)
    _subject(parser)
    parser.add_argument("file", metavar="FILE", help="the schema; - reads stdin")
    parser.add_argument("--kind", choices=typing.get_args(Kind), default="avro", help="its language; default avro")
    modes = ", ".join(typing.get_args(Compatibility))
    parser.add_argument(
        "--compatibility",
        choices=typing.get_args(Compatibility),
        metavar="C",
        help=f"how versions of the subject go together from now on: {modes}; at first backward",
    )
    parser = verbs.add("bind", "have the messages of a topic follow a schema", _bind)
    _subject(parser)
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--schema-version", type=count, metavar="N", help="default: the newest")
    parser.add_argument("--part", choices=("value", "key"), default="value", help="what of a message; default value")
    parser.add_argument("--report", action="store_true", help="brokers report messages that do not follow it, only")
    _subject(verbs.add("followers", "the topics that follow a subject", _followers))


def _subject(parser: Parser) -> None:
    parser.add_argument("tenant", metavar="TENANT")
    parser.add_argument("subject", metavar="SUBJECT")


async def _register(m: Client, a: Arguments, printer: Printer) -> None:
    try:
        text = declared.text_of(a.file).decode()
    except UnicodeDecodeError:
        raise InvalidRequestError(f"{a.file}: it is no text") from None
    version = await m.schemas.register(a.tenant, a.subject, a.kind, text, compatibility=a.compatibility)
    printer.one({"schema_version": version})


async def _bind(m: Client, a: Arguments, printer: Printer) -> None:
    version = await m.schemas.bind(
        a.tenant, a.topic, a.subject, part=a.part, schema_version=a.schema_version, refuse=not a.report
    )
    printer.one({"version": version})


async def _followers(m: Client, a: Arguments, printer: Printer) -> None:
    printer.many([one async for one in m.schemas.followers(a.tenant, a.subject)])


# --- users ---


def _add_users(verbs: Commands) -> None:
    parser = verbs.add("create", "make a user, with a password that is asked for", _create, _ask_twice)
    _user(parser)
    _mechanism(parser, "scram_sha_256")
    parser.add_argument("--superuser", action="store_true", help="who may do everything in its tenant")
    parser = verbs.add("set-password", "give a user another password; all else stays", _set_password, _ask_twice)
    _user(parser)
    _mechanism(parser, None)
    _user(verbs.add("check", "whether a password is that of a user; exit status 1 if not", _check, _ask))


def _user(parser: Parser) -> None:
    parser.add_argument("tenant", metavar="TENANT")
    parser.add_argument("user", metavar="USER")
    parser.add_argument(
        "--password-file", metavar="F", help="file whose first line is the password; - reads stdin; default: ask for it"
    )


def _mechanism(parser: Parser, default: str | None) -> None:
    known = typing.get_args(Mechanism)
    said = f"{', '.join(known)}; default {default or 'as it is'}"
    parser.add_argument("--mechanism", choices=known, default=default, metavar="M", help=said)
    parser.add_argument("--iterations", type=count, metavar="N", help="default: what suits the mechanism")


def _ask(a: Arguments) -> None:
    """Read the password, before a connection is opened. Raises ValueError."""
    if a.password_file is not None:
        a.password = _first_line(a.password_file)
    elif not sys.stdin.isatty():
        raise ValueError("there is no terminal to ask for the password: give --password-file")
    else:
        a.password = getpass.getpass("Password: ")


def _ask_twice(a: Arguments) -> None:
    _ask(a)
    if a.password_file is None and getpass.getpass("Again: ") != a.password:
        raise ValueError("the two passwords are not the same")


def _first_line(path: str) -> str:
    """Of a file, which no error names: who writes `--password WORD` has given a password instead."""
    try:
        with nullcontext(sys.stdin) if path == "-" else Path(path).open() as file:
            return file.readline().rstrip("\r\n")
    except OSError as error:
        raise ValueError(f"cannot read the file of --password-file: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError("cannot read the file of --password-file: it is no text") from None


async def _create(m: Client, a: Arguments, printer: Printer) -> None:
    version = await m.users.create(
        a.tenant, a.user, a.password, mechanism=a.mechanism, iterations=a.iterations, superuser=a.superuser
    )
    printer.one({"version": version})


async def _set_password(m: Client, a: Arguments, printer: Printer) -> None:
    await m.users.set_password(a.tenant, a.user, a.password, mechanism=a.mechanism, iterations=a.iterations)
    printer.one({"changed": True})


async def _check(m: Client, a: Arguments, printer: Printer) -> int:
    right = await m.users.check(a.tenant, a.user, a.password)
    printer.one({"right": right})
    return 0 if right else 1


# --- config ---


def _add_config(verbs: Commands) -> None:
    parser = _setting(verbs.add("set", f"set a setting, and keep its last {KEPT} values", _set))
    parser.add_argument("text", metavar="VALUE")
    _setting(verbs.add("unset", "take a setting away, and keep its last values", _set)).set_defaults(text=None)
    _setting(verbs.add("history", "the last values of a setting, the oldest first", _history))
    parser = verbs.add("effective", "what holds in some scopes, and which of them says so", _effective)
    parser.add_argument("scopes", nargs="+", type=_scope, metavar="KIND=SCOPE", help="as in topic=acme/orders")
    parser.add_argument("--name", action="append", dest="names", metavar="N", help="only this setting; may be repeated")
    verbs.hint("; these are settings of brokers: `metadctl settings` has those of nodes")


def _setting(parser: Parser) -> Parser:
    parser.add_argument("scope_kind", choices=_KINDS, metavar="KIND", help=", ".join(_KINDS))
    parser.add_argument("scope", metavar="SCOPE", help="its name, as in acme/orders; '': all of that kind")
    parser.add_argument("setting", metavar="NAME")
    return parser


_KINDS = typing.get_args(ScopeKind)


def _scope(text: str) -> tuple[str, str]:
    """Read an argument."""
    kind, _, scope = text.partition("=")
    if kind not in _KINDS:
        raise argparse.ArgumentTypeError(f"not KIND=SCOPE, where KIND is one of {', '.join(_KINDS)}: {text}")
    return kind, scope


async def _set(m: Client, a: Arguments, printer: Printer) -> None:
    printer.one({"changed": await m.config.set(a.scope_kind, a.scope, a.setting, a.text)})


async def _history(m: Client, a: Arguments, printer: Printer) -> None:
    found, now_ms = await m.config.history(a.scope_kind, a.scope, a.setting), int(time.time() * 1_000)
    rows = [{"value": one.value, "changed": people.when(one.changed_at_ms, now_ms)} for one in found]
    printer.many([one._asdict() for one in found], rows)


async def _effective(m: Client, a: Arguments, printer: Printer) -> None:
    found = await m.config.effective(a.scopes, a.names)
    printer.many([{"name": name, **one._asdict()} for name, one in sorted(found.items())])
