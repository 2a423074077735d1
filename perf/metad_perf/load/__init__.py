"""Load: what its requests hold, who makes them, in how many processes, and one measured run. ``metad-perf load``."""
