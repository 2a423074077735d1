"""``metadctl import``: files with a record a line into a cluster that serves.

Each batch is read, compared with what is there, and written; how far each file was written is noted beside the files,
so an import that broke off goes on there. Nothing depends on the note: begun at the beginning, it finds what it has
written, and leaves that alone. What is refused is put, with the reason, into files beside them.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec

from metad_wire.errors import InvalidItemError
from metad_wire.messages import BATCH_ITEMS_MAX
from metad_wire.program.documents import read_document
from metad_wire.program.whole_file import write_whole
from metad_wire.tables.declaration import DeclaredTable
from metad_wire.tables.table import PlainTable

from ...client import Client
from ...errors import ConflictError, InvalidRequestError, MetadError
from ..grammar import Arguments, Commands, Parser
from ..printing import Printer, plain
from ..tables.bounded import Progress
from ..tables.declared import declaration_document, read_declaration
from .exporting import FORMAT, MANIFEST, Export, Manifest
from .kinds import NOT_IMPORTED, Job, Kind, kinds

_BATCH_BYTES: Final = 256 * 1024
"""Of lines: a batch of them is one request for each group."""
_LINE_BYTES_MAX: Final = 16 * 1024 * 1024
_AT_ONCE: Final = 4
"""Batches on their way."""
_NOTED_S: Final = 1.0
NOTE: Final = "import-{cluster}.json"
REFUSED: Final = "refused"


class Done(msgspec.Struct):
    """How far a file is."""

    lines: int = 0
    written: int = 0
    unchanged: int = 0
    """They are there already, and the same."""
    over: int = 0
    """Their time was over."""
    refused: int = 0

    def add(self, other: Done) -> None:
        """Count the lines behind."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Note(msgspec.Struct):
    """What an import remembers of itself, beside its files."""

    broker: str
    """The name of the broker to which it brings sessions."""
    done: dict[str, Done] = {}
    sizes: dict[str, int] = {}
    """Of the files: one that has another size by now is begun anew."""


def add(commands: Commands) -> None:
    """Add the commands."""
    export = commands.add("export", "the records of tables as files, a JSON document a line", _export)
    export.add_argument("directory", type=Path, metavar="DIR", help="a new directory, or an empty one")
    _which(export)
    export.add_argument("--tenant", metavar="T", help="only the records of this tenant, or namespace")
    verbs = commands.group("import", "put files of records into a cluster that serves", "files")
    files = verbs.add("files", "what `metadctl export` or `metad-spark export` wrote: `metadctl import DIR`", _import)
    files.set_defaults(if_interrupted="the same command goes on")
    files.add_argument("directory", type=Path, metavar="DIR", help="has files TABLE.jsonl, or TABLE/*.parquet")
    _which(files)
    files.add_argument("--overwrite", action="store_true", help="replace records that are there and differ")
    files.add_argument(
        "--discard-wills",
        action="store_true",
        help="no will of a session is published; without it, they are due as if its client had gone",
    )


def _which(parser: Parser) -> None:
    parser.add_argument(
        "--table", action="append", default=[], metavar="T", help="only this one; may be repeated; default: all"
    )


async def _export(m: Client, a: Arguments, printer: Printer) -> None:
    try:
        made = await Export(m, a.directory, a.tenant, a.table, a.timeout).run()
    except OSError as error:
        raise InvalidRequestError(f"{error.filename or a.directory}: {error.strerror}") from None
    rows = [{"table": name, "records": count} for name, count in made.tables.items() if count]
    printer.document(made, {"directory": str(a.directory), "records": sum(made.tables.values())}, [("tables", rows)])


async def _import(m: Client, a: Arguments, printer: Printer) -> int:
    work = Import(m, a.directory, a.table, overwrite=a.overwrite, discard_wills=a.discard_wills)
    try:
        done = await work.run()
    except OSError as error:
        raise InvalidRequestError(f"{error.filename or a.directory}: {error.strerror}") from None
    refused = sum(one.refused for one in done.values())
    said = {"tables": done, "not_imported": work.left_out, "refused": refused}
    rows = [{"table": name, **msgspec.structs.asdict(one)} for name, one in done.items() if one.lines]
    why = [{"not imported": name, "because": why} for name, why in work.left_out.items()]
    facts: dict[str, Any] = {"records": sum(one.written for one in done.values())}
    if refused:
        facts |= {"refused": f"{refused}: see {a.directory / REFUSED}"}
    printer.document(said, facts, [("tables", rows), ("others", why)])
    return 1 if refused else 0


