"""Connections are accepted in one place, which keeps descriptors for what else needs them.

asyncio's own servers accept until none is left, and then log a stack trace for each connection that waits.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

import house

_ACCEPTS = {"accept", "create_server", "create_unix_server", "start_server", "start_unix_server"}
_ALLOWED = {
    "metad_wire/transport/tcp.py: sock.accept": "this is the place",
    "metad_wire/transport/tcp.py: loop.create_server": "of a transport that is not told a pace: tests listen with it",
    "metad_amqtt/links/links.py: self._tls.accept": "a handshake",
    "metad/state/machine.py: view.accept": "of an entry",
}


def accepts(source: str) -> Iterator[str]:
    """Calls that accept connections."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr in _ACCEPTS | {"serve"}:
            name = ast.unparse(node.func)
            if node.func.attr != "serve" or name in ("websockets.serve", "server.serve"):
                yield name


@pytest.mark.parametrize("package", ["metad", "metad_amqtt", "metad_client", "metad_wire"])
def test_connections_are_accepted_in_one_place(package: str) -> None:
    assert house.findings(package, accepts) - {*_ALLOWED} == set()


def test_it_is_found() -> None:
    assert [*accepts("async def f():\n    await asyncio.start_server(g, '', 1)")] == ["asyncio.start_server"]
