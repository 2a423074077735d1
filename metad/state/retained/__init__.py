"""Retained messages, and the filters that match them."""
