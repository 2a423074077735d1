"""Plays every alert on real nodes: makes the fault, waits until a real Prometheus says that the alert fires, does what
the operator's page says, and waits until it has ended. Prometheus is that of Debian's package; it scrapes the nodes
each second, and evaluates the rules that ``metad metrics --alerts`` prints, with shorter times."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

import metad_wire
from metad.config import StorageConfig
from metad.server.lamps.alerts import ALERTS, rules
from metad.storage.rocks import RocksEngine, Shared, state_options
from metad_client import Client, Options, SessionDisconnectItem, SessionProperties, SessionTakeoverItem, Will
from metad_client.errors import MetadError
from metad_wire.operator.authority import Authority, issue_fleet
from metad_wire.transport.claims import Claim
from metad_wire.transport.credentials import Principal, Role

from ..errors import ServerError
from ..experiment.windows import window
from ..faults import disks
from ..faults.members import Member, Members, temporary_members
from ..load.measure import Load
from ..report.story import Story
from ..spawn import client_processes, disk_directory
from ..target import open_client

_WITHIN_S: Final = 90.0
_LATE_S: Final = 420.0
_LOOK_S: Final = 0.5
_ENDS_S: Final = 8.0
"""A certificate that is to end lasts until the node has read it."""
_CONFIG: Final = """
fsync = true
[expiry]
sessions_per_s = 1
amnesty_ms = 1000
[limits]
queue_ms = 300
[security]
administrators = ["perf"]
"""
"""What is to be late has little pace, and what waits is turned away soon."""


WINDOW: Final = "15s"
"""Of rates, instead of the minutes that suit a service."""
FOR_S: Final = 2
"""For how long an alert holds at most until it fires."""
_READY_S: Final = 60.0
_ASK_S: Final = 10.0


def missing() -> str:
    """What is missing to play them; empty: nothing."""
    if shutil.which("prometheus") is None:
        return "there is no prometheus: `make prometheus` installs Debian's"
    return disks.hang_missing()


class Prometheus:
    """One server. Its metrics are those of ``nodes``: name -> HTTP endpoint."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    async def firing(self) -> dict[str, list[dict[str, str]]]:
        """Labels of the alerts that fire now, by name."""
        found: dict[str, list[dict[str, str]]] = {}
        for alert in (await self._get("/api/v1/alerts"))["data"]["alerts"]:
            if alert["state"] == "firing":
                found.setdefault(alert["labels"]["alertname"], []).append(alert["labels"])
        return found

    async def _get(self, path: str) -> dict[str, Any]:
        return await asyncio.to_thread(_get, self._url + path)


@contextlib.contextmanager
def prometheus(directory: Path, nodes: Mapping[str, str], rules: str) -> Iterator[Prometheus]:
    """Run one until the end. Raises ServerError."""
    directory.mkdir()
    (directory / "rules.yml").write_text(rules)
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(directory / "rules.yml")],
        "scrape_configs": [
            {
                "job_name": "metad",
                "static_configs": [{"targets": [at], "labels": {"node": name}} for name, at in nodes.items()],
            }
        ],
    }
    (directory / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML, too
    with Claim(1) as claim:
        (port,) = claim.ports
        with (directory / "log").open("wb") as log:
            process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={directory / 'prometheus.yml'}",
                    f"--storage.tsdb.path={directory / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                    "--log.level=warn",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            until_s = time.monotonic() + _READY_S
            while not _is_ready(f"http://127.0.0.1:{port}/-/ready"):
                if process.poll() is not None or time.monotonic() > until_s:
                    words = (directory / "log").read_text(errors="replace").splitlines()[-3:]
                    raise ServerError(f"prometheus does not serve: {' '.join(words)}")
                time.sleep(0.1)
            yield Prometheus(port)
        finally:
            process.kill()
            process.wait()


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=_ASK_S):
            return True
    except OSError:
        return False


