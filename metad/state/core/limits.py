"""Limits on requests, replies and entries. Breaking one refuses the whole request before anything is done. Those on
single items are in :mod:`metad_wire.table`."""

from __future__ import annotations

from metad_wire.errors import TooLargeError
from metad_wire.messages import BATCH_ITEMS_MAX, BROKER_BYTES_MAX, CHANGE_BYTES_MAX, KEY_BYTES_MAX
from metad_wire.tables.inflight import INFLIGHT_BYTES_MAX, INFLIGHT_MAX
from metad_wire.tables.subscription import SUBSCRIPTION_BYTES_MAX, SUBSCRIPTIONS_MAX

from ...storage.keys import GROUP_PREFIX_BYTES

REPLY_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of records in one reply, some milliseconds of reading and encrypting; what holds more is asked for in parts."""

ENTRY_BYTES_FULL = 1024 * 1024
"""An entry that has grown to this takes no further command."""
PREVIOUS_BYTES_MAX = BATCH_ITEMS_MAX * (BROKER_BYTES_MAX + 32)
"""Of the owners that one command replaces, if each session has another one with a long name."""
ENDED_BYTES_MAX = (
    SUBSCRIPTION_BYTES_MAX
    + INFLIGHT_BYTES_MAX
    + (GROUP_PREFIX_BYTES + 1) * (SUBSCRIPTIONS_MAX + INFLIGHT_MAX + 1)
    + KEY_BYTES_MAX
)
"""Of the keys of what belongs to the sessions that one command ends. It is what one session may have, for each can be
ended; so it does not count as what the command changes, either."""
ENTRY_BYTES_MAX = ENTRY_BYTES_FULL + CHANGE_BYTES_MAX + ENDED_BYTES_MAX + PREVIOUS_BYTES_MAX + 2 * 1024 * 1024
"""No entry is larger: full but for a byte, one more command with what it replaces, and the deletions of what was
remembered for retries. It fits a frame between nodes with what else travels in that (a test adds them up), or no
follower could ever take it."""
LOOKED_AT_BYTES_MAX = 16 * 1024 * 1024
"""Of rows that one command reads from the engine before it writes: some 8 ms for which nobody else is served."""
SCANNED_ROW_BYTES = 512
"""What a row that is found by a scan counts among them beside its own bytes: it takes about as long."""


def check_change(size: int) -> None:
    """Raise TooLargeError where a command changes too much to be one entry."""
    if size > CHANGE_BYTES_MAX:
        raise TooLargeError(
            f"the request changes over {CHANGE_BYTES_MAX} bytes of a group, keys and replies included: send it in parts"
        )


def reply_limit(frame_bytes: int) -> int:
    """Bytes of records in a reply that must fit a frame; an eighth of the frame is for the rest."""
    return min(REPLY_BYTES_MAX, frame_bytes // 16 * 14)


def check_reply(size: int, bytes_max: int) -> None:
    """Raise TooLargeError if a reply is getting too long."""
    if size > bytes_max:
        raise TooLargeError(f"the reply would be over {bytes_max} bytes: ask for fewer records at once")
