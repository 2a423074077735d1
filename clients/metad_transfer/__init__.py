"""Brings records from one cluster to another, while both serve."""
