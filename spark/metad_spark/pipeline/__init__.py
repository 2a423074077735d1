"""Spark: starting it, running our code on it, jobs, and progress for the user."""
