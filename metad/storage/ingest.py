"""The files of a range that is being replaced: they make :meth:`metad.storage.rocks.RocksEngine.replace` atomic.

RocksDB can delete a range and ingest files, each atomically, but not both at once. So the new content of the range is
first made durable beside the store. Then a manifest that describes it appears by one rename. From then on the
replacement will happen: a process that opens the store and finds the manifest repeats the replacement from the start,
which is harmless any number of times. Without a manifest the files are leftovers. Knows nothing of RocksDB.

::

    <store>/ingest/<number>.sst     the new content of the range
    <store>/ingest/manifest         the range, the files with size and checksum, the pairs written on top
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec

from .. import formats
from ..errors import DamagedStoreError, StorageError, file_error

MANIFEST_FORMAT: Final = formats.MANIFEST.writes
_CRC_BYTES: Final = 4


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """A replacement that will be done. ``files`` are (name, bytes, crc32), ingested in this order."""

    format: int
    begin: bytes
    end: bytes
    files: list[tuple[str, int, int]]
    writes: dict[bytes, bytes | None]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Manifest).decode


class IngestDirectory:
    """The directory exists only while a range is being replaced. One thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._manifest = path / "manifest"

    def prepare(
        self, begin: bytes, end: bytes, files: Iterable[bytes], writes: Mapping[bytes, bytes | None]
    ) -> Manifest:
        """Make a replacement durable: when this returns, it will be done. If it raises, nothing has changed."""
        if self._manifest.exists():
            raise StorageError(f"{self.path}: an earlier replacement is not finished; restart the node")
        try:
            try:
                return self._prepare(begin, end, files, writes)
            except BaseException:
                self.discard()
                raise
        except OSError as error:
            raise self._failed(error) from None

    def _prepare(
        self, begin: bytes, end: bytes, files: Iterable[bytes], writes: Mapping[bytes, bytes | None]
    ) -> Manifest:
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir()
        listed: list[tuple[str, int, int]] = []
        for data in files:
            name = f"{len(listed):06}.sst"
            _write_durably(self.path / name, data)
            listed.append((name, len(data), crc32(data)))
        manifest = Manifest(MANIFEST_FORMAT, begin, end, listed, dict(writes))
        body = _encode(manifest)
        unfinished = self.path / "manifest.new"
        _write_durably(unfinished, body + crc32(body).to_bytes(_CRC_BYTES, "big"))
        _sync_directory(self.path)
        _sync_directory(self.path.parent)
        os.rename(unfinished, self._manifest)  # the commit point
        _sync_directory(self.path)
        return manifest

    def pending(self) -> Manifest | None:
        """The replacement that an earlier process has left unfinished. Leftovers without a manifest are removed. Raises
        DamagedStoreError if the files are not as they were written."""
        try:
            if not self._manifest.exists():
                self.discard()
                return None
            return self._read()
        except OSError as error:
            raise self._failed(error) from None

    def _read(self) -> Manifest:
        data = self._manifest.read_bytes()
        body = data[:-_CRC_BYTES]
        if data[len(body) :] != crc32(body).to_bytes(_CRC_BYTES, "big"):
            raise self._damaged("manifest")
        try:
            manifest = _decode(body)
        except msgspec.DecodeError:
            raise self._damaged("manifest") from None
        if manifest.format != MANIFEST_FORMAT:
            raise StorageError(formats.refusal(str(self._manifest), formats.MANIFEST, manifest.format))
        for name, size, checksum in manifest.files:
            file = self.path / name
            if not file.exists() or file.stat().st_size != size or crc32(file.read_bytes()) != checksum:
                raise self._damaged(name)
        return manifest

    def link(self, name: str) -> str:
        """Give a file a second name, which the store then moves away."""
        source, link = self.path / name, self.path / f"{name}.link"
        try:
            link.unlink(missing_ok=True)
            try:
                os.link(source, link)
            except OSError:  # a file system without hard links
                shutil.copyfile(source, link)
        except OSError as error:
            raise self._failed(error) from None
        return str(link)

    def finish(self) -> None:
        """Remove the files: the replacement is durable in the store."""
        try:
            self._manifest.unlink()
            _sync_directory(self.path)
            self.discard()
        except OSError as error:
            raise self._failed(error) from None

    def discard(self) -> None:
        """Remove everything. A file that cannot be removed does no harm."""
        if self.path.exists():
            shutil.rmtree(self.path, ignore_errors=True)

    def _failed(self, error: OSError) -> StorageError:
        return file_error(str(self.path), error)

    def _damaged(self, name: str) -> DamagedStoreError:
        return DamagedStoreError(
            f"{self.path} is damaged: {name} is not as it was written, and the store needed it when the node "
            "stopped. Nothing was changed"
        )


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
