"""Which broker serves which client, and what is to happen to the client's session when its broker dies. Pure.

A client's name says its broker and its number there, and the number says its kind, so nothing has to be remembered of a
million sessions. The sessions of brokers that live have the same intervals and wills, and nothing may happen to them.
"""

from __future__ import annotations

import enum

import msgspec

from metad_client import SessionProperties, SessionTakeoverItem, Will

from ..errors import UsageError

TENANT = "failover"
LONG_S = 86_400
"""An interval that does not end in the run."""
_PAYLOAD = bytes(32)


class Kind(enum.Enum):
    """What becomes of a session whose broker dies."""

    ENDS = "ends"
    """It ends when its interval is over."""
    ENDS_WITH_WILL = "ends with will"
    """So does this one, and its will, which has a longer delay, is due then."""
    WILL = "will"
    """Its will is due at once, and it stays."""
    DELAYED_WILL = "delayed will"
    """Its will is due after a delay, and it stays."""
    STAYS = "stays"
    """Nothing is due."""
    RETURNS = "returns"
    """Its client comes back at once. If it comes in time, nothing is due; if not, what is due of ENDS_WITH_WILL."""


_KINDS = (*[Kind.ENDS] * 5, Kind.ENDS_WITH_WILL, Kind.WILL, Kind.DELAYED_WILL, Kind.STAYS, Kind.RETURNS)
"""Of each ten sessions of a broker."""
HAVE_WILLS = frozenset({Kind.ENDS_WITH_WILL, Kind.WILL, Kind.DELAYED_WILL, Kind.RETURNS})
END = frozenset({Kind.ENDS, Kind.ENDS_WITH_WILL})
FIRE = frozenset({Kind.ENDS_WITH_WILL, Kind.WILL, Kind.DELAYED_WILL})


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The brokers 0 ≤ n < ``brokers`` have ``sessions`` together. The first ``kill`` of them die. ``expiry_s`` is the
    interval of the sessions that end; ``delay_s`` the delay of wills."""

    brokers: int = 50
    sessions: int = 1_000_000
    kill: int = 10
    expiry_s: int = 5
    delay_s: int = 2

    def checked(self) -> Plan:
        """This. Raises UsageError."""
        if not 0 < self.kill < self.brokers:
            raise UsageError("--kill must be over 0 and less than --brokers: somebody has to publish the wills")
        if self.sessions < len(_KINDS) * self.brokers:
            raise UsageError(f"--sessions must be at least {len(_KINDS)} for each broker")
        if not 0 < self.delay_s <= self.expiry_s < LONG_S:
            raise UsageError(f"--delay-s must be over 0, no more than --expiry-s, and that less than {LONG_S}")
        return self

    @property
    def each(self) -> int:
        """Sessions of a broker: a number without a remainder, so that every broker has the same kinds."""
        return self.sessions // self.brokers

    def broker(self, n: int) -> str:
        """The name of a broker."""
        return f"failover-{n:04}"

    def client(self, n: int, number: int) -> str:
        """The name of a client of broker ``n``."""
        return f"{n:04}-{number:08}"

    def place(self, client: str) -> int | None:
        """The index of a client among all; None if there is no such client."""
        n, _, number = client.partition("-")
        if not (n.isdigit() and number.isdigit() and int(n) < self.brokers and int(number) < self.each):
            return None
        return int(n) * self.each + int(number)

    def dies(self, place: int) -> bool:
        """Whether the broker of this client is killed."""
        return place // self.each < self.kill

    def kind(self, place: int) -> Kind:
        """What is to become of this client's session, if its broker dies."""
        return _KINDS[place % self.each % len(_KINDS)]

    def item(self, n: int, number: int) -> SessionTakeoverItem:
        """The client connects for the first time."""
        client = self.client(n, number)
        kind = _KINDS[number % len(_KINDS)]
        ends = kind in END or kind is Kind.RETURNS
        will = Will(topic_of(client), client.encode(), delay_s=self._delay_s(kind)) if kind in HAVE_WILLS else None
        properties = SessionProperties(self.expiry_s if ends else LONG_S, _PAYLOAD, will)
        return SessionTakeoverItem(TENANT, client, True, properties)

    def returning(self, n: int) -> list[str]:
        """The clients of a dead broker that come back."""
        return [self.client(n, number) for number in range(self.each) if _KINDS[number % len(_KINDS)] is Kind.RETURNS]

    def count(self, kinds: frozenset[Kind]) -> int:
        """How many sessions of the killed brokers are of these kinds."""
        return self.kill * sum(_KINDS[number % len(_KINDS)] in kinds for number in range(self.each))

    def _delay_s(self, kind: Kind) -> int:
        match kind:
            case Kind.WILL:
                return 0
            case Kind.DELAYED_WILL:
                return self.delay_s
            case _:
                return LONG_S  # the end of the session comes first


def topic_of(client: str) -> str:
    """Where a client's will is published."""
    return f"wills/{client}"
