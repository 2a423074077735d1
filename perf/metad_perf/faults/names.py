"""The faults of ``metad-perf crash --nodes 3`` by name, apart from their code: the command line loads quickly."""

FAULTS = ("kill", "term", "pause", "partition", "oneway", "diskfull", "slowdisk", "disk-hang")
