"""``m.serve`` on a real node: what a broker is told, when a leadership ends for it, and what it says by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio
from serving_brokers import killed_as_it_registers

from metad import embedded
from metad_client import BrokerLife, Client, FencedError, InvalidRequestError, LifeState, MetadError, connect
from metad_client.assignment.serving import Following, Held, Led, Serving
from metad_client.errors import NoReplicaError
from metad_wire import methods
from metad_wire.messages import Owner
from metad_wire.tables.assignment import Partition
from metad_wire.tables.broker import BrokerRegister

TENANT = "acme"


@pytest.fixture(scope="module")
def server() -> Iterator[embedded.ServingInThread]:
    with embedded.serve_in_thread() as server:
        yield server


@pytest_asyncio.fixture
async def m(server: embedded.ServingInThread) -> AsyncIterator[Client]:
    async with connect(server.url) as m:
        yield m


async def until(is_so: Callable[[], Awaitable[bool]] | Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while True:
            found = is_so()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.02)


class Author:
    """A broker's author, who writes down what he is told."""

    def __init__(self, name: str, client: Client, life: BrokerLife) -> None:
        self.name, self.client, self.life = name, client, life
        self.told: list[tuple[str, int]] = []
        self.held: Held | None = None
        self.position = (0, 0)
        self.fails: dict[str, int] = {}
        self.may_release = asyncio.Event()
        self.may_release.set()
        self.serving: Serving | None = None

    def _may_fail(self, what: str) -> None:
        if self.fails.pop(what, 0):
            self.told.append((f"fails to {what}", 0))
            raise OSError("its own")

    async def lead(self, led: Led) -> None:
        self._may_fail("lead")
        self.told.append(("lead", led.leader_epoch))
        self.held = led

    async def follow(self, followed: Following) -> None:
        self.told.append(("follow" if followed.leader is not None else "nobody", followed.leader_epoch))
        self.held = followed

    async def release(self, held: Held) -> None:
        assert held.over
        self._may_fail("release")
        await self.may_release.wait()
        if isinstance(held, Led) and held.record.target and held.record.election == "position":
            next_one = await self.client.brokers.get(held.record.target)
            assert next_one is not None
            await held.hand_over(Owner(next_one.broker, next_one.broker_epoch))
        self.told.append(("gone" if held.gone else "release", held.leader_epoch))
        self.held = None

    async def elect(self, followed: Following) -> tuple[int, int]:
        self.told.append(("elect", followed.leader_epoch))
        return self.position

    @property
    def led(self) -> Led:
        assert isinstance(self.held, Led)
        return self.held

    def leads(self) -> bool:
        return isinstance(self.held, Led) and not self.held.over


class Cast:
    """Brokers of one test, who serve one kind."""

    def __init__(self, server: embedded.ServingInThread, m: Client, stack: AsyncExitStack, kind: str) -> None:
        self.server, self.m, self.stack, self.kind = server, m, stack, kind
        self.authors: dict[str, Author] = {}

    async def broker(self, name: str, *, follows: bool = True, elects: bool = False) -> Author:
        client = await self.stack.enter_async_context(connect(self.server.url))
        life = await client.brokers.register(f"{self.kind}-{name}", lease_s=3600, sole=True)
        author = self.authors[life.broker] = Author(life.broker, client, life)
        author.serving = await self.stack.enter_async_context(
            client.serve(
                self.kind,
                on_lead=author.lead,
                on_release=author.release,
                on_follow=author.follow if follows else None,
                on_elect=author.elect if elects else None,
            )
        )
        await author.serving.caught_up()
        return author

    async def create(self, *authors: Author, **options: object) -> None:
        replicas = [[author.name for author in authors]]
        await self.m.assignments.create(TENANT, "r", self.kind, replicas=replicas, **options)  # type: ignore[arg-type]

    async def record(self) -> Partition:
        row = await self.m.assignments.partitions.get(TENANT, "r", self.kind, 0)
        assert row is not None
        return row.record


