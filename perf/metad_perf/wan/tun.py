"""A TUN device: a network interface of the kernel whose other end is a file of ours, one IP packet per read or write.

Linux only, root only. Knows no packet and no policy.
"""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

from ..errors import ServerError

DEVICE = Path("/dev/net/tun")
MTU_BYTES = 1_500
_TUNSETIFF = 0x400454CA
_IFF_TUN = 0x0001
_IFF_NO_PI = 0x1000  # packets as they are, without four bytes in front


def missing() -> str:
    """The missing requirement for TUN devices, in words; empty if none is missing."""
    if os.geteuid() != 0:
        return "TUN devices need root"
    return "" if os.access(DEVICE, os.R_OK | os.W_OK) else f"TUN devices need {DEVICE}"


def open_tun(name: str) -> int:
    """Make the device, which lives as long as its file; returns the non-blocking file. Without offloads, so that the
    kernel hands out no packet over the MTU: what is lost or delayed is what would be on a wire. Raises ServerError."""
    try:
        fd = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ServerError(f"{DEVICE}: {error.strerror}") from error
    try:
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    except OSError as error:
        os.close(fd)
        raise ServerError(f"cannot make the TUN device {name}: {error.strerror}") from error
    return fd
