"""A broker as a process of its own, which can be killed."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import metad_amqtt  # whoever lacks it is told so before anything starts

from ..errors import ServerError

_END_S = 30.0


class BrokerProcess:
    """``python -m metad_amqtt``, with more ``options``, which serves once this is made. It may open so
    many ``files``, if that is said. Raises ServerError if it does not serve."""

    def __init__(
        self, url: str, name: str, folder: Path, *options: str, lease_s: float = 3.0, files: int | None = None
    ) -> None:
        self.name = name
        self._log_file = folder / f"{name}.log"
        limited = [] if files is None else ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh"]
        command = [
            *limited,
            sys.executable,
            "-m",
            metad_amqtt.__name__,
            "--metad",
            url,
            "--name",
            name,
            "--lease-s",
            str(lease_s),
            *options,
        ]
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--bind", "127.0.0.1:0"],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        found = re.fullmatch(r"\S+ serves on 127\.0\.0\.1:(\d+) in life (\d+)\n", said)
        if found is None:
            self.end()
            raise ServerError(f"{name} does not serve: {self.log[-300:]}")
        self.pid = self._process.pid
        self.port = int(found[1])
        """For clients."""
        self.epoch = int(found[2])

    @property
    def log(self) -> str:
        """What it has logged, over all its lives."""
        return self._log_file.read_text(errors="replace")

    def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal, and wait for its end. Returns its exit status. Safe to call again."""
        self._process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        """Wait for its end. Returns its exit status."""
        status = self._process.wait(_END_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return status
