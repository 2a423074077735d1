"""Where backups are: a directory, or any place that fsspec reaches (``s3://bucket/path`` with s3fs, and so on).

::

    metad-backups.json           what this is, and its format
    files/ab/ab12…               files of checkpoints, by the SHA-256 of what is in them: many backups share one
    backups/TAKEN-ID.json        a backup: its manifest
    unfinished/ID.json           one that is being taken: which files are here already
    archive/GROUP/FROM-TO-…      entries of logs behind backups

A manifest appears once everything is there that it names, by one write of a small file. It says its own SHA-256, and
that of each file, so nothing that was changed later passes for a backup. Nothing is ever changed, only added, and
dropped by :meth:`Repository.prune`.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from metad_wire.errors import MetadError
from metad_wire.operator.backup import BackupGroup
from metad_wire.program.extras import advice

FORMAT: Final = 1
_MARK: Final = "metad-backups.json"
_COPIED_BYTES: Final = 1024 * 1024


class BackupError(MetadError):
    """Something is wrong with a backup or its repository. The text says what, in one line."""


class StoredFile(msgspec.Struct, frozen=True):
    """A file of a checkpoint."""

    name: str
    size: int
    """In bytes."""
    tail: str
    """SHA-256 of its end, as the node says it, in hex."""
    sha256: str
    """Of all of it, in hex."""


class NodeCopy(msgspec.Struct, frozen=True):
    """The checkpoint of one node."""

    node_id: str
    store_id: str
    version: str
    wall_ms: int
    """The node's calendar when the checkpoint was made."""
    groups: list[BackupGroup]
    """Those that count of this node."""
    files: list[StoredFile]
    format: int = 0
    """Of the node's data directory; 0: it did not say it."""


class Manifest(msgspec.Struct, frozen=True):
    """A backup."""

    format: int
    id: str
    taken_ms: int
    """Unix time when it was begun."""
    cluster_id: str
    nodes: list[NodeCopy]
    copied_bytes: int
    """That were not in the repository before."""
    sha256: str = ""
    """Of the manifest with this field empty."""

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(file.size for node in self.nodes for file in node.files)

    @property
    def groups(self) -> list[BackupGroup]:
        """Of all nodes, by name."""
        return sorted((group for node in self.nodes for group in node.groups), key=lambda group: group.group)

    @property
    def name(self) -> str:
        """By which the repository lists it: sorts by time."""
        seconds, ms = divmod(self.taken_ms, 1000)
        return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(seconds))}.{ms:03}Z-{self.id}"

    def signed(self) -> Manifest:
        """The same with its own checksum."""
        return msgspec.structs.replace(self, sha256=self.digest())

    def digest(self) -> str:
        """What :attr:`sha256` has to be."""
        return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(self, sha256=""))).hexdigest()


class Unfinished(msgspec.Struct):
    """What a backup that was not finished has copied: store id -> files."""

    stores: dict[str, list[StoredFile]] = {}


