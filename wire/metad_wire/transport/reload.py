"""Files that are replaced while a process runs: whoever needs them next uses the new ones, and broken ones are never
used. For certificates (:class:`Reloaded`) and anything else that is checked at the door (:class:`Watched`).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from .credentials import CertificateError, TlsFiles

LOOK_S = 0.5
"""Files are looked at no oftener than this: a flood of handshakes must not become one of system calls."""

T = TypeVar("T")
_log = logging.getLogger("metad")


class Watched(Generic[T]):
    """What ``load`` makes of files, made again whenever one of them has changed. ``load`` raises ``error`` where they
    cannot be used: at first that is passed on, later it is logged once and what there was stays. ``what`` names them
    in the log. ``gone``: what there is instead once a file is missing, if not what there was."""

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
        self._seen = _signature(paths)
        self._value = load()
        self._look_at = clock() + LOOK_S

    def current(self) -> T:
        """Of the files as they are now, or as they last were whole."""
        now = self._clock()
        if now < self._look_at:
            return self._value
        self._look_at = now + LOOK_S
        signature = _signature(self._paths)
        if signature != self._seen:
            self._seen = signature  # broken files are not read again before they have changed again
            if self._gone is not None and None in signature:
                self._value = self._gone()
                _log.warning("the %s are gone: none is taken any more", self._what)
                return self._value
            try:
                self._value = self._load()
            except self._error as error:
                _log.error("the new %s cannot be used, the old stay in use: %s", self._what, error)
            else:
                _log.info("the new %s are in use: %s", self._what, ", ".join(filter(None, self._paths)))
        return self._value


class Reloaded(Watched[T]):
    """The same for certificate files; ``load`` raises CertificateError."""

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


def _signature(paths: Sequence[str]) -> list[tuple[int, int, int] | None]:
    """Changes with any of the files. One that is missing now is None."""
    found: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            found.append(None)
        else:
            found.append((status.st_mtime_ns, status.st_ino, status.st_size))
    return found
