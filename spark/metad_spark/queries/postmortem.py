"""What a storm was like, from the attempts of its clients: ``metad-perf storm --trace`` writes a row for each.

Times of attempts are nanoseconds after the storm's trigger. A client's own time counts from the begin of its first
attempt. Only attempts that have ended are in a trace.

All figures are of all rows together, and by each of several columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from ..errors import SparkError

BY: Final = "by"
VALUE: Final = "value"
ALL: Final = "all"
"""In ``by``: the rows of everything, with an empty ``value``."""


def in_cuts(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Each row once for everything, and once for each of these columns, as ``by`` and ``value`` in their stead. Whoever
    counts by all of these columns before copies few rows."""
    whole = F.struct(F.lit(ALL).alias(BY), F.lit("").alias(VALUE))
    each = [F.struct(F.lit(name).alias(BY), F.col(name).cast("string").alias(VALUE)) for name in columns]
    rest = [name for name in frame.columns if name not in columns]
    return frame.select(F.explode(F.array(whole, *each)).alias("_cut"), *rest).select(
        f"_cut.{BY}", f"_cut.{VALUE}", *rest
    )


STORM: Final = "storm.json"
FORMAT: Final = 1
COLUMNS: Final = ("broker", "region", "group", "kind", "policy")
"""What clients are told apart by."""
PERCENTS: Final = (50.0, 90.0, 99.0, 99.9, 100.0)
PARTS: Final = ("to_broker", "refused", "unanswered", "slot", "backoff", "restoring", "open")
"""Where a client's time goes: on its way to its broker and waiting there; in attempts that were refused; in those that
had no answer, or an error; until the time that a server had named; as its own backoff says; in the attempt that
restored it; and, for a client that is not back, from its last answer on."""
STALL_S: Final = 0.5
_TICK_NS: Final = 10_000_000
_SLACK_NS: Final = 1_000_000
"""A device that waits until a time is as near to it as this."""
_NEEDED: Final = (
    *("client", "broker", "attempt", "scheduled_ns", "sent_ns", "answered_ns", "outcome", "slot_ms", "jitter_ms"),
    *("group", "kind", "region", "policy"),
)


class TraceError(SparkError):
    """A directory that is no trace of a storm; the text begins with it."""


class Storm(msgspec.Struct, frozen=True):
    """What is known of the storm besides. ``returning``: clients that were to come back. ``limit_s``: it was given up
    after so long. ``sdk_retries``: the brokers' SDK repeated what servers had turned away, and devices did not hear
    of it."""

    format: int
    sessions: int
    returning: int
    brokers: int
    processes: int
    trigger: str
    policy: str
    sdk_retries: bool
    ignore_slots: float
    limit_s: float
    seed: int


def storm_of(directory: Path) -> Storm:
    """The storm that a trace is of. Raises TraceError."""
    try:
        found = msgspec.json.decode((directory / STORM).read_bytes(), type=Storm)
    except FileNotFoundError:
        raise TraceError(f"{directory}: it has no {STORM}: metad-perf storm --trace makes such a directory") from None
    except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
        raise TraceError(f"{directory / STORM}: {error}") from None
    if found.format != FORMAT:
        raise TraceError(f"{directory / STORM}: it is of format {found.format}, and this version knows {FORMAT}")
    files = len(list(directory.glob("attempts-*.parquet")))
    if files != found.processes:
        raise TraceError(
            f"{directory}: it has {files} files of attempts, and the storm had {found.processes} processes"
        )
    return found


def attempts_of(spark: SparkSession, directory: Path) -> DataFrame:
    """The attempts of a trace. Raises TraceError."""
    frame = spark.read.option("pathGlobFilter", "attempts-*.parquet").parquet(str(directory))
    missing = [name for name in _NEEDED if name not in frame.columns]
    if missing:
        raise TraceError(f"{directory}: its attempts have no {missing[0]}; this version's metad-perf writes it")
    return frame.select(*_NEEDED)


def followed(attempts: DataFrame) -> DataFrame:
    """The attempts, each with ``next_ns``: when the client's next one began (null: none ended), and ``slot``: what
    became of the time to come back that it was given: ``heeded``, ``early``, ``late``, ``open`` (no later attempt has
    ended), ``none`` (it was refused, and given no time); null if it was not refused."""
    of_client = Window.partitionBy("client").orderBy("attempt")
    wait_ns = F.col("next_ns") - F.col("answered_ns")
    slack_ns = F.col("jitter_ms").cast("long") * 1_000_000 + _SLACK_NS
    off_ns = wait_ns - F.col("slot_ms").cast("long") * 1_000_000
    slot = (
        F.when(F.col("outcome") != "refused", F.lit(None))
        .when(F.col("slot_ms") < 0, "none")
        .when(F.col("next_ns").isNull(), "open")
        .when(off_ns < -slack_ns, "early")
        .when(off_ns > slack_ns, "late")
        .otherwise("heeded")
    )
    return attempts.withColumn("next_ns", F.lead("scheduled_ns").over(of_client)).withColumn("slot", slot)


