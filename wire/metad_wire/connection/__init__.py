"""Frames, and what a connection's two ends may say when."""
