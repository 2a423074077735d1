"""Nodes that are killed, cut off and filled up, and the judges of what they acknowledged. ``metad-perf crash``."""
