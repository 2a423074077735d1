"""Makes entries durable and committed. Nothing above this package knows how.

- :mod:`.group`: the seam: what a group offers to the layers above, whoever replicates it
- :mod:`.writer`: group commit: entries of all groups, one fsync
- :mod:`.single`: a group whose only replica is this node
"""
