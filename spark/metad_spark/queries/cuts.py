"""The same figures of all rows together, and by each of several columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

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
