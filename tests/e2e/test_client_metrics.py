"""The counters of clients of real nodes say what has happened: calls, a retry after a kill, a missed deadline, a watch
that went on; of an asyncio client and a blocking one in one registry."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e_server import Server, free_ports
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from metad_client import DeadlineExceededError, blocking, connect
from metad_client.prometheus import MetadCollector
from waiting import WAIT_S, until


def value_of(collector: Collector) -> Callable[..., float | None]:
    """Look a value up as a scrape would see it now."""
    registry = CollectorRegistry()
    registry.register(collector)
    return lambda name, **labels: registry.get_sample_value(f"metad_client_{name}", {"client": "", **labels})


async def test_the_counters_say_what_has_happened(tmp_path: Path) -> None:
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    with Server(tmp_path / "data", listen=listen).ready() as server:
        async with connect(server.url) as m:
            value = value_of(MetadCollector(m))
            async with m.watch("kv", start="snapshot", progress_s=0.1) as watch:
                await watch.opened()
                await m.kv.put("ns", "k", b"1")
                await asyncio.gather(*(m.kv.get("ns", "k") for _ in range(10)))
                assert value("requests_total", verb="kv.put", outcome="ok") == 1
                gets = m.statistics().verbs["kv.get"]
                assert gets.items == 10
                assert value("request_duration_seconds_count", verb="kv.get") == gets.outcomes["ok"] <= 10
                seen = [await watch.next() for _ in range(3)]
                assert all(seen)
                assert sum(value("watch_batches_total", kind=batch.kind) or 0 for batch in seen if batch) >= 3
                assert value("watches") == 1
                await until(lambda: value("watch_age_seconds") is not None or watch.next(), "an age")

                server.process.send_signal(signal.SIGSTOP)
                for _ in range(2):
                    with pytest.raises(DeadlineExceededError):
                        await m.kv.put("ns", "k", b"2", deadline_s=0.3)
                late = asyncio.create_task(m.kv.put("ns", "k", b"3", deadline_s=WAIT_S))
                await until(lambda: value("in_flight_requests"), "a put in flight")
                server.kill()
                await until(lambda: value("state", state="connected") == 0, "a client without a node")
                with Server(tmp_path / "data", listen=listen).ready():
                    await late
                    assert value("requests_total", verb="kv.put", outcome="deadline_exceeded") == 2
                    assert value("requests_total", verb="kv.put", outcome="ok") == 2
                    assert (value("retries_total", verb="kv.put", reason="connection_lost") or 0) >= 1
                    quick = value("request_duration_seconds_bucket", verb="kv.put", le="0.25")
                    assert quick in (1, 2), "those that gave up after 0.3 s are not among them; the last may be"
                    assert value("disconnects_total") == value("reconnects_total") == 1
                    await until(lambda: value("watch_resumes_total"), "the watch goes on")
                    await until(lambda: value("state", state="connected"), "the client")
            assert value("watches") == 0


def test_two_clients_of_one_process_are_told_apart(tmp_path: Path) -> None:
    with Server(tmp_path / "data").ready() as server, blocking.connect(server.url) as writer:
        with blocking.connect(server.url) as reader:
            collector = MetadCollector(writer, "writer")
            collector.add(reader, "reader")
            value = value_of(collector)
            writer.kv.put("ns", "k", b"1")
            for _ in range(3):
                reader.kv.get("ns", "k")
            labels = {"outcome": "ok"}
            assert value("requests_total", client="writer", verb="kv.put", **labels) == 1
            assert value("requests_total", client="reader", verb="kv.get", **labels) == 3
            assert value("requests_total", client="writer", verb="kv.get", **labels) is None
        collector.forget(reader)
        assert value("nodes", client="reader") is None
        assert value("nodes", client="writer") == 1
