"""Text between a command and its terminal, whose encoding may be a smaller one than UTF-8: output never ends a command,
but what the encoding does not have is escaped, and arguments are UTF-8 all the same."""

from __future__ import annotations

import argparse
import codecs
import contextlib
import os
import sys
from collections.abc import Container, Iterator
from io import TextIOWrapper
from typing import TextIO


def escape_unprintable() -> None:
    """Have stdout and stderr escape what their encoding does not have, as Python does: ``\\u2026``. Every command calls
    it first."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def reader_may_leave() -> Iterator[None]:
    """What is printed within goes to stdout at the end, also where a help page ends the command. That whoever reads it
    has had enough, as `head` has, is no error: the rest is printed nowhere."""
    ends: SystemExit | None = None
    try:
        try:
            yield
        except SystemExit as error:
            ends = error
        sys.stdout.flush()
    except BrokenPipeError:
        print_nowhere()
    if ends is not None:
        raise ends


def print_nowhere() -> None:
    """Let what is buffered, and what follows, be lost: stdout cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def decode_arguments(arguments: argparse.Namespace, paths: Container[str]) -> None:
    """Have arguments be what their bytes say in UTF-8, whatever the locale is. Those that are ``paths`` are left to
    the locale, as the system's calls want them. Raises UnicodeError for one that is not UTF-8."""
    for name, text in vars(arguments).items():
        if isinstance(text, str) and name not in paths:
            setattr(arguments, name, _given(text).decode())


def _given(text: str) -> bytes:
    """The bytes of an argument."""
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:  # it comes from a program
        return text.encode()


def has_all_characters(stream: TextIO) -> bool:
    """Whether the stream's encoding has every character; a stream without one has."""
    encoding = getattr(stream, "encoding", None)
    return not encoding or codecs.lookup(encoding).name in ("utf-8", "utf-16", "utf-32")
