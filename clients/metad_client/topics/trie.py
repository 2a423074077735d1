"""A trie of topic filters, for millions of them in one process.

A node stands for the first levels of filters. Where only one filter goes on from there, its other levels are one text
(:class:`_Leaf`), so most filters cost one small object and one entry in the dictionary of their node. Nodes and leaves
have no pointers upwards, so they need no garbage collector, and it never has to look at them.
"""

from __future__ import annotations

from typing import Any, Generic, TypeAlias, TypeVar, cast

import msgspec

from metad_wire.text.topics import ALL_BELOW, ANY_LEVEL, SEPARATOR, check_filter, is_hidden, match_levels

V = TypeVar("V")


class _Node(msgspec.Struct, gc=False):
    """``here``: the value of the filter that ends here; ``below``: of the one that ends with "#" behind this node;
    ``any_level``: what is behind a "+". None where there is nothing."""

    children: dict[str, _Child]
    any_level: _Child | None = None
    here: Any = None
    below: Any = None

    def is_empty(self) -> bool:
        return self.here is None and self.below is None and self.any_level is None and not self.children


class _Leaf(msgspec.Struct, gc=False):
    """The only filter behind this level. ``rest``: its levels from here on, None if there are none. ``wild``: whether
    these have wildcards."""

    rest: str | None
    wild: bool
    value: Any


_Child: TypeAlias = _Node | _Leaf


class FilterTrie(Generic[V]):
    """Topic filters, each with a value, which is not None. A filter is as MQTT defines it, but for ``$share``, which
    means nothing here (:class:`~metad_client.topics.Subscribers` knows groups).

    A value should not refer to the trie that holds it: the garbage collector does not find such a circle.
    The work of a match is bounded by the nodes that filters of other clients have made: at most one for each way of
    putting "+" for a level of the topic.
    """

    def __init__(self) -> None:
        self._root = _Node({})
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, filter_: str) -> V | None:
        """The value of a filter; None if the trie does not have it."""
        node, levels = self._root, filter_.split(SEPARATOR)
        last = len(levels) - 1
        for at, level in enumerate(levels):
            if level == ALL_BELOW and at == last:
                return cast("V | None", node.below)
            child = node.any_level if level == ANY_LEVEL else node.children.get(level)
            if child is None:
                return None
            if isinstance(child, _Leaf):
                return cast("V", child.value) if child.rest == _rest(levels, at + 1) else None
            node = child
        return cast("V | None", node.here)

    def put(self, filter_: str, value: V) -> V | None:
        """Set the value of a filter, and return the one that it had. Raises InvalidRequestError if the filter is not
        right."""
        check_filter(filter_)
        levels = filter_.split(SEPARATOR)
        node = self._root
        for at, level in enumerate(levels):
            if level == ALL_BELOW:
                before, node.below = node.below, value
                break
            child = node.any_level if level == ANY_LEVEL else node.children.get(level)
            if child is None:
                _attach(node, level, _leaf(_rest(levels, at + 1), value))
                before = None
                break
            if isinstance(child, _Leaf):
                if child.rest == _rest(levels, at + 1):
                    before, child.value = child.value, value
                    break
                child = _split(child)
                _attach(node, level, child)
            node = child
        else:
            before, node.here = node.here, value
        self._count += before is None
        return cast("V | None", before)

    def pop(self, filter_: str) -> V | None:
        """Remove a filter, and return its value; None if the trie did not have it."""
        node, levels = self._root, filter_.split(SEPARATOR)
        path: list[tuple[_Node, str]] = []
        before: Any = None
        last = len(levels) - 1
        for at, level in enumerate(levels):
            if level == ALL_BELOW and at == last:
                before, node.below = node.below, None
                break
            child = node.any_level if level == ANY_LEVEL else node.children.get(level)
            if child is None:
                return None
            if isinstance(child, _Leaf):
                if child.rest != _rest(levels, at + 1):
                    return None
                before = child.value
                _detach(node, level)
                break
            path.append((node, level))
            node = child
        else:
            before, node.here = node.here, None
        if before is None:
            return None
        self._count -= 1
        while path and node.is_empty():
            node, level = path.pop()
            _detach(node, level)
        return cast("V", before)

    def match(self, topic: str) -> list[V]:
        """The values of all filters that match a topic name, in no particular order. The name has to be right, which
        :func:`metad_wire.text.topics.check_topic` says."""
        found: list[Any] = []
        levels = topic.split(SEPARATOR)
        left = len(topic) + 1  # characters from the next level on, with a separator in front of it
        nodes = [self._root]
        hidden = is_hidden(topic)  # the first level is not for wildcards
        for at, level in enumerate(levels, 1):
            left -= len(level) + 1
            following: list[_Node] = []
            for node in nodes:
                child = node.children.get(level)
                if child is not None:
                    if type(child) is _Node:
                        following.append(child)
                    elif _goes_on(child, topic, left, levels, at):  # type: ignore[arg-type]  # it is a leaf
                        found.append(child.value)  # type: ignore[union-attr]
                if hidden:
                    continue
                if node.below is not None:
                    found.append(node.below)
                child = node.any_level
                if child is not None:
                    if type(child) is _Node:
                        following.append(child)
                    elif _goes_on(child, topic, left, levels, at):  # type: ignore[arg-type]
                        found.append(child.value)  # type: ignore[union-attr]
            if not following:
                return found
            nodes, hidden = following, False
        for node in nodes:
            if node.below is not None:
                found.append(node.below)
            if node.here is not None:
                found.append(node.here)
        return found


def _rest(levels: list[str], begin: int) -> str | None:
    return SEPARATOR.join(levels[begin:]) if begin < len(levels) else None


def _leaf(rest: str | None, value: Any) -> _Leaf:
    wild = rest is not None and (ANY_LEVEL in rest or ALL_BELOW in rest)
    return _Leaf(rest, wild, value)


def _goes_on(leaf: _Leaf, topic: str, left: int, levels: list[str], at: int) -> bool:
    """Whether the rest of a leaf matches the levels of a topic from ``at`` on: its last ``left`` characters but one."""
    rest = leaf.rest
    if leaf.wild:
        return match_levels(cast("str", rest).split(SEPARATOR), levels[at:])
    if rest is None:
        return left == 0
    return len(rest) == left - 1 and topic.endswith(rest)


def _attach(node: _Node, level: str, child: _Child) -> None:
    if level == ANY_LEVEL:
        node.any_level = child
    else:
        node.children[level] = child


def _detach(node: _Node, level: str) -> None:
    if level == ANY_LEVEL:
        node.any_level = None
    else:
        del node.children[level]


def _split(leaf: _Leaf) -> _Node:
    """A node in place of a leaf, with the leaf's filter behind it."""
    node = _Node({})
    if leaf.rest is None:
        node.here = leaf.value
    elif leaf.rest == ALL_BELOW:
        node.below = leaf.value
    else:
        level, separator, rest = leaf.rest.partition(SEPARATOR)
        _attach(node, level, _leaf(rest if separator else None, leaf.value))
    return node
