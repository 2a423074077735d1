"""Bugs to plant in what keeps a node in control while more is asked of it than it can do. Each names the scenarios of
:mod:`metad.testing.nodes.scenarios` that find it."""

from __future__ import annotations

from .planting import Mutant
from .planting import one_edit as _m

OVERLOAD_MUTANTS: tuple[Mutant, ...] = (
    _m(
        "heartbeats_wait_with_the_records",
        "heartbeats of brokers wait for nothing that waits",
        "metad.node.requests:Requests._begin",
        "if method.code in CONTROL:\n",
        "waits = max(each.wait_s(self._environment.now()) for each in self._groups.drivers.values())\n"
        "    if method.code in CONTROL and waits:\n"
        "        at_s = self._environment.now() + waits\n"
        "        self._environment.call_at(at_s, lambda: self._control(method, body, done, at_s, source))\n"
        "        return None\n"
        "    if method.code in CONTROL:\n",
        "at_three_times_the_capacity_nobody_is_elected_fenced_or_expired",
    ),
    _m(
        "fences_wait_with_the_records",
        "fences go before records",
        "metad.node.driver:Work.__init__",
        "self.lane = command.method.lane",
        "self.lane = Lane.RECORDS",
        "at_three_times_the_capacity_nobody_is_elected_fenced_or_expired",
    ),
    _m(
        "nobody_is_turned_away",
        "what would wait too long is turned away, not done too late",
        "metad.node.requests:Requests._begin",
        "source is not None and driver.waiting_items >= FULL_ITEMS",
        "False",
        "at_three_times_the_capacity_nobody_is_elected_fenced_or_expired",
    ),
    Mutant(
        "a_stall_locks_everybody_out",
        "a rate that fell is learnt again, because so much may always wait",
        (
            (
                "metad_wire.policy.queue_rate:QueueRate.left",
                "self.per_s, self.measured = self.estimate(now_s), True",
                "self.per_s, self.measured = min(self.per_s, self.estimate(now_s)), True",
            ),
            (
                "metad_wire.policy.admission:Admission.bound",
                "bound = max(self.items_min, int(per_s * wait_s))",
                "bound = int(per_s * wait_s)",
            ),
            ("metad.node.requests:Requests._begin", "driver.waiting_items >= FULL_ITEMS", "driver.waiting_items >= 0"),
        ),
        ("after_a_stall_of_the_disk_as_much_is_done_as_before",),
    ),
)
