"""What a client offers its user by name: ``m.sessions``, ``m.offsets``, ``m.kv``, ``m.retained``, ``m.cluster``, and
``m.table(…)``."""
