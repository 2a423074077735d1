"""The brokers of metad-perf storm on a server in memory: what they restore, and that a loss is seen."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from metad import embedded
from metad_client import Client, SessionDeleteItem, connect
from metad_judge.sessions import Verdict
from metad_perf.storm import crew as crew_module
from metad_perf.storm.background import Background, Begin, End
from metad_perf.storm.command import summary
from metad_perf.storm.crew import Crew, open_crew
from metad_perf.storm.orders import Counts, Finish, Forget, Go, Leave, Look, Prepare, Register, Result, Store, Verify
from metad_perf.storm.plan import Storm, places
from metad_perf.storm.population import Clients, Kind, Population, client_id
from metad_perf.storm.trace import read_schedule
from metad_perf.storm.wave import Wave
from metad_spark.calibration import load_calibration
from metad_spark.run_schedule import batches, parts
from metad_spark.scenario import Disconnect, load_scenario
from metad_wire.messages import SessionProperties, SessionUpdateItem

KIND = Kind(name="tag", share=1.0, rtt_ms=1.0, subscriptions=2, inflight=1, will=True)
STORM = Storm(population=Population(kinds=(KIND,), timeout_s=20.0), sessions=120, brokers=3, processes=2, limit_s=100.0)


class Stage:
    """The processes of a storm in one process, on one server."""

    def __init__(self, storm: Storm, client: Client, crews: list[Crew]) -> None:
        self.storm = storm
        self.client = client
        self._crews = crews
        self._owners: dict[int, object] = {}

    async def each(self, order: object) -> list[object]:
        return [await crew.carry_out(order) for crew in self._crews]

    async def store(self) -> None:
        for owners in await self.each(Register()):
            self._owners |= owners
        assert sum(await self.each(Store(0, self.storm.sessions))) == self.storm.sessions

    async def go(self) -> list[Result]:
        await self.each(Prepare(self._owners))
        await self.each(Go(time.monotonic_ns()))
        results = [one for one in await self.each(Finish(10)) if isinstance(one, Result)]
        assert all(counts.done for counts in await self.each(Look()) if isinstance(counts, Counts))
        return results

    async def read_back(self) -> Verdict:
        found = [one for one in await self.each(Verify(0, self.storm.sessions)) if isinstance(one, Verdict)]
        return Verdict.summed(found)


@asynccontextmanager
async def stage(storm: Storm = STORM) -> AsyncIterator[Stage]:
    async with (
        embedded.serve() as server,
        connect(server.url) as client,
        open_crew(server.url, storm.checked(), 0) as one,
        open_crew(server.url, storm.checked(), 1) as two,
    ):
        yield Stage(storm, client, [one, two])


@pytest.mark.parametrize("trigger", ["all", "rolling", "region", "expiry"])
async def test_every_client_comes_back_with_what_it_has(trigger: str) -> None:
    far = msgspec.structs.replace(KIND, name="far", region="us")
    storm = msgspec.structs.replace(
        STORM, trigger=trigger, rolling_s=0.3, expiring=0.3, population=Population(kinds=(KIND, far))
    ).checked()
    everyone = places(storm, Clients(storm.population, storm.seed))
    async with stage(storm) as play:
        await play.store()
        if trigger == "expiry":
            assert sum(await play.each(Leave(time.time() + 1.0))) == everyone.ends.sum()
        results = await play.go()
        found = summary(results, Verdict())
        assert found["restored"] == found["returning"] == everyone.returns.sum()
        assert (found["lost"], found["failed"], found["attempts_per_session"]) == (0, {}, 1.0)
        verdict = await play.read_back()
        while verdict.counts.keys() == {"not_ended"}:  # they end at their time
            await asyncio.sleep(0.05)
            verdict = await play.read_back()
        assert verdict == Verdict()
        await play.each(Forget(0, storm.sessions))
        assert [one async for one in play.client.sessions.list("storm")] == []


async def test_a_session_that_is_lost_before_or_after_its_client_comes_back_is_seen() -> None:
    async with stage() as play:
        await play.store()
        await play.client.sessions.delete_many([SessionDeleteItem("storm", client_id(n)) for n in (5, 6)])
        broker = await play.client.sessions.get("storm", client_id(7))
        assert broker is not None
        item = SessionUpdateItem("storm", client_id(7), SessionProperties(86_400, b"another's"))
        (await play.client.sessions.update_many(broker.broker, broker.broker_epoch, [item])).raise_for_error()
        results = await play.go()
        when_back = Verdict.summed(one.verdict for one in results)
        assert when_back.counts == {"gone": 2, "damaged": 1}
        assert any("client 5 when it came back" in example for example in when_back.examples)
        await play.client.sessions.delete_many([SessionDeleteItem("storm", client_id(n)) for n in (8, 9, 10, 11)])
        at_end = await play.read_back()
        assert at_end.counts == {"gone": 4, "damaged": 3}, (
            "a takeover has made the first two anew, without what they had"
        )
        assert summary(results, at_end)["lost"] == 7


async def test_heartbeats_go_on_while_many_clients_are_made_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once wrong: with ten million clients it took longer than a lease, and every broker was fenced."""
    loop, turned, groups = asyncio.get_running_loop(), threading.Event(), Crew._groups

    def wait_for_a_turn() -> None:
        turned.clear()
        loop.call_soon_threadsafe(turned.set)
        assert turned.wait(60.0), "the event loop stood still"

    class Slow(Wave):
        def __init__(self, *parts: Any) -> None:
            wait_for_a_turn()
            super().__init__(*parts)

    def slow_groups(self: Crew, *arguments: Any) -> Any:
        wait_for_a_turn()
        return groups(self, *arguments)

    monkeypatch.setattr(crew_module, "Wave", Slow)
    monkeypatch.setattr(Crew, "_groups", slow_groups)
    async with stage() as play:
        await play.store()
        assert sum(int((one.waited_ns >= 0).sum()) for one in await play.go()) == 120


