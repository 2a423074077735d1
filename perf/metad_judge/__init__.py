"""Judges of what a cluster did, one for each promise. They are pure: they know no network and no clock, and nobody who
runs what they judge.

- :mod:`.linearizability` searches a history of clients' calls for an order that makes it possible;
  :mod:`.history` asks it, and judges versions besides.
- :mod:`.invariants`: what must hold of a group's replicas at every moment.
- :mod:`.written` follows the logs: what was written, when. On it stand :mod:`.coordination` (epochs, leases, locks,
  wills), :mod:`.consumers` (members and their offsets), :mod:`.durations` (what may end, and when), and :mod:`.watch`
  (what watchers were told).
"""
