"""Bugs to plant in assignment: in what a group decides, in what it accepts, in what brokers do, and in how fences come
along. Each names the world of :mod:`sim.assignment.worlds` in which it is found."""

from __future__ import annotations

from .planting import Mutant
from .planting import one_edit as _m

_DECIDE = "metad.state.assignment.decide:"
_RULES = "metad.state.assignment.rules:"
_FENCES = "metad.state.cluster.fences:Fences."
_HELPER = "metad_client.assignment.in_sync:InSyncReplicas."
_BROKER = "sim.assignment.broker:"
_WORLD = "sim.assignment.in_sync:"
_POSITION = "sim.assignment.position:"
_MOVING = "sim.assignment.moving:"

IN_SYNC_MUTANTS: tuple[Mutant, ...] = (
    # --- what a group knows of lives
    Mutant(
        "unclean_lost",
        "what began unclean stays known when the next life is registered",
        (
            (_WORLD + "registered", "life if unclean else said[2]", "life if unclean else 0"),
            (
                "metad_wire.cluster:FenceItem.merged",
                "max(self.unclean_epoch, other.unclean_epoch)",
                "newer.unclean_epoch",
            ),
        ),
        ("elr",),
    ),
    _m(
        "isr_by_name",
        "who is in sync is a life, not a broker",
        _DECIDE + "is_alive",
        "lives.life(member.broker) == member.broker_epoch",
        "lives.life(member.broker) is not None",
        "ack",
    ),
    _m(
        "leader_by_name",
        "a broker leads only if the record names its own life",
        _BROKER + "leads",
        "row.leader == me",
        "row.leader is not None and row.leader[0] == me[0]",
        "ack",
    ),
    _m(
        "member_unchecked",
        "all who are proposed are alive by the group's own fences",
        _RULES + "in_sync",
        "if not is_alive(other, lives)]",
        "if False]",
        "ack",
    ),
    _m(
        "life_from_registry",
        "a leader proposes the life with which a follower fetches",
        _BROKER + "life_of",
        "return life",
        "return registered",
        "life",
    ),
    # --- what is evaluated
    _m(
        "cas_only",
        "a decision is made by the fences at its entry",
        _WORLD + "judged_by",
        "return state.fences[state.slot.group]",
        "return state.fences[state.slot.group] if state.asked is None else state.asked[2]",
        "stale",
    ),
    _m(
        "no_cas",
        "a proposal is for the newest record",
        _RULES + "in_sync",
        "item.partition_epoch != p.partition_epoch",
        "False",
        "elected",
    ),
    Mutant(
        "fenced_proposer",
        "a life that is over proposes nothing",
        (
            (_RULES + "_member", "if lives.life(item.broker) != item.broker_epoch:", "if False:"),
            (
                _RULES + "in_sync",
                "if not is_alive(other, lives)]",
                "if not is_alive(other, lives) and other != member]",
            ),
        ),
        ("ack",),
    ),
    # --- the high watermark
    _m(
        "high_below_min",
        "nothing is acknowledged while fewer than min_isr are in sync",
        _HELPER + "_advance",
        "if self.is_enough:",
        "if True:",
        "isr",
    ),
    _m(
        "min_counts_proposed",
        "those who are only proposed do not count for min_isr",
        _HELPER + "_advance",
        "if self.is_enough:",
        "if len(self.waited_for) >= self.record.min_isr:",
        "isr",
    ),
    _m(
        "shrink_at_once",
        "who is proposed to leave is waited for until the outcome is known",
        _HELPER + "waited_for",
        "return self.isr | self._doubted | {member.broker for member in self._pending}",
        "return self._doubted | ({member.broker for member in self._pending} or self.isr)",
        "ack",
    ),
    _m(
        "grow_not_counted",
        "who is proposed to come is waited for from then on",
        _HELPER + "waited_for",
        "return self.isr | self._doubted | {member.broker for member in self._pending}",
        "return self.isr",
        "elected",
    ),
    _m(
        "join_below_start",
        "who comes has all from before the leader_epoch",
        _HELPER + "proposal",
        "max(self.high_watermark, self.start)",
        "self.high_watermark",
        "begun",
    ),
    _m(
        "pend_dropped",
        "an answer that does not come is no outcome",
        _HELPER + "doubted",
        "self._doubted |= {member.broker for member in self._pending}",
        "pass",
        "elected",
    ),
    _m(
        "fetch_any_epoch",
        "a follower takes the records of its record's leader_epoch only",
        _BROKER + "may_fetch",
        "return named is not None and named[0] == leader and leader_epoch == leading.leader_epoch",
        "return True",
        "elected",
    ),
    _m(
        "asks_again",
        "a follower that is not eligible is proposed again only once it has fetched again",
        _HELPER + "refused",
        "if ineligible:",
        "if False:",
        "added",
    ),
    # --- eligible leaders
    _m(
        "elr_kept",
        "nobody is eligible besides those in sync while these are enough",
        _DECIDE + "eligible",
        "        return []",
        "        left = ()",
        "isr",
    ),
    _m(
        "elr_any",
        "who leaves while enough remain is not eligible",
        _DECIDE + "eligible",
        "if len(isr) >= min_isr:",
        "if False:",
        "ack",
    ),
    _m(
        "elr_unclean",
        "who began unclean is not eligible",
        _DECIDE + "eligible",
        "and lives.clean(member.broker, member.broker_epoch)",
        "",
        "elr",
    ),
    _m(
        "last_dropped",
        "who leaves last stays eligible",
        _DECIDE + "eligible",
        "for member in left)",
        "for member in ())",
        "ack",
    ),
    Mutant(
        "min_apart",
        "those that are eligible change with min_isr",
        ((_DECIDE + "follow", "eligible(p, lives, (), p.isr, p.elr, r.min_isr)", "p.elr"),),
        ("lower",),
    ),
    # --- moves of a partition
    _m(
        "early_switch",
        "a move ends once those that are added are in sync",
        _DECIDE + "end_move",
        "keep = [member for member in p.isr if member.broker in to]",
        "keep = [Owner(one, life) for one in to if (life := lives.life(one)) is not None]",
        "plan",
    ),
    _m(
        "switch_below_min",
        "a move ends with min_isr in sync",
        _DECIDE + "move_may_end",
        " and len(keep) >= p.min_isr",
        "",
        "plan2",
    ),
    _m(
        "cancel_drops",
        "a move is cancelled once enough of those before are in sync",
        _DECIDE + "move_may_end",
        "return len(keep) >= min(p.min_isr, len(move.original))",
        "return True",
        "plan2",
    ),
    # --- moves of a slot
    _m(
        "no_rescan",
        "a group goes through the records that come to it",
        _MOVING + "came",
        "Slot(group, None, True)",
        "Slot(group, None, False)",
        "move",
    ),
    _m(
        "adopt_no_fences",
        "an adoption carries fences",
        _MOVING + "may_adopt",
        "move.fences is not None",
        "True",
        "move",
    ),
    _m(
        "open_fences",
        "the fences that are carried are those after the seal",
        _MOVING + "opened",
        "Move(source, target, None)",
        "Move(source, target, fences)",
        "move",
    ),
    _m(
        "adopt_overwrites",
        "fences that come are merged with those that are there",
        _MOVING + "adopted",
        "merged(old, new)",
        "new",
        "move",
    ),
)