def _get(url: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(url, timeout=_ASK_S) as answer:
            found: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        raise ServerError(f"prometheus: {error.read().decode(errors='replace')}") from None
    except OSError as error:
        raise ServerError(f"prometheus: {error}") from None
    return found


class Played(msgspec.Struct):
    """What came of one alert. Times in seconds; None: it did not."""

    fired_s: float | None = None
    ended_s: float | None = None
    why: str = ""


@dataclass
class Fleet:
    """The nodes, and what a fault needs beside them."""

    members: Members
    client: Client
    prometheus: Prometheus
    held: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    @property
    def last(self) -> Member:
        return self.members.all[-1]

    def of(self, name: str) -> Client:
        """Another client of the nodes, not opened."""
        return open_client(self.members.target, Options(deadline_s=20.0, client_name=name))

    async def stop(self) -> None:
        """End what a fault runs beside the nodes."""
        held, self.held = self.held, contextlib.AsyncExitStack()
        await held.aclose()

    @contextlib.asynccontextmanager
    async def beside(self, work: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        """Do this again and again until the end."""

        async def again() -> None:
            while True:
                with contextlib.suppress(MetadError, ServerError):
                    await work()

        task = asyncio.create_task(again())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


Step = Callable[[Fleet], Awaitable[None]]
FAULTS: Final[dict[str, tuple[Step, Step]]] = {}
"""Of each alert: what makes the fault, and what mends it."""


def _fault(name: str, mend: Step) -> Callable[[Step], Step]:
    def add(make: Step) -> Step:
        FAULTS[name] = make, mend
        return make

    return add


# --- processes ---


async def _start_last(fleet: Fleet) -> None:
    await asyncio.to_thread(fleet.last.start)


@_fault("MetadNodeDown", _start_last)
async def _kill_last(fleet: Fleet) -> None:
    fleet.last.kill()


FAULTS["MetadPeerCutOff"] = _kill_last, _start_last


async def _resume(fleet: Fleet) -> None:
    await fleet.stop()
    for member in fleet.members.all:
        if member.paused:
            member.resume()


@_fault("MetadGroupWithoutLeader", _resume)
async def _pause_two(fleet: Fleet) -> None:
    for member in fleet.members.all[1:]:
        member.pause()


@_fault("MetadFollowerLags", _resume)
async def _pause_and_write(fleet: Fleet) -> None:
    """More than a thousand entries: each write is one of its own."""
    fleet.last.pause()

    async def write() -> None:
        await asyncio.gather(*(fleet.client.kv.put("ns", "k", b"v") for _ in range(8)))

    await fleet.held.enter_async_context(fleet.beside(write))


@_fault("MetadLoopHeldUp", _resume)
async def _stop_and_go(fleet: Fleet) -> None:
    async def pulse() -> None:
        fleet.last.pause()
        await asyncio.sleep(0.45)
        fleet.last.resume()
        await asyncio.sleep(0.15)

    await fleet.held.enter_async_context(fleet.beside(pulse))


# --- disks ---


async def _free(fleet: Fleet) -> None:
    await fleet.stop()
    for member in fleet.members.all:
        if member.disk is not None:
            member.disk.unhang()
            member.disk.free()


def _fill(left: int) -> Step:
    """Leave the disk of a node so much room."""

    async def fill(fleet: Fleet) -> None:
        assert fleet.last.disk is not None
        await asyncio.to_thread(fleet.last.disk.fill, left)

    return fill


_LITTLE: Final = 150 * 1024 * 1024
"""Less than twice the low-water mark of the disks here, and more than it."""
FAULTS["MetadDiskFull"] = _fill(24 * 1024 * 1024), _free
FAULTS["MetadDiskLow"] = _fill(_LITTLE), _free


@_fault("MetadDiskFills", _free)
async def _fill_slowly(fleet: Fleet) -> None:
    disk = fleet.last.disk
    assert disk is not None
    left = 700 * 1024 * 1024

    async def more() -> None:
        nonlocal left
        left = max(300 * 1024 * 1024, left - 4 * 1024 * 1024)
        await asyncio.to_thread(disk.fill, left)
        await asyncio.sleep(1.0)

    await fleet.held.enter_async_context(fleet.beside(more))


@_fault("MetadNodeFailing", _free)
async def _hang(fleet: Fleet) -> None:
    assert fleet.last.disk is not None
    await asyncio.to_thread(fleet.last.disk.hang)
    await fleet.held.enter_async_context(fleet.beside(_puts(fleet)))


@_fault("MetadDiskSlow", _free)
async def _hang_for_moments(fleet: Fleet) -> None:
    disk = fleet.last.disk
    assert disk is not None

    async def pulse() -> None:
        await asyncio.to_thread(disk.hang)
        await asyncio.sleep(0.4)
        await asyncio.to_thread(disk.unhang)
        await asyncio.sleep(0.1)

    await fleet.held.enter_async_context(fleet.beside(_puts(fleet)))
    await fleet.held.enter_async_context(fleet.beside(pulse))


def _puts(fleet: Fleet) -> Callable[[], Awaitable[None]]:
    async def put() -> None:
        await fleet.client.kv.put("ns", "k", b"v", deadline_s=5.0)

    return put


# --- load ---


async def _calm(fleet: Fleet) -> None:
    await fleet.stop()


@_fault("MetadOverloaded", _calm)
async def _flood(fleet: Fleet) -> None:
    load = Load(verb="kv.put", batch=500, in_flight=512, value_bytes=1_000)

    async def pour() -> None:
        await window(fleet.members.target, load, 3.0)

    await fleet.held.enter_async_context(fleet.beside(pour))


async def _no_quota(fleet: Fleet) -> None:
    await fleet.stop()
    await fleet.client.quotas.delete("tenant/ns")


@_fault("MetadQuotaExceeded", _no_quota)
async def _beyond_the_quota(fleet: Fleet) -> None:
    await fleet.client.quotas.put("tenant/ns", items_per_s=5)

    async def write() -> None:
        await asyncio.gather(*(_attempt(fleet) for _ in range(20)))
        await asyncio.sleep(0.1)

    await fleet.held.enter_async_context(fleet.beside(write))


async def _attempt(fleet: Fleet) -> None:
    with contextlib.suppress(MetadError):
        await fleet.client.kv.put("ns", "k", b"v", deadline_s=0.3)


# --- state ---


def flip(data_directory: Path, text: bytes) -> None:
    """Change the last byte of ``text`` in a row of the state that has it, as a bad memory does before a checksum is
    made: no checksum of the store finds it. The node of this directory must not run. Raises ServerError."""
    engine = RocksEngine(
        data_directory / "state", state_options(Shared(StorageConfig(block_cache_bytes=8 << 20))), wal=False
    )
    try:
        at = b""
        while rows := engine.scan(at, b"\xff" * 16, 1_000):
            for key, value in rows:
                if text in value:
                    engine.write({key: value.replace(text, text[:-1] + bytes((text[-1] ^ 1,)))})
                    engine.sync()
                    return
            at = rows[-1][0] + b"\0"
        raise ServerError(f"no row of {data_directory} has {text!r}")
    finally:
        engine.close()


@_fault("MetadReplicaUnlike", _calm)
async def _flip_a_bit(fleet: Fleet) -> None:
    """It is replaced by itself, and the alert ends some time after."""
    text = b"a value that a bad memory changes"
    await fleet.client.kv.put("ns", "flipped", text)
    await asyncio.to_thread(fleet.last.stop)
    await asyncio.to_thread(flip, fleet.last.data_directory(), text)
    await asyncio.to_thread(fleet.last.start)


# --- brokers, sessions and wills ---


def _hold_a_life(target: str) -> None:
    async def hold() -> None:
        async with open_client(target, Options(client_name="hung")) as client:
            await client.brokers.register("hung", lease_s=15.0)
            await asyncio.sleep(3_600)

    asyncio.run(hold())


@contextlib.asynccontextmanager
async def _hung(target: str) -> AsyncIterator[None]:
    """A broker whose process stands still as soon as it has registered."""
    process = client_processes().Process(target=_hold_a_life, args=(target,), daemon=True)
    process.start()
    assert process.pid is not None
    try:
        async with open_client(target, Options(client_name="look", deadline_s=20.0)) as client:
            async with asyncio.timeout(60.0):
                while True:
                    found = await client.brokers.get("hung")
                    if found is not None and found.state in ("registered", "active"):
                        break
                    await asyncio.sleep(0.2)
        os.kill(process.pid, signal.SIGSTOP)
        yield
    finally:
        process.kill()
        process.join()


async def _end_the_life(fleet: Fleet) -> None:
    with contextlib.suppress(MetadError):
        await fleet.client.brokers.fence("hung")
    await fleet.stop()


@_fault("MetadBrokerSilent", _end_the_life)
async def _broker_hangs(fleet: Fleet) -> None:
    await fleet.held.enter_async_context(_hung(fleet.members.target))


@_fault("MetadBrokerEnded", _calm)
async def _broker_is_ended(fleet: Fleet) -> None:
    await fleet.held.enter_async_context(_hung(fleet.members.target))


async def _publish(fleet: Fleet) -> None:
    """What a broker does."""
    while found := await fleet.client.wills.claim("publisher", 1):
        await fleet.client.wills.acknowledge_many("publisher", 1, [taken.key for taken in found])


@_fault("MetadWillsUnclaimed", _publish)
async def _will_is_due(fleet: Fleet) -> None:
    session = SessionTakeoverItem("acme", "willing", True, SessionProperties(3_600, will=Will("t", b"gone", 1)))
    (await fleet.client.sessions.takeover_many("b", 1, [session])).raise_for_error()
    gone = SessionDisconnectItem("acme", "willing")
    (await fleet.client.sessions.disconnect_many("b", 1, [gone])).raise_for_error()


LATE: Final = 3_000
"""Sessions that end at once, and with the pace of the configuration one a second."""


async def make_late(client: Client) -> None:
    """Sessions that should have ended long ago, when it is the turn of their alert."""
    for begin in range(0, LATE, 500):
        names = [f"c{n}" for n in range(begin, begin + 500)]
        items = [SessionTakeoverItem("late", name, True, SessionProperties(1)) for name in names]
        (await client.sessions.takeover_many("b", 1, items)).raise_for_error()
        gone = [SessionDisconnectItem("late", name) for name in names]
        (await client.sessions.disconnect_many("b", 1, gone)).raise_for_error()


async def _already(fleet: Fleet) -> None:
    """It was made at the beginning."""


async def _raise_the_pace(fleet: Fleet) -> None:
    await _restart(fleet, {"sessions_per_s = 1\n": "sessions_per_s = 10000\n"})


FAULTS["MetadExpiryLate"] = _already, _raise_the_pace


# --- settings and versions ---


async def _restart(fleet: Fleet, changes: dict[str, str], members: list[Member] | None = None) -> None:
    for member in members or fleet.members.all:
        await asyncio.to_thread(member.reconfigure, changes)
        await asyncio.to_thread(member.stop)
        await asyncio.to_thread(member.start)


async def _durable(fleet: Fleet) -> None:
    await _restart(fleet, {"fsync = false": "fsync = true"}, [fleet.last])


@_fault("MetadNotDurable", _durable)
async def _not_durable(fleet: Fleet) -> None:
    await _restart(fleet, {"fsync = true": "fsync = false"}, [fleet.last])


async def _usual_certificate(fleet: Fleet) -> None:
    assert fleet.members.certs is not None
    await asyncio.to_thread(issue_fleet, fleet.members.certs, [fleet.last.name], [])


@_fault("MetadCertificateEnds", _usual_certificate)
async def _short_certificate(fleet: Fleet) -> None:
    assert fleet.members.certs is not None
    await asyncio.to_thread(partial(issue_fleet, fleet.members.certs, [fleet.last.name], [], days=5))


@_fault("MetadCertificateEnded", _usual_certificate)
async def _ended_certificate(fleet: Fleet) -> None:
    certs = fleet.members.certs
    assert certs is not None
    authority = Authority.load((certs / "ca.pem").read_bytes(), (certs / "ca-key.pem").read_bytes())
    end = datetime.now(UTC) + timedelta(seconds=_ENDS_S)
    issued = authority.issue(Principal(Role.NODE, fleet.last.name), (), not_after=end)
    for name, content in ((".pem", issued.certificate), ("-key.pem", issued.key)):
        (certs / f"node-{fleet.last.name}{name}").write_bytes(content)


@contextlib.asynccontextmanager
async def _another_version(member: Member) -> AsyncIterator[None]:
    """The node runs a copy of the wire that calls itself otherwise, as during an upgrade."""
    with tempfile.TemporaryDirectory(prefix="metad-perf-") as made:
        package = Path(metad_wire.__file__).parent
        copy = Path(made) / package.name
        shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
        init = copy / "__init__.py"
        init.write_text(init.read_text().replace(metad_wire.__version__, f"{metad_wire.__version__}.post1"))
        await asyncio.to_thread(member.stop)
        with _variable("PYTHONPATH", made):
            await asyncio.to_thread(member.start)
        try:
            yield
        finally:
            await asyncio.to_thread(member.stop)
            await asyncio.to_thread(member.start)


@contextlib.contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@_fault("MetadVersionsDiffer", _calm)
async def _upgrade_one(fleet: Fleet) -> None:
    await fleet.held.enter_async_context(_another_version(fleet.last))


# --- the play ---


async def play(story: Story, only: tuple[str, ...] = ()) -> dict[str, Played]:
    """What came of each alert."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="metad-perf-", dir=disk_directory())))
        base = directory / "base.toml"
        base.write_text(_CONFIG)
        members = stack.enter_context(
            temporary_members(
                *(3,), groups="", config=base, namespaces=False, disks=True, hangs=True, replicas=3, scheme="metads"
            )
        )
        ports = stack.enter_context(Claim(len(members.all))).ports
        at = {member.name: f"127.0.0.1:{port}" for member, port in zip(members.all, ports, strict=True)}
        for member in members.all:
            member.reconfigure({"fsync = true": f'fsync = true\nhttp = "{at[member.name]}"'})
        await asyncio.to_thread(members.start)
        watched = stack.enter_context(prometheus(directory / "prometheus", at, rules(for_s=FOR_S, window=WINDOW)))
        async with open_client(members.target, Options(deadline_s=20.0, client_name="operator")) as client:
            return await _play_all(Fleet(members, client, watched), story, only)


async def _play_all(fleet: Fleet, story: Story, only: tuple[str, ...]) -> dict[str, Played]:
    names = [alert.name for alert in ALERTS if not only or alert.name in only]
    begun_s = time.monotonic()
    if "MetadExpiryLate" in names:
        await make_late(fleet.client)
        names.remove("MetadExpiryLate")
        names.append("MetadExpiryLate")  # it takes five minutes until it is late
    found: dict[str, Played] = {}
    for name in names:
        story.step(name)
        found[name] = played = Played()
        make, mend = FAULTS[name]
        try:
            if name != "MetadExpiryLate":
                await _is(fleet, name, fires=False, within_s=_WITHIN_S)
            begin_s = time.monotonic()
            await make(fleet)
            await _is(fleet, name, fires=True, within_s=_WITHIN_S if name != "MetadExpiryLate" else _LATE_S)
            played.fired_s = time.monotonic() - (begun_s if name == "MetadExpiryLate" else begin_s)
            story.event(f"fires after {played.fired_s:.1f} s")
            begin_s = time.monotonic()
            await mend(fleet)
            await _is(fleet, name, fires=False, within_s=_WITHIN_S)
            played.ended_s = time.monotonic() - begin_s
            story.event(f"has ended after {played.ended_s:.1f} s")
        except (MetadError, ServerError, TimeoutError) as error:
            played.why = str(error) or type(error).__name__
            story.event(f"failed: {played.why}")
            await fleet.stop()
            with contextlib.suppress(MetadError, ServerError):
                await mend(fleet)
    await fleet.stop()
    return found


async def _is(fleet: Fleet, name: str, *, fires: bool, within_s: float) -> None:
    until_s = time.monotonic() + within_s
    while (name in await fleet.prometheus.firing()) != fires:
        if time.monotonic() > until_s:
            raise ServerError(f"{name} does not {'fire' if fires else 'end'} within {within_s:.0f} s")
        await asyncio.sleep(_LOOK_S)
