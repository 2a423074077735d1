"""``metadctl``: reads and writes records, and manages a cluster, from a shell.

Exit status: 0 when done, 1 with one line on stderr if metad (or the network) reports an error, 2 for a wrong command
line, 130 or 143 if SIGINT or SIGTERM ended it. That of ``metadctl status --check`` is the verdict: 0 ok, 1 warning,
2 critical, 3 unknown, also if a file of our own cannot be used. Without ``--check`` it is 0 whatever the verdict is, or
3 if no node could be asked. With ``--wait`` it is 0 once the verdict is as wanted, and otherwise as with ``--check``.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from metad_wire.cluster import ClusterMap, NodeRecord
from metad_wire.families import KNOWN
from metad_wire.operator.authority import LEAF_DAYS
from metad_wire.program.build import build
from metad_wire.program.output import decode_arguments, escape_unprintable, print_nowhere, reader_may_leave
from metad_wire.program.running import EXIT_TERMINATED, run_async
from metad_wire.tables.broker import STATES, Broker
from metad_wire.transport import Transport
from metad_wire.transport.credentials import TlsFiles, client_files

from ..client import Client, connect
from ..connections.transport_choice import token_in, transports_of
from ..endpoint import as_url, parse_url, scheme_of
from ..errors import ConnectionLostError, MetadError, NotFoundError
from ..options import Options
from . import busy, groups, issuing, overview, people
from .grammar import Arguments, Command, Commands, Usage, check_prefix, endpoint, moment, seconds
from .lamps import events, top
from .looking import DEADLINE_S, STATUS_S, add_wait, is_electing, look, wait_until
from .nodes import settings
from .printing import Printer, in_line
from .replacing import Replacement
from .shell import completion, contexts
from .tables import (
    access,
    assignments,
    audit,
    brokers,
    declared,
    features,
    leases,
    records,
    retained,
    ruled,
    sessions,
    wills,
)
from .transfer import importing
from .verdict import CODES, EXIT_STATUS, Backup, Problem, Verdict, lines, problems, too_old, verdict
from .view import ClusterView
from .watching import watch


class Family(Protocol):
    """A module that adds the commands of one kind of record."""

    def add(self, commands: Commands) -> None:
        """Add the commands."""


FAMILIES: Final[tuple[Family, ...]] = (
    events,
    top,
    settings,
    groups,
    brokers,
    assignments,
    access,
    audit,
    features,
    sessions,
    wills,
    retained,
    leases,
    declared,
    records,
    importing,
    contexts,
)
"""In the order of ``metadctl --help``."""

PATHS: Final = frozenset(
    {
        *(
            "certs",
            "tls_ca",
            "tls_cert",
            "tls_key",
            "token_file",
            "password_file",
            "out",
            "file",
            "where",
            "scratch",
            "directory",
        ),
        *("refused", "source_ca", "source_cert", "source_key"),
    }
)
"""Arguments that name files."""
WATCHED = sorted(name for name, table in KNOWN.items() if table.shows)
TIMEOUT_S: Final = 10.0
"""Where the command line says nothing, and the command has no other."""
LOOKS_AGAIN, LOOK_AGAIN_S = 4, 0.25
_BACKUPS_READ = 10  # lines at a time: the newest tells

EPILOG = """\
examples:
  metadctl status
  metadctl status --check && echo all is well
  metadctl status --wait OK --timeout 60s
  metadctl certs --out certs --nodes a,b,c --clients app --admins ops
  metadctl --endpoint metadq://10.0.0.1:7420 --certs certs status
  metadctl groups
  metadctl groups explain data-0
  metadctl groups merge data-3 --into data-0 --wait
  metadctl node drain node-2 --wait
  metadctl transfer data-0 node-2
  metadctl replace node-3 --wait
  metadctl brokers --state active
  metadctl sessions --tenant acme --prefix device- --away
  metadctl sessions get acme device-1
  metadctl sessions count --json
  metadctl wills --unclaimed
  metadctl retained --tenant acme --filter 'site/+/door'
  metadctl leases --namespace config
  metadctl groups consumer get acme billing
  metadctl audit --since 1h --kind refused
  metadctl events --since 2h
  metadctl put kv config greeting hello
  metadctl get kv config greeting --json
  metadctl tables declare devices.json
  metadctl topics put tenant=acme topic=orders partitions=4
  metadctl topics list acme
  metadctl topics assign acme orders
  metadctl topics resize acme orders --partitions 8
  metadctl topics partitions acme orders
  metadctl partitions explain acme orders topic 0
  metadctl plans drain empty-b1 b1
  metadctl schemas register acme orders-value orders.avsc
  metadctl tenants describe acme
  metadctl settings set all limits.slow_ms 500ms
  metadctl features hold checked-entries
  metadctl quotas set tenant/acme --items-per-s 5000 --sessions 100000
  metadctl users create acme alice --password-file secret
  metadctl config effective tenant=acme topic=acme/orders
  metadctl put offset acme billing orders 0 42 --monotonic
  metadctl backup s3://backups/metad --follow
  metadctl restore s3://backups/metad --at 30min
  metadctl watch kv --tenant config --from snapshot

