"""Watches of three real nodes, through leaders that are killed, slots that move and logs that are cut: nine properties.

All of them are about one record: what the writers know to have written, and what each watcher was told. A key has one
writer, who waits for each answer, so the order of its changes is known without asking the service.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import pytest
from e2e_nodes import NAMES, PAUSE_S, Nodes

from metad_client import Client, KvPutItem, MetadError, SessionProperties, WatchEvent, connect
from metad_client.options import Options
from metad_client.watch.token import from_text
from metad_wire.cluster import SLOTS
from metad_wire.key import SLOT_MASK, text
from metad_wire.watch import ChangeKind

CONFIG = """
[groups]
data = 2
offset = 1
[storage]
block_cache_bytes = 8388608
memtable_bytes = 33554432
log_retained_bytes = 200000
watch_retained_bytes = 200000
"""
OPTIONS = Options(deadline_s=120, connect_timeout_s=60)
SETTLES_S = 120.0
SPACES = [f"space-{number}" for number in range(16)]
BATCH = ["b0", "b1", "b2"]
DEVICES = [f"device-{number}" for number in range(12)]

Key = tuple[str, str, str, str]
"""(table, row, first field, second field)."""


def key_of(event: WatchEvent) -> Key:
    first, second, *_ = (str(getattr(event.key, field)) for field in event.key.__struct_fields__)
    return event.table, event.row, first, second


def bit_of(key: Key) -> int:
    """The slot of a key in a bit map."""
    table, _, first, second = key
    routed = text(first) if table == "kv" else text(first) + text(second)
    return 1 << (SLOTS - 1 - (crc32(routed) & SLOT_MASK))


class Write(NamedTuple):
    """What one change made of a key: what is seen of its record, None if it was deleted."""

    seen: Any
    together: int
    """Changes of one entry have it in common."""


class Truth:
    """What has been written."""

    def __init__(self) -> None:
        self.writes: defaultdict[Key, list[Write]] = defaultdict(list)
        self._entries = itertools.count(1)

    def wrote(self, rows: dict[Key, Any]) -> None:
        """One request has written these, all in one group."""
        number = next(self._entries)
        for key, seen in rows.items():
            self.writes[key].append(Write(seen, number))


def seen_in(record: Any) -> Any:
    """What tells one change of a key from the next."""
    if record is None:
        return None
    if hasattr(record, "value"):
        return record.value
    if hasattr(record, "payload"):
        return record.payload
    return record.broker, record.broker_epoch, record.connected


@dataclass
class Batch:
    kind: str
    group: str
    events: list[WatchEvent]
    slots: int
    first: bool
    last: bool
    token: str


@dataclass
class Told:
    """What one watcher was told, in order."""

    name: str
    passes: Callable[[Key], bool]
    how: dict[str, Any]
    batches: list[Batch] = field(default_factory=list)
    resumed_after: int = -1
    """Of ``of``: it began at the token of that batch."""
    of: Told | None = None
    open: bool = False
    left: bool = False
    """It watches no more."""

    def changes(self) -> Iterator[tuple[int, WatchEvent]]:
        """(number of the batch, change)"""
        for number, batch in enumerate(self.batches):
            if batch.kind == "changes":
                for event in batch.events:
                    yield number, event

    def final(self) -> dict[Key, Any]:
        """What is seen of each key after all, as far as it was told."""
        state: dict[Key, Any] = {} if self.of is None else self.of.state_at(self.resumed_after)
        return self._play(state, self.batches)

    def state_at(self, number: int) -> dict[Key, Any]:
        """The same after a batch."""
        state: dict[Key, Any] = {} if self.of is None else self.of.state_at(self.resumed_after)
        return self._play(state, self.batches[: number + 1])

    def _play(self, state: dict[Key, Any], batches: Sequence[Batch]) -> dict[Key, Any]:
        shown: defaultdict[str, set[Key]] = defaultdict(set)
        for batch in batches:
            if batch.kind not in ("changes", "snapshot"):
                continue
            for event in batch.events:
                state[key_of(event)] = seen_in(event.record)
            if batch.kind == "snapshot":
                shown[batch.group] = {key_of(event) for event in batch.events} | (
                    set() if batch.first else shown[batch.group]
                )
            if batch.last:  # what it has not shown of its slots is not there
                for key in [key for key in state if batch.slots & bit_of(key) and key not in shown[batch.group]]:
                    del state[key]
        return state


class Run:
    """A cluster, those who write and those who watch."""

    def __init__(self, home: Path) -> None:
        self.nodes = Nodes(home, config=CONFIG)
        self.truth = Truth()
        self.told: list[Told] = []
        self.writing = True
        self.rounds = 0
        self._rng = random.Random(7)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def url(self, *first: str) -> str:
        names = [*first, *(name for name in NAMES if name not in first)]
        return "metad://" + ",".join(self.nodes.endpoints[name] for name in names)

    # --- who writes --------------------------------------------------------------------------------------

    async def write_kv(self, client: Client, spaces: Sequence[str]) -> None:
        rng, kv, truth = random.Random(spaces[0]), client.kv, self.truth
        for number in itertools.count():
            for space in spaces:
                if not self.writing:
                    return
                value = b"%d" % number
                kind = rng.choice(["put", "put", "delete", "batch"])
                key = ("kv", "record", space, "k")
                there = bool(truth.writes[key]) and truth.writes[key][-1].seen is not None
                if kind == "batch":
                    (await kv.put_many([KvPutItem(space, name, value) for name in BATCH])).raise_for_error()
                    truth.wrote({("kv", "record", space, name): value for name in BATCH})
                elif kind == "delete" and there:
                    await kv.delete(space, "k")
                    truth.wrote({key: None})
                else:
                    await kv.put(space, "k", value)
                    truth.wrote({key: value})
                await asyncio.sleep(PAUSE_S / len(spaces))
            self.rounds += 1

    async def write_sessions(self, client: Client) -> None:
        sessions, truth = client.sessions, self.truth
        for epoch in itertools.count(1):
            for device in DEVICES:
                if not self.writing:
                    return
                owner, properties = (("session", row, "acme", device) for row in ("owner", "properties"))
                broker = f"broker-{epoch % 2}"
                first = not truth.writes[owner] or truth.writes[owner][-1].seen is None
                await sessions.takeover(broker, epoch, "acme", device)
                truth.wrote({owner: (broker, epoch, True)} | ({properties: b""} if first else {}))
                payload = b"%d" % epoch
                await sessions.update(broker, epoch, "acme", device, SessionProperties(60, payload))
                truth.wrote({properties: payload})
                if epoch % 5 == 4:
                    await sessions.delete("acme", device)
                    truth.wrote({owner: None, properties: None})
                await asyncio.sleep(PAUSE_S / len(DEVICES))
            self.rounds += 1

    # --- who watches -------------------------------------------------------------------------------------

    def watch(self, client: Client, name: str, passes: Callable[[Key], bool], **how: Any) -> Told:
        told = Told(name, passes, how)
        self.told.append(told)
        self._begin(client, told, how)
        return told

    def resume(self, client: Client, old: Told, after: int) -> Told:
        """Another watcher, that begins at the token of one of the old one's batches."""
        told = Told(f"{old.name} from {after}", old.passes, old.how, resumed_after=after, of=old)
        self.told.append(told)
        how = {name: value for name, value in old.how.items() if name != "start"}
        self._begin(client, told, how | {"token": old.batches[after].token})
        return told

    def _begin(self, client: Client, told: Told, how: dict[str, Any]) -> None:
        async def watch() -> None:
            async with client.watch(**how) as watch:
                await watch.opened()
                told.open = True
                async for batch in watch:
                    told.batches.append(
                        Batch(
                            batch.kind, batch.group, batch.events, batch.slot_bits, batch.first, batch.last, batch.token
                        )
                    )
            raise AssertionError(f"{told.name} has ended")

        self._tasks[told.name] = asyncio.get_running_loop().create_task(watch())

    async def leave(self, told: Told) -> None:
        """It watches no more."""
        told.left = True
        task = self._tasks.pop(told.name)
        assert not task.done(), task.exception()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def until(self, condition: Callable[[], object], what: Callable[[], str], seconds: float = SETTLES_S) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    for task in self._tasks.values():
                        if task.done():
                            task.result()
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"not within {seconds} s: {what()}") from None

    async def rounds_pass(self, count: int) -> None:
        wanted = self.rounds + count
        await self.until(lambda: self.rounds >= wanted, lambda: f"{count} more rounds of writing")

    def lacking(self, told: Told) -> list[Key]:
        """The keys of which a watcher has not been told the end."""
        final = told.final()
        return [
            key
            for key, writes in self.truth.writes.items()
            if writes
            and told.passes(key)
            and final.get(key, "nothing") != writes[-1].seen
            and not (key not in final and writes[-1].seen is None)
        ]

    # --- what happens ------------------------------------------------------------------------------------

    async def leader(self, client: Client, group: str) -> str:
        async with asyncio.timeout(SETTLES_S):
            while True:
                with suppress(MetadError):
                    if found := (await client.cluster.map()).leaders.get(group):
                        return found
                await asyncio.sleep(0.02)

    async def kill_and_restart(self, client: Client, group: str) -> None:
        name = await self.leader(client, group)
        await asyncio.to_thread(self.nodes.kill, name)
        await self.rounds_pass(2)
        await asyncio.to_thread(self.nodes.restart, name)
        await self.rounds_pass(1)

    async def move(self, client: Client) -> None:
        """One more group, and its share of the slots."""
        before = (await client.cluster.map()).map
        assert before is not None
        await self.patiently(lambda: client.cluster.add_group("data"))
        await self.patiently(client.cluster.rebalance)

        async def moved() -> bool:
            known = (await client.cluster.map()).map
            return known is not None and not known.moves and known.slots["data"] != before.slots["data"]

        async with asyncio.timeout(SETTLES_S):
            while not await moved():  # noqa: ASYNC110 - the nodes do not call back
                await asyncio.sleep(0.05)

    async def patiently(self, ask: Callable[[], Any]) -> None:
        """Ask again until it is done: another change of the cluster may be on its way."""
        async with asyncio.timeout(SETTLES_S):
            while True:
                try:
                    await ask()
                except MetadError:
                    await asyncio.sleep(0.1)
                else:
                    return

    async def play(self) -> None:
        """Everything."""
        async with (
            connect(self.url("n1"), OPTIONS) as one,
            connect(self.url("n2"), OPTIONS) as two,
            connect(self.url("n3"), OPTIONS) as three,
        ):
            kv: dict[str, Any] = {"tables": ["kv"]}
            everything = self.watch(two, "everything", is_kv, **kv, previous=True, progress_s=0.2)
            self.watch(three, "one tenant", lambda key: key[2] == SPACES[1], **kv, tenant=SPACES[1])
            two_b = (SPACES[2], "b")
            self.watch(three, "a prefix", lambda key: (key[2], key[3][:1]) == two_b, **kv, tenant=SPACES[2], prefix="b")
            self.watch(one, "sessions", is_session, tables=["session"], previous=True)
            self.watch(one, "both", lambda key: True, tables=["kv", "session"], start="snapshot")
            away = self.watch(three, "away", is_kv, **kv)
            await self.until(lambda: all(told.open for told in self.told), lambda: "open watches")
            writers = [
                asyncio.create_task(self.write_kv(one, SPACES[::2])),
                asyncio.create_task(self.write_kv(two, SPACES[1::2])),
                asyncio.create_task(self.write_sessions(three)),
            ]
            try:
                await self.rounds_pass(3)
                restless = self.watch(one, "restless", is_kv, **kv, start="snapshot")
                await self.until(lambda: restless.batches, lambda: "the first batch")
                await self.kill_and_restart(three, "data-0")
                await self.leave(restless)
                restless = self.resume(one, restless, len(restless.batches) - 1)
                await self.move(two)
                await self.leave(away)
                await self.kill_and_restart(one, "data-1")
                await self.kill_and_restart(two, "data-2")
                await self.until(lambda: restless.batches, lambda: "a batch after the resumption")
                await self.leave(restless)
                self.resume(two, restless, len(restless.batches) - 1)
                await self.fill(one)
                self.resume(three, away, len(away.batches) - 1)
                await self.rounds_pass(3)
            finally:
                self.writing = False
                await asyncio.gather(*writers)
            await self.all_told()
            for after in self._rng.sample(range(len(everything.batches)), 5):
                self.resume(two, everything, after)
            await self.all_told()

    async def fill(self, client: Client) -> None:
        """Write until no node has any more in its logs what was there before."""
        before = await self.logs()
        items = [KvPutItem(f"filler-{number}", "k", bytes(2_000)) for number in range(64)]
        async with asyncio.timeout(SETTLES_S):
            while True:
                (await client.kv.put_many(items)).raise_for_error()
                now = await self.logs()
                if all(now[log][0] > last for log, (_, last) in before.items()):
                    return

    async def logs(self) -> dict[tuple[str, str], tuple[int, int]]:
        """(node, group) -> the first and the last index of its log."""
        found = {}
        for name, server in self.nodes.servers.items():
            async with connect(f"metad://{server.endpoint}", OPTIONS) as one:
                groups = (await one.status()).groups
            found |= {(name, group.name): (group.first, group.last) for group in groups if group.kind == "data"}
        return found

    async def all_told(self) -> None:
        watching = [told for told in self.told if not told.left]
        await self.until(
            lambda: not any(self.lacking(told) for told in watching),
            lambda: str({told.name: self.lacking(told)[:5] for told in watching if self.lacking(told)}),
        )


