"""Errors for the user, in one line, when a request cannot be done."""

from __future__ import annotations


class SparkError(Exception):
    """Base of all errors: the text names the mistake and what would be right."""


class ScenarioError(SparkError):
    """A scenario with a value out of range; the text names the key and the allowed values."""


class CalibrationError(SparkError):
    """A calibration file with a value out of range; the text names the key and the allowed values."""


class SimulationError(SparkError):
    """A storm that cannot be simulated in the requested way."""


class TooMany(SimulationError):
    """A node has more clients than can be simulated one by one."""


class UsageError(SparkError):
    """Flags that contradict each other, or a flag with an invalid value."""


class JavaMissing(SparkError):
    """Spark needs a Java virtual machine, and there is none that it can use."""


class SparkFailed(SparkError):
    """Spark did not start, could not be reached, or a job of it failed."""


class ProcessDied(SparkError):
    """A process of the local runner was ended from outside, as by a system without memory."""


class TablesError(SparkError):
    """Tables of storms that cannot be used: no such folder or run, a damaged file, or a newer format."""
