"""Bugs to plant in the queries: each breaks one thing that a query says, and names the test here that objects.

A mutant is planted in a function, and the test is called as it is. Constants of the modules are not touched.
"""

from __future__ import annotations

from typing import Final

import metad_spark.queries.census
import metad_spark.queries.lag
import metad_spark.queries.orphans
import metad_spark.queries.postmortem
import metad_spark.queries.skew  # noqa: F401  # planting finds modules that are imported
from sim.mutants.planting import Mutant, one_edit

CENSUS: Final = "a_census_has_each_session_once_with_what_is_its_own"
ORPHANS: Final = "each_kind_of_orphan_is_found_and_nothing_else"
LAG: Final = "lag_says_what_is_known"
KEYS: Final = "keys_have_the_bytes_of_their_texts_and_values"
HEAVIEST: Final = "the_heaviest_keys_have_all_that_is_routed_with_them"
SLOTS: Final = "slots_are_heeded_or_not"
STALLS: Final = "a_stall_needs_somebody_who_waits"
LAST: Final = "the_last_ones_and_what_they_have_in_common"
TIME: Final = "a_clients_time_goes_somewhere_and_all_of_it"
PERCENTILES: Final = "percentiles_are_those_that_the_storm_itself_would_say"
CURVE: Final = "the_curve_counts_each_attempt_once_in_each_role"
TRIES: Final = "tries"


def _in(test: str, function: str, *bugs: tuple[str, str, str, str]) -> tuple[Mutant, ...]:
    """Mutants of one function, as (name, what it breaks, what is there, what is put there)."""
    target = f"metad_spark.queries.{function}"
    return tuple(one_edit(name, breaks, target, old, new, test) for name, breaks, old, new in bugs)


