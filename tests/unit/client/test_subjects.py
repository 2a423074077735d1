"""Every error of an item says which record it is about, and one that compared something says with what."""

from __future__ import annotations

import ast
import inspect
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from good_arguments import GOOD
from msgspec.structs import replace
from scripted import Received, Server, all_well

from metad_client import Client, FencedError, MetadError, NotFoundError
from metad_client.requests.batcher import about
from metad_wire import messages as m
from metad_wire.families import FAMILIES
from metad_wire.methods import KV_GET
from metad_wire.tables import TABLES


def items_of(received: Received) -> list[Any]:
    return getattr(received.body, "items", None) or []


ITEM_VERBS = [name for name in GOOD if not name.startswith(("client.", "brokers.", "tenants."))]


@pytest.mark.parametrize("verb", ITEM_VERBS)
async def test_the_error_of_an_item_names_table_and_key(server: Server, dial: Any, verb: str) -> None:
    """It said "There is no such record.", of a thousand."""
    client: Client = await dial()
    expected: list[str] = []

    def answer(received: Received) -> None:
        reply = all_well(received.body)
        if items_of(received) and hasattr(reply, "errors") and hasattr(reply, "revisions"):
            keyed = [about(received.method, item) for item in received.body.items]
            expected.append(keyed[0])
            nothing = {"results": [None]} if hasattr(reply, "results") else {}
            received.reply(replace(reply, errors=[m.ItemError(0, NotFoundError.code)], **nothing))
        else:
            received.reply()

    server.answer = answer
    outcome = attrgetter(verb)(client)(**GOOD[verb])
    failure: MetadError | None = None
    try:
        if inspect.isasyncgen(outcome):
            [each async for each in outcome]
        else:
            result = await outcome if inspect.isawaitable(outcome) else outcome  # some work in a thread, in real time
            getattr(result, "raise_for_error", lambda: None)()
    except MetadError as error:
        failure = error
    if not expected:
        # A verb of a family reads first, and may find nothing itself.
        assert failure is None or (isinstance(failure, NotFoundError) and "there is no" in str(failure))
        return
    (subject, *_) = expected
    assert isinstance(failure, NotFoundError), "the item's error is raised, and no other"
    assert str(failure) == f"{subject}: there is no such record"
    table, _, key = subject.partition(" ")
    assert table in TABLES or table in FAMILIES
    assert key


async def test_the_error_of_the_millionth_item_names_that_item(server: Server, dial: Any) -> None:
    client: Client = await dial()

    def answer(received: Received) -> None:
        errors = [m.ItemError(at, FencedError.code, "epoch is 8") for at in range(len(received.body.items))]
        received.reply(replace(all_well(received.body), errors=errors))

    server.answer = answer
    keys = [m.KvKey("ns", f"k{at}") for at in range(2_500)]
    errors = (await client.kv.delete_many([m.KvDeleteItem(key.namespace, key.key) for key in keys])).errors
    assert [str(error) for error in errors.values()] == [f"kv ns/{key.key}: epoch is 8" for key in keys]


def test_a_long_name_is_cut() -> None:
    assert about(KV_GET, m.KvKey("n" * 5_000, "k")) == f"kv {'n' * 79}…/k"


ABOUT_A_RECORD = {"NotFoundError", "ConflictError", "NotOwnerError", "FencedError", "QuotaExceededError"}
ROOT = Path(__file__).resolve().parents[3]


def wordless(path: Path) -> list[str]:
    """Places where an error about a record is made without words of its own, or with too few to say about which."""
    found: list[str] = []
    source = path.read_text()
    if not any(name in source for name in ABOUT_A_RECORD):
        return found
    for node in ast.walk(ast.parse(source)):
        name = ""
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Name):
            name, text = node.exc.id, None
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            name, text = node.func.id, node.args[0] if node.args else None
        if name not in ABOUT_A_RECORD:
            continue
        too_few = isinstance(text, ast.Constant) and len(str(text.value).split()) < 4
        if text is None or too_few:
            found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {name}")
    return found


@pytest.mark.parametrize(
    "package",
    ["metad/control", "metad/server", "metad/node", "metad/state", "clients/metad_client", "clients/metad_amqtt"],
)
def test_no_error_about_a_record_is_raised_without_words(package: str) -> None:
    """Items get table and key from the client; what is refused as a whole has to say it itself."""
    assert [place for path in sorted((ROOT / package).rglob("*.py")) for place in wordless(path)] == []
