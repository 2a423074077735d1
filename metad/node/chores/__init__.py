"""What a node does that nobody waits for: sweeps, and the ends of leases, groups and wills."""
