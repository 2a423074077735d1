"""``metadctl import etcd`` and ``metadctl import zookeeper``, and their phases.

Exit status: 0 when done, 1 if both sides differ or something fails, 2 for a wrong command line.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import ssl
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

import msgspec

from metad_client import Client, MetadError, MissingExtraError
from metad_client.cli import people
from metad_client.cli.grammar import LIMIT_DEFAULT, Arguments, Command, Commands, Parser, count, limit, seconds
from metad_client.cli.printing import Printer, plain
from metad_wire.policy.rates import Pace
from metad_wire.program.extras import advice

from .source import ALWAYS, CARRIED_WITHOUT, NOT_CARRIED, ImportFailedError, Names, Source, SourceError
from .target import STATES, Target

if TYPE_CHECKING:
    from .copying import Copy, Progress
    from .verifying import Found

_RATE: Final = 10_000
_QUIET_S: Final = 5.0
_DEADLINE_S: Final = 600.0
_AGAIN_S: Final = 1.0
_LISTED_MAX: Final = 100_000
"""Rows that were refused are remembered, so that none is listed twice; above this number some may be."""
_KINDS: Final = {
    "etcd": ("http://HOST:2379, or https; more with commas between them", "--prefix", "keys that begin with P"),
    "zookeeper": ("HOST:2181; more with commas between them", "--path", "a znode and all below it, as in /a/b"),
}


def add_import_sources(commands: Commands) -> None:
    """Add the systems behind ``metadctl import``."""
    for kind in _KINDS:
        verbs = commands.group(kind, f"import keys of {kind} in phases: prepare, copy, verify, cut", "prepare")
        about = "count what there is, and what cannot be carried over; writes nothing"
        _common(verbs.add("prepare", about, _prepare, _check), kind)
        about = "copy all rows and what changes meanwhile; the same words again go on"
        copy = _common(verbs.add("copy", about, _copy, _check), kind)
        copy.add_argument("--follow", action="store_true", help="go on with what changes, until Ctrl-C")
        _copying(copy)
        verify = _common(verbs.add("verify", "compare both sides; exit status 1 if they differ", _verify, _check), kind)
        _others(verify)
        limit(verify, "show at most N differences")
        cut = _common(verbs.add("cut", "the writers stop: catch up, compare, and end the import", _cut, _check), kind)
        _copying(cut)
        _others(cut)
        cut.add_argument(
            "--quiet",
            type=seconds,
            default=_QUIET_S,
            metavar="S",
            help=f"the source must not have changed for so long; default {_QUIET_S:g} s",
        )
        cut.add_argument(
            "--deadline",
            type=seconds,
            default=_DEADLINE_S,
            metavar="S",
            help=f"give up if it still changes after this long; default {_DEADLINE_S:g} s",
        )
        about = "give an import up, or allow a new one after a cut: drop its state, and no key that was copied"
        _common(verbs.add("forget", about, _forget, _check), kind)


def _common(parser: Parser, kind: str) -> Parser:
    where, option, what = _KINDS[kind]
    parser.set_defaults(kind=kind)
    parser.add_argument("--from", dest="source", required=True, metavar="WHERE", help=where)
    parser.add_argument(option, dest="prefix", required=True, metavar="P", help=what)
    parser.add_argument("--into", required=True, metavar="NAMESPACE", help="namespace of the keys in metad")
    parser.add_argument(
        "--split",
        type=count,
        default=0,
        metavar="N",
        help="the first N parts of the path belong to the namespace: NAMESPACE/part; default 0",
    )
    parser.add_argument("--strip", action="store_true", help="keys do without P; they keep it otherwise")
    parser.add_argument(
        "--refused", metavar="F", help="rows not carried over, as JSON Lines; default import-PHASE-refused.jsonl"
    )
    parser.add_argument("--user", default="", metavar="NAME", help=f"user of {kind}")
    parser.add_argument("--password-file", metavar="F", help="file with the password of the user")
    parser.add_argument("--source-ca", metavar="F", help="PEM file: the authority of the source to trust")
    parser.add_argument("--source-cert", metavar="F", help="PEM file: our certificate at the source")
    parser.add_argument("--source-key", metavar="F", help="PEM file: the key of that certificate")
    return parser


def _copying(parser: Parser) -> None:
    parser.add_argument(
        "--rate", type=count, default=_RATE, metavar="ROWS", help=f"rows a second; default {_RATE}, 0: no bound"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="also keys that a client of metad has changed; reads everything again"
    )


def _others(parser: Parser) -> None:
    parser.add_argument(
        "--allow-others", action="store_true", help="keys of the namespace that only metad has are no difference"
    )


def _check(a: Arguments) -> None:
    """Read what the grammar cannot. Raises ValueError."""
    if bool(a.user) != bool(a.password_file):
        raise ValueError("--user and --password-file go together")
    if bool(a.source_cert) != bool(a.source_key):
        raise ValueError("--source-cert and --source-key go together")
    if a.kind == "zookeeper" and a.source_cert and not a.source_ca:
        raise ValueError("--source-cert needs --source-ca")
    if not a.into:
        raise ValueError("--into is empty")
    if a.into == STATES or a.into.startswith(f"{STATES}."):
        raise ValueError(f"--into: {STATES} is where imports keep how far they are")
    if a.kind == "zookeeper":
        a.prefix = a.prefix.rstrip("/") or "/"
        if not a.prefix.startswith("/") or "//" in a.prefix:
            raise ValueError(f"--path is not as in /a/b: {a.prefix}")
    else:
        from .gateway import Endpoint

        a.source = [Endpoint.of(url) for url in a.source.split(",")]
    try:
        a.password = Path(a.password_file).read_text().rstrip("\n") if a.password_file else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--password-file: {error}") from None


def _names(a: Arguments) -> Names:
    below = a.prefix if a.kind == "etcd" or a.prefix == "/" else f"{a.prefix}/"
    return Names(below, a.prefix, a.into, a.split, a.strip)


@contextlib.asynccontextmanager
async def _source(a: Arguments) -> AsyncIterator[Source]:
    """The source, connected."""
    source: Source
    try:
        if a.kind == "etcd":
            from .etcd import Etcd
            from .gateway import Gateway

            gateway = Gateway(a.source, _tls(a), a.timeout)
            source = Etcd(gateway, a.prefix, a.user, a.password)
        else:
            from .zookeeper import ZooKeeper

            digest = f"{a.user}:{a.password}" if a.user else ""
            tls = {"use_ssl": True, "ca": a.source_ca, "certfile": a.source_cert, "keyfile": a.source_key}
            source = ZooKeeper(a.source, a.prefix, a.timeout, digest, **(tls if a.source_ca else {}))
    except ModuleNotFoundError as error:
        raise MissingExtraError(advice(error, "import")) from None
    try:
        await source.open()
        yield source
    finally:
        await source.close()


def _tls(a: Arguments) -> ssl.SSLContext | None:
    if not a.source_ca and not a.source_cert:
        return None
    try:
        tls = ssl.create_default_context(cafile=a.source_ca)
        if a.source_cert:
            tls.load_cert_chain(a.source_cert, a.source_key)
    except OSError as error:
        raise ImportFailedError(f"the files of --source-ca, --source-cert and --source-key: {error}") from None
    return tls


class Phase(Protocol):
    """A phase with both sides open; returns the exit status, None for 0."""

    __name__: str

    async def __call__(self, run: _Run, printer: Printer) -> int | None:
        """Run it, and print how it ended."""


# --- what is shown ----------------------------------------------------------------------------------------------------


class _Shown:
    """A bar on a terminal that says how far something is, and lines of what an operator must see."""

    def __init__(self, a: Arguments) -> None:
        self._bar: Any = None
        if sys.stderr.isatty() and not a.json:
            with contextlib.suppress(ImportError):  # the base install does without rich
                console = importlib.import_module("rich.console").Console(stderr=True)
                progress = importlib.import_module("rich.progress")
                columns = [progress.TextColumn("{task.description}"), progress.BarColumn()]
                columns += [progress.MofNCompleteColumn(), progress.TimeElapsedColumn()]
                self._bar = progress.Progress(*columns, console=console, transient=True)
                self._task = self._bar.add_task("connects", total=None)
                self._bar.start()

    def tell(self, at: Progress) -> None:
        """Show how far it is."""
        if self._bar is not None:
            self._bar.update(self._task, description=at.what, completed=at.done, total=at.of or None)

    def say(self, line: str) -> None:
        """Show a line that stays."""
        out: Callable[[str], Any] = sys.stderr.write if self._bar is None else self._bar.console.out
        out(f"metadctl: {line}" + ("\n" if self._bar is None else ""))
        sys.stderr.flush()

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()


class _Refusals:
    """The file of the rows that are not carried over: ``code``, ``why``, ``key`` (or ``key_base64``), and what else is
    known. It is made for the first of them."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.codes: Counter[str] = Counter()
        self._at = Path(path)
        self.goes_on = False
        """It is the file of an import that has begun before: what it has stays."""
        self._file: IO[str] | None = None
        self._listed: set[int] = set()

    def add(self, key: bytes, code: str, more: dict[str, Any]) -> None:
        """List a row, once."""
        mark = hash((key, code))
        if mark in self._listed:
            return
        if len(self._listed) < _LISTED_MAX:
            self._listed.add(mark)
        self.codes[code] += 1
        try:
            if self._file is None:
                self._file = self._at.open("a" if self.goes_on else "w", encoding="utf-8")
            line = plain({"code": code, "why": NOT_CARRIED[code], "key": key, **more})
            self._file.write(msgspec.json.encode(line).decode() + "\n")
        except OSError as error:
            raise ImportFailedError(f"{self.path}: {error.strerror or error}") from None

    def rows(self) -> list[dict[str, Any]]:
        """How many there are of each code."""
        return [{"code": code, "keys": keys, "why": NOT_CARRIED[code]} for code, keys in sorted(self.codes.items())]

    def close(self) -> None:
        """Write what is left."""
        if self._file is not None:
            self._file.close()