def clients(attempts: DataFrame, limit_s: float) -> DataFrame:
    """A row for each client that is in the trace: what it is told apart by, ``begun_ns``, ``back_ns`` (null: never),
    ``waited_ns`` (null: never), ``attempts``, ``refused``, and of :data:`PARTS` each as ``PART_ns``, which add up to
    the time from its first attempt until it was back, or until the limit."""
    sent, answered = F.col("sent_ns"), F.col("answered_ns")
    between = F.coalesce(F.col("next_ns") - answered, F.lit(0))
    parts = {
        "to_broker": sent - F.col("scheduled_ns"),
        "refused": _where(F.col("outcome") == "refused", answered - sent),
        "unanswered": _where(F.col("outcome").isin("timeout", "failed"), answered - sent),
        "slot": _where(F.col("slot").isin("heeded", "late"), between),
        "backoff": _where(F.coalesce(F.col("slot"), F.lit("")).isin("heeded", "late"), F.lit(0), between),
        "restoring": _where(F.col("outcome") == "restored", answered - sent),
    }
    summed = (
        followed(attempts)
        .groupBy("client")
        .agg(
            *(F.first(name).alias(name) for name in COLUMNS),
            F.min("scheduled_ns").alias("begun_ns"),
            F.max(F.when(F.col("outcome") == "restored", answered)).alias("back_ns"),
            F.max("answered_ns").alias("last_ns"),
            F.count("*").alias("attempts"),
            F.count_if(F.col("outcome") == "refused").alias("refused"),
            *(F.sum(part).alias(f"{name}_ns") for name, part in parts.items()),
        )
    )
    open_ns = F.greatest(F.lit(0), F.lit(round(limit_s * 1e9)) - F.col("last_ns"))
    return (
        summed.withColumn("open_ns", F.when(F.col("back_ns").isNull(), open_ns).otherwise(0))
        .withColumn("waited_ns", F.col("back_ns") - F.col("begun_ns"))
        .drop("last_ns")
    )


def curve(attempts: DataFrame, returning: int, step_s: float = 0.1) -> DataFrame:
    """Per step of time in which anything happened: ``from_s``, ``until_s``, attempts ``begun`` and ``sent`` in it,
    those that ended in it as ``restored``, ``refused``, ``timeout``, ``failed``; and the ``share`` of the returning
    clients that were back by its end."""
    step_ns = round(step_s * 1e9)

    def counted(column: str, name: Column) -> DataFrame:
        return attempts.select(F.floor(F.col(column) / step_ns).alias("step"), name.alias("what"))

    ended = counted("answered_ns", F.col("outcome").cast("string"))
    all_of_it = ended.union(counted("scheduled_ns", F.lit("begun"))).union(counted("sent_ns", F.lit("sent")))
    names = ("begun", "sent", "restored", "refused", "timeout", "failed")
    counts = all_of_it.groupBy("step").pivot("what", list(names)).count().fillna(0)
    # The window is over as many rows as there are steps, whose number does not depend on that of the clients.
    so_far = Window.partitionBy(F.col("step").isNull()).orderBy("step")
    return (
        counts.withColumn("share", F.sum("restored").over(so_far) / returning)
        .orderBy("step")
        .select(
            (F.col("step") * step_s).alias("from_s"), ((F.col("step") + 1) * step_s).alias("until_s"), *names, "share"
        )
    )


def percentiles(found: DataFrame, returning: int) -> DataFrame:
    """From :func:`clients`, for everything (``by`` is ``all``) and by each of :data:`COLUMNS`: ``clients``,
    ``restored``, ``attempts`` and ``refused``, and by when 50, 90, 99, 99.9 and 100 % of the clients were back
    (``t50_s`` ...), each counted from its own first attempt; null if fewer are back. Clients that were to return and of
    which no attempt has ended are in ``all`` alone: nothing says what else they are."""
    alike = found.groupBy(*COLUMNS, "waited_ns").agg(
        F.count("*").alias("clients"),
        F.count("back_ns").alias("restored"),
        F.sum("attempts").alias("attempts"),
        F.sum("refused").alias("refused"),
    )
    sums = ("clients", "restored", "attempts", "refused")
    counts = in_cuts(alike, COLUMNS).groupBy(BY, VALUE, "waited_ns").agg(*(F.sum(name).alias(name) for name in sums))
    of_cut = Window.partitionBy(BY, VALUE)
    known = F.sum("clients").over(of_cut)
    total = F.when(F.col(BY) == ALL, F.greatest(F.lit(returning), known)).otherwise(known)
    back_by = F.sum("restored").over(of_cut.orderBy(F.col("waited_ns").asc_nulls_last()))
    ranked = counts.withColumn("total", total).withColumn("back_by", back_by)
    times = []
    for percent in PERCENTS:
        wanted = F.ceil(F.col("total") * percent / 100 - 1e-9)
        by_then = F.min(F.when(F.col("back_by") >= wanted, F.col("waited_ns")))
        times.append((by_then / 1e9).alias(name_of(percent)))
    return (
        ranked.groupBy(BY, VALUE)
        .agg(F.first("total").alias("clients"), *(F.sum(name).alias(name) for name in sums[1:]), *times)
        .orderBy(F.col(BY) != ALL, BY, VALUE)
    )


