"""Watchers of a simulated cluster: the production SDK's ``client.watch`` and ``client.image``, with a judge who hears
all that they are told.

A :class:`Watcher` lives through several lives of its process. It keeps tokens, as a program would, and begins each
life at one of them.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from metad_client import (
    Image,
    KvKey,
    Options,
    Session,
    SessionKey,
    SessionOwner,
    SessionProperties,
    Watch,
    WatchBatch,
    Watched,
    WatchEvent,
)
from metad_client.watch.token import from_text
from metad_judge.invariants import Violation
from metad_judge.watch import Told, Wanted, WatchJudge
from metad_judge.written import Key
from metad_wire.families import FAMILIES, KNOWN
from metad_wire.table import ROWS, TABLES
from metad_wire.tables.session import SESSION
from metad_wire.watch import ChangeKind

from .cluster import Cluster, SimClient

_OPENS_S: Final = 30.0
"""A watch is open within this time, in a cluster that works."""
_WANTED: Final = (
    Wanted("kv"),
    Wanted("kv"),
    Wanted("kv", tenant="ns0"),
    Wanted("kv", tenant="ns1", prefix="k"),
    Wanted("kv", prefix="pair"),
    Wanted("session"),
    Wanted("session", tenant="acme", prefix="device-1"),
    Wanted("offset"),
    Wanted("offset", tenant="acme", prefix="group-0"),
    Wanted("cluster"),
    Wanted("topic_settings"),
    Wanted("segment"),
    Wanted("segment", tenant="acme", prefix="parts0"),
)
"""What watchers of :class:`.workload.Caller` may want."""
_KEYS: Final = Wanted("kv", keys=(KvKey("ns0", "k"), KvKey("pair1", "b"), KvKey("gone0", "k")))


class Watcher:
    """One program that watches. To be told apart by its name."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        *wanted: Wanted,
        snapshot: bool = False,
        keeps: Callable[[], bool] = lambda: True,
        pauses: Callable[[], float] = lambda: 0.0,
        options: Options | None = None,
        **how: Any,
    ) -> None:
        """``keeps``: whether to keep the token of a batch. ``pauses``: for how long to take no batch. ``how`` goes to
        ``client.watch``."""
        self.cluster = cluster
        self.name = name
        self.wanted = wanted
        self.judge = WatchJudge(
            name,
            cluster.written,
            wanted,
            snapshot=snapshot,
            previous=how.get("previous", False),
            keys_only=how.get("keys_only", False),
            coalesce=how.get("coalesce", False),
        )
        self.lives = 0
        self.batches = self.told = self.gaps = 0
        self.marks = 0
        """Of progress."""
        self.rows = 0
        """Of snapshots."""
        self.open = False
        """All its streams have begun, in this life."""
        self.kinds: Counter[ChangeKind] = Counter()
        self.token: str | None = None
        """The newest."""
        self.client: SimClient | None = None
        self._snapshot = snapshot
        self._keeps = keeps
        self._pauses = pauses
        self._options = options
        self._how = how
        self._kept: list[tuple[str, WatchJudge]] = []

    def begin(self) -> None:
        """A new life, from where the last one was: from the token that was kept last, or as the first time."""
        assert self.client is None
        self.lives += 1
        self.open = False
        token = None
        if self._kept:
            token, judge = self._kept[-1]
            self.judge = judge.resumed(f"{self.name}, life {self.lives}")
        elif self.lives > 1:
            self.judge = WatchJudge(
                self.name, self.cluster.written, self.wanted, snapshot=self._snapshot, **self._of_judge()
            )
        client = self.client = self.cluster.client(self._options)
        self.cluster.trace(f"{self.name} begins as {client.name}, {'at a token' if token else 'anew'}")
        self.cluster.work(client.process, self._watch(client, self.judge, token), self.name)

    def _of_judge(self) -> dict[str, bool]:
        return {name: self._how.get(name, False) for name in ("previous", "keys_only", "coalesce")}

    def kill(self) -> None:
        """Its process dies, at any moment."""
        if self.client is not None:
            self.cluster.trace(f"{self.name} is killed")
            self.cluster.network.crash(self.client.process, self.client.name, silently=False)
            self.client = None

    def branch(self, rng: random.Random) -> Watcher | None:
        """Another one, that begins at any of the tokens that were kept."""
        if not self._kept:
            return None
        token, judge = rng.choice(self._kept)
        other = Watcher(
            self.cluster,
            f"{self.name}'s other",
            *self.wanted,
            snapshot=self._snapshot,
            keeps=self._keeps,
            options=self._options,
            **self._how,
        )
        other._kept = [(token, judge)]
        return other

    async def _watch(self, host: SimClient, judge: WatchJudge, token: str | None) -> None:
        client = await host.open()
        how = {**asked(self.wanted), **self._how}
        how |= {"token": token} if token else {"start": "snapshot" if self._snapshot else "now"}
        async with client.watch(**how) as watch:
            self.cluster.work(host.process, self._open(watch, host, judge), f"{self.name} opens")
            async for batch in watch:
                if self.client is not host:
                    return
                self._hear(judge, batch)
                if pause_s := self._pauses():
                    await asyncio.sleep(pause_s)
            raise Violation("endless", f"{self.name}: the watch has ended without an error")

    async def _open(self, watch: Watch, host: SimClient, judge: WatchJudge) -> None:
        await watch.opened()
        if self.client is host:
            judge.opened()
            self.open = True

    def _hear(self, judge: WatchJudge, batch: WatchBatch) -> None:
        self.batches += 1
        self.cluster.trace(f"{self.name} hears {batch.kind} {batch.group} {len(batch.events)}")
        indexes, kind, slots = indexes_of(batch.token), batch.group.rpartition("-")[0], batch.slot_bits
        if batch.kind == "changes":
            judge.changes([told(event) for event in batch.events])
            self.told += len(batch.events)
            self.kinds.update(event.kind for event in batch.events)
        elif batch.kind == "gap":
            judge.gap(kind, slots)
            self.gaps += 1
        elif batch.kind == "snapshot":
            if batch.first:
                judge.snapshot(kind, slots)
            for event in batch.events:
                judge.row(key_of(event), event.record)
            self.rows += len(batch.events)
            if batch.last:
                judge.shown(batch.group, indexes[batch.group], slots)
        else:
            judge.progress(indexes)
            self.marks += 1
        self.token = batch.token
        if self._keeps():
            self._kept = [*self._kept[-9:], (batch.token, judge.resumed(self.name))]

    # --- the end -----------------------------------------------------------------------------------------

    @property
    def late(self) -> bool:
        """Whether something has not come that is due."""
        return self.judge.waits

    def finish(self) -> None:
        """Everything should have come."""
        passed = {} if self.token is None else indexes_of(self.token)
        self.judge.finish(lambda group: passed.get(group, 0))


