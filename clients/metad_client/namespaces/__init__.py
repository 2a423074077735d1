"""What a client offers its user by name: ``m.sessions``, ``m.offsets``, ``m.kv``, ``m.retained``, ``m.cluster``, and
``m.table(…)``."""

from __future__ import annotations

from ..requests.requests import Requests


class Facade:
    """The base of all namespaces: an object whose methods send requests. The blocking client wraps each one."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
