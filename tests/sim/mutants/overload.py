"""Bugs to plant in what keeps a node in control while more is asked of it than it can do. Each names the scenarios of
:mod:`sim.nodes.scenarios` that find it."""

from __future__ import annotations

from .planting import Mutant
from .planting import one_edit as _m

OVERLOAD_MUTANTS: tuple[Mutant, ...] = (
    _m(
        "heartbeats_wait_with_the_records",
        "heartbeats of brokers wait for nothing that waits",
        "metad.node.requests.requests:Requests._begin",
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
        "metad.node.replicas.driver:Work.__init__",
        "self.lane = command.method.lane",
        "self.lane = Lane.RECORDS",
        "at_three_times_the_capacity_nobody_is_elected_fenced_or_expired",
    ),
    _m(
        "nobody_is_turned_away",
        "what would wait too long is turned away, not done too late",
        "metad.node.requests.requests:Requests._begin",
        "source is not None and driver.waiting_items >= FULL_ITEMS",
        "False",
        "at_three_times_the_capacity_nobody_is_elected_fenced_or_expired",
    ),
    Mutant(
        "a_stall_locks_everybody_out",
        "a rate that fell is learnt again, because so much may always wait",
        (
            (
                "metad_wire.policy.rates:QueueRate.left",
                "self.learn(self.items, lasted_s)",
                "self.per_s, self.measured = min(self.per_s, self.with_stretch(self.items, lasted_s)), True",
            ),
            (
                "metad_wire.policy.rates:Admission.bound",
                "bound = max(self.items_min, int(per_s * wait_s))",
                "bound = int(per_s * wait_s)",
            ),
            (
                "metad.node.requests.requests:Requests._begin",
                "driver.waiting_items >= FULL_ITEMS",
                "driver.waiting_items >= 0",
            ),
        ),
        ("after_a_stall_of_the_disk_as_much_is_done_as_before",),
    ),
    _m(
        "heartbeats_wait_in_the_inbox",
        "heartbeats pass what cannot begin on their own connection",
        "metad.server.connection:Connection._take_in",
        "frame.type != _REQUEST or frame.method in AHEAD",
        "frame.type != _REQUEST",
        "who_does_not_read_its_answers_is_heard_and_what_it_asked_too_long_ago_is_not_done",
    ),
    _m(
        "who_does_not_read_is_not_heard",
        "a connection is read although it reads nothing, for a little",
        "metad.server.connection:Connection._steer_reading",
        "reading &= self._inbox.held_bytes <= _UNREAD_BYTES and self._stalled_bytes <= _UNREAD_BYTES",
        "reading = False",
        "who_does_not_read_its_answers_is_heard_and_what_it_asked_too_long_ago_is_not_done",
    ),
    _m(
        "what_waited_too_long_is_done",
        "a request that could not begin in time is turned away",
        "metad_wire.policy.rates:Admission.is_late",
        "return waited_s > deadline_s / 2 or 0.0 < self.wait_max_s < waited_s",
        "return False",
        "who_does_not_read_its_answers_is_heard_and_what_it_asked_too_long_ago_is_not_done",
    ),
    _m(
        "a_request_is_as_old_as_the_last_chunk",
        "a request has the time at which it came",
        "metad.server.connection:Connection._slice",
        "self._handle(frame, came_s)",
        "self._handle(frame, arrived_s)",
        "who_does_not_read_its_answers_is_heard_and_what_it_asked_too_long_ago_is_not_done",
    ),
    _m(
        "what_is_given_up_is_done",
        "a cancel finds a request that has not begun",
        "metad.server.connection:Connection._handle",
        "self._inbox.discard(frame.request_id)",
        "False",
        "who_does_not_read_its_answers_is_heard_and_what_it_asked_too_long_ago_is_not_done",
    ),
    _m(
        "what_is_not_begun_has_no_bound",
        "what has come and is not begun is bounded",
        "metad_wire.policy.fair_room:FairRoom.has_room",
        "not self.held or",
        "True or",
        "a_flood_is_turned_away_at_its_bound_and_leaves_others_their_share",
    ),
    _m(
        "a_flood_takes_all_the_room",
        "a connection that holds less takes back what one that holds more can lend",
        "metad_wire.policy.fair_room:FairRoom._make_room",
        "self._lent < missing",
        "True",
        "a_flood_is_turned_away_at_its_bound_and_leaves_others_their_share",
    ),
)
