"""Assignment, explored: small worlds of brokers, logs and fences, in which every change of a partition's record is the
product's own. All states are visited that the environment can lead to. ``python -m sim.assignment`` (from the folder of
the tests) explores all worlds, which takes minutes; the tests explore small ones."""
