"""Programs of all kinds that whole-node seeds have, each with a judge of what it was told."""
