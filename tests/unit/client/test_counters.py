"""What a client counts: each request once, by its verb and how it ended, with the time that its caller waited; and what
``metad_client.prometheus`` makes of it for one client or several."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from metad_client import (
    BOUNDS_S,
    ConflictError,
    ConnectionLostError,
    DeadlineExceededError,
    KvPutItem,
    OverloadedError,
    blocking,
)
from metad_client.prometheus import LATENCY, METRICS, MetadCollector, reference
from metad_wire import messages as m


def page(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    """Name and values of the labels, by their names -> value."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()) if value)): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def shown(client: Any, name: str = "") -> dict[tuple[str, ...], float]:
    registry = CollectorRegistry()
    registry.register(MetadCollector(client, name))
    return page(registry)


async def test_each_request_is_counted_once_by_how_it_ended(server, dial, settle):
    client = await dial()
    await settle()
    await client.kv.put("ns", "k", b"7")
    server.answer = lambda received: received.reply(m.KvPutReply([], [m.ItemError(1, ConflictError.code)], [1, 0]))
    await client.kv.put_many([KvPutItem("ns", "a", b""), KvPutItem("ns", "b", b"")])
    server.answer = lambda received: received.fail(ConflictError("no"))
    with pytest.raises(ConflictError):
        await client.kv.put_many([KvPutItem("ns", "a", b"")])
    server.answer = None
    with pytest.raises(DeadlineExceededError):
        await client.kv.get("ns", "k", deadline_s=3)
    waiting = asyncio.create_task(client.status())
    await server.requests(5)
    assert "system.status" not in {verb for verb, counts in client.statistics().verbs.items() if counts.outcomes}
    waiting.cancel()
    await asyncio.wait([waiting])

    verbs = client.statistics().verbs
    assert verbs["kv.put"].outcomes == {"ok": 2, "conflict": 1}
    assert (verbs["kv.put"].items, verbs["kv.put"].refused) == (4, 1)
    assert verbs["kv.get"].outcomes == {"deadline_exceeded": 1}
    assert verbs["kv.get"].seconds == pytest.approx(3, abs=0.1)
    assert verbs["kv.get"].buckets.index(1) in (BOUNDS_S.index(2.5), BOUNDS_S.index(5.0))
    assert verbs["system.status"].outcomes == {"abandoned": 1}
    assert all(sum(counts.buckets) == sum(counts.outcomes.values()) for counts in verbs.values())
    assert "cluster.map" not in verbs, "the client's own questions are no request of the program"


async def test_what_the_client_refuses_by_itself_is_counted(server, dial, settle):
    client = await dial(waiting_max=1)
    await settle()
    await server.stop_listening()
    server.live[0].cut()
    await asyncio.sleep(0.1)
    waiting = asyncio.create_task(client.kv.put_many([KvPutItem("ns", "a", b"")], deadline_s=5))
    await asyncio.sleep(0.1)
    with pytest.raises(OverloadedError):
        await client.kv.put_many([KvPutItem("ns", "b", b"")])
    with pytest.raises(DeadlineExceededError):
        await waiting
    assert client.statistics().verbs["kv.put"].outcomes == {"overloaded": 1, "deadline_exceeded": 1}
    assert client.statistics().disconnects == 1
    assert client.statistics().unreachable > 1
    await client.close()


async def test_retries_are_counted_by_their_reason_and_their_time_counts(server, dial):
    client = await dial()
    refusals = [OverloadedError("full", retry_after_ms=2_000), ConnectionLostError("")]

    def answer(received):
        refusal = refusals.pop(0) if refusals else None
        if isinstance(refusal, OverloadedError):
            received.fail(refusal)
        elif refusal is not None:
            received.peer.cut()
        else:
            received.reply()

    server.answer = answer
    assert await client.kv.put("ns", "k", b"7") == 7
    counts = client.statistics().verbs["kv.put"]
    assert counts.retries == {"overloaded": 1, "connection_lost": 1}
    assert counts.outcomes == {"ok": 1}
    assert counts.seconds >= 2
    found = shown(client)
    assert found["metad_client_retries_total", "overloaded", "kv.put"] == 1
    assert found["metad_client_turned_away_total",] == 1


async def test_redirects_are_counted(server, nodes, dial, settle):
    client = await dial()
    await settle()
    nodes.leaders = {**nodes.leaders, "data-0": "n2"}
    await client.sessions.get_many([m.SessionKey("t", f"c{i}") for i in range(200)])
    counts = client.statistics().verbs["session.get"]
    assert (counts.redirects, counts.retries) == (1, {})
    assert client.statistics().via == {"n1": "given", "n2": "given", "n3": "given"}
    assert shown(client)["metad_client_connections", "given"] == 3


