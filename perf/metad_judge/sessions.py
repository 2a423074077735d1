"""Whether a session is what it must be: there, whole, and of the right owner; and, where its broker has died, whether
what is due of it comes, once, and in its time. Pure."""

from __future__ import annotations

import enum
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from . import verdict as verdicts


class Verdict(verdicts.Verdict, kw_only=True):
    """Sessions that are wrong, by what is wrong. ``gone``: there is no session, although nothing has ended it.
    ``damaged``: its properties, subscriptions or messages are not those that were stored. ``wrong_owner``: it belongs,
    or belonged before, to another life of a broker than it must. ``not_ended``: it was to end, and is there."""

    gone: int = 0
    damaged: int = 0
    wrong_owner: int = 0
    not_ended: int = 0

    @property
    def lost(self) -> int:
        """Sessions of which something is lost."""
        return self.gone + self.damaged + self.wrong_owner


class Found(NamedTuple):
    """A session as it was found. ``stored``: its payload, filters and messages; None if there is no session."""

    owner: object
    stored: object


class Sessions:
    """Counts each client at most once."""

    def __init__(self) -> None:
        self.verdict = Verdict()
        self._wrong: set[Hashable] = set()

    def see(self, client: Hashable, owners: Sequence[object], stored: object, found: Found, when: str) -> None:
        """``owners``: those that are right. ``stored``: what must be."""
        if found.owner is None or found.stored is None:
            self._note(client, "gone", f"client {client} {when}: its session is gone")
        elif found.owner not in owners:
            self._note(client, "wrong_owner", f"client {client} {when}: owned by {found.owner}, not one of {owners}")
        elif found.stored != stored:
            what = f"{found.stored!r:.200}, not {stored!r:.200}"
            self._note(client, "damaged", f"client {client} {when}: stored is {what}")

    def not_ended(self, client: Hashable) -> None:
        """The session of this client was to end, and is there."""
        self._note(client, "not_ended", f"client {client} at the end: its session was to end")

    def _note(self, client: Hashable, fault: str, text: str) -> None:
        if client not in self._wrong:
            self._wrong.add(client)
            self.verdict.fault(fault, text)


class Fate(enum.Enum):
    """What must become of a session."""

    STAYS = "stays"
    ENDS = "ends"
    RETURNS = "returns"
    """Its client came back: the same session, or a new one behind one that had ended."""


class Due(NamedTuple):
    """What is due of a session. ``what``: its client, and why. ``earliest_ms``: it ends no sooner."""

    what: str
    fate: Fate
    will: bool = False
    connected: bool = False
    earliest_ms: int = 0


class Came(NamedTuple):
    """What has come: how often its will was published, since when it is gone, and how it looks in the end (None: it is
    not there)."""

    fired: int
    ended_ms: int | None
    connected: bool | None


class DueVerdict(verdicts.Verdict, kw_only=True):
    """``wills_not_due``: published although nobody was to hear of them, or not what the client has left.
    ``expired_wrongly``: gone and was to stay, or went before its time. ``not_expired``: was to end and is there.
    ``connected_wrongly``: looks as if a dead broker served it, or as if a living one did not."""

    wills_due: int = 0
    wills_fired: int = 0
    wills_twice: int = 0
    wills_lost: int = 0
    wills_not_due: int = 0
    expired: int = 0
    expired_wrongly: int = 0
    not_expired: int = 0
    connected_wrongly: int = 0

    @property
    def broken(self) -> int:
        """How often a promise was broken."""
        wills = self.wills_twice + self.wills_lost + self.wills_not_due
        return wills + self.expired_wrongly + self.not_expired + self.connected_wrongly

    def see(self, due: Due, came: Came) -> None:
        """Judge one session, in the end."""
        self._will(due, came.fired)
        if came.connected is not None and came.connected != due.connected:
            self.fault("connected_wrongly", f"{due.what}: is {'' if came.connected else 'not '}connected")
        there, ended_ms = came.connected is not None, came.ended_ms
        early = ended_ms is not None and ended_ms < due.earliest_ms
        if due.fate is Fate.ENDS and there:
            self.fault("not_expired", due.what)
        elif due.fate is Fate.ENDS:
            self.expired += 1
            if early:
                self.fault("expired_wrongly", f"{due.what}, before its time")
        elif not there or (early if due.fate is Fate.RETURNS else ended_ms is not None):
            self.fault("expired_wrongly", due.what)

    def _will(self, due: Due, fired: int) -> None:
        self.wills_due += due.will
        self.wills_fired += due.will and fired > 0
        if due.will and not fired:
            self.fault("wills_lost", due.what)
        for _ in range(fired - due.will):
            self.fault("wills_twice" if due.will else "wills_not_due", due.what)
