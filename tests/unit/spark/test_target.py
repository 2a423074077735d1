"""A target is written as people write one, and a wrong one is answered with how to write it."""

from __future__ import annotations

import pytest

from metad_spark.errors import UsageError
from metad_spark.target import Target, parse_target


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("t999<=300s", Target(key="t999", seconds=300)),
        ("t99 <= 5 min", Target(key="t99", seconds=300)),
        ("t50_s<90", Target(key="t50", seconds=90)),
        ("t999<=0.5h", Target(key="t999", seconds=1800)),
    ],
)
def test_targets(text: str, target: Target) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize("text", ["", "t999", "t9<=3s", "t999>=300s", "t999<=0s", "t999<=-3s", "t999<=3d"])
def test_what_is_no_target_is_answered_with_how_to_write_one(text: str) -> None:
    with pytest.raises(UsageError, match="t999<=300s"):
        parse_target(text)


def test_said_in_words() -> None:
    assert str(parse_target("t999<=5min")) == "99.9 % back in 300 s"
