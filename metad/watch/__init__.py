"""The server's side of watches: streams of a group's log, filtered. Knows no socket and no node.

A replica that somebody watches has a :class:`.hub.Hub`. It holds the :class:`.stream.Stream` of each watch, tells live
ones of the entries that are applied, and lets the others read the log until they are level with it.
"""
