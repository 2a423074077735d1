"""``metadctl``: reads and writes records, and manages a cluster, from a shell.

Exit status: 0 when done, 1 with one line on stderr if metad (or the network) reports an error, 2 for a wrong command
line. That of ``metadctl status --check`` is the verdict: 0 ok, 1 warning, 2 critical, 3 unknown. Without ``--check``
it is 0 whatever the verdict is, or 3 if no node could be asked.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from metad_wire import __version__
from metad_wire.cluster import MapReply, NodeRecord
from metad_wire.messages import SessionProperties
from metad_wire.tables import TABLES
from metad_wire.transport import Transport, split_endpoint
from metad_wire.transport.credentials import TlsFiles, client_files

from ..client import Client, connect
from ..connections.transport_choice import transports_of
from ..endpoint import PORT_DEFAULT, as_url, parse_url, scheme_of
from ..errors import ConnectionLostError, MetadError, NotFoundError, UnknownMethodError
from ..options import Options
from . import brokers, issuing, leases, overview, retained, session_parts
from .plain import PlainCommands
from .printing import Printer
from .replacing import DEADLINE_S, Replacement
from .verdict import EXIT_STATUS, problems, verdict
from .view import ClusterView, view
from .watching import watch

Record = TypeVar("Record")
Arguments = argparse.Namespace
Command = Callable[[Client, Arguments, Printer], Awaitable[int | None]]
"""Returns the exit status; None means 0."""

WATCHED = sorted(name for name, table in TABLES.items() if table.shows)
LIST_LIMIT_DEFAULT = 1_000
STATUS_S = 2.0
LOOKS_AGAIN, LOOK_AGAIN_S = 4, 0.25
ELECTION_MS = 2_000
"""A group that has had no leader for less time than this is looked at again before that is reported."""

EPILOG = """\
examples:
  metadctl status
  metadctl status --check && echo all is well
  metadctl certs --out certs --nodes a,b,c --clients app --admins ops
  metadctl --endpoint metadq://10.0.0.1:7420 --certs certs status
  metadctl groups
  metadctl transfer data-0 node-2
  metadctl replace node-3 --wait
  metadctl put kv config greeting hello
  metadctl get kv config greeting --json
  metadctl put session acme device-1 --broker b1 --epoch 7 --payload subscriptions
  metadctl list sessions --tenant acme --prefix device-
  metadctl put subscription acme device-1 'alarms/#' --broker b1 --epoch 7 --qos 1
  metadctl get subscriptions acme device-1
  metadctl list wills --tenant acme
  metadctl put offset acme billing orders 0 42 --monotonic
  metadctl list offsets acme billing
  metadctl get generation acme billing
  metadctl watch kv --tenant config --from snapshot
  metadctl put generation acme billing 0 --expected 9007199254740991
"""


def main(argv: Sequence[str] | None = None, *, transport: Transport | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if "offline" in arguments:
        return int(arguments.offline(arguments))
    encrypted = bool(arguments.certs or arguments.tls_ca or arguments.tls_cert or arguments.tls_key)
    url = as_url(arguments.endpoint, encrypted=encrypted)
    try:
        parse_url(url)
        options = _options(arguments, scheme_of(url))
        if transport is None:
            transports_of(scheme_of(url), options)  # which says what it lacks
        _prepare(arguments)
    except UnicodeEncodeError:
        parser.error("an argument is not UTF-8")
    except ValueError as error:
        parser.error(str(error))
    try:
        status = asyncio.run(_run(arguments, url, options, transport))
        sys.stdout.flush()
        return status
    except MetadError as error:
        kind = (
            f"{error.name.replace('_', ' ')}: " if error.code > NotFoundError.code else ""
        )  # a short answer of the server
        sys.stderr.write(f"metadctl: {kind}{' '.join(str(error).split())}\n")
        return 1
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return 130
    return 0


def _prepare(arguments: Arguments) -> None:
    """Check what the grammar cannot express, and read values as bytes: stdin is read before a connection is opened."""
    if vars(arguments).get("prefix") and vars(arguments).get("tenant", "") is None:
        raise ValueError("--prefix needs --tenant")
    for name, text in vars(arguments).items():
        if name in ("value", "payload") and text is not None:
            setattr(arguments, name, sys.stdin.buffer.read() if text == "-" else text.encode())
        elif isinstance(text, str):
            text.encode()


def _options(arguments: Arguments, scheme: str) -> Options:
    """Make the client's options. Raises ValueError."""
    tls: TlsFiles | None = None
    if arguments.certs:
        tls = client_files(arguments.certs, arguments.name or "", administers=True)
    if arguments.tls_ca or arguments.tls_cert or arguments.tls_key:
        given = {"certificate": arguments.tls_cert, "key": arguments.tls_key, "ca": arguments.tls_ca}
        known = {"ca": ""} if tls is None else msgspec.structs.asdict(tls)
        tls = TlsFiles(**{**known, **{field: value for field, value in given.items() if value}})
        if not tls.ca:
            raise ValueError("--tls-ca is missing: it names the trusted authority")
    if scheme != "metad" and tls is None:
        raise ValueError(f"{scheme}:// needs --certs DIR, or at least --tls-ca F")
    return Options(
        deadline_s=arguments.timeout,
        connect_timeout_s=0,  # a person waits: report an unreachable node at once
        handshake_timeout_s=min(3.0, arguments.timeout),
        client_name="metadctl",
        tls=tls,
        credentials=_token(arguments.token_file) if arguments.token_file else b"",
    )


