"""One node's storm as a fluid: clients as masses that flow between cells, for sweeps and for a billion of them.

The mean field of :mod:`metad_spark.vector`: within a step, what arrives is admitted in equal shares, waits equally
long, and moves on by the policies' blocks (:mod:`metad_spark.flows`). The cost depends on kinds, failures and steps,
not on clients. A step must not be longer than the shortest handshake: with longer ones retries meet a queue that is not
the one they would have met, and there are twice as many of them at ten times the length.

What is approximate: a batch's linger delays answers and not arrivals; losses beyond two in a row count as two; the
first retry past a budget's burst is timed from the mean of those before it, which with bursts over one may cost 2 % and
more; and what clients waited themselves is exact where the first attempt succeeds, and otherwise counted from the mean
first attempt of those that are told, which says too much of those that learn late that they are cut off, and fail.
"""

from __future__ import annotations

import numpy as np

from . import population
from .cases import NodeCase
from .flows import Cells, Fixed, Flow, Line
from .histogram import BINS, bin_of
from .results import Array, NodeResult
from .tally import capacity_by_s

STEP_US_MAX = 20_000
_LOSSES = 3
"""None, one, or two in a row."""
_DONE_SHARE = 1e-7
_TURNS_MAX = 32
"""Turns of a step that are looked at one by one."""
_SECOND_US = 1_000_000


class _Admitted:
    """What became of the arrivals of a step at the leader."""

    __slots__ = ("share", "wait_us")

    def __init__(self, share: float, wait_us: float) -> None:
        self.share = share  # that was let in
        self.wait_us = wait_us  # on average, until its turn is over


class _Server:
    """The node: all groups alike, so one queue of their sum."""

    def __init__(self, case: NodeCase) -> None:
        self._case = case
        limit = case.admission.items_max
        self._limit = float(limit * case.groups) if limit else float("inf")
        self._batch = float(case.batch_items * case.groups)
        self._mean = sum(case.factors) / len(case.factors)
        self.waiting = 0.0
        self.free_us = 0.0
        self._slowdown = 1.0
        self._outages = list(case.outages)
        self.down_until_us = -1.0
        self.served: list[tuple[float, float]] = []  # time, items; of turns begun in the step
        self.most = 0.0

    def turn_us(self, items: float) -> float:
        case = self._case
        length = case.turn_us + case.entry_us * case.groups + case.item_us * items
        return max(1.0, self._mean * self._slowdown * length)

    def step(self, from_us: float, until_us: float, arriving: float) -> _Admitted:
        """Take the turns of a step in which so much arrives, evenly."""
        self.served.clear()
        self.most = self.waiting
        for outage in list(self._outages):
            if outage.at_us < until_us:
                self.waiting, self.free_us = 0.0, float(outage.until_us)
                self.down_until_us, self._slowdown = float(outage.until_us), self._slowdown * outage.slowdown
                self._outages.remove(outage)
        if from_us < self.down_until_us:
            # To the step: an outage is long, and what arrives in its last step will come again.
            return _Admitted(0.0, 0.0)
        rate = arriving / (until_us - from_us)
        now, admitted, waited = from_us, 0.0, 0.0
        for _ in range(_TURNS_MAX):
            start = max(self.free_us, now)
            if start >= until_us or (self.waiting + arriving - admitted) <= 1e-12:
                break
            if self.waiting <= 0.0:
                # Idle: the first item starts a turn.
                start = min(until_us, start + (1.0 / rate if rate > 0 else until_us))
                if start >= until_us:
                    break
            share, wait = self._admit(now, start, rate)
            admitted += share
            waited += wait
            items = min(self._batch, self.waiting)
            self.most = max(self.most, self.waiting)
            self.waiting -= items
            self.free_us = start + self.turn_us(items)
            self.served.append((self.free_us, items))
            now = start
        share, wait = self._admit(now, until_us, rate)
        admitted += share
        waited += wait
        self.most = max(self.most, self.waiting)
        return _Admitted(admitted / arriving if arriving > 0 else 1.0, waited / admitted if admitted > 0 else 0.0)

    def _admit(self, from_us: float, until_us: float, rate: float) -> tuple[float, float]:
        """Let in what there is room for of what arrives in between: how much, and its waits added up."""
        arriving = rate * (until_us - from_us)
        if arriving <= 0.0:
            return 0.0, 0.0
        admitted = min(arriving, max(0.0, self._limit - self.waiting))
        if admitted <= 0.0:
            return 0.0, 0.0
        middle_us = from_us + 0.5 * admitted / rate
        ahead = self.waiting + 0.5 * admitted
        self.waiting += admitted
        turns = max(1.0, ahead / self._batch + 0.5)
        length = self.turn_us(min(self._batch, max(self.waiting, 1.0)))
        return admitted, admitted * (max(0.0, self.free_us - middle_us) + turns * length)


