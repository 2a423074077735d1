"""The documentation site is built from the pages without a warning, and each of its links leads to a place."""

from __future__ import annotations

import importlib.util
import re
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urldefrag

import pytest

FILE = Path(__file__).resolve().parents[3] / "docs" / "site.py"


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("documentation_site", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Page(HTMLParser):
    """The places of a page of HTML, and its links."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.ids.add(given.get("id") or "")
        if tag in ("a", "img") and (link := given.get("href" if tag == "a" else "src")):
            self.links.append(link)


def dead_links(folder: Path) -> list[str]:
    """The links between the pages of a site that lead to no file, or to no place in it."""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in folder.rglob("*.html")}
    dead = []
    for path, page in pages.items():
        for link in page.links:
            if re.match(r"[a-z]+:", link):
                continue
            name, anchor = urldefrag(link)
            target = (path.parent / unquote(name)).resolve() if name else path
            found = pages.get(target)
            if not target.is_file() or (anchor and found is not None and unquote(anchor) not in found.ids):
                dead.append(f"{path.relative_to(folder.resolve())}: {link}")
    return dead


def test_a_page_is_in_one_part_of_the_contents(builder: ModuleType) -> None:
    names = set(builder.pages())
    listed = re.findall(r"(?m)^/(\S+)$", builder.contents(names))
    assert sorted(listed) == sorted(names - {"README"})


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_its_links_lead_somewhere(
    builder: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """``-W`` makes each warning of Sphinx an error: a link to no page or heading, a page that no contents list."""
    assert builder.main(tmp_path) == 0, capfd.readouterr().err
    site = tmp_path / "site"
    assert {f"{name}.html" for name in builder.pages()} <= {
        p.relative_to(site).as_posix() for p in site.rglob("*.html")
    }
    assert dead_links(site) == []
    page = site / "README.html"
    page.write_text(page.read_text() + '<a href="docs/gone.html">x</a><a href="#gone">y</a>')
    assert dead_links(site) == ["README.html: docs/gone.html", "README.html: #gone"]


@pytest.mark.slow
def test_a_link_that_leads_nowhere_fails_the_build(
    builder: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(builder, "pages", lambda: {"README": "# A\n\n[x](b.md#c)\n", "b": "# B\n"})
    assert builder.main(tmp_path) == 1
    assert "README.md:3" in capfd.readouterr().err
