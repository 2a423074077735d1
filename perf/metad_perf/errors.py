"""The harness's own errors; everything else is a :class:`metad_wire.errors.MetadError`."""

from __future__ import annotations


class PerfError(Exception):
    """Root of the harness's own errors; ``name`` is what the command line prints before the message."""

    name = "error"


class UsageError(PerfError):
    """The flags contradict each other."""

    name = "usage"


class ServerError(PerfError):
    """A server under test did not start, stop or answer as it must."""

    name = "server"


class WorkerError(PerfError):
    """A load-generating process failed."""

    name = "worker"


class PreparationError(PerfError):
    """The records a run needs could not be created."""

    name = "preparation"
