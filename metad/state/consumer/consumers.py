"""The members of consumer groups: they join, leave, are assigned something, or are silent for too long.

Only the leader of the metad group knows who is silent: it hears of the members (:mod:`..live.live_consumers`), and
orders their end through the log (:mod:`metad.node.chores.leases`). What becomes of a group is in
:mod:`.consumer_groups`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import (
    ConflictError,
    FencedError,
    InvalidItemError,
    MetadError,
    NotFoundError,
    NotOwnerError,
    TooLargeError,
)
from metad_wire.tables import consumer as w
from metad_wire.tables.consumer import CONSUMER, GroupState, Member, MemberKey

from ...storage import keys
from ..core.limits import ENTRY_BYTES_FULL, LOOKED_AT_BYTES_MAX, REPLY_BYTES_MAX, check_change
from ..core.part import Origin
from ..core.verb import Command, Reader, Verb, read_list, read_records, written
from ..core.view import View
from ..live.live_consumers import LiveConsumers
from .consumer_groups import GENERATION, ChangedGroup, decode_group, error_at, shown_empty

_MEMBER, _GROUP = CONSUMER.rows["member"], CONSUMER.rows["group"]
_LOOKED_AT_FULL = LOOKED_AT_BYTES_MAX // 2  # an order that has read so much begins with nothing more


class _Groups:
    """Those that one command changes."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._found: dict[tuple[str, str], ChangedGroup] = {}

    def get(self, tenant: str, group: str) -> ChangedGroup:
        """The group of this name."""
        found = self._found.get((tenant, group))
        if found is None:
            found = self._found[tenant, group] = ChangedGroup(self._view, tenant, group)
        return found

    @property
    def looked_at(self) -> int:
        """Bytes that all members of these groups had before."""
        return sum([group.before.member_bytes for group in self._found.values()])

    def finish(self) -> None:
        """Write them. Raises TooLargeError."""
        for group in self._found.values():
            group.finish()
        self.count()

    def count(self) -> None:
        """Say how much the command changes, once each is finished. Raises TooLargeError."""
        view = self._view
        view.grown = sum([_size(writes.items()) for writes in (view.writes, *view.heard.values())])
        check_change(view.grown)


def _size(writes: Iterable[tuple[bytes, bytes | None]]) -> int:
    return sum([len(key) + len(value or b"") for key, value in writes])


# --- members ---------------------------------------------------------------------------------------------


