"""``metad-perf wan``: where QUIC begins to win, by round-trip time and loss, and whether the SDK chooses right.

A node in one network namespace, a client in another, and between them the relay, which emulates the path for the
kernel's TCP and for our QUIC alike. TCP carries TLS, as QUIC does. Each cell is a path; table.py decides who wins it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..errors import ServerError, UsageError
from ..load.measure import epoch_now
from ..report import output
from ..spawn import disk_directory
from . import heatmap, network, relay_check
from .cells import CLIENT, VERBS, Load, Wan, Way, grid, served
from .client import WanClient
from .network import Places
from .relay_line import Path as LinePath
from .table import QUIC, RULE, TCP, Cell, auto_share

_CHECKED_DELAY_MS, _CHECKED_LOSS_PCT = 10.0, 1.0  # with which the relay itself is checked first


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """The cells, the other properties of the path, and the load. ``controls``: of TCP, besides the kernel's default."""

    rtts_ms: Sequence[float] = (1.0, 30.0, 100.0, 200.0)
    losses_pct: Sequence[float] = (0.0, 0.1, 1.0, 3.0)
    verbs: Sequence[str] = VERBS
    controls: Sequence[str] = ("bbr",)
    auto: bool = True
    load: Load = Load()
    path: LinePath = LinePath()

    def checked(self) -> Question:
        """This question. Raises UsageError."""
        if not (self.rtts_ms and self.losses_pct and self.verbs):
            raise UsageError("--rtt-ms, --loss and --verbs need at least one value each")
        for verb in self.verbs:
            if verb not in VERBS:
                raise UsageError(f"--verbs: there is no verb {verb!r}, but {', '.join(VERBS)}")
        try:
            for rtt_ms in self.rtts_ms:
                for loss_pct in self.losses_pct:
                    msgspec.structs.replace(self.path, delay_ms=rtt_ms / 2, loss_pct=loss_pct)
        except ValueError as error:
            raise UsageError(str(error)) from None
        if self.load.seconds <= 0 or min(self.load.batch, self.load.in_flight_puts, self.load.in_flight_batches) < 1:
            raise UsageError("--seconds, --batch and the requests in flight must be over 0")
        return self


def run(question: Question, *, config: Path | None, json: Path | None, page: Path | None) -> int:
    """Returns the exit code: 1 if requests failed."""
    question = question.checked()
    if lacking := network.missing():
        raise ServerError(lacking)
    controls = network.congestion_controls()
    extra = [one for one in dict.fromkeys(question.controls) if one in controls and one != controls[0]]
    for name in question.controls:
        if name not in controls:
            output.say(f"TCP with {name} is left out: this kernel does not have it, but {', '.join(controls)}")
    directory = Path(tempfile.mkdtemp(prefix="metad-perf-", dir=disk_directory()))
    try:
        with network.places(2, question.load.seed) as places:
            checked = relay_check.check(places, delay_ms=_CHECKED_DELAY_MS, loss_pct=_CHECKED_LOSS_PCT)
            cells = _measure(question, places, directory, config, controls[0], extra)
            account = places.account()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    made = output.rounded(
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
            "setting": output.machine(),
            "versions": output.versions(),
        }
    )
    output.write_json(json, made)
    if page is not None:
        page.write_text(heatmap.page(cells, _setting(made), _words(made)))
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
