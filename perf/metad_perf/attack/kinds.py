"""Every attack by name. Each runs in a process of its own that yields to the server and to the good client.

A real attacker has machines of its own. Here all share one, so the attacker's process runs only when no other wants the
processor (SCHED_IDLE), and on one processor: this measures the cost of its packets, not of its cycles. A bystander that
computes as much and touches no node shows whether that succeeded.

Here stand the attacks of insiders with what brokers coordinate by, too: registrations and heartbeats, leases with their
keys, what belongs to sessions, due wills, retained messages. As those of :mod:`.load`: each must end in answers, and
other clients must still be served.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import MetadError
from metad_wire.messages import BATCH_ITEMS_MAX
from metad_wire.tables import broker as b
from metad_wire.tables import lease as w
from metad_wire.tables.retained import RetainedMatch, RetainedPut, RetainedPutItem
from metad_wire.tables.subscription import SUBSCRIPTION_GET, Subscription, SubscriptionAdd
from metad_wire.tables.will import WillClaim, WillList

from ..errors import WorkerError
from ..spawn import client_processes
from . import load, quic, shares, state, tenants, tls, tokens
from .insider import GoneError, Insider
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


Attack = Callable[[Target, float], Outcome]
"""Takes the target and the monotonic time to end at."""
_OVERTIME_S = 60.0  # attacks end by themselves; the last check of each takes a while

ALONE, TOKENS, THREE, TENANTS, SMALL, POOR = "alone", "tokens", "three", "tenants", "small", "poor"
"""The targets: one node that requires certificates, one that accepts tokens too, three nodes, three that check roles
and have an honest tenant, one of these with a small disk, and one node that may open few files and whose log nobody
reads."""
STRANGER, INSIDER = "stranger", "insider"


class Kind(msgspec.Struct, frozen=True):
    """An attack: its attacker, transport and site."""

    who: str
    transport: str
    site: str
    run: Attack


def _kinds() -> dict[str, Kind]:
    made: dict[str, Kind] = {}

    def add(who: str, transport: str, site: str, *attacks: Attack) -> None:
        for attack in attacks:
            parts = ("insider" if who == INSIDER else "", site if site != ALONE else "", transport, attack.__name__)
            made["_".join(part for part in parts if part)] = Kind(who, transport, site, attack)

    add(
        STRANGER,
        "tls",
        ALONE,
        tls.handshake_flood,
        tls.wrong_certificates,
        tls.garbage,
        tls.half_open,
        tls.frame_bombs,
        tls.unfinished_frames,
        tls.slow_readers,
    )
    add(
        STRANGER,
        "quic",
        ALONE,
        quic.handshake_flood,
        quic.wrong_certificates,
        quic.garbage,
        quic.spoofed_initials,
        quic.half_open,
        quic.stream_abuse,
        quic.frame_bombs,
        quic.slow_readers,
        quic.early_replays,
    )
    add(
        INSIDER,
        "tls",
        ALONE,
        load.unread_replies,
        load.filtered_listings,
        load.whole_listings,
        load.expensive_transactions,
        load.large_compares,
        load.largest_reads,
        load.restores,
        load.status_and_map,
        load.small_puts,
        load.batches,
        load.largest_batches,
        load.one_key,
        load.wide_reads,
        load.wide_writes,
        load.hopeless_deadlines,
        load.cancelled_requests,
        load.pings,
        load.many_connections,
        load.comings_and_goings,
        load.single_bytes,
        load.broken_frames,
        load.hoarded_frames,
        registrations,
        heartbeats,
        revoked_leases,
        restored_parts,
        claimed_wills,
        deep_filters,
    )
    add(
        INSIDER,
        "tls",
        ALONE,
        shares.watch_streams,
        shares.unread_snapshots,
        shares.one_holder_with_many_connections,
        shares.reads_of_no_revision,
        shares.names_of_others,
        shares.orders_to_end,
        shares.patient_consumers,
        shares.heavy_batches,
        shares.days_of_leases,
        shares.names_of_brokers,
    )
    add(INSIDER, "quic", ALONE, load.unread_replies, load.filtered_listings, load.batches)
    add(
        INSIDER,
        "tls",
        ALONE,
        state.identity_window,
        state.unmoving_low,
        state.refused_items,
        state.highest_generation,
        state.random_bodies,
        state.reused_identities,
        state.cluster_changes,  # the last on this node, because if it succeeds the node is changed
    )
    add(
        STRANGER,
        "tls",
        TOKENS,
        tokens.silent_connections,
        tokens.wrong_tokens,
        tokens.refused_greetings,
        tokens.key_updates,
    )
    add(
        INSIDER,
        "tls",
        THREE,
        state.large_puts,
        state.replicated_refusals,
        state.amplified_transactions,
        shares.broker_lists,
        shares.long_reads_at_once,
    )
    add(INSIDER, "tls", TENANTS, *tenants.ATTACKS)
    add(INSIDER, "tls", SMALL, tenants.large_values)
    add(
        STRANGER,
        "tls",
        POOR,
        tls.held_connections,
        tls.wrong_certificates,
        tls.garbage,
    )
    return made


KINDS = _kinds()
"""All attacks by name, in order of execution: attacks on the same site follow each other."""

BYSTANDER = "bystander"
"""The name of the bystander, which only computes."""


class Attacker:
    """One attack, ready to begin any number of times. The start of its process, which takes a second of the processor,
    is not part of the attack."""

    def __init__(self, name: str, target: Target, seconds: float, processor: int | None) -> None:
        """``processor``: where it runs when no other process wants it; None: it runs as any other process."""
        context = client_processes()
        self._name = name
        self._seconds = seconds
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_main, args=(name, target, seconds, processor, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._receive(_OVERTIME_S)  # it is ready

    def begin(self) -> None:
        """Start the attack; it runs until :meth:`done`."""
        self._pipe.send(None)

    def done(self) -> bool:
        """Whether the attack is over."""
        return self._pipe.poll(0)

    def outcome(self) -> Outcome:
        """Wait for the outcome. Raises WorkerError."""
        answer = self._receive(self._seconds + _OVERTIME_S)
        assert isinstance(answer, Outcome)
        return answer

    def stop(self) -> None:
        """End the process in any case."""
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def _receive(self, timeout_s: float) -> object:
        try:
            if not self._pipe.poll(timeout_s):
                raise WorkerError(f"the attack {self._name} does not end")
            answer: object = self._pipe.recv()
        except EOFError:
            raise WorkerError(f"the attacker of {self._name} died") from None
        if isinstance(answer, WorkerError):
            raise answer
        return answer


def _bystander(target: Target, until_s: float) -> Outcome:
    """Computes as much as an attacker, and moves memory too."""
    count = 0
    data = bytes(1024 * 1024)
    while time.monotonic() < until_s:
        hashlib.sha256(bytearray(data)).digest()
        count += 1
    return Outcome(count)


def _main(name: str, target: Target, seconds: float, processor: int | None, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    if processor is not None:
        with contextlib.suppress(OSError, AttributeError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            os.sched_setaffinity(0, {processor})
    attack = _bystander if name == BYSTANDER else KINDS[name].run
    pipe.send(None)
    while True:
        try:
            pipe.recv()
        except EOFError:  # the parent process has ended
            return
        try:
            pipe.send(attack(target, time.monotonic() + seconds))
        except (OSError, MetadError, GoneError) as error:
            pipe.send(Outcome(0, f"the attack failed by itself: {error!r}"))
