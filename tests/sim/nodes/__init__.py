"""Whole nodes and their clients on a virtual loop: the cluster, faults by seed, and scenarios by hand."""
