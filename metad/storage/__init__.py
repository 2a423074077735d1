"""Bytes on disk: an ordered key-value engine, the Raft log on top of one, and how keys are built.

Knows nothing of tables, commands or groups beyond their key prefixes.
"""
