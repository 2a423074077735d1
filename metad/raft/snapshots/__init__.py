"""Snapshots: made, sent, received, installed."""
