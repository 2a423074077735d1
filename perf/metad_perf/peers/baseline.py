"""The protobuf messages and gRPC stubs of baseline.proto, compiled when this module is imported."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

import grpc


def _compile() -> tuple[Any, Any]:
    # The compiler searches sys.path, which does not contain an editable install's folder.
    folder = str(Path(__file__).parent)
    sys.path.append(folder)
    try:
        return cast("tuple[Any, Any]", grpc.protos_and_services("baseline.proto"))
    finally:
        sys.path.remove(folder)


pb, stubs = _compile()

# No retry or tracing machinery, room for large batches, and HTTP/2 pings that do not interfere.
CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.enable_retries", 0),
    ("grpc.optimization_target", "throughput"),
)
