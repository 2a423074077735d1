"""From bytes to reply on one node.

- :mod:`.connection`: one client's connection: frames in, replies out, bounds kept
- :mod:`.node`: dispatch a request to its groups, and the node's life: open, recover, run, drain, close
- :mod:`.driver`: one group: coalesce requests into entries, evaluate, propose, apply, answer
- :mod:`.stores`: the two stores on disk, their identity, and what is refused at start
- :mod:`.serve`: listen, sweep, signals
"""
