"""Every event that metad logs: its key, its level, what it means, and its fields. ``metad logs`` prints them.

Keys are stable: programs may rely on them. A warning or an error is logged at once, and then at most once a minute for
the same values of the fields that it is *about*; the next line says how many were left out. So is information that is
about something: clients cause it.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple


class Event(NamedTuple):
    """One key."""

    key: str
    level: int
    text: str
    """One sentence for people. Lines from warnings on carry it."""
    fields: dict[str, str]
    """Name -> what it is."""
    about: tuple[str, ...]
    """Lines that do not differ in these fields are the same one again."""


EVENTS: Final[dict[str, Event]] = {}
"""By key, in the order in which they are declared here."""


def _declare(key: str, level: int, text: str, about: tuple[str, ...], fields: dict[str, str]) -> Event:
    if key in EVENTS or not {*about} <= {*fields}:
        raise ValueError(f"{key} is declared twice, or is about a field that it has not")
    event = EVENTS[key] = Event(key, level, text, fields, about)
    return event


def _debug(key: str, text: str, /, **fields: str) -> Event:
    return _declare(key, logging.DEBUG, text, (), fields)


def _info(key: str, text: str, /, *about: str, **fields: str) -> Event:
    return _declare(key, logging.INFO, text, about, fields)


def _warning(key: str, text: str, /, *about: str, **fields: str) -> Event:
    return _declare(key, logging.WARNING, text, about, fields)


def _error(key: str, text: str, /, *about: str, **fields: str) -> Event:
    return _declare(key, logging.ERROR, text, about, fields)


# --- the process: its start, its end, and why ---

LIMIT_LOWERED = _warning(
    "limit_lowered",
    "The process may not have what a setting promises, so the node does with less.",
    "key",
    key="of the setting",
    configured="what it says",
    possible="what counts instead",
    reason="the limit of the process, and how it is set",
)
MEMORY_SHORT = _warning(
    "memory_short",
    "The caches and the limits on what clients may have promise more memory than there is.",
    promised="bytes, of all processes of this node here",
    allowed="bytes",
    reason="who allows no more, and what to do",
)
LINES_DROPPED = _warning(
    "lines_dropped",
    "Lines of this log were dropped, because nobody read it for a while. The process did not wait.",
    "count",
    count="how many",
)

SLOW_REQUEST = _info(
    "slow_request",
    "A request took longer than limits.slow_ms. `metadctl slow` shows more of them, and what they waited for.",
    "method",
    method="what it asked for",
    client="who asked",
    group="of the node's, if it wrote",
    took_ms="from when it had come until it was answered",
    queued_ms="of them it waited to be begun, behind other requests",
    outcome="done, or the error",
    trace="the id of its trace",
)
UNKNOWN_VARIABLE = _warning(
    "unknown_variable",
    "An environment variable that begins like those of metad is none of them.",
    "variable",
    variable="its name",
    did_you_mean="the most similar one",
)
SETTING_WITHOUT_EFFECT = _warning(
    "setting_without_effect",
    "A setting counts only when a cluster forms, and differs from what this cluster has.",
    "key",
    key="the key in the configuration file",
    reason="what the cluster has, and how to change that",
)
SETTING_SET = _info(
    "setting_set",
    "A setting was set while the node runs, or counts again as the configuration file has it.",
    setting="its key",
    value="what counts now, as JSON",
    source="where that is from",
)
SETTING_IGNORED = _warning(
    "setting_ignored",
    "A setting that was set while the node ran does not count: it does not fit any more.",
    "setting",
    setting="its key",
    path="the file that has it",
    reason="why it does not fit",
)
CLEAR_TEXT = _warning(
    "clear_text",
    "Nothing is encrypted: anybody on the network path can read and change the data, and no client is authenticated.",
    "field",
    field="the key of the address",
    endpoint="the address",
)
DIRECTORY_WAS_OPEN = _warning(
    "directory_was_open",
    "Other users of the machine could read the data directory. Now they cannot.",
    path="the directory",
    mode="its permissions before, octal",
)
CONVERTING = _info(
    "converting",
    "The data directory has an older format. It is brought up to this one while the node serves.",
    before="its format",
    format="that of this build",
)
CONVERTED = _info(
    "converted",
    "Nothing of an older format is left in the data directory.",
    before="that format",
    format="the format that it has",
)
FORMAT_REACHED = _info(
    "format_reached",
    "The data directory has a newer format from now on: builds that do not read it refuse it.",
    before="its format before",
    format="its format now",
)
GROUP_CONVERTED = _info(
    "group_converted",
    "A group has nothing of the older format left.",
    group="its name",
    looked_at="rows that were looked at, in the last pass",
)
FEATURE_SWITCHED = _info(
    "feature_switched",
    "A feature of the cluster is on, for ever: nodes whose software does not know it are refused.",
    feature="its name",
)
DIRECTORY_IS_OPEN = _warning(
    "directory_is_open",
    "Other users of the machine may read the data directory, and its permissions cannot be changed.",
    path="the directory",
    mode="its permissions, octal",
    error="why they cannot be changed",
)
RECOVERED = _info(
    "recovered",
    "The node has opened its replicas.",
    groups="how many",
    entries_to_replay="entries of the logs that the state does not have yet",
    state_rebuilt="whether the state was lost and is made anew from the logs",
    seconds="how long that took",
)
LISTENING = _info(
    "listening",
    "The node accepts connections of clients. It may not serve yet.",
    endpoint="the address over TCP",
    quic="the address over QUIC",
    http="the address over HTTP",
    encrypted="whether there are certificates",
    fsync="whether acknowledged writes survive a power failure",
)
LISTENING_FOR_PEERS = _info(
    "listening_for_peers",
    "The node accepts connections of other nodes.",
    endpoint="the address",
    quic="whether QUIC is accepted there, too",
)
NOT_SERVING = _warning(
    "not_serving",
    "The node has started and does not serve yet.",
    "reason",
    waited_s="since the start",
    reason="what it waits for",
    join="cluster.join, if the node is to join",
    unreached="the nodes that are not connected",
    groups="the groups without a leader",
)
SERVING = _info(
    "serving",
    "Every group on this node has a leader: requests are served.",
    endpoint="the address for clients over TCP",
    quic="the address for clients over QUIC",
)
DRAINING = _info("draining", "The node is told to end. It finishes what it has begun.")
HANDED_OVER = _info(
    "handed_over",
    "Other nodes lead what this node led.",
    groups="how many groups were handed over",
    of="how many it led",
    seconds="how long that took",
)
NOT_DRAINED = _warning("not_drained", "Some requests were not answered in time. The clients do not know their outcome.")
STORES_NOT_CLOSED = _error("stores_not_closed", "The stores could not be closed in order.", error="why")
STOPPED = _info("stopped", "The server is closed.", drained="whether every request was answered")
NODE_FAILED = _error(
    "node_failed",
    "The node stops. The outcome of requests in flight is unknown to the clients; their retries find it out.",
    error="why, and what to do",
)
READY_FILE_LATE = _warning(
    "ready_file_late",
    "The ready file is not written yet, because its disk hangs or is full. The process serves.",
    path="its path",
)
READY_FILE_REMAINS = _warning(
    "ready_file_remains", "The ready file could not be removed.", path="the file", error="why"
)
MANAGER_UNREACHABLE = _warning(
    "manager_unreachable",
    "The service manager of this process cannot be told how it is. The process serves all the same.",
    "socket",
    socket="that NOTIFY_SOCKET names",
    error="why",
)
ENDED = _info("ended", "The process ends. This is its last line.", reason="why", status="the exit status")
ENDED_BY_ERROR = _error(
    "ended_by_error",
    "The process ends because of an error. This is its last line.",
    reason="why, and what to do",
    status="the exit status",
)
BUG = _error("bug", "Something happened that must not happen. Please report it.", "where", where="where it was noticed")
NOTE = _info("note", "A library that metad uses says something.", logger="which one")

# --- the processes of a machine ---

ALL_SERVING = _info("all_serving", "All processes serve.", endpoints="their addresses for clients")
MEMBER_ENDED = _warning(
    "member_ended",
    "A process has ended unexpectedly. It is started again.",
    member="its node id",
    status="its exit status",
    restarts="how often it was started again",
)
MEMBER_LEFT = _info(
    "member_left",
    "A process has ended, because its node has left the cluster.",
    member="its node id",
)
MEMBER_GIVEN_UP = _error(
    "member_given_up",
    "A process has ended for good: every other node refuses it, or it has left the cluster. It is not started again; "
    "its own log says what to do.",
    "member",
    member="its node id",
    status="its exit status",
)

# --- clients ---

CLIENT_ADMITTED = _debug("client_admitted", "A client is let in.", peer="its address", client="its name")
CLIENT_REFUSED = _warning(
    "client_refused",
    "A connection was closed because of what its peer sent, or because it may not connect.",
    "error",
    "detail",
    peer="the address of the peer",
    client="the name of the client, if it had one",
    error="the name of the error, as in wire/TABLES.md",
    detail="what was wrong",
)
CLIENT_DENIED = _warning(
    "client_denied",
    "A client has asked for something that its roles do not allow.",
    "who",
    "method",
    who="the URI of its certificate or token",
    host="its address",
    method="what it asked for",
    detail="what it may not do",
)
AUDITED = _info(
    "audited",
    "A client has asked for what is for administrators.",
    who="the URI of its certificate or token; its address where nobody is checked",
    host="its address",
    method="what it asked for",
    names="what it is about: the first 8",
    items="how many",
    failed="how many of them failed",
    outcome="done, or the name of the error",
)
CLIENT_ABORTED = _warning(
    "client_aborted",
    "A connection was cut off because its peer does not read.",
    "peer",
    peer="the address of the peer",
    client="the name of the client",
    error="the name of the error",
    detail="for how long it has not read",
)
CLIENT_IDLE = _debug("client_idle", "A connection was closed because its client was silent.", peer="its address")

# --- other nodes ---

PEER_CONNECTED = _info(
    "peer_connected",
    "This node can reach another.",
    peer="its node id",
    transport="tcp, tls or quic",
    build="version and commit of its software; empty from an older one",
)
PEER_LOST = _info("peer_lost", "This node cannot reach another any more.", peer="its node id")
PEER_SILENT = _warning("peer_silent", "Nothing was heard of another node for too long.", "peer", peer="its node id")
PEER_HOST_REFUSES = _info(
    "peer_host_refuses",
    "The connection to another node is lost, and its host refuses a new one: the node is probably dead. If it led "
    "groups, their replicas here soon ask for votes, unless they hear from it.",
    peer="its node id",
    endpoint="its address",
)
PEER_NOT_REACHED = _debug(
    "peer_not_reached",
    "Another node could not be reached. It is tried again.",
    peer="its node id",
    endpoint="its address",
    error="why",
)
PEER_REFUSED = _warning(
    "peer_refused",
    "This node refuses another.",
    "peer",
    "detail",
    peer="its node id, as it said, or its address",
    error="the name of the error",
    detail="why it is refused, and what to do",
)
REFUSED_BY_PEER = _warning(
    "refused_by_peer",
    "Another node refuses this one. If all of them do, this node ends.",
    "peer",
    "error",
    peer="its node id",
    error="why, and what to do",
)
PEER_DOES_NOT_READ = _warning(
    "peer_does_not_read",
    "The connection with another node was cut off because it does not read.",
    "peer",
    peer="its node id",
)
PEER_CONNECTION_WORN = _debug(
    "peer_connection_worn",
    "A connection has used up its keys and is replaced.",
    peer="the other node's id",
)
QUIC_BLOCKED = _warning(
    "quic_blocked",
    "QUIC does not get through to another node, so TCP is used. Is UDP filtered?",
    "peer",
    peer="its node id",
    error="what happened",
)
QUIC_UNBLOCKED = _info("quic_unblocked", "QUIC gets through to another node again.", peer="its node id")
NODE_JOINED = _info(
    "node_joined", "A node was taken into the cluster.", member="its node id", endpoint="its address for clients"
)
NODE_FORGOTTEN = _info(
    "node_forgotten", "A node that was leaving holds nothing any more and is no member now.", member="its node id"
)
NODE_LEFT = _info(
    "node_left",
    "This node has left its cluster, and ends. To join again, it needs an empty data directory.",
    cluster="the id of the cluster",
    map_version="the map that has the node no more",
)
CANNOT_JOIN_YET = _warning(
    "cannot_join_yet",
    "The cluster has not taken this node in yet. It asks again.",
    "through",
    "error",
    through="the address that was asked",
    error="why",
)

# --- groups ---

LEADER_GAINED = _info("leader_gained", "This node leads a group.", group="its name", term="of Raft")
LEADER_LOST = _info(
    "leader_lost",
    "This node does not lead a group any more.",
    group="its name",
    term="of Raft",
    leader="who leads it now, if that is known",
)
NO_LEADER = _warning(
    "no_leader",
    "Groups have had no leader for some seconds, as far as this node knows: their requests wait or fail.",
    groups="some of them",
    count="how many there are",
    longest_ms="how long one of them has had none",
)
STOOD_STILL = _warning(
    "stood_still",
    "The node stood still: somebody stopped it, its machine slept, or something held up its loop. Nobody is judged "
    "by that time, and nothing that has a deadline ends for `expiry.amnesty_ms`.",
    stood_ms="for how long",
)
CLOCK_SET = _warning(
    "clock_set",
    "The clock of the machine was set, or went on while it slept. In groups that the node leads nothing that has a "
    "deadline ends for `expiry.amnesty_ms`, and their time goes a hundredth faster or slower until it agrees.",
    by_ms="by so much more than time has passed",
)
LEADER_FOUND = _info("leader_found", "All groups on this node have a leader again.", longest_ms="how long one had none")
OVERLOADED = _warning(
    "overloaded",
    "More is asked of a group than it can do in time: requests are turned away, and told when to come back.",
    "group",
    group="its name",
    waiting_items="that wait in front of it",
    wait_ms="how long they take, by the rate",
    served_per_s="the rate: items that were begun per second lately",
)
OVERLOAD_OVER = _info(
    "overload_over",
    "Nobody was turned away from a group for a second.",
    group="its name",
    refused="requests that were turned away",
    lasted_ms="between the first of them and the last",
)
REPLICAS_ADDED = _info(
    "replicas_added", "The cluster gives groups with too few replicas more of them.", detail="which groups"
)
REPLICA_REMOVED = _info(
    "replica_removed", "A replica was removed from this node, with its data.", group="its name", term="of Raft"
)
REPLICA_LOST_DATA = _error(
    "replica_lost_data",
    "A replica lacks entries that it acknowledged. It is not counted any more.",
    "group",
    "peer",
    group="its name",
    peer="the node that it is on",
    acknowledged="the log index that it had acknowledged",
    rejected="the log index that it lacks",
    remedy="what to do",
)
TERM_TOO_FAR_AHEAD = _warning(
    "term_too_far_ahead",
    "A message with an impossible term was dropped.",
    "group",
    "peer",
    group="its name",
    peer="the sender",
    term="of the message",
    own="the term of this replica",
)
SNAPSHOT_WANTED = _info(
    "snapshot_wanted",
    "A follower lacks entries that the log does not have any more. It gets a snapshot.",
    group="its name",
    peer="the node of the follower",
)
COMPACTED_ALL = _info(
    "compacted_all",
    "What is deleted was dropped from all files, because somebody wanted that.",
    bytes="of the files now",
    before_bytes="of the files when it began",
    error="why it broke off; empty if it did not",
)
GROUPS_RECOVERED = _warning(
    "groups_recovered",
    "Groups that had lost their majority for good go on from what this node has: `metad recover` was run. What others "
    "had acknowledged without it is lost.",
    cluster="the id of the cluster from now on",
    groups="that this node has taken up",
    lost="the nodes without which the cluster goes on",
)
REPLICA_UNLIKE = _warning(
    "replica_unlike",
    "The state of a replica differs from that of the majority at the same log index. It gets a snapshot.",
    "group",
    "peer",
    group="its name",
    peer="the node that it is on",
    index="the log index",
    rows="rows of the part of the state that differs",
)
REPLICAS_UNDECIDED = _error(
    "replicas_undecided",
    "The states of replicas differ at the same log index, and no majority says which is right. Nothing is repaired.",
    "group",
    group="its name",
    peers="the nodes that were compared",
    index="the log index",
)
REPLICA_REBUILDS = _warning(
    "replica_rebuilds",
    "A leader says that this replica's state is wrong. It serves nobody until a snapshot is in its place.",
    "group",
    group="its name",
    leader="the node that leads the group",
    applied="the log index that the state has reached",
)
REPLICA_GOES_ON = _warning(
    "replica_goes_on",
    "The snapshot did not come that was to replace a wrong state. The replica serves again with that state.",
    "group",
    group="its name",
)
REPLICAS_ALIKE = _info(
    "replicas_alike",
    "The states of all replicas are the same again.",
    group="its name",
    peers="the nodes whose states differed",
)
SNAPSHOT_SENT = _info(
    "snapshot_sent",
    "A follower has received a snapshot.",
    group="its name",
    peer="the node of the follower",
    index="the log index that it ends with",
    seconds="how long that took",
)
SNAPSHOT_NOT_SENT = _warning(
    "snapshot_not_sent",
    "A snapshot did not reach a follower, or was not installed there. It is sent again.",
    "group",
    "peer",
    group="its name",
    peer="the node of the follower",
    reason="why",
)
SNAPSHOT_INSTALLED = _info(
    "snapshot_installed",
    "This node has received a snapshot and put it in place of its state.",
    group="its name",
    index="the log index that it ends with",
    seconds="how long installing took",
)
SNAPSHOT_RESUMED = _info(
    "snapshot_resumed",
    "A snapshot whose installation a crash had interrupted is in place.",
    group="its name",
    index="the log index that it ends with",
)
CHECKPOINT = _debug(
    "checkpoint",
    "The state was flushed: a restart replays only what comes after it.",
    log_bytes="bytes of log",
    seconds="duration",
)

CHECKPOINT_KEPT = _info(
    "checkpoint_kept",
    "A backup is being taken: this node keeps the files of one moment until they are read.",
    id="who takes it has called it so",
    files="how many",
    bytes="of them together",
)
CHECKPOINT_DROPPED = _warning(
    "checkpoint_dropped",
    "Nobody has read the files that were kept for a backup, so they are dropped. It has to be begun again.",
    "id",
    id="who took it had called it so",
    seconds="since they were read last",
)

COMPACTED = _debug(
    "compacted",
    "A part of the state's files was written anew without what had been deleted, because scans took long to pass it.",
    seconds="duration",
)

# --- room on the disk ---

DISK_SHORT = _warning(
    "disk_short",
    "The disk has less room than the low-water mark. What takes more room is refused until there is some.",
    "free_bytes",  # each line is a new one: the last of these and of the next says how the disk is
    free_bytes="room for this node",
    low_bytes="the low-water mark",
    full="there is next to none, so the node takes no entries of other leaders either",
    total_bytes="size of the disk",
    lasts_ms="for how long that lasts if it shrinks on as it did; null if it did not shrink",
)
DISK_HAS_ROOM = _info(
    "disk_has_room",
    "The disk has room again.",
    free_bytes="room for this node",
    low_bytes="the low-water mark",
)
DISK_NOT_SEEN = _warning("disk_not_seen", "The room on the disk cannot be told.", error="why")
RESERVE_RELEASED = _warning(
    "reserve_released",
    "The disk has next to no room. The node has deleted the file that it keeps for this.",
    free_bytes="room before that",
    reserve_bytes="what it has made",
)
WAITS_FOR_ROOM = _error(
    "waits_for_room",
    "The disk is full, so the node serves nothing. Delete a file there, or make the disk larger: the node looks for "
    "room each second, and then opens its stores again by itself.",
    directory="the data directory",
    missing_bytes="how much more room is needed to open the stores",
    waited_s="for how long it has waited",
    error="what had no room",
)
NO_ROOM_TO_COMPACT = _warning(
    "no_room_to_compact",
    "There is too little room to write the state's files anew without what was deleted.",
    error="why",
)

# --- sweeps ---

SWEEP_PASSED_OVER = _warning(
    "sweep_passed_over",
    "What belongs to a session is too much for an entry, so this leader does not end it. Others are ended.",
    "group",
    group="its name",
    tenant="the session's tenant",
    client_id="and its client",
)

# --- watches ---

WATCHES_FULL = _warning(
    "watches_full",
    "A watch was refused because this node has no room for it.",
    reason="which bound is reached",
)
WATCHES_SENT_AWAY = _warning(
    "watches_sent_away",
    "The watches of a replica were ended because it does not hear its leader; they go on at other nodes.",
    "group",
    group="its name",
    streams="how many",
)
WATCHES_CUT = _warning(
    "watches_cut",
    "The log was cut although a watch is behind, because it is behind by too much. It goes on from a snapshot.",
    "group",
    group="its name",
    bytes="bytes of log before the cut",
)

# --- slots that move ---

SLOT_MOVE_BEGAN = _info(
    "slot_move_began",
    "Slots begin to move from a group that this node leads.",
    move="its number",
    source="the ordinal of the group that they leave",
    target="the ordinal of the group that they go to",
    attempt="its number",
)
BROKER_REGISTERED = _info(
    "broker_registered",
    "A broker has begun a life, which ends its earlier ones.",
    "broker",
    broker="its name",
    epoch="the epoch of the life",
    address="where it says that it is",
)
BROKER_FENCED = _warning(
    "broker_fenced",
    "A broker's life is over.",
    "broker",
    "epoch",
    broker="its name",
    epoch="the epoch of the life",
    reason="why",
)
INDEX_WAITS = _warning(
    "index_waits",
    "An index was added to a table, and the fields of a record are too long for it. Nobody can list by it before that "
    "record is written anew, or deleted.",
    "table",
    "index",
    table="the name of the table",
    index="and of the index",
    key="the key of the record, as on disk",
)
WILLS_WAIT = _warning(
    "wills_wait",
    "Wills are due, and no broker publishes them. Those that wait for expiry.will_keep_s are dropped.",
    "group",
    group="the name of the group that they are in",
    count="how many",
    oldest_s="for how long the oldest of them waits",
)
WILLS_DROPPED = _error(
    "wills_dropped",
    "Wills were dropped that no broker has published for as long as expiry.will_keep_s.",
    "group",
    group="the name of the group that they were in",
    count="how many, now",
    dropped="how many this node has had dropped since its start",
)
FENCES_NOT_SPREAD = _warning(
    "fences_not_spread",
    "A group could not be told which lives of brokers are over. It is tried again.",
    "group",
    group="its name",
    error="the name of the error",
    detail="why",
)
BROKERS_FORGOTTEN = _info(
    "brokers_forgotten",
    "The registry of brokers was nearly full, and brokers that ended over a day ago were removed from it.",
    count="how many",
    kept="how many were to be removed and are still there",
    left="names that are left",
)
BROKERS_NOT_FORGOTTEN = _warning(
    "brokers_not_forgotten",
    "The registry of brokers is nearly full, and a group could not be told to forget brokers that ended over a day "
    "ago. The next registration tries it again.",
    "group",
    group="its name",
    error="the name of the error",
    detail="why",
)
SLOTS_MOVED = _info(
    "slots_moved",
    "Slots have moved.",
    move="the number of the move",
    source="the ordinal of the group that they left",
    target="the ordinal of the group that has them",
    rows="how many rows moved",
)
SLOT_MOVE_BROKE_OFF = _warning(
    "slot_move_broke_off",
    "A slot move broke off. It is tried again.",
    "move",
    move="its number",
    error="the name of the error",
    detail="why",
)
SLOT_MOVE_NOT_CLOSED = _warning(
    "slot_move_not_closed",
    "Slots have moved, and the group that they left could not note that yet. It is tried again.",
    "move",
    move="its number",
    error="the name of the error",
    detail="why",
)
ROWS_DROPPED = _info(
    "rows_dropped", "Rows of slots that have moved away were deleted.", group="its name", rows="how many"
)

# --- certificates and tokens ---

CERTIFICATES_END_SOON = _warning(
    "certificates_end_soon",
    "A certificate of this node ends soon. Then nobody can connect any more.",
    "path",
    "ends",
    path="its file",
    days="days until then",
    ends="the time",
)
CERTIFICATES_ENDED = _error(
    "certificates_ended",
    "A certificate of this node is over: nobody can connect any more. Replace the file; the node reads it by itself.",
    "path",
    "ended",
    path="its file",
    ended="when it ended",
)
FILES_RELOADED = _info("files_reloaded", "Replaced files are in use.", what="which", paths="their paths")
FILES_UNUSABLE = _error(
    "files_unusable",
    "Replaced files cannot be used. The old ones stay in use.",
    "what",
    "error",
    what="which",
    error="why",
)
FILES_GONE = _warning("files_gone", "Files were deleted: nothing is accepted any more.", "what", what="which")
CANNOT_ACCEPT = _warning(
    "cannot_accept",
    "Connections wait, because the system gives no more files or memory. The node tries again every second.",
    error="what the system says",
)
TLS_REFUSED = _info(
    "tls_refused", "A peer was not let in, or hung up: its handshake over TLS or QUIC failed.", detail="why"
)
QUIC_FAILED = _error("quic_failed", "A QUIC connection has failed by a bug. Please report it.")

# --- which of them tell a change ---

CHANGES: Final[dict[str, str]] = {
    event.key: table
    for table, events in {
        "cluster": (
            *(RECOVERED, LISTENING, NOT_SERVING, SERVING, DRAINING, HANDED_OVER, NOT_DRAINED, STOPPED, NODE_FAILED),
            *(STORES_NOT_CLOSED, SETTING_SET, SETTING_IGNORED, LIMIT_LOWERED, MEMORY_SHORT, LINES_DROPPED, BUG),
            *(PEER_CONNECTED, PEER_LOST, PEER_SILENT, PEER_HOST_REFUSES, PEER_REFUSED, REFUSED_BY_PEER),
            *(PEER_DOES_NOT_READ, QUIC_BLOCKED, QUIC_UNBLOCKED, QUIC_FAILED, CANNOT_ACCEPT),
            *(NODE_JOINED, NODE_FORGOTTEN, NODE_LEFT, CANNOT_JOIN_YET),
            *(LEADER_GAINED, LEADER_LOST, NO_LEADER, LEADER_FOUND, OVERLOADED, OVERLOAD_OVER),
            *(STOOD_STILL, CLOCK_SET),
            *(REPLICAS_ADDED, REPLICA_REMOVED, REPLICA_LOST_DATA, TERM_TOO_FAR_AHEAD),
            *(GROUPS_RECOVERED, REPLICA_UNLIKE, REPLICAS_UNDECIDED, REPLICA_REBUILDS, REPLICA_GOES_ON, REPLICAS_ALIKE),
            *(SNAPSHOT_WANTED, SNAPSHOT_SENT, SNAPSHOT_NOT_SENT, SNAPSHOT_INSTALLED, SNAPSHOT_RESUMED),
            *(CHECKPOINT_KEPT, CHECKPOINT_DROPPED),
            *(DISK_SHORT, DISK_HAS_ROOM, DISK_NOT_SEEN, RESERVE_RELEASED, WAITS_FOR_ROOM, NO_ROOM_TO_COMPACT),
            *(CONVERTING, CONVERTED, FORMAT_REACHED, GROUP_CONVERTED, FEATURE_SWITCHED),
            *(WATCHES_FULL, WATCHES_SENT_AWAY, WATCHES_CUT),
            *(SLOT_MOVE_BEGAN, SLOTS_MOVED, SLOT_MOVE_BROKE_OFF, SLOT_MOVE_NOT_CLOSED, ROWS_DROPPED),
            *(WILLS_WAIT, WILLS_DROPPED, FENCES_NOT_SPREAD, BROKERS_FORGOTTEN, BROKERS_NOT_FORGOTTEN),
            *(CERTIFICATES_END_SOON, CERTIFICATES_ENDED, FILES_RELOADED, FILES_UNUSABLE, FILES_GONE),
        ),
        "broker": (BROKER_REGISTERED, BROKER_FENCED),
        "audit": (AUDITED,),
    }.items()
    for event in events
}
"""Events that ``system.events`` shows -> which table one must be able to read for that: their fields name its keys.
What has keys of other records, or what a client has sent, is none of them."""


_HEAD = """# Log events