def draw_watcher(cluster: Cluster, rng: random.Random, name: str) -> Watcher:
    """One with filters and habits of its own."""
    wanted = rng.sample(_WANTED, rng.choice([1, 1, 2, 3])) if rng.random() < 0.9 else [_KEYS]
    kept, slow = rng.choice([0.0, 0.1, 0.5, 1.0]), rng.choice([0.0, 0.0, 0.02, 0.1])
    how: dict[str, Any] = {}
    if rng.random() < 0.3:
        how["progress_s"] = rng.choice([0.1, 1.0])
    variant = rng.random()
    if variant < 0.4:
        how["previous"] = True
    elif variant < 0.55:
        how["keys_only"] = True
    elif variant < 0.7:
        how["coalesce"] = True
    return Watcher(
        cluster,
        name,
        *wanted,
        snapshot=rng.random() < 0.35,
        keeps=lambda: rng.random() < kept,
        pauses=lambda: rng.uniform(0.1, 2.0) if rng.random() < slow and not cluster.quiet else 0.0,
        options=Options(connect_timeout_s=60.0, ping_interval_s=rng.choice([0.5, 2.0])),
        **how,
    )


class Mirror:
    """A program that keeps an image."""

    def __init__(self, cluster: Cluster, name: str, *wanted: Wanted) -> None:
        self.cluster = cluster
        self.name = name
        self.wanted = wanted
        self.client: SimClient | None = None
        self.caught_up = False
        """It was, once."""
        self._image: Image | None = None

    def begin(self) -> None:
        """Begin the image, in a process of its own."""
        client = self.client = self.cluster.client()
        self.cluster.work(client.process, self._keep(client), self.name)

    async def _keep(self, host: SimClient) -> None:
        client = await host.open()
        before = len(self.cluster.written.log)
        image = self._image = client.image(**asked(self.wanted))
        await image.caught_up(None)
        if self.client is host:
            self.caught_up = True
            self._look_back(image, before)

    def _look_back(self, image: Image, before: int) -> None:
        """What was written when the image was opened, is in it once it says that it has caught up."""
        if lacking := self._lacking(image, before):
            raise Violation("fresh", f"{self.name}: {lacking} was made before it began")

    def _lacking(self, image: Image, before: int) -> str:
        """A row that the image has as it was before one of the changes up to this number; empty if there is none."""
        written = self.cluster.written
        for key, changes in written.keys.items():
            if key.row not in image._picture.rows or changes[0].number > before:
                continue
            last = max(at for at, change in enumerate(changes) if change.number <= before)
            values = [change.value for change in changes[last:]]
            if not any(each.passes(key, value) for each in self.wanted for value in values if value is not None):
                continue
            # An adoption writes deadlines by the clock of the group that has the slot from then on.
            moved = written.values_of(key) - {None, *(change.value for change in changes[:last])}
            held = image._picture.rows[key.row].get(key.fields)
            if held not in [None if value is None else key.record(value) for value in {*values, *moved}]:
                return f"{key} is {held!r}, and {changes[last]}"
        return ""

    def wrong(self) -> str:
        """How the image differs from what is written; empty if it does not."""
        if self._image is None or not self.caught_up:
            return "it has not caught up"
        for label, records in self._written().items():
            held = dict(self._image._table(label).items())
            if held.keys() != records.keys():
                differ = sorted(held.keys() ^ records.keys(), key=repr)
                key = differ[0]
                return f"{len(differ)} of {label}; {key} is {held.get(key)!r}, not {records.get(key)!r}"
        return self._lacking(self._image, len(self.cluster.written.log))

    def _written(self) -> dict[str, dict[Any, Any]]:
        """What the tables of the image should have."""
        written = self.cluster.written
        rows: dict[int, dict[Any, Any]] = {row: {} for each in self.wanted for row in TABLES[each.table].shows}
        for key in written.keys:
            value = written.now(key)
            if key.row in rows and value is not None and any(each.passes(key, value) for each in self.wanted):
                rows[key.row][key.shown] = key.record(value)
        labels = {next(name for name, byte in ROWS[row].rows.items() if byte == row): row for row in rows}
        found = {}
        for name, row in labels.items():
            table = ROWS[row]
            if table is not SESSION:
                found[table.name if row == next(iter(table.shows)) else f"{table.name}/{name}"] = rows[row]
        if "owner" in labels:
            properties = rows[labels["properties"]]
            found[SESSION.name] = {
                key: _session(key, owner, properties[key]) for key, owner in rows[labels["owner"]].items()
            }
        return found

    def finish(self, seconds: float) -> None:
        """It becomes what was written, within so much time."""
        if not self.cluster.run_until(lambda: not self.wrong(), seconds):
            raise Violation("image", f"{self.name}: {self.wrong()}")


