"""``metad-perf demo``: a reconnect storm in which brokers and a node die, and a table of what happened to the sessions.

A fleet of brokers stores its clients' sessions on three nodes of metad. Then one broker dies for good and every client
of the fleet loses its connection; all of them come back at once, to the remaining brokers. In the middle of that a
second broker restarts in a new epoch and has to begin again, and the node of metad that leads most groups is killed
with SIGKILL: the two others continue without it, and it comes back during the storm or after it. In the end every
session must belong to the broker life that serves its client now, with its stored properties.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import msgspec

from metad_client import Options
from metad_client.errors import FencedError, MetadError, NotOwnerError
from metad_wire.messages import SessionProperties

from .demo_fleet import DEADLINE_S, TENANT, Broker, Life, Storm, verify
from .errors import ServerError, UsageError
from .load.measure import ask_account
from .report import output
from .report.story import Story
from .running import run_async
from .spawn import Server, Shape, temporary_server
from .target import open_client

_PAYLOAD_BYTES = 200
_BROKER_RESTART_SHARE = 0.25  # share of the clients that are back when the second broker restarts
_KILL_SHARE = 0.5  # share of the clients that are back when metad is killed
_POLL_S = 0.05


class Phase(msgspec.Struct, kw_only=True):
    """One row of the table. Latencies in milliseconds, None if there are none."""

    phase: str
    sessions: int
    seconds: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    retries: int | None = None
    lost: int | None = None
    pause_s: float | None = None
    """Longest time in which no client came back."""


def run(*, sessions: int, brokers: int, shape: Shape, config: Path | None, json: Path | None) -> int:
    """Returns the exit code: 1 if anything was lost."""
    if brokers < 3 or sessions < 10 * brokers:
        raise UsageError("--brokers must be at least 3, and --sessions ten times as many")
    begin = time.monotonic()
    with temporary_server(config=config, shape=shape.checked()) as server, Story() as story:
        told = run_async(_tell(server, shape.nodes, sessions, brokers, story))
        story.step("metad stops")
        server.stop()
    told["seconds"] = output.rounded(time.monotonic() - begin)
    output.write_json(json, told)
    _show(told)
    return 1 if told["lost"] else 0


async def _tell(server: Server, nodes: int, sessions: int, count: int, story: Story) -> dict[str, Any]:
    started = "metad starts" if nodes == 1 else f"metad starts: {nodes} nodes"
    story.step(started)
    rng = random.Random(1)
    stored = {f"client-{i:07}": rng.randbytes(_PAYLOAD_BYTES) for i in range(sessions)}
    clients = list(stored)
    start_s = await asyncio.to_thread(server.start)
    brokers = [Broker(server.target, f"broker-{i + 1}", clients[i::count]) for i in range(count)]
    phases = [Phase(phase=started, sessions=0, seconds=start_s)]
    try:
        for broker in brokers:
            await broker.begin()
        phases.append(await _first_connect(brokers, stored, story))
        dead = brokers.pop(0)
        await dead.end()
        cut_off = f"{dead.name} dies; every client is cut off"
        story.event(cut_off)
        phases.append(Phase(phase=cut_off, sessions=sessions, seconds=0.0))
        _hand_over(brokers, clients, rng)
        storm_phases, damaged = await _storm(server, brokers, stored, story)
        phases += storm_phases
        begin = time.monotonic()
        story.step("every session is read back", sessions)
        wrong = await verify(server.target, brokers, stored, story.add)
        lost = max(len(wrong), damaged)
        phases.append(Phase(phase="every session is read back", sessions=sessions, seconds=_since(begin), lost=lost))
    finally:
        for broker in brokers:
            await broker.end()
    storm = storm_phases[0]
    return output.rounded(
        {
            "sessions": sessions,
            "lost": lost,
            "storm_s": storm.seconds,
            "storm_sessions_per_s": output.ratio(storm.sessions, storm.seconds),
            "p50_ms": storm.p50_ms,
            "p99_ms": storm.p99_ms,
            "retries": storm.retries,
            "brokers": count,
            "nodes": nodes,
            "longest_pause_s": storm.pause_s,
            "phases": [msgspec.to_builtins(phase) for phase in phases],
            "wrong": wrong[:20],
            "setting": output.machine(),
            "versions": output.versions(),
        }
    )


async def _first_connect(brokers: list[Broker], stored: dict[str, bytes], story: Story) -> Phase:
    what = f"{len(brokers)} brokers store their clients"
    story.step(what, len(stored))
    begin = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for broker in brokers:
            assert broker.life is not None
            payloads = {client_id: stored[client_id] for client_id in broker.clients}
            tasks.create_task(broker.life.store(payloads, story.add))
    return Phase(phase=what, sessions=len(stored), seconds=_since(begin))


def _hand_over(brokers: list[Broker], clients: list[str], rng: random.Random) -> None:
    """Assign each client to the broker that the load balancer picks."""
    shuffled = rng.sample(clients, len(clients))
    for at, broker in enumerate(brokers):
        broker.clients = shuffled[at :: len(brokers)]


class _Disasters:
    """Strikes in the middle: decides by the number of clients that are back, acts in the same turn of the loop."""

    def __init__(self, doomed: _Doomed, sessions: int, story: Story) -> None:
        self._doomed = doomed
        self._story = story
        self._restart_at = int(sessions * _BROKER_RESTART_SHARE)
        self._kill_at = int(sessions * _KILL_SHARE)
        self._last = time.monotonic()
        self.broker_dies = asyncio.Event()
        self.metad_died = asyncio.Event()
        self.pause_s = 0.0
        """The longest time in which no client came back."""

    def on_return(self, returned: int) -> None:
        """One more client is back."""
        now = time.monotonic()
        self.pause_s = max(self.pause_s, now - self._last)
        self._last = now
        self._story.add(1)
        if returned == self._restart_at:
            self.broker_dies.set()
        elif returned == self._kill_at:
            self._doomed.kill()
            self._story.event(f"{self._doomed.words} is killed with SIGKILL")
            self.metad_died.set()


async def _storm(
    server: Server, brokers: list[Broker], stored: dict[str, bytes], story: Story
) -> tuple[list[Phase], int]:
    """Returns the phases, and the number of sessions that came back without their payload."""
    doomed = await _Doomed.of(server)
    disasters = _Disasters(doomed, len(stored), story)
    storm = Storm(stored, disasters.on_return)
    unlucky = brokers[0]
    ghost = unlucky.life
    story.step("every client comes back at once", len(stored))
    begin = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        again = tasks.create_task(_restart_broker(unlucky, storm, disasters.broker_dies, story))
        outage = tasks.create_task(_until_back(doomed, disasters.metad_died, story))
        async with asyncio.TaskGroup() as returning:
            for broker in brokers:
                assert broker.life is not None
                returning.create_task(storm.come_back(broker.life, broker.clients))
        await again
        seconds = _since(begin)
        if not disasters.metad_died.is_set():
            raise ServerError(f"the storm ended with {storm.returned:,} clients back: {dict(storm.errors)}")
    assert ghost is not None
    fenced = await _ghost_is_fenced(ghost, unlucky)
    retries = sum(broker.retries for broker in brokers)
    retries += sum(broker.life.client.statistics().retries for broker in brokers if broker.life is not None)
    phases = [
        Phase(
            phase="every client comes back at once",
            sessions=storm.returned,
            seconds=seconds,
            p50_ms=storm.latencies.percentile_ms(50),
            p99_ms=storm.latencies.percentile_ms(99),
            retries=retries,
            lost=storm.damaged + sum(storm.errors.values()),
            pause_s=disasters.pause_s,
        ),
        Phase(
            phase=f"  {unlucky.name} restarts as epoch {unlucky.epoch} and begins again",
            sessions=len(unlucky.clients),
            seconds=again.result(),
            lost=0 if fenced else 1,
        ),
        Phase(phase=f"  {doomed.words} is killed and restarted", sessions=0, seconds=outage.result()),
        Phase(phase="  the longest that nobody came back", sessions=0, seconds=disasters.pause_s),
    ]
    return phases, storm.damaged + (not fenced)


class _Doomed:
    """The process to kill: the server, or the node of a cluster that leads most groups, which its supervisor
    restarts."""

    def __init__(self, server: Server, leaders: dict[str, int], groups: int) -> None:
        self._server = server
        self._node = max(leaders, key=lambda node: leaders[node])
        self._alone = len(leaders) == 1
        self.name = "metad" if self._alone else self._node
        self.words = (
            self.name if self._alone else f"{self.name}, the leader of {leaders[self._node]} of {groups} groups,"
        )

    @classmethod
    async def of(cls, server: Server) -> _Doomed:
        """Find the node that leads most groups."""
        account = await ask_account(server.target)
        return cls(server, account.leaders, account.groups)

    def kill(self) -> None:
        """SIGKILL."""
        if self._alone:
            self._server.kill()
        else:
            os.kill(self._server.pids[self._node], signal.SIGKILL)

    async def back(self) -> None:
        """Returns when it serves again."""
        if self._alone:
            await asyncio.to_thread(self._server.start)
            return
        killed = self._server.pids[self._node]
        async with open_client(self._server.target, Options(deadline_s=DEADLINE_S)) as client:
            while True:
                with contextlib.suppress(MetadError):
                    status = await client.status(self._node, deadline_s=1.0)
                    if status.pid != killed:
                        return
                await asyncio.sleep(_POLL_S)


async def _until_back(doomed: _Doomed, died: asyncio.Event, story: Story) -> float:
    """Seconds until it serves again."""
    await died.wait()
    begin = time.monotonic()
    await doomed.back()
    story.event(f"{doomed.name} serves again")
    return _since(begin)


async def _restart_broker(broker: Broker, storm: Storm, dies: asyncio.Event, story: Story) -> float:
    """Returns the seconds from its death until all its clients are back."""
    await dies.wait()
    begin = time.monotonic()
    await broker.end()
    cut_off = storm.returned_to[broker.name]
    story.add(-cut_off)
    story.event(f"{broker.name} restarts: {cut_off:,} clients that were back with it are cut off again")
    await storm.come_back(await broker.begin(), broker.clients)
    story.event(f"all clients of {broker.name} are back")
    return _since(begin)


async def _ghost_is_fenced(ghost: Life, broker: Broker) -> bool:
    """A write in the name of the ended life must be refused."""
    assert broker.life is not None
    try:
        await broker.life.client.sessions.update(
            ghost.broker, ghost.epoch, TENANT, broker.clients[0], SessionProperties(0, b"from the grave")
        )
    except (FencedError, NotOwnerError):
        return True
    return False


def _since(begin: float) -> float:
    return time.monotonic() - begin


def _show(told: dict[str, Any]) -> None:
    columns = ["what happened", "sessions", "seconds", "sessions/s", "p50 ms", "p99 ms", "retries", "lost"]
    rows = [
        [
            phase["phase"],
            phase["sessions"] or "",
            phase["seconds"] or "",
            float(phase["sessions"] / phase["seconds"]) if phase["seconds"] and phase["sessions"] else "",
            *("" if phase[key] is None else phase[key] for key in ("p50_ms", "p99_ms", "retries", "lost")),
        ]
        for phase in told["phases"]
    ]
    output.table("A reconnect storm", columns, rows)
    for line in told["wrong"]:
        output.say(line)
    verdict = "nothing was lost" if not told["lost"] else f"{told['lost']} sessions were LOST or are wrong"
    victim = "metad" if told["nodes"] == 1 else "the leader"
    output.say(
        f"{told['sessions']:,} sessions came back in {told['storm_s']:.1f} s, through the death of one broker, the "
        f"restart of another and a kill -9 of {victim}: {verdict}."
    )
