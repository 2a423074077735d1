"""Errors of the source and of the sink, in one line each. They do not need Spark."""

from __future__ import annotations

from ..errors import SparkError


class OptionError(SparkError):
    """An option that makes no sense; the text names it and what would be right."""


class ClusterError(SparkError):
    """A cluster that cannot be reached, or refuses; the text begins with its address."""


class SinkError(SparkError):
    """A record that is not written; the text names it."""


class LostChangesError(SparkError):
    """A stream whose next changes are in no log any more."""


class DirectoryError(SparkError):
    """A directory that is no exported snapshot, or a damaged one; the text names the file."""