exit status: 0 done, 1 refused, 2 wrong command line, 130 and 143 interrupted;
  of `status --check` the verdict: 0 ok, 1 warning, 2 critical, 3 unknown

$METADCTL_ENDPOINT, $METADCTL_CONTEXT and $METADCTL_CONFIG (default
~/.config/metadctl/config.toml) say where the cluster is; flags win over them, and
they over the file, which has endpoint and certs, as, tls_ca, tls_cert, tls_key or
token_file of each [contexts.NAME], and which context counts without a name.

A listing shows 1,000 records, and a line on stderr says if there are more. People
see a time with its distance from now by the clock of their machine.

--json prints one document. Its keys stay; new ones may come. Records have the
fields of wire/TABLES.md, times in Unix milliseconds (..._ms); bytes that are no
text are in a key that ends in _base64. A listing is an object with the records
in a key of the command's name (`sessions`, `brokers`, `groups`, ...) and `more`,
that of `list KIND` an array. Others:
  brokers fence         broker, state, epoch, unfenced_groups
  sessions get          session (null if only a will is left), subscriptions,
                        inflight, inflight_count, wills_due
  sessions count        sessions, more, and brokers: broker, connected, away
  sessions endings      endings: one for each order and group. phase: 0 ends
                        sessions, 1 drops wills, 2 deletes retained messages
  leases get            lease, keys (their names), more
  groups explain        groups: group, kind, slots, slot_ranges, leader, preferred,
                        wanted_replicas, why, next, replicas, moves
  groups consumer get   tenant, group, generation, state, members, offsets, more
