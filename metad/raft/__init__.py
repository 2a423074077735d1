"""Consensus: a Raft that can be trusted, on pysyncobj's SyncObj. Nothing above this package knows pysyncobj.

A replica (:mod:`.replica`) is composed of one object for each rule, in :mod:`.roles`: elections and sleep
(``elections``), replication (``leader``, ``follower``), linearizable reads (``reads``), membership and hand-over
(``membership``). The rules share the replica's state (:mod:`.state`, the only SyncObj), its log (:mod:`.log.journal`)
and a leader's knowledge of its peers (``leadership``). :mod:`metad.storage.log` makes the logs of a node durable;
:mod:`.replicas` drives all groups of a node and carries their messages.

pysyncobj 0.3.17 as it stands loses acknowledged writes. What of SyncObj is kept, and what is replaced:

============================== ======== ==============================================================================
SyncObj                        here     why
============================== ======== ==============================================================================
role, term, vote, leader,      kept     plain state with its setters; term and vote go through the Journal
commit and applied index
Journal interface              kept     :class:`.log.journal.RaftLog` implements it over the log store
connected and other nodes,     kept     for ``getStatus``; the configuration in the log is what counts
getStatus
FileJournal, MemoryJournal     replaced not synced before votes and acknowledgements; ``kill -9`` loses it compacting
_onTick                        replaced commit, election, check-quorum are inline in it: counts itself before its disk
                                        has the entry, has no pre-vote, applies everything in one go
__onMessageReceived            replaced truncates what it has acknowledged; advances commit to entries it has not
                                        verified; counts votes, not voters; unpickles bytes from the network
__sendNextNodeIdx              replaced replies carry no term: an old reply acknowledges a new leader's entries
__sendAppendEntries            replaced never converges once a rejection is pipelined behind a gap; unbounded pipeline
__applyLogEntries,             replaced an exception in a callback applies an entry twice; unpickles; unbounded
__doApplyCommand
__onBecomeLeader               replaced resets progress that a removed node's late reply then trips over
_applyCommand, command queue   replaced forwards to the leader and hangs if that message is lost
__tryLogCompaction,            replaced a crash between dump and compaction wipes acknowledged entries; a failed load
__loadDumpFile, Serializer              acknowledges entries it does not have
__changeCluster,               replaced two uncommitted changes at once; configuration lost on restart; denies removing
__doChangeCluster                       oneself; unpickles
transfer                       replaced refused while anything is in flight, and does not stop proposals
TCPTransport, poller, threads  unused   messages go through the host; nothing of SyncObj polls or runs by itself
============================== ======== ==============================================================================
"""