def name_of(percent: float) -> str:
    """``t999_s`` of 99.9."""
    return f"t{f'{percent:g}'.replace('.', '')}_s"


def tries(found: DataFrame) -> DataFrame:
    """From :func:`clients`: how many ``clients`` made so many ``attempts``, and how many of them are ``restored``."""
    counted = found.groupBy("attempts").agg(F.count("*").alias("clients"), F.count("back_ns").alias("restored"))
    return counted.orderBy("attempts")


def slots(attempts: DataFrame) -> DataFrame:
    """By ``policy`` and by what became of the time to come back that a refusal named (``slot``, as in
    :func:`followed`): how many ``refusals``; how many of the attempts that followed were ``restored`` or ``refused``
    again; and by how many seconds clients came off their time in the mean (``off_s``, below 0: before it)."""
    of_client = Window.partitionBy("client").orderBy("attempt")
    off_s = (F.col("next_ns") - F.col("answered_ns")) / 1e9 - F.col("slot_ms") / 1e3
    then = F.lead("outcome").over(of_client)
    return (
        followed(attempts)
        .withColumn("then", then)
        .where(F.col("slot").isNotNull())
        .groupBy("policy", "slot")
        .agg(
            F.count("*").alias("refusals"),
            F.count_if(F.col("then") == "restored").alias("then_restored"),
            F.count_if(F.col("then") == "refused").alias("then_refused"),
            F.avg(F.when(F.col("slot_ms") >= 0, off_s)).alias("off_s"),
        )
        .orderBy("policy", "slot")
    )


def last(found: DataFrame, count: int = 10) -> DataFrame:
    """From :func:`clients`: those who were last, those who are not back first, with where their time went in seconds
    (``PART_s``) and ``why``: the part that took most of it."""
    return (
        _with_why(found)
        .orderBy(F.col("back_ns").isNotNull(), F.col("waited_ns").desc(), F.col("attempts").desc(), "client")
        .limit(count)
    )


def reasons(found: DataFrame, share: float = 0.01) -> DataFrame:
    """From :func:`clients`: for ``who`` in ``all`` and ``last`` (that share of the clients, and all who waited as long
    as the first of them): ``clients``, seconds in each part in the mean (``PART_s``), ``attempts`` in the mean."""
    marked = _marked(found, share)
    everyone = marked.withColumn("who", F.lit("all")).union(marked.where("is_last").withColumn("who", F.lit("last")))
    return (
        everyone.groupBy("who")
        .agg(
            F.count("*").alias("clients"),
            F.avg("attempts").alias("attempts"),
            *((F.avg(f"{part}_ns") / 1e9).alias(f"{part}_s") for part in PARTS),
        )
        .orderBy("who")
    )


def in_common(found: DataFrame, share: float = 0.01) -> DataFrame:
    """From :func:`clients`, by each of :data:`COLUMNS`: ``clients``, how many of them were ``last`` (as in
    :func:`reasons`), and ``times``: how many times as often as the mean client one of these was last. The ones that
    have most of it come first."""
    marked = (
        _marked(found, share).groupBy(*COLUMNS).agg(F.count("*").alias("clients"), F.count_if("is_last").alias("last"))
    )
    sums = (
        in_cuts(marked, COLUMNS).groupBy(BY, VALUE).agg(F.sum("clients").alias("clients"), F.sum("last").alias("last"))
    )
    whole = sums.where(F.col(BY) == ALL).select((F.col("last") / F.col("clients")).alias("mean"))
    times = F.col("last") / F.col("clients") / F.col("mean")
    return (
        sums.where(F.col(BY) != ALL)
        .crossJoin(F.broadcast(whole))
        .withColumn("times", F.when(F.col("mean") > 0, times))
        .drop("mean")
        .orderBy(F.col("times").desc_nulls_last(), F.col("last").desc(), BY, VALUE)
    )


