"""One node's storm as a fluid: clients as masses that flow between cells, for sweeps and for a billion clients.

The mean field of :mod:`.vector`: the arrivals of a step are admitted in equal shares, wait equally long, and move on by
the policies' blocks (:mod:`.flows`). The cost depends on kinds, failures and steps, not on clients. A step must not be
longer than the shortest handshake: with longer ones retries meet a queue that is not the one they would have met, and
there are twice as many retries at ten times the length.

Approximations: a batch's linger delays answers and not arrivals; losses beyond two in a row count as two; an attempt is
counted when it reaches its broker; the first retry past a budget's burst is timed from the mean of those before it,
which with bursts over one may cost 2 % and more.
The clients' own waits are exact if the first attempt succeeds, and otherwise counted from the mean first attempt of the
clients that are told of the disconnect, which is too long for clients that learn of it late, and fail.

Here a node's input becomes arrays, and arrays become a result; the steps between are :mod:`.fluid_steps`.
"""

from __future__ import annotations

import math

import numpy as np

from . import fluid_steps, population
from .flows import Array, Cells, Ints
from .histogram import BINS, RATIO, TIME_MIN_S
from .node_input import FINE_POINTS, FINE_US, NodeInput
from .results import NodeResult
from .tally import capacity_by_s

STEP_US_MAX = 20_000
_LOSSES = 3
"""None, one, or two in a row."""
_LINE = 8
"""Numbers in a cache line, which a processor fetches at once."""


def step_us(node_input: NodeInput) -> int:
    """The length of a step."""
    nearest = min(node_input.round_trips[kind.transport] * node_input.rtt_us[kind.region] for kind in node_input.kinds)
    return max(1_000, min(STEP_US_MAX, nearest, node_input.timeout_us))


def simulate(node_input: NodeInput, seed: int) -> NodeResult:
    """Simulate the node's clients, on average. ``seed`` is not used: nothing is drawn."""
    return _Storm(node_input).run()


