"""Another release of metad, so that nodes of it can be started beside those of this build.

It is the wheel of its server, with the wheel of its SDK in the same folder, or a revision of git, of which both are
built. They are unpacked into a virtual environment of their own, which has all other packages from the environment of
this process: nothing is downloaded.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import Final

from ..errors import ServerError, UsageError

_BUILD_S: Final = 600.0
_SERVER, _SDK = "metad_service", "metad_client"


def unpacked(source: str, directory: Path) -> list[str]:
    """Install a release into this directory. Returns the command that runs a node. Raises UsageError, ServerError."""
    wheels = _wheels(source, directory)
    environment = directory / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    said = _run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
    packages = Path(said.strip())
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(packages)
    _run([str(python), "-m", "compileall", "-q", str(packages)])  # as pip does: else each start of a node would
    # Behind its own packages. What is installed there as a link to a checkout is not followed from a line like this.
    paths = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    (packages / "others.pth").write_text("".join(f"{path}\n" for path in sorted(paths)))
    return [str(python), "-I", "-m", "metad.cli", "serve"]  # nothing of where this process was started


def version_of(command: list[str]) -> str:
    """What the release says of itself, without the word in front. Raises ServerError."""
    return _run([*command[:-1], "--version"]).split()[-1]


def _wheels(source: str, directory: Path) -> list[Path]:
    if not source.endswith(".whl"):
        return _built(source, directory)
    server = Path(source)
    found = re.fullmatch(rf"{_SERVER}-([^-]+)-.*\.whl", server.name)
    if found is None or not server.is_file():
        raise UsageError(f"--from: {source} is no wheel of metad's server ({_SERVER}-VERSION-….whl)")
    sdk = sorted(server.parent.glob(f"{_SDK}-{found[1]}-*.whl"))
    if len(sdk) != 1:
        raise UsageError(
            f"--from: there must be one wheel {_SDK}-{found[1]}-….whl beside {source}, there are {len(sdk)}"
        )
    return [server, sdk[0]]


def _built(revision: str, directory: Path) -> list[Path]:
    """Build both wheels of a revision of the checkout in which this process was started."""
    commit = _run(["git", "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"]).strip()
    archive, sources, wheels = directory / "source.tar", directory / "source", directory / "wheels"
    _run(["git", "archive", f"--output={archive}", commit])
    with tarfile.open(archive) as packed:
        packed.extractall(sources, filter="data")
    how = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    for folder in (sources / "clients", sources):
        _run(["env", f"METAD_COMMIT={commit}", *how, "--wheel-dir", str(wheels), str(folder)])
    return sorted(wheels.glob("*.whl"))


def _run(command: list[str]) -> str:
    """What a command prints. Raises ServerError, with its last words."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerError(f"{command[0]}: {error}") from None
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["it said nothing"]
        raise ServerError(f"{' '.join(command[:4])} … ended with {done.returncode}: {words[0]}")
    return done.stdout
