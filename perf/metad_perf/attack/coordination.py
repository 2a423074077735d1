"""Attacks of insiders with what brokers coordinate by: registrations and heartbeats, leases with their keys, what
belongs to sessions, due wills, retained messages. As those of :mod:`.load`: each must end in answers, and other clients
must still be served."""

from __future__ import annotations

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.messages import BATCH_ITEMS_MAX
from metad_wire.tables import broker as b
from metad_wire.tables import lease as w
from metad_wire.tables.retained import RetainedMatch, RetainedPut, RetainedPutItem
from metad_wire.tables.subscription import SUBSCRIPTION_GET, Subscription, SubscriptionAdd
from metad_wire.tables.will import WillClaim, WillList

from .insider import Insider
from .load import flood
from .peer import Outcome, Target, payload_of

_NAMES = 200  # of brokers: far from the bound on them, so that others may still register
_IN_FLIGHT, _FULL = 1_000, 40
_LEASES, _LEASE_KEYS = 30, 1_000  # together more keys than one request revokes
_SESSIONS, _FILTERS, _FILTERS_OF_A_REQUEST = 8, 4_000, 1_000  # together more than one request reads
_RESTORED = 3  # and these are fewer
_LEVELS = 255
_BROKER = "attacker"


def registrations(target: Target, until_s: float) -> Outcome:
    """Registrations of the same few brokers all the time, also with the greatest epoch that a field holds: each is a
    write, and a fence in every group. The node must not stop, and a name must not run out of epochs."""
    epochs = (0, 2**62, 2**63 - 1)
    asked = [
        payload_of(methods.BROKER_REGISTER, b.BrokerRegister(f"attack-{number}", at_least_epoch=epochs[number % 3]))
        for number in range(_NAMES)
    ]
    outcome = flood(target, until_s, [(methods.BROKER_REGISTER.code, one) for one in asked], in_flight=_IN_FLIGHT)
    with Insider(target) as insider:
        registered = insider.ask(methods.BROKER_REGISTER, b.BrokerRegister("attack-1"))
    return Outcome(outcome.tried, outcome.problem or ("" if registered.broker_epoch else "no epoch"))


def heartbeats(target: Target, until_s: float) -> Outcome:
    """Heartbeats of as many lives as a request may name, of which there is none, and listings of brokers."""
    beats = b.BrokerHeartbeat([b.BrokerBeat(f"nobody-{number}", 2**63 - 1) for number in range(BATCH_ITEMS_MAX)])
    asked = [
        (methods.BROKER_HEARTBEAT.code, payload_of(methods.BROKER_HEARTBEAT, beats)),
        (methods.BROKER_LIST.code, payload_of(methods.BROKER_LIST, b.BrokerList(page=m.Page(10_000)))),
    ]
    return flood(target, until_s, asked, in_flight=_FULL)


def revoked_leases(target: Target, until_s: float) -> Outcome:
    """Requests that revoke leases with more keys than one may: refused before a key is looked at."""
    leases = [w.LeaseKey("attack", f"l{number}") for number in range(_LEASES)]
    with Insider(target) as insider:
        items = [w.LeaseGrantItem("attack", w.LEASE_TTL_MS_MAX, lease.lease) for lease in leases]
        insider.ask(methods.LEASE_GRANT, w.LeaseGrant(items))  # or they are there already
        for lease in leases:
            puts = [m.KvPutItem("attack", f"{lease.lease}/{number}", b"") for number in range(_LEASE_KEYS)]
            insider.ask(methods.KV_PUT, m.KvPut(puts, lease.lease))
    asked = [
        (methods.LEASE_REVOKE.code, payload_of(methods.LEASE_REVOKE, m.Items(leases))),
        (methods.LEASE_KEEP_ALIVE.code, payload_of(methods.LEASE_KEEP_ALIVE, w.LeaseKeepAlive(leases))),
        (methods.LEASE_LIST.code, payload_of(methods.LEASE_LIST, w.LeaseList("attack", page=m.Page(10_000)))),
    ]
    return flood(target, until_s, asked, in_flight=_FULL)


def restored_parts(target: Target, until_s: float) -> Outcome:
    """Takeovers that restore sessions with thousands of filters each, and reads of these: some of more than one request
    may read."""
    items = [m.SessionTakeoverItem("attack", f"c{number}") for number in range(_SESSIONS)]
    with Insider(target) as insider:
        insider.ask(methods.SESSION_TAKEOVER, m.SessionTakeover(_BROKER, 1, items))
        for item in items:
            for begin in range(0, _FILTERS, _FILTERS_OF_A_REQUEST):
                filters = [
                    Subscription("attack", item.client_id, f"f{number}")
                    for number in range(begin, begin + _FILTERS_OF_A_REQUEST)
                ]
                insider.ask(methods.SUBSCRIPTION_ADD, SubscriptionAdd(_BROKER, 1, filters))
    asked = []
    for count in (_SESSIONS, _RESTORED):
        takeover = m.SessionTakeover(_BROKER, 1, items[:count], True, True)
        keys = [m.SessionKey("attack", item.client_id) for item in items[:count]]
        asked += [
            (methods.SESSION_TAKEOVER.code, payload_of(methods.SESSION_TAKEOVER, takeover)),
            (methods.SUBSCRIPTION_GET.code, payload_of(methods.SUBSCRIPTION_GET, SUBSCRIPTION_GET.body(keys))),
        ]
    return flood(target, until_s, asked, in_flight=_FULL)


def claimed_wills(target: Target, until_s: float) -> Outcome:
    """Wills of the largest size that are due, claimed again and again for a moment, and listed."""
    will = m.Will("attack", bytes(50_000))
    items = [
        m.SessionTakeoverItem("attack", f"w{number}", properties=m.SessionProperties(0, b"", will))
        for number in range(_SESSIONS)
    ]
    with Insider(target) as insider:
        insider.ask(methods.SESSION_TAKEOVER, m.SessionTakeover(_BROKER, 1, items))
        gone = [m.SessionDisconnectItem("attack", item.client_id) for item in items]
        insider.ask(methods.SESSION_DISCONNECT, m.SessionDisconnect(_BROKER, 1, gone))
    asked = [
        (methods.WILL_CLAIM.code, payload_of(methods.WILL_CLAIM, WillClaim(_BROKER, 1, 1, BATCH_ITEMS_MAX))),
        (methods.WILL_LIST.code, payload_of(methods.WILL_LIST, WillList(page=m.Page(10_000)))),
    ]
    return flood(target, until_s, asked, in_flight=_FULL)


def deep_filters(target: Target, until_s: float) -> Outcome:
    """Filters of as many levels as are allowed over topics as deep, most of which match nothing."""
    with Insider(target) as insider:
        below = "/".join(["a"] * (_LEVELS - 10))
        items = [RetainedPutItem("attack", f"{number}/{below}", b"v") for number in range(BATCH_ITEMS_MAX)]
        insider.ask(methods.RETAINED_PUT, RetainedPut(items))
    asked = []
    for last in ("#", "z"):
        body = RetainedMatch("attack", "/".join(["+"] * (_LEVELS - 10)) + f"/{last}", page=m.Page(10_000))
        asked.append((methods.RETAINED_MATCH.code, payload_of(methods.RETAINED_MATCH, body)))
    return flood(target, until_s, asked, in_flight=_FULL)