@pytest_asyncio.fixture
async def cast(server: embedded.ServingInThread, m: Client, request: pytest.FixtureRequest) -> AsyncIterator[Cast]:
    async with AsyncExitStack() as stack:
        yield Cast(server, m, stack, request.node.name.removeprefix("test_")[:40])


async def test_a_leader_proposes_and_acknowledges_and_is_replaced(cast: Cast) -> None:
    a, b, c = [await cast.broker(name) for name in "abc"]
    await cast.create(a, b, c, replication=3, min_isr=2)
    await until(lambda: a.leads() and b.told == [("follow", 1)] and c.told == [("follow", 1)])
    led = a.led
    with pytest.raises(InvalidRequestError, match="begin"):
        led.appended(1)
    led.begin(0, lag_s=0.0)
    led.appended(3)
    waiting = asyncio.create_task(led.acknowledged(3))
    given_up = asyncio.create_task(led.acknowledged(9))
    await asyncio.sleep(0)
    given_up.cancel()
    assert led.fetched(b.life.owner, 1, 3) == 0, "c is waited for"
    with pytest.raises(FencedError):
        led.fetched(b.life.owner, 2, 3)
    await asyncio.wait_for(waiting, 60)  # c lags, the leader has said so, and metad agrees
    assert {member.broker for member in (await cast.record()).isr} == {a.name, b.name}
    led.fetched(c.life.owner, 1, 3)
    await until(lambda: len(led.record.isr) == 3)

    led.appended(4)
    lost = asyncio.create_task(led.acknowledged(4))
    await led.hand_over()
    with pytest.raises(FencedError, match="ended before"):
        await asyncio.wait_for(lost, 60)
    await until(lambda: b.leads() and a.told[-1] == ("follow", 2))
    assert led.over
    with pytest.raises(FencedError):
        led.fetched(c.life.owner, 1, 4)
    b.led.begin(4)
    with pytest.raises(NoReplicaError):
        b.led.fetched(b.life.owner, 2, 4)


async def test_a_life_that_is_lost_leads_nothing(cast: Cast) -> None:
    a, b = await cast.broker("a"), await cast.broker("b")
    await cast.create(a, b, replication=2)
    await until(a.leads)
    led, serving = a.led, a.serving
    assert serving is not None
    await a.life.end()
    assert led.over
    with pytest.raises(FencedError):
        led.check()
    assert isinstance(await serving.lost(), MetadError)
    await until(lambda: b.leads() and a.held is None)
    assert a.told == [("lead", 1), ("release", 1)], "what it has, it keeps"
    assert serving.led == serving.held == {}
    with pytest.raises(FencedError):
        await serving.caught_up()  # else the author might delete what he has of all that is not held


async def test_an_owner_gives_back_only_after_it_has_stopped(cast: Cast) -> None:
    a, b = await cast.broker("a", follows=False), await cast.broker("b", follows=False)
    await cast.create(a, replication=1, election="owner")
    await until(a.leads)
    with pytest.raises(InvalidRequestError, match="owner"):
        a.led.begin(0)  # it would serve on while its lease is late
    a.may_release.clear()
    await cast.m.assignments.move(TENANT, "r", cast.kind, 0, [b.name])

    async def releasing() -> bool:
        return (await cast.record()).state == "releasing"

    await until(releasing)
    await asyncio.sleep(0.3)
    assert not a.leads()
    assert not b.leads()
    assert await releasing()
    a.may_release.set()
    await until(b.leads)
    assert [what for what, _ in a.told][:2] == ["lead", "release"]
    assert b.told == [("lead", (await cast.record()).leader_epoch)]


async def test_an_owner_that_releases_unasked_does_not_get_it_back(cast: Cast) -> None:
    a, b = await cast.broker("a", follows=False), await cast.broker("b", follows=False)
    await cast.create(a, b, replication=2, election="owner")
    await until(a.leads)
    await a.led.hand_over()
    await until(b.leads)
    assert not a.leads()


