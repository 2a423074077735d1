"""Brokers and nodes brought into agreement, and the storms that come of it."""