"""


def main(argv: Sequence[str] | None = None, *, transport: Transport | None = None) -> int:
    """Run one command; returns the exit status."""
    escape_unprintable()
    argv = sys.argv[1:] if argv is None else argv
    parser = build_parser(argv)
    with reader_may_leave():
        arguments = parser.parse_args(argv)
    try:
        decode_arguments(arguments, PATHS)
    except UnicodeError:
        arguments.complain("an argument is not UTF-8")
    if arguments.timeout is None:
        arguments.timeout = getattr(arguments, "timeout_default", TIMEOUT_S)
    if "offline" in arguments:
        return _printed(lambda: int(arguments.offline(arguments)))
    try:
        url = url_of(arguments, os.environ)
        parse_url(url)
        options = options_of(arguments, scheme_of(url))
        if transport is None:
            transports_of(scheme_of(url), options)  # which says what it lacks
        _prepare(arguments)
    except ValueError as error:
        if arguments.command is not _status or not arguments.check:
            arguments.complain(str(error))
        reason = str(error)  # an exit status of 2 would say that the cluster is unwell
        return _printed(lambda: _show_unknown(Printer(arguments.json), reason))
    said = getattr(arguments, "if_interrupted", "")
    return _printed(lambda: run_async(_run(arguments, url, options, transport)), said)


def _printed(command: Callable[[], int], said: str = "") -> int:
    """Run a command whose output goes to stdout; returns the exit status. ``said``: of what it has begun, if it is
    interrupted."""
    try:
        with reader_may_leave():
            return command()
        return 0
    except MetadError as error:
        kind = (
            f"{error.name.replace('_', ' ')}: " if error.code > NotFoundError.code else ""
        )  # a short answer of the server
        sys.stderr.write(f"metadctl: {kind}{in_line(' '.join(str(error).split()))}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"metadctl: cannot write the output: {error.strerror}\n")
        print_nowhere()
        return 1
    except (KeyboardInterrupt, SystemExit) as end:
        if isinstance(end, SystemExit) and end.code != EXIT_TERMINATED:
            raise
        if said:
            sys.stderr.write(f"metadctl: interrupted: {said}\n")
        return 130 if isinstance(end, KeyboardInterrupt) else EXIT_TERMINATED


def _prepare(arguments: Arguments) -> None:
    """Check what the grammar cannot express, and read values as bytes: stdin is read before a connection is opened."""
    if arguments.verify is not None:
        arguments.verify(arguments)
    for name, text in vars(arguments).items():
        if name in ("value", "payload") and text is not None:
            setattr(arguments, name, sys.stdin.buffer.read() if text == "-" else text.encode())


def url_of(arguments: Arguments, environment: Mapping[str, str]) -> str:
    """The endpoint with its scheme. What the command line leaves open is filled in. Raises ValueError."""
    contexts.complete(arguments, environment)
    encrypted = bool(arguments.certs or arguments.tls_ca or arguments.tls_cert or arguments.tls_key)
    return as_url(arguments.endpoint, encrypted=encrypted)


def options_of(arguments: Arguments, scheme: str, client_name: str = "metadctl") -> Options:
    """Make the client's options of those of :func:`add_connection`. Raises ValueError."""
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
    path = arguments.token_file or ""
    token = token_in(None if path == "-" else Path(path)) if path else b""
    return Options(
        deadline_s=arguments.timeout,
        # A person waits: report an unreachable node at once, unless it is waited for.
        connect_timeout_s=arguments.timeout if getattr(arguments, "wait", None) in EXIT_STATUS else 0,
        handshake_timeout_s=min(3.0, arguments.timeout),
        client_name=client_name,
        tls=tls,
        credentials=token if path == "-" else b"",
        credentials_file="" if path == "-" else path,
    )


async def _run(arguments: Arguments, url: str, options: Options, transport: Transport | None) -> int:
    command: Command = arguments.command
    printer = Printer(arguments.json)
    arguments.until_s = time.monotonic() + arguments.timeout
    try:
        async with connect(url, options, transport=transport) as client:
            return await command(client, arguments, printer) or 0
    except MetadError as error:
        if command is not _status:
            raise
        return _show_unknown(printer, str(error))


# --- commands ---


async def _status(m: Client, a: Arguments, printer: Printer) -> int:
    cluster, found, brokers, backup = await _judged(m, a)
    via = m.statistics().via
    judged = verdict(cluster, found, a.despite)
    row = overview.status(cluster, via, judged, found, None if brokers is None else _states(brokers), backup)
    in_time = EXIT_STATUS[judged] <= EXIT_STATUS[a.wait] if a.wait else not a.check
    if a.check:
        printer.page(row, overview.summary(row, found))
        return 0 if in_time else EXIT_STATUS[judged]
    tables = [overview.node_table(cluster), overview.group_table(cluster)]
    printer.page(
        row,
        [*overview.summary(row, found), "", overview.facts(row), *overview.room(cluster), *overview.life(row)],
        tables,
    )
    return 0 if in_time else EXIT_STATUS[judged]


async def _judged(m: Client, a: Arguments) -> tuple[ClusterView, list[Problem], list[Broker] | None, Backup | None]:
    """The cluster, its problems, and the brokers and the newest backup as far as they are known: at once, or with
    ``--wait`` when the verdict is as good as that, or the time is over. Raises ConnectionLostError if no node answers.
    """
    told: set[tuple[str, str]] = set()
    while True:
        left_s = a.until_s - time.monotonic() if a.wait else 0.0
        try:
            cluster = await _looked(m, a)
            if not cluster.answers:
                raise ConnectionLostError(next((node.error for node in cluster.nodes), "the map names no node"))
        except MetadError:
            if left_s <= 0:
                raise
        else:
            brokers, (backup, old) = await asyncio.gather(_brokers(m, a), _newest_backup(m, a))
            found = problems(cluster, brokers or (), old)
            if left_s <= 0 or EXIT_STATUS[verdict(cluster, found, a.despite)] <= EXIT_STATUS[a.wait]:
                return cluster, found, brokers, backup
            now = {(one.code, one.subject) for one in found}
            if now != told and not a.json:
                sys.stderr.writelines(f"metadctl: waits: {in_line(line)}\n" for line in lines(found))
            told = now
        await asyncio.sleep(min(LOOK_AGAIN_S, left_s))