async def test_clients_that_are_not_back_in_time_are_counted_and_not_waited_for() -> None:
    slow = msgspec.structs.replace(KIND, rtt_ms=60_000.0)
    storm = msgspec.structs.replace(STORM, population=Population(kinds=(slow,)), limit_s=0.2)
    async with stage(storm) as play:
        await play.store()
        found = summary(await play.go(), await play.read_back())
        assert (found["restored"], found["returning"], found["t50_s"], found["lost"]) == (0, 120, None, 0)


async def test_an_answer_after_the_limit_brings_nobody_back(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(Wave):
        def _back(self, *parts: Any) -> None:
            self._limit_ns = 0
            super()._back(*parts)

    monkeypatch.setattr(crew_module, "Wave", Late)
    async with stage() as play:
        await play.store()
        found = summary(await play.go(), await play.read_back())
        assert (found["restored"], found["returning"], found["lost"]) == (0, 120, 0)


async def test_a_schedule_is_replayed_as_it_says(tmp_path: Path) -> None:
    """What ``metad-spark schedule`` writes, ``metad-perf storm --replay`` does: each client's first attempt begins at
    the time that the schedule has for it, and at no other."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    scenario = msgspec.structs.replace(
        load_scenario("small"), clients=STORM.sessions, disconnect=Disconnect(spread_s=0.5)
    )
    (tmp_path / "first_attempts").mkdir()
    due_ns: dict[int, int] = {}
    for part in parts(scenario, load_calibration(), seed=3, generators=2):
        for number, batch in enumerate(batches(part)):
            path = tmp_path / "first_attempts" / f"{part.generator}-{number}.parquet"
            pq.write_table(pa.Table.from_batches([batch]), path)
            due_ns |= dict(zip(batch["client_id"].to_pylist(), batch["t_ns"].to_pylist(), strict=True))
    assert len(due_ns) == STORM.sessions
    assert len(set(due_ns.values())) > STORM.sessions / 2, "they do not begin all at once"
    np.save(tmp_path / "begin.npy", read_schedule(tmp_path))
    (tmp_path / "trace").mkdir()
    storm = msgspec.structs.replace(STORM, replay=str(tmp_path / "begin.npy"), trace=str(tmp_path / "trace"))
    async with stage(storm) as play:
        await play.store()
        found = summary(await play.go(), await play.read_back())
    assert (found["restored"], found["lost"]) == (STORM.sessions, 0)
    rows = pq.read_table(tmp_path / "trace").to_pylist()
    first = {row["client"]: row for row in rows if row["attempt"] == 1}
    assert {client: row["scheduled_ns"] for client, row in first.items()} == due_ns
    rtt_ns = round(KIND.rtt_ms * 1e6)
    assert all(row["sent_ns"] >= row["scheduled_ns"] + rtt_ns for row in first.values()), "nobody comes too soon"
    # Clients that begin later are sent later: the order is kept, in ticks of the linger.
    tick_ns = round(STORM.linger_ms * 1e6)
    ticks = [(-(-(row["scheduled_ns"] + rtt_ns) // tick_ns), row["sent_ns"]) for row in first.values()]
    by_tick: dict[int, list[int]] = {}
    for tick, sent_ns in ticks:
        by_tick.setdefault(tick, []).append(sent_ns)
    assert all(min(sent) >= tick * tick_ns for tick, sent in by_tick.items())


async def test_goodput_is_what_was_acknowledged() -> None:
    async with embedded.serve() as server, connect(server.url) as client:
        background = Background(client)
        begin_ns = time.monotonic_ns()
        await background.carry_out(Begin(3_000.0))
        while len((await background.carry_out(End())).samples) < 30:
            await background.carry_out(Begin(3_000.0))
            await asyncio.sleep(0.3)
        work = await background.carry_out(End())
        end_ns = time.monotonic_ns()
        acknowledged = sum(one.acknowledged for one in work.samples)
        assert acknowledged == sum(one.items for one in work.samples) > 0
        assert work.goodput(begin_ns, end_ns) == pytest.approx(acknowledged / ((end_ns - begin_ns) / 1e9))
        assert sum(work.curve(begin_ns, 1.0, 100)) == acknowledged
        assert work.errors == {}
