"""Traces of OpenTelemetry: a span for each request of a client, below the program's own span::

    from metad_client.otel import Tracing

    async with connect("metad://127.0.0.1:7420", observer=Tracing()) as m: ...

It needs the extra ``otel``. The program sets OpenTelemetry up, as for its own spans; without that, nothing is made and
nothing is sent. A request takes the context of its span along: the nodes make no spans, but `metadctl slow` and the
exemplars of their latencies name the trace. Single calls that share a request share the span of the first of them.
"""

from __future__ import annotations

from metad_wire import __version__
from metad_wire.messages import trace_context
from metad_wire.program.extras import advice

from .observer import Begun, Ended, Observer, Trace

try:
    from opentelemetry import trace
except ModuleNotFoundError as missing:
    text = f"metad_client.otel: {advice(missing, 'otel')}"
    raise ModuleNotFoundError(text, name=missing.name) from None


class Tracing(Observer):
    """Makes spans. Override more of :class:`Observer` to be told of the rest, too."""

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        """``provider``: None: the global one."""
        self._tracer = trace.get_tracer("metad_client", __version__, provider)

    def began(self, event: Begun) -> Trace | None:
        """Begin a span."""
        attributes = {"rpc.system": "metad", "rpc.method": event.verb, "metad.group": event.group}
        span = self._tracer.start_span(event.verb, kind=trace.SpanKind.CLIENT, attributes=attributes)
        found = span.get_span_context()
        if not found.is_valid:  # nobody has set OpenTelemetry up
            return None
        return _Traced(span, trace_context(found.trace_id, found.span_id, found.trace_flags))


class _Traced(Trace):
    def __init__(self, span: trace.Span, context: bytes) -> None:
        super().__init__(context)
        self._span = span

    def ended(self, event: Ended) -> None:
        span = self._span
        span.set_attribute("metad.attempts", event.attempts)
        span.set_attribute("metad.refused", event.refused)
        if event.outcome != "ok":
            span.set_attribute("error.type", event.outcome)
            span.set_status(trace.StatusCode.ERROR, str(event.error or event.outcome))
        span.end()
