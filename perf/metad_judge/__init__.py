"""Judges of what a cluster did, one for each promise. They are pure: they know no network and no clock, and nobody who
runs what they judge.

- :mod:`.linearizability` searches a history of clients' calls for an order that makes it possible;
  :mod:`.history` asks it, and judges versions besides.
- :mod:`.acknowledged`: what a client was told is written is there, once; :mod:`.sessions`: a session is whole, and what
  is due of it comes once; :mod:`.undisturbed`: an overload has ended nothing. :mod:`.verdict` counts what they find.
- :mod:`.invariants`: what must hold of a group's replicas at every moment.
- :mod:`.written` follows the logs: what was written, when. On it stand :mod:`.coordination` (epochs, leases, locks,
  wills), :mod:`.consumers` (members and their offsets), :mod:`.durations` (what may end, and when), and :mod:`.watch`
  (what watchers were told).
"""
