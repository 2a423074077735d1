"""Proofs that the simulation is credible, and the results that they compare with."""
