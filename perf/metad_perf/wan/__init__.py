"""Long paths: a relay between network namespaces, and what metad does over it. ``metad-perf wan``."""
