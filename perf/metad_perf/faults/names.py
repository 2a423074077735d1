"""The names of the faults of ``metad-perf crash --nodes 3``, apart from their code so that the command line loads
quickly."""

FAULTS = ("kill", "term", "pause", "partition", "oneway", "diskfull", "slowdisk", "disk-hang")
