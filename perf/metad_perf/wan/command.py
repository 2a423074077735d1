"""``metad-perf wan``: where QUIC begins to win, by round-trip time and loss, and whether the SDK chooses right.

A node in one network namespace, a client in another, and between them the relay, which emulates the path for the
kernel's TCP and for our QUIC alike. TCP carries TLS, as QUIC does. Each cell is a path; table.py decides who wins it.

Before that it checks the relay: datagrams through it, timed from end to end, for delay, loss, and packets a second.
Sockets of both ends are in this process, so there is one clock and a delay is one way. Blocking; needs root.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec

from .. import commands
from ..errors import ServerError, UsageError
from ..faults import netns
from ..load.measure import epoch_now
from ..report import output
from ..report.conclusion import reported
from ..spawn import disk_directory
from . import relay
from .cells import CLIENT, VERBS, Load, Wan, Way, grid, served
from .client import WanClient
from .relay import Places
from .relay_line import Path as LinePath
from .table import QUIC, RULE, TCP, Cell, auto_share

_PORT = 9_000
_STAMP = struct.Struct("<qq")  # number, sent at ns
_QUIET_S = 0.3  # of silence: nothing more is coming
_GAP_S = 0.002  # between datagrams whose delay is measured: each wakes the relay by itself
_BUFFER_BYTES = 4 * 1024 * 1024
_PAYLOAD_BYTES = 1_200


def check(
    places: Places, *, delay_ms: float, loss_pct: float, delays: int = 300, losses: int = 20_000
) -> dict[str, Any]:
    """The requested properties of the path from place 0 to place 1, and the measured ones."""
    with _ends(places, 0, 1) as (sender, receiver):
        places.shape(0, 1, LinePath(delay_ms=delay_ms))
        sent, arrived = _send(sender, receiver, delays, gap_s=_GAP_S)
        over_us = sorted(1e3 * ((at - begun) / 1e6 - delay_ms) for begun, at in arrived.values())
        places.shape(0, 1, LinePath(delay_ms=delay_ms, loss_pct=loss_pct))
        lossy, left = _send(sender, receiver, losses, gap_s=0.0, in_flight=64)
        places.shape(0, 1, LinePath())
        before = places.account()
        begin_ns = time.monotonic_ns()
        fast, came = _send(sender, receiver, losses, gap_s=0.0, in_flight=256)
        last_ns = max(at for _, at in came.values())
        after = places.account()
    cpu_s = after.cpu_s - before.cpu_s
    return {
        "delay_ms": delay_ms,
        "over_us_p50": statistics.median(over_us),
        "over_us_p99": over_us[int(0.99 * len(over_us))],
        "over_us_max": over_us[-1],
        "unasked_loss": sent - len(arrived) + fast - len(came),
        "loss_pct": loss_pct,
        "measured_loss_pct": 100 * (lossy - len(left)) / lossy,
        "packets_per_s": len(came) / (last_ns - begin_ns) * 1e9,
        "cpu_us_per_packet": 1e6 * cpu_s / max(after.delivered - before.delivered, 1),
        "packet_bytes": _PAYLOAD_BYTES,
    }


def exchange(places: Places, source: int, target: int, count: int) -> list[float]:
    """Send ``count`` datagrams; returns the delay in ms of each that arrived."""
    with _ends(places, source, target) as (sender, receiver):
        _, arrived = _send(sender, receiver, count, gap_s=0.0, in_flight=32)
    return [(at_ns - sent_ns) / 1e6 for sent_ns, at_ns in arrived.values()]


@contextlib.contextmanager
def _ends(places: Places, source: int, target: int) -> Iterator[tuple[socket.socket, socket.socket]]:
    with contextlib.ExitStack() as stack:
        ends = []
        for n in (source, target):
            with netns.inside(places.network.space(n)):
                end = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                end.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
            end.bind((places.address(n), _PORT))
            ends.append(end)
        ends[0].connect((places.address(target), _PORT))
        yield ends[0], ends[1]


def _send(
    sender: socket.socket, receiver: socket.socket, count: int, *, gap_s: float, in_flight: int = 1
) -> tuple[int, dict[int, tuple[int, int]]]:
    """Returns how many were sent, and the send and arrival times in ns of those that arrived. Without a gap it sends
    bursts of ``in_flight``, each when half of the one before has arrived or no more arrives, so that the ends' buffers
    lose nothing."""
    arrived: dict[int, tuple[int, int]] = {}
    receiver.settimeout(_QUIET_S)

    def receive() -> None:
        with contextlib.suppress(TimeoutError):
            while True:
                data = receiver.recv(2_048)
                at_ns = time.monotonic_ns()
                number, sent_ns = _STAMP.unpack_from(data)
                arrived[number] = (sent_ns, at_ns)

    taking = Thread(target=receive)
    taking.start()
    padding = bytes(_PAYLOAD_BYTES - _STAMP.size)
    for number in range(count):
        if gap_s:
            time.sleep(gap_s)
        elif number % in_flight == 0:
            until_ns = time.monotonic_ns() + 20_000_000
            while number - len(arrived) > 2 * in_flight and time.monotonic_ns() < until_ns:
                time.sleep(0.0001)
        sender.send(_STAMP.pack(number, time.monotonic_ns()) + padding)
    taking.join()
    return count, arrived


_CHECKED_DELAY_MS, _CHECKED_LOSS_PCT = 10.0, 1.0  # with which the relay itself is checked first


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """The cells, the other properties of the path, and the load. ``controls``: of TCP, besides the kernel's default."""

    rtts_ms: Sequence[float]
    losses_pct: Sequence[float]
    verbs: Sequence[str]
    controls: Sequence[str]
    auto: bool
    load: Load
    path: LinePath


