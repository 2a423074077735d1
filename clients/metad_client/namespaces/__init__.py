"""What a client offers its user by name: ``m.sessions``, ``m.offsets``, ``m.kv`` and ``m.cluster``."""