def _token(path: str) -> bytes:
    try:
        return (sys.stdin if path == "-" else Path(path).open()).readline().strip().encode()
    except OSError as error:
        raise ValueError(f"cannot read the token in {path}: {error.strerror}") from None


async def _run(arguments: Arguments, url: str, options: Options, transport: Transport | None) -> int:
    command: Command = arguments.command
    printer = Printer(arguments.json)
    try:
        async with connect(url, options, transport=transport) as client:
            return await command(client, arguments, printer) or 0
    except MetadError as error:
        if command is not _status:
            raise
        return _show_unknown(printer, error)


# --- commands ---


async def _status(m: Client, a: Arguments, printer: Printer) -> int:
    cluster = await _look(m, a)
    for _ in range(LOOKS_AGAIN):  # a leader that is being changed is gone for some milliseconds, and that is no alarm
        if not any(0 < group.leaderless_ms < ELECTION_MS for group in cluster.groups):
            break
        await asyncio.sleep(LOOK_AGAIN_S)
        cluster = await _look(m, a)
    if not cluster.answers:
        raise ConnectionLostError(next((node.error for node in cluster.nodes), "the map names no node"))
    found, via = problems(cluster), m.statistics().via
    judged = verdict(cluster, found)
    row = overview.status(cluster, via, judged, found)
    if a.check:
        printer.page(row, overview.summary(row, found))
        return EXIT_STATUS[judged]
    tables = [overview.node_table(cluster), overview.group_table(cluster)]
    printer.page(row, [*overview.summary(row, found), "", overview.facts(row)], tables)
    return 0


def _show_unknown(printer: Printer, error: MetadError) -> int:
    row = overview.unknown(" ".join(str(error).split()))
    printer.page(row, overview.summary(row, []))
    return EXIT_STATUS["unknown"]


async def _members(m: Client, a: Arguments, printer: Printer) -> None:
    printer.many(overview.members(await _look(m, a), m.statistics().via))


async def _links(m: Client, a: Arguments, printer: Printer) -> None:
    cluster = await _look(m, a)
    printer.page(overview.links(cluster), [], [overview.link_table(cluster)])


async def _groups(m: Client, a: Arguments, printer: Printer) -> None:
    cluster = await _look(m, a)
    printer.page(overview.groups(cluster), [], [overview.group_table(cluster)])


async def _transfer(m: Client, a: Arguments, printer: Printer) -> None:
    printer.one(await m.cluster.transfer(a.group, a.node))


async def _join(m: Client, a: Arguments, printer: Printer) -> None:
    printer.one(await m.cluster.join(NodeRecord(a.node, a.clients or "", a.peer, a.region)))


async def _leave(m: Client, a: Arguments, printer: Printer) -> None:
    printer.one(await m.cluster.leave(a.node, fewer=a.allow_fewer_replicas))


async def _replace(m: Client, a: Arguments, printer: Printer) -> None:
    printer.one(await Replacement(m, a.node, a.deadline).run(wait=a.wait))


async def _add_group(m: Client, a: Arguments, printer: Printer) -> None:
    printer.one(await m.cluster.add_group(a.kind))