async def _looked(m: Client, a: Arguments) -> ClusterView:
    cluster = await look(m, a)
    for _ in range(LOOKS_AGAIN):
        if not is_electing(cluster) or time.monotonic() + LOOK_AGAIN_S > a.until_s:
            break
        await asyncio.sleep(LOOK_AGAIN_S)
        cluster = await look(m, a)
    return cluster


async def _brokers(m: Client, a: Arguments) -> list[Broker] | None:
    """All brokers; None if nobody says so at once."""
    deadline_s = min(STATUS_S, a.timeout)
    try:
        async with asyncio.timeout(deadline_s):
            return [broker async for broker in m.brokers.list(deadline_s=deadline_s)]
    except (TimeoutError, MetadError):
        return None


async def _newest_backup(m: Client, a: Arguments) -> tuple[Backup | None, list[Problem]]:
    """The newest backup that the audit trail knows, and whether it is older than ``--backup-older-than``. Who may not
    read the trail is told of that only if it is asked for."""
    if a.check and a.backup_since is None:
        return None, []
    now_ms, why, deadline_s = time.time_ns() // 1_000_000, "", min(STATUS_S, a.timeout)
    newest: Backup | None = None
    lines = m.audit.list(
        kind="admin", method_prefix="backup.end", newest_first=True, page_size=_BACKUPS_READ, deadline_s=deadline_s
    )
    try:
        async with asyncio.timeout(deadline_s):
            async for line in lines:
                if line.outcome == "done" and line.names:
                    newest = Backup.of(line, now_ms)
                    break
    except (TimeoutError, MetadError) as error:
        why = " ".join(str(error).split()) or "no answer in time"
    if a.backup_since is None:
        return newest, []
    return newest, too_old(newest, now_ms - a.backup_since, why)


def _states(brokers: Iterable[Broker]) -> dict[str, int]:
    """How many brokers are in each state."""
    states = Counter(broker.state for broker in brokers)
    return {state: states[state] for state in STATES if states[state]}


def _show_unknown(printer: Printer, reason: str) -> int:
    row = overview.unknown(" ".join(reason.split()))
    printer.page(row, overview.summary(row, []))
    return EXIT_STATUS["unknown"]


async def _members(m: Client, a: Arguments, printer: Printer) -> None:
    cluster = await look(m, a)
    rows = overview.members(cluster, m.statistics().via)
    if a.node is not None:
        rows = [row for row in rows if row["node"] == a.node]
        if not rows:
            raise NotFoundError(f"{a.node} is no member of the cluster")
    if a.wide or a.node is not None:
        printer.page(rows, [], [overview.member_details(row) for row in rows])
    else:
        printer.page(rows, [], [overview.member_table(cluster, problems(cluster))])


async def _links(m: Client, a: Arguments, printer: Printer) -> None:
    cluster = await look(m, a)
    printer.page(overview.links(cluster), [], [overview.link_table(cluster)])


async def _transfer(m: Client, a: Arguments, printer: Printer) -> None:
    printer.one(await m.cluster.transfer(a.group, a.node))
    node = next((node for node in (await look(m, a)).nodes if node.node == a.node), None)
    if node is not None and not node.is_up and not node.connected:
        sys.stderr.write(f"{a.node} is {node.state}: it leads {a.group} once it is back\n")


async def _drain(m: Client, a: Arguments, printer: Printer) -> None:
    done = await m.cluster.drain(a.node)

    def leads(_: ClusterMap, cluster: ClusterView) -> str:
        led = [group.name for group in cluster.groups if group.leader == a.node]
        return f"{a.node} leads {people.listed(led)}" if led else ""

    if a.wait:
        await wait_until(m, a, done.version, leads)
    printer.one(done)


