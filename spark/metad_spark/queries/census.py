"""Who a cluster's clients are: sessions, what belongs to them, and how old they are, by tenant and region."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from metad_wire.messages import NEVER_S

UNKNOWN: Final = "?"
"""The region of a session whose broker is not registered."""
PERCENTS: Final = (50.0, 90.0, 99.0, 100.0)
STEPS: Final = 20
"""Into how many equal parts clients are cut for the quantiles that a simulation draws from."""
_ACCURACY: Final = 10_000
_MEASURED: Final = ("payload_bytes", "subscriptions", "inflight_bytes")


def sessions_of(
    sessions: DataFrame, subscriptions: DataFrame, inflight: DataFrame, brokers: DataFrame, now_ms: int
) -> DataFrame:
    """A row for each session, from the tables ``session``, ``subscription``, ``inflight`` and ``broker``: ``tenant``,
    ``client_id``, ``slot``, ``region`` (of its broker; :data:`UNKNOWN`), ``connected``, ``expiry_s`` (null: it stays
    until it is deleted), ``last_seen_s`` (for how long it has been away; null while connected), ``ends_in_s`` (when it
    ends if its client stays away; null: not by itself), ``payload_bytes``, ``has_will``, ``subscriptions`` (how many),
    ``inflight`` (how many), ``inflight_bytes``. Bytes are those of the values, without keys and storage."""
    key = ["tenant", "client_id"]
    filters = subscriptions.groupBy(*key).agg(F.count("*").alias("subscriptions"))
    waiting = inflight.groupBy(*key).agg(
        F.count("*").alias("inflight"), F.sum(F.octet_length("value")).alias("inflight_bytes")
    )
    regions = brokers.select("broker", "region")
    expiry_s = F.coalesce(F.col("expiry_interval_s"), F.lit(0))
    # A clock that is behind the broker's says that a client left in the future: that is just now.
    away_s = F.greatest(F.lit(0.0), (F.lit(now_ms) - F.col("disconnected_ms")) / 1000)
    return (
        sessions.join(F.broadcast(regions), "broker", "left")
        .join(filters, key, "left")
        .join(waiting, key, "left")
        .select(
            *key,
            "slot",
            F.coalesce("region", F.lit(UNKNOWN)).alias("region"),
            "connected",
            F.when(expiry_s < NEVER_S, expiry_s).alias("expiry_s"),
            F.when(~F.col("connected"), away_s).alias("last_seen_s"),
            F.when(F.col("expires_ms") > 0, (F.col("expires_ms") - F.lit(now_ms)) / 1000).alias("ends_in_s"),
            F.coalesce(F.octet_length("payload"), F.lit(0)).alias("payload_bytes"),
            F.col("will").isNotNull().alias("has_will"),
            *(F.coalesce(name, F.lit(0)).alias(name) for name in ("subscriptions", "inflight", "inflight_bytes")),
        )
    )


def census(described: DataFrame) -> DataFrame:
    """From :func:`sessions_of`: figures of everything, of each tenant, of each region, and of each of both together
    (``tenant`` and ``region``, null where all are meant): ``sessions``, ``connected``, ``endless`` (they stay until
    they are deleted), ``wills``, sums of ``payload_bytes``, ``subscriptions``, ``inflight`` and ``inflight_bytes``;
    and as arrays the 50th, 90th, 99th and 100th percentiles of a session's ``payload_bytes_at``,
    ``subscriptions_at``, ``inflight_bytes_at``, of ``expiry_s_at`` (without the endless ones) and of
    ``last_seen_s_at`` (of those away)."""
    shares = F.array(*(F.lit(percent / 100) for percent in PERCENTS))
    sums = ("payload_bytes", "subscriptions", "inflight", "inflight_bytes")
    names = (*_MEASURED, "expiry_s", "last_seen_s")
    return (
        described.cube("tenant", "region")
        .agg(
            F.count("*").alias("sessions"),
            F.count_if("connected").alias("connected"),
            F.count_if(F.col("expiry_s").isNull()).alias("endless"),
            F.count_if("has_will").alias("wills"),
            *(F.sum(name).alias(name) for name in sums),
            *(F.percentile_approx(name, shares, _ACCURACY).alias(f"{name}_at") for name in names),
        )
        .orderBy(F.col("tenant").asc_nulls_first(), F.col("region").asc_nulls_first())
    )


def population(described: DataFrame) -> DataFrame:
    """From :func:`sessions_of`, of each tenant and region, what a simulation of its clients needs: ``sessions``,
    ``connected``, ``endless``, means of ``subscriptions``, ``inflight`` and ``payload_bytes``, the share with a
    will (``wills``), how many ``ends`` by themselves, and :data:`STEPS` + 1 quantiles, from the least to the greatest,
    of ``expiry_s``, ``last_seen_s`` and ``ends_in_s``; null where no session has that."""
    steps = F.array(*(F.lit(step / STEPS) for step in range(STEPS + 1)))
    return (
        described.groupBy("tenant", "region")
        .agg(
            F.count("*").alias("sessions"),
            F.count_if("connected").alias("connected"),
            F.count_if(F.col("expiry_s").isNull()).alias("endless"),
            F.count("ends_in_s").alias("ends"),
            *(F.avg(name).alias(name) for name in ("subscriptions", "inflight", "payload_bytes")),
            F.avg(F.col("has_will").cast("int")).alias("wills"),
            *(
                F.percentile_approx(name, steps, _ACCURACY).alias(name)
                for name in ("expiry_s", "last_seen_s", "ends_in_s")
            ),
        )
        .orderBy("tenant", "region")
    )


def by_slot(described: DataFrame) -> DataFrame:
    """From :func:`sessions_of`: ``sessions`` and ``connected`` of each ``slot`` that has any."""
    return (
        described.groupBy("slot")
        .agg(F.count("*").alias("sessions"), F.count_if("connected").alias("connected"))
        .orderBy("slot")
    )
