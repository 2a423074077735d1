"""What a cluster keeps of itself: its map, in ``metadata-0``; and in every group, what that group is.

Their keys are not routed, so no slot carries them.

The map says which nodes and groups exist, which nodes hold each group, and which group holds each slot. It is one
record, which is replaced as a whole and has a version that grows with each change.
"""

from __future__ import annotations

from typing import Any

from .. import cluster as c
from .. import messages as m
from ..method import By, For, Lane
from ..operator import backup as bak
from ..operator import moving as mv
from ..table import ANY_KIND, Shown, Table

GROUP: Table[Any] = Table(
    "group",
    kind=ANY_KIND,
    rows={"state": 0x00, "dedupe": 0x01, "fence": 0x03, "end": 0x04, "move": 0x0E},
    row_cache=True,
)
"""``state``: the applied index, the snapshot's mark, the slots that are held and the moves that brought
them. ``dedupe``: request identities. ``fence``: from which epoch on a broker may write; the key is its name. ``end``:
orders to end a tenant. ``move``: tenants that go to another cluster, or come from one."""
GROUP_COMMAND = GROUP.writes(
    0x000A, "command", c.GroupCommand, c.GroupReply, Lane.CONTROL, whose=For.NODES, routed=False
)
GROUP_FENCE = GROUP.writes(0x0520, "fence", c.GroupFence, m.WriteReply, Lane.CONTROL, whose=For.NODES, routed=False)

GROUP_RESTORE = GROUP.writes(0x0774, "restore", bak.Restore, bak.Restored, Lane.SCANS, whose=For.ADMINS, routed=False)
GROUP_MOVE_TENANT = GROUP.writes(
    0x07A0, "move_tenant", mv.TenantStep, mv.TenantStepped, Lane.SCANS, whose=For.ADMINS, routed=False
)
GROUP_PUT_TENANT = GROUP.writes(
    0x07A1, "put_tenant", mv.TenantPut, mv.TenantPutReply, Lane.SCANS, whose=For.ADMINS, routed=False
)
GROUP_COPY_TENANT = GROUP.reads(
    0x07A2, "copy_tenant", mv.TenantCopy, mv.TenantCopied, Lane.SCANS, whose=For.ADMINS, routed=False, repeatable=False
)

CLUSTER: Table[Any] = Table("cluster", kind="metadata", rows={"map": 0x02}, shows={"map": Shown(None, c.ClusterMap)})
CLUSTER_STORE = CLUSTER.writes(
    0x0003, "store", c.StoreMap, m.WriteReply, Lane.CONTROL, by=By.METADATA, whose=For.NODES, routed=False
)
