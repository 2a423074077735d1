"""Certificate files that are replaced while a process runs: the next handshake uses the new ones, and broken ones are
never used.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from .credentials import CertificateError, TlsFiles

LOOK_S = 0.5
"""Files are looked at no oftener than this: a flood of handshakes must not become one of system calls."""

T = TypeVar("T")
_log = logging.getLogger("metad")


class Reloaded(Generic[T]):
    """What ``load`` makes of the files, made again whenever one of them has changed. ``load`` raises CertificateError
    where they cannot be used: at first that is passed on, later it is logged once and what there was stays."""

    def __init__(
        self, files: TlsFiles, load: Callable[[TlsFiles], T], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._files = files
        self._load = load
        self._clock = clock
        self._seen = _signature(files)
        self._value = load(files)
        self._look_at = clock() + LOOK_S

    def current(self) -> T:
        """Of the files as they are now, or as they last were whole."""
        now = self._clock()
        if now < self._look_at:
            return self._value
        self._look_at = now + LOOK_S
        signature = _signature(self._files)
        if signature != self._seen:
            self._seen = signature  # broken files are not read again before they have changed again
            try:
                self._value = self._load(self._files)
            except CertificateError as error:
                _log.error("the new certificate files cannot be used, the old stay in use: %s", error)
            else:
                _log.info("certificate files reloaded from %s", self._files.certificate or self._files.ca)
        return self._value


def _signature(files: TlsFiles) -> tuple[tuple[int, int, int] | None, ...]:
    """Changes with any of the files. One that is missing now is None."""
    found: list[tuple[int, int, int] | None] = []
    for path in (files.certificate, files.key, files.ca):
        try:
            status = os.stat(path)
        except OSError:
            found.append(None)
        else:
            found.append((status.st_mtime_ns, status.st_ino, status.st_size))
    return tuple(found)