def is_kv(key: Key) -> bool:
    return key[0] == "kv"


def is_session(key: Key) -> bool:
    return key[0] == "session"


def is_written(key: Key) -> bool:
    """By those whose writes are remembered."""
    return not key[2].startswith("filler-")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    run = Run(tmp_path_factory.mktemp("watched"))
    with run.nodes:
        asyncio.run(run.play())
        yield run


def slices(run: Run, told: Told) -> Iterator[tuple[Key, list[WatchEvent], list[int]]]:
    """(key, its changes between two gaps, where in all that was written of the key they are, all of them and without
    others between). There are several places only if the changes are few, for what is seen of a deletion is always the
    same."""
    gaps = gap_batches(told)
    found: defaultdict[tuple[Key, int], list[WatchEvent]] = defaultdict(list)
    for number, event in told.changes():
        if is_written(key := key_of(event)):
            found[key, sum(gap < number for gap in gaps)].append(event)
    for (key, _), events in found.items():
        seen = [seen_in(event.record) for event in events]
        written = [write.seen for write in run.truth.writes[key]]
        yield key, events, [at for at in range(len(written)) if written[at : at + len(seen)] == seen]


def places(run: Run, told: Told) -> Iterator[tuple[WatchEvent, Key, int]]:
    """(change, key, which change of the key it is), where it is certain."""
    for key, events, begins in slices(run, told):
        if len(begins) == 1:
            for at, event in enumerate(events, begins[0]):
                yield event, key, at


