"""Small disks of our own that can be full, slow, or hang: ext4 in a file behind a loop device, a cgroup that throttles
it, and below it another such file system, which can be frozen.

While that one is frozen, the device in the file accepts writes and completes none: an fsync does not return, while
writes to the system's cache continue.

Needs root, ``mount`` and ``mkfs.ext4``; slow disks also need cgroup v1's blkio controller, hanging ones ``fsfreeze``.
Blocking.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

from ..errors import ServerError

DISK_BYTES = 1024 * 1024 * 1024
_BELOW_BYTES = DISK_BYTES + DISK_BYTES // 8  # includes room for the file system's own data
_TIMEOUT_S = 60.0
_FILLER = "filler"
_CHUNK_BYTES = 16 * 1024 * 1024
_BLKIO = Path("/sys/fs/cgroup/blkio")


def missing() -> str:
    """The missing requirement for disks that fill up; empty if none is missing."""
    if os.geteuid() != 0:
        return "mounting a small disk needs root"
    absent = [program for program in ("mount", "umount", "mkfs.ext4", "losetup") if shutil.which(program) is None]
    if absent:
        return f"a small disk needs {' and '.join(absent)}"
    return "" if Path("/dev/loop-control").exists() else "there are no loop devices"


def throttle_missing() -> str:
    """The missing requirement for slow disks; empty if none is missing."""
    if missing():
        return missing()
    usable = os.access(_BLKIO / "blkio.throttle.write_iops_device", os.W_OK)
    return "" if usable else "there is no blkio controller (cgroup v1) to slow a disk with"


def hang_missing() -> str:
    """The missing requirement for disks that hang; empty if none is missing."""
    if missing():
        return missing()
    return "" if shutil.which("fsfreeze") else "a disk that hangs needs fsfreeze"


class Disk:
    """One file system in ``directory``, mounted there; with ``hangs``, :meth:`hang` can be called."""

    def __init__(self, directory: Path, *, hangs: bool = False) -> None:
        self.directory = directory / "disk"
        self._below = directory / "below" if hangs else None
        self._image = (self._below or directory) / "disk.img"
        self._below_image = directory / "below.img"
        self._cgroup = _BLKIO / f"metad-perf-{os.getpid()}-{directory.name}"
        self._mounted: list[Path] = []
        self._frozen = False

    def make(self) -> None:
        """Make and mount it. Raises ServerError."""
        if self._below is not None:
            self._mount(self._below_image, _BELOW_BYTES, self._below)
        self._mount(self._image, DISK_BYTES, self.directory)

    def _mount(self, file: Path, size: int, directory: Path) -> None:
        directory.mkdir(parents=True)
        with file.open("wb") as image:
            image.truncate(size)
        _do("mkfs.ext4", "-q", "-F", "-m", "0", str(file))
        _do("mount", "-o", "loop", str(file), str(directory))
        self._mounted.append(directory)

    def hang(self) -> None:
        """From now on no fsync returns. Raises ServerError."""
        assert self._below is not None
        self._frozen = True
        _do("fsfreeze", "--freeze", str(self._below))

    def unhang(self) -> None:
        """Let the waiting writes continue."""
        if self._frozen and self._below is not None:
            with contextlib.suppress(ServerError):  # it was never frozen
                _do("fsfreeze", "--unfreeze", str(self._below))
            self._frozen = False

    def fill(self, leave_bytes: int = 0) -> None:
        """Leave so much room. If none: until :meth:`free`, writes fail with "no space left". A busy node may free a
        little and use it, so a caller that wants it to fail repeats this until it has."""
        with (self.directory / _FILLER).open("ab") as filler:
            size = _CHUNK_BYTES
            while size >= 4096:
                found = os.statvfs(self.directory)
                if found.f_bavail * found.f_frsize - size < leave_bytes:
                    size //= 2
                    continue
                try:
                    os.posix_fallocate(filler.fileno(), filler.seek(0, os.SEEK_END), size)
                except OSError:
                    size //= 2

    def free(self) -> None:
        """Make room again."""
        (self.directory / _FILLER).unlink(missing_ok=True)

    def slow(self, pid: int, writes_per_s: int) -> None:
        """Limit a process to so many writes per second, fsyncs included."""
        device = subprocess.run(
            ["findmnt", "-no", "MAJ:MIN", str(self.directory)], capture_output=True, text=True, check=False
        ).stdout.strip()
        self._cgroup.mkdir(exist_ok=True)
        (self._cgroup / "blkio.throttle.write_iops_device").write_text(f"{device} {writes_per_s}")
        (self._cgroup / "cgroup.procs").write_text(str(pid))

    def fast(self, pid: int) -> None:
        """Lift the limit of :meth:`slow`."""
        with contextlib.suppress(OSError):
            (_BLKIO / "cgroup.procs").write_text(str(pid))
        with contextlib.suppress(OSError):
            self._cgroup.rmdir()

    def remove(self) -> None:
        """Unmount it. The processes that wrote to it must have ended."""
        self.unhang()
        with contextlib.suppress(OSError):
            self._cgroup.rmdir()
        for directory in reversed(self._mounted):
            with contextlib.suppress(ServerError):
                _do("umount", "-l", str(directory))
        self._mounted.clear()
        for image in (self._image, self._below_image):
            image.unlink(missing_ok=True)


def _do(*command: str) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise ServerError(f"{' '.join(command)}: {' '.join(done.stderr.split()) or done.returncode}")
