"""Attackers, strangers as well as insiders, and the nodes they attack. ``metad-perf attack``."""