A node writes its log to stderr, one JSON object per line. Every line has

- `ts`: the time in UTC, as in `2026-11-22T15:04:05.678Z`
- `level`: `debug`, `info`, `warning` or `error`; `log_level` in the configuration chooses the lowest
- `node`: the id of the node; the supervisor of a local cluster calls itself `cluster`
- `event`: one of the keys below, which stay as they are
- the fields of the event, which are null if they do not apply
- `text`, from warnings on: the sentence below
- `exception`, after a bug: the traceback

A warning or an error is logged at once, and then once a minute as long as it is repeated; `left_out` is how many lines
were left out before. Lines are the same warning again if they do not differ in the fields in bold. So is information
that has such fields.

The last line of a process is `ended` or `ended_by_error`. It has the reason and the exit status: 0 after SIGTERM or
SIGINT; 1 if the node cannot serve; 3 if every other node refuses it. Another start would not change that, so nothing
may restart it (`RestartPreventExitStatus=3` of systemd; the supervisors of metad keep to that). A process that is
killed writes no last line.

`metadctl events` shows, of all nodes together, those that have a table in the column *shown*: to clients that may read
this table. Each node keeps the last of them in memory.

`metad logs` prints this page.
"""


def reference() -> str:
    """What ``metad logs`` prints, as a page."""
    lines = [_HEAD, "| event | level | shown | meaning | fields |", "| --- | --- | --- | --- | --- |"]
    for event in EVENTS.values():
        fields = "; ".join(
            f"{f'**`{name}`**' if name in event.about else f'`{name}`'}: {text}" for name, text in event.fields.items()
        )
        level, shown = logging.getLevelName(event.level).lower(), CHANGES.get(event.key, "")
        lines.append(f"| `{event.key}` | {level} | {shown} | {event.text} | {fields} |")
    return "\n".join([*lines, ""])