class _Names:
    """Makes names of members. Revisions of a group only grow, also over moves of its slot, so a name was never in use.
    Other commands of the entry have the same revision."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._made = 0

    def make(self, group: ChangedGroup, instance: str) -> str:
        """A name that no member of the group has had."""
        name = ""
        while not name or group.member(name) is not None:
            self._made += 1
            name = f"{self._view.revision:x}.{self._made}"
            if instance:
                name = f"{instance}/{name}"
        return name


def _evaluate_join(view: View, command: Command[w.ConsumerJoin]) -> w.ConsumerJoinReply:
    groups, names = _Groups(view), _Names(view)
    live = view.parts[LiveConsumers]
    errors: list[m.ItemError] = []
    members: list[str | None] = []
    joined: list[int] = []
    for position, item, suffix in command.rows:
        group = groups.get(item.tenant, item.group)
        try:
            member = _join(group, item, names)
        except TooLargeError:
            raise  # each further item would read as much once more before it is refused
        except MetadError as error:
            errors.append(error_at(position, error))
            members.append(None)
            joined.append(0)
            continue
        if item.member:  # known to be there: this is as good as a heartbeat
            view.on_accept.append(partial(live.heard, suffix, command.arrived_s))
        members.append(member.member)
        joined.append(member.joined)
    groups.finish()
    return w.ConsumerJoinReply([m.Revision(view.name, view.revision)], errors, members, joined)


def _join(group: ChangedGroup, item: w.JoinItem, names: _Names) -> Member:
    """The member as it is now. Raises the error of the item."""
    if len(item.member.encode()) > w.MEMBER_NAME_BYTES_MAX:
        raise InvalidItemError(f"the member's name takes over {w.MEMBER_NAME_BYTES_MAX} bytes")
    if len(item.instance.encode()) > w.INSTANCE_BYTES_MAX:
        raise InvalidItemError(f"the instance's name takes over {w.INSTANCE_BYTES_MAX} bytes")
    for name, asked_ms in (("session_ms", item.session_ms), ("rebalance_ms", item.rebalance_ms)):
        if asked_ms > w.MEMBER_PATIENCE_MS_MAX:
            raise InvalidItemError(
                f"{name} is {asked_ms}: at most {w.MEMBER_PATIENCE_MS_MAX}, for the others of the group wait as long"
            )
    before = group.member(item.member) if item.member else None
    if item.instance and before is None:
        before = group.instance(item.instance)
        if item.member:  # the name of a member that was there
            if before is None:
                raise NotFoundError("there is no such member")
            raise FencedError(f"{before.member} has taken its place")
    if before is not None and item.instance != before.instance:
        raise InvalidItemError(f"the member's instance is {before.instance!r}")
    name = item.member or names.make(group, item.instance)
    if fault := CONSUMER.key_fault(MemberKey(item.tenant, item.group, name)):
        raise InvalidItemError(fault)  # nobody could say that it lives, nor send it away
    member = Member(
        item.tenant,
        item.group,
        name,
        item.instance,
        item.holder,
        item.session_ms,
        item.rebalance_ms,
        item.protocols,
        item.metadata,
        0 if before is None else before.joined,
        0 if before is None else before.assigned,
        b"" if before is None else before.assignment,
    )
    info = group.info
    group.check_room(member, before)
    changes = item.rebalance or before is None
    if before is not None:
        changes |= (before.protocols, before.metadata) != (member.protocols, member.metadata)
        if before.member != name:
            group.replace(before, member)
            before = member
            changes |= info.state == GroupState.ASSIGNING  # its leader may be about to assign to the one that is gone
    if changes or (info.state == GroupState.JOINING and member.joined <= info.generation):
        group.join(member, before)
        return msgspec.structs.replace(member, joined=info.generation + 1)
    if member != before:
        group.renew(member)
    return member


def _evaluate_leave(view: View, command: Command[m.Items[w.MemberKey]]) -> m.WriteReply:
    groups = _Groups(view)
    errors: list[m.ItemError] = []
    for position, item, _ in command.rows:
        group = groups.get(item.tenant, item.group)
        member = group.member(item.member)
        if member is None:
            errors.append(m.ItemError(position, NotFoundError.code))
        else:
            group.drop(member)
    groups.finish()
    return written(view, errors)


def _evaluate_assign(view: View, command: Command[w.ConsumerAssign]) -> m.WriteReply:
    groups = _Groups(view)
    errors: list[m.ItemError] = []
    for position, item, _ in command.rows:
        try:
            _assign(groups.get(item.tenant, item.group), item)
        except TooLargeError:
            raise
        except MetadError as error:
            errors.append(error_at(position, error))
    groups.finish()
    return written(view, errors)


def _operations(item: w.AssignItem) -> int:
    return len(item.assignments)


def _assign(group: ChangedGroup, item: w.AssignItem) -> None:
    """Raises the error of the item."""
    info = group.info
    if not info.members:
        raise NotFoundError("the group has no members")
    if item.generation != info.generation:
        now = info.generation
        raise FencedError(f"generation is {now}, and the request says {item.generation}", current=now)
    if item.member != info.leader:
        raise NotOwnerError(f"the leader is {info.leader or 'gone'}")
    if info.state != GroupState.ASSIGNING:
        stable = info.state == GroupState.STABLE
        raise ConflictError("the generation has its assignment" if stable else "the members join the next generation")
    if sum([len(one.assignment) for one in item.assignments]) > w.ASSIGNMENT_BYTES_MAX:
        raise InvalidItemError(f"the assignments take over {w.ASSIGNMENT_BYTES_MAX} bytes")
    found: list[Member] = []
    for one in item.assignments:
        member = group.member(one.member)
        if member is None:
            raise NotFoundError(f"there is no member {one.member}")
        found.append(msgspec.structs.replace(member, assigned=info.generation, assignment=one.assignment))
    for member in found:
        group.put(member)
    group.assigned()


def _evaluate_expire(view: View, command: Command[w.ConsumerExpire]) -> m.WriteReply:
    """Each group is changed as a whole or not at all, so that one that cannot be changed keeps no other waiting."""
    live = view.parts[LiveConsumers]
    groups = _Groups(view)
    ordered: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for position, item, suffix in command.rows:
        if live.is_over(suffix):  # else it was heard of since the order was given, or another order was first
            ordered.setdefault((item.tenant, item.group), []).append((position, item.member))
    errors: list[m.ItemError] = []
    for (tenant, name), members in ordered.items():
        if groups.looked_at > ENTRY_BYTES_FULL // 2 or view.looked_at > _LOOKED_AT_FULL:
            break  # the others are still over, and ordered again
        group = groups.get(tenant, name)
        try:
            _end_silent(view, group, live, [member for _, member in members])
            group.finish()
        except MetadError as error:
            group.undo()
            errors += [error_at(position, error) for position, _ in members]
    groups.count()
    return written(view, sorted(errors, key=lambda error: error.index))


def _end_silent(view: View, group: ChangedGroup, live: LiveConsumers, members: list[str]) -> None:
    """Send these members away, as many as are not too much for one command; no name: end the rebalance."""
    for member in members:
        if view.looked_at > _LOOKED_AT_FULL:
            break
        if member:
            _send_away(group, member)
        else:
            _end_rebalance(group, live)


def _send_away(group: ChangedGroup, name: str) -> None:
    """A member, if it is still one, has been silent for too long."""
    member = group.member(name)
    if member is not None:
        group.drop(member)


def _end_rebalance(group: ChangedGroup, live: LiveConsumers) -> None:
    """Whoever has kept the others waiting for too long is no member any more."""
    info = group.info
    if not live.rebalance_over(group.suffix, info.state, info.generation):
        return
    if info.state == GroupState.JOINING:
        for member in group.members():
            if member.joined <= info.generation:
                group.drop(member)
    elif info.state == GroupState.ASSIGNING and (leader := group.member(info.leader)) is not None:
        group.drop(leader)


# --- reads -----------------------------------------------------------------------------------------------


def _read_heartbeat(reader: Reader, command: Command[w.ConsumerHeartbeat]) -> w.ConsumerHeartbeatReply:
    live, arrived_s = reader.parts[LiveConsumers], command.arrived_s
    reader.spent += len(command.rows)
    return w.ConsumerHeartbeatReply(
        [live.beat(keys.text2(item.tenant, item.group), suffix, arrived_s) for _, item, suffix in command.rows]
    )


def _read_describe(reader: Reader, command: Command[w.ConsumerDescribe]) -> w.ConsumerDescribeReply:
    prefix = keys.table_prefix(reader.group, _GROUP)
    suffixes = [keys.text2(item.tenant, item.group) for _, item, _ in command.rows]
    values = reader.get_many([prefix + suffix for suffix in suffixes], command.reply_bytes_max)
    found = {suffix: value for suffix, value in zip(suffixes, values, strict=True) if value is not None}
    found |= _with_generations(reader, found)
    raw = [None if (value := found.get(suffix)) is None else msgspec.Raw(value) for suffix in suffixes]
    return w.ConsumerDescribeReply(raw)  # type: ignore[arg-type]  # encoded


def _with_generations(reader: Reader, groups: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Those of these groups that have no members, with the generation that they have: it may have been raised by a
    commit, or reset, and the group's row is not written then."""
    empty = {suffix: info for suffix, row in groups.items() if not (info := decode_group(row)).members}
    prefix = keys.table_prefix(reader.group, GENERATION)
    generations = reader.get_many([prefix + suffix for suffix in empty], REPLY_BYTES_MAX)
    return {
        suffix: shown_empty(groups[suffix], info, row)
        for (suffix, info), row in zip(empty.items(), generations, strict=True)
    }


VERBS = (
    Verb(methods.CONSUMER_JOIN, CONSUMER, evaluate=_evaluate_join, grows=None),
    Verb(methods.CONSUMER_HEARTBEAT, CONSUMER, read=_read_heartbeat),
    Verb(methods.CONSUMER_LEAVE, CONSUMER, evaluate=_evaluate_leave, grows=False),
    Verb(methods.CONSUMER_ASSIGN, CONSUMER, operations=_operations, evaluate=_evaluate_assign, grows=None),
    Verb(methods.CONSUMER_GET, CONSUMER, read=partial(read_records, row=_MEMBER)),
    Verb(methods.CONSUMER_MEMBERS, CONSUMER, read=partial(read_list, row=_MEMBER)),
    Verb(methods.CONSUMER_DESCRIBE, CONSUMER, read=_read_describe),
    Verb(methods.CONSUMER_EXPIRE, CONSUMER, evaluate=_evaluate_expire, origin=Origin.EXPIRY, grows=False),
)