class _Run:
    """One command: both sides, and what is shown."""

    def __init__(
        self, m: Client, a: Arguments, source: Source, target: Target, shown: _Shown, refusals: _Refusals
    ) -> None:
        self.m, self.a, self.source, self.target, self.shown, self.refusals = m, a, source, target, shown, refusals

    def copy(self) -> Copy:
        """What copies."""
        from .copying import Copy

        pace = Pace(self.a.rate)
        return Copy(self.source, self.target, self.refusals.add, pace, self.shown.tell, self.shown.say)

    def print(self, printer: Printer, row: dict[str, Any], tables: list[tuple[str, list[dict[str, Any]]]]) -> None:
        """Print the end of a phase. Tables are for people, who do not see lists among the facts."""
        self.shown.close()
        self.refusals.close()
        row |= {"not_carried": self.refusals.rows(), "refused_file": self.refusals.path if self.refusals.codes else ""}
        facts = {name: value for name, value in row.items() if value not in ("", []) and not isinstance(value, list)}
        if "bytes" in facts:
            facts["bytes"] = people.size(facts["bytes"])
        if "stopped_ms" in facts:
            facts["writers were stopped"] = people.duration(facts.pop("stopped_ms"))
        printer.document(row, facts, [*tables, ("not carried over", self.refusals.rows())])


