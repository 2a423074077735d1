"""Brings brokers and nodes into agreement, and runs the resulting storms."""