def gap_batches(told: Told) -> list[int]:
    return [number for number, batch in enumerate(told.batches) if batch.kind == "gap"]


def test_ordered(run: Run) -> None:
    for told in run.told:
        revisions: dict[str, int] = {}
        versions: dict[Key, int] = {}
        for _, event in told.changes():
            group, number = event.revision.group, event.revision.index
            assert number >= revisions.get(group, 0), f"{told.name}: {event}"
            revisions[group] = number
            key = key_of(event)
            assert event.version > versions.get(key, 0), f"{told.name}: {event}"
            versions[key] = event.version
        assert revisions or told.of is not None, told.name


def test_unique(run: Run) -> None:
    for told in run.told:
        seen = set()
        for _, event in told.changes():
            what = event.revision.group, event.revision.index, key_of(event)
            assert what not in seen, f"{told.name}: {event}"
            seen.add(what)


def test_atomic(run: Run) -> None:
    """All keys of a batch come together: in one batch, with one revision."""
    met = 0
    for told in run.told:
        entries: defaultdict[tuple[str, int], list[tuple[int, Key]]] = defaultdict(list)
        for number, event in told.changes():
            entries[event.revision.group, event.revision.index].append((number, key_of(event)))
        for changes in entries.values():
            assert len({number for number, _ in changes}) == 1, f"{told.name}: {changes}"
            keys = {key for _, key in changes}
            for key in keys:
                if key[3] in BATCH:
                    met += 1
                    assert {(*key[:3], name) for name in BATCH} <= keys, f"{told.name}: {changes}"
    assert met


