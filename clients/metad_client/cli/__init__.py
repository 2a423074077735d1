"""``metadctl``: manages a cluster and its records from a shell."""

from collections.abc import Sequence

from metad_wire.transport import Transport


def main(argv: Sequence[str] | None = None, *, transport: Transport | None = None) -> int:
    """Run one command, and return its exit status. All commands are loaded only now: programs use parts of them."""
    from .command_line import main as run

    return run(argv, transport=transport)