class _Snapshot(msgspec.Struct, frozen=True):
    """What ``metad-spark export`` says of its directory."""

    format: int
    made_ms: int
    declared: dict[str, bytes] = {}
    """The declarations of tables, as ``declaration.get`` tells them."""


class _Made(NamedTuple):
    """How a directory came about."""

    at_ms: int
    """When, by the clock of who made it."""
    declarations: Sequence[dict[str, Any]] = ()


_SNAPSHOT, _SNAPSHOT_FORMAT = "metad-snapshot.json", 1


def _made(directory: Path) -> _Made:
    """Raises InvalidRequestError."""
    for name, kind, format in ((MANIFEST, Manifest, FORMAT), (_SNAPSHOT, _Snapshot, _SNAPSHOT_FORMAT)):
        if not (directory / name).exists():
            continue
        try:
            made: Any = msgspec.json.decode((directory / name).read_bytes(), type=kind)
            if made.format > format:
                raise InvalidRequestError(f"{directory} has format {made.format}, this version reads {format}")
            if isinstance(made, Manifest):
                return _Made(made.began_ms)
            tables = [msgspec.msgpack.decode(one, type=DeclaredTable) for one in made.declared.values()]
            return _Made(made.made_ms, [dict(plain(declaration_document(one))) for one in tables])
        except msgspec.MsgspecError as error:
            raise InvalidRequestError(f"{directory / name}: {error}") from None
    return _Made(time.time_ns() // 1_000_000)


class Import:
    """Writes the files of a directory. Raises InvalidRequestError where it makes no sense."""

    def __init__(
        self, m: Client, directory: Path, wanted: Sequence[str], *, overwrite: bool, discard_wills: bool
    ) -> None:
        self._m = m
        self._directory = directory
        self._wanted = wanted
        self._overwrite = overwrite
        self._discard_wills = discard_wills
        self._progress = Progress("imported")
        self._noted_s = 0.0
        self.left_out: dict[str, str] = {}
        """Files that no import writes, and why."""

    async def run(self) -> dict[str, Done]:
        """Import; what became of each file. Raises MetadError, OSError."""
        with _alone(self._directory):
            return await self._run()

    async def _run(self) -> dict[str, Done]:
        made, files = self._files()
        reply = await self._m.cluster.map()
        cluster = "" if reply.map is None else reply.map.cluster_id
        path = self._directory / NOTE.format(cluster=cluster)
        note = _read_note(path)
        job = Job(self._m, note.broker, made.at_ms, discard_wills=self._discard_wills)
        try:
            documents = made.declarations if "declaration" not in files else _documents(files.pop("declaration"))
            if wanted := [one for one in documents if self._is_wanted(one)]:
                await self._declare(wanted, note.done.setdefault("declaration", Done()))
            declared = [one.table() async for one in self._m.tables.list()]
            for name, kind in self._ordered(files, declared).items():
                await self._file(job, kind, files[name], note, path)
        finally:
            await job.close()
        path.unlink(missing_ok=True)
        return note.done

    def _files(self) -> tuple[_Made, dict[str, Path]]:
        """When they were made, and the files by table. A directory that is no export has files as one has."""
        made = _made(self._directory)
        found = {path.stem: path for path in sorted(self._directory.glob("*.jsonl"))}
        found |= {path.name: path for path in sorted(self._directory.iterdir()) if any(path.glob("*.parquet"))}
        if odd := [path for path in found.values() if path.suffix == ".jsonl" and not path.is_file()]:
            raise InvalidRequestError(f"{odd[0]}: no regular file")
        if missing := [name for name in self._wanted if name not in found]:
            raise InvalidRequestError(
                f"{self._directory}: there is no {missing[0]}.jsonl, and no {missing[0]}/*.parquet"
            )
        if not found:
            raise InvalidRequestError(f"{self._directory}: there are no files TABLE.jsonl, or TABLE/*.parquet")
        if made.declarations:
            found.pop("declaration", None)
        return made, {name: path for name, path in found.items() if name in self._wanted or not self._wanted}

    def _ordered(self, files: dict[str, Path], declared: Sequence[PlainTable[Any]]) -> dict[str, Kind]:
        known = kinds(declared)
        for name in files:
            if name in NOT_IMPORTED:
                self.left_out[name] = NOT_IMPORTED[name]
            elif name not in known:
                raise InvalidRequestError(f"{files[name]}: there is no table {name!r}: declare it first")
        return {name: kind for name, kind in known.items() if name in files}

    def _is_wanted(self, declaration: Any) -> bool:
        """Whether all tables are imported, or this one."""
        named = declaration.get("name") if isinstance(declaration, dict) else None
        return not self._wanted or "declaration" in self._wanted or named in self._wanted

    async def _declare(self, documents: Iterable[Any], done: Done) -> None:
        """Declare tables that programs have declared elsewhere, or let them grow."""
        done.lines = done.written = done.refused = 0
        with _Refused(self._directory, "declaration", anew=True) as refused:
            for document in documents:
                done.lines += 1
                try:
                    if isinstance(document, ValueError):
                        raise document
                    await self._m.tables.declare(read_declaration(document))
                    done.written += 1
                except (InvalidRequestError, ConflictError, ValueError) as error:
                    refused.add(document, error)
                    done.refused += 1

    # --- one file -------------------------------------------------------------------------------------------

    async def _file(self, job: Job, kind: Kind, path: Path, note: Note, note_path: Path) -> None:
        name, size = kind.name, _size_of(path)
        if note.sizes.get(name) != size:
            note.done[name], note.sizes[name] = Done(), size
        done = note.done[name]
        with _Refused(self._directory, name, anew=not done.lines) as refused:
            async for some in _batches(path, done.lines):
                results = await asyncio.gather(
                    *(self._batch(job, kind, batch, refused) for batch in some), return_exceptions=True
                )
                for one in results:
                    if isinstance(one, BaseException):
                        raise one
                    done.add(one)
                    self._progress(sum(each.lines for each in note.done.values()))
                if time.monotonic() - self._noted_s >= _NOTED_S:
                    refused.keep()
                    write_whole(note_path, msgspec.json.encode(note))
                    self._noted_s = time.monotonic()
        write_whole(note_path, msgspec.json.encode(note))

    async def _batch(self, job: Job, kind: Kind, documents: list[Any], refused: _Refused) -> Done:
        """Raises a MetadError that says nothing of one record: the import is to be gone on with later."""
        done, others = Done(len(documents)), kind.others
        lines: list[tuple[Any, Any]] = []
        """Each with its document."""
        for document in documents:
            try:
                if isinstance(document, ValueError):
                    raise document
                lines.append((read_document(document, kind.line, others), document))
            except (ValueError, RecursionError) as error:
                refused.add(document, error)
        lines, over = [one for one in lines if not kind.over(job, one[0])], len(lines)
        done.over = over - len(lines)
        found = await kind.found(job, [line for line, _ in lines]) if lines else ()
        todo: list[tuple[Any, Any]] = []
        for (line, document), old in zip(lines, found, strict=True):
            if old is not None and kind.same(line, old):
                done.unchanged += 1
            elif old is not None and not self._overwrite and kind.name != "will":
                refused.add(document, ConflictError("there is one that differs: --overwrite replaces it"))
            else:
                todo.append(((line, old), document))
        errors = await kind.write(job, [one for one, _ in todo]) if todo else {}
        for at, why in errors.items():
            if why.retryable or not why.outcome_known:
                raise why
            refused.add(todo[at][1], why)
        done.written = len(todo) - len(errors)
        done.refused = done.lines - done.written - done.unchanged - done.over
        return done


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Nobody else imports these files: their note and what is refused are one's own. Raises InvalidRequestError."""
    held = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidRequestError(f"{directory}: another import of it is under way") from None
        yield
    finally:
        os.close(held)


class _Refused:
    """A file of what was refused of one table: each line has the error and the document. There is none without any."""

    def __init__(self, directory: Path, name: str, *, anew: bool) -> None:
        self._path = directory / REFUSED / f"{name}.jsonl"
        self._anew = anew
        self._file: BinaryIO | None = None

    def __enter__(self) -> _Refused:
        if self._anew:
            self._path.unlink(missing_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.keep()
        if self._file is not None:
            self._file.close()

    def add(self, document: Any, error: Exception) -> None:
        """One more."""
        if self._file is None:
            self._path.parent.mkdir(exist_ok=True)
            self._file = os.fdopen(os.open(self._path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), "wb")
        name = error.name if isinstance(error, MetadError) else InvalidItemError.name
        shown = getattr(document, "line", "") if isinstance(document, ValueError) else document
        line = {"error": name, "message": str(error), "record": shown}
        self._file.write(msgspec.json.encode(line) + b"\n")

    def keep(self) -> None:
        """It is on the disk from now on."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())


def _read_note(path: Path) -> Note:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Note)
    except FileNotFoundError:
        return Note(f"import-{secrets.token_hex(4)}")
    except msgspec.MsgspecError as error:
        raise InvalidRequestError(f"{path}: {error}: delete it to begin at the beginning") from None


# --- the records of a file --------------------------------------------------------------------------------------------


async def _batches(path: Path, skip: int) -> AsyncIterator[list[list[Any]]]:
    """Documents behind the first ones, some batches at a time. A ValueError stands for a line that is none."""
    batches: list[list[Any]] = []
    batch: list[Any] = []
    size = 0
    for number, document in enumerate(_documents(path)):
        if number < skip:
            continue
        batch.append(document)
        size += _size(document)
        if len(batch) == BATCH_ITEMS_MAX or size >= _BATCH_BYTES:
            batches.append(batch)
            batch, size = [], 0
        if len(batches) == _AT_ONCE:
            yield batches
            batches = []
    if batch:
        batches.append(batch)
    if batches:
        yield batches


def _size(document: Any) -> int:
    """About, without looking into it deeply."""
    if not isinstance(document, dict):
        return 64
    return 64 + sum(len(one) for one in document.values() if isinstance(one, str | bytes | list | dict))


class BadLine(ValueError):
    """``line``: how it begins."""

    line = ""


def _size_of(path: Path) -> int:
    return sum(one.stat().st_size for one in ([path] if path.is_file() else path.glob("*.parquet")))


def _documents(path: Path) -> Iterator[Any]:
    return _of_lines(path) if path.is_file() else _of_parquet(path)


def _of_lines(path: Path) -> Iterator[Any]:
    decode: Callable[[bytes], Any] = msgspec.json.Decoder().decode
    with path.open("rb") as file:
        while line := file.readline(_LINE_BYTES_MAX + 1):
            if len(line) > _LINE_BYTES_MAX:
                raise InvalidRequestError(f"{path}: a line has over {_LINE_BYTES_MAX} bytes")
            if not line.strip():
                continue
            try:
                document = decode(line)
                if not isinstance(document, dict):
                    raise BadLine("a line is a JSON object")
            except (msgspec.MsgspecError, BadLine, UnicodeDecodeError, RecursionError) as error:
                document = BadLine("it is nested too deeply" if isinstance(error, RecursionError) else str(error))
                document.line = line[:1_000].decode(errors="replace").strip()
            yield document


def _of_parquet(path: Path) -> Iterator[Any]:
    try:
        import pyarrow.parquet as pq
    except ImportError:
        raise InvalidRequestError(f"{path}: Parquet needs the package pyarrow") from None
    for file in sorted(path.glob("*.parquet")):
        for batch in pq.ParquetFile(file).iter_batches(BATCH_ITEMS_MAX):
            yield from batch.to_pylist(maps_as_pydicts="strict")
