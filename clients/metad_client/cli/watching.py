"""``metadctl watch``: one line for each change, until Ctrl-C."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any, TextIO

import msgspec

from metad_wire.families import KNOWN, SECRETS

from ..client import Client
from ..watch.event import WatchEvent
from ..watch.events import WatchBatch
from ..watch.watch import Watch
from .printing import PAGE_CHARS, Printer, cell, flat, plain

_KIND_CHARS, _TABLE_CHARS = 8, 14
_NO_LEASE = ("lease", "")
_KNOWN = {"key", "mod_revision", "create_revision"}
"""Fields of a record that say nothing new beside its key and version."""


async def watch(m: Client, a: argparse.Namespace, printer: Printer) -> None:
    """Print changes until the program is interrupted. The token to go on from is printed on stderr at the end."""
    begin: dict[str, Any] = {"start": a.begin} if a.begin in ("now", "snapshot") else {"token": a.begin}
    table = a.table if a.table in KNOWN else await m.tables.open(a.table)
    async with m.watch(table, tenant=a.tenant, prefix=a.prefix, idle_timeout_s=a.timeout, **begin) as watched:
        try:
            await _print(watched, sys.stdout, as_json=a.json)
        except BrokenPipeError:
            raise  # nobody knows what was read: no token
        except BaseException:
            _say_token(watched)
            raise
        _say_token(watched)


def _say_token(watched: Watch) -> None:
    if watched.token:
        sys.stderr.write(f"metadctl: to go on from here: --from {watched.token}\n")


async def _print(watched: Watch, out: TextIO, *, as_json: bool) -> None:
    async for batch in watched:
        for text in _documents(batch) if as_json else _lines(batch):
            out.write(f"{text}\n")
        out.flush()


def _documents(batch: WatchBatch) -> Iterator[str]:
    """JSON, a line each. The last of a batch has its token."""
    documents = [_document(event) for event in batch.events]
    if batch.kind == "gap" or (batch.kind == "snapshot" and batch.last):
        kind = "GAP" if batch.kind == "gap" else "SNAPSHOT"
        documents.append({"kind": kind, "group": batch.group, "slots": len(batch.slots)})
    if documents:
        documents[-1]["token"] = batch.token
    for document in documents:
        yield json.dumps(document, ensure_ascii=False)


def _document(event: WatchEvent) -> dict[str, Any]:
    fields = msgspec.structs.asdict(event)
    fields["kind"] = event.kind.name
    for name in ("previous", "previous_known"):
        del fields[name]
    document: dict[str, Any] = plain(fields)
    _hide(event, document.get("record"))
    return document


def _hide(event: WatchEvent, record: Any) -> None:
    """Take the secrets out of a record as JSON: `get --secrets` shows them."""
    for name in SECRETS.get(event.table, ()) if isinstance(record, dict) else ():
        for shown in (name, f"{name}_base64"):
            record["record"].pop(shown, None)


def _lines(batch: WatchBatch) -> Iterator[str]:
    """Lines for people, no wider than :data:`PAGE_CHARS`."""
    for event in batch.events:
        yield line_of(event)
    if batch.kind == "gap":
        lost = f"changes of {len(batch.slots)} slots are lost; what there is follows"
        yield f"{'GAP':{_KIND_CHARS}} {batch.group}: {lost}"
    elif batch.kind == "snapshot" and batch.last:
        yield f"{'COMPLETE':{_KIND_CHARS}} {batch.group}: changes of {len(batch.slots)} slots follow"


def line_of(event: WatchEvent) -> str:
    """An event in one line: what has happened, where, to which record, and what it is now."""
    table = event.table if event.row in ("record", event.table) else f"{event.table}/{event.row}"
    key = "" if event.key is None else "/".join(map(cell, msgspec.structs.astuple(event.key)))
    line = f"{event.kind.name:{_KIND_CHARS}} {table:{_TABLE_CHARS}} {key}"
    if event.record is not None:
        line += f"  {shown(event)}"
    return line if len(line) <= PAGE_CHARS else line[: PAGE_CHARS - 1] + "…"


def shown(event: WatchEvent) -> str:
    """The record of an event in one line, without what its key says, and without secrets."""
    record = plain(event.record)
    _hide(event, record)
    if not isinstance(record, dict):
        return cell(record)
    named = _KNOWN | set(event.key.__struct_fields__ if event.key is not None else ())
    fields = {name: value for name, value in flat(record).items() if name not in named and (name, value) != _NO_LEASE}
    return " ".join(f"{name}={cell(value)}" for name, value in fields.items())