async def _undrain(m: Client, a: Arguments, printer: Printer) -> None:
    done = await m.cluster.drain(a.node, undo=True)

    def lacks(_: ClusterMap, cluster: ClusterView) -> str:
        preferring = [one for one in cluster.groups if one.record is not None and one.record.preferred == a.node]
        led = [group.name for group in preferring if group.leader != a.node]
        return f"{a.node} does not lead {people.listed(led)} yet" if led else ""

    if a.wait:
        await wait_until(m, a, done.version, lacks)
    printer.one(done)


async def _join(m: Client, a: Arguments, printer: Printer) -> None:
    printer.one(await m.cluster.join(NodeRecord(a.node, a.clients or "", a.peer, a.region)))


async def _leave(m: Client, a: Arguments, printer: Printer) -> None:
    printer.one(await m.cluster.leave(a.node, fewer=a.allow_fewer_replicas))


async def _replace(m: Client, a: Arguments, printer: Printer) -> None:
    done = await Replacement(m, a.node, a.deadline, printer.lines).run(wait=a.wait)
    if a.json or done["config"] is None:
        printer.one(done if a.json else {name: value for name, value in done.items() if name != "config"})
    else:  # stdout is the configuration of the new node, to be put into a file
        sys.stderr.write(f"metadctl: {done['state']}\n")


# --- command line ---


def build_parser(words: Collection[str] | None = None) -> argparse.ArgumentParser:
    """The grammar. Options that every command has may stand before or after it. ``words``: of a command line; what none
    of them names may lack arguments."""
    parser = Usage(
        prog="metadctl",
        description="Read and write the records of metad, and manage a cluster.",
        epilog=f"{declared.families_page()}\n\n{EPILOG}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"metadctl {build()}")
    _common(parser, False, None, None)
    common = argparse.ArgumentParser(add_help=False)
    _common(common, argparse.SUPPRESS, argparse.SUPPRESS, argparse.SUPPRESS)
    commands = Commands(parser, common, metavar="COMMAND", required=True)
    _add_cluster(commands)
    for family in FAMILIES:
        family.add(commands)
    completion.add(commands, build_parser, PATHS)
    _add_backups(commands)
    _add_imports(commands)
    ruled.add_families(commands, words)
    return parser


def _add_backups(commands: Commands) -> None:
    """Add the commands of a package that comes with the server, and needs what that needs."""
    if find_spec("metad_backup") is not None:
        importlib.import_module("metad_backup.commands").add(commands)


def _add_imports(commands: Commands) -> None:
    """Add the commands of a package that reads other systems, and comes with the server."""
    if find_spec("metad_import") is not None:
        about = "bring keys of another system into the cluster while both serve"
        imports = commands.behind("import") or commands.group("import", about, "")
        importlib.import_module("metad_import.commands").add_import_sources(imports)


def _add_cluster(commands: Commands) -> None:
    plain = commands.add
    _add_status(plain)
    plain("links", "the connections between the nodes", _links)
    busy.add(commands)
    transfer = plain("transfer", "make a node the preferred leader of a group", _transfer)
    transfer.add_argument("group", metavar="GROUP", help="name of the group, as in data-0")
    transfer.add_argument("node", metavar="NODE")
    join = plain("join", "add a node; a node with [cluster] join set does this by itself", _join)
    join.add_argument("node", metavar="NODE")
    join.add_argument("--peer", required=True, type=endpoint, metavar="HOST:PORT", help="address for other nodes")
    join.add_argument("--clients", type=endpoint, metavar="HOST:PORT", help="address for clients")
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
        type=seconds,
        default=DEADLINE_S,
        metavar="S",
        help=f"give up after this long; default {DEADLINE_S:g} s",
    )
    nodes, verbs = commands.family("node", "the nodes; or have one lead nothing, and stay", _members)
    nodes.set_defaults(node=None, wide=False)
    drain = verbs.add("drain", "have a node lead nothing, also after a restart; its replicas stay", _drain)
    undrain = verbs.add("undrain", "let a node lead its share again", _undrain)
    for parser, done in ((drain, "it leads nothing"), (undrain, "it leads what the map prefers it for")):
        parser.add_argument("node", metavar="NODE")
        add_wait(parser, done)

    _add_certs(commands)
    said = "create a token for a client; its hash goes into a file for the nodes"
    token = commands.offline("token", said, issuing.token)
    token.add_argument("name", metavar="NAME", help="name of the client")
    token.add_argument(
        "--file", required=True, metavar="F", help="[security] tokens_file of the nodes; a line is added"
    )

    watching = plain("watch", "print each change of a table's records, until Ctrl-C", watch, check_prefix)
    watching.add_argument("table", metavar="TABLE", help=f"{', '.join(WATCHED)}, or one that was declared")
    watching.add_argument("--tenant", help="only records of this tenant; of kv: of this namespace; of broker: this one")
    watching.add_argument("--prefix", default="", help="only records whose next field has this prefix; needs --tenant")
    watching.add_argument(
        "--from",
        dest="begin",
        default="now",
        metavar="TOKEN",
        help="where to begin: now (the default); snapshot: with the records as they are; or the token that an earlier "
        "watch has printed at its end",
    )