def _phase(work: Phase) -> Command:
    """Make a command of a phase: it opens the source, and closes all in any case."""

    async def command(m: Client, a: Arguments, printer: Printer) -> int | None:
        shown, refusals = _Shown(a), _Refusals(a.refused or f"import-{work.__name__.strip('_')}-refused.jsonl")
        target = Target(m, a.kind, _names(a), refusals.add, overwrite=getattr(a, "overwrite", False))
        try:
            await target.load()
            if work.__name__ in ("_verify", "_cut") and target.phase == "new":
                raise ImportFailedError(f"nothing of {a.prefix} was copied into {a.into} yet: begin with `copy`")
            async with _source(a) as source:
                return await work(_Run(m, a, source, target, shown, refusals), printer)
        finally:
            shown.close()
            refusals.close()

    return command


# --- phases -----------------------------------------------------------------------------------------------------------


@_phase
async def _prepare(run: _Run, printer: Printer) -> None:
    """Read both sides, and write nothing."""
    from .copying import Progress

    head = await run.source.head()
    tally: Counter[str] = Counter()
    without: Counter[str] = Counter()
    spaces: set[str] = set()
    done = 0
    async for rows in run.source.rows(head, b"", thorough=True):
        carried = []
        for row in rows:
            if code := run.target.names.fault(row, run.target.ledger):
                run.refusals.add(row.key, code, {"bytes": row.size, "revision": row.revision})
                continue
            carried.append(row.key.decode())
            tally["bytes"] += row.size
            without.update(row.notes)
        spaces |= {run.target.names.target(key).namespace for key in carried}
        tally["carried"] += len(carried)
        tally["in_metad"] += sum(kv is not None for kv in await run.target.there(carried))
        done += len(rows)
        run.shown.tell(Progress("rows", done, head.keys))
    lost = [{"code": code, "keys": keys, "why": CARRIED_WITHOUT[code]} for code, keys in sorted(without.items())]
    counted: dict[str, Any] = {
        "import": run.target.id,
        "phase": run.target.phase,
        "revision": head.revision,
        "keys": done,
        "carried": tally["carried"],
        "bytes": tally["bytes"],
        "namespaces": len(spaces),
        "in_metad": tally["in_metad"],
        "carried_without": lost,
        "always": ALWAYS[run.source.kind],
    }
    run.print(printer, counted, [("carried over without", lost)])