def asked(options: commands.Wan) -> Question:
    """What a command line asks. Raises UsageError."""
    if not (options.rtt_ms and options.loss and options.verbs):
        raise UsageError("--rtt-ms, --loss and --verbs need at least one value each")
    for verb in options.verbs:
        if verb not in VERBS:
            raise UsageError(f"--verbs: there is no verb {verb!r}, but {', '.join(VERBS)}")
    if options.seconds <= 0 or min(options.batch, options.puts_in_flight, options.batches_in_flight) < 1:
        raise UsageError("--seconds, --batch and the requests in flight must be over 0")
    try:
        path = LinePath(
            delay_ms=max(options.rtt_ms) / 2,
            jitter_ms=options.jitter_ms,
            reorder_pct=options.reorder,
            mbit_per_s=options.mbit_per_s,
            queue_bytes=options.queue_kib * 1024,
        )
        for rtt_ms in options.rtt_ms:
            for loss_pct in options.loss:
                msgspec.structs.replace(path, delay_ms=rtt_ms / 2, loss_pct=loss_pct)
    except ValueError as error:
        raise UsageError(str(error)) from None
    load = Load(
        batch=options.batch,
        in_flight_puts=options.puts_in_flight,
        in_flight_batches=options.batches_in_flight,
        value_bytes=options.value_bytes,
        seconds=options.seconds,
        seed=options.seed,
    )
    return Question(
        rtts_ms=options.rtt_ms,
        losses_pct=options.loss,
        verbs=options.verbs,
        controls=options.controls,
        auto=options.auto,
        load=load,
        path=path,
    )


def run(options: commands.Wan) -> int:
    """Returns the exit code: 1 if requests failed. Raises UsageError and ServerError."""
    question = asked(options)
    if lacking := relay.missing():
        raise ServerError(lacking)
    controls = relay.congestion_controls()
    extra = [one for one in dict.fromkeys(question.controls) if one in controls and one != controls[0]]
    for name in question.controls:
        if name not in controls:
            output.say(f"TCP with {name} is left out: this kernel does not have it, but {', '.join(controls)}")
    directory = Path(tempfile.mkdtemp(prefix="metad-perf-", dir=disk_directory()))
    try:
        with relay.places(2, question.load.seed) as places:
            checked = check(places, delay_ms=_CHECKED_DELAY_MS, loss_pct=_CHECKED_LOSS_PCT)
            cells = _measure(question, places, directory, options.server_config, controls[0], extra)
            account = places.account()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    made = reported(
        options,
        {
            "rows": [cell.row() for cell in cells],
            "auto_share": auto_share(cells),
            "rule": RULE,
            "tcp": f"kernel TCP with {controls[0]}, this kernel's default, and TLS 1.3",
            "quic": "metad's QUIC over UDP",
            "congestion_controls": controls,
            "load": msgspec.to_builtins(question.load),
            "path": msgspec.to_builtins(question.path),
            "relay": checked
            | {
                "late_share": output.ratio(account.late, account.delivered),
                "late_us_mean": account.late_us_mean,
                "packets": account.delivered,
                "dropped": sum(one.dropped for one in account.counts.values()),
            },
        },
    )
    output.write_json(options.json, made)
    if options.report is not None:
        from .page import heatmap_page  # its pictures take half a second to import

        options.report.write_text(heatmap_page(cells, _setting(made), _words(made)))
    return _show(cells, made)


