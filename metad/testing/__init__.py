"""The former place of the simulators: they are in ``tests/sim``."""