class Incoming:
    """A file that comes into a repository, a piece at a time."""

    def __init__(self, stored: Any) -> None:
        self.kept = False
        """Whether it is to stay."""
        self.bytes = 0
        self._stored = stored
        self._seen = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Of what has come, in hex."""
        return self._seen.hexdigest()

    def write(self, piece: bytes) -> None:
        """The next piece."""
        self._seen.update(piece)
        self._stored.write(piece)
        self.bytes += len(piece)

    def close(self) -> None:
        """All has come."""
        self._stored.close()


class Repository:
    """One repository. Its methods block, and raise BackupError or OSError."""

    def __init__(self, url: str, *, create: bool = False) -> None:
        try:
            import fsspec
        except ModuleNotFoundError as missing:
            raise BackupError(advice(missing, "backup")) from None
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise BackupError(f"{url}: {error}") from None
        self.url = url
        self._root = self._root.rstrip("/")
        mark = self._path(_MARK)
        if self._fs.exists(mark):
            found = msgspec.json.decode(self._read(_MARK), type=dict[str, Any])
            if found.get("format") != FORMAT:
                raise BackupError(f"{url} has format {found.get('format')}, this version reads {FORMAT}")
        elif not create:
            raise BackupError(f"{url} has no backups of metad")
        elif self._fs.exists(self._root) and self._fs.ls(self._root, detail=False):
            raise BackupError(f"{url} is not empty, and has no backups of metad")
        else:
            self._write(_MARK, msgspec.json.encode({"format": FORMAT, "what": "backups of metad"}))

    # --- backups -----------------------------------------------------------------------------------------

    def backups(self) -> list[Manifest]:
        """All of them, the oldest first."""
        return [self._manifest(name) for name in self._names("backups")]

    def backup(self, wanted: str = "") -> Manifest:
        """The backup whose id or name begins so; empty: the newest."""
        names = self._names("backups")
        if not names:
            raise BackupError(f"{self.url} has no finished backup")
        found = [
            one for one in names if not wanted or one.startswith(wanted) or one.partition("-")[2].startswith(wanted)
        ]
        if wanted and len(found) != 1:
            raise BackupError(f"{self.url}: {len(found) or 'no'} backups begin with {wanted!r}")
        return self._manifest(found[-1])

    def _manifest(self, name: str) -> Manifest:
        path = f"backups/{name}.json"
        try:
            manifest = msgspec.json.decode(self._read(path), type=Manifest)
        except msgspec.DecodeError as error:
            raise BackupError(f"{self.url}/{path} is damaged: {error}") from None
        if manifest.format != FORMAT:
            raise BackupError(f"{self.url}/{path} has format {manifest.format}, this version reads {FORMAT}")
        if manifest.digest() != manifest.sha256:
            raise BackupError(f"{self.url}/{path} is damaged: its checksum differs")
        return manifest

    def finish(self, manifest: Manifest) -> None:
        """Everything of this backup is here: from now on it is one."""
        self._write(f"backups/{manifest.name}.json", msgspec.json.format(msgspec.json.encode(manifest.signed())))
        self._remove(f"unfinished/{manifest.id}.json")

    def note(self, id_: str, unfinished: Unfinished) -> None:
        """Remember what is here of a backup that is being taken."""
        self._write(f"unfinished/{id_}.json", msgspec.json.encode(unfinished))

    def known_files(self) -> dict[tuple[str, str, int, str], StoredFile]:
        """The files that are here, by (store id, name, bytes, tail)."""
        found: dict[tuple[str, str, int, str], StoredFile] = {}
        for name in self._names("unfinished"):
            unfinished = msgspec.json.decode(self._read(f"unfinished/{name}.json"), type=Unfinished)
            for store_id, files in unfinished.stores.items():
                found.update({(store_id, file.name, file.size, file.tail): file for file in files})
        for manifest in self.backups():
            for node in manifest.nodes:
                found.update({(node.store_id, file.name, file.size, file.tail): file for file in node.files})
        return found

    def prune(self, keep: int) -> tuple[list[str], int]:
        """Drop all backups but the newest ``keep``, unfinished ones, and the files and archived entries that no backup
        needs any more: the names of the backups, and how many bytes that were. Not while a backup is being taken."""
        if keep < 1:
            raise BackupError("at least one backup has to stay")
        names = self._names("backups")
        gone = names[: len(names) - keep] if keep < len(names) else []
        kept = [self._manifest(name) for name in names[len(gone) :]]
        for name in gone:
            self._remove(f"backups/{name}.json")
        for name in self._names("unfinished"):
            self._remove(f"unfinished/{name}.json")
        needed = {file.sha256 for manifest in kept for node in manifest.nodes for file in node.files}
        size = 0
        for path in self._all("files"):
            if path.rpartition("/")[2] not in needed:
                size += self._fs.size(path)
                self._fs.rm_file(path)
        first = {group.group: group.index for manifest in kept[:1] for group in manifest.groups}
        for path in self._all("archive"):
            group, name = path.rsplit("/", 2)[-2:]
            if int(name.split("-")[1]) <= first.get(group, 0):
                size += self._fs.size(path)
                self._fs.rm_file(path)
        return gone, size

    # --- files -------------------------------------------------------------------------------------------

    def has(self, file: StoredFile) -> bool:
        """Whether the file is here, as long as it should be."""
        path = self._path(_place(file.sha256))
        return bool(self._fs.exists(path) and self._fs.size(path) == file.size)

    @contextlib.contextmanager
    def receiving(self, name: str) -> Iterator[Incoming]:
        """Take a file whose checksum is not known yet, under a name that nobody else has. What is not kept is gone."""
        path = self._path(f"unfinished/{name}")
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        incoming = Incoming(self._fs.open(path, "wb"))
        try:
            yield incoming
            incoming.close()
            if incoming.kept:
                place = self._path(_place(incoming.sha256))
                self._fs.makedirs(place.rpartition("/")[0], exist_ok=True)
                self._fs.mv(path, place)
        finally:
            incoming.close()
            self._remove(f"unfinished/{name}")

    def pieces(self, file: StoredFile) -> Iterator[bytes]:
        """What is in a file, a piece at a time. Raises BackupError at the end if that is not what was put there."""
        path, seen, size = self._path(_place(file.sha256)), hashlib.sha256(), 0
        try:
            with self._fs.open(path, "rb") as stored:
                while piece := stored.read(_COPIED_BYTES):
                    seen.update(piece)
                    size += len(piece)
                    yield piece
        except FileNotFoundError:
            raise BackupError(f"{self.url}/{_place(file.sha256)} ({file.name}) is missing") from None
        if size != file.size or seen.hexdigest() != file.sha256:
            raise BackupError(f"{self.url}/{_place(file.sha256)} ({file.name}) is damaged: its checksum differs")

    # --- the archive of logs -----------------------------------------------------------------------------

    def archive(self, group: str, first: int, last: int, wall_ms: int, data: bytes) -> None:
        """Keep the entries ``first`` to ``last`` of a group, which were there at that time."""
        name = f"archive/{group}/{first:020}-{last:020}-{wall_ms}-{hashlib.sha256(data).hexdigest()[:32]}"
        self._write(name, data)

    def archived(self, group: str) -> list[tuple[int, int, int, str]]:
        """(first index, last index, Unix time, name) of what is kept of a group's log, in order."""
        found: list[tuple[int, int, int, str]] = []
        for path in self._all(f"archive/{group}"):
            name = path.rpartition("/")[2]
            parts = name.split("-")
            if len(parts) == 4:
                found.append((int(parts[0]), int(parts[1]), int(parts[2]), name))
        return sorted(found)

    def archived_groups(self) -> list[str]:
        """The groups of which something is kept."""
        return sorted({path.rsplit("/", 2)[-2] for path in self._all("archive")})

    def entries(self, group: str, name: str) -> bytes:
        """What was kept under this name. Raises BackupError if that was changed."""
        data = self._read(f"archive/{group}/{name}")
        if hashlib.sha256(data).hexdigest()[:32] != name.rpartition("-")[2]:
            raise BackupError(f"{self.url}/archive/{group}/{name} is damaged: its checksum differs")
        return data

    # --- the place ---------------------------------------------------------------------------------------

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _names(self, folder: str) -> list[str]:
        """Of the JSON files in a folder, in order."""
        return sorted(
            path.rpartition("/")[2].removesuffix(".json") for path in self._all(folder) if path.endswith(".json")
        )

    def _all(self, folder: str) -> list[str]:
        path = self._path(folder)
        self._fs.invalidate_cache()
        return [] if not self._fs.exists(path) else sorted(self._fs.find(path))

    def _read(self, name: str) -> bytes:
        data: bytes = self._fs.cat_file(self._path(name))
        return data

    def _write(self, name: str, data: bytes) -> None:
        """All of it or nothing: a reader never sees a part."""
        path = self._path(name)
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._fs.pipe_file(f"{path}.unfinished", data)
        self._fs.mv(f"{path}.unfinished", path)

    def _remove(self, name: str) -> None:
        if self._fs.exists(self._path(name)):
            self._fs.rm_file(self._path(name))


def _place(sha256: str) -> str:
    return f"files/{sha256[:2]}/{sha256}"
