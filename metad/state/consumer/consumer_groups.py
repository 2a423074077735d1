"""What becomes of a consumer group while a command changes its members: its state, and its next generation.

The members' rows say which generation each has joined. The group's row counts those that have not joined the next one
yet, so that only the command with which it begins looks at them all.
"""

from __future__ import annotations

import msgspec

from metad_wire import messages as m
from metad_wire.errors import ConflictError, MetadError, QuotaExceededError
from metad_wire.methods import encode
from metad_wire.tables import consumer as w
from metad_wire.tables.consumer import CONSUMER, GroupState, Member
from metad_wire.tables.offset import OFFSET

from ...storage import keys
from ..cluster.quotas import refusal
from ..core import tails
from ..core.limits import LOOKED_AT_BYTES_MAX
from ..core.view import View

_MEMBER, _GROUP, GENERATION = CONSUMER.rows["member"], CONSUMER.rows["group"], OFFSET.rows["generation"]
_GROUP_FIELDS, _MEMBER_FIELDS = tails.fields(w.ConsumerGroupInfo), tails.fields(Member)
decode_group = msgspec.msgpack.Decoder(w.ConsumerGroupInfo).decode
_decode_member = msgspec.msgpack.Decoder(Member).decode
_decode_generation = msgspec.msgpack.Decoder(int).decode
_ANY_PROTOCOL = [""]  # of a member that names none
_MEMBER_BYTES = 64  # of a member's row, beside its texts


def group_row(view: View, suffix: bytes) -> w.ConsumerGroupInfo | None:
    """What is known of a group; None if it never had members."""
    row = view.get(keys.table_prefix(view.group, _GROUP) + suffix)
    return None if row is None else decode_group(row)


def generation_of(view: View, suffix: bytes) -> int:
    """The highest generation of a group, with or without members."""
    row = view.get(keys.table_prefix(view.group, GENERATION) + suffix)
    return 0 if row is None else _decode_generation(row)


def shown_empty(stored: bytes, info: w.ConsumerGroupInfo, generation: bytes | None) -> bytes:
    """The row of a group without members as reads show it: with the generation in the row of that."""
    current = 0 if generation is None else _decode_generation(generation)
    return tails.keep(stored, encode(msgspec.structs.replace(info, generation=current)), _GROUP_FIELDS)


def protocols_of(member: Member) -> list[str]:
    """Those that a member knows, in the order in which it likes them."""
    return member.protocols or _ANY_PROTOCOL


def _patience_ms(member: Member) -> int:
    """For how long a rebalance waits for this member at least: what it asks for, and not less than what it may believe
    after its last heartbeat. Another would otherwise be given what it works on, before it knows."""
    return max(member.rebalance_ms, member.session_ms)


def _bytes_of(member: Member) -> int:
    """What a member takes of what a group may have, whatever is assigned to it."""
    key = (member.tenant, member.group, member.member)
    texts = (*key, *key, member.instance, member.holder, *member.protocols)
    return _MEMBER_BYTES + sum([len(text.encode()) for text in texts]) + len(member.metadata)