def _session(key: SessionKey, owner: SessionOwner, properties: SessionProperties) -> Session:
    of_owner = owner.connected, owner.broker, owner.broker_epoch, owner.disconnected_ms
    return Session(key.tenant, key.client_id, *of_owner, properties, owner.expires_ms, owner.will_ms)


def asked(wanted: Sequence[Wanted]) -> dict[str, Any]:
    """What is wanted, as the SDK takes it. Keys are asked for by themselves."""
    keys = [key for each in wanted for key in each.keys]
    if keys:
        return {"tables": [each.table for each in wanted], "keys": keys}
    return {"tables": [Watched(each.table, each.tenant, each.prefix, each.broker or "") for each in wanted]}


def indexes_of(token: str) -> dict[str, int]:
    """Up to where a token says that groups were read."""
    _, kinds = from_text(token)
    return {f"{kind}-{group}": index for kind, position in kinds.items() for group, index in position.indexes.items()}


def key_of(event: WatchEvent) -> Key:
    """The row that an event is of."""
    table = KNOWN[event.table]
    row = next(iter(table.shows)) if table.name in FAMILIES else table.rows[event.row]
    shown = table.shows[row].key
    fields = [] if shown is None else [getattr(event.key, field) for field in table.key if hasattr(event.key, field)]
    return Key(row, table.key_of(fields))


def told(event: WatchEvent) -> Told:
    """An event, for the judge."""
    return Told(
        key_of(event),
        event.kind,
        event.revision.group,
        event.revision.index,
        event.version,
        event.record,
        event.previous,
        event.previous_known,
    )
