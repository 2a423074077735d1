"""The commands of families beside list, get, put and delete: those of the SDK's verbs that have rules."""

from __future__ import annotations

import typing
from collections.abc import Collection

from ...client import Client
from ...errors import InvalidRequestError
from ...families.schemas import Compatibility, Kind
from ...families.topics import Resize
from ..grammar import Arguments, Commands, Parser, count
from ..printing import Printer
from . import declared


def add_families(commands: Commands, words: Collection[str] | None) -> None:
    """Add the commands of the tables in the code, as :func:`declared.add_families` does, with those of rules."""
    verbs = declared.add_families(commands, words)
    for name, add in {"topic": _add_topics, "schema": _add_schemas}.items():
        if name in verbs:
            add(verbs[name])


# --- topics ---


def _add_topics(verbs: Commands) -> None:
    parser = verbs.add("resize", "let topics grow or shrink; write queues shrink before read queues", _resize)
    parser.add_argument("tenant", metavar="TENANT")
    parser.add_argument("topics", nargs="+", metavar="TOPIC")
    parser.add_argument("--partitions", type=count, metavar="N")
    parser.add_argument("--read-queues", type=count, metavar="N", help="of each broker, to consume from")
    parser.add_argument("--write-queues", type=count, metavar="N", help="of each broker, to publish to")
    parser.add_argument("--fewer-partitions", action="store_true", help="partitions may go, with what is in them")


async def _resize(m: Client, a: Arguments, printer: Printer) -> None:
    numbers = (a.partitions, a.read_queues, a.write_queues, a.fewer_partitions)
    done = await m.topics.resize_many([Resize(a.tenant, topic, *numbers) for topic in a.topics])
    names = ("tenant", "topic", "partitions", "read_queues", "write_queues")
    printer.many([{name: getattr(one, name) for name in names} for one in done if one is not None])
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
