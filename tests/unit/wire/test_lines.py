"""Lines that are written beside the loop: nobody waits for the reader, and what is dropped is counted and said."""

from __future__ import annotations

import fcntl
import io
import logging
import os
import threading
import time
from collections.abc import Iterator
from typing import TextIO

import pytest

from metad_wire.program import lines
from metad_wire.program.lines import LineHandler, LineWriter

PIPE_BYTES = 4096


def said(count: int) -> None:
    """For tests in which nothing is dropped, or nobody asks."""


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    """A small pipe: where it is read, and the stream that writes to it."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    stream = os.fdopen(writer, "w")
    yield reader, stream
    os.close(reader)
    stream.close()


def read(reader: int, until: str) -> list[str]:
    """All lines up to the one that ends so."""
    text = b""
    deadline_s = time.monotonic() + 30
    while not text.endswith(until.encode() + b"\n"):
        assert time.monotonic() < deadline_s, text[-200:]
        text += os.read(reader, 1 << 16)
    return text.decode().splitlines()


def test_lines_come_whole_and_in_order(pipe: tuple[int, TextIO]) -> None:
    reader, stream = pipe
    writer = LineWriter(stream, said)
    wanted = [f"{number} {'x' * number}" for number in range(300)]
    for line in wanted:
        writer.write(line)
    assert read(reader, wanted[-1]) == wanted
    assert writer.flush()


def test_a_reader_that_stops_keeps_nobody_waiting(pipe: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "QUEUED_BYTES_MAX", 10_000)
    reader, stream = pipe
    writer = LineWriter(stream, lambda count: writer.write(f"dropped {count}"))
    begun = 0
    while writer.flush(0.5):  # until the pipe is full
        writer.write(f"{begun:099}")
        begun += 1
    for number in range(begun, begun + 1_000):
        writer.write(f"{number:099}")
    begun_s = time.monotonic()
    assert not writer.flush(0.05)
    assert time.monotonic() - begun_s < 10
    kept: list[int] = []
    dropped = 0
    while len(kept) + dropped < begun + 1_000:
        for line in read(reader, ""):
            if line.startswith("dropped"):
                dropped += int(line.split()[1])
            else:
                kept.append(int(line))
    assert kept == list(range(len(kept))), "the oldest stay, in order"
    assert dropped
    writer.write("again")
    assert read(reader, "again") == ["again"]
    assert writer.flush()


def test_nobody_reads_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, descriptor = os.pipe()
    os.close(reader)
    with os.fdopen(descriptor, "w") as stream:
        writer = LineWriter(stream, said)
        for _ in range(100):
            writer.write("lost")
        assert writer.flush(30), "what cannot be written is given up"


def test_a_stream_without_a_descriptor() -> None:
    stream = io.StringIO()
    writer = LineWriter(stream, said)
    writer.write("one\ttwo")
    assert writer.flush(30)
    assert stream.getvalue() == "one\ttwo\n"


def test_a_log_that_nobody_reads_is_no_log_that_waits(pipe: tuple[int, TextIO]) -> None:
    _, stream = pipe
    log = logging.Logger("test")
    log.addHandler(LineHandler(LineWriter(stream, said)))
    done = threading.Event()

    def work() -> None:
        for _ in range(1_000):
            log.warning("%s", "x" * 1_000)
        done.set()

    threading.Thread(target=work, daemon=True).start()
    assert done.wait(60)
