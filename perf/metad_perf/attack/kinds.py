"""Every attack by name. Each runs in a process of its own that yields to the server and to the good client.

A real attacker has machines of its own. Here all share one, so the attacker's process runs only when no other wants the
processor (SCHED_IDLE), and on one processor: this measures the cost of its packets, not of its cycles. A bystander that
computes as much and touches no node shows whether that succeeded.
"""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import msgspec

from metad_wire.errors import MetadError

from ..errors import WorkerError
from . import coordination, load, quic, shares, state, tls, tokens
from .insider import GoneError
from .peer import Outcome, Target

Attack = Callable[[Target, float], Outcome]
"""Takes the target and the monotonic time to end at."""
_OVERTIME_S = 60.0  # attacks end by themselves; the last check of each takes a while

ALONE, TOKENS, THREE, POOR = "alone", "tokens", "three", "poor"
"""The targets: one node that requires certificates, one that accepts tokens too, three nodes, and one node that may
open few files and whose log nobody reads."""
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
        coordination.registrations,
        coordination.heartbeats,
        coordination.revoked_leases,
        coordination.restored_parts,
        coordination.claimed_wills,
        coordination.deep_filters,
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
    add(
        INSIDER,
        "quic",
        ALONE,
        load.unread_replies,
        load.filtered_listings,
        load.batches,
    )
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

    def __init__(self, name: str, target: Target, seconds: float, processor: int) -> None:
        context = multiprocessing.get_context("spawn")
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


def _main(name: str, target: Target, seconds: float, processor: int, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
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
