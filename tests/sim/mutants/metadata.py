"""Bugs to plant where metadata-0 is one of several groups of its kind, and the only one of another nature. Each names
the scenarios of :mod:`sim.nodes.scenarios` that find it."""

from __future__ import annotations

from .planting import Mutant
from .planting import one_edit as _m

METADATA_MUTANTS: tuple[Mutant, ...] = (
    _m(
        "metadata_0_is_made_with_all_slots",
        "the first map says which slots metadata-0 is made with",
        "metad.state.cluster.cluster:_evaluate_store",
        "and formed.initial_slots:",
        "and False:",
        "metadata_0_has_the_slots_of_the_first_map_and_no_record_before",
    ),
    _m(
        "metadata_0_takes_records_before_there_is_a_map",
        "metadata-0 takes no record before it knows which slots it is made with",
        "metad.node.replicas.groups:Groups.named",
        "if self.map is None:",
        "if False:",
        "metadata_0_has_the_slots_of_the_first_map_and_no_record_before",
    ),
    _m(
        "slots_on_their_way_hold_up_what_is_in_none",
        "what is in no slot is read while slots are sealed",
        "metad.node.requests.reads:Reads._read",
        "if verb.table.moves:",
        "if True:",
        "what_is_in_no_slot_is_read_and_written_while_slots_of_metadata_0_are_sealed",
    ),
    _m(
        "the_first_slots_move",
        "slot 0 of kind metadata never leaves metadata-0: watches read what is in no slot where they read that one",
        "metad_wire.policy.slots:even_moves",
        "held[group][wanted[group] :]",
        "held[group][: max(0, len(held[group]) - wanted[group])]",
        "an_image_of_brokers_over_a_gap_in_another_group_of_kind_metadata",
    ),
    _m(
        "slots_of_kind_metadata_stay",
        "a rebalance spreads the slots of every kind",
        "metad.control.map.decisions:rebalance",
        "for kind in GROUP_KINDS:",
        "for kind in GROUP_KINDS[1:]:",
        "what_is_in_no_slot_is_told_while_slots_of_kind_metadata_move",
    ),
)
