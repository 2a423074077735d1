"""The map of the cluster: what is seen, what is decided of it, and what is done."""
