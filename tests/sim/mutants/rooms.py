"""Bugs to plant in what nodes do about disks that are short of room."""

from __future__ import annotations

from .planting import Mutant
from .planting import one_edit as _m

ROOM_MUTANTS: tuple[Mutant, ...] = (
    _m(
        "leader_without_room_leads_on",
        "a leader that is short of room hands over to who is not",
        "metad.node.node:Node._led_in_vain",
        "group.should_leave",
        "False",
        "leader_without_room_hands_over",
    ),
    _m(
        "preferred_leader_without_room",
        "a group is not given back to a node that is short of room",
        "metad.control.controller:Controller._keep",
        "to not in group.short_of_room() and ",
        "",
        "leader_without_room_hands_over",
    ),
    _m(
        "what_grows_is_taken_without_room",
        "what grows is refused without a quorum of disks with room",
        "metad.node.replicas.driver:GroupDriver._take",
        "no_room and self.machine.grows(command, work.identity)",
        "False",
        "what_grows_waits_for_a_quorum_of_disks_with_room",
    ),
    _m(
        "deletes_are_refused_without_room",
        "what makes room is never refused for want of it",
        "metad.node.replicas.driver:GroupDriver._take",
        "no_room and self.machine.grows(command, work.identity)",
        "no_room",
        "what_grows_waits_for_a_quorum_of_disks_with_room",
    ),
    _m(
        "a_follower_does_not_say_how_its_disk_is",
        "a leader hears how its followers' disks are",
        "follower:Follower._reply",
        "self._host.shortage()",
        "0",
        "what_grows_waits_for_a_quorum_of_disks_with_room",
    ),
)