class _Fluid:
    def __init__(self, case: NodeCase) -> None:
        self.case = case
        self.step_us = float(step_us(case))
        kinds = case.kinds
        forth = np.array([case.forth_us(kind.region, kind.transport) for kind in kinds], dtype=np.float64)
        back = np.array([case.back_us(kind.region) for kind in kinds], dtype=np.float64)
        self.cells = cells = Cells(case, [float(f + b) * 1e-6 for f, b in zip(forth, back, strict=True)])
        self.forth_us, self.back_us = forth[cells.kind], back[cells.kind]
        self.region_of = np.zeros((len(case.regions), cells.count))
        self.region_of[cells.region, np.arange(cells.count)] = 1.0
        losses = [population.loss_shares(case, kind.region, kind.transport) for kind in kinds]
        at_least = np.array([(1.0, *shares[: _LOSSES - 1], 0.0) for shares in losses]).T
        self.losses = _LOSSES if at_least[1].any() else 1
        self.loss_share = (at_least[:-1] - at_least[1:])[:, cells.kind]
        self.loss_us = [float(population.loss_us(lost)) for lost in range(_LOSSES)]
        delays = np.array(case.delays_us, dtype=np.float64) if case.delays_us else None
        self.delays = delays if delays is not None and delays.max() > 0 else None
        longest_delay = float(self.delays.max()) if self.delays is not None else 0.0
        self.doors: Array | None = None
        if case.doors_per_s and not case.delays_us:
            self.doors = np.array(case.doors_per_s) * 1e-6
            self.in_flight = np.array(case.in_flight_items)
            longest_delay = float(case.timeout_us)
        self.at_doors = np.zeros(len(case.regions))
        self.open_us = self.doors  # what the brokers pass on in a microsecond, now
        longest_wait = float(cells.high_us.max()) + case.timeout_us + float((self.forth_us + self.back_us).max())
        longest_first = max([case.spread_us, *(keepalive.keepalive_s * 1e6 for keepalive in case.keepalives)])
        slots = 0.0
        if case.returns is not None:
            slots = case.clients / case.groups / case.returns.per_s * 1e6 + case.horizon_us * 0.1
        span = max(longest_wait, longest_first + float(self.forth_us.max())) + slots + 1e6
        self.flow = Flow(cells.count, self.step_us, min(span, case.horizon_us + 2e6))
        self.lanes = [Line(cells.count, self.step_us, self.loss_us[lost] + 1) for lost in range(1, self.losses)]
        self.answer_us = 0.0
        self.door = (
            [Line(cells.count, self.step_us, longest_delay) for _ in range(self.losses)] if longest_delay else []
        )
        self.kept = Line(len(case.regions), self.step_us, longest_delay) if longest_delay else None
        self.refusals = Fixed(self.flow, cells, self.back_us + self.forth_us + self.step_us / 2)
        timeout = np.full(cells.count, float(case.timeout_us)) + self.step_us / 2
        self.timeouts = [Fixed(self.flow, cells, timeout - self.loss_us[lost]) for lost in range(self.losses)]
        self.server = _Server(case)
        self.slot_us = 0.0
        patience = case.timeout_us - self.forth_us - self.back_us
        self.patience_us = [patience - self.loss_us[lost] for lost in range(self.losses)]
        self.is_late = [patience_us < 0 for patience_us in self.patience_us]
        self.any_late = [bool(late.any()) for late in self.is_late]
        self.is_first = np.zeros(cells.count)
        self.is_first[cells.first] = 1.0
        self._counters()

    def _counters(self) -> None:
        case, regions = self.case, len(self.case.regions)
        self.restored = self.rejected = self.timed_out = self.wasted = self.queue_max = self.own_s = 0.0
        self.storm, self.own = np.zeros(BINS), np.zeros(BINS)
        self.restored_by_s, self.attempts_by_s = np.zeros((regions, case.seconds)), np.zeros((regions, case.seconds))
        self.rejected_by_s, self.served_by_s = np.zeros(case.seconds), np.zeros(case.seconds)
        self.queue_by_s = np.zeros(case.seconds)
        self.knocks = np.zeros((regions, case.waves))
        self.held_s, self.held = np.zeros(case.waves), np.zeros(case.waves)
        region = np.array([case.rtt_us[at] for at in range(regions)], dtype=np.float64)
        self.region_back_us = region / 2 + 2 * case.latency_us
        self.lanes_of = np.array(case.brokers, dtype=np.float64) * case.groups

    def begin(self) -> None:
        """Everybody's first attempt."""
        case, cells = self.case, self.cells
        clients = np.array([kind.clients for kind in case.kinds], dtype=np.float64)
        forth = self.forth_us[cells.first]
        widths = [(1.0 - case.silent_share, float(case.spread_us))]
        widths += [(case.silent_share * each.share, each.keepalive_s * 1e6) for each in case.keepalives]
        for share, width in widths:
            if share:
                self.flow.add(cells.first, clients * share, forth, forth + width)

    def run(self) -> NodeResult:
        case = self.case
        self.begin()
        steps, clients = int(-(-case.horizon_us // self.step_us)), case.clients
        for step in range(steps):
            self.step(step * self.step_us)
            if clients - self.restored <= _DONE_SHARE * clients:
                break
        return self.result()

    def step(self, now: float) -> None:
        case = self.case
        second = min(int(now // _SECOND_US), case.seconds - 1)
        wave = min(int(now // case.wave_us), case.waves - 1)
        reached = self.flow.coming()
        by_region = self.region_of @ reached
        self.attempts_by_s[:, second] += by_region
        self.knocks[:, wave] += by_region
        if self.doors is not None:
            # They wait for answers as those do who were admitted last.
            taking_us = max(1.0, self.answer_us + 2 * case.latency_us)
            self.open_us = np.minimum(self.doors, self.in_flight / taking_us)
            self._knock(by_region, self.open_us)
        arriving, delay = self._arriving(reached, now)
        total = float(sum(float(mass.sum()) for mass in arriving))
        linger = self._linger_us(by_region)
        admitted = self.server.step(now, now + self.step_us, total)
        if admitted.wait_us > 0.0:
            self.answer_us = admitted.wait_us
        for at_us, items in self.server.served:
            if at_us < case.horizon_us:
                self.served_by_s[int(at_us // _SECOND_US)] += items
        most = self.server.most / case.groups
        self.queue_by_s[second] = max(self.queue_by_s[second], most)
        self.queue_max = max(self.queue_max, most)
        if total > 0.0:
            self._settle(arriving, total, delay, admitted, linger, now, second, wave)
        self.flow.advance()

    def _arriving(self, reached: Array, now: float) -> tuple[list[Array], Array]:
        """What arrives at the leader in this step, by losses, and how long each region's brokers kept it."""
        regions = len(self.case.regions)
        by_loss: list[Array] = []
        for lost in range(self.losses):
            mass = reached * self.loss_share[lost] if self.losses > 1 else reached
            # Those that cannot be answered in time are gone before their broker would send them on.
            late, any_late = self.is_late[lost], self.any_late[lost]
            if self.kept is not None:
                delay = self._delay_us(now + self.loss_us[lost])[self.cells.region]
                late = delay > self.patience_us[lost]
                any_late = bool(late.any())
            if any_late:
                gone = np.where(late, mass, 0.0)
                self.timed_out += float(gone.sum())
                self.timeouts[0].add(gone)
                mass = np.where(late, 0.0, mass)
            if lost:
                line = self.lanes[lost - 1]
                line.add(mass, self.loss_us[lost])
                mass = line.coming()
            by_loss.append(mass)
        if self.kept is None:
            return by_loss, np.zeros(regions)
        delay_us = self._delay_us(now)
        by_cell = delay_us[self.cells.region]
        knocking = self.region_of @ np.sum(by_loss, axis=0)
        self.kept.add(knocking * delay_us, delay_us)
        through: list[Array] = []
        for line, mass in zip(self.door, by_loss, strict=True):
            line.add(mass, by_cell)
            through.append(line.coming())
        arrived = self.region_of @ np.sum(through, axis=0)
        kept = self.kept.coming()
        return through, np.divide(kept, arrived, out=np.zeros(regions), where=arrived > 1e-9)

    def _knock(self, by_region: Array, doors: Array) -> None:
        """Who comes to a busy broker's door waits there, not longer than its patience, gone or not."""
        after = self.at_doors + by_region - doors * self.step_us
        self.at_doors = np.clip(after, 0.0, doors * self.case.timeout_us)

    def _delay_us(self, at_us: float) -> Array:
        if self.doors is not None:
            assert self.open_us is not None
            return self.at_doors / self.open_us  # of who knocks later than now: as if it knocked now
        if self.delays is None:
            return np.zeros(len(self.case.regions))
        place = at_us / self.case.wave_us
        at = min(int(place), self.delays.shape[1] - 1)
        following = min(at + 1, self.delays.shape[1] - 1)
        delays: Array = self.delays[:, at] + (self.delays[:, following] - self.delays[:, at]) * (place - int(place))
        return delays

    def _linger_us(self, by_region: Array) -> Array:
        """How long a client waits for company, on average, in each region."""
        case = self.case
        if not case.window.linger_us:
            return np.zeros(len(by_region))
        rate = by_region / self.lanes_of / self.step_us
        window = np.minimum(case.window.linger_us, (case.window.items_max - 1) / np.maximum(rate, 1e-12))
        linger: Array = window * (1 + rate * window / 2) / (1 + rate * window)
        return linger

    def _settle(
        self,
        arriving: list[Array],
        total: float,
        delay_us: Array,
        admitted: _Admitted,
        linger_us: Array,
        now: float,
        second: int,
        wave: int,
    ) -> None:
        """Who is back, who is refused and who gives up, of what arrived in this step."""
        cells = self.cells
        middle = now + self.step_us / 2
        wait = admitted.wait_us
        cut = self._cut_by_us(middle, wait)
        held = admitted.share * total
        self.held[wave] += held
        self.held_s[wave] += held * wait * 1e-6
        refused = np.zeros(cells.count)
        cut_off = np.zeros(cells.count)
        back = np.zeros(cells.count)
        way_us = np.zeros(
            len(self.case.regions)
        )  # of those who are back at their first attempt, to the broker, added up
        used_us = (linger_us + delay_us)[cells.region] + (wait if cut is None else cut)
        for lost, mass in enumerate(arriving):
            let_in = mass * admitted.share
            refused += mass - let_in
            in_time = used_us <= self.patience_us[lost]
            if cut is None:
                answered = np.where(in_time, let_in, 0.0)
                back += answered
                way_us += self.region_of @ (answered * self.is_first * (self.forth_us + self.loss_us[lost]))
            else:
                cut_off += np.where(in_time, let_in, 0.0)
            if not in_time.all():
                late = np.where(in_time, 0.0, let_in)
                gone = float(late.sum())
                if gone > 0.0:
                    self.timed_out += gone
                    if cut is None:
                        self.wasted += gone
                    self._time_out(late, lost, delay_us)
        if float(back.sum()) > 0.0:
            answer_us = linger_us + wait + self.region_back_us
            by_region, at_once = self.region_of @ back, self.region_of @ (back * self.is_first)
            self._succeed(by_region, middle + answer_us)
            way_us = np.divide(way_us, at_once, out=way_us, where=at_once > 0)
            self._waited(at_once, (way_us + delay_us + answer_us) * 1e-6)
            told_s = min(self.case.spread_us, middle) / 2e6
            self._waited(by_region - at_once, (middle + answer_us) * 1e-6 - told_s)
        self._refuse(refused, second, middle, 0.0)
        if cut is not None:
            self._refuse(cut_off, second, middle, cut)

    def _cut_by_us(self, now: float, wait_us: float) -> float | None:
        """How long until the node dies, where that is before what arrives now is served."""
        for outage in self.case.outages:
            if now < outage.at_us < now + wait_us:
                return outage.at_us - now
        return None

    def _time_out(self, late: Array, lost: int, delay_us: Array) -> None:
        if not delay_us.any():
            self.timeouts[lost].add(late)
            return
        cells = self.cells
        offset = self.case.timeout_us + self.step_us / 2 - self.loss_us[lost] - delay_us[cells.region]
        offset = offset[cells.source]
        self.flow.add(cells.following, late[cells.source] * cells.share, cells.low_us + offset, cells.high_us + offset)

    def _succeed(self, by_region: Array, at_us: Array) -> None:
        """Restored clients by region, and when they hear of it."""
        case = self.case
        self.restored += float(by_region.sum())
        at_s = at_us * 1e-6
        np.add.at(self.storm, bin_of(at_s), by_region)
        second = np.minimum(at_s.astype(np.int64), case.seconds - 1)
        self.restored_by_s[np.arange(len(by_region)), second] += by_region

    def _waited(self, by_region: Array, own_s: Array) -> None:
        """How long restored clients waited themselves, by region."""
        own_s = np.maximum(own_s, 1e-3)
        np.add.at(self.own, bin_of(own_s), by_region)
        self.own_s += float(by_region @ own_s)

    def _refuse(self, refused: Array, second: int, middle: float, after_us: float) -> None:
        """Refused in this step, or, where the node dies, after a while."""
        total = float(refused.sum())
        if total <= 0.0:
            return
        self.rejected += total
        self.rejected_by_s[second] += total
        case, cells = self.case, self.cells
        if case.returns is not None:
            interval = 1e6 / case.returns.per_s / case.groups
            first = max(self.slot_us, middle + after_us + case.returns.wait_min_s * 1e6)
            self.slot_us = first + total * interval
            offset = self.step_us / 2 + (self.back_us + self.forth_us) - middle
            jitter = float(case.returns.jitter_us)
            following = np.arange(cells.count)
            self.flow.add(following, refused, first + offset - jitter, self.slot_us + offset + jitter)
        elif after_us:
            waiting = (self.back_us + self.forth_us + self.step_us / 2 + after_us)[cells.source]
            mass = refused[cells.source] * cells.share
            self.flow.add(cells.following, mass, cells.low_us + waiting, cells.high_us + waiting)
        else:
            self.refusals.add(refused)

    def result(self) -> NodeResult:
        """What became of the node's clients."""
        case = self.case
        return NodeResult(
            node=case.node,
            copies=case.copies,
            clients=float(case.clients),
            restored=self.restored,
            attempts=float(self.attempts_by_s.sum()),
            rejected=self.rejected,
            timeouts=self.timed_out,
            wasted=self.wasted,
            queue_max=self.queue_max,
            own_s_sum=self.own_s,
            storm=self.storm,
            own=self.own,
            restored_by_s=self.restored_by_s,
            attempts_by_s=self.attempts_by_s,
            rejected_by_s=self.rejected_by_s,
            served_by_s=self.served_by_s,
            queue_by_s=self.queue_by_s,
            capacity_by_s=capacity_by_s(case),
            knocks=self.knocks,
            held_s=self.held_s,
            held=self.held,
            wave_s=case.wave_us * 1e-6,
        )


def step_us(case: NodeCase) -> int:
    """How long a step is."""
    nearest = min(case.round_trips[kind.transport] * case.rtt_us[kind.region] for kind in case.kinds)
    return max(1_000, min(STEP_US_MAX, nearest, case.timeout_us))


def simulate(case: NodeCase, seed: int) -> NodeResult:
    """What becomes of the node's clients, on average. ``seed`` is not used: nothing is drawn."""
    return _Fluid(case).run()
