"""Upgrades of real nodes to this build, and back, under load."""
