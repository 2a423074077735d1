"""Features of a cluster: what older software cannot read, and is therefore written only once all nodes can.

Each node says in its record of the cluster map which features its software knows. Once all nodes know one, and are
connected, the leader of ``metadata-0`` switches it on after ``cluster.features_after_ms``, or at once if an
administrator *allows* it; one that is *held* stays off. What is on stays on: from then on a node whose software does
not know the feature is refused. Until then each node may go back to the version before.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from .. import messages as m
from ..method import By, For, Lane
from ..table import Table
from ..text.fields import U63

FEATURES_MAX = 1_000
"""Features of which something is kept."""
CHECKED_ENTRIES: Final = "checked-entries"
LEADER_REGIONS: Final = "leader-regions"
REMOVED_GROUPS: Final = "removed-groups"
TENANT_MOVES: Final = "tenant-moves"


class Feature(NamedTuple):
    """What this software knows of a feature."""

    name: str
    since: str
    """The first version that knows it."""
    about: str


FEATURES: Final[dict[str, Feature]] = {
    one.name: one
    for one in (
        Feature(
            CHECKED_ENTRIES,
            "0.2.0",
            "entries of the log have a checksum, which every replica compares before it applies them",
        ),
        Feature(LEADER_REGIONS, "0.2.0", "groups can prefer leaders of a region: the cluster map keeps which"),
        Feature(
            REMOVED_GROUPS,
            "0.2.0",
            "groups can be removed: the cluster map keeps which there were, so that no other is called so again",
        ),
        Feature(
            TENANT_MOVES,
            "0.2.0",
            "tenants can move to another cluster: whoever leads a group refuses what is about a tenant on its way",
        ),
    )
}
"""What this software knows, by name. A feature stays here for ever: it may be on in any cluster."""

FeatureState = Literal["on", "held", "allowed"]


class FeatureRecord(m.Message, frozen=True):
    """Says how a feature is. One of which there is no record is off, and is switched on when its time has come."""

    feature: str
    """Its name."""
    state: FeatureState
    """``on``: for ever. ``held``: it is not switched on. ``allowed``: it is as soon as all nodes know it."""
    since: str = ""
    """The first version that knows it; empty if whoever wrote the record does not know it."""
    when_ms: U63 = 0
    """Of the last change, by the time of the log, in Unix milliseconds."""


class FeatureWish(m.Message, frozen=True):
    """Holds a feature back, or allows it."""

    feature: str
    state: Literal["held", "allowed"]


class FeatureList(m.Message, frozen=True):
    """Lists what is kept of features."""

    prefix: str = ""
    page: m.Page = m.Page()
    min_revisions: m.Revisions = []  # noqa: RUF012 - msgspec copies it


FEATURE = Table("feature", kind="metadata", rows={"feature": 0x0D}, record=FeatureRecord, key=("feature",), routing=())
FEATURE_CHANGE = FEATURE.batches(
    0x0758,
    "change",
    FeatureWish,
    "Hold features back, or allow them. Item errors: conflict (it is on, which is for ever), invalid_item (no software "
    "here knows it), quota_exceeded.",
    named="changes",
    by=By.METADATA,
    whose=For.ADMINS,
)
FEATURE_SWITCH = FEATURE.batches(
    0x0759,
    "switch",
    FeatureRecord,
    "Switch features on that all nodes know.",
    named="records",
    lane=Lane.SCANS,
    by=By.METADATA,
    whose=For.NODES,
)
FEATURE_LIST = FEATURE.lists(
    0x075A,
    "list",
    FeatureList,
    FeatureRecord,
    "What is kept of features whose names start with ``prefix``, in order.",
    by=By.METADATA,
)