MUTANTS: Final = (
    # --- census
    *_in(
        CENSUS,
        "census:sessions_of",
        ("strange_brokers_lost", "all sessions count", '(regions), "broker", "left")', '(regions), "broker", "inner")'),
        ("no_filters_lost", "all sessions count", '(filters, key, "left")', '(filters, key, "inner")'),
        ("names_over_tenants", "keys have tenants", "(filters, key,", '(filters.drop("tenant"), "client_id",'),
        ("endless_expires", "some stay", "expiry_s < NEVER_S", "expiry_s <= NEVER_S"),
        ("seen_while_here", "who is here is not away", "~F.col(", "F.col("),
        ("left_tomorrow", "clocks differ", "F.greatest(F.lit(0.0), ", "F.greatest(F.lit(-1e9), "),
        ("all_end", "0 is no time", 'F.col("expires_ms") > 0', 'F.col("expires_ms") >= 0'),
        (
            "ends_in_ms",
            "seconds",
            '(F.col("expires_ms") - F.lit(now_ms)) / 1000',
            'F.col("expires_ms") - F.lit(now_ms)',
        ),
        (
            "payload_unknown",
            "no payload is 0",
            'F.coalesce(F.octet_length("payload"), F.lit(0))',
            'F.octet_length("payload")',
        ),
        ("waiting_counted", "bytes", 'F.sum(F.octet_length("value"))', 'F.count("value")'),
        ("will_or_not", "wills", ".isNotNull()", ".isNull()"),
    ),
    *_in(
        CENSUS,
        "census:census",
        ("no_regions_alone", "every cut", ".cube(", ".rollup("),
        ("all_connected", "connected", 'F.count_if("connected")', 'F.count("connected")'),
        ("endless_turned", "endless", ".isNull()).alias", ".isNotNull()).alias"),
        ("all_have_wills", "wills", 'F.count_if("has_will")', 'F.count("has_will")'),
        ("sums_are_means", "sums", "F.sum(name)", "F.avg(name)"),
        ("percentiles_early", "percentiles", "F.lit(percent / 100)", "F.lit(percent / 200)"),
    ),
    *_in(
        CENSUS,
        "census:population",
        ("means_are_maxima", "means", "F.avg(name)", "F.max(name)"),
        ("everybody_ends", "who ends", 'F.count("ends_in_s")', 'F.count("*")'),
        ("a_step_less", "both ends", "range(STEPS + 1)", "range(STEPS)"),
        ("here_or_not", "connected", 'F.count_if("connected")', 'F.count("*")'),
    ),
    *_in(CENSUS, "census:by_slot", ("slots_connected", "connected", 'F.count_if("connected")', 'F.count("*")')),
    # --- lag
    *_in(
        LAG,
        "lag:lag",
        (
            "topics_over_tenants",
            "topics have tenants",
            "Window.partitionBy(*_PARTITION)",
            'Window.partitionBy("topic", "partition")',
        ),
        ("nearest", "the furthest", 'F.max("offset")', 'F.min("offset")'),
        ("caught_up_is_stale", "at the head", "F.when(head >= offset, EXACT)", "F.when(head > offset, EXACT)"),
        ("stale_is_unknown", "stale heads", ".when(head.isNotNull(), STALE_HEAD)", ""),
        ("alone_is_known", "nobody to compare with", 'F.col("_readers") > 1', 'F.col("_readers") >= 1'),
        ("head_ignored", "heads are exact", "== EXACT, head - offset", '== EXACT, F.col("furthest") - offset'),
        ("headless_lost", "every offset has a row", ', by, "left")', ', by, "inner")'),
        ("tenants_of_heads_ignored", "heads of a tenant", "if name in heads.columns", 'if name != "tenant"'),
        ("commits_of_tomorrow", "clocks differ", "F.greatest(F.lit(0.0), ", "F.greatest(F.lit(-1e9), "),
    ),
    *_in(
        LAG,
        "lag:worst",
        ("least_first", "the worst first", 'F.desc("lag")', 'F.asc("lag")'),
        ("caught_up_listed", "only who is behind", "lag > 0", "lag >= 0"),
    ),
    *_in(
        LAG,
        "lag:groups",
        ("lag_of_one", "sums", 'F.sum("lag")', 'F.max("lag")'),
        ("lag_max_of_all", "the largest", 'F.max("lag")', 'F.sum("lag")'),
        ("stale_is_not_unknown", "stale heads", "known.isin(NOTHING, STALE_HEAD)", "known.isin(NOTHING)"),
        ("first_commit", "the last commit", 'F.min("committed_s")', 'F.sum("committed_s")'),
        ("without_offsets_lost", "groups without offsets", '"full")', '"left")'),
        ("unknown_first", "unknown last", "desc_nulls_last", "desc_nulls_first"),
    ),
    # --- skew
    *_in(
        KEYS,
        "skew:_keys",
        ("keys_apart", "what is routed together", "in table.routing if", "in table.key if"),
        ("columns_of_streams", "what is stored", "if field.name not in _NOT_STORED", ""),
    ),
    *_in(
        KEYS,
        "skew:_octets",
        ("inner_values_lost", "wills have bytes", "isinstance(kind, StructType)", "False"),
        ("letters", "bytes of texts", "coalesce(octet_length({column}), 0)", "coalesce(length({column}), 0)"),
    ),
    *_in(HEAVIEST, "skew:by_slot", ("heaviest_of_a_slot", "sums", 'F.sum("bytes")', 'F.max("bytes")')),
    *_in(HEAVIEST, "skew:by_table", ("rows_are_keys", "keys", 'F.count("*")', 'F.sum("rows")')),
    *_in(
        HEAVIEST,
        "skew:heaviest",
        ("of_the_heaviest", "the mean key", "F.avg(weight)", "F.max(weight)"),
        ("lightest", "the heaviest first", "F.desc(weight)", "F.asc(weight)"),
        (
            "kinds_mixed",
            "the mean of its kind",
            'groupBy("kind", "slot", "key")',
            'groupBy("kind", "slot", "key", "table")',
        ),
    ),
    # --- orphans
    *_in(
        ORPHANS,
        "orphans:orphans",
        (
            "any_tenant_owns",
            "keys have tenants",
            "subscriptions.join(owners, client,",
            'subscriptions.join(owners.drop("tenant"), "client_id",',
        ),
        (
            "inflight_with_owner",
            "alone",
            'inflight.join(owners, client, "left_anti")',
            'inflight.join(owners, client, "left_semi")',
        ),
        (
            "members_with_group",
            "alone",
            'members.join(groups, group, "left_anti")',
            'members.join(groups, group, "left_semi")',
        ),
        ("nobody_found_is_fine", "none is a number", 'F.coalesce("found", F.lit(0))', 'F.col("found")'),
        ("least_is_over", "the least epoch lives", '< F.col("least_epoch")', '<= F.col("least_epoch")'),
        ("newer_lives_over", "newer lives", "(last_life & ~F", "(~F"),
        ("dead_lives_live", "fenced lives", "(last_life & ~F", "(last_life & F"),
        ("away_is_connected", "who is away", 'sessions.where("connected")', 'sessions.where("true")'),
        ("no_time_is_over", "0 is no time", "expires_ms > 0", "expires_ms >= 0"),
        (
            "held_wills_wait",
            "held wills",
            'F.greatest(F.col("due_ms"), F.coalesce("until_ms", F.lit(0)))',
            'F.col("due_ms")',
        ),
        ("early_is_late", "late by so much", 'F.col("since_s") >= least_s', 'F.col("since_s") >= 0'),
        ("oldest_commit", "the last commit", 'F.max("committed_ms")', 'F.min("committed_ms")'),
        (
            "left_long_ago",
            "since they left",
            'F.greatest(F.col("committed_ms"), F.coalesce("since_ms", F.lit(0)))',
            'F.col("committed_ms")',
        ),
        ("known_is_unknown", "strange brokers", 'F.col("last_epoch").isNull()', 'F.col("last_epoch").isNotNull()'),
        ("with_members_is_empty", "empty groups", '"state = 0"', '"state >= 0"'),
    ),
    *_in(
        ORPHANS,
        "orphans:summary",
        ("tenants_are_rows", "tenants", 'F.count_distinct("tenant")', 'F.count("tenant")'),
        ("youngest", "the oldest", 'F.max("since_s")', 'F.sum("since_s")'),
    ),
    # --- postmortem
    *_in(
        SLOTS,
        "postmortem:followed",
        ("no_slack", "jitter", 'F.col("jitter_ms").cast("long") * 1_000_000 + _SLACK_NS', "F.lit(0)"),
        ("early_is_heeded", "early", "off_ns < -slack_ns", "off_ns < -slack_ns * 1000"),
        ("late_is_heeded", "late", "off_ns > slack_ns", "off_ns > slack_ns * 1000000"),
        ("untold_is_open", "no time", 'F.col("slot_ms") < 0, "none"', 'F.col("slot_ms") < -1, "none"'),
        ("backwards", "the next one", '.orderBy("attempt")', '.orderBy(F.desc("attempt"))'),
        ("open_is_late", "open", 'F.col("next_ns").isNull(), "open"', 'F.col("next_ns").isNull(), "late"'),
    ),
    *_in(
        SLOTS,
        "postmortem:slots",
        ("before_instead", "what follows", 'F.lead("outcome")', 'F.lag("outcome")'),
        ("off_untold", "only with a time", 'F.col("slot_ms") >= 0, off_s', 'F.col("slot_ms") >= -1, off_s'),
    ),
    *_in(
        TIME,
        "postmortem:clients",
        (
            "from_the_schedule",
            "attempts begin when sent",
            '"refused": _where(F.col("outcome") == "refused", answered - sent)',
            '"refused": _where(F.col("outcome") == "refused", answered - F.col("scheduled_ns"))',
        ),
        ("failed_is_answered", "failures", 'isin("timeout", "failed")', 'isin("timeout")'),
        (
            "early_is_told",
            "slots",
            '"slot": _where(F.col("slot").isin("heeded", "late"), between)',
            '"slot": _where(F.col("slot").isin("heeded", "late", "early"), between)',
        ),
        ("open_for_all", "who is back", 'F.when(F.col("back_ns").isNull(), open_ns).otherwise(0)', "open_ns"),
        ("waits_from_the_trigger", "its own time", 'F.col("back_ns") - F.col("begun_ns")', 'F.col("back_ns")'),
        (
            "refusals_are_attempts",
            "attempts",
            'F.count("*").alias("attempts")',
            'F.count_if(F.col("outcome") == "refused").alias("attempts")',
        ),
    ),
    *_in(
        PERCENTILES,
        "postmortem:percentiles",
        ("unseen_forgotten", "who never said anything", "F.greatest(F.lit(returning), known)", "known"),
        ("rounded_down", "that share, at least", "F.ceil(", "F.floor("),
        ("restored_are_all", "restored", 'F.count("back_ns")', 'F.count("*")'),
        ("refusals_counted_once", "sums", 'F.sum("refused").alias("refused")', 'F.max("refused").alias("refused")'),
    ),
    *_in(
        CURVE,
        "postmortem:curve",
        ("steps_shifted", "steps", "F.floor(F.col(column) / step_ns)", "F.ceil(F.col(column) / step_ns)"),
        ("shares_of_a_step", "so far", 'F.sum("restored").over(so_far)', 'F.col("restored")'),
        ("sent_is_begun", "roles", 'counted("scheduled_ns", F.lit("begun"))', 'counted("sent_ns", F.lit("begun"))'),
    ),
    *_in(TRIES, "postmortem:tries", ("all_back", "restored", 'F.count("back_ns")', 'F.count("*")')),
    *_in(
        STALLS,
        "postmortem:stalls",
        ("nobody_waits", "somebody waits", '& (F.col("waiting_before") > 0)', ""),
        ("only_after_restores", "who comes first", '| (F.col("waiting_before") == 0)', ""),
        ("given_up_is_none", "the end", '| ~F.col("ended")', ""),
        ("short_ones", "so long at least", "seconds_ >= least_s", "seconds_ > 0"),
        (
            "attempts_begin_again",
            "clients, not attempts",
            'F.when(F.col("attempt") == 1, "begun").otherwise("again")',
            'F.lit("begun")',
        ),
    ),
    *_in(
        LAST,
        "postmortem:last",
        (
            "back_first",
            "who is not back comes first",
            'F.col("back_ns").isNotNull(), F.col',
            'F.col("back_ns").isNull(), F.col',
        ),
        ("quick_first", "the longest", 'F.col("waited_ns").desc()', 'F.col("waited_ns").asc()'),
    ),
    *_in(LAST, "postmortem:_with_why", ("least_is_why", "most of it", "F.greatest(", "F.least(")),
    *_in(
        LAST,
        "postmortem:_marked",
        ("never_is_soon", "never is longest", "F.lit(2**62)", "F.lit(0)"),
        ("one_too_few", "all who waited as long", "< F.sum", "<= 0 * F.sum"),
    ),
    *_in(
        LAST,
        "postmortem:in_common",
        (
            "of_all_that_were_last",
            "times the mean",
            'F.col("last") / F.col("clients") / F.col("mean")',
            'F.col("last") / F.col("clients")',
        ),
    ),
    *_in(LAST, "postmortem:reasons", ("means_are_sums", "means", 'F.avg("attempts")', 'F.sum("attempts")')),
)
