"""What strangers can make a broker say is said seldom: one line in a while, with the number of those it stands for."""

from __future__ import annotations

import logging
from typing import Final

from metad_wire.program.sparing import Sparing

_EACH_S: Final = 1.0
_OTHERS: Final = "(and %d others since the last such line)"


class Seldom:
    """A warning that is logged once in so many seconds at most."""

    def __init__(self, log: logging.Logger, each_s: float = _EACH_S) -> None:
        self._log = log
        self._sparing = Sparing(1, each_s)
        self.count = 0
        """How often it was said, or would have been."""

    def warn(self, text: str, *about: object) -> None:
        """Say it, unless that was done just now."""
        self.count += 1
        left_out = self._sparing.admit()
        if left_out:
            text, about = f"{text} {_OTHERS}", (*about, left_out)
        if left_out is not None:
            self._log.warning(text, *about)


class SeldomFromOnePlace(logging.Filter):
    """Of what amqtt says, each line of its code is heard once in a second: it has one for each stranger."""

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[tuple[str, int], Sparing] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is logged; if so, it says how many like it were left out before."""
        if record.name.partition(".")[0] != "amqtt":
            return True
        place = record.pathname, record.lineno
        left_out = self._places.setdefault(place, Sparing(1, _EACH_S)).admit()
        if left_out:
            record.msg, record.args = f"{record.getMessage()} {_OTHERS % left_out}", ()
        return left_out is not None
