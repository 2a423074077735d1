"""``m.config``: settings that brokers take over while they run, what they were before, and what holds for one broker,
topic or client."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Annotated, Final, Literal, NamedTuple, get_args

import msgspec
from msgspec import Meta

from metad_wire.families.core import CONFIG_HISTORY, DYNAMIC_CONFIG, ConfigHistory, DynamicConfig
from metad_wire.messages import TableRecord

from ..errors import InvalidRequestError, MetadError
from ..namespaces.tables import Compare, Delete, Put, Records, Transaction
from ..requests.requests import Requests
from ..requests.wrong import argument, sequence
from ..results import RuleResult
from . import Rules, Step, checked, of_fit, only

ScopeKind = Literal["cluster", "region", "broker", "tenant", "namespace", "topic", "group", "client"]
WIDTH: Final = {kind: at for at, kind in enumerate(get_args(ScopeKind))}
"""The widest kind of scope first."""
KEPT: Final = 10
"""Values that are kept of a setting, with the one that holds."""
Kept = Annotated[int, Meta(ge=1, le=100)]


class Setting(msgspec.Struct, frozen=True):
    """What a setting is to be."""

    scope_kind: ScopeKind
    scope: str
    """Its name: of what belongs to a tenant as ``TENANT/NAME``; empty: all of that kind."""
    name: str
    value: str | None
    """None: it is not to be set."""


class Change(NamedTuple):
    """A value that a setting has had."""

    value: str | None
    """None: it was not set."""
    changed_at_ms: int
    """Unix time from which it held, by the clock of whoever set it; 0: nobody knows."""


class Effective(NamedTuple):
    """What holds of a setting, and the scope that says so."""

    value: str
    scope_kind: ScopeKind
    scope: str


class Config(Rules):
    """Sets settings and says what holds. A ``*_many`` method reports errors per item in its result; ``deadline_s`` is
    that of each request, and None means the client's default."""

    def __init__(self, requests: Requests) -> None:
        super().__init__(requests)
        self._settings: Records[DynamicConfig] = Records(requests, DYNAMIC_CONFIG)
        self._history: Records[ConfigHistory] = Records(requests, CONFIG_HISTORY)

    async def set_many(
        self, items: Sequence[Setting], *, keep: int = KEPT, deadline_s: float | None = None
    ) -> RuleResult[bool]:
        """Set settings, and keep their last ``keep`` values (1 to 100) with their times, each in one transaction. The
        result has whether each has changed: to the value that it has already it is not set again. A value that was put
        otherwise becomes part of the history at the next change. Item errors: InvalidItemError, and ConflictError if
        others change the setting all the time."""
        argument("keep", keep, Kept)
        return RuleResult(await self._set(items, keep, deadline_s))

    async def set(
        self,
        scope_kind: ScopeKind,
        scope: str,
        name: str,
        value: str | None,
        *,
        keep: int = KEPT,
        deadline_s: float | None = None,
    ) -> bool:
        """Set one setting as :meth:`set_many` does, or with None unset it. Raises the error of its item."""
        argument("keep", keep, Kept)
        return only(await self._set([Setting(scope_kind, scope, name, value)], keep, deadline_s))

    async def history(
        self, scope_kind: ScopeKind, scope: str, name: str, *, deadline_s: float | None = None
    ) -> list[Change]:
        """Read the values that a setting has had, the oldest first; the last one holds, unless a plain put or delete
        has replaced it."""
        found = await self._history.get(scope_kind, scope, name, deadline_s=deadline_s)
        return [] if found is None else _changes(found.record)

    async def effective(
        self,
        scopes: Sequence[tuple[ScopeKind, str]],
        names: Sequence[str] | None = None,
        *,
        deadline_s: float | None = None,
    ) -> dict[str, Effective]:
        """What holds of settings for something that is in these scopes, by their names: of all, or of ``names``. The
        narrowest scope that says something wins, in the order of :data:`WIDTH`, whatever theirs is in ``scopes``. What
        is said of all of a kind (scope ``""``) counts as wider than one of them, and need not be named, nor the whole
        cluster; a setting that is said nowhere is absent. Of several scopes of one kind the last wins. ::

            found = await m.config.effective([("tenant", "acme"), ("topic", "acme/orders")], ["retention_ms"])
        """
        if names is not None:
            argument("names", names := sequence("names", names, "str"), list[str])
        found: dict[str, Effective] = {}
        for record in await self._said(_widest_first(scopes), names, deadline_s):
            found[record.name] = Effective(record.value, record.scope_kind, record.scope)
        return found

    async def _said(
        self, scopes: Sequence[tuple[ScopeKind, str]], names: Sequence[str] | None, deadline_s: float | None
    ) -> Iterable[DynamicConfig]:
        """What scopes say, in their order."""
        if names is None:
            return [one.record for at in scopes async for one in self._settings.list(*at, deadline_s=deadline_s)]
        found = await self._settings.get_many([(*at, name) for at in scopes for name in names], deadline_s=deadline_s)
        found.raise_for_error()
        return [one.record for one in found if one is not None]

    async def _set(self, items: Sequence[Setting], keep: int, deadline_s: float | None) -> list[bool | MetadError]:
        async def look(some: Sequence[Setting]) -> list[bool | Step[bool] | MetadError]:
            keys = [(one.scope_kind, one.scope, one.name) for one in some]
            settings = await self._settings.get_many(keys, deadline_s=deadline_s)
            history = await self._history.get_many(keys, deadline_s=deadline_s)
            failed = {**history.errors, **settings.errors}
            return [
                failed[at] if at in failed else _next(one, settings[at], history[at], keep)
                for at, one in enumerate(some)
            ]

        return await of_fit(checked(items, Setting), lambda fit: self._done(fit, look, _name, deadline_s))


