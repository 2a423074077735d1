"""``metadctl``: a cluster and what it keeps, from a shell."""

from .command_line import main

__all__ = ["main"]
