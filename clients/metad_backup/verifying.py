"""A backup is proven: it is restored into a node on this machine, which is backed up in turn, and compared."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from metad.embedded import serve
from metad_client import Client, connect

from .copies import Copy, opened, scratch_directory
from .repository import Repository
from .restoring import Done, Tell, restore
from .showing import Compared, compared
from .taking import take

_GROUPS: Final = {"data": 2, "offset": 1}
"""Others than most clusters have, so that rows change their groups."""


async def verify(copy: Copy, tell: Tell, scratch: Path | None = None) -> Compared:
    """Restore a backup into a node on this machine, and compare what that has then. Raises BackupError, MetadError."""
    logging.getLogger("metad").addHandler(logging.NullHandler())  # what the node says is of no use here
    with scratch_directory(scratch) as place:
        # In this process, so that it ends with it, however that ends.
        async with serve(place / "node", fsync=False, groups=_GROUPS) as node, connect(node.url) as m:
            _, found = await proven(m, copy, Repository(str(place / "backups"), create=True), scratch=place, tell=tell)
            return found


async def proven(
    m: Client, copy: Copy, repository: Repository, *, scratch: Path, tell: Tell = lambda _: None
) -> tuple[Done, Compared]:
    """Restore a backup into a new cluster, and compare it with a backup of that, into another repository, before the
    cluster serves: from then on it ends what was due, and writes. Raises BackupError, MetadError."""
    found: list[Compared] = []

    async def complete() -> None:
        manifest = await take(m, repository)
        with opened(repository, manifest, scratch=scratch) as restored:
            found.append(await asyncio.to_thread(compared, copy, restored))

    done = await restore(m, copy, complete=complete, tell=tell)
    return done, found[0]
