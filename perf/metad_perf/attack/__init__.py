"""Strangers and insiders who mean harm, and the nodes they attack. ``metad-perf attack``."""