OWNER_MUTANTS: tuple[Mutant, ...] = (
    _m(
        "fence_is_quiet",
        "an owner that is fenced may serve still; one that is quiet does not",
        _DECIDE + "_owner",
        "owner is not None and not lives.quiet(owner.broker, owner.broker_epoch)",
        "is_alive(owner, lives)",
        "owner",
    ),
    _m(
        "releasing_is_free",
        "an owner that is to stop is waited for",
        _DECIDE + "_owner",
        "owner is not None and not lives.quiet(owner.broker, owner.broker_epoch)",
        "owner is not None and not lives.quiet(owner.broker, owner.broker_epoch) and p.state != a.RELEASING",
        "owner",
    ),
    _m(
        "immediate",
        "another broker owns it only once the owner has stopped",
        _RULES + "_hand_over",
        "if p.leader is None:",
        "if True:",
        "owner",
    ),
    _m(
        "life_in_place",
        "the next life of the same broker is another owner",
        _DECIDE + "_owner",
        "return None\n    able",
        "life = lives.life(owner.broker)\n"
        "        if life in (None, owner.broker_epoch):\n"
        "            return None\n"
        "        new = Owner(owner.broker, life)\n"
        '        return change(p, now, "in place", leader=new, leader_epoch=p.leader_epoch, isr=[new])\n'
        "    able",
        "owner",
    ),
    _m(
        "release_any_epoch",
        "a release is for one leader_epoch",
        _RULES + "release",
        "_leads(p, Owner(item.broker, item.broker_epoch), item.leader_epoch)",
        "_leads(p, Owner(item.broker, item.broker_epoch), p.leader_epoch)",
        "back and forth",
    ),
    _m(
        "cancel_keeps_epoch",
        "a release on its way does not free an owner that serves again",
        _DECIDE + "owned_by",
        "leader_epoch=p.leader_epoch + 1",
        "leader_epoch=p.leader_epoch + (p.leader != owner)",
        "back and forth",
    ),
    _m(
        "both_sets_stay",
        "a hand-over that is given up leaves the replicas that there were",
        _DECIDE + "owned_by",
        "p.move.wanted if broker in p.move.wanted else p.move.original",
        "p.move.wanted if broker in p.move.wanted else p.replicas",
        "back and forth",
    ),
)

