"""Files that are replaced while a process runs: the next use reads the new ones, and broken ones are never used. For
certificates (:class:`Reloaded`) and anything else that admits peers (:class:`Watched`)."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from .credentials import CertificateError, TlsFiles

LOOK_S = 0.5
"""Files are checked at most this often: a flood of handshakes must not become a flood of system calls."""
WAIT_S = 0.1
"""A disk that works answers in a millisecond. One that hangs is waited for so long once, not by every handshake."""

T = TypeVar("T")
_Signature = list[tuple[int, int, int] | None]
_log = logging.getLogger("metad")
_told: dict[tuple[str, ...], tuple[str, _Signature]] = {}
"""By what was read and its paths, the last line about them. Several read the same files, and one line is enough. The
files of a process are few."""


class Watched(Generic[T]):
    """The result of ``load``, made anew whenever one of its files has changed. ``load`` raises ``error`` if the files
    cannot be used: the first time that error is passed on; later it is logged once and the old result stays. ``what``
    names the files in the log. ``gone`` makes the result once a file is missing; without it the old result stays."""

    def __init__(
        self,
        paths: Sequence[str],
        load: Callable[[], T],
        *,
        error: type[Exception],
        what: str,
        gone: Callable[[], T] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gone = gone
        self._paths = paths
        self._load = load
        self._error = error
        self._what = what
        self._clock = clock
        self._looking = False
        self._seen = signature(paths)
        self._value = load()
        self._look_at = clock() + LOOK_S

    def current(self) -> T:
        """The result for the files as they are now, or as they were when they could last be used. Waits for a disk that
        is slow for :data:`WAIT_S` at most; its answer counts from then on when it comes."""
        now = self._clock()
        if now >= self._look_at and not self._looking:
            self._look_at = now + LOOK_S
            self._looking = True
            looks = threading.Thread(target=self._look, name="metad-files", daemon=True)
            looks.start()
            looks.join(WAIT_S)
        return self._value

    def _look(self) -> None:
        try:
            self._look_again()
        finally:
            self._looking = False

    def _look_again(self) -> None:
        seen = signature(self._paths)
        if seen == self._seen:
            return
        self._seen = seen  # broken files are not read again until they change again
        if self._gone is not None and None in seen:
            self._value = self._gone()
            if self._is_news("files_gone"):
                _log.warning("files_gone", extra={"fields": {"what": self._what}})
            return
        try:
            self._value = self._load()
        except self._error as error:
            if self._is_news("files_unusable"):
                _log.error("files_unusable", extra={"fields": {"what": self._what, "error": str(error)}})
        else:
            if self._is_news("files_reloaded"):
                paths = list(filter(None, self._paths))
                _log.info("files_reloaded", extra={"fields": {"what": self._what, "paths": paths}})

    def _is_news(self, key: str) -> bool:
        """Whether no other one that reads these files has said this of them as they are."""
        about, line = (self._what, *self._paths), (key, self._seen)
        if _told.get(about) == line:
            return False
        _told[about] = line
        return True


class Reloaded(Watched[T]):
    """A :class:`Watched` for certificate files; ``load`` raises CertificateError."""

    def __init__(
        self, files: TlsFiles, load: Callable[[TlsFiles], T], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(
            (files.certificate, files.key, files.ca),
            lambda: load(files),
            error=CertificateError,
            what="certificate files",
            clock=clock,
        )


def signature(paths: Sequence[str]) -> _Signature:
    """A value that changes with any of the files. A missing file is None."""
    found: _Signature = []
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            found.append(None)
        else:
            found.append((status.st_mtime_ns, status.st_ino, status.st_size))
    return found
