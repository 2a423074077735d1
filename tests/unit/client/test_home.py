"""Where a client may be used. A call from another process, loop or thread, or after its loop has ended, is told so at
once: it would wait for what cannot come."""

from __future__ import annotations

import asyncio
import functools
import operator
import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
from good_arguments import GOOD
from scripted import Server

from metad_client import Client, ForeignCallError, ForkedError, GroupId, MetadError, blocking, connect
from metad_client.holding.belief import LeaseState

DEADLINE_S = 20


def in_a_fork(function: Callable[[], Any]) -> str:
    """What a fork of this process says: the class and text of the error, or ``returned``."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            try:
                said = f"returned {function()!r}"
            except BaseException as error:  # noqa: BLE001 - told to the test
                said = f"{type(error).__name__}: {error}"
            os.write(writer, said.encode())
        finally:
            os._exit(0)
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], DEADLINE_S)
    if not ready:
        os.kill(child, signal.SIGKILL)
    said = os.read(reader, 10_000).decode() if ready else "waited for ever"
    os.close(reader)
    os.waitpid(child, 0)
    return said


# --- a fork: the blocking client ---


def faces(client: blocking.BlockingClient) -> dict[str, Callable[[], Any]]:
    """Every public way into a blocking client, and into what it has made."""
    watch, image = client.watch("kv"), client.image("kv")
    snapshot = client.snapshot(GroupId("data", 0), "kv")
    lease = client.hold("ns")
    member = client.consume("t", "g", assign=lambda _, members: {})
    found: dict[str, Callable[[], Any]] = {
        "watch": lambda: client.watch("kv"),
        "snapshot": lambda: client.snapshot(GroupId("data", 0), "kv"),
        "image": lambda: client.image("kv"),
        "hold": lambda: client.hold("ns"),
        "consume": lambda: client.consume("t", "g", assign=lambda _, members: {}),
        "watch.next": watch.next,
        "watch.opened": watch.opened,
        "watch.close": watch.close,
        "watch.token": lambda: watch.token,
        "watch.age_ms": lambda: watch.age_ms,
        "image[]": lambda: image["kv"],
        "image.caught_up": image.caught_up,
        "image.age_ms": lambda: image.age_ms,
        "image.close": image.close,
        "snapshot.next": snapshot.next,
        "snapshot.close": snapshot.close,
        "lease.opened": lease.opened,
        "lease.close": lease.close,
        "member.opened": member.opened,
        "member.close": member.close,
        "reconnect": client.reconnect,
        "statistics": client.statistics,
        "state": lambda: client.state,
        "on_state": lambda: client.on_state(print),
        "status": client.status,
        "close": client.close,
    }
    for name, arguments in GOOD.items():
        method = operator.attrgetter(name.removeprefix("client."))(client)
        found[name] = functools.partial(_called, method, arguments)
    return found


def _called(method: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    outcome = method(**arguments)
    return next(outcome) if hasattr(outcome, "__next__") else outcome


def test_everything_of_a_blocking_client_says_in_a_fork_that_it_is_one(scripted_server: Server) -> None:
    """Calls hung past their deadline, close too: the thread that would have answered is not in the fork."""
    with blocking.connect("metad://a", transport=scripted_server.transport) as client:
        found = faces(client)

        def all_of_them() -> dict[str, str]:
            wrong = {}
            for name, face in found.items():
                try:
                    wrong[name] = f"returned {face()!r}"
                except ForkedError as error:
                    if "fork" not in str(error):
                        wrong[name] = str(error)
                except BaseException as error:  # noqa: BLE001 - told to the test
                    wrong[name] = repr(error)
            return wrong

        assert in_a_fork(all_of_them) == "returned {}"
        assert len(found) > 60
        assert client.kv.put("ns", "k", b"7") == 7, "the parent's client is as it was"


def test_a_block_that_is_left_in_a_fork_says_so_too(scripted_server: Server) -> None:
    with blocking.connect("metad://a", transport=scripted_server.transport) as client:
        assert in_a_fork(lambda: client.__exit__(None, None, None)).startswith("ForkedError: the client belongs to")


def test_a_fork_may_connect_anew(scripted_server: Server) -> None:
    with blocking.connect("metad://a", transport=scripted_server.transport):

        def anew() -> int:
            server = Server(scripted_server.transport)
            with blocking.connect("metad://a", transport=server.transport) as client:
                return client.kv.put("ns", "k", b"7")

        assert in_a_fork(anew) == "returned 7"


def test_a_process_of_multiprocessing_is_a_fork_too() -> None:
    program = """
        import asyncio, multiprocessing, sys
        sys.path.insert(0, sys.argv[1])
        from scripted import Server
        from metad_client import ForkedError, blocking
        from sim.memory import MemoryTransport

        def child(client):
            try:
                client.kv.get("ns", "k")
            except ForkedError:
                try:
                    client.close()
                except ForkedError:
                    raise SystemExit(7)

        server = Server(MemoryTransport())
        asyncio.run(server.listen())
        with blocking.connect("metad://a", transport=server.transport) as client:
            process = multiprocessing.get_context("fork").Process(target=child, args=(client,))
            process.start()
            process.join(20)
            print(process.exitcode)
            process.kill()
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), os.path.dirname(__file__)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout == "7\n", ran.stderr