async def _rebalance(m: Client, a: Arguments, printer: Printer) -> None:
    printer.one(await m.cluster.rebalance(replicas=a.replicas))


async def _look(m: Client, a: Arguments) -> ClusterView:
    """The map and the status of each node, combined. The wait for unreachable nodes is short, because a person is
    waiting."""
    try:
        known = await m.cluster.map()
    except UnknownMethodError:  # a server older than clusters
        known = MapReply(0, None, {})
    return view(known, await m.cluster.statuses(deadline_s=min(STATUS_S, a.timeout)))


async def _get_session(m: Client, a: Arguments, printer: Printer) -> None:
    session = await m.sessions.get(a.tenant, a.client_id)
    printer.one(_present(session, f"no session {a.tenant}/{a.client_id}"))


async def _get_offset(m: Client, a: Arguments, printer: Printer) -> None:
    offset = await m.offsets.fetch(a.tenant, a.group, a.topic, a.partition)
    printer.one(_present(offset, f"no offset {a.tenant}/{a.group}/{a.topic}/{a.partition}"))


async def _get_kv(m: Client, a: Arguments, printer: Printer) -> None:
    printer.one(_present(await m.kv.get(a.namespace, a.key), f"no key {a.namespace}/{a.key}"))


async def _put_session(m: Client, a: Arguments, printer: Printer) -> None:
    properties = None
    if a.payload is not None or a.expiry is not None:
        properties = SessionProperties(a.expiry or 0, a.payload or b"")
    taken = await m.sessions.takeover(
        a.broker, a.epoch, a.tenant, a.client_id, clean_start=a.clean_start, properties=properties
    )
    owner = taken.previous
    printer.one(
        {
            "session_present": taken.session_present,
            "previous_broker": owner.broker if owner is not None else None,
            "previous_epoch": owner.broker_epoch if owner is not None else None,
        }
    )


async def _put_offset(m: Client, a: Arguments, printer: Printer) -> None:
    await m.offsets.commit(
        a.tenant,
        a.group,
        a.topic,
        a.partition,
        a.offset,
        generation=a.generation,
        expected=a.expected,
        metadata=a.metadata,
        monotonic=a.monotonic,
    )
    printer.one({"committed": a.offset})


async def _get_generation(m: Client, a: Arguments, printer: Printer) -> None:
    printer.one({"generation": await m.offsets.generation(a.tenant, a.group)})


async def _put_generation(m: Client, a: Arguments, printer: Printer) -> None:
    await m.offsets.reset_generation(a.tenant, a.group, a.expected, a.generation)
    printer.one({"generation": a.generation})


async def _delete_group(m: Client, a: Arguments, printer: Printer) -> None:
    printer.one({"offsets_deleted": await m.offsets.delete_group(a.tenant, a.group)})


async def _put_kv(m: Client, a: Arguments, printer: Printer) -> None:
    version = await m.kv.put(a.namespace, a.key, a.value, expected_version=a.expected_version)
    printer.one({"version": version})


async def _delete_session(m: Client, a: Arguments, printer: Printer) -> None:
    with _absent(f"no session {a.tenant}/{a.client_id}"):
        await m.sessions.delete(a.tenant, a.client_id)
    printer.one({"deleted": True})


async def _delete_offset(m: Client, a: Arguments, printer: Printer) -> None:
    with _absent(f"no offset {a.tenant}/{a.group}/{a.topic}/{a.partition}"):
        await m.offsets.delete(a.tenant, a.group, a.topic, a.partition)
    printer.one({"deleted": True})


async def _delete_kv(m: Client, a: Arguments, printer: Printer) -> None:
    with _absent(f"no key {a.namespace}/{a.key}"):
        await m.kv.delete(a.namespace, a.key, expected_version=a.expected_version)
    printer.one({"deleted": True})


async def _list_sessions(m: Client, a: Arguments, printer: Printer) -> None:
    printer.many(await _first(m.sessions.list(a.tenant, a.prefix, a.broker, page_size=_page(a)), a.limit))


async def _list_offsets(m: Client, a: Arguments, printer: Printer) -> None:
    printer.many(await _first(m.offsets.list(a.tenant, a.group, a.prefix, page_size=_page(a)), a.limit))


async def _list_groups(m: Client, a: Arguments, printer: Printer) -> None:
    printer.many(await _first(m.offsets.groups(a.tenant, a.prefix, page_size=_page(a)), a.limit))


