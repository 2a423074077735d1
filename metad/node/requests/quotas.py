"""How much tenants and principals may ask for: rates at this node, and what they may store.

A rate has one second's worth at most. A request is begun while one item, or byte, is left, and takes all that it has,
also what is not there: so no request is too large for a small rate, and it is made up for by whoever comes next.
Where some items of a request are of tenants that have nothing left, those are refused and the others are done. What
keeps somebody alive, and what administrators ask for, counts for nothing.

Without quotas a request pays one look.
"""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from metad_wire.errors import MetadError, QuotaError, QuotaExceededError
from metad_wire.messages import Identity
from metad_wire.method import For, Lane, Method
from metad_wire.methods import AHEAD
from metad_wire.refused import Refused, narrowed
from metad_wire.tables.tenants import OF_PRINCIPAL, OF_TENANT, QUOTAS_MAX, Quota, QuotaUse, QuotaUseReply, Use

from ...control.host import Source
from ...state.cluster.quotas import KnownQuotas
from ...state.core.verb import Verb
from ..environment import Environment
from ..replicas.driver import GroupDriver

_KNOWN_MAX: Final = 8_192
"""Subjects of which the node knows what they have left. For one more, who was not seen for longest is forgotten."""
_FOUND: Final = 4_096
"""Subjects in one answer."""
_AGAIN_MS: Final = 60_000
"""After this time somebody may come again, however long it takes."""
_AHEAD_S: Final = 2.0
"""So far ahead times to come again are given to one after the other. Who comes earlier than it was told, again and
again, must not put off all others for longer."""
_REPEATED: Final = 16
"""Items by which whoever asks what came of a request may owe more than a second brings."""
_LOOKS: Final = 8
"""So many of those who were not seen for longest are looked at for one that owes nothing."""


class _Rate:
    """What one subject has left, and took, of one thing."""

    __slots__ = ("_left", "_next_s", "_second", "_taken", "_taken_before", "_then_s")

    def __init__(self, per_s: int, now_s: float) -> None:
        self._left = float(per_s)
        self._then_s = self._next_s = now_s
        self._second = int(now_s)
        self._taken = self._taken_before = 0

    def wait_s(self, per_s: int, count: int, now_s: float, least: float = 1.0) -> float:
        """After what time there is ``least`` again for who asks for so much; 0: there is now. Whoever is told a time
        has it for itself: the next one is told a later one."""
        if self.left(per_s, now_s) >= least:
            return 0.0
        if not per_s:
            return _AGAIN_MS / 1_000
        first_s = now_s + (least - self._left) / per_s
        at_s = min(max(self._next_s, first_s), first_s + _AHEAD_S)
        self._next_s = at_s + count / per_s
        return min(at_s - now_s, _AGAIN_MS / 1_000)

    def left(self, per_s: int, now_s: float) -> float:
        """How much is left; less than 0 is owed."""
        self._left = min(float(per_s), self._left + per_s * (now_s - self._then_s))
        self._then_s = now_s
        return self._left

    def take(self, count: int, now_s: float) -> None:
        """Take so much, whether it is there or not."""
        self._left -= count
        self._tick(now_s)
        self._taken += count

    def last_second(self, now_s: float) -> int:
        """How much was taken in the last whole second."""
        self._tick(now_s)
        return self._taken_before

    def _tick(self, now_s: float) -> None:
        second = int(now_s)
        if second != self._second:
            self._taken_before = self._taken if second == self._second + 1 else 0
            self._second, self._taken = second, 0


class _Subject:
    """A tenant or a principal that has a quota."""

    __slots__ = ("kind", "name", "rates", "refused")

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        self.name = name
        self.rates: dict[str, _Rate] = {}
        self.refused = 0

    def over(self, quota: Quota, items: int, size: int, now_s: float, *, repeated: bool = False) -> QuotaError | None:
        """Why so much of it may not begin now; None if it may. What is ``repeated`` may owe a second's worth."""
        for field, count in zip(_RATES, (items, size), strict=True):
            per_s = getattr(quota, field)
            if per_s is None:
                continue
            rate = self.rates.get(field)
            if rate is None:
                rate = self.rates[field] = _Rate(per_s, now_s)
            if (wait_s := rate.wait_s(per_s, count, now_s, 1.0 - max(per_s, _REPEATED) * repeated)) > 0:
                return self._error(field, per_s, rate.last_second(now_s), wait_s)
        return None

    def owes(self, quota: Quota, now_s: float) -> bool:
        """Whether it has to be remembered."""
        return any(rate.left(getattr(quota, field) or 0, now_s) < 0 for field, rate in self.rates.items())

    def take(self, items: int, size: int, now_s: float) -> None:
        for field, count in zip(_RATES, (items, size), strict=True):
            if (rate := self.rates.get(field)) is not None:
                rate.take(count, now_s)

    def _error(self, field: str, per_s: int, used: int, wait_s: float) -> QuotaError:
        again_ms = min(_AGAIN_MS, max(1, round(1_000 * wait_s)))
        what, kind = field.partition("_")[0], self.kind.removesuffix("/")
        return QuotaError(
            f"{kind} {self.name[:256]!r} may ask a node for {per_s} {what} a second, and has asked for {used} in the "
            f"last one: come again in {again_ms} ms",
            retry_after_ms=again_ms,
            retry_jitter_ms=again_ms // 4,
        )


