"""One node: the way of a request through its replicas, and what keeps them up. It knows no socket.

- :mod:`.requests`: a request is checked, and goes to its group
- :mod:`.requests.reads`: reads, once the lead is proven
- :mod:`.replicas.driver`: one group: waiting writes become entries; they are proposed, applied and answered
- :mod:`.requests.scheduler`: what the event loop does for all groups in one turn
- :mod:`.disk.replica_lifecycle`: replicas are opened, recovered and dropped, as the cluster map says
- :mod:`.disk.stores`: the two stores on disk, their identity, and what is refused at start
- :mod:`.node`: all of it put together; how a node begins, fails and ends
"""
