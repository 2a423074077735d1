"""Long paths: a relay between network namespaces, and measurements of metad over it. ``metad-perf wan``."""
