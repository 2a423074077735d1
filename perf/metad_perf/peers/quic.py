"""``metad-perf quic``: metad's QUIC transport against aioquic's own ``serve``, doing the same work on this machine.

*put*: one connection, one long stream, 256 puts of 200 bytes in flight; the server decodes and answers each. The same
client (ours, which is faster) drives both servers, so that only the server differs; its CPU per request is compared.
*bulk*: one stream, one way, datagrams of 1200 bytes, congestion control and pacing on; each side with its own client.
Both use the same event loop (uvloop if installed), in processes of their own, in turn, several times; the figures are
medians over the pairs of each pair's ratio.
"""

from __future__ import annotations

import json as jsons
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from metad_wire.operator.authority import issue_fleet
from metad_wire.transport.credentials import TlsFiles

from ..commands import Quic
from ..errors import PerfError, UsageError
from ..report import output
from ..report.conclusion import reported

SIDES = ("ours", "stock")
_PATIENCE_S = 60.0


def run(options: Quic) -> int:
    """Returns the exit code. Raises UsageError."""
    pairs, seconds, megabytes = options.pairs, options.seconds, options.megabytes
    if pairs < 1 or seconds <= 0 or megabytes < 1:
        raise UsageError("--pairs, --seconds and --megabytes must be over 0")
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="metad-quic-") as directory:
        files = issue_fleet(Path(directory), ["bench"], [])["node-bench"]
        with output.progress("runs", 4 * pairs) as progress:
            for pair in range(pairs):
                for work, amount in (("put", seconds), ("bulk", megabytes * 1e6)):
                    for side in SIDES if pair % 2 == 0 else reversed(SIDES):
                        client = "ours" if work == "put" else side
                        runs.append({"work": work, "side": side, **_one(side, client, work, files, amount)})
                        progress(1)
    compared = {
        "server_cpu_ratio_256_in_flight": _ratio(runs, "put", "server_cpu_us", inverse=True),
        "bulk_ratio_1200": _ratio(runs, "bulk", "mb_per_s"),
        "runs": runs,
    }
    output.write_json(options.json, reported(options, compared))
    _show(compared)
    return 0


def _one(side: str, client_side: str, work: str, files: TlsFiles, amount: float) -> dict[str, float]:
    paths = (files.certificate, files.key, files.ca)
    ends = [sys.executable, "-m", "metad_perf.peers.quic_ends"]
    command = [*ends, "server", side, work, *paths]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            port = server.stdout.readline().strip()
            if not port:
                raise PerfError(f"the {side} server did not start")
            client = subprocess.run(
                [*ends, "client", client_side, work, *paths, port, str(server.pid), str(amount)],
                capture_output=True,
                text=True,
                timeout=_PATIENCE_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise PerfError(f"{work} on {side} did not end within {_PATIENCE_S:.0f} s") from None
        finally:
            server.terminate()
    if client.returncode or not client.stdout:
        raise PerfError(f"the client of {work} on {side} failed: {client.stderr.strip()[-500:]}")
    measured: dict[str, float] = jsons.loads(client.stdout)
    return measured


def _ratio(runs: list[dict[str, Any]], work: str, key: str, *, inverse: bool = False) -> float:
    ours = [one[key] for one in runs if one["work"] == work and one["side"] == "ours"]
    stock = [one[key] for one in runs if one["work"] == work and one["side"] == "stock"]
    pairs = zip(stock, ours, strict=True) if inverse else zip(ours, stock, strict=True)
    return output.median_ratio(pairs)


def _show(compared: dict[str, Any]) -> None:
    runs = compared["runs"]
    output.table(
        "256 puts of 200 bytes in flight",
        ("server", "requests/s", "server CPU µs/request", "client CPU µs/request"),
        [
            (one["side"], one["requests_per_s"], one["server_cpu_us"], one["client_cpu_us"])
            for one in runs
            if one["work"] == "put"
        ],
    )
    output.table(
        "one stream, datagrams of 1200 bytes",
        ("both ends", "MB/s", "server CPU µs/KB"),
        [(one["side"], one["mb_per_s"], one["server_cpu_us_per_kb"]) for one in runs if one["work"] == "bulk"],
    )
    output.say(
        f"aioquic's serve takes {compared['server_cpu_ratio_256_in_flight']:.2f} times the CPU of ours per request; "
        f"ours moves {compared['bulk_ratio_1200']:.2f} times as much."
    )
