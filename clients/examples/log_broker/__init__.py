"""A small replicated log broker: metad assigns its partitions, and elects their leaders.

There is no election in it. :mod:`.broker` is told by ``m.serve`` what it leads and follows, :mod:`.log` is a partition
on disk, :mod:`.client` produces and consumes, :mod:`.protocol` is what they say to each other.
"""
