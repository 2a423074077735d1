"""``metad-perf overload``: more load than the cluster can take, and what must not happen meanwhile."""
