"""The Python of the pages for authors of brokers runs as it stands, each block by itself, at another port.
A block that names its file is a program with arguments: the test of its subject runs it."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from pages import blocks

from metad import embedded
from metad_client import connect

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "clients/README.md", "docs/MQTT.md", "docs/families.md")
BLOCKS = [
    pytest.param(block, id=f"{page}-{number}")
    for page in PAGES
    for number, block in enumerate(blocks((ROOT / page).read_text(), "python"))
    if not re.match(r"# \w+\.py\n", block)
]


def test_there_are_blocks() -> None:
    assert len(BLOCKS) >= 5


@pytest.mark.parametrize("block", BLOCKS)
async def test_a_block_runs_by_itself(block: str) -> None:
    with embedded.serve_in_thread() as server:
        await run(block, server.endpoint)


@pytest.mark.parametrize("page", PAGES)
async def test_the_blocks_of_a_page_run_one_after_the_other(page: str) -> None:
    """Once wrong: a block began a life of a broker in whose older life the next one wrote."""
    with embedded.serve_in_thread() as server:
        async with connect(server.url) as m:  # as the commands do that stand in front of the blocks
            await m.sessions.takeover("broker-1", 7, "acme", "device-1")
        for block in BLOCKS:
            if str(block.id).startswith(f"{page}-"):
                (text,) = block.values
                await run(str(text), server.endpoint)


async def run(block: str, endpoint: str) -> None:
    """As in ``python -m asyncio``, where ``async with`` needs no function around it."""
    text = block.replace("127.0.0.1:7420", endpoint)
    code = compile(text, "<block>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    names: dict[str, Any] = {"__name__": "block"}
    result = eval(code, names)
    if inspect.isawaitable(result):
        await result


def test_what_is_typed_into_a_console_has_no_empty_line_inside_a_statement() -> None:
    """The console of Python 3.11 and 3.12 ends a statement there, and refuses the rest."""
    text = (ROOT / "README.md").read_text()
    block = blocks(text[text.index("`python -m asyncio`") :], "python")[0]
    assert not re.search(r"\n\n[ ]", block)
