"""Attacks of insiders on room that clients share: each takes all that it can and keeps it. Somebody else, with a
certificate of their own, must still get some."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import InvalidItemError, MetadError, PermissionDeniedError
from metad_wire.messages import BATCH_ITEMS_MAX
from metad_wire.methods import Body, Method, Reply
from metad_wire.tables import broker as b
from metad_wire.tables import consumer as g
from metad_wire.tables import lease as w
from metad_wire.watch import WatchFilter, WatchOpen

from .insider import GoneError, Insider, leader_of
from .peer import WAIT_S, Outcome, Target, payload_of

_CONNECTIONS = 5
_STREAMS = 4_096  # of one connection, by the default limits
_SNAPSHOTS = 60
_CROWD, _CROWD_STREAMS = 260, 80  # connections with one snapshot each, which are more than a node has; 20,800 streams
_BURST, _BURST_KEYS = 200, 1_000  # new connections, and what each reads
_NAMES = 4_096
_LISTS = 1_000  # 49 KB
_LEASE_BATCHES = 120
_READS = 6_000  # of one connection
_ORDERS = 300
_NEVER = 2**62
_LARGE_BATCHES, _LARGE_ITEMS, _LARGE_BYTES = 4, 900, 2_000
_MODEST_BATCHES, _MODEST_ITEMS = 16, 100
_PEACE_S = 2.0  # in half a second it was 180 to 1,460 batches a second, with nothing else to do
_LOGGED_S = 3.0  # a node logs 256 registrations a minute; a shorter attack would have more lines a second than allowed
_SLOWER_MAX = 8.0
_ALL_SLOTS = b"\xff" * 128


def watch_streams(target: Target, until_s: float) -> Outcome:
    """Five connections open as many streams of watches as they can, and hold them all."""
    opening = payload_of(methods.WATCH_OPEN, WatchOpen([WatchFilter("kv")], credit_bytes=0), group="data-0")
    with _hoarders(target) as hoarders:
        tried = _posted(hoarders, methods.WATCH_OPEN, [opening] * _STREAMS)
        problem = _denied(target, methods.WATCH_OPEN, WatchOpen([WatchFilter("kv")]), group="data-0")
        _hold(hoarders, until_s)
    return Outcome(tried, problem)


def unread_snapshots(target: Target, until_s: float) -> Outcome:
    """As many snapshots of watches as a node has under way, with no credit to send them."""
    snapshot = WatchOpen([WatchFilter("kv")], snapshot=_ALL_SLOTS, credit_bytes=0)
    with _hoarders(target) as hoarders:
        opening = payload_of(methods.WATCH_OPEN, snapshot, group="data-0")
        tried = _posted(hoarders, methods.WATCH_OPEN, [opening] * _SNAPSHOTS)
        problem = _denied(
            target, methods.WATCH_OPEN, WatchOpen([WatchFilter("kv")], snapshot=_ALL_SLOTS), group="data-0"
        )
        _hold(hoarders, until_s)
    return Outcome(tried, problem)


def one_holder_with_many_connections(target: Target, until_s: float) -> Outcome:
    """More connections than a node has snapshots and a dozen streams for, and each takes its share and keeps it."""
    opening = payload_of(methods.WATCH_OPEN, WatchOpen([WatchFilter("kv")], credit_bytes=0), group="data-0")
    snapshot = WatchOpen([WatchFilter("kv")], snapshot=_ALL_SLOTS, credit_bytes=0)
    with _hoarders(target, _CROWD) as hoarders:
        tried = _posted(hoarders, methods.WATCH_OPEN, [payload_of(methods.WATCH_OPEN, snapshot, group="data-0")])
        tried += _posted(hoarders, methods.WATCH_OPEN, [opening] * _CROWD_STREAMS)
        wanted = WatchOpen([WatchFilter("kv")], snapshot=_ALL_SLOTS)
        problems = [_denied(target, methods.WATCH_OPEN, wanted, group="data-0") for _ in range(_CONNECTIONS)]
        _hold(hoarders, until_s)
    return Outcome(tried, next(filter(None, problems), ""))


def long_reads_at_once(target: Target, until_s: float) -> Outcome:
    """Many new connections, each of which reads a thousand keys at the same moment as all others; and again."""
    keys = [m.KvKey("small", f"{number:014}") for number in range(_BURST_KEYS)]
    payload = payload_of(methods.KV_GET, methods.KV_GET.body(keys))
    tried, problem = 0, ""
    while time.monotonic() < until_s or not tried:
        with leader_of(target, methods.KV_GET, methods.KV_GET.body(keys[:1])) as leader, ExitStack() as stack:
            made: list[Insider] = []
            while len(made) < _BURST:
                with contextlib.suppress(OSError, GoneError):
                    made.append(stack.enter_context(Insider(target, node=leader.node)))
            tried += _posted(made, methods.KV_GET, [payload])
            problem = problem or _denied(target, methods.STATUS, m.Status())
    return Outcome(tried, problem)


def reads_of_no_revision(target: Target, until_s: float) -> Outcome:
    """Reads that wait for a revision that never comes, as many as there is room for."""
    body = methods.KV_GET.body([m.KvKey("small", "k")], [m.Revision("data-0", _NEVER)])
    with _hoarders(target) as hoarders:
        tried = _posted(hoarders, methods.KV_GET, [payload_of(methods.KV_GET, body, 60_000)] * _READS, wait=False)
        problem = _denied(target, methods.KV_PUT, m.KvPut([m.KvPutItem("small", "k", b"v")]))
        _hold(hoarders, until_s)
    return Outcome(tried, problem)


def days_of_leases(target: Target, until_s: float) -> Outcome:
    """Leases of a day, as many as a group takes."""
    items = [w.LeaseGrantItem(f"attack-{number}", w.LEASE_TTL_MS_MAX) for number in range(BATCH_ITEMS_MAX)]
    payload = payload_of(methods.LEASE_GRANT, w.LeaseGrant(items))
    tried = 0
    with Insider(target) as insider:
        for _ in range(_LEASE_BATCHES):
            if insider.ask_encoded(methods.LEASE_GRANT, payload, wait_s=4 * WAIT_S).errors:
                break
            tried += BATCH_ITEMS_MAX
        _hold([insider], until_s)
    body = w.LeaseGrant([w.LeaseGrantItem("modest", 10_000)])
    return Outcome(max(tried, 1), _denied(target, methods.LEASE_GRANT, body))


def names_of_brokers(target: Target, until_s: float) -> Outcome:
    """As many names of brokers as there are, each registered once."""
    with Insider(target) as insider:
        taken = _fill_registry(insider)
        problem = _denied(target, methods.BROKER_REGISTER, b.BrokerRegister("modest"))
        _hold([insider], max(until_s, time.monotonic() + _LOGGED_S))
    with contextlib.suppress(MetadError, OSError, GoneError), Insider(target, files=target.other) as modest:
        (record,) = modest.ask(methods.BROKER_GET, b.BrokerGet(["modest"])).brokers
        if record is not None:
            modest.ask(methods.BROKER_DEREGISTER, b.BrokerDeregister("modest", record.broker_epoch, 0))
    return Outcome(taken, problem)


def names_of_others(target: Target, until_s: float) -> Outcome:
    """Requests in the name of a broker that has a certificate of its own: to register it, to keep it alive, to end it,
    and to write in an epoch that no registration gave."""
    item = m.SessionTakeoverItem("attack", "c")
    with Insider(target, files=target.broker) as owner:
        epoch = owner.ask(methods.BROKER_REGISTER, b.BrokerRegister("owned", wait_ms=0)).broker_epoch
    stolen: Sequence[tuple[Method[Any, Any], m.Message]] = (
        (methods.BROKER_REGISTER, b.BrokerRegister("owned", wait_ms=0)),
        (methods.BROKER_HEARTBEAT, b.BrokerHeartbeat([b.BrokerBeat("owned", epoch)])),
        (methods.BROKER_DEREGISTER, b.BrokerDeregister("owned", epoch, 0)),
        (methods.SESSION_TAKEOVER, m.SessionTakeover("owned", _NEVER, [item])),
    )
    tried, problems = 0, set[str]()
    with Insider(target) as insider:
        while time.monotonic() < until_s or not tried:
            for method, body in stolen:
                tried += 1
                try:
                    insider.ask(method, body)
                except PermissionDeniedError:
                    continue
                except MetadError as error:
                    problems.add(f"{method.name} was {error.name}")
                else:
                    problems.add(f"{method.name} in another's name was done")
    return Outcome(tried, "; ".join(sorted(problems)))


def orders_to_end(target: Target, until_s: float) -> Outcome:
    """As many orders to end tenants as a group takes."""
    tried = 0
    with Insider(target) as insider:
        with contextlib.suppress(MetadError):
            for number in range(_ORDERS):
                insider.ask(methods.SESSION_END_TENANT, m.SessionEndTenant(f"attack-{number}", False))
                tried += 1
        problem = _denied(target, methods.SESSION_END_TENANT, m.SessionEndTenant("modest", False))
        _hold([insider], until_s)
    return Outcome(max(tried, 1), problem)


def patient_consumers(target: Target, until_s: float) -> Outcome:
    """Members of a consumer group that name a day for the others to wait."""
    day_ms = g.MEMBER_TIMEOUT_MS_MAX
    tried, problem = 0, ""
    with Insider(target) as insider:
        while time.monotonic() < until_s or not tried:
            for item in (g.JoinItem("attack", "g", day_ms), g.JoinItem("attack", "g", 10_000, day_ms)):
                errors = insider.ask(methods.CONSUMER_JOIN, g.ConsumerJoin([item])).errors
                tried += 1
                if [error.code for error in errors] != [InvalidItemError.code]:
                    problem = "a member that names a day was let in"
    return Outcome(tried, problem)


def heavy_batches(target: Target, until_s: float) -> Outcome:
    """Batches of nearly two megabytes of one tenant, all the time, beside small batches of another: these become 1 to 4
    times fewer (six runs on two cores with four times as much to do). That they become fewer at all has to be: a closed
    loop of small ones waits for a large one each time, however fair the turns are."""
    heavy = [m.KvPutItem("heavy", f"k{number}", bytes(_LARGE_BYTES)) for number in range(_LARGE_ITEMS)]
    light = [m.KvPutItem("light", f"k{number}", b"v") for number in range(_MODEST_ITEMS)]
    large, small = (payload_of(methods.KV_PUT, m.KvPut(items)) for items in (heavy, light))
    with Insider(target) as insider, Insider(target, files=target.other) as modest:
        peace = _served(modest, small, None, large, time.monotonic() + _PEACE_S) / _PEACE_S
        begun_s = time.monotonic()
        war = _served(modest, small, insider, large, max(until_s, begun_s + _PEACE_S)) / (time.monotonic() - begun_s)
        sent = insider.sent
    slower = peace / max(war, 0.1)
    return Outcome(sent, f"another's batches became {slower:.0f} times fewer" if slower > _SLOWER_MAX else "")


def broker_lists(target: Target, until_s: float) -> Outcome:
    """A thousand listings of a full registry at once, 49 KB of them, again and again: one proof of the lead is for all
    of them."""
    asked = b.BrokerList(page=m.Page(m.LIST_LIMIT_MAX))
    with leader_of(target, methods.BROKER_LIST, asked) as insider:
        _fill_registry(insider, attributes={"a": "x" * 700})
        payload = payload_of(methods.BROKER_LIST, asked)
        tried = 0
        while time.monotonic() < until_s or not tried:
            tried += _posted([insider], methods.BROKER_LIST, [payload] * _LISTS)
    return Outcome(tried)


def _fill_registry(insider: Insider, attributes: dict[str, str] | None = None) -> int:
    """Register names until no more are given; how many were tried. Those that there are already stay."""
    known = insider.ask(methods.BROKER_LIST, b.BrokerList(f"hoard-{_NAMES // 2 - 8:04}")).found
    if known:
        return 1
    bodies = [
        b.BrokerRegister(f"hoard-{number:04}", 3_600_000, attributes=attributes or {}, wait_ms=0)
        for number in range(_NAMES)
    ]
    return _posted([insider], methods.BROKER_REGISTER, [payload_of(methods.BROKER_REGISTER, body) for body in bodies])


@contextlib.contextmanager
def _hoarders(target: Target, count: int = _CONNECTIONS) -> Iterator[list[Insider]]:
    """So many connections. On a machine that is busy a handshake of the attacker may come too late."""
    with ExitStack() as stack:
        made: list[Insider] = []
        until_s = time.monotonic() + 4 * WAIT_S
        while len(made) < count:
            try:
                made.append(stack.enter_context(Insider(target)))
            except (OSError, GoneError):
                if time.monotonic() > until_s:
                    raise
        yield made


def _posted(
    insiders: Sequence[Insider], method: Method[Body, Reply], payloads: Sequence[bytes], *, wait: bool = True
) -> int:
    """Send these from each, and wait for their answers; how many that were. Raises GoneError."""
    wanted = [insider.heard.responses + insider.heard.errors + len(payloads) for insider in insiders]
    for payload in payloads:
        for insider in insiders:
            insider.post(method, payload)
    until_s = time.monotonic() + (4 * WAIT_S if wait else 0.0)
    while any(
        insider.heard.responses + insider.heard.errors < count and not insider.ended
        for insider, count in zip(insiders, wanted, strict=True)
    ):
        if time.monotonic() > until_s:
            if wait:
                raise GoneError("no answer in time")
            break
        _hold(insiders, 0.0)
    return len(payloads) * len(insiders)


def _hold(insiders: Sequence[Insider], until_s: float) -> None:
    """Read what comes, and say nothing."""
    while True:
        for insider in insiders:
            insider.say(b"")
        if time.monotonic() >= until_s:
            return
        time.sleep(0.02)


def _denied(target: Target, method: Method[Body, Reply], body: Body, *, group: str = "") -> str:
    """What somebody else is told who wants a little; empty: they get it."""
    try:
        with Insider(target, files=target.other) as modest:
            reply = modest.ask_encoded(method, payload_of(method, body, group=group))
    except (OSError, GoneError, MetadError) as error:
        return f"somebody else got no {method.name}: {error!r}"
    errors = getattr(reply, "errors", [])
    return f"somebody else got no {method.name}: {errors[0]}" if errors else ""


def _served(modest: Insider, small: bytes, insider: Insider | None, large: bytes, until_s: float) -> int:
    """How many small requests are answered until then, while an insider keeps large ones in flight."""
    keeps: list[tuple[Insider, bytes, int]] = [(modest, small, _MODEST_BATCHES)]
    if insider is not None:
        keeps.append((insider, large, _LARGE_BATCHES))
    begun = [_answers(one) for one, _, _ in keeps]
    sent = list(begun)
    while time.monotonic() < until_s:
        for at, (one, payload, in_flight) in enumerate(keeps):
            while sent[at] - _answers(one) < in_flight:
                one.post(methods.KV_PUT, payload)
                sent[at] += 1
            one.say(b"")
        if insider is not None and insider.ended:
            break
    served = _answers(modest) - begun[0]
    late_s = time.monotonic() + 4 * WAIT_S
    while any(_answers(one) < count for (one, _, _), count in zip(keeps, sent, strict=True)):
        if time.monotonic() > late_s:
            raise GoneError("no answer in time")
        for one, _, _ in keeps:
            one.say(b"")
    return served


def _answers(insider: Insider) -> int:
    return insider.heard.responses + insider.heard.errors
