"""The command: three nodes, brokers of the example ``log_broker`` as processes, producers, consumers, and faults."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from metad_client import Client, ConflictError, MetadError, Owner, UnknownOutcomeError
from metad_client.endpoint import as_url
from metad_wire.tables.assignment import Partition
from metad_wire.tables.broker import LIVE

from ..commands import LogBroker
from ..errors import ServerError, UsageError
from ..experiment.stage import Stage, conduct
from ..faults.members import START_S
from ..faults.netns import Network, do
from ..report import output
from ..report.conclusion import conclude
from ..spawn import disk_directory
from .judge import FAULTS, Ack, Ledger, sent

EXAMPLES: Final = Path(__file__).resolve().parents[3] / "clients" / "examples"
sys.path.append(str(EXAMPLES))
try:
    from log_broker.client import Topic
    from log_broker.protocol import Record
except ModuleNotFoundError:
    raise UsageError("the log broker is an example: it needs a checkout of the repository") from None

_TENANT, _TOPIC, _KIND, _GROUP = "acme", "orders", "topic", "billing"
_COPIES, _MIN_ISR = 3, 2
_APPEND_S = 3.0
_LOOK_S = 0.1
_CALM_S = (0.5, 2.0)
_BOTH = 0.4
"""Of the faults come with another one. Since all replicas were in sync before, one of three is left that has all."""
_SETTLE_S = 90.0
_PLAN_S = 30.0
_PAUSE_S = (0.002, 0.02)
"""Between two appends of a producer."""


def _apart(one: str, other: str) -> bool:
    """Whether two faults cannot be had at the same time."""
    return one == other or "all" in (one[:3], other[:3]) or one[:5] == other[:5] == "metad"


class Process:
    """A broker as a process, in a network namespace of its own if there is one."""

    def __init__(self, name: str, url: str, folder: Path, lease_s: float, place: tuple[Network, int] | None) -> None:
        self.name = name
        self.folder = folder / name
        self.place = place
        host = "127.0.0.1" if place is None else place[0].address(place[1])
        self._command = [*([] if place is None else place[0].prefix(place[1])), sys.executable, "-m", "log_broker"]
        self._command += ["--metad", url, "--name", name, "--folder", str(self.folder), "--host", host]
        self._command += ["--lease-s", str(lease_s)]
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, without waiting until it serves."""
        paths = os.pathsep.join([str(EXAMPLES), *filter(None, sys.path)])
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env={**os.environ, "PYTHONPATH": paths},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    async def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal, and wait for the end."""
        if self._process is not None:
            self.send(number)
            await asyncio.to_thread(self._process.wait, START_S)
            self._process = None

    @property
    def has_ended(self) -> bool:
        """Whether it has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    def log(self) -> list[str]:
        """The lines of its log."""
        return self._log.read_text(errors="replace").splitlines()


def run(options: LogBroker) -> int:
    """Returns the exit code: 1 if a promise was broken, or something was not well."""
    made = conduct(
        options, partial(_play, options), three_because="a leader of metad is killed", guests=options.brokers
    )
    rows = [(one["fault"], one["what"], one["settled_s"], one["longest_s"]) for one in made["struck"]]
    output.table("faults", ["fault", "whom", "well again after, s", "longest without an acknowledgement, s"], rows)
    code = conclude("log-broker", made, options, *FAULTS)
    output.say(
        f"{made['acknowledged']:,} records were acknowledged through {len(rows)} faults; {made['lost']} lost, "
        f"{made['double_leaders']} acknowledged by two leaders, {made['delivered_twice']} delivered again "
        f"(seed {made['seed']}). {'All is as promised.' if not code else 'NOT as promised.'}"
    )
    return code


async def _play(options: LogBroker, stage: Stage) -> dict[str, Any]:
    with TemporaryDirectory(prefix="metad-perf-log-", dir=disk_directory()) as folder:
        return await _Run(options, stage, await stage.client(), Path(folder)).all()


