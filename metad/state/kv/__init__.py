"""Records with versions, leases, and sequences."""
