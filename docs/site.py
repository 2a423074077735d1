"""Build the documentation site from the pages of the repository: ``make docs``.

It copies the pages into ``.docs/pages``, adds what programs print (``metad config``, ``metad logs``), and lets Sphinx
write HTML to ``.docs/site``. It needs no network. A warning of Sphinx, such as a link that leads nowhere, ends it with
exit status 1.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from metad.config.pages import reference as settings
from metad.log_events import reference as log_events
from metad_client.prometheus import reference as sdk_metrics

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)#: ]+)(#[^) ]*)?\)")
PRINTED = {"docs/CONFIGURATION.md": settings, "docs/LOGS.md": log_events, "docs/SDK_METRICS.md": sdk_metrics}
CONTENTS = {
    "Use": [
        "docs/WRITE_A_BROKER",
        "clients/README",
        "docs/MQTT",
        "docs/families",
        "docs/spark_source",
        "docs/SDK_METRICS",
    ],
    "Operate": ["docs/OPERATE", "docs/CONFIGURATION", "docs/LOGS", "docs/metadctl", "SECURITY"],
    "Speak the protocol": ["wire/PROTOCOL", "wire/TABLES", "wire/INTERNAL"],
    "Measured": ["docs/BENCHMARKS", "docs/compare", "docs/storm", "docs/reports", "docs/storm_models"],
    "Work on it": ["ARCHITECTURE", "CONTRIBUTING", "docs/where", "docs/consensus", "docs/decisions/*", "*/README", "*"],
}
"""The parts of the site: pages, or patterns of pages that no part before has."""


def pages() -> dict[str, str]:
    """The pages of the site: path without ``.md`` -> text."""
    files = [path.relative_to(ROOT) for path in ROOT.rglob("*.md")]
    shown = [path for path in files if not any(part[0] == "." for part in path.parts)]
    found = {path.as_posix(): (ROOT / path).read_text(encoding="utf-8") for path in shown if not _is_change(path)}
    found |= {path: make() for path, make in PRINTED.items()}
    return {path.removesuffix(".md"): text for path, text in sorted(found.items())}


def _is_change(path: Path) -> bool:
    """Whether it is a part of the next changelog, which has no title of its own."""
    return path.parent.as_posix() == "docs/changes" and path.name != "README.md"


def contents(names: set[str]) -> str:
    """The table of contents, as MyST writes it. Each page is in one part."""
    left = names - {"README"}
    parts = []
    for title, patterns in CONTENTS.items():
        named = [name for pattern in patterns for name in sorted(left) if Path("/", name).match(f"/{pattern}")]
        named += sorted(left) if patterns[-1] == "*" else []
        named = list(dict.fromkeys(name for name in named if name in left))
        left -= set(named)
        parts += ["", "```{toctree}", ":hidden:", f":caption: {title}", *(f"/{name}" for name in named), "```"]
    return "\n".join([*parts, ""])


def stage(folder: Path) -> None:
    """Write the pages into a folder, and beside them the files that they link to."""
    found = pages()
    shutil.rmtree(folder, ignore_errors=True)
    for name, text in found.items():
        path = folder / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + (contents(set(found)) if name == "README" else ""), encoding="utf-8")
        for target, _ in LINK.findall(text):
            source = (ROOT / name).parent.joinpath(target).resolve()
            if source.suffix != ".md" and source.is_file():
                copy = folder / source.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, copy)


def main(folder: Path = ROOT / ".docs") -> int:
    """Build the site and say where it is. Returns the exit status of Sphinx."""
    stage(folder / "pages")
    options = ["-q", "-W", "--keep-going", "-E", "-b", "html", "-c", str(ROOT / "docs"), "-d", str(folder / "doctrees")]
    command = [sys.executable, "-m", "sphinx", *options, str(folder / "pages"), str(folder / "site")]
    status = subprocess.run(command, check=False).returncode
    if not status:
        print(f"The documentation is in {folder / 'site' / 'README.html'}.")
    return status


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
