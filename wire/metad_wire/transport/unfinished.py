"""Logs handshakes that were accepted and did not succeed. Strangers can repeat them, and must not fill the log."""

from __future__ import annotations

import logging

from ..program.sparing import Sparing

_log = logging.getLogger("metad")
_refusals = Sparing(10, 60.0)


def log_refused(text: str) -> None:
    """Log why a handshake has ended, unless too many others did in the same minute."""
    unsaid = _refusals.admit()
    if unsaid is not None:
        fields = {"detail": text} | ({"left_out": unsaid} if unsaid else {})
        _log.info("tls_refused", extra={"fields": fields})