def test_reliable(run: Run) -> None:
    """Nothing is left out between what came first and the end, but over a gap. The watcher that was away while the logs
    were cut has one."""
    assert "away" in {told.of.name for told in run.told if gap_batches(told) and told.of is not None}
    for told in run.told:
        assert told.left or not run.lacking(told), told.name
        for key, events, begins in slices(run, told):
            assert begins, f"{told.name}: {events} of {key} are not a part of {run.truth.writes[key]}"


def test_resumable(run: Run) -> None:
    """What follows a token is what followed the batch that had it."""
    resumed = [told for told in run.told if told.of is not None and told.of.name == "everything"]
    assert len(resumed) == 5
    for told in resumed:
        assert told.of is not None
        followed = [identity(event) for number, event in told.of.changes() if number > told.resumed_after]
        follows = [identity(event) for _, event in told.changes()]
        if not gap_batches(told):
            assert sorted(follows) == sorted(followed), told.name
        else:
            assert set(follows) <= set(followed), told.name


def identity(event: WatchEvent) -> tuple[str, int, Key]:
    return event.revision.group, event.revision.index, key_of(event)


def test_bookmarkable(run: Run) -> None:
    """A mark says how far each group is; what follows is newer."""
    (told,) = [told for told in run.told if told.name == "everything"]
    marks = [batch for batch in told.batches if batch.kind == "progress"]
    assert marks
    promised: dict[str, int] = {}
    for before, batch in itertools.pairwise(told.batches):
        if before.kind == "progress":
            for kind, position in from_text(before.token)[1].items():
                promised |= {f"{kind}-{group}": index for group, index in position.indexes.items()}
        if batch.kind == "changes":
            after = from_text(batch.token)[1]["data"].index(int(batch.group.rpartition("-")[2]))
            assert after > promised.get(batch.group, 0), batch


