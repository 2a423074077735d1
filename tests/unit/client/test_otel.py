"""Traces from the SDK to a node: a span for each request, below the program's own, whose trace the node names in its
slow requests and in the examples of its latencies. It guards that who traces nothing sends the bytes of before, and
that a repetition of a write is one whatever its trace."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NoOpTracerProvider, SpanKind, StatusCode
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from metad.config import load_config
from metad.node.meters import trace_id_of
from metad.node.requests.requests import digest_of
from metad.server.network import Network
from metad.server.serve import Server
from metad_client import MetadError, NotFoundError, connect
from metad_client.otel import Tracing
from metad_wire import messages as m
from metad_wire.methods import KV_PUT, encode

CONTEXT = m.trace_context(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, 1)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    config = load_config(
        None,
        {"storage": {"engine": "memory"}, "listen": "127.0.0.1:0", "http": "127.0.0.1:0", "limits": {"slow_ms": 1}},
    )
    server = await Server.start(config, Network.of(config))
    running = asyncio.create_task(server.run())
    await server.node.serving()
    yield server
    await server.stop()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def recording(**options: Any) -> tuple[TracerProvider, InMemorySpanExporter]:
    provider, exporter = TracerProvider(**options), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


def of_node(server: Server) -> set[str]:
    """The traces that the node has examples of."""
    meters = server.node.requests.meters.by_name().values()
    return {trace_id for meter in meters for trace_id, _ in meter.seconds.examples.values()}


async def page(server: Server) -> str:
    assert server.http is not None
    host, _, port = server.http.endpoint.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /metrics HTTP/1.0\r\nAccept: application/openmetrics-text; version=1.0.0\r\n\r\n")
    _, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return body.decode()


async def test_a_request_is_a_span_whose_trace_the_node_names(server: Server) -> None:
    provider, exporter = recording()
    async with connect(f"metad://{server.endpoint}", observer=Tracing(provider)) as client:
        with provider.get_tracer("program").start_as_current_span("publish") as own:
            await client.kv.put("ns", "k", b"v")
            await client.kv.get("ns", "k")
            with pytest.raises(NotFoundError):
                await client.kv.delete("ns", "absent")
        spans: list[ReadableSpan] = [span for span in exporter.get_finished_spans() if span.name.startswith("kv.")]
        trace_id = own.get_span_context().trace_id
        assert [span.name for span in spans] == ["kv.put", "kv.get", "kv.delete"]
        for span in spans:
            assert span.context is not None
            assert span.parent is not None
            assert (span.kind, span.context.trace_id) == (SpanKind.CLIENT, trace_id)
            assert span.parent.span_id == own.get_span_context().span_id
            assert span.attributes is not None
            assert span.attributes["metad.group"] == "data-0"
        assert f"{trace_id:032x}" in of_node(server)
        exemplars = {
            sample.exemplar.labels["trace_id"]
            for family in text_string_to_metric_families(await page(server))
            for sample in family.samples
            if sample.exemplar is not None and sample.labels.get("method") == "kv.put"
        }
        assert exemplars == {f"{trace_id:032x}"}
        server.node.requests.meters.of_trace("ab" * 16, lambda _: note_slow(server))(b"")
        (reply,) = (await client.cluster.activity()).values()
        assert isinstance(reply, m.ActivityReply)
        assert "ab" * 16 in {one.trace for one in reply.slow}
        assert server.node.requests.meters.trace_id == ""


def note_slow(server: Server) -> None:
    server.node.requests.note_slow(KV_PUT.code, 9, 0.5, b"", "c", None)


async def test_what_fails_is_an_error_in_its_span(server: Server) -> None:
    provider, exporter = recording()
    async with connect(f"metad://{server.endpoint}", observer=Tracing(provider)) as client:
        with pytest.raises(MetadError) as refused:
            await client.cluster.leave("nobody")
    failed = [span for span in exporter.get_finished_spans() if span.status.status_code is StatusCode.ERROR]
    assert [span.name for span in failed] == ["cluster.leave"]
    assert failed[0].attributes is not None
    assert failed[0].attributes["error.type"] == refused.value.name


@pytest.mark.parametrize(
    "provider", [NoOpTracerProvider(), recording(sampler=ALWAYS_OFF)[0]], ids=["none", "sampled out"]
)
async def test_what_is_not_recorded_leaves_no_trace(server: Server, provider: Any) -> None:
    async with connect(f"metad://{server.endpoint}", observer=Tracing(provider)) as client:
        await client.kv.put("ns", "k", b"v")
    assert of_node(server) == set()


def test_the_bytes_of_a_request_are_those_of_before_but_for_the_context_at_its_end() -> None:
    body, identity = KV_PUT.body([KV_PUT.item("ns", "k", b"v")]), m.Identity(7, 1, 1, 0)
    plain = encode(m.Request(5_000, identity, body, "data-0"))
    traced = encode(m.Traced(5_000, identity, body, "data-0", 0, None, 0, CONTEXT))
    assert traced[1 : len(plain)] == plain[1:]
    assert trace_id_of(KV_PUT.decode_request(traced)) == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert trace_id_of(KV_PUT.decode_request(plain)) == ""
    assert digest_of(KV_PUT, KV_PUT.decode_request(traced), traced) == digest_of(
        KV_PUT, KV_PUT.decode_request(plain), plain
    ), "the same write, whoever repeats it"


@pytest.mark.parametrize("context", [b"", b"x", CONTEXT[:24], CONTEXT + b"\x01", CONTEXT[:24] + b"\x00"])
def test_a_context_that_is_none_or_is_not_recorded_counts_for_nothing(context: bytes) -> None:
    assert trace_id_of(m.Traced(0, None, m.Status(), trace=context)) == ""


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "metad_client.otel")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ModuleNotFoundError, match=r"metad_client\.otel: .* extra otel: .*clients\[otel\]"):
        importlib.import_module("metad_client.otel")
