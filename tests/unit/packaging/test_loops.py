"""No loop goes over a container that what it calls may change.

A list of listeners was once gone through while one of them ended: the next in line, which noted what is written while
slots move, heard nothing of that entry. A dictionary raises in the middle of its loop instead. So whoever calls
callbacks, or waits for something in the body of a loop, goes over a copy, or over a tuple that is replaced as a whole.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

import house

_FIXED = {
    "metad/server/serve.py: self._listeners": "complete before anything can end",
    "metad/server/serve.py: server._listeners": "complete before anything can end",
    "metad/server/peers/peers.py: self._listeners": "complete before anything can end",
    "metad_amqtt/broker.py: unwanted.topics": "of one packet",
    "metad/state/core/view.py: self.on_accept": "parts are made with the machine",
    "metad_wire/transport/quic/flow/recovery.py: packet.delivery_handlers": "of a packet that is no longer under way",
}
"""Loops over containers that nobody changes any more."""


def _container(iterated: ast.expr) -> str | None:
    """What the loop goes over, if that is something which others can reach."""
    if isinstance(iterated, ast.Call):
        called = iterated.func
        if not isinstance(called, ast.Attribute) or called.attr not in ("values", "items", "keys") or iterated.args:
            return None
        iterated = called.value
    return ast.unparse(iterated) if isinstance(iterated, ast.Attribute) else None


def _gives_way(loop: ast.For) -> bool:
    """Whether others run in its body: what it goes over is called, or something is awaited."""
    names = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    for node in (node for statement in loop.body for node in ast.walk(statement)):
        if isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            return True
    return False


def loops(source: str) -> Iterator[str]:
    """The loops in which it would matter."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.For) and (container := _container(node.iter)) is not None and _gives_way(node):
            yield container


@pytest.mark.parametrize("package", ["metad", "metad_amqtt", "metad_client", "metad_wire"])
def test_who_calls_callbacks_goes_over_a_copy(package: str) -> None:
    assert house.findings(package, loops) - {*_FIXED} == set()


def test_it_is_found() -> None:
    assert [*loops("for each in self._listeners:\n    each(1)")] == ["self._listeners"]
    assert [*loops("for key, each in self.a.items():\n    if key:\n        each()")] == ["self.a"]
    assert [*loops("async def f():\n    for each in self.a.values():\n        await each.close()")] == ["self.a"]
    assert [*loops("for each in list(self.a):\n    each(1)\nfor each in self.a:\n    each.go()")] == []