# --- a fork: the async client ---


async def test_an_async_client_says_in_a_fork_that_it_is_one(dial: Any) -> None:
    client: Client = await dial()
    lease = await client.hold("ns").opened()
    assert lease.state is LeaseState.CONNECTED
    watch = client.watch("kv")
    image = client.image("kv")

    async def outcome(work: Callable[[], Any]) -> str:
        try:
            await asyncio.wait_for(work(), 5)
        except MetadError as error:
            return type(error).__name__
        return "done"

    calls = [client.close, client.status, lambda: client.kv.get("ns", "k"), lambda: client.kv.put_many([])]
    calls += [watch.next, watch.close, image.caught_up, image.close]

    def in_a_loop_of_its_own() -> list[str]:
        asyncio._set_running_loop(None)
        return [asyncio.run(outcome(call)) for call in calls]

    assert in_a_fork(in_a_loop_of_its_own) == f"returned {['ForkedError'] * len(calls)}"
    assert in_a_fork(lambda: lease.state.name) == "returned 'LOST'", "two processes never hold one lease"
    assert in_a_fork(lambda: image["kv"]).startswith("ForkedError: ")
    assert lease.state is LeaseState.CONNECTED
    await lease.close()


# --- another loop, another thread, a loop that is over ---

CALLS: dict[str, Callable[[Client], Any]] = {
    "close": lambda client: client.close(),
    "status": lambda client: client.status(),
    "a single": lambda client: client.kv.get("ns", "k"),
    "many": lambda client: client.kv.get_many([]),
    "a listing": lambda client: anext(client.kv.scan("ns")),
    "a watch": lambda client: client.watch("kv").next(),
    "an image": lambda client: client.image("kv").caught_up(),
    "a snapshot": lambda client: client.snapshot(GroupId("data", 0), "kv").next(),
    "a lease": lambda client: client.hold("ns").opened(),
    "a member": lambda client: client.consume("t", "g", assign=lambda _, members: {}).opened(),
    "the state": lambda client: client.brokers.list().__anext__(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_client_of_a_loop_that_is_over_says_so(scripted_server: Server, name: str) -> None:
    """A batch of singles told of a bug in the client: InternalError."""

    async def opened() -> Client:
        return await connect("metad://a", transport=scripted_server.transport).open()

    client = asyncio.run(opened())

    async def call() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await CALLS[name](client)

    with pytest.raises(ForeignCallError, match=r"after that loop was closed.*nothing was done") as raised:
        asyncio.run(call())
    assert raised.value.outcome_known
    assert not isinstance(raised.value, ForkedError)


@pytest.mark.parametrize("name", CALLS)
async def test_a_client_in_another_threads_loop_says_so(dial: Any, name: str) -> None:
    client = await dial()

    def elsewhere() -> None:
        async def call() -> None:
            async with asyncio.timeout(DEADLINE_S):
                await CALLS[name](client)

        asyncio.run(call())

    with pytest.raises(ForeignCallError, match="in another one"):
        await asyncio.to_thread(elsewhere)
    assert await client.kv.put("ns", "k", b"7") == 7


def test_a_blocking_client_that_outlives_its_interpreter_does_not_hang() -> None:
    """At that time no other thread runs, so nobody would answer."""
    program = """
        import asyncio, sys
        sys.path.insert(0, sys.argv[1])
        from scripted import Server
        from metad_client import ForeignCallError, blocking
        from sim.memory import MemoryTransport

        class Holder:
            def __del__(self, Late=ForeignCallError, write=sys.stdout.write, flush=sys.stdout.flush):
                for call in (lambda: self.client.kv.get("ns", "k"), self.client.close):
                    try:
                        call()
                    except Late:
                        write("late ")
                flush()

        server = Server(MemoryTransport())
        asyncio.run(server.listen())
        holder = Holder()
        holder.client = blocking.connect("metad://a", transport=server.transport)
        holder.itself = holder
        sys.modules["holder"] = holder
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), os.path.dirname(__file__)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout in ("late late ", ""), ran.stderr  # the interpreter may end without it
