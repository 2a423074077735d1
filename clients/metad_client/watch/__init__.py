"""Watches: streams of changes of all groups, put together as one iterator that survives moves, leaders and restarts."""
