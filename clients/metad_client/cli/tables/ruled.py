"""The commands of families beside list, get, put and delete: those of the SDK's verbs that have rules."""

from __future__ import annotations

from collections.abc import Collection

from ...client import Client
from ...families.topics import Resize
from ..grammar import Arguments, Commands, count
from ..printing import Printer
from . import declared


def add_families(commands: Commands, words: Collection[str] | None) -> None:
    """Add the commands of the tables in the code, as :func:`declared.add_families` does, with those of rules."""
    verbs = declared.add_families(commands, words)
    if (topics := verbs.get("topic")) is not None:
        _add_topics(topics)


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
