"""Records that are alone: what they belong to is gone.

Some of it must not be (``broken``): metad deletes what belongs to a session together with it, and counts the members of
a group as they come and go. Some of it is on its way (``late``): metad comes to it by itself, and takes longer than it
should. And some of it nobody but its owner can judge (``left``). All tables must be as of one moment of each group, as
``metad-spark export`` writes them, or what happens between two reads looks broken.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from metad_wire.tables.broker import LIVE

BROKEN, LATE, LEFT = "broken", "late", "left"


class Check(msgspec.Struct, frozen=True):
    """One thing that is looked for."""

    name: str
    severity: str
    text: str


CHECKS: Final = {
    check.name: check
    for check in (
        Check("subscription_without_session", BROKEN, "subscriptions of clients that have no session"),
        Check("inflight_without_session", BROKEN, "messages in flight for clients that have no session"),
        Check("member_without_group", BROKEN, "members of consumer groups that are not there"),
        Check("members_miscounted", BROKEN, "consumer groups that count other members than they have"),
        Check("session_of_ended_life", LATE, "sessions connected to a life of a broker that is over"),
        Check("session_expired", LATE, "sessions that should have ended"),
        Check("will_waits", LATE, "wills that are due and that nobody has published"),
        Check("session_of_unknown_broker", LEFT, "sessions connected to a broker that is not registered"),
        Check("group_without_members", LEFT, "consumer groups with offsets whose members have left"),
        Check("offsets_left_alone", LEFT, "offsets of consumer groups that never had members, without a new commit"),
    )
}
"""By name."""


def orphans(
    *,
    sessions: DataFrame,
    subscriptions: DataFrame,
    inflight: DataFrame,
    wills: DataFrame,
    brokers: DataFrame,
    offsets: DataFrame,
    members: DataFrame,
    groups: DataFrame,
    now_ms: int,
    late_s: float,
    left_s: float,
) -> DataFrame:
    """A row for each orphan, from the tables ``session``, ``subscription``, ``inflight``, ``will``, ``broker``,
    ``offset``, ``consumer`` and ``consumer.group``: ``name`` (of :data:`CHECKS`), ``tenant``, ``key`` (the rest of its
    key), and ``since_s``: for how long it has been so (null: not known). What is late counts after ``late_s``, what is
    left after ``left_s``."""
    client = ["tenant", "client_id"]
    group = ["tenant", "group"]
    owners = sessions.select(*client)
    registered = brokers.select(
        "broker", "state", "least_epoch", "fenced_ms", F.col("broker_epoch").alias("last_epoch")
    )
    connected = (
        sessions.where("connected")
        .select(*client, "broker", "broker_epoch")
        .join(F.broadcast(registered), "broker", "left")
    )
    last_life = F.col("broker_epoch") == F.col("last_epoch")
    over = (F.col("broker_epoch") < F.col("least_epoch")) | (last_life & ~F.col("state").isin(*sorted(LIVE)))
    held_until_ms = F.greatest(F.col("due_ms"), F.coalesce("until_ms", F.lit(0)))
    counted = members.groupBy(*group).agg(F.count("*").alias("found"))
    commits = offsets.groupBy(*group).agg(F.max("committed_ms").alias("committed_ms"))
    offset_groups = commits.join(groups.select(*group, "state", "since_ms"), group, "left")
    idle_ms = F.greatest(F.col("committed_ms"), F.coalesce("since_ms", F.lit(0)))

    def ago(since_ms: Column) -> Column:
        return (F.lit(now_ms) - since_ms) / 1000

    def later(frame: DataFrame, name: str, key: Column, since_ms: Column, least_s: float) -> DataFrame:
        return _told(frame, name, key, ago(since_ms)).where(F.col("since_s") >= least_s)

    client_id, group_name = F.col("client_id"), F.col("group")
    found = [
        _told(
            subscriptions.join(owners, client, "left_anti"), "subscription_without_session", _key("client_id", "filter")
        ),
        _told(inflight.join(owners, client, "left_anti"), "inflight_without_session", _key("client_id", "name")),
        _told(members.join(groups, group, "left_anti"), "member_without_group", _key("group", "member")),
        _told(
            groups.join(counted, group, "left").where(F.col("members") != F.coalesce("found", F.lit(0))),
            "members_miscounted",
            group_name,
        ),
        later(connected.where(over), "session_of_ended_life", client_id, F.col("fenced_ms"), late_s),
        later(sessions.where("expires_ms > 0"), "session_expired", client_id, F.col("expires_ms"), late_s),
        later(wills, "will_waits", _key("client_id", "id"), held_until_ms, late_s),
        _told(connected.where(F.col("last_epoch").isNull()), "session_of_unknown_broker", client_id),
        later(offset_groups.where("state = 0"), "group_without_members", group_name, idle_ms, left_s),
        later(offset_groups.where(F.col("state").isNull()), "offsets_left_alone", group_name, idle_ms, left_s),
    ]
    return reduce(DataFrame.union, found)


def summary(found: DataFrame) -> DataFrame:
    """From :func:`orphans`, by ``name``: ``orphans``, ``tenants`` that have any, ``since_s`` (of the oldest), and the
    ``first`` and the ``last`` of their keys, as TENANT/KEY."""
    text = F.concat_ws("/", "tenant", "key")
    return (
        found.groupBy("name")
        .agg(
            F.count("*").alias("orphans"),
            F.count_distinct("tenant").alias("tenants"),
            F.max("since_s").alias("since_s"),
            F.min(text).alias("first"),
            F.max(text).alias("last"),
        )
        .orderBy("name")
    )


def _told(frame: DataFrame, name: str, key: Column, since_s: Column | None = None) -> DataFrame:
    return frame.select(
        F.lit(name).alias("name"),
        "tenant",
        key.alias("key"),
        (F.lit(None) if since_s is None else since_s).cast("double").alias("since_s"),
    )


def _key(*names: str) -> Column:
    return F.concat_ws("/", *names)