_RATES: Final = ("items_per_s", "bytes_per_s")


class Wanted(NamedTuple):
    """What a request asks for."""

    verb: Verb[Any, Any]
    size: int
    """In bytes."""
    asked: Any
    """The body with the items that are refused already."""
    scopes: Callable[[], list[str]]
    """The tenant of each of the others. Asked for only where it counts."""


class Quotas:
    """Knows what is left of quotas at one node."""

    def __init__(self, known: KnownQuotas, environment: Environment) -> None:
        self.known = known
        self._environment = environment
        self._subjects: OrderedDict[str, _Subject] = OrderedDict()  # who was seen last is last; but for
        self._named: dict[str, _Subject] = {}  # those with a quota of their own
        self.connections: Callable[[str], int] = lambda holder: 0
        """How many connections a principal has; set by the server."""
        self.watches: Callable[[str], int] = lambda holder: 0
        """How many streams of watches it has; set by what serves them."""

    def admit(
        self,
        driver: GroupDriver,
        wanted: Wanted,
        body: Any,
        refused: Refused | None,
        identity: Identity | None,
        source: Source,
        *,
        near: bool = False,
    ) -> tuple[Any, Refused | None]:
        """The body of a request with those of its items that may begin, and the others among those that are refused.
        ``near``: this replica does not lead, and answers. Raises QuotaError, or QuotaExceededError, if none may."""
        verb, size, asked, scopes_of = wanted
        method = verb.method
        if _is_free(method) or not (near or driver.group.is_leader):
            return body, refused
        items = len(asked.items) if method.item is not None else 1
        now_s, repeated = self._environment.now(), method.mutates and _was_done(driver, identity)
        principal = self._principal(source)
        self._check_rate(principal, items, size, now_s, repeated=repeated)
        scopes = scopes_of()
        count = Counter(scopes)
        reasons: dict[str, MetadError] = {}
        tenants: dict[str, _Subject] = {}
        grows = not repeated and bool(self.known.full) and _grows(verb, body)
        for tenant in count:
            found = self._subject(OF_TENANT, tenant)
            if found is not None:
                tenants[tenant] = found[0]
                share = size * count[tenant] // max(1, items)
                if (over := found[0].over(found[1], count[tenant], share, now_s, repeated=repeated)) is not None:
                    reasons[tenant] = over
            if grows and tenant in self.known.full:
                reasons.setdefault(tenant, QuotaExceededError(self.known.full[tenant]))
        for tenant in reasons:
            if tenant in tenants:
                tenants[tenant].refused += count[tenant]
        if reasons:
            body, refused = _without(method, body, refused, scopes, reasons)
        done = items - sum(count[tenant] for tenant in reasons)  # what is refused for its own sake is asked for, too
        for tenant, subject in tenants.items():
            if tenant not in reasons:
                subject.take(count[tenant], size * count[tenant] // max(1, items), now_s)
        if principal is not None:
            principal[0].take(done, size * done // max(1, items), now_s)
        return body, refused

    def denied(self, method: Method[Any, Any], source: Source, body: Any, size: int) -> None:
        """Count what a principal may not do. Raises QuotaError, in place of the refusal, where it asks too often."""
        if self.known.by_subject and not _is_free(method):
            self._charge(source, len(body.items) if method.item is not None else 1, size)

    def _charge(self, source: Source, items: int, size: int) -> None:
        """Let a principal pay for so much. Raises QuotaError where it has nothing left."""
        if (principal := self._principal(source)) is not None:
            now_s = self._environment.now()
            self._check_rate(principal, items, size, now_s)
            principal[0].take(items, size, now_s)

    def _principal(self, source: Source) -> tuple[_Subject, Quota] | None:
        return None if source.principal is None else self._subject(OF_PRINCIPAL, source.principal.uri)

    def _check_rate(
        self, principal: tuple[_Subject, Quota] | None, items: int, size: int, now_s: float, *, repeated: bool = False
    ) -> None:
        """Raise QuotaError where a principal has nothing left."""
        if principal is None:
            return
        if (error := principal[0].over(principal[1], items, size, now_s, repeated=repeated)) is not None:
            principal[0].refused += items
            raise error

    def may_connect(self, holder: str) -> None:
        """Raise QuotaError where a principal has as many connections to this node as it may have."""
        self._check_count("connections", holder, self.connections(holder))

    def may_watch(self, source: Source | None, streams: int = 1, nodes: int = 1) -> None:
        """Raise QuotaError where a principal has as many streams of watches at this node as it may have, or asks for
        one too soon: each is an item. Raises QuotaExceededError where it may never have the ``streams`` that the watch
        needs, at all ``nodes`` together."""
        if source is not None and source.principal is not None:
            most = self._most("watches", source.holder)
            if most is not None and most * nodes < streams:
                raise QuotaExceededError(
                    f"principal {source.holder!r} may have {most} streams of watches at a node, and this watch needs "
                    f"{streams}, one for each group: raise `watches` of its quota"
                )
            self._check_count("watches", source.holder, self.watches(source.holder))
            self._charge(source, 1, 0)

    def use(self, body: QuotaUse) -> QuotaUseReply:
        """What the subjects of quotas take here."""
        now_s = self._environment.now()
        named = {subject for subject in self.known.by_subject if not subject.endswith("/*")}
        seen = {key for key, one in self._subjects.items() if self.known.of(one.kind, one.name) is not None}
        wanted = sorted(one for one in seen | named if one.startswith(body.prefix))[:_FOUND]
        return QuotaUseReply([self._use_of(subject, now_s) for subject in wanted])

    def _use_of(self, name: str, now_s: float) -> Use:
        subject = self._named.get(name) or self._subjects.get(name)
        rates = {} if subject is None else subject.rates
        items, size = (rates[field].last_second(now_s) if field in rates else 0 for field in _RATES)
        uri = name.removeprefix(OF_PRINCIPAL) if name.startswith(OF_PRINCIPAL) else ""
        held = None if uri else self.known.totals.get(name.removeprefix(OF_TENANT))
        return Use(
            name,
            items,
            size,
            self.connections(uri) if uri else 0,
            self.watches(uri) if uri else 0,
            None if held is None else held.sessions,
            None if held is None else held.records,
            None if held is None else held.bytes,
            0 if subject is None else subject.refused,
        )

    def _check_count(self, field: str, holder: str, count: int) -> None:
        most = self._most(field, holder)
        if most is not None and count >= most:
            raise QuotaError(
                f"principal {holder!r} may have {most} {field} at a node, and has {count}", retry_after_ms=1_000
            )

    def _most(self, field: str, holder: str) -> int | None:
        """How many a principal may have at a node; None: as many as it likes."""
        quota = self.known.of(OF_PRINCIPAL, holder)
        return None if quota is None else getattr(quota, field)

    def _subject(self, kind: str, name: str) -> tuple[_Subject, Quota] | None:
        """What is known of who has a quota with rates."""
        quota = self.known.of(kind, name)
        if quota is None or (quota.items_per_s is None and quota.bytes_per_s is None):
            return None
        key = kind + name
        if key in self.known.by_subject:
            found = self._named.get(key)
            if found is None:
                if len(self._named) >= 2 * QUOTAS_MAX:
                    self._named = {key: one for key, one in self._named.items() if key in self.known.by_subject}
                found = self._named[key] = _Subject(kind, name)
            return found, quota
        found = self._subjects.get(key)
        if found is None:
            if len(self._subjects) >= _KNOWN_MAX:
                self._forget_one()
            found = self._subjects[key] = _Subject(kind, name)
        self._subjects.move_to_end(key)
        return found, quota

    def _forget_one(self) -> None:
        """Make room for another: of those that were not seen for longest, the first that owes nothing."""
        now_s, oldest = self._environment.now(), [*itertools.islice(self._subjects.items(), _LOOKS)]
        for key, one in oldest:
            quota = self.known.of(one.kind, one.name)
            if quota is None or not one.owes(quota, now_s):
                del self._subjects[key]
                return
            self._subjects.move_to_end(key)
        del self._subjects[oldest[0][0]]


def _was_done(driver: GroupDriver, identity: Identity | None) -> bool:
    """Whether a request repeats one of which the group knows, so that it only asks what came of that."""
    try:
        return identity is not None and driver.machine.dedupe.lookup(identity) is not None
    except MetadError:  # its evaluation says what is wrong
        return True


def _is_free(method: Method[Any, Any]) -> bool:
    return method.code in AHEAD or method.lane <= Lane.CONTROL or method.whose is For.ADMINS


def _grows(verb: Verb[Any, Any], body: Any) -> bool:
    return verb.evaluate is not None and bool(verb.grows(body) if callable(verb.grows) else verb.grows)


def _without(
    method: Method[Any, Any],
    body: Any,
    refused: Refused | None,
    scopes: Sequence[str],
    reasons: dict[str, MetadError],
) -> tuple[Any, Refused | None]:
    by_item = {position: reasons[scope] for position, scope in enumerate(scopes) if scope in reasons}
    is_rate = all(isinstance(why, QuotaError) for why in reasons.values())
    if method.item is None or (is_rate and len(by_item) == len(body.items)):
        raise min(reasons.values(), key=lambda error: error.retry_after_ms)
    return narrowed(body, refused, by_item)
