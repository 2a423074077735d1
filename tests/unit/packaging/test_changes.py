"""What is new stands in one file for each change, and the changelog stays short."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
VERSION_LINES_MAX = 60
CHANGE_BYTES_MAX = 1000


def test_each_version_of_the_changelog_is_short() -> None:
    versions = re.split(r"(?m)^## ", (ROOT / "CHANGELOG.md").read_text())[1:]
    assert versions
    assert {
        text.partition("\n")[0]: text.count("\n") for text in versions if text.count("\n") > VERSION_LINES_MAX
    } == {}


def test_a_change_is_a_sentence_or_two() -> None:
    files = [file for file in (ROOT / "docs" / "changes").iterdir() if file.name != "README.md"]
    wrong = [file.name for file in files if not re.fullmatch(r"[a-z0-9-]+\.md", file.name)]
    wrong += [file.name for file in files if not 10 < len(file.read_text().strip()) <= CHANGE_BYTES_MAX]
    assert not wrong, "docs/changes/README.md says what belongs into such a file"