class _Run:
    """One run."""

    def __init__(self, options: LogBroker, stage: Stage, metad: Client, folder: Path) -> None:
        self._options = options
        self._stage = stage
        self._metad = metad
        self._rng = random.Random(options.seed)
        self._ledger = Ledger()
        self._struck: list[dict[str, Any]] = []
        self._down: set[str] = set()
        self._struck_at: set[str] = set()
        self._producing = True
        self._plans = 0
        self._consumers: list[asyncio.Task[None]] = []
        url, network = as_url(stage.members.target), stage.members.network
        places = [
            (network, options.nodes + n) if isinstance(network, Network) else None for n in range(options.brokers)
        ]
        self._brokers = [Process(f"b{n + 1}", url, folder, options.lease_s, place) for n, place in enumerate(places)]
        self._faults: dict[str, Callable[[], Awaitable[str]]] = {
            "metad-leader-kill": self._metad_leader_kill,
            "metad-leader-move": self._metad_leader_move,
            "broker-kill": partial(self._again, signal.SIGKILL),
            "broker-stop": partial(self._again, signal.SIGTERM),
            "broker-pause": self._pause,
            "broker-cut": self._broker_cut,
            "disk-lost": partial(self._again, signal.SIGKILL, wipe=True),
            "plans": self._plan,
            "all-stop": self._all_stop,
            "all-pause": partial(self._pause, everybody=True),
            "consumer": self._consumer,
        }
        if not isinstance(network, Network):
            del self._faults["broker-cut"]
            stage.story.event("no root, no namespaces: no broker is cut off from metad")
        if options.only is not None:
            if strange := {*options.only} - {*self._faults}:
                raise UsageError(f"--only: no {', '.join(sorted(strange))}; there are {', '.join(self._faults)}")
            self._faults = {name: self._faults[name] for name in options.only}

    async def all(self) -> dict[str, Any]:
        """All of it. Returns the report."""
        story, begin_s = self._stage.story, time.monotonic()
        try:
            story.step(f"{len(self._brokers)} brokers begin")
            for broker in self._brokers:
                broker.start()
            async with asyncio.timeout(START_S):
                while len([one async for one in self._metad.brokers.list()]) < len(self._brokers):
                    self._look()
                    await asyncio.sleep(_LOOK_S)
            count = self._options.partitions
            await self._metad.assignments.create(
                _TENANT, _TOPIC, _KIND, partitions=count, replication=_COPIES, min_isr=_MIN_ISR
            )
            async with asyncio.TaskGroup() as tasks:
                self._consumers = [asyncio.create_task(self._consume(n)) for n in range(self._options.consumers)]
                producers = [tasks.create_task(self._produce(n)) for n in range(count)]
                strikes = tasks.create_task(self._strike())
                telling = tasks.create_task(self._tell())
                await strikes
                self._producing = False
                await asyncio.gather(*producers)
                story.step("all is read")
                logs = await self._read_all()
                await self._delivered(logs)
                telling.cancel()
        finally:
            for consumer in self._consumers:
                consumer.cancel()
            await asyncio.gather(*self._consumers, return_exceptions=True)
            for broker in self._brokers:
                await broker.end()
        return self._report(logs) | {"ran_s": time.monotonic() - begin_s}

    def _report(self, logs: dict[int, list[bytes]]) -> dict[str, Any]:
        for broker in self._brokers:
            if complaints := [line for line in broker.log() if "Traceback" in line]:
                self._stage.problems.append(f"{broker.name} has logged {len(complaints)} tracebacks")
        return {
            **self._ledger.judge(logs),
            "longest_without_acknowledgement_s": max((one["longest_s"] for one in self._struck), default=0.0),
            "seed": self._options.seed,
            "struck": self._struck,
        }

    # --- producers and consumers ---

    async def _produce(self, number: int) -> None:
        rng, count = random.Random(f"{self._options.seed}/{number}"), 0
        topic = await Topic.open(self._metad, _TENANT, _TOPIC)
        while self._producing:
            payloads = [sent(number, count + at) for at in range(rng.randint(1, 4))]
            count += len(payloads)
            try:
                done = await topic.append(number, payloads, deadline_s=_APPEND_S)
            except UnknownOutcomeError:
                self._ledger.unknown += len(payloads)
            except MetadError:
                continue
            else:
                now_s = time.monotonic()
                self._ledger.acks[number] += [
                    Ack(done.offset + at, done.leader_epoch, payload, now_s) for at, payload in enumerate(payloads)
                ]
            await asyncio.sleep(rng.uniform(*_PAUSE_S))
        topic.close()

    async def _consume(self, number: int) -> None:
        async def handle(partition: int, records: Sequence[Record]) -> None:
            self._ledger.read[partition].update((record.offset, record.payload) for record in records)

        topic = await Topic.open(await self._stage.client(f"consumer-{number}", 10.0), _TENANT, _TOPIC)
        while True:
            with suppress(MetadError):
                await topic.consume(_GROUP, handle)
            await asyncio.sleep(_LOOK_S)

    async def _read_all(self) -> dict[int, list[bytes]]:
        """Each partition from its beginning to the end that is acknowledged."""
        topic = await Topic.open(self._metad, _TENANT, _TOPIC)
        logs: dict[int, list[bytes]] = {}
        for number in range(self._options.partitions):
            log = logs[number] = []
            while True:
                fetched = await topic.fetch(number, len(log), wait_s=0.0, deadline_s=_SETTLE_S)
                log += [record.payload for record in fetched.records]
                if not fetched.records and len(log) == fetched.high_watermark:
                    break
        topic.close()
        return logs

    async def _delivered(self, logs: dict[int, list[bytes]]) -> None:
        """Wait until the group has read all; the judge says what it has not."""
        until_s = time.monotonic() + _SETTLE_S
        while any(len({at for at, _ in self._ledger.read[n]}) < len(log) for n, log in logs.items()):
            if time.monotonic() > until_s:
                return
            await asyncio.sleep(_LOOK_S)

    # --- what happens meanwhile ---

    async def _tell(self) -> None:
        while True:
            self._look()
            read = sum(len(one) for one in self._ledger.read.values())
            self._stage.story.also(f"{self._ledger.acknowledged:,} records acknowledged, {read:,} read by the group")
            await asyncio.sleep(_LOOK_S)

    def _look(self) -> None:
        """Raises ServerError if a broker has ended, unasked."""
        for broker in self._brokers:
            if broker.has_ended and broker.name not in self._down:
                raise ServerError(f"{broker.name} has ended: {' / '.join(broker.log()[-3:])}")

    async def _strike(self) -> None:
        """Faults, one or two at a time, until the time is over; each kind before any is repeated."""
        self._stage.story.step("faults")
        await self._settled("the beginning")
        until_s, waiting = time.monotonic() + self._options.seconds, list[str]()
        while time.monotonic() < until_s and not self._stage.problems:
            await asyncio.sleep(self._rng.uniform(*_CALM_S))
            waiting = waiting or self._rng.sample([*self._faults], len(self._faults))
            names = [waiting.pop()]
            others = [name for name in self._faults if not _apart(name, names[0])]
            if others and self._rng.random() < _BOTH:
                names.append(self._rng.choice(others))
            self._struck_at.clear()
            begin_s = time.monotonic()
            whom = ", ".join(await asyncio.gather(*(self._faults[name]() for name in names)))
            await self._settled(name := " and ".join(names))
            end_s = time.monotonic()
            longest_s = self._ledger.longest_s(begin_s, end_s)
            self._struck.append({"fault": name, "what": whom, "settled_s": end_s - begin_s, "longest_s": longest_s})
            self._stage.story.event(f"{name} of {whom}: all is well after {end_s - begin_s:.1f} s")

    async def _settled(self, after: str) -> None:
        """Wait until each partition has a leader, and all its replicas are in sync."""
        until_s = time.monotonic() + _SETTLE_S
        while True:
            rows: list[Partition] = []
            live: set[Owner] = set()
            with suppress(MetadError):
                live = {
                    Owner(one.broker, one.broker_epoch) async for one in self._metad.brokers.list() if one.state in LIVE
                }
                rows = [row.record async for row in self._metad.assignments.partitions.list(_TENANT, _TOPIC, _KIND)]
            ill = [p for p in rows if p.leader is None or len(live & {*p.isr}) < _COPIES or p.move is not None]
            if rows and not ill and len(live) == len(self._brokers):
                return
            if time.monotonic() > until_s:
                self._stage.problems.append(f"after {after}, {len(ill)} partitions are not well, such as {ill[:1]}")
                return
            await asyncio.sleep(_LOOK_S)

    # --- faults ---

    def _one(self) -> Process:
        """A broker that nothing else happens to."""
        found = self._rng.choice([broker for broker in self._brokers if broker.name not in self._struck_at])
        self._struck_at.add(found.name)
        return found

    async def _metad_leader_kill(self) -> str:
        victim = await self._stage.leader("metadata-0")
        victim.kill()
        await asyncio.sleep(self._rng.uniform(1.0, 4.0))
        await asyncio.to_thread(victim.start, START_S)
        await self._stage.health.settle()
        return victim.name

    async def _metad_leader_move(self) -> str:
        old = await self._stage.leader("metadata-0")
        new = self._rng.choice([member.name for member in self._stage.members.all if member.name != old.name])
        await self._metad.cluster.transfer("metadata-0", new)
        return f"{old.name}, to {new}"

    async def _again(self, number: signal.Signals, victim: Process | None = None, *, wipe: bool = False) -> str:
        """End a broker, and start it again. Returns once it has begun another life."""
        victim = self._one() if victim is None else victim
        self._down.add(victim.name)
        known = await self._metad.brokers.get(victim.name)
        epoch = 0 if known is None else known.broker_epoch
        await victim.end(number)
        if wipe:
            await asyncio.to_thread(shutil.rmtree, victim.folder)
        await asyncio.sleep(self._rng.choice([0.0, self._rng.uniform(0.5, 5.0)]))
        victim.start()
        self._down.discard(victim.name)
        async with asyncio.timeout(_SETTLE_S):
            now = known
            while now is None or now.broker_epoch <= epoch:
                await asyncio.sleep(_LOOK_S)
                now = await self._metad.brokers.get(victim.name)
        return victim.name

    async def _pause(self, *, everybody: bool = False) -> str:
        victims = self._brokers if everybody else [self._one()]
        for victim in victims:
            victim.send(signal.SIGSTOP)
        await asyncio.sleep(self._options.lease_s * self._rng.uniform(1.2, 2.5))
        for victim in victims:
            victim.send(signal.SIGCONT)
        return ", ".join(victim.name for victim in victims)

    async def _all_stop(self) -> str:
        """In order, or killed: what counts is on their disks, so an eligible one leads."""
        sent = self._rng.choice([signal.SIGTERM, signal.SIGKILL])
        return ", ".join(await asyncio.gather(*(self._again(sent, broker) for broker in self._brokers)))

    async def _consumer(self) -> str:
        """One goes in the middle of its work, and another comes."""
        number = self._rng.randrange(len(self._consumers))
        self._consumers[number].cancel()
        await asyncio.sleep(self._rng.uniform(0.0, 1.0))
        self._consumers[number] = asyncio.create_task(self._consume(number))
        return f"consumer {number}"

    async def _broker_cut(self) -> str:
        victim = self._one()
        assert victim.place is not None
        network, number = victim.place
        for what, calm_s in (("add", self._options.lease_s * self._rng.uniform(0.8, 2.5)), ("delete", 0.0)):
            for node in map(network.address, range(self._options.nodes)):
                await asyncio.to_thread(do, *network.prefix(number), "ip", "route", what, "blackhole", node)
            await asyncio.sleep(calm_s)
        return victim.name

    async def _plan(self) -> str:
        self._plans += 1
        victim, names = self._one(), [f"drain-{self._plans}", f"rebalance-{self._plans}"]
        await self._metad.plans.create(names[0], "drain", [victim.name], moves=4)
        await self._metad.plans.create(names[1], "rebalance", moves=4)
        until_s = time.monotonic() + _PLAN_S
        while time.monotonic() < until_s:
            plans = [plan async for plan in self._metad.plans.list() if plan.plan in names]
            if all(plan.state not in ("running", "paused") for plan in plans):
                break
            await asyncio.sleep(_LOOK_S)
        for name in names:
            with suppress(ConflictError):
                await self._metad.plans.cancel(name)
            await self._metad.plans.delete(name)  # so that a drained broker gets replicas again
        states = ", ".join(f"{plan.rule} {plan.state} after {plan.begun} moves" for plan in plans)
        return f"{victim.name}: {states}"