async def _list_kv(m: Client, a: Arguments, printer: Printer) -> None:
    printer.many(await _first(m.kv.scan(a.namespace, a.prefix, page_size=_page(a)), a.limit))


def _present(record: Record | None, complaint: str) -> Record:
    if record is None:
        raise NotFoundError(complaint)
    return record


@contextlib.contextmanager
def _absent(complaint: str) -> Iterator[None]:
    try:
        yield
    except NotFoundError:
        raise NotFoundError(complaint) from None


def _page(a: Arguments) -> int:
    """One record more than is shown tells whether there are more."""
    return min(1_000, a.limit + 1) if a.limit else 1_000


async def _first(records: AsyncIterator[Record], limit: int) -> list[Record]:
    found: list[Record] = []
    async with contextlib.aclosing(records):  # type: ignore[type-var]
        async for record in records:
            if limit and len(found) == limit:
                sys.stderr.write(f"metadctl: the first {limit} are shown; --limit 0 shows all\n")
                break
            found.append(record)
    return found


# --- command line ---


def build_parser() -> argparse.ArgumentParser:
    """The grammar. Options that every command has may stand before or after it."""
    parser = argparse.ArgumentParser(
        prog="metadctl",
        description="Read and write the records of metad, and manage a cluster.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"metadctl {__version__}")
    _common(parser, f"127.0.0.1:{PORT_DEFAULT}", False, 10.0, None)
    common = argparse.ArgumentParser(add_help=False)
    _common(common, argparse.SUPPRESS, argparse.SUPPRESS, argparse.SUPPRESS, argparse.SUPPRESS)
    verbs = parser.add_subparsers(metavar="COMMAND", required=True)

    def verb(name: str, help: str) -> Callable[[str, str, Command], argparse.ArgumentParser]:
        kinds = verbs.add_parser(name, help=help).add_subparsers(metavar="KIND", required=True)

        def kind(name: str, help: str, command: Command) -> argparse.ArgumentParser:
            leaf = kinds.add_parser(name, help=help, parents=[common])
            leaf.set_defaults(command=command)
            return leaf

        return kind

    def plain(name: str, help: str, command: Command) -> argparse.ArgumentParser:
        leaf = verbs.add_parser(name, help=help, parents=[common])
        leaf.set_defaults(command=command)
        return leaf

    status = plain("status", "whether all is well, and the state of the nodes and groups", _status)
    status.add_argument(
        "--check",
        action="store_true",
        help="print only the verdict and the problems; exit status 0 ok, 1 warning, 2 critical, 3 unknown",
    )
    plain("members", "the nodes of the cluster", _members)
    plain("links", "the connections between the nodes", _links)
    groups = plain("groups", "the groups and their leaders; or change them", _groups)
    changes = groups.add_subparsers(metavar="CHANGE")
    add = changes.add_parser("add", help="add a group, without slots yet", parents=[common])
    add.add_argument("--kind", required=True, choices=("data", "offset"))
    add.set_defaults(command=_add_group)
    rebalance = changes.add_parser("rebalance", help="spread slots, replicas and leaders evenly", parents=[common])
    rebalance.add_argument(
        "--replicas", type=_count, default=0, metavar="N", help="replicas that every group should have from now on"
    )
    rebalance.set_defaults(command=_rebalance)
    brokers.add(plain, common)
    transfer = plain("transfer", "make a node the preferred leader of a group", _transfer)
    transfer.add_argument("group", metavar="GROUP", help="name of the group, as in data-0")
    transfer.add_argument("node", metavar="NODE")
    join = plain("join", "add a node; a node with [cluster] join set does this by itself", _join)
    join.add_argument("node", metavar="NODE")
    join.add_argument("--peer", required=True, type=_endpoint, metavar="HOST:PORT", help="address for other nodes")
    join.add_argument("--clients", type=_endpoint, metavar="HOST:PORT", help="address for clients")
    join.add_argument("--region", default="", help="region of the node")
    leave = plain("leave", "move the replicas of a node to others; it ends when nothing needs it any more", _leave)
    leave.add_argument("node", metavar="NODE")
    leave.add_argument(
        "--allow-fewer-replicas",
        action="store_true",
        help="go on if groups then have fewer replicas than the cluster wants",
    )

    replace = plain("replace", "let a node that has lost its disk leave, and say how to start the new one", _replace)
    replace.add_argument("node", metavar="NODE")
    replace.add_argument("--wait", action="store_true", help="end when every group has all its replicas again")
    replace.add_argument(
        "--deadline",
        type=_seconds,
        default=DEADLINE_S,
        metavar="S",
        help=f"give up after this long; default {DEADLINE_S:g} s",
    )

    certs = plain("certs", "issue certificates for a fleet: authority, nodes, clients, administrators", _status)
    certs.set_defaults(offline=issuing.certs)
    certs.add_argument(
        "--out", required=True, metavar="DIR", help="directory for the files; an authority in it is reused"
    )
    certs.add_argument("--nodes", default="", metavar="A,B,C", help="node ids")
    certs.add_argument("--clients", default="", metavar="A,B", help="names of clients")
    certs.add_argument("--admins", default="", metavar="A,B", help="names of clients that may change the cluster")
    certs.add_argument("--brokers", default="", metavar="A,B", help="names of clients that serve other brokers")
    certs.add_argument(
        "--hosts", default="", metavar="H,H", help="host names and addresses of nodes, for clients that check these"
    )
    token = plain("token", "create a token for a client; its hash goes into a file for the nodes", _status)
    token.set_defaults(offline=issuing.token)
    token.add_argument("name", metavar="NAME", help="name of the client")
    token.add_argument(
        "--file", required=True, metavar="F", help="[security] tokens_file of the nodes; a line is added"
    )

    watching = plain("watch", "print each change of a table's records, until Ctrl-C", watch)
    watching.add_argument("table", metavar="TABLE", choices=WATCHED, help=", ".join(WATCHED))
    watching.add_argument("--tenant", help="only records of this tenant; of kv: of this namespace")
    watching.add_argument("--prefix", default="", help="only records whose next field has this prefix; needs --tenant")
    watching.add_argument(
        "--from",
        dest="begin",
        default="now",
        metavar="TOKEN",
        help="where to begin: now (the default); snapshot: with the records as they are; or the token that an earlier "
        "watch has printed at its end",
    )

    get = verb("get", "read one record")
    _session_key(get("session", "an MQTT session", _get_session))
    _offset_key(get("offset", "a consumer group's offset", _get_offset))
    _kv_key(get("kv", "a key", _get_kv))
    _consumer_group(get("generation", "the generation of a consumer group", _get_generation))

    put = verb("put", "write one record")
    session = put("session", "take over a session, or create it", _put_session)
    _session_key(session)
    session.add_argument("--broker", required=True, help="the new owner of the session")
    session.add_argument("--epoch", required=True, type=_count, help="epoch of the broker")
    session.add_argument("--payload", help="data that the broker stores with it; - reads stdin")
    session.add_argument("--expiry", type=_count, metavar="S", help="expiry interval in seconds")
    session.add_argument("--clean-start", action="store_true", help="forget the stored properties")
    offset = put("offset", "commit an offset", _put_offset)
    _offset_key(offset)
    offset.add_argument("offset", metavar="OFFSET", type=_count)
    offset.add_argument("--generation", type=_count, default=0, help="generation of the consumer group")
    offset.add_argument(
        "--expected", type=int, metavar="N", help="only if the current offset is N; -1: only if there is none"
    )
    offset.add_argument("--metadata", default="", help="a note stored with the offset")
    offset.add_argument("--monotonic", action="store_true", help="refuse a lower offset")
    kv = put("kv", "write a key", _put_kv)
    _kv_key(kv)
    kv.add_argument("value", metavar="VALUE", help="the value; - reads stdin")
    _expected_version(kv, "only if the current version is N; 0: only if the key is absent")
    generation = put("generation", "set a consumer group's generation, even to a lower one", _put_generation)
    _consumer_group(generation)
    generation.add_argument("generation", metavar="GENERATION", type=_count, help="the new generation; 0: none")
    generation.add_argument(
        "--expected", required=True, type=_count, metavar="N", help="only if the current generation is N"
    )

    delete = verb("delete", "delete one record")
    _session_key(delete("session", "an MQTT session", _delete_session))
    _offset_key(delete("offset", "a consumer group's offset", _delete_offset))
    _consumer_group(delete("group", "all offsets of a consumer group, and its generation", _delete_group))
    kv = delete("kv", "a key", _delete_kv)
    _kv_key(kv)
    _expected_version(kv, "only if the current version is N")

    listing = verb("list", "read many records")
    sessions = listing("sessions", "by tenant and client id", _list_sessions)
    sessions.add_argument("--tenant", help="only sessions of this tenant")
    sessions.add_argument("--prefix", default="", help="only client ids with this prefix; needs --tenant")
    sessions.add_argument("--broker", help="only sessions that this broker owns")
    _limit(sessions)
    offsets = listing("offsets", "of one consumer group", _list_offsets)
    _consumer_group(offsets)
    offsets.add_argument("--prefix", default="", help="only topics with this prefix")
    _limit(offsets)
    groups = listing("groups", "the consumer groups of a tenant, with their generations", _list_groups)
    groups.add_argument("tenant", metavar="TENANT")
    groups.add_argument("--prefix", default="", help="only groups with this prefix")
    _limit(groups)
    keys = listing("kv", "of one namespace", _list_kv)
    keys.add_argument("namespace", metavar="NS")
    keys.add_argument("--prefix", default="", help="only keys with this prefix")
    _limit(keys)

    leases.add(get, put, delete)
    for parser_of_list in leases.add_lists(listing, _first, _page):
        _limit(parser_of_list)

    retained.add(get, put, delete)
    _limit(retained.add_list(listing, _first, _page))

    session_parts.add(get, put, delete)
    for parts in session_parts.add_lists(listing, _first, _page):
        _limit(parts)

    for table in TABLES.values():
        if table.plain is not None:
            commands = PlainCommands(table)
            commands.add(get, put, delete)
            _limit(commands.add_list(listing, _first, _page))
    return parser


def _common(parser: argparse.ArgumentParser, endpoint: Any, as_json: Any, timeout: Any, nothing: Any) -> None:
    parser.add_argument(
        "--endpoint",
        default=endpoint,
        metavar="HOST:PORT",
        help=f"or SCHEME://HOST:PORT[,HOST:PORT...]; default 127.0.0.1:{PORT_DEFAULT}. SCHEME: metad (TCP in clear "
        "text), metads (TCP with TLS; the default with certificates), metadq (QUIC), metad+auto (chosen by the path)",
    )
    parser.add_argument("--certs", default=nothing, metavar="DIR", help="directory written by `metadctl certs`")
    parser.add_argument(
        "--as",
        dest="name",
        default=nothing,
        metavar="NAME",
        help="name of the certificate in --certs to use; default its administrator, or else its client",
    )
    parser.add_argument("--tls-ca", default=nothing, metavar="F", help="PEM file: the authority to trust")
    parser.add_argument("--tls-cert", default=nothing, metavar="F", help="PEM file: our certificate")
    parser.add_argument("--tls-key", default=nothing, metavar="F", help="PEM file: the key of the certificate")
    parser.add_argument("--token-file", default=nothing, metavar="F", help="file with our token; - reads stdin")
    parser.add_argument("--json", action="store_true", default=as_json, help="print one JSON document")
    parser.add_argument(
        "--timeout", type=_seconds, default=timeout, metavar="S", help="give up after this long; default 10 s"
    )


def _session_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tenant", metavar="TENANT")
    parser.add_argument("client_id", metavar="CLIENT")


def _consumer_group(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tenant", metavar="TENANT")
    parser.add_argument("group", metavar="GROUP")


def _offset_key(parser: argparse.ArgumentParser) -> None:
    _consumer_group(parser)
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("partition", metavar="PARTITION", type=_count)


def _kv_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("namespace", metavar="NS")
    parser.add_argument("key", metavar="KEY")


def _expected_version(parser: argparse.ArgumentParser, help: str) -> None:
    parser.add_argument("--expected-version", type=_count, metavar="N", help=help)


def _limit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--limit",
        type=_count,
        default=LIST_LIMIT_DEFAULT,
        metavar="N",
        help=f"show at most N records, 0 for all; default {LIST_LIMIT_DEFAULT}",
    )


def _count(text: str) -> int:
    number = int(text)
    if not 0 <= number < 1 << 63:
        raise argparse.ArgumentTypeError(f"not between 0 and 2**63: {text}")
    return number


def _endpoint(text: str) -> str:
    try:
        split_endpoint(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= 3600:
        raise argparse.ArgumentTypeError(f"not between 0 and 3600 seconds: {text}")
    return seconds
