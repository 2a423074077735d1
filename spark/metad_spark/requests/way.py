"""The way of clients to their brokers, where something may keep them on it: packets that are lost, and the doors of
brokers, which let one client through after the other.

A client is as patient here as everywhere: the time that it loses on its way is time that it does not wait for an
answer. So a client that is late has a deadline of its own, at which it leaves whatever it waits in, a call of its
broker included. This is what the model ``vector`` does, by the same arithmetic of losses and doors. A storm without
losses and doors has no such way.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np

from metad_wire.policy.draw import stream
from metad_wire.policy.vector import uniforms

from ..models.population import LOSS, LOST_MAX, loss_us
from .clients import Clients, Floats, Wheel, divided
from .cores import Machine
from .messages import NOBODY, Ints

_NEVER: Final = np.inf
_SOON: Final = 1e-9
_LOOKS: Final = 500
"""How often deadlines are looked at within a client's patience: it gives up that much too late at most."""


class Host(Protocol):
    """A process of brokers, to which clients come. Times are seconds."""

    def come(self, clients: Ints, due_s: Floats) -> None:
        """They reach it at these times."""

    def in_vain(self, clients: Ints, slot: tuple[int, int] | None) -> None:
        """They have given up."""


class Way:
    """All clients of a storm, from the begin of an attempt to its end. ``hosts``: by the number of the process.
    ``given_up``: how often clients have left what they waited in. Whoever keeps clients waiting notes it, and asks
    :meth:`still` later."""

    def __init__(self, machine: Machine, clients: Clients) -> None:
        storm = clients.storm
        count = len(storm.kinds)
        self.hosts: dict[int, Host] = {}
        self.given_up = 0
        self._machine = machine
        self._clients = clients
        self._patience_s = storm.settings.population.timeout_s
        self._gone_at: Ints = np.zeros(count, dtype=np.int64)  # the value of given_up since when each is elsewhere
        self._deadline_s = np.full(count, _NEVER)
        self._late = np.zeros(count, dtype=np.bool_)  # those whose deadline is looked at
        self._next_s = np.full(count, _NEVER)  # when each comes to the door or, behind it, to its broker
        self._called = np.zeros(count, dtype=np.bool_)  # those for whom their broker has begun a call
        self._losses = np.array(storm.losses) if storm.losses else None
        self._loss_s = np.array([loss_us(lost) / 1e6 for lost in range(LOST_MAX + 1)])
        self._draws = stream(storm.settings.seed, LOSS)
        tick_s = storm.settings.linger_ms / 1e3
        self._deadlines = Wheel(machine, max(tick_s, self._patience_s / _LOOKS), self._give_up)
        self._reaches = Wheel(machine, tick_s, self._pass)
        self._free_ns = [0] * storm.doors

    def go(self, host: Host, clients: Ints, due_s: Floats) -> None:
        """They begin an attempt. ``due_s``: when they come to their brokers if nothing keeps them."""
        self._late[clients] = self._called[clients] = False
        if self._free_ns:
            self._deadline_s[clients] = due_s + self._patience_s
        if self._losses is not None:
            u = uniforms(self._draws, clients, self._clients.attempts[clients])
            shares = self._losses[self._clients.storm.kinds[clients]]
            hit = np.flatnonzero(u < shares[:, 0])
            if len(hit):
                self._deadline_s[clients[hit]] = due_s[hit] + self._patience_s
                self._watch(clients[hit])
                kept_s = np.zeros(len(clients))
                kept_s[hit] = self._loss_s[(u[hit, None] < shares[hit]).sum(axis=1)]
                comes = kept_s <= self._patience_s
                self._next_s[clients[~comes]] = _NEVER
                clients, due_s = clients[comes], (due_s + kept_s)[comes]
        self._next_s[clients] = due_s
        if self._free_ns:
            self._reaches.push(clients, due_s)
        else:
            host.come(clients, due_s)

    def still(self, clients: Ints, noted: int) -> Ints:
        """Those of them who have not given up since then."""
        if noted == self.given_up:
            return clients
        found: Ints = clients[self._gone_at[clients] <= noted]
        return found

    def arrived(self, clients: Ints, now: float) -> Ints:
        """They were to come to their brokers by now. Returns those who have not given up."""
        if self.given_up:
            clients = np.unique(clients[self._next_s[clients] <= now + _SOON])
        self._next_s[clients] = _NEVER
        return clients

    def called(self, clients: Ints) -> None:
        """Their broker begins a call for them."""
        self._called[clients] = True

    def back(self, clients: Ints) -> None:
        """They are restored."""
        self._late[clients] = False

    # --- at a door ---

    def _pass(self) -> None:
        """Let those through who have come, in the order in which they did. A client that has given up by its turn costs
        nothing."""
        storm, now = self._clients.storm, self._machine.now
        clients = np.concatenate([NOBODY, *self._reaches.take(now)])
        clients = clients[self._next_s[clients] <= now + _SOON]
        clients = clients[np.lexsort((clients, self._next_s[clients]))]
        reached_ns = np.rint(self._next_s[clients] * 1e9).astype(np.int64)
        deadline_ns = np.rint(self._deadline_s[clients] * 1e9).astype(np.int64)
        doors = storm.brokers[clients] * storm.doors // storm.settings.brokers
        turn_ns: Ints = np.empty(len(clients), dtype=np.int64)
        columns = zip(reached_ns.tolist(), deadline_ns.tolist(), doors.tolist(), strict=True)
        for at, (reached, deadline, door) in enumerate(columns):
            turn = turn_ns[at] = max(reached, self._free_ns[door])
            if turn <= deadline:
                self._free_ns[door] = turn + storm.door_ns
        self._watch(clients[(turn_ns > reached_ns) & ~self._late[clients]])
        passes = turn_ns <= deadline_ns
        self._next_s[clients] = np.where(passes, turn_ns / 1e9, _NEVER)
        clients = clients[passes]
        for number, part, _ in divided(storm.brokers[clients] % storm.settings.processes, clients, clients):
            self.hosts[number].come(part, self._next_s[part])

    # --- patience ---

    def _watch(self, clients: Ints) -> None:
        self._late[clients] = True
        self._deadlines.push(clients, self._deadline_s[clients])

    def _give_up(self) -> None:
        """Deadlines have passed: whoever still waits, wherever that is, tries again."""
        state, now = self._clients, self._machine.now
        due = np.unique(np.concatenate([NOBODY, *self._deadlines.take(now)]))
        gone = due[self._late[due] & (self._deadline_s[due] <= now + _SOON)]
        if not len(gone):
            return
        self.given_up += 1
        self._gone_at[gone] = self.given_up
        self._next_s[gone] = _NEVER
        early = gone[~self._called[gone]]  # their attempts are not counted yet
        state.attempts[early] += 1
        state.sent += len(early)
        state.timeouts += len(gone)
        state.tell("attempts", early, now)
        state.tell("timeouts", gone, now)
        for number, part, _ in divided(state.storm.brokers[gone] % state.storm.settings.processes, gone, gone):
            self.hosts[number].in_vain(part, None)