def _add_status(plain: Any) -> None:
    status = plain("status", "whether all is well, and the state of the nodes and groups", _status)
    status.add_argument(
        "--check",
        action="store_true",
        help="print only the verdict and the problems; exit status 0 ok, 1 warning, 2 critical, 3 unknown",
    )
    status.add_argument(
        "--wait",
        type=_wanted,
        metavar="OK|WARN",
        help="until the verdict is as good as that, or --timeout is over; exit status 0, else as of --check",
    )
    status.add_argument(
        "--despite",
        action="append",
        default=[],
        choices=CODES,
        metavar="CODE",
        help="the verdict does not count this problem, as versions_differ during an upgrade; may be repeated",
    )
    status.add_argument(
        "--backup-older-than",
        dest="backup_since",
        type=moment,
        metavar="AGE",
        help="a problem if no backup was begun since then, as 26h; needs the right to read the audit trail",
    )
    members = plain("members", "the nodes of the cluster", _members)
    members.add_argument("node", nargs="?", metavar="NODE", help="all that is known of this one")
    members.add_argument("--wide", action="store_true", help="all that is known of each")


def _wanted(text: str) -> Verdict:
    """Read an argument: a verdict to wait for."""
    found: dict[str, Verdict] = {"OK": "ok", "WARN": "warning", "WARNING": "warning"}
    if text.upper() not in found:
        raise argparse.ArgumentTypeError(f"neither OK nor WARN: {text}")
    return found[text.upper()]


def _add_certs(commands: Commands) -> None:
    said = "issue certificates for a fleet: authority, nodes, clients, administrators"
    certs = commands.offline("certs", said, issuing.certs)
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
    certs.add_argument("--days", type=int, default=LEAF_DAYS, metavar="N", help=f"until they end; default {LEAF_DAYS}")
    certs.add_argument("what", nargs="?", choices=["list"], help="instead: those in DIR, and when each ends")


def _common(parser: argparse.ArgumentParser, as_json: Any, timeout: Any, nothing: Any) -> None:
    add_connection(parser, nothing)
    parser.add_argument("--json", action="store_true", default=as_json, help="print one JSON document")
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=timeout,
        metavar="S",
        help=f"give up if nothing is answered for this long; default {TIMEOUT_S:g} s, of backup, restore and tenants "
        "move 60 s",
    )


def add_connection(parser: argparse.ArgumentParser, nothing: Any = None) -> None:
    """Add the options that say where the cluster is, and who we are. ``nothing``: what each is if it is not given."""
    parser.add_argument(
        "--endpoint",
        default=nothing,
        metavar="HOST:PORT",
        help=f"or SCHEME://HOST:PORT[,HOST:PORT...]; default ${contexts.ENDPOINT}, then that of the context, then "
        f"{contexts.ENDPOINT_DEFAULT}. SCHEME: metad (TCP in clear "
        "text), metads (TCP with TLS; the default with certificates), metadq (QUIC), metad+auto (chosen by the path)",
    )
    parser.add_argument(
        "--context",
        default=nothing,
        metavar="NAME",
        help=f"a cluster of your file, see `metadctl contexts`; default ${contexts.CONTEXT}, then that of the file",
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
