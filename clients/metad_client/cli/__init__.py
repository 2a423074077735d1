"""``metadctl``: manages a cluster and its records from a shell."""

from .command_line import main

__all__ = ["main"]
