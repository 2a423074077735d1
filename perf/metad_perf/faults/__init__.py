"""Faults that strike nodes (kill, cut off, fill up), and the judges of acknowledged writes. ``metad-perf crash``."""
