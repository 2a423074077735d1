"""``metad-perf failover``: how soon a broker's death is known, and what comes of its sessions."""
