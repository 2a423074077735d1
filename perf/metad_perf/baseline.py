"""The protobuf messages and gRPC stubs of baseline.proto, compiled when this module is imported."""

from __future__ import annotations

from typing import Any

import grpc

pb: Any
stubs: Any
pb, stubs = grpc.protos_and_services("metad_perf/baseline.proto")

# Sensible settings: no retry or tracing machinery, room for large batches, and HTTP/2 pings that do not interfere.
CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.enable_retries", 0),
    ("grpc.optimization_target", "throughput"),
)
