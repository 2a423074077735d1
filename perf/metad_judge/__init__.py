"""Judges whether the answers that the clients of a store got are possible. Pure: knows no store, no network and no
clock."""
