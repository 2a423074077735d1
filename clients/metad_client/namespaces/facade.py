"""What all namespaces have in common."""

from __future__ import annotations

from ..requests.requests import Requests


class Facade:
    """An object whose methods are verbs: the blocking client gives it a blocking face."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
