"""``metad-perf storm``: every client of a fleet loses its connection, and comes back."""
