"""metad in Spark: its tables as DataFrames, their changes as streams, and storms before they happen. spark/README.md
describes the contents."""

from .source.registering import register

__all__ = ["register"]
