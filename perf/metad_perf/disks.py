"""Small disks of our own that can be full, and slow: ext4 in a file behind a loop device, and a cgroup that throttles.

Needs root, ``mount`` and ``mkfs.ext4``; slowness also cgroup v1's blkio controller. Blocking.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

from .errors import ServerError

DISK_BYTES = 1024 * 1024 * 1024
_TIMEOUT_S = 60.0
_FILLER = "filler"
_CHUNK_BYTES = 16 * 1024 * 1024
_BLKIO = Path("/sys/fs/cgroup/blkio")


def missing() -> str:
    """What is missing for disks that fill up; empty where nothing is."""
    if os.geteuid() != 0:
        return "mounting a small disk needs root"
    absent = [program for program in ("mount", "umount", "mkfs.ext4", "losetup") if shutil.which(program) is None]
    if absent:
        return f"a small disk needs {' and '.join(absent)}"
    return "" if Path("/dev/loop-control").exists() else "there are no loop devices"


def throttle_missing() -> str:
    """What is missing for slow disks; empty where nothing is."""
    if missing():
        return missing()
    usable = os.access(_BLKIO / "blkio.throttle.write_iops_device", os.W_OK)
    return "" if usable else "there is no blkio controller (cgroup v1) to slow a disk with"


class Disk:
    """One file system in ``directory``, mounted there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "disk"
        self._image = directory / "disk.img"
        self._cgroup = _BLKIO / f"metad-perf-{os.getpid()}-{directory.name}"
        self._mounted = False

    def make(self) -> None:
        """Make and mount it. Raises ServerError."""
        self.directory.mkdir(parents=True)
        with self._image.open("wb") as image:
            image.truncate(DISK_BYTES)
        _do("mkfs.ext4", "-q", "-F", "-m", "0", str(self._image))
        _do("mount", "-o", "loop", str(self._image), str(self.directory))
        self._mounted = True

    def fill(self) -> None:
        """Leave no room: until :meth:`free`, who writes is told that no space is left. A node that is busy may free a
        little and use it, so whoever wants it to fail calls this again until it has."""
        with (self.directory / _FILLER).open("ab") as filler:
            size = _CHUNK_BYTES
            while size >= 4096:
                try:
                    os.posix_fallocate(filler.fileno(), filler.seek(0, os.SEEK_END), size)
                except OSError:
                    size //= 2

    def free(self) -> None:
        """There is room again."""
        (self.directory / _FILLER).unlink(missing_ok=True)

    def slow(self, pid: int, writes_per_s: int) -> None:
        """So many writes per second for a process, fsyncs among them."""
        device = subprocess.run(
            ["findmnt", "-no", "MAJ:MIN", str(self.directory)], capture_output=True, text=True, check=False
        ).stdout.strip()
        self._cgroup.mkdir(exist_ok=True)
        (self._cgroup / "blkio.throttle.write_iops_device").write_text(f"{device} {writes_per_s}")
        (self._cgroup / "cgroup.procs").write_text(str(pid))

    def fast(self, pid: int) -> None:
        """As fast as before."""
        with contextlib.suppress(OSError):
            (_BLKIO / "cgroup.procs").write_text(str(pid))
        with contextlib.suppress(OSError):
            self._cgroup.rmdir()

    def remove(self) -> None:
        """Unmount it. Whoever wrote to it has ended."""
        with contextlib.suppress(OSError):
            self._cgroup.rmdir()
        if self._mounted:
            with contextlib.suppress(ServerError):
                _do("umount", "-l", str(self.directory))
            self._mounted = False
        self._image.unlink(missing_ok=True)


def _do(*command: str) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise ServerError(f"{' '.join(command)}: {' '.join(done.stderr.split()) or done.returncode}")