def _measure(
    question: Question, places: Places, directory: Path, config: Path | None, control: str, extra: Sequence[str]
) -> list[Cell]:
    server, at, options = served(places, directory, config)
    tcp_url, quic_url = f"metads://{at}", f"metadq://{at}"
    clients: list[WanClient] = []
    try:
        server.start()
        for _ in range(2 + len(extra) + question.auto):
            clients.append(WanClient(places.network.space(CLIENT)))
        wan = Wan(
            places,
            clients,
            question.load,
            tcp=Way(name=TCP, url=tcp_url, options=options, control=control),
            quic=Way(name=QUIC, url=quic_url, options=options),
            others=[Way(name=f"{TCP}_{one}", url=tcp_url, options=options, control=one) for one in extra],
            auto=Way(name="auto", url=f"metad+auto://{at}", options=options, control=control)
            if question.auto
            else None,
            base=question.path,
            epoch=epoch_now(),
        )
        cells = []
        asked = list(grid(question.rtts_ms, question.losses_pct, question.verbs))
        with output.progress("wan", len(asked)) as progress:
            for rtt_ms, loss_pct, verb in asked:
                cells.append(wan.cell(rtt_ms, loss_pct, verb))
                progress(1)
        server.stop()
        return cells
    finally:
        for client in clients:
            client.stop()
        server.kill()


def _show(cells: Sequence[Cell], made: dict[str, Any]) -> int:
    columns = ["verb", "RTT ms", "loss %"]
    columns += [f"{name} {what}" for name in ("TCP", "QUIC") for what in ("p50", "p99", "items/s")]
    rows = []
    for cell in cells:
        row: list[object] = [cell.verb, cell.rtt_ms, cell.loss_pct]
        for figures in (cell.tcp, cell.quic):
            row += [figures.p50_ms, figures.p99_ms, figures.items_per_s]
        rows.append([*row, cell.winner + (", even" if cell.even else ""), cell.auto or "-"])
    output.table("wan: ms by path", [*columns, "winner", "auto"], rows)
    failed = 0
    for cell in cells:
        for name, figures in ((TCP, cell.tcp), (QUIC, cell.quic), *cell.others.items()):
            failed += figures.failed
            if figures.failed:
                output.say(
                    f"{cell.verb} at {cell.rtt_ms:g} ms, {cell.loss_pct:g} %: {figures.failed:,} failed by {name}"
                )
    for word in _words(made):
        output.say(word)
    output.say(RULE)
    return 1 if failed else 0


def _words(made: dict[str, Any]) -> list[str]:
    load, relay = made["load"], made["relay"]
    words = [
        f"TCP is {made['tcp']}; QUIC is {made['quic']}. One client; puts: {load['in_flight_puts']} requests of one "
        f"item in flight; batches: {load['in_flight_batches']} requests of {load['batch']} items; values of "
        f"{load['value_bytes']} bytes; {load['seconds']:g} s measured per way and cell, twice that over "
        "long lossy paths.",
        f"The relay adds {relay['over_us_p50'] / 1e3:.2f} ms to a delay at the median and passes "
        f"{relay['packets_per_s']:,.0f} packets/s; asked to lose {relay['loss_pct']:g} % it lost "
        f"{relay['measured_loss_pct']:.2g} %.",
    ]
    if made["auto_share"] is not None:
        words.append(f"metad+auto:// chose the winner in {100 * made['auto_share']:.0f} % of the cells.")
    return words


def _setting(made: dict[str, Any]) -> dict[str, Any]:
    return {**made["setting"], **made["versions"], **{f"path: {key}": one for key, one in made["path"].items()}}