class ChangedGroup:
    """One group and its members. Call :meth:`finish` behind the last change."""

    def __init__(self, view: View, tenant: str, group: str) -> None:
        self._view = view
        self.tenant = tenant
        self.group = group
        self.suffix = keys.text2(tenant, group)
        self._key = keys.table_prefix(view.group, _GROUP) + self.suffix
        self._prefix = keys.table_prefix(view.group, _MEMBER) + self.suffix
        self._stored = view.get(self._key)
        info = None if self._stored is None else decode_group(self._stored)
        if info is None or info.state == GroupState.EMPTY:
            # Without members any commit may have raised the generation, and an operator may have reset it.
            generation = generation_of(view, self.suffix)
            since_ms = 0 if info is None else info.since_ms
            info = w.ConsumerGroupInfo(tenant, group, GroupState.EMPTY, generation, "", "", 0, 0, 0, since_ms, [], 0)
        self.info = info
        self.before = info
        """What was known of the group before the command."""

    # --- members -----------------------------------------------------------------------------------------

    def member(self, name: str) -> Member | None:
        """The member of this name."""
        row = self._view.get(self._prefix + keys.text(name))
        return None if row is None else _decode_member(row)

    def members(self) -> list[Member]:
        """All of them, in the order of their names."""
        return self._found(self._prefix)

    def instance(self, instance: str) -> Member | None:
        """The member that has the place of this name. Names of such members begin with it."""
        found = self._found(self._prefix + keys.text_prefix(f"{instance}/"))
        return next((member for member in found if member.instance == instance), None)

    def _found(self, prefix: bytes) -> list[Member]:
        found = self._view.keys_with(prefix, w.CONSUMER_MEMBERS_MAX)
        rows = self._view.get_many(found, LOOKED_AT_BYTES_MAX)
        return [_decode_member(row) for row in rows if row is not None]

    def renew(self, member: Member) -> None:
        """A member that there is says something new about itself, which disturbs nobody."""
        self._set(rebalance_ms=max(self.info.rebalance_ms, _patience_ms(member)))
        self.put(member)

    def put(self, member: Member) -> None:
        """Write a member that there is, or that there is room for."""
        key = self._prefix + keys.text(member.member)
        stored, written = self._view.get(key), encode(member)
        self._view.writes_of(_MEMBER)[key] = written if stored is None else tails.keep(stored, written, _MEMBER_FIELDS)

    def _delete(self, member: Member) -> None:
        self._view.writes_of(_MEMBER)[self._prefix + keys.text(member.member)] = None

    def _set(self, **fields: object) -> None:
        self.info = msgspec.structs.replace(self.info, **fields)

    # --- what happens ------------------------------------------------------------------------------------

    def check_room(self, member: Member, before: Member | None) -> None:
        """Raise the error of a join where the group has no room for this member, or no protocol in common with it."""
        info = self.info
        if before is None and (why := refusal(self._view, self.tenant)) is not None:
            raise why
        if before is None and info.members >= w.CONSUMER_MEMBERS_MAX:
            raise QuotaExceededError(f"the group has {w.CONSUMER_MEMBERS_MAX} members")
        grown = info.member_bytes + _bytes_of(member) - (0 if before is None else _bytes_of(before))
        if grown > w.CONSUMER_BYTES_MAX:
            raise QuotaExceededError(f"the members of the group take over {w.CONSUMER_BYTES_MAX} bytes together")
        if info.generation >= w.JOINED_GENERATION_MAX:
            raise ConflictError(
                f"no generation can follow, so reset it while the group has no members: it is {info.generation}",
                current=info.generation,
            )
        if before is None or before.protocols != member.protocols:
            self._agree(member, before)

    def _agree(self, member: Member, before: Member | None) -> None:
        """Find what the member has in common with the others."""
        wanted = protocols_of(member)
        common = [name for name in self.info.common if name in wanted]
        if not common:  # what is noted may be less than what they have in common now
            others = [other for other in self.members() if before is None or other.member != before.member]
            common = [name for name in wanted if all(name in protocols_of(other) for other in others)]
            if not common:
                raise ConflictError(f"the members of the group know {', '.join(self.info.common)}")
        self._set(common=common)

    def begin_rebalance(self) -> None:
        """Members are to join the next generation."""
        if self.info.state != GroupState.JOINING:
            self._set(state=GroupState.JOINING, waiting=self.info.members)

    def join(self, member: Member, before: Member | None) -> None:
        """A new member, or one that changes, joins the next generation. What is assigned to it stays until that has its
        assignment. What was assigned before goes: it counts no more, and over many generations it would add up."""
        self.begin_rebalance()
        info = self.info
        if member.assigned != info.generation:
            member = msgspec.structs.replace(member, assigned=0, assignment=b"")
        grown = _bytes_of(member) - (0 if before is None else _bytes_of(before))
        waited = before is not None and before.joined <= info.generation
        self._set(
            members=info.members + (before is None),
            waiting=info.waiting - waited,
            rebalance_ms=max(info.rebalance_ms, _patience_ms(member)),
            member_bytes=info.member_bytes + grown,
        )
        self.put(msgspec.structs.replace(member, joined=info.generation + 1))

    def replace(self, before: Member, member: Member) -> None:
        """Another member takes the place of one, and all that it has."""
        info = self.info
        self._delete(before)
        self._set(
            member_bytes=info.member_bytes + _bytes_of(member) - _bytes_of(before),
            leader=member.member if info.leader == before.member else info.leader,
        )
        self.renew(member)

    def drop(self, member: Member) -> None:
        """A member is gone."""
        info = self.info
        waited = info.state == GroupState.JOINING and member.joined <= info.generation
        self._delete(member)
        self._set(
            members=info.members - 1,
            waiting=info.waiting - waited,
            member_bytes=info.member_bytes - _bytes_of(member),
            leader="" if info.leader == member.member else info.leader,
        )
        self.begin_rebalance()

    def assigned(self) -> None:
        """Everybody has what the leader said."""
        self._set(state=GroupState.STABLE)

    def undo(self) -> None:
        """Take back whatever happened to the group and its members, where :meth:`finish` has failed or not been
        called."""
        self.info = self.before
        writes = self._view.writes_of(_MEMBER)
        for key in [key for key in writes if key.startswith(self._prefix)]:
            del writes[key]

    def finish(self) -> None:
        """Begin the next generation if all have joined it, and write the group."""
        if self.info.state == GroupState.JOINING and not self.info.waiting:
            if self.info.members:
                self._begin_generation()
            else:
                self._set(state=GroupState.EMPTY, protocol="", leader="", rebalance_ms=0, common=[])
        if self.info == self.before:
            return
        if self.info.state != self.before.state:
            self._set(since_ms=self._view.now_ms)
        written = encode(self.info)
        self._view.writes_of(_GROUP)[self._key] = (
            written if self._stored is None else tails.keep(self._stored, written, _GROUP_FIELDS)
        )

    def _begin_generation(self) -> None:
        members = self.members()
        leader = next((member for member in members if member.member == self.info.leader), members[0])
        known = [set(protocols_of(member)) for member in members]
        common = [name for name in protocols_of(leader) if all(name in names for names in known)]
        generation = self.info.generation + 1
        self._set(
            state=GroupState.ASSIGNING,
            generation=generation,
            protocol=common[0],
            leader=leader.member,
            common=common,
            rebalance_ms=max(map(_patience_ms, members)),
        )
        key = keys.table_prefix(self._view.group, GENERATION) + self.suffix
        self._view.writes_of(GENERATION)[key] = encode(generation)


def error_at(position: int, error: MetadError) -> m.ItemError:
    """What an item failed with."""
    return m.ItemError(position, error.code, error.message, error.current)
