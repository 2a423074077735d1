"""Clients of a simulated cluster: the production SDK, asked by several callers at once. What they are told goes into a
:class:`~metad_judge.history.History`, which judges it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Hashable
from typing import Any, NamedTuple, Protocol

from metad_client import (
    Client,
    Compare,
    ConflictError,
    FencedError,
    KvCompare,
    KvOperation,
    KvTransaction,
    MetadError,
    NotFoundError,
    NotOwnerError,
    Put,
    SessionProperties,
    Transaction,
)
from metad_judge.history import History, Seen
from metad_judge.invariants import Violation
from metad_judge.linearizability import Kind, Operation
from metad_wire.families.journal import SEGMENTS, Segment
from metad_wire.families.mqtt import TOPIC_SETTINGS, TopicSettings

from .loop import VirtualLoop

_SLACK_S = 0.1
"""Of a deadline."""
_PARTS = {"a": 0, "b": 1}
_BROKER = "b"
"""The segments that stand for the keys of a pair."""


class Together(NamedTuple):
    """What a transaction over two did: value, version and revision of each; None where there is none."""

    succeeded: bool
    one: tuple[bytes, int, int] | None
    two: tuple[bytes, int, int] | None


class Host(Protocol):
    """Who runs the clients."""

    loop: VirtualLoop
    quiet: bool

    def trace(self, text: str) -> None:
        """For who reads a failed run."""


class Caller:
    """One task that asks one thing after the other."""

    def __init__(self, host: Host, history: History, client: Client, name: str, rng: random.Random) -> None:
        self._host = host
        self._history = history
        self._client = client
        self._name = name
        self._rng = rng
        self._asked = 0
        self._versions: dict[Hashable, int] = {}
        self._offsets: dict[int, int] = {}
        self.deadline_s = rng.choice([1.0, 3.0, 8.0])
        self.think_s = rng.choice([0.01, 0.03, 0.1])
        self.mix = [*(rng.choice([1.0, 4.0]) for _ in range(7)), 0.0, 0.0]
        self.keys = rng.choice([2, 4])

    async def run(self) -> None:
        """Until the cluster says that it is enough."""
        while not self._host.quiet:
            await asyncio.sleep(self._rng.expovariate(1 / self.think_s))
            if not self._host.quiet:
                await self.ask()

    async def ask(self) -> None:
        """Something."""
        what = self._rng.choices(
            [
                self.write,
                self.read,
                self.transact,
                self.register,
                self.take,
                self.own,
                self.commit,
                self.read_many,
                self.write_many,
            ],
            self.mix,
        )[0]
        await what()

    def _value(self) -> bytes:
        self._asked += 1
        return f"{self._name}.{self._asked}".encode()

    def _padded(self) -> bytes:
        return self._value() + b"." * self._rng.choice([0, 0, 0, 300])

    async def _do(self, text: str, work: Any) -> tuple[str, Any]:
        """(``done``, result), (``refused``, error of the item), (``never``, error) or (``unknown``, error)."""
        loop, history = self._host.loop, self._history
        number = history.now()
        history.open[number] = text
        begun_s = loop.now
        self._host.trace(f"{self._name} asks {text}")
        outcome: tuple[str, Any]
        try:
            outcome = "done", await work
        except (ConflictError, NotFoundError, NotOwnerError, FencedError) as error:
            outcome = "refused", error
        except MetadError as error:
            outcome = "never" if error.outcome_known else "unknown", error
        if loop.now - begun_s > self.deadline_s + _SLACK_S:
            raise Violation("deadlines", f"{self._name}: {text} took {loop.now - begun_s:.3f} s of {self.deadline_s}")
        del history.open[number]
        if outcome[0] in ("done", "refused"):
            history.answered += 1
        else:
            history.failed += 1
        self._host.trace(f"{self._name} hears {text}: {outcome[0]} {outcome[1]!r:.200}")
        return outcome

    # --- versioned keys ----------------------------------------------------------------------------------

    def _key(self) -> tuple[str, str]:
        return f"{self._rng.choice(['ns', 'ns', 'table'])}{self._rng.randrange(self.keys)}", "k"

    async def _put(self, key: tuple[str, str], value: bytes, expected: int | None) -> int:
        """A key-value record, or one of a table that groups of kind metadata have. The version."""
        if not key[0].startswith("table"):
            return await self._client.kv.put(*key, value, expected_version=expected, deadline_s=self.deadline_s)
        record, table = TopicSettings(*key, attributes={"value": value.decode()}), self._client.table(TOPIC_SETTINGS)
        return await table.put(record, expected_version=expected, deadline_s=self.deadline_s)

    async def _get(self, key: tuple[str, str]) -> tuple[bytes | None, int, int | None]:
        """Value, version and revision; None, 0 and None where there is no record."""
        if key[0].startswith("parts"):
            part = await self._client.table(SEGMENTS).get("acme", key[0], _PARTS[key[1]], deadline_s=self.deadline_s)
            return (None, 0, None) if part is None else (_said(part.record), part.version, part.mod_revision)
        if key[0].startswith("table"):
            row = await self._client.table(TOPIC_SETTINGS).get(*key, deadline_s=self.deadline_s)
            return (
                (None, 0, None)
                if row is None
                else (row.record.attributes["value"].encode(), row.version, row.mod_revision)
            )
        found = await self._client.kv.get(*key, deadline_s=self.deadline_s)
        return (None, 0, None) if found is None else (found.value, found.version, found.mod_revision)

    async def write(self) -> None:
        """A put, at times one that expects a version."""
        key, value = self._key(), self._padded()
        expected = self._versions.get(key, 0) if self._rng.random() < 0.5 else None
        seen = Seen(key, True, value, None, self._history.now(), expected=expected)
        self._history.seen.append(seen)
        outcome, result = await self._do(f"put {key} {value[:20]!r} over {expected}", self._put(key, value, expected))
        moment = self._history.now()
        if outcome == "done":
            seen.version, seen.returned = result, moment
            self._versions[key] = result
        elif outcome == "refused":
            seen.never = True
            if isinstance(result, ConflictError):
                assert result.current is not None
                self._versions[key] = result.current
                self._history.seen.append(Seen(key, False, None, result.current, seen.invoked, moment))
        elif outcome == "never":
            seen.never = True

    async def read(self) -> None:
        """A get of a versioned key."""
        key = self._key()
        invoked = self._history.now()
        outcome, found = await self._do(f"get {key}", self._get(key))
        if outcome == "done":
            value, version, revision = found
            self._versions[key] = version
            seen = Seen(key, False, value, version, invoked, self._history.now(), revision=revision)
            self._history.seen.append(seen)

    async def read_many(self) -> None:
        """Hundreds of gets, one right after the other, whatever became of those before."""
        every_s = self._rng.choice([0.0, 0.0005, 0.002])
        reads = []
        for _ in range(self._rng.randint(50, 400)):
            reads.append(asyncio.ensure_future(self.read()))
            await asyncio.sleep(every_s)
        await asyncio.gather(*reads)

    async def write_many(self) -> None:
        """Many puts at once: more than may be remembered, at times."""
        writes = []
        for _ in range(self._rng.randint(10, 60)):
            writes.append(asyncio.ensure_future(self.write()))
            await asyncio.sleep(0.0005)
        await asyncio.gather(*writes)

    async def _transact(self, namespace: str, value: bytes, expected: int | None, writes: bool) -> Together:
        """Two keys, or two records of a table that groups of kind metadata have."""
        if namespace.startswith("parts"):
            records = [Segment("acme", namespace, number, {_BROKER: value.decode()}) for number in _PARTS.values()]
            done = await self._client.tables.transact(
                Transaction(
                    compares=[Compare(SEGMENTS, ("acme", namespace, 0), expected)] if expected is not None else [],
                    then=[Put(SEGMENTS, record) for record in records] if writes else [],
                    reads=[(SEGMENTS, ("acme", namespace, number)) for number in _PARTS.values()],
                ),
                deadline_s=self.deadline_s,
            )
            found = [None if one is None else (_said(one.record), one.version, one.mod_revision) for one in done.found]
            return Together(done.succeeded, *found)
        transaction = KvTransaction(
            namespace,
            [KvCompare("a", expected)] if expected is not None else [],
            [KvOperation("a", value), KvOperation("b", value)] if writes else [],
            reads=["a", "b"],
        )
        result = await self._client.kv.transact(transaction, deadline_s=self.deadline_s)
        keys = [None if one is None else (one.value, one.version, one.mod_revision) for one in result.records]
        return Together(result.succeeded, *keys)

    async def transact(self) -> None:
        """Two keys or records that are always written together."""
        namespace = f"{self._rng.choice(['pair', 'parts'])}{self._rng.randrange(2)}"
        value, key = self._padded(), (namespace, "a")
        expected = self._versions.get(key, 0) if self._rng.random() < 0.7 else None
        writes = self._rng.random() < 0.7
        history = self._history
        seen = Seen(key, True, value, None, history.now(), expected=expected)
        if writes:
            history.seen.append(seen)
        retries = self._client.statistics().retries
        outcome, result = await self._do(
            f"transact {namespace} {value[:20]!r} over {expected}{'' if writes else ' only to read'}",
            self._transact(namespace, value, expected, writes),
        )
        moment = history.now()
        if outcome == "never":
            seen.never = True
        elif outcome == "done":
            one, two = result.one, result.two
            if (one and one[:2]) != (two and two[:2]):
                raise Violation("atomicity", f"{namespace}: {one} and {two}")
            value_read, version, seen.revision = one or (None, 0, None)
            self._versions[key] = version
            done = result.succeeded and writes
            if done and value_read == value:
                seen.version, seen.returned = version, moment
                return
            if done:
                # A retry of what was done before reads again, and finds what was written since.
                if one is None or retries == self._client.statistics().retries:
                    raise Violation("transactions", f"{namespace}: {one} after {value!r} was put")
                seen.returned = moment
            else:
                seen.never = True
                if not result.succeeded and version == expected:
                    raise Violation("transactions", f"{namespace}: expected {expected}, found it, and did not")
            history.seen.append(Seen(key, False, value_read, version, seen.invoked, moment, revision=seen.revision))

    # --- registers ---------------------------------------------------------------------------------------

    def _note(self, key: Hashable, kind: Kind, argument: Any, result: Any, invoked: int, returned: int | None) -> None:
        self._history.operations.append(Operation(key, kind, argument, result, invoked, returned))

    async def register(self) -> None:
        """A key that comes and goes."""
        history = self._history
        key = f"gone{self._rng.randrange(2)}", "k"
        value, invoked = self._value(), history.now()
        kind = self._rng.choice(["put", "put", "get", "get", "delete"])
        kv, deadline_s = self._client.kv, self.deadline_s
        if kind == "get":
            outcome, found = await self._do(f"get {key}", kv.get(*key, deadline_s=deadline_s))
            if outcome == "done":
                self._note(key, "get", None, None if found is None else found.value, invoked, history.now())
            return
        if kind == "put":
            outcome, _ = await self._do(f"put {key} {value!r}", kv.put(*key, value, deadline_s=deadline_s))
            if outcome != "never":
                self._note(key, "put", value, None, invoked, history.now() if outcome == "done" else None)
            return
        outcome, _ = await self._do(f"delete {key}", kv.delete(*key, deadline_s=deadline_s))
        if outcome == "refused":  # there was none
            self._note(key, "get", None, None, invoked, history.now())
        elif outcome != "never":
            self._note(key, "delete", None, None, invoked, history.now() if outcome == "done" else None)

    def _session(self) -> str:
        return f"device-{self._rng.randrange(self.keys)}"

    async def take(self) -> None:
        """A takeover, by a life of a broker that nobody else is."""
        session, me = self._session(), self._value().decode()
        restore, invoked = self._rng.random() < 0.5, self._history.now()
        outcome, taken = await self._do(
            f"takeover {session} by {me}",
            self._client.sessions.takeover(me, 1, "acme", session, restore=restore, deadline_s=self.deadline_s),
        )
        if outcome == "done":
            before = None if taken.previous is None else taken.previous.broker
            self._note(("owner", session), "get_and_set", me, before, invoked, self._history.now())
            if self._rng.random() < 0.6:
                await self._update(session, me)
        elif outcome == "unknown":
            self._note(("owner", session), "get_and_set", me, None, invoked, None)

    async def _update(self, session: str, me: str) -> None:
        value, invoked = self._value(), self._history.now()
        outcome, _ = await self._do(
            f"update {session} by {me} to {value!r}",
            self._client.sessions.update(
                me, 1, "acme", session, SessionProperties(0, value), deadline_s=self.deadline_s
            ),
        )
        moment = self._history.now()
        if outcome == "done":
            self._note(("owner", session), "get", None, me, invoked, moment)
            self._note(("payload", session), "put", value, None, invoked, moment)
        elif outcome == "unknown":
            self._note(("payload", session), "put", value, None, invoked, None)

    async def own(self) -> None:
        """Whose a session is."""
        session, invoked = self._session(), self._history.now()
        outcome, found = await self._do(
            f"whose is {session}", self._client.sessions.get("acme", session, deadline_s=self.deadline_s)
        )
        if outcome == "done":
            moment = self._history.now()
            owner = None if found is None else found.broker
            payload = None if found is None else found.properties.payload or None
            self._note(("owner", session), "get", None, owner, invoked, moment)
            self._note(("payload", session), "get", None, payload, invoked, moment)

    async def commit(self) -> None:
        """An offset, by compare-and-set, or a look at it."""
        partition, invoked, history = self._rng.randrange(self.keys), self._history.now(), self._history
        offsets, deadline_s = self._client.offsets, self.deadline_s
        where = "acme", f"group-{partition}", "topic", partition
        key = ("offset", partition)
        if self._rng.random() < 0.3:
            outcome, found = await self._do(f"fetch {partition}", offsets.fetch(*where, deadline_s=deadline_s))
            if outcome == "done":
                offset = -1 if found is None else found.offset
                self._offsets[partition] = offset
                self._note(key, "get", None, None if offset < 0 else offset, invoked, history.now())
            return
        expected, offset = self._offsets.get(partition, -1), invoked
        outcome, refused = await self._do(
            f"commit {partition} from {expected} to {offset}",
            offsets.commit(*where, offset, expected=expected, deadline_s=deadline_s),
        )
        argument = (None if expected < 0 else expected, offset)
        if outcome == "done":
            self._offsets[partition] = offset
            self._note(key, "compare_and_set", argument, True, invoked, history.now())
        elif outcome == "refused":
            self._note(key, "compare_and_set", argument, False, invoked, history.now())
            assert isinstance(refused, ConflictError)
            assert refused.current is not None
            self._offsets[partition] = refused.current
        elif outcome == "unknown":
            self._note(key, "compare_and_set", argument, None, invoked, None)

    async def look_at_everything(self) -> None:
        """At the end: what everybody was told must still be there."""
        for kind in ("ns", "table", "pair", "parts", "gone"):
            for number in range(4):
                name = f"{kind}{number}"
                for field in ("a", "b") if kind in ("pair", "parts") else ("k",):
                    await self._look(name, field, versioned=kind != "gone")
        self.keys = 4
        for session in range(4):
            invoked = self._history.now()
            outcome, found = await self._do(
                f"whose is device-{session}",
                self._client.sessions.get("acme", f"device-{session}", deadline_s=self.deadline_s),
            )
            self._require(outcome, found)
            moment = self._history.now()
            name = f"device-{session}"
            owner = None if found is None else found.broker
            payload = None if found is None else found.properties.payload or None
            self._note(("owner", name), "get", None, owner, invoked, moment)
            self._note(("payload", name), "get", None, payload, invoked, moment)
        for partition in range(4):
            invoked = self._history.now()
            outcome, found = await self._do(
                f"fetch {partition}",
                self._client.offsets.fetch(
                    "acme", f"group-{partition}", "topic", partition, deadline_s=self.deadline_s
                ),
            )
            self._require(outcome, found)
            value = None if found is None else found.offset
            self._note(("offset", partition), "get", None, value, invoked, self._history.now())

    async def _look(self, namespace: str, field: str, *, versioned: bool) -> None:
        invoked = self._history.now()
        outcome, found = await self._do(f"get {namespace} {field}", self._get((namespace, field)))
        self._require(outcome, found)
        value, version, revision = found
        if not versioned:
            self._note((namespace, field), "get", None, value, invoked, self._history.now())
            return
        key = (namespace, "a" if field == "b" else field)
        self._history.seen.append(Seen(key, False, value, version, invoked, self._history.now(), revision=revision))

    def _require(self, outcome: str, found: Any) -> None:
        if outcome != "done":
            raise Violation("availability", f"after all faults are over: {found!r}")


def _said(part: Segment) -> bytes:
    """The value that was written."""
    return part.folders[_BROKER].encode()
