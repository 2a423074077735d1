"""Whether a cluster that was overloaded has ended nothing: no leader, no broker's life and no
session, and no will is due. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from metad_wire.messages import Session, StatusReply
from metad_wire.tables.broker import LIVE, Broker

from . import verdict as verdicts
from .sessions import Found, Sessions


class Verdict(verdicts.Verdict, kw_only=True):
    """``expired_wrongly``: sessions that are gone, or do not look as they were left; ``wills_fired_wrongly``: wills
    that were due; ``brokers_fenced``: brokers whose life is over."""

    elections: int = 0
    leaders_changed: int = 0
    brokers_fenced: int = 0
    expired_wrongly: int = 0
    wills_fired_wrongly: int = 0


def terms(statuses: Iterable[StatusReply]) -> dict[str, int]:
    """The highest term of each group."""
    found: dict[str, int] = {}
    for one in statuses:
        for group in one.groups:
            found[group.name] = max(found.get(group.name, 0), group.term)
    return found


def leaders(statuses: Iterable[StatusReply]) -> dict[str, str]:
    """The node that leads each group."""
    return {group.name: one.node_id for one in statuses for group in one.groups if group.role == "leader"}


def judge(
    left: Mapping[str, tuple[bool, str]],
    *,
    before: Sequence[StatusReply],
    after: Sequence[StatusReply],
    lives: Mapping[str, int],
    lost_lives: int,
    brokers: Sequence[Broker | None],
    sessions: Iterable[Session],
    waiting_wills: Sequence[str],
) -> Verdict:
    """``left``: clients, whether each was connected, and its broker; ``lives``: name and epoch of each broker as it
    began; ``lost_lives``: those that the SDK has given up; ``brokers``: what the registry says of each; ``sessions``:
    all that there are; ``waiting_wills``: clients whose will is due."""
    verdict = Verdict()
    terms_before, terms_after = terms(before), terms(after)
    # A group that nobody speaks of any more counts as one that has elected.
    verdict.elections = sum(max(0, terms_after.get(name, term + 1) - term) for name, term in terms_before.items())
    leaders_before, leaders_after = leaders(before), leaders(after)
    verdict.leaders_changed = sum(leaders_after.get(name) != node for name, node in leaders_before.items())
    for (name, epoch), one in zip(lives.items(), brokers, strict=True):
        if one is None or one.state not in LIVE or one.broker_epoch != epoch:
            verdict.fault("brokers_fenced", f"the life of {name} is over")
    verdict.brokers_fenced = max(verdict.brokers_fenced, lost_lives)
    owners = {one.client_id: (one.connected, one.broker, one.broker_epoch) for one in sessions}
    kept = Sessions()
    for client, (connected, broker) in left.items():
        kept.see(client, [(connected, broker, lives.get(broker))], "", Found(owners.get(client), ""), "at the end")
    verdict.expired_wrongly = kept.verdict.lost
    verdict.examples += kept.verdict.examples
    for client in waiting_wills:
        verdict.fault("wills_fired_wrongly", f"the will of {client} is due")
    counted = sum(one.wills_due for one in after) - sum(one.wills_due for one in before)
    verdict.wills_fired_wrongly = max(verdict.wills_fired_wrongly, counted)
    return verdict
