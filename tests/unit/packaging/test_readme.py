"""The README promises only what is there: measured numbers, files, commands and targets."""

from __future__ import annotations

import re
import xml.etree.ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text()


def section(title: str) -> str:
    return README.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_the_comparison_has_rows_of_measured_numbers() -> None:
    rows = [line for line in section("Against others").splitlines() if line.startswith("| ")][2:]
    assert len(rows) >= 5
    measured = {*re.split(r"[ \n();]+", (ROOT / "docs" / "BENCHMARKS.md").read_text())}
    for row in rows:
        *_, ours, theirs, gain = (cell.strip() for cell in row.strip("|").split("|"))
        figures = [*re.findall(r"[\d.,]*\d", f"{ours} {theirs}"), gain.removesuffix(" ×")]
        assert measured.issuperset(figures), row


def test_the_picture_is_drawn_with_a_title_and_a_background() -> None:
    """Without a background its text cannot be read on a dark page."""
    root = xml.etree.ElementTree.parse(ROOT / "storm.svg").getroot()
    name = "{http://www.w3.org/2000/svg}"
    assert root.findtext(f"{name}title")
    background = root.find(f"{name}rect")
    assert background is not None
    width, height = root.attrib["viewBox"].split()[2:]
    assert (background.get("width"), background.get("height")) == (width, height)


@pytest.mark.parametrize("target", sorted(set(re.findall(r"(?m)(?:`|^)make ([a-z-]+)", README))))
def test_targets_of_make_exist(target: str) -> None:
    assert re.search(rf"(?m)^{target}:", (ROOT / "Makefile").read_text())


def test_what_it_is_not_is_said() -> None:
    assert section("What it is not (yet)").count("\n- ") >= 6
