"""The console in a real browser. Without Chromium the tests are skipped, and say so; METAD_REQUIRE_BROWSER=1 (CI, and
`make console-test`) lets them fail."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "e2e")]

from browsing import Browser  # noqa: E402 - its folder is on the path only now


@pytest.fixture(scope="session")
def chromium() -> None:
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    if missing:
        assert os.environ.get("METAD_REQUIRE_BROWSER") != "1", f"{' and '.join(missing)} is missing"
        pytest.skip(f"needs {' and '.join(missing)}")


@pytest.fixture(scope="module")
def browser(chromium: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One with a fresh profile, for the tests of one file."""
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser
