"""What all namespaces have in common."""

from __future__ import annotations


class Facade:
    """An object whose methods are verbs: the blocking client gives it a blocking face."""