class _Storm:
    """A node's input as arrays."""

    def __init__(self, node_input: NodeInput) -> None:
        self._input = node_input
        self._step_us = float(step_us(node_input))
        self._kinds = sorted(node_input.kinds, key=lambda kind: kind.region)
        forth = np.array([node_input.forth_us(kind.region, kind.transport) for kind in self._kinds], dtype=np.float64)
        back = np.array([node_input.back_us(kind.region) for kind in self._kinds], dtype=np.float64)
        self._cells = Cells(node_input, self._kinds, ((forth + back) * 1e-6).tolist())
        self._forth_us, self._back_us = forth[self._cells.kind], back[self._cells.kind]
        shares = [population.loss_shares(node_input, kind.region, kind.transport) for kind in self._kinds]
        at_least = np.array([(1.0, *each[: _LOSSES - 1], 0.0) for each in shares]).T
        losses = _LOSSES if at_least[1].any() else 1
        self._loss_share = (at_least[:-1] - at_least[1:])[:losses, self._cells.kind]
        self._loss_us = np.array([float(population.loss_us(lost)) for lost in range(losses)])
        self._has_doors = bool(node_input.doors or node_input.in_flight_items)

    def run(self) -> NodeResult:
        """Run all steps and return the result."""
        rings, books = self._rings(), self._books()
        states = np.zeros(1, fluid_steps.STATE)
        states["slowdown"], states["down_until_us"] = 1.0, -1.0
        fluid_steps.run(
            self._setting(),
            self._node(),
            self._clients(),
            self._blocks(rings.steps),
            rings,
            self._doors(),
            self._scratch(),
            books,
            self._firsts(),
            states,
        )
        return self._result(books, {name: float(states[name][0]) for name in fluid_steps.STATE.names or ()})

    def _setting(self) -> fluid_steps.Setting:
        node_input, returns = self._input, self._input.returns
        return fluid_steps.Setting(
            clients=float(node_input.clients),
            steps=int(-(-node_input.horizon_us // self._step_us)),
            step_us=self._step_us,
            horizon_us=float(node_input.horizon_us),
            wave_us=float(node_input.wave_us),
            timeout_us=float(node_input.timeout_us),
            spread_us=float(node_input.spread_us),
            groups=float(node_input.groups),
            latency_us=float(node_input.latency_us),
            linger_us=float(node_input.window.linger_us),
            window_items=float(node_input.window.items_max),
            has_doors=self._has_doors,
            slot_interval_us=1e6 / returns.per_s / node_input.groups if returns is not None else 0.0,
            slot_wait_us=returns.wait_min_s * 1e6 if returns is not None else 0.0,
            slot_jitter_us=float(returns.jitter_us) if returns is not None else 0.0,
            fine_us=float(FINE_US),
            time_min_s=TIME_MIN_S,
            log_ratio=math.log(RATIO),
        )

    def _node(self) -> fluid_steps.Node:
        node_input = self._input
        outages = [(outage.at_us, outage.until_us, outage.slowdown) for outage in node_input.outages]
        return fluid_steps.Node(
            items_max=float(node_input.admission.items_max * node_input.groups)
            if node_input.admission.items_max
            else math.inf,
            batch_items=float(node_input.batch_items * node_input.groups),
            factor=sum(node_input.factors) / len(node_input.factors),
            fixed_us=node_input.turn_us + node_input.entry_us * node_input.groups,
            item_us=node_input.item_us,
            outages=np.array(outages, dtype=np.float64).reshape(len(outages), 3),
        )

    def _clients(self) -> fluid_steps.Clients:
        node_input = self._input
        is_first = np.zeros(self._cells.count)
        is_first[self._cells.first] = 1.0
        return fluid_steps.Clients(
            begin=self._cells.begin,
            is_first=is_first,
            forth_us=self._forth_us,
            back_us=self._back_us,
            loss_share=self._loss_share,
            loss_us=self._loss_us,
            patience_us=self._patience_us(),
            region_back_us=np.array(node_input.rtt_us, dtype=np.float64) / 2 + 2 * node_input.latency_us,
            lanes=np.array(node_input.brokers, dtype=np.float64) * node_input.groups,
        )

    def _blocks(self, steps: int) -> fluid_steps.Blocks:
        cells, half = self._cells, self._step_us / 2
        timeout_us = float(self._input.timeout_us) - self._loss_us[:, None] + np.full((1, cells.count), half)
        timeouts = [cells.places(each, self._step_us, steps) for each in timeout_us]
        left = [cells.places(each, self._step_us, steps) for each in timeout_us - self._door_steps() * self._step_us]
        return fluid_steps.Blocks(
            begin=cells.block,
            following=cells.following,
            told=cells.told,
            share=cells.share,
            low_us=cells.low_us,
            high_us=cells.high_us,
            refusal=cells.places(self._back_us + self._forth_us + half, self._step_us, steps),
            timeout=(np.stack([at for at, _ in timeouts]), np.stack([changes for _, changes in timeouts])),
            left=(np.stack([at for at, _ in left]), np.stack([changes for _, changes in left])),
        )

    def _patience_us(self) -> Array:
        """(losses, cell): the part of the timeout that is left for waiting."""
        patience_us: Array = self._input.timeout_us - self._forth_us - self._back_us - self._loss_us[:, None]
        return patience_us

    def _door_steps(self) -> Ints:
        """(losses, cell): whole steps that are longer than :meth:`_patience_us`."""
        return np.maximum(self._patience_us() // self._step_us + 1, 0).astype(np.int64)

    def _rings(self) -> fluid_steps.Rings:
        node_input, cells = self._input, self._cells.count
        longest_wait = (
            float(self._cells.high_us.max()) + node_input.timeout_us + float((self._forth_us + self._back_us).max())
        )
        longest_first = max(
            [node_input.spread_us, *(keepalive.keepalive_s * 1e6 for keepalive in node_input.keepalives)]
        )
        slots = 0.0
        if node_input.returns is not None:
            slots = (
                node_input.clients / node_input.groups / node_input.returns.per_s * 1e6 + node_input.horizon_us * 0.1
            )
        span = max(longest_wait, longest_first + float(self._forth_us.max())) + slots + 1e6
        steps = int(min(span, node_input.horizon_us + 2e6) / self._step_us) + 4
        # An odd number of lines, so that the cells' steps do not all fall on the same few places of a cache.
        wide = (-(-steps // _LINE) | 1) * _LINE
        losses = len(self._loss_us)
        door = self._door_rows()
        lost = int((self._loss_us[-1] + 1) / self._step_us) + 3
        return fluid_steps.Rings(
            steps=steps,
            change=np.zeros((cells, wide)),
            rate=np.zeros(cells),
            lost=np.zeros((losses - 1, lost, cells)),
            door=np.zeros((losses, door, cells)),
        )

    def _door_rows(self) -> int:
        """Steps that somebody may wait at a broker's door, and some more."""
        return int(self._input.timeout_us / self._step_us) + 3 if self._has_doors else 0

    def _doors(self) -> fluid_steps.Doors:
        node_input, regions = self._input, len(self._input.regions)
        any_number = [math.inf] * regions
        return fluid_steps.Doors(
            per_us=node_input.doors_per_s() * 1e-6 if node_input.doors else np.array(any_number)[:, None],
            in_flight=np.array(node_input.in_flight_items or any_number),
            patience=self._door_steps(),
            queue=np.zeros((self._door_rows(), regions)),
            head=np.zeros(regions, dtype=np.int64),
        )

    def _firsts(self) -> fluid_steps.Firsts:
        """Everybody's first attempt."""
        node_input = self._input
        widths = [(1.0 - node_input.silent_share, float(node_input.spread_us))]
        widths += [(node_input.silent_share * each.share, each.keepalive_s * 1e6) for each in node_input.keepalives]
        widths = [(share, width_us) for share, width_us in widths if share]
        clients = np.array([kind.clients for kind in self._kinds], dtype=np.float64)
        low_us = self._forth_us[self._cells.first]
        return fluid_steps.Firsts(
            cell=np.tile(self._cells.first, len(widths)),
            mass=np.concatenate([clients * share for share, _ in widths]),
            low_us=np.tile(low_us, len(widths)),
            high_us=np.concatenate([low_us + width_us for _, width_us in widths]),
        )

    def _scratch(self) -> fluid_steps.Scratch:
        cells, regions, losses = self._cells.count, len(self._input.regions), len(self._loss_us)
        return fluid_steps.Scratch(
            reached=np.zeros(cells),
            arriving=np.zeros((losses, cells)),
            gone=np.zeros(cells),
            refused=np.zeros(cells),
            cut_off=np.zeros(cells),
            late=np.zeros((losses, cells)),
            by_region=np.zeros(regions),
            linger_us=np.zeros(regions),
            kept_us=np.zeros(regions),
        )

    def _books(self) -> fluid_steps.Books:
        regions, seconds, waves = len(self._input.regions), self._input.seconds, self._input.waves
        return fluid_steps.Books(
            storm=np.zeros(BINS),
            own=np.zeros(BINS),
            restored_by_s=np.zeros((regions, seconds)),
            attempts_by_s=np.zeros((regions, seconds)),
            restored_fine=np.zeros((regions, FINE_POINTS)),
            attempts_fine=np.zeros((regions, FINE_POINTS)),
            served_fine=np.zeros(FINE_POINTS),
            rejected_by_s=np.zeros(seconds),
            served_by_s=np.zeros(seconds),
            queue_by_s=np.zeros(seconds),
            passed_by_s=np.zeros((regions, seconds)),
            held_s=np.zeros(waves),
            held=np.zeros(waves),
        )

    def _result(self, books: fluid_steps.Books, state: dict[str, float]) -> NodeResult:
        node_input = self._input
        return NodeResult(
            node=node_input.node,
            copies=node_input.copies,
            clients=float(node_input.clients),
            restored=state["restored"],
            attempts=float(books.attempts_by_s.sum()),
            rejected=state["rejected"],
            unheard=0.0,
            timeouts=state["timed_out"],
            left=state["left"],
            wasted=state["wasted"],
            queue_max=state["queue_max"],
            own_s_sum=state["own_s"],
            storm=books.storm,
            own=books.own,
            restored_by_s=books.restored_by_s,
            attempts_by_s=books.attempts_by_s,
            restored_fine=books.restored_fine,
            attempts_fine=books.attempts_fine,
            served_fine=books.served_fine,
            rejected_by_s=books.rejected_by_s,
            served_by_s=books.served_by_s,
            queue_by_s=books.queue_by_s,
            capacity_by_s=capacity_by_s(node_input),
            passed_by_s=books.passed_by_s,
            kept_max_s=state["kept_max_us"] * 1e-6,
            held_s=books.held_s,
            held=books.held,
            wave_s=node_input.wave_us * 1e-6,
        )
