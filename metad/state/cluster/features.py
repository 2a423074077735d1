"""Features of the cluster: their rows in ``metadata-0``, and what every node knows of them by its copy.

Who decides that a feature is switched on is :mod:`metad.control.features`. Here is what holds whoever decides: what is
on stays on, and what an administrator holds is not switched on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from metad_wire import methods
from metad_wire.errors import ConflictError, InvalidItemError
from metad_wire.tables.feature import (
    CHECKED_ENTRIES,
    FEATURE,
    FEATURES,
    FEATURES_MAX,
    FeatureRecord,
    FeatureWish,
)

from ...config import Config
from ..core.part import PartContext
from ..core.verb import Verb
from ..core.view import View
from .named_rows import KnownRows, NamedRows

_ROWS = NamedRows(FEATURE, FeatureRecord, FEATURES_MAX)


class KnownFeatures:
    """The features as one node knows them."""

    def __init__(self, config: Config | None = None) -> None:
        self.records: dict[str, FeatureRecord] = {}
        """By name, those of which something is kept."""
        self.on: frozenset[str] = frozenset()
        """Those that are on."""
        self.checks_entries = False
        """Whether entries have a checksum, by which every replica tells damage."""
        self.listeners: list[Callable[[FeatureRecord], None]] = []
        """They hear of each feature that is on, when the node starts or as soon as it is switched on."""

    def know(self, name: str, record: FeatureRecord | None) -> None:
        """A feature is so now; None: nothing is kept of it any more."""
        self.records.pop(name, None)
        if record is not None:
            self.records[name] = record
        before, self.on = self.on, frozenset(one.feature for one in self.records.values() if one.state == "on")
        self.checks_entries = CHECKED_ENTRIES in self.on
        if record is not None and name in self.on - before:
            for listener in list(self.listeners):
                listener(record)

    def refusal(self, known: Iterable[str], software: str) -> str:
        """Why a node whose software knows these features may not take part, and what to do; empty if it may."""
        lacking = [self.records[name] for name in sorted(self.on.difference(known))]
        if not lacking:
            return ""
        since = lacking[-1].since
        version = f"metad {since} or newer" if since else "a newer metad"
        named = ", ".join(one.feature for one in lacking)
        return f"{named}: switched on in this cluster, and {software} does not know it: start {version}"


class Features(KnownRows):
    """Tells the node of features."""

    rows = (_ROWS.row,)
    named = _ROWS

    def __init__(self, context: PartContext) -> None:
        super().__init__(context)
        self.shared: KnownFeatures = context.memory.shared(KnownFeatures)

    def known(self) -> Iterable[str]:
        return self.shared.records

    def know(self, name: str, record: Any) -> None:
        self.shared.know(name, record)


def _change(view: View, item: FeatureWish, known: FeatureRecord | None) -> FeatureRecord:
    if known is None and item.feature not in FEATURES:
        raise InvalidItemError(f"{item.feature[:256]!r} is no feature that is known here")
    if known is not None and known.state == "on":
        raise ConflictError(f"{item.feature} is on, and stays on: records that older software cannot read may be there")
    return _record(view, item.feature, item.state, known)


def _switch(view: View, item: FeatureRecord, known: FeatureRecord | None) -> FeatureRecord:
    if known is not None and known.state == "held":
        raise ConflictError(f"{item.feature} is held")
    if known is not None and known.state == "on":
        return known
    return _record(view, item.feature, "on", known)


def _record(view: View, name: str, state: Any, known: FeatureRecord | None) -> FeatureRecord:
    feature = FEATURES.get(name)
    since = feature.since if feature is not None else known.since if known is not None else ""
    return FeatureRecord(name, state, since, view.now_ms)


VERBS: tuple[Verb[Any, Any], ...] = (
    _ROWS.writes(methods.FEATURE_CHANGE, _change, grows=False),
    _ROWS.writes(methods.FEATURE_SWITCH, _switch),
    _ROWS.lists(methods.FEATURE_LIST),
)
