"""The Python of README.md, clients/README.md and MQTT.md runs as it stands, each block by itself, at another port. A
block that names its file is a program with arguments: the test of its subject runs it."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from pages import blocks

from metad import embedded

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "clients/README.md", "MQTT.md")
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
    """As in ``python -m asyncio``, where ``async with`` needs no function around it."""
    with embedded.serve_in_thread() as server:
        text = block.replace("127.0.0.1:7420", server.endpoint)
        code = compile(text, "<block>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        names: dict[str, Any] = {"__name__": "block"}
        result = eval(code, names)
        if inspect.isawaitable(result):
            await result


@pytest.mark.parametrize("page", ["README.md", "MQTT.md"])
def test_what_is_typed_into_a_console_has_no_empty_line_inside_a_statement(page: str) -> None:
    """The console of Python 3.11 and 3.12 ends a statement there, and refuses the rest."""
    text = (ROOT / page).read_text()
    block = blocks(text[text.index("`python -m asyncio`") :], "python")[0]
    assert not re.search(r"\n\n[ ]", block)
