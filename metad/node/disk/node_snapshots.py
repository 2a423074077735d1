"""Snapshots of the groups on this node: streamed to peers, received, and put in place of the state."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from metad_wire.errors import LogCutError

from ... import log_events
from ...logs import event
from ...raft.messages import Snapshot
from ...raft.snapshots.snapshots import Snapshots, replace_state
from ...raft.snapshots.staging import FileStaging, MemoryStaging
from ...state.machine import Machine
from ..calls.peer_sender import PeerSender
from ..environment import Environment, Queue, Timer
from ..health import Health
from ..replicas.driver import GroupDriver
from ..replicas.groups import Agenda, Groups
from ..replicas.machines import Machines
from ..watches.watches import Watches
from .stores import Stores


class NodeSnapshots:
    """Drives :attr:`streams` by a timer, and installs what they receive."""

    def __init__(
        self,
        stores: Stores,
        groups: Groups,
        machines: Machines,
        agenda: Agenda,
        outbound: PeerSender,
        watches: Watches,
        environment: Environment,
        health: Health,
        *,
        has_room: Callable[[int], bool],
    ) -> None:
        """``has_room``: whether the disk has room for so many bytes more of snapshots."""
        self._state = stores.state
        self._groups = groups
        self._machines = machines
        self._agenda = agenda
        self._watches = watches
        self._environment = environment
        self._health = health
        self._timer: Timer | None = None
        self._listeners: list[Callable[[GroupDriver], None]] = []
        directory = stores.directory
        self.streams = Snapshots(
            stores.state,
            MemoryStaging() if directory is None else FileStaging(directory / "snapshots", environment.beside),
            clock=environment.now,
            schedule=self._woken,
            transmit=outbound.send_bulk,
            receives=groups.has,
            has_room=has_room,
            broken=health.fail,
            rng=environment.rng,
        )
        """The snapshots that are sent and received."""

    def listen(self, listener: Callable[[GroupDriver], None]) -> None:
        """Tell the listener whenever a group's state has become that of a snapshot."""
        self._listeners.append(listener)

    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    # --- installing --------------------------------------------------------------------------------------

    def install(self, driver: GroupDriver, message: Snapshot) -> None:
        """Put a received snapshot in place of a group's state, and open that, beside the loop."""
        parts = None if driver.installing and not driver.rebuilding else self.streams.install(driver.group, message)
        if parts is None:
            return
        self._watches.end(driver, LogCutError(f"a snapshot is put in place of {driver.group.name} on this node"))
        driver.install()
        driver.rebuilding = False
        self._agenda.hold(driver)
        opened: list[Machine] = []

        def work() -> None:
            replace_state(self._state, driver.group.prefix, message, parts)
            # To read what it keeps in memory takes a second for some 200,000 leases.
            opened.append(self._machines.open(driver.group.group_id))

        done = partial(self._installed, driver, message, opened, self._environment.now())
        self._environment.beside(work, done, Queue.LONG)

    def _installed(
        self,
        driver: GroupDriver,
        message: Snapshot,
        opened: list[Machine],
        started_s: float,
        error: BaseException | None,
    ) -> None:
        group = driver.group
        self.streams.installed(group, message)
        if self._health.failure is not None:
            return
        if error is not None:
            self._health.stop_for(error)
            return
        (machine,) = opened
        driver.installed(machine)
        group.snapshot_installed(message)
        for listener in tuple(self._listeners):
            listener(driver)
        seconds = round(self._environment.now() - started_s, 3)
        event(log_events.SNAPSHOT_INSTALLED, group=group.name, index=message.index, seconds=seconds)
        self._groups.tell_soon()

    # --- the timer ---------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._timer = None
        if self._health.failure is not None:
            return
        try:
            due_s = self.streams.tick(self._environment.now())
        except Exception as error:  # noqa: BLE001 - logged where it ends
            self._health.stop_for_bug(error)
            return
        if due_s < float("inf") and self._timer is None:
            self._timer = self._environment.call_at(due_s, self._tick)

    def _woken(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._environment.call_at(self._environment.now(), self._tick)
