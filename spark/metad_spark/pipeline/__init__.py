"""Spark: starting it, our code on it, jobs, and what a person sees meanwhile."""
