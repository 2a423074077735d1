"""Situations that decide whether a rule holds, each played out by hand: who leads, what is lost, held back or late is
chosen, nothing is left to chance. Chance alone finds few of them.

A scenario fails by raising. It needs no assertion where :mod:`metad_judge.invariants` or the state machine
would object by itself.
"""

from __future__ import annotations

from . import deaths, disks, log, membership, reads, sleeping, snapshots, votes  # each puts its own on the list
from .scene import SCENARIOS

__all__ = ["SCENARIOS", "deaths", "disks", "log", "membership", "reads", "sleeping", "snapshots", "votes"]