@_phase
async def _copy(run: _Run, printer: Printer) -> None:
    """Copy and follow."""
    from .copying import once

    copy = run.copy()

    async def copied() -> None:
        run.refusals.goes_on = run.target.phase != "new"
        await run.target.begin(run.source.identity)
        state = run.target.state
        if run.target.overwrite:
            state.phase, state.cursor = "copying", b""
        if state.phase == "copying":
            await copy.snapshot()
        run.target.overwrite = False  # what a client writes from now on is a conflict again
        if run.a.follow:
            run.shown.say(f"all up to revision {run.target.state.revision} is here; follows, until Ctrl-C")
            await copy.follow(lambda seen: False)
        await copy.follow(once(await run.source.head()))

    try:
        await (_lasting(copied, run) if run.a.follow else copied())
    except asyncio.CancelledError:
        if run.a.follow:  # a signal is how it ends
            run.print(printer, _copied(run, copy), [])
        raise
    run.print(printer, _copied(run, copy), [])


async def _lasting(work: Callable[[], Awaitable[None]], run: _Run) -> None:
    """Go on over a source or a metad that is away: from where the state says, which another run may have taken over."""
    said = False
    while True:
        try:
            return await work()
        except MetadError as error:
            if isinstance(error, ImportFailedError) and not isinstance(error, SourceError):
                raise
            if not said:
                run.shown.say(f"nothing is copied: {' '.join(str(error).split())}; tries again")
            said = True
            await asyncio.sleep(_AGAIN_S)


def _copied(run: _Run, copy: Copy) -> dict[str, Any]:
    state = run.target.state
    return {
        "import": run.target.id,
        "phase": state.phase,
        "revision": state.revision,
        "keys": state.known,
        "written": copy.counts.written,
        "deleted": copy.counts.deleted,
        "same": copy.counts.same,
        "conflicts": copy.counts.conflicts,
        "snapshots": copy.snapshots,
    }


@_phase
async def _verify(run: _Run, printer: Printer) -> int:
    """Compare."""
    from .verifying import Verify

    if run.target.phase == "done":
        raise ImportFailedError("this import is done: metad has the newer data, and the source is no measure any more")
    found = await Verify(run.m, run.source, run.target, run.refusals.add, run.shown.tell).run()
    _print_found(run, printer, found, {})
    return 1 if found.count(run.a.allow_others) else 0


def _print_found(run: _Run, printer: Printer, found: Found, more: dict[str, Any]) -> None:
    shown = [*map(plain, found.differences)]
    shown = shown[: getattr(run.a, "limit", LIMIT_DEFAULT) or None]
    row = {"import": run.target.id, "phase": run.target.phase, **more, **plain(found), "differences": shown}
    run.print(printer, row, [("differences", shown)])


@_phase
async def _cut(run: _Run, printer: Printer) -> int:
    """End the import."""
    from .verifying import Cut, DiffersError, Verify

    if run.target.phase != "done":
        if run.target.phase != "following":
            raise ImportFailedError("`copy` has not finished: it must come first")
        await run.target.begin(run.source.identity)
        copy = run.copy()
        if run.target.overwrite:
            run.target.state.phase, run.target.state.cursor = "copying", b""
            await copy.snapshot()
        verify = Verify(run.m, run.source, run.target, run.refusals.add, run.shown.tell)
        cut = Cut(run.m, run.source, run.target, copy, verify, run.refusals.add, run.shown.say)
        try:
            done = await cut.run(quiet_s=run.a.quiet, deadline_s=run.a.deadline, others=run.a.allow_others)
        except DiffersError as error:
            _print_found(run, printer, error.found, {})
            raise
        await run.target.forget(state=False)
        _print_found(run, printer, done.found, {"stopped_ms": done.stopped_ms, "leased_copied": done.leased})
        return 0
    await run.target.forget(state=False)  # what a cut that was killed has left
    run.shown.say("this import was cut over before")
    run.print(printer, {"import": run.target.id, "phase": "done", "stopped_ms": run.target.state.stopped_ms}, [])
    return 0


async def _forget(m: Client, a: Arguments, printer: Printer) -> None:
    """Drop the state. The source may be gone by now."""
    target = Target(m, a.kind, _names(a), lambda *_: None)
    await target.load()
    phase = target.phase
    if phase == "new":
        raise ImportFailedError(f"there is no import of {a.prefix} into {a.into}")
    printer.one({"import": target.id, "phase": phase, "forgotten_notes": await target.forget(state=True)})
