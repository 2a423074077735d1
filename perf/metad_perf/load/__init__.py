"""Load: the content of requests, the processes that send them, and one measured run. ``metad-perf load``."""
