"""What a user is told, in one line, when something asked for cannot be done."""

from __future__ import annotations


class SparkError(Exception):
    """The base of all: its text names what is wrong and what would be right."""


class ScenarioError(SparkError):
    """A scenario that makes no sense; the text names the key and what is allowed there."""


class CalibrationError(SparkError):
    """A calibration file that makes no sense; the text names the key and what is allowed there."""


class SimulationError(SparkError):
    """A storm that cannot be simulated in the way asked for."""


class DoesNotHold(SimulationError):
    """The fluid model was asked for outside of its conditions, about too many clients for the vector model."""


class UsageError(SparkError):
    """Flags that contradict each other, or one that makes no sense."""


class JavaMissing(SparkError):
    """Spark needs a Java virtual machine, and there is none that it can use."""


class SparkFailed(SparkError):
    """Spark did not start, could not be reached, or a job of it failed."""
