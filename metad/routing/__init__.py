"""Key -> slot -> group. Pure."""
