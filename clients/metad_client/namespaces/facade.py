"""The base of all namespaces."""

from __future__ import annotations

from ..requests.requests import Requests


class Facade:
    """An object whose methods send requests. The blocking client wraps each one."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
