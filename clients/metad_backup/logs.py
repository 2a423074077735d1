"""The log of a group is read page by page, from whichever of its replicas has it: behind a backup, and behind the rows
of a tenant that moves."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from metad_client import Client, LogCutError, MetadError, NotReplicaError
from metad_wire.operator.backup import READ_BYTES_MAX, BackupEntries

ANSWER_S: Final = 60.0
"""A node or a group has so long for an answer, if nothing else is said: before a checkpoint a node waits for its
groups, then flushes."""
_PATIENCE_S: Final = 2.0
"""A node has so long while others can be asked. It is asked for what it has in memory."""
_LEAST_S: Final = 0.1
"""For a node that is asked when the time is nearly over."""


class Logs:
    """Reads the logs of a cluster. A node that has not answered is asked last from then on: else each page would wait
    for one that is dead."""

    def __init__(self, m: Client) -> None:
        self._m = m
        self._silent_s: dict[str, float] = {}
        """When a node has last not answered."""

    async def read(self, nodes: Sequence[str], group: str, after: int, wait_s: float) -> BackupEntries:
        """The next entries behind an index, of the first of these nodes that has them; together they have ``wait_s`` to
        answer. Raises LogCutError where no replica reaches back so far, or the error of the last node."""
        failures: list[MetadError] = []
        late_s = time.monotonic() + wait_s
        order = sorted(nodes, key=lambda node: self._silent_s.get(node, 0.0))
        for left, node in zip(range(len(order), 0, -1), order, strict=True):
            deadline_s = max(_LEAST_S, (late_s - time.monotonic()) / left)
            if left > 1:
                deadline_s = min(deadline_s, _PATIENCE_S)
            try:
                return await self._m.backups.log(node, group, after, READ_BYTES_MAX, deadline_s=deadline_s)
            except MetadError as error:
                failures.append(error)
                if not isinstance(error, LogCutError | NotReplicaError):
                    self._silent_s[node] = time.monotonic()
        cut = [error for error in failures if isinstance(error, LogCutError)]
        if cut and all(isinstance(error, LogCutError | NotReplicaError) for error in failures):
            raise cut[0]
        raise failures[-1]
