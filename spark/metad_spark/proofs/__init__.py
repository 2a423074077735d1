"""Why the simulation can be believed: proofs, and what they compare with."""
