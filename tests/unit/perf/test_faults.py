"""The fault run's own parts: what it takes for a gap, which names it knows, which history it books."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from metad_client.errors import ConflictError, DeadlineExceededError, MetadError, OverloadedError
from metad_judge.linearizability import Outcome, check
from metad_perf import cli
from metad_perf.commands import FAULTS, Crash
from metad_perf.errors import ServerError, UsageError
from metad_perf.faults import cluster, disks, members, registers
from metad_perf.faults.availability import Availability, Window, gap_ms, names_in
from metad_perf.faults.registers import History, RegisterClient
from metad_wire import messages as m
from metad_wire.cluster import ClusterMap, pack_slots


@pytest.mark.parametrize(
    ("times", "gap"),
    [
        ([1.0, 9.0, 10.5, 12.0, 12.5, 20.0], 7_500.0),  # the gap that is open at the end counts whole
        ([9.0, 10.1, 10.2, 14.9, 15.0, 15.1], 4_700.0),
        ([9.0], 5_000.0),  # nothing at all
        ([], 5_000.0),
        ([9.9, 13.0, 15.0], 3_000.0),  # what lay before it does not count
    ],
)
def test_the_longest_gap_of_a_window(times: list[float], gap: float) -> None:
    assert gap_ms(times, Window(fault="kill", begin_s=10.0, end_s=15.0)) == pytest.approx(gap)


async def test_the_worst_group_counts_and_each_fault_for_itself() -> None:
    availability = Availability(SimpleNamespace())  # type: ignore[arg-type]
    availability._yes = {
        "data-0": [n / 10 for n in range(400)],
        "data-1": [n / 10 for n in range(400) if n < 100 or n > 120],
    }
    windows = [
        Window(fault="kill", begin_s=5.0, end_s=8.0),
        Window(fault="pause", begin_s=9.0, end_s=15.0),
        Window(fault="kill", begin_s=20.0, end_s=22.0),
    ]
    longest = availability.longest_ms(windows)
    assert longest == {"kill": pytest.approx(100.0), "pause": pytest.approx(2_200.0)}


def test_every_group_has_a_name_to_be_probed_by() -> None:
    slots = {"data": pack_slots([slot % 5 for slot in range(1024)]), "offset": pack_slots([0] * 1024)}
    names = names_in(ClusterMap(1, [], [], slots))
    assert names.keys() == {"data-0", "data-1", "data-2", "data-3", "data-4", "offset-0"}
    assert len({name for group, name in names.items() if group.startswith("data")}) == 5


def test_names_of_faults() -> None:
    asked = cli._parser().parse_args(["crash", "--nodes", "3", "--faults", "kill, pause,kill"])
    assert asked.faults == ("kill", "pause")
    with pytest.raises(UsageError, match="no fault 'flood'"):
        Crash(nodes=3, faults=("kill", "flood")).checked()


def test_faults_that_this_machine_cannot_do_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metad_perf.faults.netns.missing", lambda: "no root")
    monkeypatch.setattr("metad_perf.faults.disks.missing", lambda: "")
    monkeypatch.setattr("metad_perf.faults.disks.throttle_missing", lambda: "no cgroup")
    monkeypatch.setattr("metad_perf.faults.disks.hang_missing", lambda: "no fsfreeze")
    striking, skipped = cluster.possible(["kill", "partition", "slowdisk", "disk-hang", "diskfull"])
    assert striking == ["kill", "diskfull"]
    assert skipped == {"partition": "no root", "slowdisk": "no cgroup", "disk-hang": "no fsfreeze"}


def test_every_fault_is_done_by_somebody() -> None:
    struck = cluster.Faults(members.Members([], None, "metad", None), random.Random(0))
    assert all(callable(struck.named(name)) for name in FAULTS)


@pytest.mark.skipif(bool(disks.hang_missing()), reason=disks.hang_missing())
def test_an_fsync_does_not_return_from_a_disk_that_hangs_and_a_write_does(tmp_path: Path) -> None:
    disk = disks.Disk(tmp_path / "node", hangs=True)
    returned = threading.Event()
    try:
        disk.make()
        with (disk.directory / "file").open("wb", buffering=0) as file:
            file.write(b"1")
            os.fsync(file.fileno())
            disk.hang()
            file.write(b"2")
            syncs = threading.Thread(target=lambda: (os.fsync(file.fileno()), returned.set()))
            syncs.start()
            assert not returned.wait(0.3)
            file.write(b"3")
            disk.unhang()
            assert returned.wait(120)
            syncs.join()
        assert (disk.directory / "file").read_bytes() == b"123"
    finally:
        disk.remove()


def test_the_configuration_of_a_node(tmp_path: Path) -> None:
    seeds = {"n1": "127.0.0.1:1", "n2": "127.0.0.1:2"}
    base = tmp_path / "base.toml"
    base.write_text("fsync = false\n[raft]\nheartbeat_ms = 50\n")
    text = members._config(base, "n2", seeds, "data=4,offset=1")
    from metad.config import load_config

    made = tmp_path / "made.toml"
    made.write_text(text)
    config = load_config(made, {"data_dir": "d"})
    assert (config.node_id, config.fsync, config.raft.heartbeat_ms) == ("n2", False, 50)
    assert config.cluster.seeds == seeds
    assert config.cluster.listen == "127.0.0.1:2"
    assert (config.groups.data, config.groups.offset) == (4, 1)
    made.write_text(members._config(None, "v1", seeds, "", joins_at="h:3", replicas=5))
    config = load_config(made, {"data_dir": "d"})
    assert (config.cluster.join, config.cluster.listen, config.cluster.replicas) == ([*seeds.values()], "h:3", 5)
    base.write_text("[cluster]\nreplicas = 1\n")
    with pytest.raises(ServerError, match=r"\[cluster\]"):
        members._config(base, "n1", {"n1": "127.0.0.1:1"}, "")


HONEST, LOSE, REPEAT, STALE, DENY, TIMEOUT_DONE, TIMEOUT_NOT_DONE = range(7)


class Store:
    """Registers in a dict; ``fate`` says what becomes of each call. DENY does it and says that it was not done."""

    def __init__(self, fate: Callable[[], int]) -> None:
        self._fate = fate
        self._kv: dict[Any, list[m.Kv]] = {}
        self._owner: dict[str, list[m.Session]] = {}
        self._offset: dict[Any, list[int]] = {}
        self.kv: Any = SimpleNamespace(get=self._get, put=self._put)
        self.sessions: Any = SimpleNamespace(get=self._session, takeover=self._takeover)
        self.offsets: Any = SimpleNamespace(fetch=self._fetch, commit=self._commit)

    async def _write(self, versions: list[Any], write: Callable[[], Any]) -> Any:
        await asyncio.sleep(0)
        fate = self._fate()
        if fate == TIMEOUT_NOT_DONE:
            raise DeadlineExceededError
        kept = list(versions)
        answer = write()
        if fate == REPEAT:
            answer = write()
        if fate == LOSE:
            versions[:] = kept
        await asyncio.sleep(0)
        if fate == TIMEOUT_DONE:
            raise DeadlineExceededError
        if fate == DENY:
            raise OverloadedError
        return answer

    async def _read(self, versions: list[Any]) -> Any:
        await asyncio.sleep(0)
        if not versions:
            return None
        return versions[-2] if self._fate() == STALE and len(versions) > 1 else versions[-1]

    async def _get(self, namespace: str, key: str) -> m.Kv | None:
        found: m.Kv | None = await self._read(self._kv.setdefault((namespace, key), []))
        return found

    async def _put(self, namespace: str, key: str, value: bytes, *, expected_version: int | None = None) -> int:
        versions = self._kv.setdefault((namespace, key), [])

        def write() -> int:
            version = versions[-1].version if versions else 0
            if expected_version not in (None, version):
                raise ConflictError
            versions.append(m.Kv(namespace, key, value, version + 1, 1, 1))
            return version + 1

        made: int = await self._write(versions, write)
        return made

    async def _session(self, _tenant: str, name: str) -> m.Session | None:
        found: m.Session | None = await self._read(self._owner.setdefault(name, []))
        return found

    async def _takeover(self, broker: str, _epoch: int, _tenant: str, name: str, **_: Any) -> Any:
        owners = self._owner.setdefault(name, [])

        def write() -> Any:
            previous = owners[-1] if owners else None
            owners.append(SimpleNamespace(broker=broker))  # type: ignore[arg-type]
            return SimpleNamespace(previous=previous)

        return await self._write(owners, write)

    async def _fetch(self, _tenant: str, group: str, _topic: str, partition: int) -> Any:
        found = await self._read(self._offset.setdefault((group, partition), []))
        return None if found is None else SimpleNamespace(offset=found)

    async def _commit(self, _tenant: str, group: str, _topic: str, partition: int, offset: int) -> None:
        offsets = self._offset.setdefault((group, partition), [])
        await self._write(offsets, lambda: offsets.append(offset))


async def _history(fate: Callable[[int], int], seed: int, calls: int = 1_500) -> History:
    """Four clients on one store; ``fate`` of the n-th call."""
    numbers = iter(range(10**9))
    store: Any = Store(lambda: fate(next(numbers)))
    history = History()
    clients = [RegisterClient(n, store, random.Random(f"{seed}/{n}"), history) for n in range(4)]

    async def run(client: RegisterClient) -> None:
        for _ in range(calls // len(clients)):
            await client.step()

    await asyncio.gather(*(run(client) for client in clients))
    reader = RegisterClient(4, store, random.Random(0), history)
    for key in {operation.key: None for operation in history.operations}:
        assert isinstance(key, tuple)
        await reader.read(key)
    return history


@pytest.mark.parametrize("seed", range(5))
async def test_an_honest_store_is_linearizable(seed: int) -> None:
    rng = random.Random(seed)
    fates = (HONEST, TIMEOUT_DONE, TIMEOUT_NOT_DONE)
    history = await _history(lambda _: rng.choices(fates, (90, 5, 5))[0], seed)
    assert history.acknowledged > 300
    assert history.unknown > 20
    assert check(history.operations).linearizable


@pytest.mark.parametrize("fault", [LOSE, REPEAT, STALE, DENY])
@pytest.mark.parametrize("seed", range(3))
async def test_a_store_that_lies_now_and_then_is_found_out(fault: int, seed: int) -> None:
    rng = random.Random(f"{fault}/{seed}")
    history = await _history(lambda _: fault if rng.random() < 0.05 else HONEST, seed)
    assert check(history.operations).outcome is Outcome.VIOLATED


async def test_clients_move_on_to_new_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registers, "GENERATION_OPERATIONS", 100)
    history = await _history(lambda _: HONEST, 1, 400)
    assert len({str(operation.key).partition("-")[0] for operation in history.operations}) > 1
    assert history.generation >= 4


def test_an_error_that_says_not_done_is_not_in_the_history() -> None:
    history = History()
    history.ended(("kv", "a", "b"), "put", b"1", history.moment(), OverloadedError())
    history.ended(("kv", "a", "b"), "get", None, history.moment(), DeadlineExceededError(outcome_known=True))
    assert not history.operations
    assert history.failed == 2
    error: MetadError = DeadlineExceededError()
    history.ended(("kv", "a", "b"), "put", b"1", history.moment(), error)
    assert [operation.returned for operation in history.operations] == [None]
    assert history.errors == {"overloaded": 1, "deadline_exceeded": 2}