def stalls(attempts: DataFrame, limit_s: float, least_s: float = STALL_S) -> DataFrame:
    """When nobody was restored for at least ``least_s`` although somebody waited, of all clients and of each group:
    ``from_s``, ``to_s``, ``waiting`` (clients that had begun and were not back when it began), attempts ``sent``
    meanwhile, and how attempts ended: ``refused``, ``timeout``, ``failed``. ``ended``: whether somebody came back, or
    the storm was given up. Times are exact to 10 ms."""
    ticks = F.floor(F.col("ns") / _TICK_NS)
    names = ("begun", "sent", "restored", "refused", "timeout", "failed")

    def events(column: str, what: Column) -> DataFrame:
        return attempts.select("group", F.col(column).alias("ns"), what.alias("what"))

    first = F.when(F.col("attempt") == 1, "begun").otherwise("again")
    happened = (
        events("answered_ns", F.col("outcome").cast("string"))
        .union(events("scheduled_ns", first))
        .union(events("sent_ns", F.lit("sent")))
    )
    alike = happened.groupBy("group", ticks.alias("tick")).pivot("what", list(names)).count().fillna(0)
    counts = in_cuts(alike, ["group"]).groupBy(BY, VALUE, "tick").agg(*(F.sum(name).alias(name) for name in names))
    end_tick = round(limit_s * 1e9) // _TICK_NS
    zeros = [F.lit(0).cast("long").alias(name) for name in names]
    ends = counts.select(BY, VALUE).distinct().select(BY, VALUE, F.lit(end_tick).cast("long").alias("tick"), *zeros)
    timed = counts.withColumn("ended", F.lit(True)).union(ends.withColumn("ended", F.lit(False)))

    in_order = Window.partitionBy(BY, VALUE).orderBy("tick", F.col("ended").desc())
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    until = in_order.rowsBetween(Window.unboundedPreceding, 0)
    waiting = F.sum(F.col("begun") - F.col("restored"))
    told = ("sent", "refused", "timeout", "failed")
    sums = [F.sum(name).over(until).alias(f"{name}_sum") for name in told]
    running = timed.select(
        "*",
        F.coalesce(waiting.over(before), F.lit(0)).alias("waiting_before"),
        waiting.over(until).alias("waiting"),
        *sums,
    )
    # A time without restores begins with a restore after which somebody still waits, or with the first who waits.
    begins = (F.col("waiting") > 0) & ((F.col("restored") > 0) | (F.col("waiting_before") == 0))
    start = F.struct("tick", "waiting", *(f"{name}_sum" for name in told))
    found = running.withColumn("start", F.last(F.when(begins, start), ignorenulls=True).over(before))
    over = ((F.col("restored") > 0) | ~F.col("ended")) & (F.col("waiting_before") > 0)
    seconds_ = (F.col("tick") - F.col("start.tick")) * _TICK_NS / 1e9
    return (
        found.where(over & (seconds_ >= least_s))
        .select(
            BY,
            VALUE,
            (F.col("start.tick") * _TICK_NS / 1e9).alias("from_s"),
            (F.col("tick") * _TICK_NS / 1e9).alias("to_s"),
            F.col("start.waiting").alias("waiting"),
            *((F.col(f"{name}_sum") - F.col(f"start.{name}_sum")).alias(name) for name in told),
            "ended",
        )
        .orderBy(F.col(BY) != ALL, "from_s", VALUE)
    )


def _where(condition: Column, value: Column, otherwise: Column | None = None) -> Column:
    return F.when(condition, value).otherwise(F.lit(0) if otherwise is None else otherwise)


def _with_why(found: DataFrame) -> DataFrame:
    """With ``PART_s`` instead of ``PART_ns``, and ``why``."""
    most = F.greatest(*(f"{part}_ns" for part in PARTS))
    why = F.coalesce(*(F.when(F.col(f"{part}_ns") == most, part) for part in PARTS))
    seconds_ = [(F.col(f"{part}_ns") / 1e9).alias(f"{part}_s") for part in PARTS]
    rest = [name for name in found.columns if name not in {f"{part}_ns" for part in PARTS}]
    return found.select(*rest, *seconds_, why.alias("why"))


def _marked(found: DataFrame, share: float) -> DataFrame:
    """With ``is_last``: fewer than that share of the clients waited longer than this one. Who is not back waits on."""
    waited = F.coalesce(F.col("waited_ns"), F.lit(2**62))
    alike = found.groupBy(waited.alias("waited")).agg(F.count("*").alias("clients"))
    all_of_them = Window.partitionBy(F.col("waited").isNull())
    longer = F.sum("clients").over(all_of_them.orderBy(F.desc("waited")).rowsBetween(Window.unboundedPreceding, -1))
    few = F.coalesce(longer, F.lit(0)) < F.sum("clients").over(all_of_them) * share
    least = alike.withColumn("few", few).where("few").agg(F.min("waited").alias("_least"))
    return found.crossJoin(F.broadcast(least)).withColumn("is_last", waited >= F.col("_least")).drop("_least")