def _name(item: Setting) -> str:
    return f"setting {item.scope_kind} {item.scope}/{item.name}"


def _next(
    item: Setting, setting: TableRecord[DynamicConfig] | None, history: TableRecord[ConfigHistory] | None, keep: int
) -> bool | Step[bool]:
    now = None if setting is None else setting.record.value
    if now == item.value:
        return False
    key = (item.scope_kind, item.scope, item.name)
    known = [] if history is None else _changes(history.record)
    if now != (known[-1].value if known else None):
        known.append(Change(now, 0))
    since = max([time.time_ns() // 1_000_000, *(one.changed_at_ms for one in known)])
    kept = [*known, Change(item.value, since)][-keep:]
    record = ConfigHistory(*key, [one.value for one in kept], [one.changed_at_ms for one in kept])
    compares = [
        Compare(DYNAMIC_CONFIG, key, 0 if setting is None else setting.version),
        Compare(CONFIG_HISTORY, key, 0 if history is None else history.version),
    ]
    write = Delete(DYNAMIC_CONFIG, key) if item.value is None else Put(DYNAMIC_CONFIG, DynamicConfig(*key, item.value))
    return Step(Transaction(compares=compares, then=[write, Put(CONFIG_HISTORY, record)]), True)


def _changes(record: ConfigHistory) -> list[Change]:
    return [Change(value, at_ms) for value, at_ms in zip(record.values, record.changed_at_ms, strict=False)]


def _widest_first(scopes: Sequence[tuple[ScopeKind, str]]) -> list[tuple[ScopeKind, str]]:
    """With all of each kind in front of one of it. Raises InvalidRequestError."""
    whole: list[tuple[ScopeKind, str]] = [("cluster", "")]
    named: list[tuple[ScopeKind, str]] = []
    for scope in sequence("scopes", scopes, "kinds and names"):
        if not isinstance(scope, list | tuple) or len(scope) != 2:
            raise InvalidRequestError(f"scopes: expected a kind and a name, got {type(scope).__name__}")
        kind, name = scope
        argument("scopes: kind", kind, ScopeKind)
        argument("scopes: name", name, str)
        whole.append((kind, ""))
        named += [(kind, name)] if name else []
    return sorted(dict.fromkeys([*whole, *named]), key=lambda scope: (WIDTH[scope[0]], bool(scope[1])))