def test_previous(run: Run) -> None:
    known = 0
    for told in run.told:
        if not told.how.get("previous"):
            continue
        for event, key, at in places(run, told):
            if key[:2] == ("session", "owner"):
                assert event.previous_known, f"{told.name}: {event}"
            if event.previous_known:
                before = run.truth.writes[key][at - 1].seen if at else None
                assert seen_in(event.previous) == before, f"{told.name}: {event}"
                known += 1
    assert known > 100


def test_created(run: Run) -> None:
    kinds = set()
    for told in run.told:
        for event, key, at in places(run, told):
            writes = run.truth.writes[key]
            if writes[at].seen is None:
                expected = ChangeKind.DELETED
            else:
                expected = ChangeKind.CREATED if at == 0 or writes[at - 1].seen is None else ChangeKind.CHANGED
            assert event.kind is expected, f"{told.name}: {event} is change {at} of {writes[: at + 1]}"
            kinds.add(expected)
    assert kinds == {ChangeKind.CREATED, ChangeKind.CHANGED, ChangeKind.DELETED}


def test_filter(run: Run) -> None:
    """Nothing passes that should not; that nothing is left out follows from the end, which all have come to."""
    for told in run.told:
        keys = {key_of(event) for _, event in told.changes()}
        assert keys or told.of is not None, told.name
        assert all(told.passes(key) for key in keys), told.name
