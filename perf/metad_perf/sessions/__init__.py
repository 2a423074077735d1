"""``metad-perf sessions``: what the life of sessions costs: beginning and ending them one by one, and holding many."""
