"""``metadctl backup``, ``metadctl restore`` and ``metadctl tenants move``."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from metad_client import Client, InvalidRequestError, MetadError, connect
from metad_client.cli import people
from metad_client.cli.grammar import Arguments, Commands, Parser, count, limit, moment, seconds
from metad_client.cli.printing import Printer, Progress, progress
from metad_client.endpoint import as_url
from metad_wire.tables.assignment import Resource

from .logs import ANSWER_S

if TYPE_CHECKING:
    from .copies import Copy
    from .moving import Progress as Moving
    from .repository import BackupError, Manifest, Repository

_MIB: Final = 1024 * 1024
_RATE_MIB: Final = 64
_WHERE: Final = "directory, or URL that fsspec reaches"


def add(commands: Commands) -> None:
    """Add the commands."""
    verbs = commands.group("backup", "back up the cluster while it serves; look into backups", "take")
    take = verbs.add("take", "take a backup: what `metadctl backup DIR` does", _take)
    take.set_defaults(if_interrupted="the next backup copies only what is missing", timeout_default=ANSWER_S)
    _where(take)
    take.add_argument("--stale", action="store_true", help="of groups without a leader: what is there of them")
    _rate(take)
    take.add_argument(
        "--follow", action="store_true", help="then archive what is written, for `restore --at`, until Ctrl-C"
    )
    take.add_argument("--every", type=seconds, default=1.0, metavar="S", help="with --follow: how often; default 1 s")
    take.add_argument(
        "--unless-since", type=moment, metavar="T", help="with --follow: no new backup if there is one since then"
    )
    _offline(verbs, "list", "the backups of a repository", _list)
    verify = _one(_offline(verbs, "verify", "read a backup, and restore it into a node of this machine", _verify))
    verify.add_argument("--quick", action="store_true", help="only the checksums of its files")
    ls = _opened(_offline(verbs, "ls", "how many records each table has", _ls))
    ls.set_defaults(table="")
    cat = _opened(_offline(verbs, "cat", "the records of a table", _cat))
    cat.add_argument("table", metavar="TABLE")
    cat.add_argument("key", nargs="*", metavar="FIELD", help="only those whose key begins with these fields")
    limit(cat)
    find = _opened(_offline(verbs, "find", "records with a text in their key or value", _find))
    find.add_argument("text", metavar="TEXT")
    find.add_argument("--table", default="", metavar="TABLE", help="only in this one")
    limit(find)
    diff = _offline(verbs, "diff", "what two backups do not have in common", _diff)
    diff.add_argument("one", metavar="BACKUP", help="how its name or id begins")
    diff.add_argument("other", nargs="?", default="", metavar="BACKUP", help="default: the newest")
    diff.add_argument("--other-in", default="", metavar="DIR", help="the second one is in this repository")
    _scratch(diff)
    prune = _offline(verbs, "prune", "drop all backups but the newest, and what none needs", _prune)
    prune.add_argument("--keep", type=count, required=True, metavar="N", help="how many stay")
    restore = commands.add("restore", "put a backup into a new, empty cluster", _restore)
    restore.set_defaults(if_interrupted="the same command goes on, and --cancel gives it up", timeout_default=ANSWER_S)
    _opened(_where(restore)).add_argument(
        "--cancel",
        action="store_true",
        help="give up one that was not finished: the cluster is empty again, and serves",
    )


def _rate(parser: Parser) -> None:
    parser.add_argument(
        "--rate", type=count, default=_RATE_MIB, metavar="MIB", help=f"MiB a second; default {_RATE_MIB}, 0: no bound"
    )


def _where(parser: Parser) -> Parser:
    parser.add_argument("where", metavar="DIR", help=_WHERE)
    return parser


def _offline(verbs: Commands, name: str, about: str, work: Callable[[Arguments, Printer], int | None]) -> Parser:
    """Add a command that asks no cluster, and prints."""

    def offline(a: Arguments) -> int:
        return work(a, Printer(a.json)) or 0

    return _where(verbs.offline(name, about, offline))


def _one(parser: Parser) -> Parser:
    parser.add_argument("--backup", default="", metavar="B", help="how its name or id begins; default: the newest")
    _scratch(parser)
    return parser


def _scratch(parser: Parser) -> None:
    parser.add_argument(
        "--scratch",
        type=Path,
        metavar="DIR",
        help="where files are put meanwhile; default: as the system has it",
    )


def _opened(parser: Parser) -> Parser:
    _one(parser)
    parser.add_argument(
        "--at",
        type=moment,
        metavar="T",
        help="as of then, 30min ago or a time; needs what `backup --follow` archived",
    )
    return parser


def _repository(a: Arguments, *, create: bool = False) -> Repository:
    from .repository import Repository

    try:
        return Repository(a.where, create=create)
    except OSError as error:
        raise _broken(a, error) from None


def _broken(a: Arguments, error: OSError) -> BackupError:
    from .repository import BackupError

    return BackupError(f"{a.where}: {error.strerror or error}")


@contextlib.contextmanager
def _copy(a: Arguments, line: Progress, repository: Repository, manifest: Manifest) -> Iterator[Copy]:
    from .copies import opened

    def tell(what: str, done: int, of: int) -> None:
        line.say(f"{what}: {done} of {of}")

    try:
        with opened(repository, manifest, getattr(a, "at", None), scratch=a.scratch, tell=tell) as copy:
            line.end()
            if copy.ends_ms:
                ends = people.when(copy.ends_ms, time.time_ns() // 1_000_000)
                sys.stderr.write(f"metadctl: nothing was archived after {ends}: this is the state of then\n")
            yield copy
    except OSError as error:
        raise _broken(a, error) from None


def _chosen(a: Arguments, repository: Repository) -> Manifest:
    """The backup that is named; or the newest, which is not behind the moment that is wanted."""
    from .repository import BackupError

    at_ms = getattr(a, "at", None)
    if a.backup or at_ms is None:
        return repository.backup(a.backup)
    found = [manifest for manifest in repository.backups() if manifest.taken_ms <= at_ms]
    if not found:
        raise BackupError(f"{a.where} has no backup that was begun before that")
    return found[-1]


# --- taken ------------------------------------------------------------------------------------------------------------


def _row(manifest: Manifest) -> dict[str, Any]:
    return {
        "backup": manifest.name,
        "bytes": manifest.bytes,
        "copied_bytes": manifest.copied_bytes,
        "files": sum(len(node.files) for node in manifest.nodes),
        "groups": len(manifest.groups),
        "nodes": [node.node_id for node in manifest.nodes],
        "stale": [group.group for group in manifest.groups if group.stale],
        "cluster_id": manifest.cluster_id,
    }


def _facts(manifest: Manifest) -> dict[str, Any]:
    """The same for people."""
    row = _row(manifest)
    sizes = {"bytes": people.size(manifest.bytes), "copied": people.size(manifest.copied_bytes)}
    return {"backup": row["backup"], **sizes, **{name: row[name] for name in ("files", "groups", "nodes", "stale")}}


async def _take(m: Client, a: Arguments, printer: Printer) -> None:
    from .taking import Progress as Taken
    from .taking import take

    repository = await asyncio.to_thread(_repository, a, create=True)
    recent = [one for one in repository.backups() if a.unless_since is not None and one.taken_ms >= a.unless_since]
    with progress(a.json) as line:
        if recent:
            manifest = recent[-1]
        else:

            def tell(at: Taken) -> None:
                shares = f"{people.size(at.bytes)} of {people.size(at.of_bytes)}"
                line.say(f"{at.files} of {at.of_files} files, {shares}")

            try:
                rate = a.rate * _MIB
                manifest = await take(m, repository, bytes_per_s=rate, stale=a.stale, wait_s=a.timeout, tell=tell)
            except OSError as error:
                raise _broken(a, error) from None
    if not a.follow:
        printer.one(_row(manifest), _facts(manifest))
        return
    printer.lines(f"backup {manifest.name}: {people.size(manifest.bytes)}; archives what follows, until Ctrl-C")
    await _follow(m, a, repository, manifest, printer)


async def _follow(m: Client, a: Arguments, repository: Repository, manifest: Manifest, printer: Printer) -> None:
    """Archive until a signal ends it; then say how much that was."""
    from .following import Followed, follow

    entries = size = 0
    said = False
    with progress(a.json) as line:

        def waits(error: MetadError) -> None:
            nonlocal said
            if not said:
                line.end()
                sys.stderr.write(f"metadctl: nothing is archived: {' '.join(str(error).split())}; tries again\n")
            said = True

        def tell(archived: Followed) -> None:
            nonlocal entries, size, said
            if said:
                sys.stderr.write("metadctl: archives again\n")
            said = False
            entries, size = archived
            line.say(f"{entries} entries, {people.size(size)} are archived", last=True)

        try:
            await follow(m, repository, manifest, every_s=a.every, wait_s=a.timeout, tell=tell, waits=waits)
        except asyncio.CancelledError:
            line.end()
            report = _row(manifest) | {"archived_entries": entries, "archived_bytes": size}
            printer.page(report, [f"{entries} entries, {people.size(size)} were archived"])
            raise


def _list(a: Arguments, printer: Printer) -> None:
    found = _repository(a).backups()
    printer.listing("backups", [_row(one) for one in found], False, [_facts(one) for one in found])


def _prune(a: Arguments, printer: Printer) -> None:
    gone, size = _repository(a).prune(a.keep)
    printer.one(
        {"dropped": gone, "freed_bytes": size}, {"dropped": ", ".join(gone) or None, "freed": people.size(size)}
    )


# --- looked into ------------------------------------------------------------------------------------------------------


def _verify(a: Arguments, printer: Printer) -> int:
    from .repository import BackupError
    from .verifying import verify

    repository = _repository(a)
    manifest = repository.backup(a.backup)
    with progress(a.json) as line:
        files = list({file.sha256: file for node in manifest.nodes for file in node.files}.values())
        for number, file in enumerate(files):
            line.say(f"checksums: {number} of {len(files)} files")
            for _ in repository.pieces(file):
                pass
        row: dict[str, Any] = {"backup": manifest.name, "files": len(files), "bytes": manifest.bytes}
        if not a.quick:
            with _copy(a, line, repository, manifest) as copy:
                found = asyncio.run(verify(copy, lambda rows: line.say(f"restored {rows} rows"), a.scratch))
            row |= {"rows": found.rows, "only_in_backup": found.only_first, "only_in_restored": found.only_second}
            row |= {"differ": found.differ}
            if found.only_first or found.only_second or found.differ:
                printer.one(row)
                first = found.differences[0]
                raise BackupError(f"restored, it is not the same: {first.what} in {first.table}, {_key(first.key)}")
    printer.one(row)
    return 0


def _ls(a: Arguments, printer: Printer) -> None:
    from .showing import Shown

    repository = _repository(a)
    with progress(a.json) as line, _copy(a, line, repository, _chosen(a, repository)) as copy:
        rows = [{"table": name, "records": number} for name, number in Shown(copy).counts().items()]
        printer.listing("tables", rows, False, rows)


def _cat(a: Arguments, printer: Printer) -> None:
    _records(a, printer, table=a.table, begin=a.key)


def _find(a: Arguments, printer: Printer) -> None:
    _records(a, printer, table=a.table, text=a.text)


def _records(a: Arguments, printer: Printer, **wanted: Any) -> None:
    from .showing import Shown

    repository = _repository(a)
    with progress(a.json) as line, _copy(a, line, repository, _chosen(a, repository)) as copy:
        records = Shown(copy).records(**wanted)
        found = list(records if not a.limit else islice(records, a.limit + 1))
    more = bool(a.limit) and len(found) > a.limit
    shown = found[: a.limit or None]
    rows = [{"table": one.table, "row": one.row, "key": one.key, "value": _value(one.value)} for one in shown]
    printer.listing("records", rows, more, [{**row["key"], **_flat(row)} for row in rows])
    if more:
        sys.stderr.write(f"metadctl: there are more than {a.limit}: --limit 0 shows all\n")


def _value(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    return {"value": value}


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """The value, without what the key says, as people read it."""
    fields = {name: value for name, value in row["value"].items() if name not in row["key"]}
    return {name: people.payload(value) if isinstance(value, bytes) else value for name, value in fields.items()}


def _key(fields: dict[str, Any]) -> str:
    """The key of a record in one cell, as people read it."""
    said = {name: people.payload(value) if isinstance(value, bytes) else value for name, value in fields.items()}
    return " ".join(f"{name}={value}" for name, value in said.items())


def _diff(a: Arguments, printer: Printer) -> int:
    from .repository import Repository
    from .showing import compared

    repository = _repository(a)
    others = Repository(a.other_in) if a.other_in else repository
    with (
        progress(a.json) as line,
        _copy(a, line, repository, repository.backup(a.one)) as one,
        _copy(a, line, others, others.backup(a.other)) as other,
    ):
        found = compared(one, other)
    names = {"only_first": "only in the first", "only_second": "only in the second", "differ": "differ"}
    counts = {
        "same": found.rows,
        "only_first": found.only_first,
        "only_second": found.only_second,
        "differ": found.differ,
    }
    rows = [one._asdict() for one in found.differences]
    shown = [
        {"what": names[one.what], "table": one.table, "row": one.row or None, "key": _key(one.key)}
        for one in found.differences
    ]
    printer.document(counts | {"differences": rows}, counts, [("differences", shown)])
    return 0 if not rows else 1


# --- restored ---------------------------------------------------------------------------------------------------------


async def _restore(m: Client, a: Arguments, printer: Printer) -> None:
    from .restoring import cancel, restore

    repository = await asyncio.to_thread(_repository, a)
    manifest = _chosen(a, repository)
    if a.cancel:
        printer.one({"groups": await cancel(m, manifest, wait_s=a.timeout)})
        return
    with progress(a.json) as line, _copy(a, line, repository, manifest) as copy:
        as_of = "" if a.at is None else f"@{a.at}"
        done = await restore(
            m, copy, as_of=as_of, wait_s=a.timeout, tell=lambda rows: line.say(f"{rows} rows are restored")
        )
    row = {"backup": manifest.name, **done._asdict(), "seconds": round(done.seconds, 1)}
    printer.one(row)


# --- tenants that move ------------------------------------------------------------------------------------------------

_SAID_OF_MOVES: Final = {
    "copy": "all is copied; what is written meanwhile follows",
    "freeze": "neither cluster serves the tenant",
}


def add_tenants(verbs: Commands) -> None:
    """Add the command beside those of tenants."""
    move = verbs.add("move", "move a tenant to another cluster, while both serve", _move_tenant)
    move.add_argument("tenant", metavar="TENANT")
    move.add_argument("--to", required=True, metavar="ENDPOINT", help="of the other cluster, as of --endpoint")
    move.add_argument("--to-certs", default="", metavar="DIR", help="as --certs, for the other cluster")
    move.add_argument("--to-as", default="", metavar="NAME", help="as --as, for the other cluster")
    move.add_argument("--to-token-file", default="", metavar="F", help="as --token-file, for the other cluster")
    _rate(move)
    move.set_defaults(
        if_interrupted="the same command goes on, and --cancel takes the move back", timeout_default=ANSWER_S
    )
    move.add_argument(
        "--cancel", action="store_true", help="give up a move, as long as the other cluster does not serve the tenant"
    )


async def _move_tenant(m: Client, a: Arguments, printer: Printer) -> None:
    from metad_client.cli.command_line import options_of

    from .moving import HasResourcesError, cancel, move

    there = argparse.Namespace(
        certs=a.to_certs,
        name=a.to_as,
        token_file=a.to_token_file,
        tls_ca="",
        tls_cert="",
        tls_key="",
        timeout=a.timeout,
    )
    try:
        url = as_url(a.to, encrypted=bool(a.to_certs))
        options = options_of(there, url.partition(":")[0])
    except (ValueError, OSError) as error:
        raise InvalidRequestError(f"--to: {error}") from None

    def tell(at: Moving) -> None:
        if (said := _SAID_OF_MOVES.get(at.what)) is None:
            line.say(f"{at.rows} rows have come", last=at.what == "done")
        elif not a.json:
            line.end()
            sys.stderr.write(f"metadctl: {said} ({at.rows} rows)\n")
            sys.stderr.flush()

    with progress(a.json) as line:
        async with connect(url, options) as to:
            if a.cancel:
                dropped = await cancel(m, to, a.tenant, address=a.to, wait_s=a.timeout)
                printer.one({"tenant": a.tenant, "cancelled": True, "dropped": dropped})
                return
            rate = a.rate * _MIB
            try:
                done = await move(m, to, a.tenant, address=a.to, bytes_per_s=rate, wait_s=a.timeout, tell=tell)
            except HasResourcesError as error:
                line.end()
                _print_resources(a, error.resources, error.count, printer)
                raise
    row = {"tenant": a.tenant, **done._asdict(), "seconds": round(done.seconds, 1)}
    printer.one(row)


def _print_resources(a: Arguments, found: Sequence[Resource], count: int, printer: Printer) -> None:
    """Print why a tenant cannot move."""
    names = ("resource", "kind", "partitions", "state")
    rows = [{name: getattr(one, name) for name in names} for one in found]
    refused = {"tenant": a.tenant, "moved": False, "reason": "has_resources"}
    printer.document(
        refused | {"resources": rows, "more": count > len(rows)},
        {"tenant": a.tenant, "moved": False, "resources": count},
        [("resources, which do not move", rows)],
    )
