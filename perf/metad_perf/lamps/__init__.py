"""``metad-perf lamps``: what metrics cost, and whether every alert fires and ends."""