POSITION_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "untagged",
        "a position is reported for one leader_epoch",
        (
            (_DECIDE + "_position", "reports=[],", "reports=p.reports,"),
            (_DECIDE + "_positioned", "reports=[],", "reports=p.reports,"),
            (_RULES + "report", "if p.state != a.ELECTING:", "if False:"),
            (_RULES + "report", "_same_epoch(p, item.leader_epoch)", "pass"),
            (_POSITION + "reports", "row.state == a.ELECTING and process.promised == row.leader_epoch", "True"),
        ),
        ("two copies",),
    ),
    _m(
        "length_only",
        "the epoch of the last record counts before the length",
        _DECIDE + "_positioned",
        "best = max((report.last_epoch, report.length) for report in reports)",
        "best = max(((r.last_epoch, r.length) for r in reports), key=lambda one: one[1])",
        "twice",
    ),
    _m(
        "no_promise",
        "who has reported takes nothing of a lower leader_epoch",
        _POSITION + "takes",
        "process.promised <= leader_epoch",
        "True",
        "two copies",
    ),
    _m(
        "too_few",
        "so many report that one of them has every acknowledged record",
        _DECIDE + "needed",
        "len(p.replicas) - r.copies + 1",
        "1",
        "two copies",
    ),
    _m(
        "any",
        "the greatest position leads",
        _DECIDE + "_positioned",
        "best = max(",
        "best = min(",
        "two copies",
    ),
    _m(
        "unclean_counts",
        "who lost some of what it had is not counted",
        _DECIDE + "_counts",
        "lives.clean(known.broker, known.broker_epoch)",
        "True",
        "lost",
    ),
    _m(
        "copies_rise",
        "records keep the copies with which they were acknowledged",
        "metad.state.assignment.resources:altered",
        'named.get("copies", 0) > old.copies',
        "False",
        "more copies",
    ),
    _m(
        "those_who_leave_count",
        "once the master has said who has everything, copies of those who leave count no more",
        _POSITION + "counted",
        "{*known.replicas} & known.remaining if known.said else {*known.replicas}",
        "{*known.replicas}",
        "moved",
    ),
    _m(
        "takes_until_the_end",
        "a master that is to hand over takes nothing more",
        _POSITION + "takes_more",
        "known.target is None",
        "True",
        "handed over",
    ),
    _m(
        "said_before",
        "a master hands over by what it says once it has stopped",
        _RULES + "in_sync",
        "if item.partition_epoch != p.partition_epoch:",
        "if False:",
        "handed over",
    ),
    _m(
        "handed_at_once",
        "a master that lives is not replaced before it says who has everything",
        _DECIDE + "handed_to",
        "state=a.RELEASING, target=broker, isr=[p.leader]",
        "leader=next((one for one in p.elr if one.broker == broker), p.leader)",
        "handed over",
    ),
    _m(
        "waits_for_the_dead",
        "a hand-over to one that is away is given up",
        _DECIDE + "_hand_over_ends",
        "lives.life(p.target) is None",
        "False",
        "moved away",
    ),
    _m(
        "never_handed_over",
        "a master that is to lose the partition hands over",
        _DECIDE + "_next_master",
        "able = [*to] if there >= {*to} else []",
        "able = []",
        "moved away",
    ),
)

EXTERNAL_MUTANTS: tuple[Mutant, ...] = (
    _m(
        "any_term",
        "a claim is for a greater term",
        _RULES + "claim",
        "if not p.leader_epoch < item.term <= p.leader_epoch + a.TERM_STEP_MAX:",
        "if False:",
        "claimed",
    ),
    _m(
        "a_term_is_used_up",
        "metad makes no terms of its own where the replicas do",
        _DECIDE + "_external",
        "leader_epoch=p.leader_epoch,",
        "leader_epoch=p.leader_epoch + 1,",
        "claimed",
    ),
    _m(
        "sealed_twice",
        "what is sealed stays so",
        _RULES + "seal",
        "if p.end is not None:",
        "if False:",
        "sealed",
    ),
    _m(
        "the_dead_count_as_gone",
        "a replica that may come back has to say that it has deleted a partition",
        _DECIDE + "_deleting",
        "now.past_ms < ended_ms + FORGOTTEN_MS",
        "False",
        "deleted",
    ),
)

ASSIGNMENT_MUTANTS = (*IN_SYNC_MUTANTS, *OWNER_MUTANTS, *POSITION_MUTANTS, *EXTERNAL_MUTANTS)