async def test_positions_are_reported_and_the_greatest_leads(cast: Cast) -> None:
    a, b, c = [await cast.broker(name, elects=True) for name in "abc"]
    b.position, c.position = (1, 4), (1, 7)
    await cast.create(a, b, c, replication=3, election="position", copies=2)
    await until(a.leads)
    await a.life.end()
    await until(c.leads)
    assert ("elect", 2) in b.told
    assert ("elect", 2) in c.told
    await until(lambda: b.told[-1] == ("follow", 2))


async def test_a_master_by_position_hands_over_once_the_next_has_everything(cast: Cast) -> None:
    a, b, c = [await cast.broker(name, elects=True) for name in "abc"]
    assignments = cast.m.assignments
    await cast.create(a, b, replication=2, election="position", copies=2)
    await until(a.leads)
    a.may_release.clear()
    await assignments.elect(TENANT, "r", cast.kind, 0, broker=b.name)

    async def is_state(state: str) -> bool:
        return (await cast.record()).state == state

    await until(lambda: not a.leads())
    assert await is_state("releasing")
    assert not b.leads()
    explained = await assignments.explain(TENANT, "r", cast.kind, 0)
    assert explained is not None
    assert b.name in explained.next
    a.may_release.set()
    await until(b.leads)
    assert (await cast.record()).leader_epoch == 2
    assert a.told == [("lead", 1), ("release", 1), ("follow", 2)], "nobody had to report"
    await assignments.move(TENANT, "r", cast.kind, 0, [a.name, c.name])
    await until(lambda: c.told[:1] == [("follow", 2)])

    b.may_release.clear()
    await assignments.elect(TENANT, "r", cast.kind, 0, broker=a.name)
    await until(lambda: not b.leads())
    await a.life.end()  # the one that waits is away: the master goes on
    b.may_release.set()
    await until(b.leads)
    assert (await cast.record()).leader_epoch == 2


async def test_what_is_deleted_or_moved_away_is_gone(cast: Cast) -> None:
    a, b = await cast.broker("a"), await cast.broker("b")
    await cast.create(a, replication=1)
    await until(a.leads)
    a.led.begin(0)
    await cast.m.assignments.move(TENANT, "r", cast.kind, 0, [b.name])
    await until(lambda: b.told[:1] == [("follow", 1)])
    a.led.fetched(b.life.owner, 1, 0)
    await until(lambda: b.leads() and ("gone", 1) in a.told)
    await cast.m.assignments.delete(TENANT, "r", cast.kind)
    await until(lambda: b.told[-1][0] == "gone")

    async def away() -> bool:
        return await cast.m.assignments.resources.get(TENANT, "r", cast.kind) is None

    await until(away)


async def test_an_end_in_order_hands_over(cast: Cast) -> None:
    a, b = await cast.broker("a"), await cast.broker("b")
    await cast.create(a, b, replication=2)
    await until(a.leads)
    assert a.serving is not None
    assert a.life.state is LifeState.SERVING
    await a.serving.__aexit__(None, None, None)
    assert a.told[-1] == ("release", 1)
    await until(b.leads)
    assert (await cast.record()).why.endswith("handed over")


async def test_a_function_that_fails_is_called_again(cast: Cast) -> None:
    a, b = await cast.broker("a", follows=False), await cast.broker("b", follows=False)
    a.fails = {"lead": 1, "release": 1}
    await cast.create(a, replication=1, election="owner")
    await until(a.leads)
    await cast.m.assignments.move(TENANT, "r", cast.kind, 0, [b.name])
    await until(b.leads)
    assert [what for what, _ in a.told][:4] == ["fails to lead", "lead", "fails to release", "release"]


