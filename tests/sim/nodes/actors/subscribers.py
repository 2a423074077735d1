"""Brokers that keep the properties and the subscriptions of one client, and what is in flight for it, and take the
client over from each other. The rule: a takeover restores exactly what was acknowledged, and of what nobody knows it
may or may not have."""

from __future__ import annotations

import random
from collections.abc import Awaitable
from typing import Any

from metad.state.core.counts import COPY_BYTES_MAX
from metad_client import Client, NotFoundError, NotOwnerError, SessionProperties
from metad_judge.invariants import Violation
from metad_wire.messages import NEVER_S

from ..cluster import Cluster, SimClient
from .actor import Actor

_TENANT = "subscribes"
_NAMES = ("a", "a/+", "a/#", "$share/g/b", "c")
_LONG_NAME = "c"
"""What is in flight under this name is long. A node keeps a copy of a session's rows only while they are short."""
_PROPERTIES = ("properties", "")


class Subscriber(Actor):
    """The brokers of one client, one after the other: nobody else takes it over."""

    def __init__(self, cluster: Cluster, name: str, rng: random.Random) -> None:
        super().__init__(cluster, name, rng)
        self._known: dict[tuple[str, str], set[bytes | None]] = {_PROPERTIES: {b""}}  # what each row may hold
        self._exists: set[bool] = {False}
        self._owner = ""  # the last one that was told so
        self._begins_anew = False  # a takeover may come late that drops everything
        self._late: set[bytes | None] = set()  # properties that takeovers give which may come late
        self.restored = 0

    async def live(self, sim: SimClient, client: Client) -> None:
        """See Actor."""
        while not self.quiet:
            broker = self.unique()
            clean, given = self.chance(0.1), self._properties() if self.chance(0.5) else None
            before = {key: {*values} for key, values in self._known.items()}
            existed = {*self._exists}
            self._exists.add(True)
            # If it is killed before it hears:
            anew, self._begins_anew = self._begins_anew, self._begins_anew or clean
            late, self._late = self._late, self._late | {given.payload if given else b""}
            self._known[_PROPERTIES] = self._known[_PROPERTIES] | self._late
            outcome, taken = await self.ask(
                f"takeover by {broker}{', clean' if clean else ''}",
                client.sessions.takeover(
                    broker,
                    1,
                    _TENANT,
                    self.name,
                    clean_start=clean,
                    properties=given,
                    restore=True,
                    restore_parts=True,
                ),
            )
            if outcome != "done":
                await self.pause(0.05, 0.3)
                continue
            self._begins_anew, self._late = anew, late
            if taken.previous is not None and taken.previous.broker != self._owner:
                before[_PROPERTIES] |= late
                for values in before.values() if anew else ():
                    values.add(None)
            self._owner = broker
            if (taken.previous is not None) not in existed:
                raise Violation("sessions", f"{self.name} had a session: {existed}, and {taken}")
            present = taken.previous is not None and not clean
            found: dict[tuple[str, str], bytes | None] = {("filter", each.filter): b"" for each in taken.subscriptions}
            found |= {("state", each.name): each.value for each in taken.inflight}
            if present:
                found[_PROPERTIES] = taken.properties and taken.properties.payload
                if given is not None:  # a retry restores what there is by then
                    before[_PROPERTIES].add(given.payload)
                for key in {*before, *found}:
                    if found.get(key) not in before.get(key, {None}):
                        raise Violation("sessions", f"{self.name}: {key} is {found.get(key)!r} of {before.get(key)}")
                self.restored += 1
            elif found:
                raise Violation("sessions", f"{self.name} begins anew with {found}")
            found.setdefault(_PROPERTIES, b"")
            if given is not None:
                found[_PROPERTIES] = given.payload
            self._known = {key: {value} for key, value in found.items()}
            self._exists = {True}
            for _ in range(self._rng.randint(1, 8)):
                if self.quiet:
                    return
                if not await self._change(client, broker):
                    break
                await self.pause(0.01, 0.1)

    def _properties(self) -> SessionProperties:
        return SessionProperties(NEVER_S, self.unique().encode() * (COPY_BYTES_MAX if self.chance(0.2) else 1))

    async def _change(self, client: Client, broker: str) -> bool:
        """Change one row; whether the client is still this broker's."""
        kind, name = self._rng.choice(["filter", "state", "properties"]), self._rng.choice(_NAMES)
        value = b"" if kind == "filter" else self.unique().encode()
        if name == _LONG_NAME:
            value *= COPY_BYTES_MAX
        puts = self.chance(0.6)
        given = self._properties()
        if kind == "properties":
            (kind, name), value, puts = _PROPERTIES, given.payload, True
        after = value if puts else None
        known = self._known.setdefault((kind, name), {None})
        before = {*known}
        known.add(after)
        where = broker, 1, _TENANT, self.name, name
        if kind == "properties":
            work: Awaitable[Any] = client.sessions.update(broker, 1, _TENANT, self.name, given)
        elif kind == "filter":
            work = client.subscriptions.add(*where) if puts else client.subscriptions.remove(*where)
        else:
            work = client.inflight.put(*where, value) if puts else client.inflight.delete(*where)
        outcome, result = await self.ask(f"{kind} {name} {after!r}", work)
        if outcome == "done":
            if kind == "filter" and puts and len(before) == 1 and result != (before == {None}):
                raise Violation("sessions", f"{self.name}: {name} was created: {result}, it was {before}")
            self._known[kind, name] = {after}
        elif outcome == "never":
            self._known[kind, name] = before
        elif isinstance(result, NotOwnerError):  # a takeover of an earlier life came late
            self._known[kind, name] = before
            return False
        elif isinstance(result, NotFoundError) and not puts and None in before:
            self._known[kind, name] = {None}
        elif outcome == "refused":
            raise Violation("sessions", f"{self.name}: {kind} {name} to {after!r} over {before}: {result!r}")
        return True
