"""Fill in the bytes of the golden files: run it by hand, and explain its diff in the commit.

A released row that changes is a break of the wire format, whatever the reason.
"""

from golden_rows import (
    FRAMES,
    MESSAGES,
    RAFT,
    SNAPSHOTS,
    encode_frame_row,
    encode_message,
    encode_raft,
    encode_stream,
    fill,
)

if __name__ == "__main__":
    fill(MESSAGES, encode_message)
    fill(FRAMES, encode_frame_row)
    fill(RAFT, encode_raft)
    fill(SNAPSHOTS, encode_stream)
