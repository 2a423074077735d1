"""What the replicas of a group say to each other. wire/INTERNAL.md says how they are sent.

Every message carries its sender's term, except where a field says otherwise. Arrays grow at their end only.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from metad_wire.text.fields import U63


class Configuration(msgspec.Struct, frozen=True, array_like=True):
    """Who the replicas of a group are, by node id, sorted."""

    voters: tuple[str, ...]
    """Node ids, sorted."""
    learners: tuple[str, ...] = ()
    """Node ids, sorted."""

    @property
    def members(self) -> tuple[str, ...]:
        """Everyone the log goes to."""
        return self.voters + self.learners

    def quorum(self) -> int:
        """How many voters decide."""
        return len(self.voters) // 2 + 1


class Message(msgspec.Struct, frozen=True, array_like=True):
    """Base of every message."""

    term: U63
    """Of the sender, unless the message says otherwise."""


class PreVote(Message, frozen=True, tag=1):
    """Would you vote for me? ``term`` is the one the sender would campaign in; nobody enters it because of this."""

    last_index: U63
    """Of its log."""
    last_term: U63
    """Of its last entry."""


class PreVoteReply(Message, frozen=True, tag=2):
    """``term`` is the asked one where it is granted, the replier's own where it is not."""

    granted: bool


class Vote(Message, frozen=True, tag=3):
    """Vote for me. Sent once the sender's own vote is durable. ``transfer``: at the leader's wish, so a live leader is
    no reason to refuse."""

    last_index: U63
    """Of the candidate's log."""
    last_term: U63
    """Of its last entry."""
    transfer: bool = False
    """The leader asked for this election, so its being alive is no reason to refuse."""


class VoteReply(Message, frozen=True, tag=4):
    """Sent once the vote is durable."""

    granted: bool
    """Sent once the vote is durable."""


class Append(Message, frozen=True, tag=5):
    """Records that follow (prev_index, prev_term), or none, as a heartbeat. ``probe`` numbers the leader's rounds:
    its echo proves that the sender was still followed after the round began. ``sleep``: no heartbeats will follow
    until something happens."""

    prev_index: U63
    """Of the entry before the records."""
    prev_term: U63
    """Term of that entry."""
    commit: U63
    """The leader's commit index."""
    probe: U63
    """Number of the leader's newest round in this term."""
    records: list[bytes] = []
    """Log records; none in a heartbeat."""
    sleep: bool = False
    """No heartbeats follow until the group has work."""
    lease_ms: U63 = 0
    """The promise that the leader counts on: for how long the receiver is to vote for nobody else. It is the same in
    all appends of a leadership. 0: the leader does not say, and the receiver promises its own election timeout."""


class AppendReply(Message, frozen=True, tag=6):
    """The log agrees with the sender's up to ``agreed``, and durably up to ``match``. ``rejected`` is the prev_index
    that was not there (-1: none was rejected); the log may agree up to (hint_index, hint_term)."""

    probe: U63
    """The newest round that the sender has received."""
    match: U63
    """Up to here the sender's log is durable and equals the leader's."""
    agreed: U63
    """Up to here the sender's log equals the leader's."""
    rejected: Annotated[int, Meta(ge=-1, le=0x7FFF_FFFF_FFFF_FFFF)] = -1
    """The ``prev_index`` that the sender lacks; -1: none was rejected."""
    hint_index: U63 = 0
    """With ``hint_term``: up to here the logs may agree."""
    hint_term: U63 = 0
    """See ``hint_index``."""
    promise_ms: U63 = 0
    """For how long, since it heard the append that it answers, the sender votes for nobody else. Leases rest on this
    and not on the leader's own setting. 0: it promises nothing (yet)."""
    watched: bool = False
    """Somebody waits for what the sender applies: it wants to hear of a commit soon, even if no entry follows."""
    unapplied: U63 = 0
    """Entries that the sender knows to be committed and has yet to apply. The leader hands the group to no node that
    has many, because a new leader serves only once it has applied all of them. 0 also from an older node."""
    shortage: U63 = 0
    """What the sender's disk lacks: :data:`.base.ROOM` (0), :data:`.base.LOW` or :data:`.base.FULL`."""


class Snapshot(Message, frozen=True, tag=7):
    """A snapshot that ends with (index, index_term) has been streamed to you as transfer ``stream``: install it."""

    index: U63
    """Of the last entry in the snapshot."""
    index_term: U63
    """Term of that entry."""
    configuration: Configuration
    """The configuration in force at that entry."""
    stream: str
    """The transfer that delivered it."""


class TimeoutNow(Message, frozen=True, tag=8):
    """Campaign at once: the leader hands over."""


AnyMessage = PreVote | PreVoteReply | Vote | VoteReply | Append | AppendReply | Snapshot | TimeoutNow
