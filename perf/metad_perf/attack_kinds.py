"""Every attack by name, and how one is run: in a process of its own that yields to the server and to the good client.

An attacker has machines of his own. Here all share one, so his process runs when nobody else wants the processor
(SCHED_IDLE), and on one processor only: what is measured is what his packets cost, not his cycles. Whether that has
succeeded is measured too, by a bystander in his place who is as busy and touches nothing.
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

from . import attack_quic, attack_tls
from .attack_peer import Target
from .errors import WorkerError

Attack = Callable[[Target, float], tuple[bool, int]]
"""Takes the target and the monotonic time to end at; whether the server refused it, and how often it was tried."""
_OVERTIME_S = 60.0  # attacks end by themselves; the last look at each takes a while

KINDS: dict[str, tuple[str, Attack]] = {
    f"{transport}_{attack.__name__}": (transport, attack)
    for transport, attacks in {
        "tls": (
            attack_tls.handshake_flood,
            attack_tls.wrong_certificates,
            attack_tls.garbage,
            attack_tls.half_open,
            attack_tls.frame_bombs,
            attack_tls.unfinished_frames,
            attack_tls.slow_readers,
        ),
        "quic": (
            attack_quic.handshake_flood,
            attack_quic.wrong_certificates,
            attack_quic.garbage,
            attack_quic.spoofed_initials,
            attack_quic.half_open,
            attack_quic.stream_abuse,
            attack_quic.frame_bombs,
            attack_quic.slow_readers,
            attack_quic.early_replays,
        ),
    }.items()
    for attack in attacks
}
"""Name -> its transport and what is done."""


BYSTANDER = "bystander"
"""In the place of an attack's name: who only computes."""


class Outcome(msgspec.Struct, frozen=True):
    """What became of an attack."""

    refused: bool
    tried: int


class Attacker:
    """One attack, ready to begin: a process that starts is no part of it, and takes a second of the processor."""

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
        """Let it loose."""
        self._pipe.send(None)

    def done(self) -> bool:
        """Whether it is over."""
        return self._pipe.poll(0)

    def outcome(self) -> Outcome:
        """Waits for it. Raises WorkerError."""
        answer = self._receive(self._seconds + _OVERTIME_S)
        assert isinstance(answer, Outcome)
        return answer

    def stop(self) -> None:
        """End it in any case."""
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


def _bystander(target: Target, until_s: float) -> tuple[bool, int]:
    """As busy as an attacker; moves memory as well, as one does."""
    count = 0
    data = bytes(1024 * 1024)
    while time.monotonic() < until_s:
        hashlib.sha256(bytearray(data)).digest()
        count += 1
    return True, count


def _main(name: str, target: Target, seconds: float, processor: int, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        os.sched_setaffinity(0, {processor})
    attack: Attack = _bystander if name == BYSTANDER else KINDS[name][1]
    pipe.send(None)
    try:
        pipe.recv()
    except EOFError:  # the parent has gone
        return
    try:
        refused, tried = attack(target, time.monotonic() + seconds)
    except OSError as error:
        pipe.send(WorkerError(f"the attack {name} failed by itself: {error!r}"))
    else:
        pipe.send(Outcome(refused, tried))