async def test_a_client_that_is_closed_ends_what_it_served(cast: Cast, caplog: pytest.LogCaptureFixture) -> None:
    """It asked for its partitions again, five times a second, and logged a warning each time."""
    a = await cast.broker("a", follows=False)
    await cast.create(a, replication=1, election="owner")
    await until(a.leads)
    assert a.serving is not None
    await a.client.close()
    await until(lambda: a.told[-1] == ("release", 1))
    runner = a.serving._runner
    assert runner is not None
    await asyncio.wait_for(asyncio.shield(runner), 60)
    assert "the assignments of broker" not in caplog.text


# --- the note of a life ---


class Named:
    """A broker that keeps notes in a folder, a process of it after the other."""

    def __init__(self, url: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.url, self.name, self.note, self._patch = url, name, folder / "life", monkeypatch

    async def life(self, note: Path | None = None) -> BrokerLife:
        async with connect(self.url) as client:
            return await client.brokers.register(self.name, lease_s=3600, sole=True, note=note or self.note)

    async def killed(self) -> None:
        """One that is killed when metad has begun its life, before its note says so."""
        async with connect(self.url) as client:
            await killed_as_it_registers(self._patch, client, self.name, lease_s=3600, note=self.note)

    async def asked_again(self, registration: int) -> None:
        """An attempt of an earlier registration comes late."""
        async with connect(self.url) as client:
            await client.brokers._requests.one(
                methods.BROKER_REGISTER, BrokerRegister(self.name, registration=registration), None
            )

    async def is_clean(self, m: Client) -> bool:
        known = await m.brokers.get(self.name)
        assert known is not None
        return known.unclean_epoch == 0


@pytest.fixture
def named(
    server: embedded.ServingInThread, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Named:
    return Named(server.url, request.node.name[:60], tmp_path, monkeypatch)


async def test_a_broker_with_a_note_is_clean_however_its_lives_end(m: Client, named: Named) -> None:
    for _ in range(2):
        first = await named.life()
        await named.killed()
        await named.killed()
        assert (await named.life()).epoch > first.epoch + 2
        assert await named.is_clean(m)
    await m.brokers.register(named.name, lease_s=3600)
    await m.brokers.fence(named.name)
    assert not await named.is_clean(m), "without the note it is not"


async def test_a_registration_that_comes_twice_leaves_it_clean(m: Client, named: Named) -> None:
    await named.life()
    epoch, registration, state = named.note.read_text().split()
    assert state == "begun"
    await named.asked_again(int(registration))
    await named.life()
    assert await named.is_clean(m), "the life of the late attempt has never served"

    await named.killed()
    _, registration, state = named.note.read_text().split()
    assert state == "asked"
    await named.asked_again(int(registration))
    again = await named.life()
    assert await named.is_clean(m)
    assert again.epoch > int(epoch)
    await named.asked_again(int(registration))
    await named.life()
    assert await named.is_clean(m)


@pytest.mark.parametrize("is_killed", [False, True], ids=["", "killed"])
async def test_another_folder_under_its_name_makes_both_unclean(m: Client, named: Named, is_killed: bool) -> None:
    await named.life()
    if is_killed:
        await named.killed()
    other = named.note.with_name("other")
    theirs = await named.life(other)
    known = await m.brokers.get(named.name)
    assert known is not None
    assert known.unclean_epoch == theirs.epoch
    if is_killed:
        await named.killed()
    mine = await named.life()
    known = await m.brokers.get(named.name)
    assert known is not None
    assert theirs.epoch < known.unclean_epoch <= mine.epoch


async def test_a_note_that_is_none_is_refused(m: Client, named: Named) -> None:
    named.note.write_text("seven")
    with pytest.raises(InvalidRequestError, match="note"):
        await named.life()
    with pytest.raises(InvalidRequestError, match="clean_epoch"):
        await m.brokers.register(named.name, note=named.note, clean_epoch=7)
    assert await m.brokers.get(named.name) is None
