"""The messages of a node's settings: what it has, where that is from, and what is set while it runs."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ..messages import Message

SETTING_BYTES_MAX = 256


class GetSettings(Message, frozen=True):
    """Asks a node for its settings. ``not_found`` if there is none of this name."""

    setting: Annotated[str, Meta(max_length=SETTING_BYTES_MAX)] = ""
    """As ``limits.slow_ms``; empty: all."""


class SetSetting(Message, frozen=True):
    """Sets a setting of a node while it runs: it counts over the configuration file, also after a restart. ``conflict``
    if a restart is needed, which says which file to edit; ``invalid_request`` if the value does not fit."""

    setting: Annotated[str, Meta(max_length=SETTING_BYTES_MAX)]
    value: Annotated[str, Meta(max_length=4096)] | None = None
    """As in the file, or with a unit: ``30s``, ``64MiB``. None: the configuration file counts again."""


class NodeSetting(Message, frozen=True):
    """A setting of a node. Values are JSON."""

    setting: str
    value: str
    """What counts."""
    source: str
    """``default``, ``file``, ``environment``, ``flag``, ``run time``, or ``program`` of an embedded node."""
    configured: str
    """What would count if nothing were set at run time."""
    default: str
    live: bool
    """Whether it can be set while the node runs."""
    least: float = 0
    """The bounds of a number that is live."""
    most: float = 0
    own: bool = False
    """Whether nodes of a cluster differ in it."""


class SettingsReply(Message, frozen=True):
    """Lists settings of a node."""

    settings: list[NodeSetting]
    file: str = ""
    """Its configuration file; empty: it has none."""