async def test_the_wait_of_a_single_call_for_company_counts(server, dial, settle):
    client = await dial(linger_s=4)
    await settle()
    await asyncio.gather(*(client.kv.put("ns", f"k{number}", b"") for number in range(3)))
    counts = client.statistics().verbs["kv.put"]
    assert (counts.outcomes, counts.items) == ({"ok": 1}, 3)
    assert counts.seconds >= 4


# --- Prometheus ---------------------------------------------------------------------------------------------------


async def test_every_metric_is_on_the_page_and_in_the_reference(server, dial, settle):
    client = await dial()
    await settle()
    await client.kv.put("ns", "k", b"7")
    registry = CollectorRegistry()
    registry.register(MetadCollector(client))
    families = {f.name: f for f in text_string_to_metric_families(generate_latest(registry).decode())}
    assert families.keys() == {metric.name for metric in METRICS} | {LATENCY}
    assert all(f"| `{name}" in reference() for name in families)
    assert all(metric.help.endswith(".") for metric in METRICS)
    found = page(registry)
    assert found["metad_client_state", "connected"] == 1
    assert found["metad_client_state", "lost"] == found["metad_client_state", "suspended"] == 0
    assert found["metad_client_nodes",] == found["metad_client_connects_total",] == 1
    assert found["metad_client_requests_total", "ok", "kv.put"] == found[f"{LATENCY}_count", "kv.put"] == 1
    assert found[f"{LATENCY}_bucket", "0.0005", "kv.put"] == 1, "the test's clock stands still"
    await client.close()
    assert page(registry)["metad_client_state", "lost"] == 1, "a closed client has its counters still"


async def test_clients_with_names_do_not_clash_and_one_that_is_forgotten_is_gone(server, dial):
    orders, payments = await dial(), await dial()
    await orders.kv.put("ns", "k", b"7")
    registry = CollectorRegistry(auto_describe=True)
    collector = MetadCollector(orders, "orders")
    registry.register(collector)
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(MetadCollector(payments, "payments"))
    with pytest.raises(ValueError, match="'orders' is the name of another client"):
        collector.add(payments, "orders")
    collector.add(orders, "orders")
    collector.add(payments, "payments")
    found = page(registry)
    assert found["metad_client_requests_total", "orders", "ok", "kv.put"] == 1
    assert not any("payments" in labels for labels in found if labels[0] == "metad_client_requests_total")
    assert found["metad_client_nodes", "orders"] == found["metad_client_nodes", "payments"] == 1
    collector.forget(orders)
    assert not any("orders" in labels for labels in page(registry))
    collector.forget(orders)
    collector.add(orders, "again")
    assert page(registry)["metad_client_nodes", "again"] == 1


def test_a_client_that_the_program_lets_go_of_is_gone(scripted_server):
    dropped = blocking.connect("metad://a", transport=scripted_server.transport)
    collector = MetadCollector(dropped, "first")
    with blocking.connect("metad://a", transport=scripted_server.transport) as kept:
        collector.add(kept, "kept")
        dropped.close()
        del dropped
        gc.collect()
        registry = CollectorRegistry()
        registry.register(collector)
        assert {labels[1] for labels in page(registry) if labels[0] == "metad_client_nodes"} == {"kept"}
        collector.add(kept, "first")


@pytest.fixture
def hasty_threads():
    """Threads that take turns all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_a_scrape_in_another_thread_meets_no_half_done_change(scripted_server, hasty_threads):
    """A dict that grows while it is read raises RuntimeError. Verbs and outcomes come for the first time meanwhile."""
    with blocking.connect("metad://a", transport=scripted_server.transport) as client:
        over, failed = threading.Event(), []

        def scrape() -> None:
            while not over.is_set():
                try:
                    client.statistics()
                except Exception as error:  # noqa: BLE001 - told to the test
                    failed.append(error)
                    return

        scraper = threading.Thread(target=scrape)
        scraper.start()
        for number in range(100):
            client.kv.put("ns", f"k{number}", b"")
            client.kv.get("ns", "k")
        meters = client._client._dispatcher.meters
        for number in range(700):
            meters[f"verb-{number}"].ended(f"outcome-{number}", 0.001, 1, 0)
            meters["kv.get"].ended(f"outcome-{number}", 0.001, 1, 0)
        over.set()
        scraper.join()
        assert not failed
        assert shown(client)["metad_client_requests_total", "ok", "kv.put"] == 100
    assert client.statistics().state == "lost", "also after the end"
