"""Storms as Parquet tables: written a run at a time, and asked."""
